#include "kubernetes/kubelet/device_plugin_server.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <set>

#include "base/mutex.h"
#include "nvshare_deviceplugin_v1beta1.grpc.pb.h"

namespace nvshare::kubernetes {
namespace {

unsigned long long inode_of(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

// A reply that comes later, from another thread, unless the caller gave up before.
class Reply : public grpc::ServerUnaryReactor {
 public:
  // Shared with the thread that answers; outlives the call.
  class Slot {
   public:
    explicit Slot(Reply* reply) : reply_(reply) {}
    // `fill` writes the response; it is not called when the call is over.
    template <typename Fill>
    void finish(grpc::Status status, const Fill& fill) {
      Reply* reply = nullptr;
      {
        Lock lock(mutex_);
        std::swap(reply, reply_);
      }
      if (reply == nullptr) return;
      fill();
      reply->Finish(std::move(status));
    }

   private:
    Mutex mutex_;
    Reply* reply_ GUARDED_BY(mutex_);
  };

  Reply() : slot_(std::make_shared<Slot>(this)) {}
  const std::shared_ptr<Slot>& slot() const { return slot_; }
  void OnCancel() override {
    std::shared_ptr<Slot> slot = slot_;  // this may be gone before finish() returns
    slot->finish(grpc::Status(grpc::StatusCode::CANCELLED, "the caller gave up"), [] {});
  }
  void OnDone() override { delete this; }

 private:
  std::shared_ptr<Slot> slot_;
};

class Watcher;

// The calls that watch a resource's devices.
class Watchers {
 public:
  explicit Watchers(std::function<std::vector<Device>()> devices) : devices_(std::move(devices)) {}
  void publish() NO_THREAD_SAFETY_ANALYSIS;  // a watcher's watchers_ is this, which the analysis cannot know
  int count() const {
    Lock lock(mutex_);
    return static_cast<int>(all_.size());
  }

 private:
  friend class Watcher;
  const std::function<std::vector<Device>()> devices_;
  mutable Mutex mutex_;  // also of every watcher's state; no call into gRPC is made while it is held
  std::set<Watcher*> all_ GUARDED_BY(mutex_);
};

// One ListAndWatch: sends the whole list at first and after each change; one write at a time, and no list that is out of date.
class Watcher : public grpc::ServerWriteReactor<v1beta1::ListAndWatchResponse> {
 public:
  explicit Watcher(std::shared_ptr<Watchers> watchers) : watchers_(std::move(watchers)) {
    {
      Lock lock(watchers_->mutex_);
      watchers_->all_.insert(this);
      writing_ = true;
    }
    write();
  }

  // True: the caller calls write() afterwards.
  bool wants_write() REQUIRES(watchers_->mutex_) {
    outdated_ = outdated_ || writing_;
    if (writing_ || finished_) return false;
    return writing_ = true;
  }

  void write() {
    response_.Clear();
    for (Device& device : watchers_->devices_()) {
      v1beta1::Device* one = response_.add_devices();
      one->set_id(std::move(device.id));
      one->set_health(device.healthy ? "Healthy" : "Unhealthy");
      if (device.numa_node >= 0) one->mutable_topology()->add_nodes()->set_id(device.numa_node);
    }
    StartWrite(&response_);
  }

  void OnWriteDone(bool ok) override {
    bool again = false;
    bool finish = false;
    {
      Lock lock(watchers_->mutex_);
      writing_ = false;
      if (!ok || cancelled_) {
        finish = !finished_;
        finished_ = true;
      } else if (outdated_) {
        outdated_ = false;
        again = writing_ = true;
      }
    }
    if (again) write();
    if (finish) Finish(grpc::Status::OK);
  }

  void OnCancel() override {
    bool finish = false;
    {
      Lock lock(watchers_->mutex_);
      cancelled_ = true;
      if (!writing_ && !finished_) finish = finished_ = true;
    }
    if (finish) Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the watch is over"));
  }

  void OnDone() override {
    {
      Lock lock(watchers_->mutex_);
      watchers_->all_.erase(this);
    }
    delete this;
  }

 private:
  const std::shared_ptr<Watchers> watchers_;
  v1beta1::ListAndWatchResponse response_;
  bool writing_ GUARDED_BY(watchers_->mutex_) = false;
  bool outdated_ GUARDED_BY(watchers_->mutex_) = false;
  bool cancelled_ GUARDED_BY(watchers_->mutex_) = false;
  bool finished_ GUARDED_BY(watchers_->mutex_) = false;
};

void Watchers::publish() {
  std::vector<Watcher*> ready;
  {
    Lock lock(mutex_);
    for (Watcher* watcher : all_) {
      if (watcher->wants_write()) ready.push_back(watcher);
    }
  }
  // Each has a write reserved, so none of them can end meanwhile.
  for (Watcher* watcher : ready) watcher->write();
}

void fill(const ContainerEdits& edits, v1beta1::ContainerAllocateResponse* response) {
  for (const auto& [name, value] : edits.variables) (*response->mutable_envs())[name] = value;
  for (const Mount& mount : edits.mounts) {
    v1beta1::Mount* one = response->add_mounts();
    one->set_container_path(mount.container_path);
    one->set_host_path(mount.host_path);
    one->set_read_only(true);
  }
  for (const std::string& name : edits.cdi_devices) response->add_cdi_devices()->set_name(name);
}

template <typename Field>
std::vector<std::string> strings(const Field& field) {
  return {field.begin(), field.end()};
}

}  // namespace

class DevicePluginServer::Service : public v1beta1::DevicePlugin::CallbackService {
 public:
  Service(Resource resource, Node& node, AllocationWorker& worker)
      : resource_(resource),
        node_(node),
        worker_(worker),
        watchers_(std::make_shared<Watchers>([this] { return node_.devices(resource_); })) {}

  Watchers& watchers() { return *watchers_; }

  grpc::ServerUnaryReactor* GetDevicePluginOptions(grpc::CallbackServerContext* context, const v1beta1::Empty*,
                                                   v1beta1::DevicePluginOptions* response) override {
    response->set_pre_start_required(true);
    response->set_get_preferred_allocation_available(true);
    return finished(context, grpc::Status::OK);
  }

  grpc::ServerWriteReactor<v1beta1::ListAndWatchResponse>* ListAndWatch(grpc::CallbackServerContext*, const v1beta1::Empty*) override {
    return new Watcher(watchers_);
  }

  grpc::ServerUnaryReactor* GetPreferredAllocation(grpc::CallbackServerContext*, const v1beta1::PreferredAllocationRequest* request,
                                                   v1beta1::PreferredAllocationResponse* response) override {
    auto* reply = new Reply;
    // The kubelet asks for one container a call; should it ask for more, the last one's answer sends all. The worker has one thread.
    struct Answers {
      std::vector<std::vector<std::string>> chosen;
      int left;
    };
    int count = request->container_requests_size();
    if (count == 0) reply->slot()->finish(grpc::Status::OK, [] {});
    auto answers = std::make_shared<Answers>(Answers{std::vector<std::vector<std::string>>(static_cast<size_t>(count)), count});
    for (int i = 0; i < count; ++i) {
      const auto& container = request->container_requests(i);
      worker_.prefer(resource_, strings(container.available_deviceids()), strings(container.must_include_deviceids()),
                     container.allocation_size(), [slot = reply->slot(), answers, response, i](std::vector<std::string> chosen) {
                       answers->chosen[static_cast<size_t>(i)] = std::move(chosen);
                       if (--answers->left > 0) return;
                       slot->finish(grpc::Status::OK, [&] {
                         for (const auto& ids : answers->chosen) {
                           auto* one = response->add_container_responses();
                           for (const std::string& id : ids) one->add_deviceids(id);
                         }
                       });
                     });
    }
    return reply;
  }

  grpc::ServerUnaryReactor* Allocate(grpc::CallbackServerContext* context, const v1beta1::AllocateRequest* request,
                                     v1beta1::AllocateResponse* response) override {
    for (const v1beta1::ContainerAllocateRequest& container : request->container_requests()) {
      Result<ContainerEdits> edits = node_.allocate(resource_, strings(container.devices_ids()));
      if (!edits) {
        spdlog::error("Allocate: {}", edits.error().text);
        return finished(context, grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, edits.error().text));
      }
      fill(*edits, response->add_container_responses());
    }
    return finished(context, grpc::Status::OK);
  }

  grpc::ServerUnaryReactor* PreStartContainer(grpc::CallbackServerContext*, const v1beta1::PreStartContainerRequest* request,
                                              v1beta1::PreStartContainerResponse*) override {
    auto* reply = new Reply;
    worker_.pre_start(resource_, strings(request->devices_ids()), [slot = reply->slot()](const std::optional<std::string>& refusal) {
      slot->finish(refusal ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, *refusal) : grpc::Status::OK, [] {});
    });
    return reply;
  }

 private:
  static grpc::ServerUnaryReactor* finished(grpc::CallbackServerContext* context, grpc::Status status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(std::move(status));
    return reactor;
  }

  const Resource resource_;
  Node& node_;
  AllocationWorker& worker_;
  const std::shared_ptr<Watchers> watchers_;
};

struct DevicePluginServer::Parts {
  Parts(Resource resource, Node& node, AllocationWorker& worker) : service(resource, node, worker) {}
  Service service;
  std::unique_ptr<grpc::Server> server;
};

DevicePluginServer::DevicePluginServer() = default;

Result<std::unique_ptr<DevicePluginServer>> DevicePluginServer::serve(const std::string& path, Resource resource, Node& node,
                                                                      AllocationWorker& worker) {
  std::unique_ptr<DevicePluginServer> made(new DevicePluginServer);
  made->path_ = path;
  made->parts_ = std::make_unique<Parts>(resource, node, worker);
  int bound = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials(), &bound);
  builder.RegisterService(&made->parts_->service);
  made->parts_->server = builder.BuildAndStart();
  if (made->parts_->server == nullptr || bound == 0) return error_format("cannot serve on %.200s", path.c_str());
  made->inode_ = inode_of(path);
  return made;
}

DevicePluginServer::~DevicePluginServer() {
  if (parts_ == nullptr || parts_->server == nullptr) return;
  parts_->server->Shutdown(std::chrono::system_clock::now());  // cancels what is in progress
  parts_->server->Wait();
}

void DevicePluginServer::publish() { parts_->service.watchers().publish(); }

int DevicePluginServer::watchers() const { return parts_->service.watchers().count(); }

bool DevicePluginServer::reachable() const { return inode_ != 0 && inode_of(path_) == inode_; }

}  // namespace nvshare::kubernetes
