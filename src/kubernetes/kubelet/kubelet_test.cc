// The plugin against a stand-in kubelet, over real sockets: registering, restarts, lost sockets, allocation, refusals, health.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <regex>
#include <thread>

#include "kubernetes/files.h"
#include "kubernetes/kubelet/plugin.h"
#include "kubernetes/kubelet/test_kubelet.h"
#include "kubernetes/pods/checkpoint.h"

namespace nvshare::kubernetes {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int64_t kGib = 1LL << 30;
constexpr char kGpu[] = "nvshare.com/gpu";
constexpr char kMemory[] = "nvshare.com/gpu-memory";

class KubeletTest : public testing::Test {
 protected:
  KubeletTest() {
    std::string name = (fs::temp_directory_path() / "nvshare-kubelet-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    settings_.kubelet_dir = TestKubelet::plugins(folder_);
    settings_.pod_resources_socket = TestKubelet::pod_resources(folder_);
    settings_.install_dir = folder_ + "/install";
    settings_.health_interval = 3600'000'000'000;  // health is set by the test
    fs::create_directories(settings_.install_dir);
    spdlog::set_level(spdlog::level::err);
  }
  ~KubeletTest() override {
    plugin_.reset();
    kubelet_.reset();
    fs::remove_all(folder_);
  }

  void start_plugin(Plugin::Unwanted unwanted = {}) {
    auto node = Node::open(settings_, {"/host/lib.so", "/host/preload"}, {{"GPU-a", 10 * kGib, true, 0}, {"GPU-b", 10 * kGib, true, 1}});
    ASSERT_TRUE(node) << node.error().text;
    plugin_ = std::make_unique<Plugin>(settings_, std::move(*node), std::move(unwanted));
  }
  // A new kubelet with the pods of the one before; that one's socket stays behind until the new one removes it.
  void start_kubelet() {
    TestKubelet::Pods pods;
    if (kubelet_ != nullptr) pods = kubelet_->pods();
    kubelet_.reset();
    kubelet_ = std::make_unique<TestKubelet>(folder_, std::move(pods));
  }
  template <typename Condition>
  static bool wait(const Condition& condition) {
    for (auto end = Clock::now() + 60s; Clock::now() < end; std::this_thread::sleep_for(1ms)) {
      if (condition()) return true;
    }
    return false;
  }
  bool registered() {
    return wait([&] {
      auto healthy = kubelet_->healthy();
      return healthy[kGpu].size() == 20 && healthy[kMemory].size() == 20;
    });
  }
  static std::string gpu_of_pod(const TestKubelet& kubelet, const std::string& pod) {
    auto ids = kubelet.devices_of(pod, kGpu);
    return ids.empty() ? "none" : std::string(*gpu_of(*ids.begin()));
  }
  static int open_descriptors() { return static_cast<int>(std::distance(fs::directory_iterator("/proc/self/fd"), {})); }

  std::string folder_;
  Settings settings_;
  std::unique_ptr<TestKubelet> kubelet_;
  std::unique_ptr<Plugin> plugin_;
};

TEST_F(KubeletTest, PodsGetTheEmptiestGpuItsMemoryAndARefusalThatSaysWhatIsFree) {
  start_plugin();  // before there is a kubelet
  start_kubelet();
  ASSERT_TRUE(registered()) << kubelet_->trouble();
  EXPECT_EQ(kubelet_->numa_nodes()["GPU-b::3"], 1);
  EXPECT_EQ(kubelet_->numa_nodes().size(), 20u) << "units of memory are nowhere";
  auto a = kubelet_->admit("a", {{kGpu, 1}, {kMemory, 6}});
  ASSERT_TRUE(a) << a.error().text;
  std::string gpu = gpu_of_pod(*kubelet_, "a");
  EXPECT_EQ(a->variables["NVIDIA_VISIBLE_DEVICES"], gpu);
  EXPECT_EQ(a->variables["NVSHARE_GPU_MEMORY_LIMIT"], "6144Mi");
  EXPECT_EQ(a->mounts["/usr/lib/nvshare/libnvshare.so"], "/host/lib.so");
  EXPECT_EQ(a->mounts["/etc/ld.so.preload"], "/host/preload");
  EXPECT_EQ(a->mounts["/run/nvshare/client"], "/run/nvshare/client");
  EXPECT_EQ(kubelet_->start("a"), std::nullopt);
  ASSERT_TRUE(kubelet_->admit("b", {{kGpu, 1}, {kMemory, 5}}));
  EXPECT_NE(gpu_of_pod(*kubelet_, "b"), gpu) << "the other one is emptier";
  EXPECT_EQ(kubelet_->start("b"), std::nullopt);
  // 9 units are left in all, but no GPU has 7 of them.
  ASSERT_TRUE(kubelet_->admit("c", {{kGpu, 1}, {kMemory, 7}}));
  EXPECT_EQ(gpu_of_pod(*kubelet_, "c"), gpu_of_pod(*kubelet_, "b"));
  auto refusal = kubelet_->start("c");
  ASSERT_TRUE(refusal);
  EXPECT_NE(refusal->find("default/c"), std::string::npos) << *refusal;
  EXPECT_NE(refusal->find(gpu + " 4 GiB of 10 GiB;"), std::string::npos) << *refusal;
  EXPECT_NE(refusal->find(gpu_of_pod(*kubelet_, "b") + " 5 GiB of 10 GiB;"), std::string::npos) << *refusal;
  EXPECT_EQ(kubelet_->start("b"), std::nullopt) << "a container that restarts";
  kubelet_->remove("b");
  EXPECT_EQ(kubelet_->start("c"), std::nullopt) << "tried again, as the kubelet does";
  auto written = read_file(settings_.kubelet_dir + "/" + kCheckpointName);
  ASSERT_TRUE(written) << written.error().text;
  auto checkpoint = read_checkpoint(*written, {kGpu, kMemory, "", {}});
  ASSERT_TRUE(checkpoint) << checkpoint.error().text;
  const PodAllocation granted = allocation_of(checkpoint->pods[TestKubelet::uid_of("a")], {});
  EXPECT_EQ(granted.memory, 6 * kGib);
  EXPECT_EQ(granted.memory_on, (std::map<std::string, int64_t>{{gpu, 6 * kGib}}));
  auto two = kubelet_->admit("two", {{kGpu, 2}});
  ASSERT_TRUE(two);
  EXPECT_EQ(two->variables["NVIDIA_VISIBLE_DEVICES"], "GPU-a,GPU-b");
  EXPECT_FALSE(kubelet_->admit("d", {{kMemory, 50}}));
}

// The kubelet's list has no init containers: one with memory of its own was refused, after 11 s.
TEST_F(KubeletTest, InitContainersStartAtOnceAndCountOnce) {
  start_kubelet();
  start_plugin();
  ASSERT_TRUE(registered());
  const auto granted = [&](const std::string& gpu) {
    for (const GpuLoad& load : plugin_->node().loads()) {
      if (load.uuid == gpu) return load.bytes_granted / kGib;
    }
    return int64_t{-1};
  };
  // Nothing of it is for a later container.
  ASSERT_TRUE(kubelet_->admit_with_init("alone", {{kGpu, 1}, {kMemory, 6}}, {}));
  EXPECT_EQ(kubelet_->start_init("alone"), std::nullopt);
  EXPECT_EQ(granted("GPU-a") + granted("GPU-b"), 6);
  const std::string taken = granted("GPU-a") == 6 ? "GPU-a" : "GPU-b";
  const std::string other = taken == "GPU-a" ? "GPU-b" : "GPU-a";
  // A later container has half of it.
  ASSERT_TRUE(kubelet_->admit_with_init("both", {{kGpu, 1}, {kMemory, 10}}, {{kGpu, 1}, {kMemory, 5}}));
  EXPECT_EQ(gpu_of_pod(*kubelet_, "both"), other);
  EXPECT_EQ(kubelet_->start_init("both"), std::nullopt);
  EXPECT_EQ(granted(other), 10);
  EXPECT_EQ(kubelet_->start("both"), std::nullopt);
  EXPECT_EQ(granted(other), 10) << "units count once";
  // Nothing fits beside it, also after a restart of the plugin.
  plugin_.reset();
  ASSERT_TRUE(wait([&] { return kubelet_->healthy().empty(); }));
  start_plugin();
  ASSERT_TRUE(registered());
  ASSERT_TRUE(kubelet_->admit_with_init("late", {{kGpu, 1}, {kMemory, 4}}, {{kGpu, 1}, {kMemory, 1}}));
  EXPECT_EQ(gpu_of_pod(*kubelet_, "late"), taken);
  EXPECT_EQ(kubelet_->start_init("late"), std::nullopt);
  EXPECT_EQ(granted(taken), 10);
  EXPECT_EQ(granted(other), 10);
  EXPECT_EQ(kubelet_->start_init("both"), std::nullopt) << "one that restarts";
  // Their pods gone, their memory is free.
  kubelet_->remove("alone");
  kubelet_->remove("both");
  ASSERT_TRUE(kubelet_->admit("after", {{kGpu, 1}, {kMemory, 5}}));
  EXPECT_EQ(kubelet_->start("after"), std::nullopt);
  EXPECT_EQ(granted("GPU-a") + granted("GPU-b"), 4 + 5);
}

TEST_F(KubeletTest, ARestartOfThePluginKeepsWhoWasGranted) {
  start_kubelet();
  start_plugin();
  ASSERT_TRUE(registered());
  ASSERT_TRUE(kubelet_->admit("a", {{kGpu, 1}, {kMemory, 6}}));
  ASSERT_TRUE(kubelet_->admit("b", {{kGpu, 1}, {kMemory, 6}}));
  ASSERT_TRUE(kubelet_->admit("c", {{kGpu, 1}, {kMemory, 6}}));
  EXPECT_EQ(kubelet_->start("c"), std::nullopt);
  EXPECT_EQ(kubelet_->start("a") == std::nullopt, gpu_of_pod(*kubelet_, "a") != gpu_of_pod(*kubelet_, "c"));
  plugin_.reset();
  ASSERT_TRUE(wait([&] { return kubelet_->healthy().empty(); })) << "the kubelet sees that the plugin is gone";
  start_plugin();
  ASSERT_TRUE(registered());
  EXPECT_EQ(kubelet_->start("c"), std::nullopt);
  std::string beside_c = gpu_of_pod(*kubelet_, "a") == gpu_of_pod(*kubelet_, "c") ? "a" : "b";
  EXPECT_NE(kubelet_->start(beside_c), std::nullopt);
}

TEST_F(KubeletTest, AHundredKubeletRestartsLoseNoRegistrationAndNoDescriptor) {
  start_kubelet();
  start_plugin();
  ASSERT_TRUE(registered());
  ASSERT_TRUE(kubelet_->admit("a", {{kGpu, 1}, {kMemory, 6}}));
  EXPECT_EQ(kubelet_->start("a"), std::nullopt);
  int descriptors = 0;
  Clock::duration slowest{0};
  for (int i = 0; i < 100; ++i) {
    if (i < 20) descriptors = std::max(descriptors, open_descriptors());
    start_kubelet();
    auto begin = Clock::now();
    ASSERT_TRUE(registered()) << "restart " << i << ": " << kubelet_->trouble();
    slowest = std::max(slowest, Clock::now() - begin);
  }
  // A Register that meets a kubelet which is just deleting our socket fails and is repeated: that is no trouble.
  EXPECT_EQ(kubelet_->start("a"), std::nullopt);
  EXPECT_EQ(plugin_->node().loads()[0].bytes_granted + plugin_->node().loads()[1].bytes_granted, 6 * kGib);
  RecordProperty("slowest_ms", static_cast<int>(slowest / 1ms));
  std::cout << "slowest registration: " << slowest / 1ms << " ms\n";
  // gRPC keeps a few for later; one lost in each restart would be 80 more.
  EXPECT_TRUE(wait([&] { return open_descriptors() <= descriptors + 8; })) << open_descriptors() << " now, " << descriptors << " before";
}

// While the old plugin was gone and the new one not there yet, pods that came failed for good (UnexpectedAdmissionError).
TEST_F(KubeletTest, ANewInstanceTakesOverBeforeTheOldOneEnds) {
  settings_.instance = "nvshare-0";
  start_kubelet();
  start_plugin();
  ASSERT_TRUE(registered());
  ASSERT_TRUE(kubelet_->admit("a", {{kGpu, 1}, {kMemory, 6}}));
  EXPECT_EQ(kubelet_->start("a"), std::nullopt);
  for (int i = 1; i <= 5; ++i) {
    const int before = kubelet_->registrations();
    std::unique_ptr<Plugin> old = std::move(plugin_);
    settings_.instance = "nvshare-" + std::to_string(i);
    start_plugin();
    ASSERT_TRUE(wait([&] { return plugin_->announcements() > 0 && kubelet_->registrations() >= before + 2; })) << kubelet_->trouble();
    ASSERT_TRUE(registered());
    EXPECT_TRUE(kubelet_->admit("b", {{kGpu, 1}, {kMemory, 2}})) << "with both";
    EXPECT_EQ(kubelet_->start("b"), std::nullopt);
    old.reset();
    // The kubelet takes the old one's end for the resource's.
    ASSERT_TRUE(wait([&] {
      const auto after = kubelet_->admit("c", {{kGpu, 1}, {kMemory, 2}});
      if (after) kubelet_->remove("c");
      return static_cast<bool>(after);
    })) << kubelet_->trouble();
    ASSERT_TRUE(registered());
    EXPECT_EQ(kubelet_->start("a"), std::nullopt) << "it was granted by the first";
    EXPECT_EQ(plugin_->node().loads()[0].bytes_granted + plugin_->node().loads()[1].bytes_granted, 8 * kGib);
    kubelet_->remove("b");
  }
}

TEST_F(KubeletTest, LostSocketsAreMadeAnewAndRegisteredAgain) {
  start_kubelet();
  start_plugin();
  ASSERT_TRUE(registered());
  for (int i = 0; i < 10; ++i) {
    int before = kubelet_->registrations();
    fs::remove(settings_.kubelet_dir + "/" + endpoint_of(i % 2 == 0 ? kGpu : kMemory));
    ASSERT_TRUE(wait([&] { return kubelet_->registrations() >= before + 2; })) << kubelet_->trouble();
    ASSERT_TRUE(registered());
  }
  EXPECT_TRUE(kubelet_->admit("a", {{kGpu, 1}, {kMemory, 6}}));
}

TEST_F(KubeletTest, ServesNotWhatAnotherPluginServes) {
  start_kubelet();
  kubelet_->offer_elsewhere("nvidia.com/gpu", {"GPU-x", "GPU-y::0"});
  kubelet_->offer_elsewhere("nvshare.com/other", {"memory-00001"});
  start_plugin();
  ASSERT_TRUE(registered()) << "other GPUs are the other's";
  plugin_.reset();
  for (const char* id : {"GPU-b", "GPU-b::3", "GPU-b-_-4"}) {  // NVIDIA's, time-slicing, others
    start_kubelet();
    kubelet_->offer_elsewhere("nvidia.com/gpu", {"GPU-x", id});
    std::promise<std::string> why;
    start_plugin([&](const std::string& text) { why.set_value(text); });
    auto said = why.get_future();
    ASSERT_EQ(said.wait_for(60s), std::future_status::ready) << id;
    EXPECT_NE(said.get().find("nvidia.com/gpu (" + std::string(id) + ")"), std::string::npos);
    EXPECT_EQ(kubelet_->registrations(), 0);
    plugin_.reset();
  }
  // One that comes later is noticed when containers come.
  start_kubelet();
  std::promise<std::string> later;
  start_plugin([&](const std::string& text) { later.set_value(text); });
  ASSERT_TRUE(registered());
  kubelet_->offer_elsewhere("nvidia.com/gpu", {"GPU-b::3"});
  ASSERT_TRUE(kubelet_->admit("a", {{kGpu, 1}}));
  auto said = later.get_future();
  ASSERT_EQ(said.wait_for(60s), std::future_status::ready);
  EXPECT_NE(said.get().find("nvidia.com/gpu (GPU-b::3)"), std::string::npos);
  plugin_.reset();
  settings_.refuse_other_plugins = false;
  start_plugin();
  EXPECT_TRUE(registered());
}

TEST_F(KubeletTest, ASickGpuAndItsMemoryAreNotOfferedUntilItIsWell) {
  start_kubelet();
  start_plugin();
  ASSERT_TRUE(registered());
  plugin_->set_health({"GPU-a"}, false);
  ASSERT_TRUE(wait([&] {
    auto healthy = kubelet_->healthy();
    return healthy[kGpu].size() == 10 && healthy[kMemory].size() == 10;
  }));
  ASSERT_TRUE(kubelet_->admit("a", {{kGpu, 1}, {kMemory, 1}}));
  EXPECT_EQ(gpu_of_pod(*kubelet_, "a"), "GPU-b");
  plugin_->set_health({"GPU-a"}, true);
  EXPECT_TRUE(registered());
  spdlog::set_level(spdlog::level::off);
  for (int i = 0; i < 200; ++i) plugin_->set_health({i % 3 == 0 ? "GPU-a" : "GPU-b"}, i % 2 == 0);
  plugin_->set_health({"GPU-a"}, true);
  plugin_->set_health({"GPU-b"}, true);
  EXPECT_TRUE(registered()) << "the last list is the one that stays";
}

// ---- the program, with NVML of the stand-in GPU ----

class ProgramTest : public KubeletTest {
 protected:
  ~ProgramTest() override {
    if (pid_ > 0) end(SIGKILL);
  }

  pid_t start(std::vector<std::string> arguments, const char* log = "/log") {
    arguments.insert(arguments.begin(), NVSHARE_DEVICE_PLUGIN_PROGRAM);
    pid_ = fork();
    if (pid_ != 0) return pid_;
    setenv("LD_LIBRARY_PATH", STAND_IN, 1);
    set_machine();
    setenv("NVSHARE_KUBELET_DIR", settings_.kubelet_dir.c_str(), 1);
    setenv("NVSHARE_POD_RESOURCES_SOCKET", settings_.pod_resources_socket.c_str(), 1);
    setenv("NVSHARE_INSTALL_DIR", settings_.install_dir.c_str(), 1);
    setenv("NVSHARE_LIBRARY", STAND_IN "/libnvidia-ml.so.1", 1);  // any library will do
    setenv("NVSHARE_GPU_MEMORY_UNIT", "64Mi", 1);
    setenv("NVSHARE_HEALTH_INTERVAL", "20ms", 1);
    if (arguments[1] != "--scheduler-patience") setenv("NVSHARE_SCHEDULER_PATIENCE", "off", 1);
    unsetenv("NVIDIA_VISIBLE_DEVICES");
    if (std::freopen((folder_ + log).c_str(), "w", stderr) == nullptr) _exit(99);
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    execv(raw[0], raw.data());
    _exit(98);
  }
  // The same for every process that uses it: the first one makes the machine.
  void set_machine() const {
    setenv("SIMGPU_STATE", (folder_ + "/gpu").c_str(), 1);
    setenv("SIMGPU_COUNT", gpus_.c_str(), 1);
    setenv("SIMGPU_MEMORY_MB", memory_mb_.c_str(), 1);
  }
  // A second process of the same settings; nothing, or what it says.
  std::optional<std::string> probe(const char* seconds) {
    const pid_t plugin = std::exchange(pid_, 0);
    start({"--probe", seconds}, "/probe-log");
    const int status = wait_for_end();
    pid_ = plugin;
    if (status == 0) return std::nullopt;
    std::ifstream stream(folder_ + "/probe-log");
    return std::to_string(status) + ": " + std::string(std::istreambuf_iterator<char>(stream), {});
  }
  int wait_for_end() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int end(int signal) {
    kill(pid_, signal);
    return wait_for_end();
  }
  std::string said() const {
    std::ifstream stream(folder_ + "/log");
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  // From another process, as the stand-in GPU takes them.
  void set_faults(const std::string& faults) const {
    pid_t child = fork();
    if (child == 0) {
      set_machine();
      void* driver = dlopen(STAND_IN "/libcuda.so.1", RTLD_NOW);
      auto* control = driver != nullptr ? reinterpret_cast<int (*)(const char*, uint64_t*)>(dlsym(driver, "simgpu_control")) : nullptr;
      _exit(control != nullptr ? control(("set_faults " + faults).c_str(), nullptr) : 97);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_EQ(status, 0) << faults;
  }
  bool offers(size_t gpus, size_t units) {
    return wait([&] {
      auto healthy = kubelet_->healthy();
      return healthy[kGpu].size() == gpus && healthy[kMemory].size() == units;
    });
  }

  int64_t most_resident() const {  // bytes
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    int64_t kib = 0;
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) kib = std::strtoll(line.c_str() + 6, nullptr, 10);
    }
    return kib << 10;
  }

  std::string gpus_ = "2", memory_mb_ = "1024";
  pid_t pid_ = 0;
};

TEST_F(ProgramTest, WrongUseIsRefusedByName) {
  start({"--gpu-memory-oversub-ratio", "twice"});
  EXPECT_EQ(wait_for_end(), 2);
  EXPECT_NE(said().find("--gpu-memory-oversub-ratio: 'twice'"), std::string::npos) << said();
  start({"--gpus", "5"});
  EXPECT_EQ(wait_for_end(), 1);
  EXPECT_NE(said().find("'5' is no GPU of this machine, which has GPU 0 (GPU-"), std::string::npos) << said();
  start({"--colour"});
  EXPECT_EQ(wait_for_end(), 2);
  start({"--version"});
  EXPECT_EQ(wait_for_end(), 0);
}

TEST_F(ProgramTest, MigDevicesAreGpusOfTheirOwn) {
  setenv("SIMGPU_MIG", "3", 1);
  start_kubelet();
  start({"--virtual-devices", "2"});
  unsetenv("SIMGPU_MIG");
  // Three of the first GPU, and the second one.
  ASSERT_TRUE(wait([&] { return kubelet_->healthy()[kGpu].size() == 8 && !kubelet_->healthy()[kMemory].empty(); })) << said();
  std::set<std::string> mig_devices;
  auto offered = kubelet_->healthy();
  for (const std::string& id : offered[kGpu]) {
    if (id.starts_with("MIG-")) mig_devices.emplace(*gpu_of(id));
  }
  EXPECT_EQ(mig_devices.size(), 3u);
  ASSERT_TRUE(kubelet_->admit("a", {{kGpu, 1}, {kMemory, 1}}));
  EXPECT_EQ(gpu_of_pod(*kubelet_, "a").substr(0, 4), "GPU-") << "the one with the most memory";
  auto four = kubelet_->admit("four", {{kGpu, 4}});
  ASSERT_TRUE(four);
  for (const std::string& uuid : mig_devices) EXPECT_NE(four->variables["NVIDIA_VISIBLE_DEVICES"].find(uuid), std::string::npos);
  auto large = kubelet_->admit("large", {{kGpu, 1}, {kMemory, 6}});
  ASSERT_TRUE(large);
  EXPECT_EQ(kubelet_->start("large") == std::nullopt, gpu_of_pod(*kubelet_, "large").starts_with("GPU-"))
      << "a third of 1 GiB is five units";
  set_faults("xid:79");
  ASSERT_TRUE(wait([&] { return kubelet_->healthy()[kGpu].size() == 2; })) << "an error of the GPU is one of all its MIG devices" << said();
  EXPECT_EQ(end(SIGTERM), 0) << said();
}

TEST_F(ProgramTest, WithoutASchedulerItOffersNothing) {
  start_kubelet();
  start({"--scheduler-patience", "300ms", "--runtime-dir", folder_});
  ASSERT_TRUE(wait([&] { return said().find("is unhealthy: no scheduler answers on this node") != std::string::npos; })) << said();
  ASSERT_TRUE(wait([&] { return kubelet_->registrations() >= 2; })) << said();
  ASSERT_TRUE(offers(0, 0)) << said();
  // Answers as the scheduler does.
  fs::create_directories(folder_ + "/admin");
  FileDescriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s/admin/admin.sock", folder_.c_str());
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener.get(), 8), 0);
  std::atomic<bool> stop{false};
  std::thread scheduler([&] {
    while (!stop) {
      pollfd ready{listener.get(), POLLIN, 0};
      if (poll(&ready, 1, 10) <= 0) continue;
      FileDescriptor peer(accept(listener.get(), nullptr, nullptr));
      char asked[512];
      if (recv(peer.get(), asked, sizeof asked, 0) > 0) (void)!write(peer.get(), "{\"ok\":true}\n", 12);
    }
  });
  EXPECT_TRUE(wait([&] { return kubelet_->healthy()[kGpu].size() == 20; })) << said();
  stop = true;
  scheduler.join();
  EXPECT_EQ(end(SIGTERM), 0) << said();
}

TEST_F(ProgramTest, OffersTheMachinesGpusFollowsTheirHealthAndEndsCleanly) {
  start_kubelet();
  start({"--virtual-devices", "4"});
  ASSERT_TRUE(wait([&] { return kubelet_->healthy()[kGpu].size() == 8; })) << said();
  size_t units = 0;
  ASSERT_TRUE(wait([&] { return (units = kubelet_->healthy()[kMemory].size()) > 0; })) << said();
  EXPECT_EQ(units % 2, 0u);
  EXPECT_LE(units, 32u);
  auto a = kubelet_->admit("a", {{kGpu, 1}, {kMemory, 3}});
  ASSERT_TRUE(a) << a.error().text << said();
  EXPECT_NE(said().find("offers GPU 1 (GPU-"), std::string::npos) << said();
  EXPECT_EQ(a->variables["NVSHARE_GPU_MEMORY_LIMIT"], "192Mi");
  EXPECT_TRUE(fs::exists(a->mounts["/usr/lib/nvshare/libnvshare.so"]));
  EXPECT_EQ(kubelet_->start("a"), std::nullopt) << said();
  EXPECT_TRUE(kubelet_->numa_nodes().empty()) << "the stand-in's PCI slots are none of this machine's";
  set_faults("xid:31");
  ASSERT_TRUE(wait([&] { return said().find("XID 31, which is a program's own") != std::string::npos; })) << said();
  EXPECT_EQ(kubelet_->healthy()[kGpu].size(), 8u);
  set_faults("xid:79");
  ASSERT_TRUE(offers(4, units / 2)) << said();
  const std::regex named("GPU [01] \\(GPU-[0-9a-f-]{36}\\) is unhealthy: the driver reported XID 79");
  EXPECT_TRUE(std::regex_search(said(), named)) << said();
  set_faults("device_lost");
  ASSERT_TRUE(offers(0, 0)) << said();
  set_faults("");
  ASSERT_TRUE(offers(8, units)) << said();
  EXPECT_EQ(end(SIGTERM), 0) << said();
  EXPECT_FALSE(fs::exists(settings_.kubelet_dir + "/" + endpoint_of(kGpu))) << "its sockets are gone";
}

// 8 GPUs x 10 virtual devices and 8 x 141 units, all given out, over kubelet restarts: what the plugin takes for it.
TEST_F(ProgramTest, AFullNodeOfEightGpusKeepsItSmall) {
  gpus_ = "8";
  memory_mb_ = "141";
  start_kubelet();
  start({"--gpu-memory-unit", "1Mi"});
  ASSERT_TRUE(wait([&] { return kubelet_->healthy()[kGpu].size() == 80 && kubelet_->healthy()[kMemory].size() > 8 * 100; })) << said();
  const int units = static_cast<int>(kubelet_->healthy()[kMemory].size());
  Clock::duration slowest{0};
  for (int i = 0; i < 80; ++i) {
    const std::string pod = "pod-" + std::to_string(i);
    const auto begin = Clock::now();
    auto given = kubelet_->admit(pod, {{kGpu, 1}, {kMemory, units / 80}});
    slowest = std::max(slowest, Clock::now() - begin);
    ASSERT_TRUE(given) << given.error().text << said();
    if (auto refusal = kubelet_->start(pod)) ADD_FAILURE() << *refusal;
  }
  for (int i = 0; i < 3; ++i) {
    start_kubelet();
    ASSERT_TRUE(wait([&] { return kubelet_->healthy()[kMemory].size() == static_cast<size_t>(units); })) << said();
    EXPECT_EQ(kubelet_->start("pod-" + std::to_string(i)), std::nullopt);
  }
  std::cout << units << " units, 80 pods; resident at most " << (most_resident() >> 20) << " MiB; slowest admission " << slowest / 1ms
            << " ms\n";
  EXPECT_LE(most_resident(), 32 << 20);
  EXPECT_EQ(end(SIGTERM), 0) << said();
}

// What the chart's liveness probe runs.
TEST_F(ProgramTest, ItsProbeTellsAPluginThatAnswersFromOneThatHangsOrIsGone) {
  start_kubelet();
  start({"--virtual-devices", "4"});
  ASSERT_TRUE(wait([&] { return kubelet_->healthy()[kMemory].size() > 0; })) << said();
  EXPECT_EQ(probe("60"), std::nullopt) << said();
  kubelet_.reset();
  EXPECT_EQ(probe("60"), std::nullopt) << "a kubelet that is away is not its fault";
  kill(pid_, SIGSTOP);
  auto why = probe("0.2");
  ASSERT_TRUE(why);
  EXPECT_NE(why->find("1: nvshare-device-plugin: nvshare.com/gpu does not answer"), std::string::npos) << *why;
  kill(pid_, SIGCONT);
  EXPECT_EQ(probe("60"), std::nullopt) << said();
  EXPECT_EQ(end(SIGTERM), 0) << said();
  why = probe("0.2");
  ASSERT_TRUE(why);
  EXPECT_NE(why->find("does not answer"), std::string::npos) << *why;
}

}  // namespace
}  // namespace nvshare::kubernetes
