#include "kubernetes/kubelet/kubelet_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/mutex.h"
#include "nvshare_deviceplugin_v1beta1.grpc.pb.h"
#include "nvshare_podresources_v1.grpc.pb.h"

namespace nvshare::kubernetes {
namespace {

constexpr std::chrono::seconds kRegisterTimeout{10};  // as long as the kubelet waits for us meanwhile
constexpr std::chrono::seconds kListTimeout{3};
constexpr int kListBytesMax = 64 << 20;  // 100,000 device IDs are some 2 MB; other plugins' come on top

// Not shared: a connection that failed would make the next one wait for its pause to pass.
std::shared_ptr<grpc::Channel> connect(const std::string& socket) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kListBytesMax);
  return grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments);
}

Error failed(const char* what, const std::string& socket, const grpc::Status& status) {
  return error_format("%s at %.80s: %.120s (code %d)", what, socket.c_str(), status.error_message().c_str(),
                      static_cast<int>(status.error_code()));
}

}  // namespace

struct KubeletClient::Calls {
  Mutex mutex;
  std::set<grpc::ClientContext*> running GUARDED_BY(mutex);
  bool cancelled GUARDED_BY(mutex) = false;
};

namespace {

// A call that cancel() can end.
template <typename Calls, typename Call>
grpc::Status run_call(Calls& calls, std::chrono::seconds timeout, const Call& call) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  {
    Lock lock(calls.mutex);
    if (calls.cancelled) return grpc::Status(grpc::StatusCode::CANCELLED, "this program is about to end");
    calls.running.insert(&context);
  }
  grpc::Status status = call(&context);
  Lock lock(calls.mutex);
  calls.running.erase(&context);
  return status;
}

}  // namespace

KubeletClient::KubeletClient(const Settings& settings) : settings_(settings), calls_(std::make_unique<Calls>()) {}
KubeletClient::~KubeletClient() = default;

void KubeletClient::cancel() {
  Lock lock(calls_->mutex);
  calls_->cancelled = true;
  for (grpc::ClientContext* context : calls_->running) context->TryCancel();
}

Result<void> KubeletClient::announce(const std::string& endpoint, const std::string& resource) {
  std::string socket = settings_.kubelet_dir + "/kubelet.sock";
  v1beta1::RegisterRequest request;
  request.set_version("v1beta1");
  request.set_endpoint(endpoint);
  request.set_resource_name(resource);
  request.mutable_options()->set_pre_start_required(true);
  request.mutable_options()->set_get_preferred_allocation_available(true);
  auto stub = v1beta1::Registration::NewStub(connect(socket));
  grpc::Status status = run_call(*calls_, kRegisterTimeout, [&](grpc::ClientContext* context) {
    v1beta1::Empty reply;
    return stub->Register(context, request, &reply);
  });
  if (!status.ok()) return failed(("registering " + resource).c_str(), socket, status);
  return {};
}

Result<std::vector<HeldDevices>> KubeletClient::list() {
  const std::string& socket = settings_.pod_resources_socket;
  v1::ListPodResourcesResponse reply;
  auto stub = v1::PodResourcesLister::NewStub(connect(socket));
  grpc::Status status = run_call(*calls_, kListTimeout,
                                 [&](grpc::ClientContext* context) { return stub->List(context, v1::ListPodResourcesRequest(), &reply); });
  if (!status.ok()) return failed("asking the kubelet for its pods", socket, status);
  std::vector<HeldDevices> listed;
  for (const v1::PodResources& pod : reply.pod_resources()) {
    for (const v1::ContainerResources& container : pod.containers()) {
      HeldDevices held{pod.namespace_(), pod.name(), container.name(), {}, {}, {}};
      // One resource may come in several parts, one a NUMA node.
      for (const v1::ContainerDevices& devices : container.devices()) {
        std::set<std::string>* ids = devices.resource_name() == settings_.gpu_resource ? &held.gpus : nullptr;
        if (!settings_.memory_resource.empty() && devices.resource_name() == settings_.memory_resource) ids = &held.memory;
        if (!settings_.core_resource.empty() && devices.resource_name() == settings_.core_resource) ids = &held.cores;
        if (ids != nullptr) ids->insert(devices.device_ids().begin(), devices.device_ids().end());
      }
      if (!held.gpus.empty() || !held.memory.empty() || !held.cores.empty()) listed.push_back(std::move(held));
    }
  }
  return listed;
}

Result<std::optional<std::string>> KubeletClient::served_by_others(const std::vector<std::string>& uuids) {
  const std::string& socket = settings_.pod_resources_socket;
  v1::AllocatableResourcesResponse reply;
  auto stub = v1::PodResourcesLister::NewStub(connect(socket));
  grpc::Status status = run_call(*calls_, kListTimeout, [&](grpc::ClientContext* context) {
    return stub->GetAllocatableResources(context, v1::AllocatableResourcesRequest(), &reply);
  });
  if (!status.ok()) return failed("asking the kubelet for all plugins' devices", socket, status);
  const std::set<std::string> ours = {settings_.gpu_resource, settings_.memory_resource, settings_.core_resource};
  std::map<std::string, std::string> others;  // resource -> one of its devices
  for (const v1::ContainerDevices& devices : reply.devices()) {
    if (ours.contains(devices.resource_name())) continue;
    for (const std::string& id : devices.device_ids()) {
      // NVIDIA's plugin names a device by its UUID, and a share of it UUID::N; others put something behind it as well.
      if (std::any_of(uuids.begin(), uuids.end(), [&](const std::string& uuid) { return id.find(uuid) != std::string::npos; })) {
        others.emplace(devices.resource_name(), id);
      }
    }
  }
  if (others.empty()) return std::optional<std::string>();
  std::string text = "another device plugin serves the same GPUs:";
  for (const auto& [resource, id] : others) text += " " + resource + " (" + id + ")";
  return std::optional(text + "; each would give out what the other has given. Take it off this node, or set NVSHARE_OTHER_PLUGINS=allow");
}

Result<void> probe_plugin(const Settings& settings, std::chrono::milliseconds patience) {
  const auto until = std::chrono::system_clock::now() + patience;
  for (const std::string* resource : {&settings.gpu_resource, &settings.memory_resource, &settings.core_resource}) {
    if (resource->empty()) continue;
    const std::string socket = settings.kubelet_dir + "/" + endpoint_of(*resource, settings.instance);
    auto stub = v1beta1::DevicePlugin::NewStub(connect(socket));
    grpc::ClientContext context;
    context.set_deadline(until);
    v1beta1::PreferredAllocationRequest request;
    request.add_container_requests();
    v1beta1::PreferredAllocationResponse response;
    const grpc::Status status = stub->GetPreferredAllocation(&context, request, &response);
    if (!status.ok()) return failed((*resource + " does not answer").c_str(), socket, status);
  }
  return {};
}

std::string endpoint_of(const std::string& resource, const std::string& instance) {
  std::string name = resource;
  std::replace(name.begin(), name.end(), '/', '_');
  return name + (instance.empty() ? "" : "-" + instance) + ".sock";
}

}  // namespace nvshare::kubernetes
