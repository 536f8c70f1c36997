// The tenant's memory limit: each way to allocate, processes that race, changes while programs run, deaths, restarts of the scheduler.
#include <gtest/gtest.h>
#include <signal.h>

#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

using protocol::admin::TenantMemoryReport;

constexpr int64_t kMiB = 1 << 20;

class MemoryLimits : public testing::Test {
 protected:
  MemoryLimits() { stage_.start_scheduler(); }

  // What the scheduler has in its ledger for that tenant.
  std::optional<TenantMemoryReport> ledger_of(const std::string& tenant) {
    auto report = stage_.status();
    if (!report) return std::nullopt;
    for (const auto& known : report->tenants) {
      if (known.name == tenant && !known.memory.empty()) return known.memory[0];
    }
    return std::nullopt;
  }
  bool ledger_comes(const std::string& tenant, const std::function<bool(const TenantMemoryReport&)>& as) {
    return stage_.wait_until([&] {
      auto ledger = ledger_of(tenant);
      return (ledger && as(*ledger)) || stage_.anybody_ended();
    });
  }

  Stage stage_;
};

TEST_F(MemoryLimits, TheLastByteWithinSucceedsAndTheFirstPastFailsEachWay) {
  const Arguments kinds = {"limit-kinds", "--limit", "64M", "--room", "16M"};
  for (const char* backend : {"vmm", "managed", "none"}) {
    Child& child = stage_.start(backend, kinds, {{"NVSHARE_GPU_MEMORY_LIMIT", "64Mi"}, {"NVSHARE_MEMORY_BACKEND", backend}});
    stage_.expect_success(child);
    EXPECT_TRUE(child.logged("counted in units of 2 MiB, small allocations of ")) << "a refusal names the granularity";
  }
  stage_.stop_scheduler();
  stage_.expect_success(stage_.start("unshared", kinds, {{"NVSHARE_GPU_MEMORY_LIMIT", "64Mi"}}));
  stage_.expect_gpu_unharmed();
}

TEST_F(MemoryLimits, WithinTheLimitNothingIsAsked) {
  Child& child = stage_.start_tenant("churn", {{"limit-churn", "--steps", "300"}}, 64 * kMiB);
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("churned") || !child.running(); }));
  auto ledger = ledger_of("churn");
  ASSERT_TRUE(ledger);
  EXPECT_EQ(ledger->leased, 64 * kMiB);
  EXPECT_EQ(ledger->asks, 0u) << "an allocation within the limit waited for the scheduler";
  stage_.tell_to_stop();
  stage_.expect_success(child);
}

// Three that take whatever they can get have all of it in the end, and never more. The one that has most dies, and the others race for
// that.
TEST_F(MemoryLimits, OfProcessesThatRaceNoneGetsWhatAnotherHas) {
  const Arguments follow = {"limit-follow", "--piece", "4M"};
  stage_.start_tenant("race", {follow, follow, follow}, 64 * kMiB);
  const auto all_is_taken_by = [&](size_t clients, int64_t* most, int32_t* whose) {
    return stage_.wait_until([&] {
      auto report = stage_.status();
      if (!report || report->clients.size() != clients || report->tenants.empty() || report->tenants[0].memory.empty()) return false;
      EXPECT_LE(report->tenants[0].memory[0].leased, 64 * kMiB);
      int64_t charged = *most = 0;
      for (const auto& client : report->clients) {
        charged += client.charged;
        if (client.charged > *most) *most = client.charged, *whose = client.pid;
      }
      EXPECT_LE(charged, 64 * kMiB);
      return charged == 64 * kMiB;
    });
  };
  int64_t most = 0;
  int32_t whose = 0;
  ASSERT_TRUE(all_is_taken_by(3, &most, &whose));
  ASSERT_EQ(kill(whose, SIGKILL), 0);
  EXPECT_TRUE(all_is_taken_by(2, &most, &whose)) << "what the dead had did not come back";
}

TEST_F(MemoryLimits, ChangesWhileItRuns) {
  Child& child = stage_.start_tenant("follow", {{"limit-follow", "--piece", "4M"}}, 16 * kMiB);
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("holds 4 pieces") || !child.running(); }));
  EXPECT_EQ(stage_.set_memory_limit("follow", 48 * kMiB), "");
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("holds 12 pieces") || !child.running(); }));
  // Below what is in use: nothing is taken away, nothing is added, and it shows.
  EXPECT_EQ(stage_.set_memory_limit("follow", 20 * kMiB), "");
  EXPECT_TRUE(ledger_comes("follow", [&](const auto& ledger) { return ledger.over && ledger.charged == 48 * kMiB; }));
  EXPECT_TRUE(stage_.wait_until([&] { return child.logged("they stay, and nothing more is allocated") || !child.running(); }));
  EXPECT_TRUE(stage_.scheduler().logged("over its limit of 20 MiB"));
  // The scheduler forgets everything; what it was told comes back with the program.
  stage_.kill_scheduler();
  stage_.start_scheduler();
  EXPECT_TRUE(stage_.wait_until([&] {
    auto report = stage_.status();
    return report && report->clients.size() == 1 && report->clients[0].charged == 48 * kMiB &&
           report->clients[0].gpu_memory_limit == 20 * kMiB;
  }));
  auto report = stage_.status();
  ASSERT_TRUE(report && !report->clients.empty());
  EXPECT_EQ(stage_.set_memory_limit(std::to_string(report->clients[0].tenant), 64 * kMiB), "");
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("holds 16 pieces") || !child.running(); }));
  stage_.tell_to_stop();
  stage_.expect_success(child);
}

TEST_F(MemoryLimits, AProgramSeesItsTenantsLimitAndUseAndNotItsNeighbours) {
  const auto sees = [&](Child& child, const std::string& what) {
    return stage_.wait_until([&] { return child.logged(what) || !child.running(); }) && child.logged(what);
  };
  // Alone, without a limit.
  Child& alone = stage_.start("alone", {"limit-view", "--limit", "256M", "--hold", "20M", "--free", "100M", "--more", "1"});
  ASSERT_TRUE(sees(alone, "of 268435456")) << alone.log();
  // 40 of 64 MiB are another process's of the tenant.
  Child& pair = stage_.start_tenant("pair", {{"limit-follow", "--most", "10"}, {"limit-view", "--hold", "4M", "--free", "20M"}}, 64 * kMiB);
  EXPECT_TRUE(sees(pair, "sees 20971520 free of 67108864")) << pair.log();
  // More than it needs is in use by neighbours now; what it would see alone does not change, but for their contexts.
  Child& late = stage_.start("late", {"limit-view", "--limit", "256M", "--hold", "20M", "--free", "100M", "--more", "1"});
  EXPECT_TRUE(sees(late, "of 268435456")) << late.log();
  stage_.tell_to_stop();
  stage_.expect_success_of_all();
}

// A limit is a ceiling and no reservation: two programs that may have more than the GPU together run, in turns where they do not fit.
TEST(MemoryCeilings, TwoLimitsThatAddUpToMoreThanTheGpuRunInTurns) {
  StageOptions options;
  options.gpu_memory_mb = 512;
  Stage stage(options);
  stage.start_scheduler();
  for (const char* name : {"first", "second"}) {
    stage.start(name,
                {"mix", "--seed", name[0] == 'f' ? "1" : "2", "--floor", "250M", "--hold", "300M", "--largest", "100M", "--steps", "15"},
                {{"NVSHARE_GPU_MEMORY_LIMIT", "400Mi"}, {"NVSHARE_LOG_LEVEL", "info"}});
  }
  uint64_t switches = 0;
  stage.wait_until([&] {
    if (auto report = stage.status(); report && !report->gpus.empty()) switches = std::max(switches, report->gpus[0].switches);
    return (switches > 0 && stage.anybody_ended()) || stage.scheduler().logged("refused");
  });
  stage.expect_success_of_all();
  EXPECT_GE(switches, 1u) << "300 and 300 MiB do not fit on 512";
  EXPECT_FALSE(stage.scheduler().logged("refused"));
  stage.expect_gpu_unharmed();
}

TEST_F(MemoryLimits, TheStartLineSaysTheLimitAndWhoSetIt) {
  Child& own = stage_.start("own", {"limit", "--limit", "16M"}, {{"NVSHARE_GPU_MEMORY_LIMIT", "16Mi"}, {"NVSHARE_LOG_LEVEL", "info"}});
  stage_.expect_success(own);
  EXPECT_TRUE(own.logged("memory limit 16 MiB, set by NVSHARE_GPU_MEMORY_LIMIT, tenant ")) << own.log();
  stage_.stop_scheduler();
  Child& alone = stage_.start("alone", {"limit", "--limit", "16M"}, {{"NVSHARE_GPU_MEMORY_GRANT", "16Mi"}, {"NVSHARE_LOG_LEVEL", "info"}});
  stage_.expect_success(alone);
  EXPECT_TRUE(alone.logged("set by NVSHARE_GPU_MEMORY_GRANT,")) << alone.log();
}

// Without asking for any log: the first refusal is told at once, the others are counted.
TEST_F(MemoryLimits, ARefusedAllocationIsAWarningOnce) {
  Child& child = stage_.start_tenant("train", {{"limit-churn", "--steps", "1", "--past", "20"}}, 64 * kMiB);
  ASSERT_TRUE(stage_.wait_until([&] { return child.logged("churned") || !child.running(); }));
  const std::string log = child.log();
  const std::string line = "B was refused: in use ";
  const size_t at = log.find(line);
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find(line, at + 1), std::string::npos) << "one line for many refusals:\n" << log;
  EXPECT_NE(log.find("memory limit 64 MiB, set by the node (nvsharectl or Kubernetes), tenant ", at), std::string::npos) << log;
  EXPECT_NE(log.find("'train', counted in units of 2 MiB, small allocations of 512 B; ", at), std::string::npos) << log;
  stage_.tell_to_stop();
  stage_.expect_success(child);
}

TEST_F(MemoryLimits, ARefusedGpuTellsTheProgramWhy) {
  Child& first = stage_.start_reserved("first", {"limit-churn", "--steps", "1"}, 150 * kMiB);
  ASSERT_TRUE(stage_.wait_until([&] { return first.logged("churned") || !first.running(); }));
  Child& second = stage_.start_reserved("second", {"limit-churn", "--steps", "1"}, 150 * kMiB);
  std::optional<int> status = second.wait(patience());
  ASSERT_TRUE(status);
  EXPECT_NE(*status, 0);
  EXPECT_TRUE(second.logged("refused to this program, CUDA calls fail with CUDA_ERROR_NOT_PERMITTED: no room for a reservation of "))
      << second.log();
  const size_t once = second.log().find("no room for a reservation of ");
  EXPECT_EQ(second.log().find("no room for a reservation of ", once + 1), std::string::npos) << "said once:\n" << second.log();
  EXPECT_TRUE(second.logged("NVSHARE_GPU_MEMORY_OVERSUB_RATIO is 1, of 256 MiB")) << second.log();
  stage_.tell_to_stop();
  stage_.expect_success(first);
}

}  // namespace
}  // namespace nvshare::e2e
