// Limits by annotation from end to end: an API server, what the device plugin makes of its pods, a scheduler, and programs of which the
// kernel says that they are in a pod.
#include "kubernetes/annotations.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/spdlog.h>

#include "e2e/harness/pod_cgroup.h"
#include "e2e/harness/stage.h"
#include "kubernetes/test_api_server.h"

namespace nvshare::e2e {
namespace {

using kubernetes::Annotations;
using kubernetes::kCoreAnnotation;
using kubernetes::kMemoryAnnotation;
using kubernetes::TestApiServer;

constexpr char kUid[] = "0b4e6a2c-31d7-4f6e-9c05-7a1b2c3d4e5f";

std::vector<std::string> worker(const Stage& stage, Arguments arguments) {
  arguments.insert(arguments.begin(), kWorkerPath);
  arguments.insert(arguments.end(), {"--stop", stage.directory() + "/stop"});
  return arguments;
}

TEST(AnnotationsEndToEnd, BiteTheProgramsOfTheirPodAndNoOthers) {
  auto cgroup = PodCgroup::make(kUid);
  if (!cgroup) GTEST_SKIP() << "no cgroup can be made here; it takes root";
  signal(SIGPIPE, SIG_IGN);
  spdlog::set_level(spdlog::level::warn);
  Stage stage;
  stage.start_scheduler();
  TestApiServer server(stage.directory());
  server.add_pod("train", {{"nvshare.com/gpu", 1}, {"nvshare.com/gpu-memory", 48}}, kUid);
  server.annotate("train", kMemoryAnnotation, "16Mi");
  Annotations::Options options;
  options.api_server = server.address();
  options.node = "node-1";
  options.runtime_dir = stage.runtime_directory();
  options.resources = {"nvshare.com/gpu", "nvshare.com/gpu-memory", "", {.memory_unit = 1 << 20}};
  auto annotations = std::make_unique<Annotations>(options);
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

  // The scheduler starts anew and knows nothing; the agent is back at once. The agent starts anew: limits stay.
  stage.kill_scheduler();
  stage.start_scheduler();
  EXPECT_TRUE(stage.wait_until([&] { return tenant().gpu_core_limit == 20 && tenant().gpu_memory_limit == 44 << 20; }));
  annotations.reset();
  EXPECT_EQ(tenant().gpu_core_limit, 20);
  server.annotate("train", kCoreAnnotation, "");
  server.annotate("train", kMemoryAnnotation, "");
  annotations = std::make_unique<Annotations>(options);
  EXPECT_TRUE(stage.wait_until([&] { return tenant().gpu_core_limit == 100 && tenant().gpu_memory_limit == 48 << 20; }))
      << "removed while nobody watched: what the pod was granted";

  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
