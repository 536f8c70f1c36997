// Requests of a kubelet to the device plugin's server, as bytes: each is answered, with a refusal or with what was asked for, and the
// plugin lives on. Input: a byte that names the method, one for the resource, then the request's bytes.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <filesystem>

#include "fuzz.h"
#include "kubernetes/kubelet/device_plugin_server.h"
#include "spdlog/spdlog.h"

namespace {

using namespace nvshare;
using namespace nvshare::kubernetes;
using fuzz::require;

constexpr const char* kMethods[] = {"Allocate", "PreStartContainer", "GetPreferredAllocation", "GetDevicePluginOptions"};
constexpr Resource kResources[] = {Resource::kGpu, Resource::kMemory, Resource::kCore};
constexpr auto kPatience = std::chrono::seconds(60);  // only what hangs waits so long

// One plugin's servers, for all inputs.
class Plugin {
 public:
  Plugin() : folder_("/dev/shm/nvshare-fuzz-" + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
    spdlog::set_level(spdlog::level::off);
    settings_.install_dir = folder_;
    settings_.kubelet_dir = folder_;
    settings_.core_resource = "nvshare.com/gpu-core";
    auto node = Node::open(settings_, {"/library", "/preload"}, {{"GPU-a", int64_t{8} << 30, true}, {"GPU-b", int64_t{8} << 30, true}});
    require(static_cast<bool>(node), "there is a node");
    node_ = std::move(*node);
    const HeldDevices held{"team", "train", "main", {"GPU-a::0"}, {"memory-00000", "memory-00001"}, {"core-00000"}};
    worker_.emplace(
        *node_, [held]() -> Result<std::vector<HeldDevices>> { return std::vector<HeldDevices>{held}; }, std::chrono::milliseconds(0));
    for (const Resource resource : kResources) {
      const std::string path = folder_ + "/" + std::to_string(servers_.size()) + ".sock";
      auto server = DevicePluginServer::serve(path, resource, *node_, *worker_);
      require(static_cast<bool>(server), "there is a server");
      servers_.push_back(std::move(*server));
      stubs_.push_back(std::make_unique<grpc::GenericStub>(grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials())));
    }
  }
  ~Plugin() {
    stubs_.clear();
    servers_.clear();
    worker_.reset();
    std::filesystem::remove_all(folder_);
  }

  grpc::Status call(size_t resource, const char* method, std::string_view bytes) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const grpc::Slice slice(bytes.data(), bytes.size());
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::Status status;
    grpc::CompletionQueue queue;
    auto reader = stubs_[resource]->PrepareUnaryCall(&context, std::string("/v1beta1.DevicePlugin/") + method, request, &queue);
    reader->StartCall();
    reader->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    require(queue.Next(&tag, &ok), "a call ends");
    return status;
  }

 private:
  std::string folder_;
  Settings settings_;
  std::unique_ptr<Node> node_;
  std::optional<AllocationWorker> worker_;
  std::vector<std::unique_ptr<DevicePluginServer>> servers_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Plugin plugin;
  std::string_view text = fuzz::text_of(data, size);
  const char* method = kMethods[fuzz::take_byte(&text) % std::size(kMethods)];
  const size_t resource = fuzz::take_byte(&text) % std::size(kResources);
  const grpc::Status status = plugin.call(resource, method, text);
  require(status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED, "a call is answered");
  require(status.error_code() != grpc::StatusCode::UNAVAILABLE, "the plugin lives");
  return 0;
}
