#include "kubernetes/dra/kubelet/test_dra_kubelet.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>

#include "nvshare_dra_health_v1.grpc.pb.h"
#include "nvshare_dra_health_v1alpha1.grpc.pb.h"
#include "nvshare_dra_v1.grpc.pb.h"
#include "nvshare_dra_v1beta1.grpc.pb.h"
#include "nvshare_pluginregistration_v1.grpc.pb.h"

namespace nvshare::kubernetes::dra {
namespace {

namespace dra_api = ::k8s::io::kubelet::pkg::apis::dra;

// Not shared, so that a driver that is back is not waited for.
std::shared_ptr<grpc::Channel> dial(const std::string& socket) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments);
}

void set_deadline(grpc::ClientContext* context) { context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(45)); }

Error failed_call(const grpc::Status& status) {
  return error_format("%.200s (code %d)", status.error_message().c_str(), static_cast<int>(status.error_code()));
}

template <typename Request>
void add_claims(const std::vector<ClaimName>& claims, Request* request) {
  for (const ClaimName& name : claims) {
    auto* claim = request->add_claims();
    claim->set_namespace_(name.name_space);
    claim->set_name(name.name);
    claim->set_uid(name.uid);
  }
}

template <typename Device>
PreparedDevice read_device(const Device& device) {
  PreparedDevice read{device.request_names(0),
                      device.pool_name(),
                      device.device_name(),
                      "",
                      {device.cdi_device_ids().begin(), device.cdi_device_ids().end()}};
  if constexpr (requires { device.share_id(); }) read.share_id = device.share_id();
  return read;
}

template <typename Plugin, typename Request, typename Response>
Result<TestDraKubelet::Entries> call_prepare(const std::string& socket, const std::vector<ClaimName>& claims,
                                             std::chrono::milliseconds patience) {
  auto stub = Plugin::NewStub(dial(socket));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + patience);
  Request request;
  add_claims(claims, &request);
  Response response;
  if (const grpc::Status status = stub->NodePrepareResources(&context, request, &response); !status.ok()) return failed_call(status);
  TestDraKubelet::Entries entries;
  for (const auto& [uid, answer] : response.claims()) {
    TestDraKubelet::Entry& entry = entries[uid];
    entry.error = answer.error();
    for (const auto& device : answer.devices()) entry.devices.push_back(read_device(device));
  }
  return entries;
}

template <typename Plugin, typename Request, typename Response>
Result<TestDraKubelet::Entries> call_unprepare(const std::string& socket, const std::vector<ClaimName>& claims) {
  auto stub = Plugin::NewStub(dial(socket));
  grpc::ClientContext context;
  set_deadline(&context);
  Request request;
  add_claims(claims, &request);
  Response response;
  if (const grpc::Status status = stub->NodeUnprepareResources(&context, request, &response); !status.ok()) return failed_call(status);
  TestDraKubelet::Entries entries;
  for (const auto& [uid, answer] : response.claims()) entries[uid].error = answer.error();
  return entries;
}

template <typename Service, typename Request, typename Response>
Result<void> watch_health(const std::string& socket, const std::function<bool(const TestDraKubelet::Health&)>& until) {
  auto stub = Service::NewStub(dial(socket));
  grpc::ClientContext context;
  auto reader = stub->NodeWatchResources(&context, Request());
  Response response;
  bool found = false;
  while (!found && reader->Read(&response)) {
    TestDraKubelet::Health health;
    for (const auto& one : response.devices()) {
      health[one.device().pool_name() + "/" + one.device().device_name()] =
          std::string(one.health() == 1 ? "healthy" : "unhealthy: ") + one.message();
    }
    found = until(health);
  }
  context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (found) return {};
  return failed_call(status);
}

}  // namespace

struct TestDraKubelet::Parts {
  std::string folder;
  std::vector<std::string> versions;
  std::string endpoint, version;
};

TestDraKubelet::TestDraKubelet(const std::string& folder, std::vector<std::string> versions)
    : parts_(new Parts{folder, std::move(versions), "", ""}) {
  for (const std::string& socket : {registration_socket(folder), service_socket(folder)}) {
    std::filesystem::create_directories(std::filesystem::path(socket).parent_path());
  }
}

TestDraKubelet::~TestDraKubelet() = default;

std::string TestDraKubelet::registration_socket(const std::string& folder) { return folder + "/plugins_registry/gpu.nvshare.com-reg.sock"; }

std::string TestDraKubelet::service_socket(const std::string& folder) { return folder + "/plugins/gpu.nvshare.com/dra.sock"; }

// The newest that answers; a kubelet, too, calls the one that registered last, and others when it is gone.
Result<std::string> TestDraKubelet::find_driver() {
  namespace fs = std::filesystem;
  std::multimap<fs::file_time_type, std::string, std::greater<>> sockets;
  std::error_code gone;
  for (const auto& file : fs::directory_iterator(parts_->folder + "/plugins_registry"))
    sockets.emplace(fs::last_write_time(file.path(), gone), file.path().string());
  Error why = error_format("no driver has a socket here");
  for (const auto& [made, socket] : sockets) {
    Result<std::string> version = register_driver(socket);
    if (version) return version;
    why = version.error();
  }
  return why;
}

Result<std::string> TestDraKubelet::register_driver(const std::string& socket) {
  auto stub = pluginregistration::Registration::NewStub(dial(socket));
  pluginregistration::PluginInfo info;
  grpc::ClientContext context;
  set_deadline(&context);
  if (const grpc::Status status = stub->GetInfo(&context, {}, &info); !status.ok()) return failed_call(status);
  if (info.type() != "DRAPlugin" || info.name() != kDriverName)
    return error_format("'%.60s' of type '%.60s'", info.name().c_str(), info.type().c_str());
  const auto& offered = info.supported_versions();
  const auto taken = std::find_if(offered.begin(), offered.end(), [&](const std::string& version) {
    return std::find(parts_->versions.begin(), parts_->versions.end(), version) != parts_->versions.end();
  });
  pluginregistration::RegistrationStatus said;
  said.set_plugin_registered(taken != offered.end());
  if (taken == offered.end()) said.set_error("no version that this kubelet knows");
  grpc::ClientContext notifying;
  set_deadline(&notifying);
  pluginregistration::RegistrationStatusResponse response;
  if (const grpc::Status status = stub->NotifyRegistrationStatus(&notifying, said, &response); !status.ok()) return failed_call(status);
  if (taken == offered.end()) return error_format("no version that this kubelet knows");
  parts_->endpoint = info.endpoint();
  parts_->version = *taken;
  return parts_->version;
}

Result<TestDraKubelet::Entries> TestDraKubelet::prepare(const std::vector<ClaimName>& claims, std::chrono::milliseconds patience) {
  if (parts_->version == "v1.DRAPlugin") {
    return call_prepare<dra_api::v1::DRAPlugin, dra_api::v1::NodePrepareResourcesRequest, dra_api::v1::NodePrepareResourcesResponse>(
        parts_->endpoint, claims, patience);
  }
  return call_prepare<dra_api::v1beta1::DRAPlugin, dra_api::v1beta1::NodePrepareResourcesRequest,
                      dra_api::v1beta1::NodePrepareResourcesResponse>(parts_->endpoint, claims, patience);
}

Result<TestDraKubelet::Entries> TestDraKubelet::unprepare(const std::vector<ClaimName>& claims) {
  if (parts_->version == "v1.DRAPlugin") {
    return call_unprepare<dra_api::v1::DRAPlugin, dra_api::v1::NodeUnprepareResourcesRequest, dra_api::v1::NodeUnprepareResourcesResponse>(
        parts_->endpoint, claims);
  }
  return call_unprepare<dra_api::v1beta1::DRAPlugin, dra_api::v1beta1::NodeUnprepareResourcesRequest,
                        dra_api::v1beta1::NodeUnprepareResourcesResponse>(parts_->endpoint, claims);
}

Result<void> TestDraKubelet::watch(const std::string& version, const std::function<bool(const Health&)>& until) {
  if (version == "v1.DRAResourceHealth") {
    return watch_health<::v1::DRAResourceHealth, ::v1::NodeWatchResourcesRequest, ::v1::NodeWatchResourcesResponse>(parts_->endpoint,
                                                                                                                    until);
  }
  return watch_health<::v1alpha1::DRAResourceHealth, ::v1alpha1::NodeWatchResourcesRequest, ::v1alpha1::NodeWatchResourcesResponse>(
      parts_->endpoint, until);
}

}  // namespace nvshare::kubernetes::dra
