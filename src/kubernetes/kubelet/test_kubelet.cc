#include "kubernetes/kubelet/test_kubelet.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <thread>

#include "kubernetes/pods/test_checkpoint.h"
#include "nvshare_deviceplugin_v1beta1.grpc.pb.h"
#include "nvshare_podresources_v1.grpc.pb.h"

namespace nvshare::kubernetes {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<grpc::Channel> connect(const std::string& socket) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments);
}

void set_deadline(grpc::ClientContext& context) { context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30)); }

// One registered plugin: a connection and a thread that reads its devices.
struct Endpoint {
  std::unique_ptr<v1beta1::DevicePlugin::Stub> stub;
  v1beta1::DevicePluginOptions options;
  grpc::ClientContext watch;
  std::thread reader;
  std::set<std::string> healthy;              // guarded by the kubelet's mutex
  std::map<std::string, int64_t> numa_nodes;  // the same
  bool listed = false;                        // guarded by the kubelet's mutex
  bool stopped = false;                       // the same: allocates nothing any more

  ~Endpoint() {
    watch.TryCancel();
    if (reader.joinable()) reader.join();
  }
};

using Held = std::map<std::string, std::set<std::string>>;  // resource -> device IDs

}  // namespace

struct TestKubelet::Parts : v1beta1::Registration::Service, v1::PodResourcesLister::Service {
  std::string folder;
  mutable std::mutex mutex;
  std::map<std::string, std::shared_ptr<Endpoint>> endpoints;
  std::vector<std::shared_ptr<Endpoint>> retired;  // replaced by another registration
  Pods pods;
  Pods inits;  // init containers of these pods
  int registrations = 0;
  std::string trouble;
  std::map<std::string, std::set<std::string>> elsewhere;                // of other plugins
  std::map<std::pair<std::string, std::string>, std::string> responses;  // pod, resource -> what Allocate said, as bytes
  std::unique_ptr<grpc::Server> registration_server, pods_server;

  grpc::Status Register(grpc::ServerContext*, const v1beta1::RegisterRequest* request, v1beta1::Empty*) override {
    auto refuse = [&](const std::string& why) {
      std::lock_guard lock(mutex);
      trouble += request->resource_name() + ": " + why + "\n";
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, why);
    };
    if (request->version() != "v1beta1") return refuse("version " + request->version());
    if (request->endpoint().find('/') != std::string::npos) return refuse("endpoint " + request->endpoint());
    auto endpoint = std::make_shared<Endpoint>();
    endpoint->stub = v1beta1::DevicePlugin::NewStub(connect(plugins(folder) + "/" + request->endpoint()));
    grpc::ClientContext context;
    set_deadline(context);
    grpc::Status status = endpoint->stub->GetDevicePluginOptions(&context, v1beta1::Empty(), &endpoint->options);
    if (!status.ok()) return refuse("dialing back: " + status.error_message());
    Endpoint* raw = endpoint.get();
    endpoint->reader = std::thread([this, raw, resource = request->resource_name()] {
      auto stream = raw->stub->ListAndWatch(&raw->watch, v1beta1::Empty());
      v1beta1::ListAndWatchResponse list;
      while (stream->Read(&list)) {
        std::lock_guard lock(mutex);
        raw->listed = true;
        raw->healthy.clear();
        raw->numa_nodes.clear();
        for (const v1beta1::Device& device : list.devices()) {
          if (device.topology().nodes_size() > 0) raw->numa_nodes[device.id()] = device.topology().nodes(0).id();
          if (device.health() == "Healthy") raw->healthy.insert(device.id());
        }
      }
      (void)stream->Finish();
      std::lock_guard lock(mutex);
      raw->listed = false;
      raw->healthy.clear();
      // As the real one (1.26 to 1.34): PluginDisconnected goes by the resource's name, and so stops the plugin that registered last.
      const auto current = endpoints.find(resource);
      if (current == endpoints.end()) return;
      current->second->stopped = true;
      current->second->healthy.clear();
    });
    std::lock_guard lock(mutex);
    auto old = std::exchange(endpoints[request->resource_name()], endpoint);
    if (old != nullptr && !endpoint->listed) {  // the kubelet goes on with the devices that it knew
      endpoint->healthy = old->healthy;
      endpoint->listed = old->listed;
    }
    ++registrations;
    retired.push_back(std::move(old));
    return grpc::Status::OK;
  }

  grpc::Status List(grpc::ServerContext*, const v1::ListPodResourcesRequest*, v1::ListPodResourcesResponse* response) override {
    std::lock_guard lock(mutex);
    for (const auto& [name, held] : pods) {
      v1::PodResources* pod = response->add_pod_resources();
      pod->set_name(name);
      pod->set_namespace_("default");
      v1::ContainerResources* container = pod->add_containers();
      container->set_name("main");
      for (const auto& [resource, ids] : held) {
        v1::ContainerDevices* devices = container->add_devices();
        devices->set_resource_name(resource);
        for (const std::string& id : ids) devices->add_device_ids(id);
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status GetAllocatableResources(grpc::ServerContext*, const v1::AllocatableResourcesRequest*,
                                       v1::AllocatableResourcesResponse* response) override {
    std::lock_guard lock(mutex);
    std::map<std::string, std::set<std::string>> all = elsewhere;
    for (const auto& [resource, endpoint] : endpoints) {
      if (endpoint->listed) all[resource] = endpoint->healthy;
    }
    for (const auto& [resource, ids] : all) {
      // As the real one: a device with its own entry, for its NUMA node.
      for (const std::string& id : ids) {
        v1::ContainerDevices* devices = response->add_devices();
        devices->set_resource_name(resource);
        devices->add_device_ids(id);
      }
    }
    return grpc::Status::OK;
  }

  // After each allocation; a pod that ends stays in the file until then.
  void save() const {
    std::lock_guard lock(mutex);
    std::vector<CheckpointEntry> entries;
    std::map<std::string, std::set<std::string>> registered;
    for (const auto& [name, held] : pods) {
      for (const auto& [resource, ids] : held) {
        auto said = responses.find({name, resource});
        entries.push_back({uid_of(name), "main", resource, ids, -1, said == responses.end() ? "" : said->second});
      }
    }
    for (const auto& [name, held] : inits) {
      for (const auto& [resource, ids] : held) entries.push_back({uid_of(name), "init", resource, ids, -1, ""});
    }
    for (const auto& [resource, endpoint] : endpoints) registered[resource] = endpoint->healthy;
    write_checkpoint(plugins(folder), checkpoint_text(entries, CheckpointLayout::kByNumaNode, registered));
  }

  Result<std::vector<std::string>> choose(const Endpoint& endpoint, const std::string& resource, int amount,
                                          const std::set<std::string>& reusable, bool ask_preference);
  Result<Answer> allocate(const std::string& pod, const std::map<std::string, int>& amounts, bool is_init, bool ask_preference);
  std::optional<std::string> start(const Held& held);
  bool is_stopped(const Endpoint& endpoint) const {
    std::lock_guard lock(mutex);
    return endpoint.stopped;
  }

  std::shared_ptr<Endpoint> endpoint_of(const std::string& resource) const {
    std::lock_guard lock(mutex);
    auto found = endpoints.find(resource);
    return found == endpoints.end() ? nullptr : found->second;
  }
};

TestKubelet::TestKubelet(std::string folder, Pods pods) : parts_(std::make_unique<Parts>()) {
  parts_->pods = std::move(pods);
  parts_->folder = std::move(folder);
  fs::create_directories(plugins(parts_->folder));
  fs::create_directories(fs::path(pod_resources(parts_->folder)).parent_path());
  std::vector<fs::path> left;  // all names first, as the kubelet reads them
  for (const auto& file : fs::directory_iterator(plugins(parts_->folder))) left.push_back(file.path());
  for (const fs::path& path : left) {
    if (fs::is_socket(path)) fs::remove(path);
  }
  auto serve = [](const std::string& path, grpc::Service* service) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
    builder.RegisterService(service);
    return builder.BuildAndStart();
  };
  parts_->pods_server = serve(pod_resources(parts_->folder), static_cast<v1::PodResourcesLister::Service*>(parts_.get()));
  parts_->registration_server =
      serve(plugins(parts_->folder) + "/kubelet.sock", static_cast<v1beta1::Registration::Service*>(parts_.get()));
}

TestKubelet::~TestKubelet() {
  for (auto* server : {&parts_->registration_server, &parts_->pods_server}) {
    (*server)->Shutdown(std::chrono::system_clock::now());
    (*server)->Wait();
    server->reset();
  }
  std::map<std::string, std::shared_ptr<Endpoint>> endpoints;
  {
    std::lock_guard lock(parts_->mutex);
    endpoints.swap(parts_->endpoints);
  }
  endpoints.clear();
  parts_->retired.clear();
}

std::map<std::string, std::set<std::string>> TestKubelet::healthy() const {
  std::lock_guard lock(parts_->mutex);
  std::map<std::string, std::set<std::string>> all;
  for (const auto& [resource, endpoint] : parts_->endpoints) {
    if (endpoint->listed) all[resource] = endpoint->healthy;
  }
  return all;
}

void TestKubelet::offer_elsewhere(const std::string& resource, const std::set<std::string>& ids) {
  std::lock_guard lock(parts_->mutex);
  parts_->elsewhere[resource] = ids;
}

std::map<std::string, int64_t> TestKubelet::numa_nodes() const {
  std::lock_guard lock(parts_->mutex);
  std::map<std::string, int64_t> all;
  for (const auto& [resource, endpoint] : parts_->endpoints) all.insert(endpoint->numa_nodes.begin(), endpoint->numa_nodes.end());
  return all;
}

int TestKubelet::registrations() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->registrations;
}

std::string TestKubelet::trouble() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->trouble;
}

Result<std::vector<std::string>> TestKubelet::Parts::choose(const Endpoint& endpoint, const std::string& resource, int amount,
                                                            const std::set<std::string>& reusable, bool ask_preference) {
  std::set<std::string> available;
  {
    std::lock_guard lock(mutex);
    available = endpoint.healthy;
    for (const auto* all : {&pods, &inits}) {
      for (const auto& [name, held] : *all) {
        auto ids = held.find(resource);
        if (ids == held.end()) continue;
        for (const std::string& id : ids->second) available.erase(id);
      }
    }
  }
  std::vector<std::string> chosen;
  for (const std::string& id : reusable) {
    if (static_cast<int>(chosen.size()) < amount) chosen.push_back(id);
  }
  const int more = amount - static_cast<int>(chosen.size());
  if (static_cast<int>(available.size()) < more) return error_format("not enough of %s", resource.c_str());
  if (ask_preference && more > 0 && static_cast<int>(available.size()) > more && endpoint.options.get_preferred_allocation_available()) {
    grpc::ClientContext context;
    set_deadline(context);
    v1beta1::PreferredAllocationRequest request;
    v1beta1::PreferredAllocationResponse response;
    auto* one = request.add_container_requests();
    for (const std::string& id : available) one->add_available_deviceids(id);
    for (const std::string& id : chosen) {
      one->add_available_deviceids(id);
      one->add_must_include_deviceids(id);
    }
    one->set_allocation_size(amount);
    grpc::Status status = endpoint.stub->GetPreferredAllocation(&context, request, &response);
    if (!status.ok() || response.container_responses_size() != 1) {
      return error_format("GetPreferredAllocation: %.200s", status.error_message().c_str());
    }
    for (const std::string& id : response.container_responses(0).deviceids()) {
      if (available.erase(id) != 0) chosen.push_back(id);
    }
  }
  for (auto id = available.begin(); static_cast<int>(chosen.size()) < amount; ++id) chosen.push_back(*id);
  return chosen;
}

// One container of the pod: `init` or the one after it.
Result<TestKubelet::Answer> TestKubelet::Parts::allocate(const std::string& pod, const std::map<std::string, int>& amounts, bool is_init,
                                                         bool ask_preference) {
  Answer answer;
  for (const auto& [resource, amount] : amounts) {
    auto endpoint = endpoint_of(resource);
    if (endpoint == nullptr || is_stopped(*endpoint)) return error_format("no plugin of %s", resource.c_str());
    Result<std::vector<std::string>> chosen =
        choose(*endpoint, resource, amount, is_init ? Held::mapped_type() : inits[pod][resource], ask_preference);
    if (!chosen) return chosen.error();
    grpc::ClientContext context;
    set_deadline(context);
    v1beta1::AllocateRequest request;
    v1beta1::AllocateResponse response;
    for (const std::string& id : *chosen) {
      if (request.container_requests_size() == 0) request.add_container_requests();
      request.mutable_container_requests(0)->add_devices_ids(id);
    }
    grpc::Status status = endpoint->stub->Allocate(&context, request, &response);
    if (!status.ok() || response.container_responses_size() != 1) {
      return error_format("Allocate: %.200s", status.error_message().c_str());
    }
    const v1beta1::ContainerAllocateResponse& given = response.container_responses(0);
    for (const auto& [name, value] : given.envs()) answer.variables[name] = value;
    for (const auto& mount : given.mounts()) {
      if (!mount.read_only()) return error_format("a mount that can be written: %.200s", mount.container_path().c_str());
      answer.mounts[mount.container_path()] = mount.host_path();
    }
    for (const auto& device : given.cdi_devices()) answer.cdi_devices.push_back(device.name());
    std::lock_guard lock(mutex);
    (is_init ? inits : pods)[pod][resource] = {chosen->begin(), chosen->end()};
    if (!is_init) responses[{pod, resource}] = given.SerializeAsString();
  }
  return answer;
}

Result<TestKubelet::Answer> TestKubelet::admit(const std::string& pod, const std::map<std::string, int>& amounts, bool ask_preference) {
  {
    std::lock_guard lock(parts_->mutex);
    parts_->pods[pod];  // listed from now on, before it is admitted
  }
  Result<Answer> answer = parts_->allocate(pod, amounts, false, ask_preference);
  if (!answer) {
    remove(pod);
    return error_format("UnexpectedAdmissionError: %.200s", answer.error().text);
  }
  parts_->save();
  return answer;
}

Result<TestKubelet::Answer> TestKubelet::admit_with_init(const std::string& pod, const std::map<std::string, int>& init_amounts,
                                                         const std::map<std::string, int>& amounts) {
  Result<Answer> answer = parts_->allocate(pod, init_amounts, true, true);
  if (!answer) {
    remove(pod);
    return error_format("UnexpectedAdmissionError: %.200s", answer.error().text);
  }
  return admit(pod, amounts);
}

// PreStartContainer for each resource; an error is the plugin's message in full.
std::optional<std::string> TestKubelet::Parts::start(const Held& held) {
  for (const auto& [resource, ids] : held) {
    if (ids.empty()) continue;
    auto endpoint = endpoint_of(resource);
    if (endpoint == nullptr) return "no plugin of " + resource;
    if (!endpoint->options.pre_start_required()) continue;
    grpc::ClientContext context;
    set_deadline(context);
    v1beta1::PreStartContainerRequest request;
    v1beta1::PreStartContainerResponse response;
    for (const std::string& id : ids) request.add_devices_ids(id);
    grpc::Status status = endpoint->stub->PreStartContainer(&context, request, &response);
    if (!status.ok()) return status.error_message();
  }
  return std::nullopt;
}

std::optional<std::string> TestKubelet::start(const std::string& pod) {
  std::unique_lock lock(parts_->mutex);
  const Held held = parts_->pods.at(pod);
  lock.unlock();
  return parts_->start(held);
}

std::optional<std::string> TestKubelet::start_init(const std::string& pod) {
  std::unique_lock lock(parts_->mutex);
  const Held held = parts_->inits.at(pod);
  lock.unlock();
  return parts_->start(held);
}

void TestKubelet::remove(const std::string& pod) {
  std::lock_guard lock(parts_->mutex);
  parts_->pods.erase(pod);
  parts_->inits.erase(pod);
}

std::set<std::string> TestKubelet::devices_of(const std::string& pod, const std::string& resource) const {
  std::lock_guard lock(parts_->mutex);
  auto found = parts_->pods.find(pod);
  if (found == parts_->pods.end()) return {};
  auto ids = found->second.find(resource);
  return ids == found->second.end() ? std::set<std::string>{} : ids->second;
}

std::string TestKubelet::uid_of(const std::string& pod) {
  char uid[40];
  std::snprintf(uid, sizeof uid, "0b4e6a2c-31d7-4f6e-%04x-%012zx", static_cast<unsigned>(getpid()) & 0xffffU,
                std::hash<std::string>()(pod) & 0xffffffffffffU);
  return uid;
}

TestKubelet::Pods TestKubelet::pods() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->pods;
}

}  // namespace nvshare::kubernetes
