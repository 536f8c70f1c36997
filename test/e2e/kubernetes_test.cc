// A node from end to end: a kubelet, the device plugin's program (and another release of it), an API server, a scheduler, and programs that
// run as containers do: in their pod's cgroup, in a root of their own with what Allocate returned mounted where it says, and with no
// variable of ours, as a program that emptied its environment.
#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>

#include "e2e/harness/pod_cgroup.h"
#include "e2e/harness/stage.h"
#include "kubernetes/kubelet/test_kubelet.h"
#include "kubernetes/pods/pod_limits.h"
#include "kubernetes/pods/test_api_server.h"

namespace nvshare::e2e {
namespace {

namespace fs = std::filesystem;
using kubernetes::kCoreAnnotation;
using kubernetes::kMemoryAnnotation;
using kubernetes::TestApiServer;
using kubernetes::TestKubelet;
using protocol::admin::TenantReport;

const char* const kDevicePluginPath = E2E_DEVICE_PLUGIN;
// Another release's, where there is one; else this one, which then differs by the library that it installs and by what it was told.
std::string previous_device_plugin() {
  const char* folder = std::getenv("NVSHARE_TEST_PREVIOUS");
  const std::string program = folder != nullptr ? std::string(folder) + "/nvshare-device-plugin" : "";
  return !program.empty() && fs::exists(program) ? program : kDevicePluginPath;
}

constexpr char kGpu[] = "nvshare.com/gpu";
constexpr char kMemory[] = "nvshare.com/gpu-memory";
constexpr char kCore[] = "nvshare.com/gpu-core";
constexpr int64_t kResidentMax = 32 << 20;  // bytes, of one process

// Makes a root from the machine's, with the given files mounted read-only, and becomes the program in it, with none of our variables.
// Arguments: a folder, then pairs of container path and host path, "--", the program.
constexpr char kContain[] = R"(set -e
  root="$0"
  mkdir -p "$root"
  mount -t tmpfs none "$root"
  for entry in /*; do
    case "$entry" in /usr|/etc|/run) continue;; esac
    if [ -L "$entry" ]; then cp -P "$entry" "$root$entry"; elif [ -d "$entry" ]; then mkdir "$root$entry"; mount --rbind "$entry" "$root$entry"; fi
  done
  mkdir "$root/usr" "$root/etc" "$root/run" "$root/usr/lib" "$root/.lib"
  for entry in /usr/*; do
    case "$entry" in /usr/lib) continue;; esac
    if [ -L "$entry" ]; then cp -P "$entry" "$root$entry"; else mkdir "$root$entry"; mount --rbind "$entry" "$root$entry"; fi
  done
  mount --bind /usr/lib "$root/.lib"
  for entry in /usr/lib/*; do ln -s "/.lib/${entry##*/}" "$root$entry"; done
  cp /etc/ld.so.cache "$root/etc/" 2> /dev/null || true
  while [ "$1" != "--" ]; do
    mkdir -p "$root${1%/*}"
    if [ -d "$2" ]; then mkdir "$root$1"; else touch "$root$1"; fi
    mount --bind "$2" "$root$1"
    mount -o remount,bind,ro "$root$1"
    shift 2
  done
  shift
  for name in $(env | sed -n 's/^\(NVSHARE_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
  exec chroot "$root" "$@")";

class Kubernetes : public testing::Test {
 protected:
  explicit Kubernetes(const char* gpus = "1")
      : stage_(options(gpus)), kubelet_folder_(stage_.directory() + "/kubelet"), kubelet_(kubelet_folder_) {
    signal(SIGPIPE, SIG_IGN);
    spdlog::set_level(spdlog::level::warn);
    fs::create_directories(stage_.directory() + "/api");
  }

  static StageOptions options(const char* gpus) {
    StageOptions options;
    options.gpu["SIMGPU_COUNT"] = gpus;
    return options;
  }

  // Ends the plugin that runs, as an upgrade does.
  void start_plugin(const std::string& program, const std::string& library, Environment more = {}) {
    if (plugin_ != nullptr) {
      plugin_->signal(SIGTERM);
      ASSERT_EQ(plugin_->wait(moments()).value_or(-1), 0) << plugin_->log();
      stage_.forget(*plugin_);
      ASSERT_TRUE(stage_.wait_until([&] { return kubelet_.healthy().empty(); })) << "the kubelet sees that it is gone";
    }
    more.insert({{"NVSHARE_KUBELET_DIR", TestKubelet::plugins(kubelet_folder_)},
                 {"NVSHARE_POD_RESOURCES_SOCKET", TestKubelet::pod_resources(kubelet_folder_)},
                 {"NVSHARE_INSTALL_DIR", stage_.directory() + "/install"},
                 {"NVSHARE_LIBRARY", library},
                 {"NVSHARE_GPU_MEMORY_UNIT", "1Mi"},
                 {"NVSHARE_CORE_RESOURCE", kCore},
                 {"NVSHARE_HEALTH_INTERVAL", "0.2"},
                 {"NVSHARE_API_SERVER", "off"}});
    plugin_ = &stage_.start_command("plugin-" + std::to_string(++plugins_), {program}, false, more);
    ASSERT_TRUE(stage_.wait_until([&] {
      auto healthy = kubelet_.healthy();
      return healthy[kGpu].size() >= 10 && healthy[kMemory].size() > 200 && healthy[kCore].size() >= 100;
    })) << kubelet_.trouble()
        << plugin_->log();
  }

  // Admits the pod, starts it, and runs the program in it.
  Child* run_pod(const std::string& name, const std::map<std::string, int>& amounts, const PodCgroup& cgroup, const Arguments& arguments) {
    auto given = kubelet_.admit(name, amounts);
    EXPECT_TRUE(given) << (given ? "" : given.error().text) << plugin_->log();
    if (!given) return nullptr;
    auto refusal = kubelet_.start(name);
    EXPECT_FALSE(refusal) << refusal.value_or("");
    EXPECT_EQ(given->mounts.size(), 3u);
    mounts_[name] = given->mounts;
    visible_[name] = given->variables["NVIDIA_VISIBLE_DEVICES"];
    std::vector<std::string> command = {"/usr/bin/unshare", "-m", "/bin/sh", "-c", kContain, stage_.directory() + "/root-" + name};
    for (const auto& [container_path, host_path] : given->mounts) command.insert(command.end(), {container_path, host_path});
    command.insert(command.end(), {"--", kWorkerPath});
    command.insert(command.end(), arguments.begin(), arguments.end());
    command.insert(command.end(), {"--stop", stage_.directory() + "/stop"});
    return &stage_.start_command(name, cgroup.inside(command), false, {given->variables.begin(), given->variables.end()});
  }

  TenantReport tenant(const std::string& name) {
    const auto report = stage_.status();
    for (const TenantReport& known : report ? report->tenants : std::vector<TenantReport>()) {
      if (known.kind == "pod" && known.name == name) return known;
    }
    return {};
  }
  bool has_limits(const std::string& name, int64_t memory_mib, int core) {
    return stage_.wait_until([&] {
      const TenantReport seen = tenant(name);
      return seen.gpu_memory_limit == memory_mib << 20 && seen.gpu_core_limit == core;
    });
  }
  // So much memory, and never much less.
  static Arguments mix(int seed, int mib) {
    return {"mix", "--seed",  std::to_string(seed),         "--hold", std::to_string(mib) + "M", "--largest",
            "40M", "--floor", std::to_string(mib - 8) + "M"};
  }
  // So many programs are there, and from now on memory moves.
  bool swaps(size_t programs) {
    const auto moved = [&]() -> int64_t {
      const auto report = stage_.status();
      if (!report || report->clients.size() != programs) return -1;
      int64_t sum = 0;
      for (const auto& client : report->clients) sum += client.swapped_out_total;
      return sum;
    };
    int64_t before = -1;
    return stage_.wait_until([&] {
      if (before < 0) before = moved();
      return before >= 0 && moved() > before;
    });
  }
  static int64_t most_resident(const Child& child) {  // bytes, 0: it is not there
    std::ifstream status("/proc/" + std::to_string(child.pid()) + "/status");
    int64_t kib = 0;
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) kib = std::strtoll(line.c_str() + 6, nullptr, 10);
    }
    return kib << 10;
  }

  Stage stage_;
  const std::string kubelet_folder_;
  TestKubelet kubelet_;
  Child* plugin_ = nullptr;
  int plugins_ = 0;
  std::map<std::string, std::map<std::string, std::string>> mounts_;  // by pod
  std::map<std::string, std::string> visible_;                        // the UUIDs of its GPUs
};

TEST_F(Kubernetes, PodsHaveWhatTheyWereGrantedOverPluginsOfTwoReleases) {
  std::vector<PodCgroup> cgroups;
  for (const char* name : {"train", "serve", "late"}) {
    auto cgroup = PodCgroup::make(TestKubelet::uid_of(name));
    if (!cgroup) GTEST_SKIP() << "no cgroup can be made here; it takes root";
    cgroups.push_back(std::move(*cgroup));
  }
  Child& possible = stage_.start_command("possible", {"/usr/bin/unshare", "-m", "/bin/sh", "-c", "exit 0"}, false);
  if (possible.wait(moments()).value_or(1) != 0) GTEST_SKIP() << "no mount namespace can be made here";
  stage_.forget(possible);
  stage_.start_scheduler();
  ASSERT_NO_FATAL_FAILURE(start_plugin(kDevicePluginPath, kLibraryPath));

  // Without an API server, and without a variable of ours: what was granted holds.
  Child* train = run_pod("train", {{kGpu, 1}, {kMemory, 24}}, cgroups[0], {"limit-follow", "--piece", "4M", "--most", "12"});
  ASSERT_NE(train, nullptr);
  ASSERT_TRUE(stage_.wait_until([&] { return train->logged("holds 6 pieces") || !train->running(); })) << train->log();
  EXPECT_TRUE(has_limits("default/train", 24, 100)) << tenant("default/train").gpu_memory_limit << plugin_->log();
  Child* serve = run_pod("serve", {{kGpu, 1}, {kMemory, 32}, {kCore, 40}}, cgroups[1], {"steady", "--work", "1000"});
  ASSERT_NE(serve, nullptr);
  EXPECT_TRUE(has_limits("default/serve", 32, 40)) << plugin_->log();
  const auto quota = [&](const char* name) {
    const TenantReport seen = tenant(name);
    return seen.compute.empty() ? 0 : seen.compute[0].quota;
  };
  EXPECT_TRUE(stage_.wait_until([&] { return quota("default/serve") == 40 || !serve->running(); })) << serve->log();

  // Another release of the plugin, with its library, takes over and goes back; pods and their limits stay.
  ASSERT_NO_FATAL_FAILURE(start_plugin(previous_device_plugin(), previous_library()));
  EXPECT_EQ(tenant("default/train").gpu_memory_limit, 24 << 20);
  EXPECT_EQ(tenant("default/serve").gpu_core_limit, 40);
  EXPECT_EQ(kubelet_.start("train"), std::nullopt) << "a container that restarts";
  Child* late = run_pod("late", {{kGpu, 1}, {kMemory, 100}}, cgroups[2], mix(2, 90));
  ASSERT_NE(late, nullptr);
  EXPECT_NE(mounts_["late"]["/usr/lib/nvshare/libnvshare.so"], mounts_["train"]["/usr/lib/nvshare/libnvshare.so"]);
  Child& beside = stage_.start("beside", mix(1, 140));  // in no pod; the two never fit together
  EXPECT_TRUE(swaps(4)) << late->log();

  TestApiServer server(stage_.directory() + "/api");
  for (const auto& [name, amounts] : std::map<std::string, std::map<std::string, int>>{{"train", {{kGpu, 1}, {kMemory, 24}}},
                                                                                       {"serve", {{kGpu, 1}, {kMemory, 32}, {kCore, 40}}},
                                                                                       {"late", {{kGpu, 1}, {kMemory, 100}}}}) {
    server.add_pod(name, amounts, TestKubelet::uid_of(name));
  }
  ASSERT_NO_FATAL_FAILURE(start_plugin(kDevicePluginPath, kLibraryPath,
                                       {{"NVSHARE_API_SERVER", server.address().url},
                                        {"NVSHARE_SERVICE_ACCOUNT", server.address().service_account},
                                        {"NVSHARE_NODE_NAME", "node-1"}}));
  EXPECT_TRUE(has_limits("team/train", 24, 100)) << "now by the API server's name" << plugin_->log();
  EXPECT_TRUE(has_limits("team/late", 100, 100)) << plugin_->log();

  EXPECT_TRUE(swaps(4)) << "while plugins came and went";
  // People who only look at Kubernetes see why the program was out of memory.
  const auto is_told = [&](const std::string& reason, const std::string& uid) {
    const auto events = server.events();
    return std::any_of(events.begin(), events.end(), [&](const std::string& event) {
      return event.find("\"" + reason + "\"") != std::string::npos && event.find(uid) != std::string::npos;
    });
  };
  EXPECT_TRUE(stage_.wait_until([&] { return is_told("GpuOutOfMemory", TestKubelet::uid_of("train")); })) << plugin_->log();

  // Annotations bite, shares change.
  server.annotate("train", kMemoryAnnotation, "12Mi");
  server.annotate("serve", kCoreAnnotation, "10");
  EXPECT_TRUE(has_limits("team/train", 12, 100));
  EXPECT_TRUE(stage_.wait_until([&] { return !tenant("team/train").memory.empty() && tenant("team/train").memory[0].over; }));
  EXPECT_TRUE(stage_.wait_until([&] { return quota("team/serve") == 10; })) << serve->log();
  EXPECT_TRUE(stage_.wait_until([&] { return tenant("team/serve").compute[0].throttled_time_ns > 0; }));
  // No library that a container was given is ever gone.
  for (const auto& [pod, mounts] : mounts_) {
    for (const auto& [container_path, host_path] : mounts) EXPECT_TRUE(fs::exists(host_path)) << pod << ": " << host_path;
  }
  EXPECT_GT(most_resident(*plugin_), 0);
  EXPECT_LE(most_resident(*plugin_), kResidentMax) << "of the plugin, at its most";
  EXPECT_LE(most_resident(stage_.scheduler()), kResidentMax) << "of the scheduler, at its most";
  std::cout << "resident at most: plugin " << (most_resident(*plugin_) >> 20) << " MiB, scheduler "
            << (most_resident(stage_.scheduler()) >> 20) << " MiB\n";
  for (Child* child : {train, serve, late, &beside}) EXPECT_TRUE(child->running()) << child->log();

  stage_.tell_to_stop();
  for (Child* child : {train, serve, late, &beside}) stage_.expect_success(*child);
  stage_.expect_gpu_unharmed();
}

class KubernetesOnTwoGpus : public Kubernetes {
 protected:
  KubernetesOnTwoGpus() : Kubernetes("2") {}

  // The UUIDs of the GPUs that the pod's programs use.
  std::set<std::string> used_by(const std::string& pod) {
    std::set<std::string> gpus;
    const auto report = stage_.status();
    const uint64_t id = tenant("default/" + pod).id;
    for (const auto& client : report ? report->clients : std::vector<protocol::admin::ClientReport>()) {
      if (id != 0 && client.tenant == id && client.resident + client.swapped > 0) gpus.insert(client.gpu);
    }
    return gpus;
  }
  std::set<std::string> granted_to(const std::string& pod) {
    std::set<std::string> gpus;
    std::istringstream list(visible_[pod]);
    for (std::string gpu; std::getline(list, gpu, ',');) gpus.insert(gpu);
    return gpus;
  }
};

// Each program counts its GPUs from 0; which they are is the kubelet's choice.
TEST_F(KubernetesOnTwoGpus, PodsUseTheGpusThatTheyWereGranted) {
  std::map<std::string, PodCgroup> cgroups;
  for (const char* name : {"both", "one", "other"}) {
    auto cgroup = PodCgroup::make(TestKubelet::uid_of(name));
    if (!cgroup) GTEST_SKIP() << "no cgroup can be made here; it takes root";
    cgroups.emplace(name, std::move(*cgroup));
  }
  Child& possible = stage_.start_command("possible", {"/usr/bin/unshare", "-m", "/bin/sh", "-c", "exit 0"}, false);
  if (possible.wait(moments()).value_or(1) != 0) GTEST_SKIP() << "no mount namespace can be made here";
  stage_.forget(possible);
  stage_.start_scheduler();
  ASSERT_NO_FATAL_FAILURE(start_plugin(kDevicePluginPath, kLibraryPath));
  const auto meet = [&](const std::string& name, const std::string& gpus, int parties) {
    return Arguments{
        "meet",    "--gpus", gpus,     "--meeting", stage_.directory() + "/meeting-" + name, "--parties", std::to_string(parties),
        "--leads", "1",      "--hold", "110M"};
  };
  std::map<std::string, Child*> children;
  children["both"] = run_pod("both", {{kGpu, 2}}, cgroups.at("both"), meet("both", "0,1", 2));
  for (const char* name : {"one", "other"}) children[name] = run_pod(name, {{kGpu, 1}}, cgroups.at(name), meet(name, "0", 1));
  for (const auto& [name, child] : children) {
    ASSERT_NE(child, nullptr) << name;
    EXPECT_EQ(granted_to(name).size(), name == "both" ? 2u : 1u) << visible_[name];
    EXPECT_TRUE(stage_.wait_until([&] { return used_by(name) == granted_to(name) || !child->running(); })) << name << child->log();
  }
  EXPECT_NE(visible_["one"], visible_["other"]) << "one on each";
  EXPECT_TRUE(swaps(4)) << children["both"]->log();
  stage_.tell_to_stop();
  for (const auto& [name, child] : children) stage_.expect_success(*child);
  stage_.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
