// Claims of Dynamic Resource Allocation from end to end: a kubelet, an API server, the DRA driver's program, a scheduler, and programs of
// which the kernel says that they are in a pod.
#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "e2e/harness/pod_cgroup.h"
#include "e2e/harness/stage.h"
#include "kubernetes/dra/cluster/test_cluster.h"
#include "kubernetes/dra/kubelet/test_dra_kubelet.h"
#include "kubernetes/dra/test_claims.h"
#include "kubernetes/pods/pod_limits.h"

namespace nvshare::e2e {
namespace {

namespace fs = std::filesystem;
using kubernetes::kCoreAnnotation;
using kubernetes::kMemoryAnnotation;
using kubernetes::dra::Json;
using kubernetes::dra::kTestNode;
using kubernetes::dra::TestCluster;
using kubernetes::dra::TestDraKubelet;
using kubernetes::dra::TestPart;
using protocol::admin::TenantReport;

// Of this process's pods: tests of several processes run at the same time, and cgroups are the machine's.
std::string pod_uid(int number) {
  char uid[40];
  std::snprintf(uid, sizeof uid, "0b4e6a2c-31d7-4f6e-9c%02d-%012x", number, static_cast<unsigned>(getpid()));
  return uid;
}

class DraEndToEnd : public testing::Test {
 protected:
  DraEndToEnd() {
    signal(SIGPIPE, SIG_IGN);
    spdlog::set_level(spdlog::level::warn);
    fs::create_directories(folder_ + "/install");
    kubelet_ = std::make_unique<TestDraKubelet>(folder_, std::vector<std::string>{"v1.DRAPlugin"});
    cluster_ = std::make_unique<TestCluster>(folder_);
  }

  void start_driver() {
    if (driver_ != nullptr) {
      driver_->signal(SIGKILL);
      ASSERT_TRUE(driver_->wait(moments()));
      stage_.forget(*driver_);
    }
    driver_ = &stage_.start_command("driver-" + std::to_string(++drivers_), {E2E_DRA_DRIVER}, false,
                                    {{"NVSHARE_NODE_NAME", kTestNode},
                                     {"NVSHARE_API_SERVER", cluster_->address().url},
                                     {"NVSHARE_SERVICE_ACCOUNT", folder_},
                                     {"NVSHARE_PLUGINS_DIR", folder_ + "/plugins"},
                                     {"NVSHARE_REGISTRY_DIR", folder_ + "/plugins_registry"},
                                     {"NVSHARE_INSTALL_DIR", folder_ + "/install"},
                                     {"NVSHARE_LIBRARY", kLibraryPath},
                                     {"NVSHARE_CDI_DIR", folder_ + "/cdi"},
                                     {"NVSHARE_HEALTH_INTERVAL", "0.2"},
                                     {"NVSHARE_SCHEDULER_PATIENCE", "off"}});
    ASSERT_TRUE(stage_.wait_until([&] { return cluster_->slices().size() == 1 && kubelet_->find_driver(); })) << driver_->log();
  }

  // A pod, and its claim of one share, which other pods may be reserved for, too.
  void put_pod(int number, const std::vector<std::string>& claims) {
    Json pod = kubernetes::dra::test_pod(number, claims);
    pod["metadata"]["uid"] = pod_uid(number);
    cluster_->put_pod(pod);
  }
  void prepare(int number, const TestPart& part, int pod, const Json& config = Json::array()) {
    Json claim = kubernetes::dra::test_claim(number, {part});
    claim["status"]["allocation"]["devices"]["config"] = config;
    claim["status"]["allocation"]["devices"]["results"][0]["device"] = cluster_->slices()[0]["spec"]["devices"][0]["name"];
    claim["status"]["reservedFor"] = {{{"resource", "pods"}, {"name", "pod-" + std::to_string(pod)}, {"uid", pod_uid(pod)}}};
    cluster_->put_claim(claim);
    const auto name = kubernetes::dra::test_claim_name(number);
    const auto prepared = kubelet_->prepare({name});
    ASSERT_TRUE(prepared) << prepared.error().text;
    ASSERT_EQ(prepared->at(name.uid).error, "");
  }
  // A program that takes as many pieces of 4 MiB as it can, up to `most`.
  Child& start_program(const std::string& name, const PodCgroup& pod, int most) {
    return stage_.start_command(
        name,
        pod.inside({kWorkerPath, "limit-follow", "--piece", "4M", "--most", std::to_string(most), "--stop", stage_.directory() + "/stop"}),
        true);
  }
  bool holds(Child& child, int pieces) {
    return stage_.wait_until([&] { return child.logged("holds " + std::to_string(pieces) + " pieces") || !child.running(); }) &&
           child.running();
  }
  std::vector<TenantReport> pods() {
    std::vector<TenantReport> found;
    const auto report = stage_.status();
    for (const TenantReport& tenant : report ? report->tenants : std::vector<TenantReport>()) {
      if (tenant.kind == "pod") found.push_back(tenant);
    }
    return found;
  }
  // The scheduler knows another pod that shares that pod's claim.
  bool has_member(int pod) {
    return stage_.wait_until([&] {
      std::ifstream kept(stage_.runtime_directory() + "/tenants");
      const std::string text((std::istreambuf_iterator<char>(kept)), {});
      return text.find("\"member_of\": \"" + pod_uid(pod)) != std::string::npos;
    });
  }
  int64_t limit() {
    const auto found = pods();
    return found.empty() || found[0].memory.empty() ? -1 : found[0].memory[0].limit >> 20;
  }

  Stage stage_;
  const std::string folder_ = stage_.directory() + "/dra";
  std::unique_ptr<TestDraKubelet> kubelet_;
  std::unique_ptr<TestCluster> cluster_;
  Child* driver_ = nullptr;
  int drivers_ = 0;
};

TEST_F(DraEndToEnd, TwoPodsOfOneClaimShareItsMemoryAndAnAnnotationLowersItWhileTheyRun) {
  auto first_group = PodCgroup::make(pod_uid(1));
  auto second_group = PodCgroup::make(pod_uid(2));
  if (!first_group || !second_group) GTEST_SKIP() << "no cgroup can be made here; it takes root";
  stage_.start_scheduler();
  start_driver();
  put_pod(1, {"claim-1"});
  cluster_->annotate("team/pod-1", kMemoryAnnotation, "16Mi");
  prepare(1, {0, "32Mi", "50"}, 1);
  Child& first = start_program("first", *first_group, 2);
  ASSERT_TRUE(holds(first, 2)) << first.log();
  ASSERT_TRUE(stage_.wait_until([&] { return limit() == 16; })) << driver_->log();

  // The kubelet prepares nothing for it: the claim is prepared. The API server has it before the kubelet starts it.
  put_pod(2, {"claim-1"});
  ASSERT_TRUE(has_member(1)) << driver_->log();
  Child& second = start_program("second", *second_group, 20);
  EXPECT_TRUE(holds(second, 2)) << "what the first one left of 16 MiB: " << second.log();
  ASSERT_EQ(pods().size(), 1U);
  EXPECT_EQ(pods()[0].clients, 2U);
  EXPECT_EQ(pods()[0].name, "team/pod-1");

  start_driver();
  cluster_->annotate("team/pod-1", kMemoryAnnotation, "24Mi");
  EXPECT_TRUE(holds(second, 4)) << second.log();
  cluster_->annotate("team/pod-2", kCoreAnnotation, "20");
  EXPECT_TRUE(stage_.wait_until([&] { return pods()[0].gpu_core_limit == 20; })) << "an annotation of either pod";
  cluster_->annotate("team/pod-1", kMemoryAnnotation, "");
  EXPECT_TRUE(holds(second, 6)) << second.log();
  EXPECT_EQ(limit(), 32);

  std::vector<double> delays;  // ms, from the API server's change to the scheduler's status; printed, not judged
  for (int percent = 21; percent <= 40; ++percent) {
    const Clock::time_point begin = Clock::now();
    cluster_->annotate("team/pod-2", kCoreAnnotation, std::to_string(percent));
    ASSERT_TRUE(stage_.wait_until([&] { return pods()[0].gpu_core_limit == percent; })) << driver_->log();
    delays.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  std::sort(delays.begin(), delays.end());
  std::cout << "20 annotations in force after " << delays[10] << " ms (median), " << delays.back() << " ms at most\n";

  stage_.tell_to_stop();
  stage_.expect_success(first);
  stage_.expect_success(second);
  stage_.expect_gpu_unharmed();
}

TEST_F(DraEndToEnd, APodWithTwoClaimsHasBoth) {
  auto group = PodCgroup::make(pod_uid(3));
  if (!group) GTEST_SKIP() << "no cgroup can be made here; it takes root";
  stage_.start_scheduler();
  start_driver();
  put_pod(3, {"claim-3", "claim-4"});
  prepare(3, {0, "16Mi", "30"}, 3);
  Child& program = start_program("program", *group, 20);
  ASSERT_TRUE(holds(program, 4)) << program.log();
  prepare(4, {0, "8Mi", "20"}, 3);
  EXPECT_TRUE(holds(program, 6)) << program.log();
  EXPECT_EQ(pods()[0].gpu_core_limit, 50);
  const auto name = kubernetes::dra::test_claim_name(4);
  ASSERT_TRUE(kubelet_->unprepare({name}));
  EXPECT_TRUE(stage_.wait_until([&] { return limit() == 16 && pods()[0].gpu_core_limit == 30; }));
  EXPECT_TRUE(program.running()) << "what it has it keeps";

  stage_.tell_to_stop();
  stage_.expect_success(program);
  stage_.expect_gpu_unharmed();
}

// What the class and the claim say is in force for all pods of the claim, after restarts of both sides, and an administrator's word goes
// before it while programs run.
TEST_F(DraEndToEnd, AClassSaysHowThePodsOfItsClaimsShare) {
  auto first_group = PodCgroup::make(pod_uid(5));
  auto second_group = PodCgroup::make(pod_uid(6));
  if (!first_group || !second_group) GTEST_SKIP() << "no cgroup can be made here; it takes root";
  stage_.start_scheduler();
  start_driver();
  put_pod(5, {"claim-5"});
  put_pod(6, {"claim-5"});
  prepare(5, {0, "32Mi", "50"}, 5,
          {kubernetes::dra::test_config("FromClass", {{"turnSeconds", 20}}),
           kubernetes::dra::test_config("FromClaim", {{"sharing", "turns"}})});
  Child& first = start_program("first", *first_group, 2);
  ASSERT_TRUE(holds(first, 2)) << first.log();
  ASSERT_TRUE(has_member(5)) << driver_->log();
  Child& second = start_program("second", *second_group, 2);
  ASSERT_TRUE(holds(second, 2)) << second.log();
  const auto shares = [&](const std::string& sharing) {
    return stage_.wait_until([&] {
      const auto found = pods();
      return found.size() == 1 && found[0].clients == 2 && found[0].sharing == sharing && found[0].turn_most_ns == 20'000'000'000;
    });
  };
  EXPECT_TRUE(shares("turns")) << driver_->log();

  const auto set = [&](const std::string& sharing) {
    auto admin = protocol::admin::AdminConnection::open(stage_.runtime_directory());
    ASSERT_TRUE(admin) << admin.error().text;
    protocol::admin::SetRequest change;
    change.tenant = "team/pod-5";
    change.sharing = sharing;
    ASSERT_TRUE(admin->ask(change));
  };
  set("together");
  EXPECT_TRUE(shares("together"));
  set("node");
  EXPECT_TRUE(shares("turns")) << "the claim's again";
  start_driver();
  stage_.kill_scheduler();
  stage_.start_scheduler();
  EXPECT_TRUE(shares("turns")) << "after restarts of both";

  stage_.tell_to_stop();
  stage_.expect_success(first);
  stage_.expect_success(second);
  stage_.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
