#include "kubernetes/dra/kubelet/dra_server.h"

#include <grpcpp/grpcpp.h>
#include <malloc.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <optional>

#include "base/mutex.h"
#include "base/nanoseconds.h"
#include "nvshare_dra_health_v1.grpc.pb.h"
#include "nvshare_dra_health_v1alpha1.grpc.pb.h"
#include "nvshare_dra_v1.grpc.pb.h"
#include "nvshare_dra_v1beta1.grpc.pb.h"
#include "nvshare_pluginregistration_v1.grpc.pb.h"

namespace nvshare::kubernetes::dra {
namespace {

namespace api = ::k8s::io::kubelet::pkg::apis::dra;

constexpr std::chrono::seconds kEndPatience{2};      // for calls that wait for the API server
constexpr std::chrono::seconds kHealthInterval{10};  // the kubelet forgets after 30 s what it was not told again
constexpr int kHealthWatchersMax = 16;               // each has a thread; one kubelet has one, and some that it dropped

template <typename Device>
void fill_device(const PreparedDevice& prepared, Device* device) {
  device->add_request_names(prepared.request);
  device->set_pool_name(prepared.pool);
  device->set_device_name(prepared.device);
  for (const std::string& id : prepared.cdi_ids) device->add_cdi_device_ids(id);
  if constexpr (requires { device->set_share_id(prepared.share_id); }) {
    if (!prepared.share_id.empty()) device->set_share_id(prepared.share_id);
  }
}

// Each claim of a call has an entry in the answer; an error is in its entry, so that others of the pod are prepared. A call that was given
// up (the kubelet has ended, or its patience) begins with no more of them.
template <typename Request, typename Response>
void prepare_all(ClaimDriver& driver, const grpc::ServerContext& context, const Request& request, Response* response) {
  const auto given_up = [&context] { return context.IsCancelled(); };
  for (const auto& claim : request.claims()) {
    if (given_up()) return;
    auto& entry = (*response->mutable_claims())[claim.uid()];
    Result<std::vector<PreparedDevice>> prepared = driver.prepare({claim.namespace_(), claim.name(), claim.uid()}, given_up);
    if (!prepared) {
      entry.set_error(prepared.error().text);
      continue;
    }
    for (const PreparedDevice& device : *prepared) fill_device(device, entry.add_devices());
  }
}

template <typename Request, typename Response>
void unprepare_all(ClaimDriver& driver, const Request& request, Response* response) {
  for (const auto& claim : request.claims()) {
    auto& entry = (*response->mutable_claims())[claim.uid()];
    if (auto ok = driver.unprepare(claim.uid()); !ok) entry.set_error(ok.error().text);
  }
  // What hundreds of claims leave lies in pieces between what stays: megabytes of a driver that is to be small.
  malloc_trim(0);
}

class ServiceV1 : public api::v1::DRAPlugin::Service {
 public:
  explicit ServiceV1(ClaimDriver& driver) : driver_(driver) {}
  grpc::Status NodePrepareResources(grpc::ServerContext* context, const api::v1::NodePrepareResourcesRequest* request,
                                    api::v1::NodePrepareResourcesResponse* response) override {
    prepare_all(driver_, *context, *request, response);
    return grpc::Status::OK;
  }
  grpc::Status NodeUnprepareResources(grpc::ServerContext*, const api::v1::NodeUnprepareResourcesRequest* request,
                                      api::v1::NodeUnprepareResourcesResponse* response) override {
    unprepare_all(driver_, *request, response);
    return grpc::Status::OK;
  }

 private:
  ClaimDriver& driver_;
};

class ServiceV1Beta1 : public api::v1beta1::DRAPlugin::Service {
 public:
  explicit ServiceV1Beta1(ClaimDriver& driver) : driver_(driver) {}
  grpc::Status NodePrepareResources(grpc::ServerContext* context, const api::v1beta1::NodePrepareResourcesRequest* request,
                                    api::v1beta1::NodePrepareResourcesResponse* response) override {
    prepare_all(driver_, *context, *request, response);
    return grpc::Status::OK;
  }
  grpc::Status NodeUnprepareResources(grpc::ServerContext*, const api::v1beta1::NodeUnprepareResourcesRequest* request,
                                      api::v1beta1::NodeUnprepareResourcesResponse* response) override {
    unprepare_all(driver_, *request, response);
    return grpc::Status::OK;
  }

 private:
  ClaimDriver& driver_;
};

// What is known of the devices' health, for those who watch it.
class HealthBoard {
 public:
  struct News {
    uint64_t number = 0;  // of the last change
    std::string pool;
    DeviceModels devices;
  };

  void set(const std::string& pool, const DeviceModels& devices) {
    {
      Lock lock(mutex_);
      news_ = {news_.number + 1, pool, devices};
    }
    changed_.notify_all();
  }
  void stop() {
    {
      Lock lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
  }
  bool enter() {
    Lock lock(mutex_);
    return !stop_ && watchers_ < kHealthWatchersMax && ++watchers_ > 0;
  }
  void leave() {
    Lock lock(mutex_);
    --watchers_;
  }
  // What is new since `seen`, or the same again after the interval. Nothing: the server ends.
  std::optional<News> wait(uint64_t seen) {
    Lock lock(mutex_);
    changed_.wait(mutex_, [&]() REQUIRES(mutex_) { return stop_ || news_.number > 0; });
    changed_.wait_for(mutex_, nanoseconds_of(kHealthInterval), [&]() REQUIRES(mutex_) { return stop_ || news_.number > seen; });
    if (stop_) return std::nullopt;
    return news_;
  }

 private:
  Mutex mutex_;
  Condition changed_;
  News news_ GUARDED_BY(mutex_);
  int watchers_ GUARDED_BY(mutex_) = 0;
  bool stop_ GUARDED_BY(mutex_) = false;
};

template <typename Base, typename Request, typename Response>
class HealthService : public Base {
 public:
  explicit HealthService(HealthBoard& board) : board_(board) {}
  grpc::Status NodeWatchResources(grpc::ServerContext*, const Request*, grpc::ServerWriter<Response>* writer) override {
    if (!board_.enter()) return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many watch the devices' health");
    uint64_t seen = 0;
    for (auto news = board_.wait(seen); news; news = board_.wait(seen)) {
      seen = news->number;
      if (!writer->Write(message_of(*news))) break;  // nobody reads it any more
    }
    board_.leave();
    return grpc::Status::OK;
  }

 private:
  static Response message_of(const HealthBoard::News& news) {
    Response response;
    for (const DeviceModel& device : news.devices) {
      auto* one = response.add_devices();
      one->mutable_device()->set_pool_name(news.pool);
      one->mutable_device()->set_device_name(device.name);
      using Status = decltype(one->health());
      one->set_health(static_cast<Status>(device.ailment.empty() ? ::v1::HEALTHY : ::v1::UNHEALTHY));
      one->set_last_updated_time(std::time(nullptr));
      one->set_message(device.ailment);
    }
    return response;
  }
  HealthBoard& board_;
};
using HealthV1 = HealthService<::v1::DRAResourceHealth::Service, ::v1::NodeWatchResourcesRequest, ::v1::NodeWatchResourcesResponse>;
using HealthV1Alpha1 =
    HealthService<::v1alpha1::DRAResourceHealth::Service, ::v1alpha1::NodeWatchResourcesRequest, ::v1alpha1::NodeWatchResourcesResponse>;

class Registration : public pluginregistration::Registration::Service {
 public:
  explicit Registration(std::string endpoint) : endpoint_(std::move(endpoint)) {}
  grpc::Status GetInfo(grpc::ServerContext*, const pluginregistration::InfoRequest*, pluginregistration::PluginInfo* info) override {
    info->set_type("DRAPlugin");
    info->set_name(kDriverName);
    info->set_endpoint(endpoint_);
    info->add_supported_versions("v1.DRAPlugin");  // a kubelet takes the first one that it knows
    info->add_supported_versions("v1beta1.DRAPlugin");
    info->add_supported_versions("v1.DRAResourceHealth");
    info->add_supported_versions("v1alpha1.DRAResourceHealth");
    return grpc::Status::OK;
  }
  grpc::Status NotifyRegistrationStatus(grpc::ServerContext*, const pluginregistration::RegistrationStatus* status,
                                        pluginregistration::RegistrationStatusResponse*) override {
    registered_ = status->plugin_registered();
    if (status->plugin_registered()) {
      spdlog::info("the kubelet has registered {}", kDriverName);
    } else {
      spdlog::error("the kubelet refuses {}: {}", kDriverName, status->error());
    }
    return grpc::Status::OK;
  }
  bool registered() const { return registered_; }

 private:
  const std::string endpoint_;
  std::atomic<bool> registered_{false};
};

Result<std::unique_ptr<grpc::Server>> listen(const std::string& path, const std::vector<grpc::Service*>& services) {
  int bound = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials(), &bound);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || bound == 0) return error_format("cannot serve on %.200s", path.c_str());
  return server;
}

void end(std::unique_ptr<grpc::Server>* server) {
  if (*server == nullptr) return;
  (*server)->Shutdown(std::chrono::system_clock::now() + kEndPatience);
  (*server)->Wait();
}

}  // namespace

struct DraServer::Parts {
  Parts(const std::string& endpoint, ClaimDriver& driver) : v1(driver), v1beta1(driver), registration(endpoint) {}
  ServiceV1 v1;
  ServiceV1Beta1 v1beta1;
  HealthBoard health;
  HealthV1 health_v1{health};
  HealthV1Alpha1 health_v1alpha1{health};
  Registration registration;
  std::unique_ptr<grpc::Server> service_server, registration_server;
};

DraServer::DraServer() = default;

Result<std::unique_ptr<DraServer>> DraServer::serve(const Sockets& sockets, ClaimDriver& driver) {
  std::unique_ptr<DraServer> made(new DraServer);
  made->parts_ = std::make_unique<Parts>(sockets.service, driver);
  Parts& parts = *made->parts_;
  // The kubelet dials the service as soon as it sees the socket of the registration.
  auto service = listen(sockets.service, {&parts.v1, &parts.v1beta1, &parts.health_v1, &parts.health_v1alpha1});
  if (!service) return service.error();
  parts.service_server = std::move(*service);
  auto registration = listen(sockets.registration, {&parts.registration});
  if (!registration) return registration.error();
  parts.registration_server = std::move(*registration);
  return made;
}

DraServer::~DraServer() {
  if (parts_ == nullptr) return;
  parts_->health.stop();
  end(&parts_->registration_server);
  end(&parts_->service_server);
}

Result<void> DraServer::probe(const std::string& registration, std::chrono::milliseconds patience) {
  const auto channel = grpc::CreateChannel("unix:" + registration, grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + patience);
  pluginregistration::PluginInfo info;
  const grpc::Status status = pluginregistration::Registration::NewStub(channel)->GetInfo(&context, {}, &info);
  if (!status.ok()) return error_format("%.150s does not answer: %.100s", registration.c_str(), status.error_message().c_str());
  if (info.name() != kDriverName) return error_format("%.150s is of '%.60s'", registration.c_str(), info.name().c_str());
  return {};
}

void DraServer::set_health(const std::string& pool, const DeviceModels& devices) { parts_->health.set(pool, devices); }

bool DraServer::registered() const { return parts_->registration.registered(); }

}  // namespace nvshare::kubernetes::dra
