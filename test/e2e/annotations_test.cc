// Limits by annotation from end to end: an API server, what the device plugin makes of its pods, a scheduler, and programs of which the
// kernel says that they are in a pod.
#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "e2e/harness/pod_cgroup.h"
#include "e2e/harness/stage.h"
#include "kubernetes/pods/pod_limit_controller.h"
#include "kubernetes/pods/test_api_server.h"
#include "protocol/admin_connection.h"

namespace nvshare::e2e {
namespace {

using kubernetes::kCoreAnnotation;
using kubernetes::kMemoryAnnotation;
using kubernetes::PodLimitController;
using kubernetes::TestApiServer;

// Of this process's pod: tests of several processes run at the same time, and cgroups are the machine's.
std::string pod_uid() {
  char uid[40];
  std::snprintf(uid, sizeof uid, "0b4e6a2c-31d7-4f6e-9c05-%012x", static_cast<unsigned>(getpid()));
  return uid;
}

std::vector<std::string> worker(const Stage& stage, Arguments arguments) {
  arguments.insert(arguments.begin(), kWorkerPath);
  arguments.insert(arguments.end(), {"--stop", stage.directory() + "/stop"});
  return arguments;
}

TEST(AnnotationsEndToEnd, BiteTheProgramsOfTheirPodAndNoOthers) {
  auto cgroup = PodCgroup::make(pod_uid());
  if (!cgroup) GTEST_SKIP() << "no cgroup can be made here; it takes root";
  signal(SIGPIPE, SIG_IGN);
  spdlog::set_level(spdlog::level::warn);
  Stage stage;
  stage.start_scheduler();
  TestApiServer server(stage.directory());
  server.add_pod("train", {{"nvshare.com/gpu", 1}, {"nvshare.com/gpu-memory", 48}}, pod_uid());
  server.annotate("train", kMemoryAnnotation, "16Mi");
  PodLimitController::Options options;
  options.api_server = server.address();
  options.node = "node-1";
  options.runtime_dir = stage.runtime_directory();
  options.resources = {"nvshare.com/gpu", "nvshare.com/gpu-memory", "", {.memory_unit = 1 << 20}};
  auto annotations = std::make_unique<PodLimitController>(options);
  ASSERT_TRUE(stage.wait_until([&] { return server.watches() > 0; }));

  // What the program's environment claims changes nothing: the kernel says which pod it is in, and its own limit only lowers.
  const Environment claims = {{"NVSHARE_GPU_MEMORY_LIMIT", "100Mi"}, {"HOSTNAME", "other"}, {"NVSHARE_POD_UID", "other"}};
  Child& pod = stage.start_command("pod", cgroup->inside(worker(stage, {"limit-follow", "--piece", "4M", "--most", "8"})), true, claims);
  Child& other =
      stage.start_command("other", worker(stage, {"limit-follow", "--piece", "4M", "--most", "5"}), true, {{"HOSTNAME", "train"}});
  const auto holds = [&](Child& child, const std::string& pieces) {
    return stage.wait_until([&] { return child.logged("holds " + pieces + " pieces") || !child.running(); }) && child.running();
  };
  ASSERT_TRUE(holds(pod, "4")) << pod.log();
  EXPECT_TRUE(holds(other, "5")) << other.log();
  server.annotate("train", kMemoryAnnotation, "32Mi");
  EXPECT_TRUE(holds(pod, "8")) << pod.log();
  const auto tenant = [&] {
    auto report = stage.status();
    for (const auto& known : report ? report->tenants : std::vector<protocol::admin::TenantReport>()) {
      if (known.kind == "pod") return known;
    }
    return protocol::admin::TenantReport{};
  };
  EXPECT_EQ(tenant().name, "team/train");

  server.annotate("train", kMemoryAnnotation, "44Mi");  // room for one more program
  EXPECT_TRUE(stage.wait_until([&] { return tenant().gpu_memory_limit == 44 << 20; }));

  // Another program of the pod that keeps the GPU busy is held to the pod's compute limit.
  Child& busy = stage.start_command("busy", cgroup->inside(worker(stage, {"steady", "--work", "1000"})), true);
  ASSERT_TRUE(stage.wait_until([&] { return tenant().clients == 2 || stage.anybody_ended(); }));
  EXPECT_TRUE(tenant().compute.empty() || tenant().compute[0].throttled_time_ns == 0);
  server.annotate("train", kCoreAnnotation, "20");
  EXPECT_TRUE(stage.wait_until([&] {
    const auto seen = tenant();
    return seen.gpu_core_limit == 20 && !seen.compute.empty() && seen.compute[0].quota == 20 && seen.compute[0].throttled_time_ns > 0;
  })) << busy.log();

  // Root in the pod asks for more: the admin socket is not for it, wherever it is reached.
  for (const std::vector<std::string>& request :
       {std::vector<std::string>{kControlPath, "set", "team/train", "memory=none", "core=none", "priority=100"},
        std::vector<std::string>{kControlPath, "status"}}) {
    static int asked = 0;
    Child& asks = stage.start_command("asks-" + std::to_string(++asked), cgroup->inside(request), false);
    EXPECT_NE(asks.wait(moments()).value_or(0), 0) << asks.log();
    EXPECT_TRUE(asks.logged("not for containers")) << asks.log();
    stage.forget(asks);
  }
  EXPECT_EQ(tenant().gpu_core_limit, 20);
  EXPECT_EQ(tenant().gpu_memory_limit, 44 << 20);
  EXPECT_EQ(tenant().priority, 0);

  // The scheduler starts anew and knows nothing; the agent is back at once. The agent starts anew: limits stay.
  stage.kill_scheduler();
  stage.start_scheduler();
  EXPECT_TRUE(stage.wait_until([&] { return tenant().gpu_core_limit == 20 && tenant().gpu_memory_limit == 44 << 20; }));
  annotations.reset();
  EXPECT_EQ(tenant().gpu_core_limit, 20);
  server.annotate("train", kCoreAnnotation, "");
  server.annotate("train", kMemoryAnnotation, "");
  annotations = std::make_unique<PodLimitController>(options);
  EXPECT_TRUE(stage.wait_until([&] { return tenant().gpu_core_limit == 100 && tenant().gpu_memory_limit == 48 << 20; }))
      << "removed while nobody watched: what the pod was granted";

  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

// Turns last a minute, so whoever is served before that was not served in its order.
TEST(AnnotationsEndToEnd, APodThatIsDeletedGetsTheNextTurn) {
  auto cgroup = PodCgroup::make(pod_uid());
  if (!cgroup) GTEST_SKIP() << "no cgroup can be made here; it takes root";
  signal(SIGPIPE, SIG_IGN);
  spdlog::set_level(spdlog::level::warn);
  StageOptions stage_options;
  stage_options.switch_time = "60";
  Stage stage(stage_options);
  stage.start_scheduler();
  TestApiServer server(stage.directory());
  server.add_pod("train", {{"nvshare.com/gpu", 1}}, pod_uid());
  PodLimitController::Options options;
  options.api_server = server.address();
  options.node = "node-1";
  options.runtime_dir = stage.runtime_directory();
  options.resources = {"nvshare.com/gpu", "", "", {}};
  const PodLimitController annotations(options);

  const Arguments mix = {"mix", "--floor", "105M", "--hold", "118M", "--largest", "60M"};
  const auto client = [&](Child& child) { return stage.client_of(child.pid()).value_or(protocol::admin::ClientReport{}); };
  const auto becomes = [&](Child& child, const std::string& state) {
    return stage.wait_until([&] { return client(child).state == state || !child.running(); }) && child.running();
  };
  Child& runs = stage.start("runs", mix);
  ASSERT_TRUE(stage.wait_until([&] { return client(runs).resident > 100 << 20 || !runs.running(); }));
  Child& waits = stage.start("waits", mix);
  ASSERT_TRUE(becomes(waits, "waiting")) << waits.log();
  Child& pod = stage.start_command("pod", cgroup->inside(worker(stage, mix)), true);
  ASSERT_TRUE(becomes(pod, "waiting")) << pod.log();
  server.begin_deletion("train");
  EXPECT_TRUE(stage.wait_until([&] { return client(pod).turns > 0 || !pod.running(); }, moments())) << "it has to be there in time";
  // That nobody is served before it is tested on virtual time: here the first program may pause for so long that it gives the GPU up.
  server.delete_pod("train");

  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

#ifndef NVSHARE_SANITIZED  // their runtimes must be loaded first
// As in a container: the library comes by /etc/ld.so.preload, the scheduler's folder is mounted where it is by default.
constexpr char kContainer[] = R"(set -e
    mkdir -p "$0/etc"
    for file in ld.so.cache passwd nsswitch.conf; do cp /etc/$file "$0/etc/" 2> /dev/null || true; done
    echo "$1" > "$0/etc/ld.so.preload"
    mount --bind "$0/etc" /etc
    mount -t tmpfs none /run
    mkdir /run/nvshare
    mount --bind "$0/run" /run/nvshare
    shift
    exec "$@")";

bool can_contain(Stage& stage) {
  Child& possible = stage.start_command("possible", {"/usr/bin/unshare", "-m", "/bin/sh", "-c", "exit 0"}, false);
  return possible.wait(moments()).value_or(1) == 0;
}

std::vector<std::string> contained(Stage& stage, const Arguments& arguments) {
  std::vector<std::string> command = {"/usr/bin/unshare", "-m", "/bin/sh", "-c", kContainer, stage.directory(), kLibraryPath};
  for (const std::string& word : worker(stage, arguments)) command.push_back(word);
  return command;
}

// The pod's own environment says what it likes.
TEST(AnnotationsEndToEnd, APodGainsNothingByItsEnvironment) {
  auto cgroup = PodCgroup::make(pod_uid());
  if (!cgroup) GTEST_SKIP() << "no cgroup can be made here; it takes root";
  Stage stage;
  stage.start_scheduler();
  auto admin = protocol::admin::AdminConnection::open(stage.runtime_directory());
  ASSERT_TRUE(admin) << admin.error().text;
  ASSERT_TRUE(admin->ask(protocol::admin::PodsRequest{{{pod_uid(), "team/train", 16 << 20, 100, false}}, true}));

  if (!can_contain(stage)) GTEST_SKIP() << "no mount namespace can be made here";
  Child& pod = stage.start_command("pod", cgroup->inside(contained(stage, {"limit-follow", "--piece", "4M", "--most", "8"})), false,
                                   {{"LD_PRELOAD", ""},
                                    {"NVSHARE_RUNTIME_DIR", "/nowhere"},
                                    {"NVSHARE_GPU_MEMORY_LIMIT", "100Gi"},
                                    {"NVSHARE_SCHEDULING_MODE", "concurrent"},
                                    {"NVSHARE_POD_UID", "other"},
                                    {"HOSTNAME", "other"}});
  ASSERT_TRUE(stage.wait_until([&] { return pod.logged("holds 4 pieces") || !pod.running(); })) << pod.log();
  EXPECT_TRUE(pod.running()) << pod.log();
  EXPECT_TRUE(pod.logged("NVSHARE_RUNTIME_DIR is ignored")) << pod.log();
  const auto report = stage.status();
  ASSERT_TRUE(report && report->clients.size() == 1);
  EXPECT_EQ(report->tenants.at(0).name, "team/train");
  EXPECT_EQ(report->clients[0].gpu_memory_limit, 16 << 20);
  EXPECT_EQ(report->clients[0].allocated, 16 << 20);
  stage.tell_to_stop();
  stage.expect_success(pod);
}

// Whoever ends the scheduler, by an attack say, gains nothing: what starts meanwhile waits, whatever its environment says.
TEST(AnnotationsEndToEnd, WithoutASchedulerWhatStartsInAPodWaitsAndNoLimitIsPassed) {
  auto cgroup = PodCgroup::make(pod_uid());
  if (!cgroup) GTEST_SKIP() << "no cgroup can be made here; it takes root";
  Stage stage;
  if (!can_contain(stage)) GTEST_SKIP() << "no mount namespace can be made here";
  stage.start_scheduler();
  {
    auto admin = protocol::admin::AdminConnection::open(stage.runtime_directory());
    ASSERT_TRUE(admin) << admin.error().text;
    ASSERT_TRUE(admin->ask(protocol::admin::PodsRequest{{{pod_uid(), "team/train", 16 << 20, 100, false}}, true}));
  }
  stage.kill_scheduler();
  const Environment claims = {
      {"LD_PRELOAD", ""}, {"NVSHARE_RUNTIME_DIR", "/nowhere"}, {"NVSHARE_REQUIRE_SCHEDULER", "0"}, {"NVSHARE_GPU_MEMORY_LIMIT", ""}};
  std::vector<Child*> both;
  for (const char* name : {"one", "other"}) {
    both.push_back(
        &stage.start_command(name, cgroup->inside(contained(stage, {"limit-follow", "--piece", "4M", "--most", "8"})), false, claims));
  }
  for (Child* child : both) {
    ASSERT_TRUE(stage.wait_until([&] { return child->logged("waits for one before it uses the GPU") || !child->running(); }))
        << child->log();
    EXPECT_TRUE(child->running()) << child->log();
    EXPECT_TRUE(child->logged("/etc/ld.so.preload has this library")) << child->log();
    EXPECT_FALSE(child->logged("holds")) << child->log();
  }
  stage.start_scheduler();
  uint64_t most = 0;
  const auto allocated = [&] {
    uint64_t sum = 0;
    const auto report = stage.status();
    for (const auto& client : report ? report->clients : std::vector<protocol::admin::ClientReport>()) sum += client.allocated;
    most = std::max(most, sum);
    return sum;
  };
  EXPECT_TRUE(stage.wait_until([&] { return allocated() == 16 << 20; })) << both[0]->log() << both[1]->log();
  for (int i = 0; i < 10; ++i) {
    allocated();
    usleep(30'000);
  }
  EXPECT_EQ(most, 16u << 20) << "of both together";
  stage.tell_to_stop();
  for (Child* child : both) stage.expect_success(*child);
}
#endif

}  // namespace
}  // namespace nvshare::e2e
