// Scheduler and library of different releases: each is replaced by the other's version while programs run and swap.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <set>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"
#include "protocol/codec.h"

namespace nvshare::e2e {
namespace {

using protocol::admin::ClientReport;
using protocol::admin::StatusReport;
using protocol::admin::TenantReport;

constexpr uint32_t kNow = protocol::kVersionMax;
constexpr uint32_t kBefore = protocol::kVersionMax - 1;

Arguments mix(int seed) { return {"mix", "--seed", std::to_string(seed), "--hold", "90M", "--largest", "60M", "--floor", "50M"}; }

// All are there, each has had a turn under this scheduler, and memory has moved.
bool all_had_turns(const std::optional<StatusReport>& report, size_t programs) {
  if (!report || report->clients.size() != programs) return false;
  int64_t moved = 0;
  for (const ClientReport& client : report->clients) {
    if (client.turns == 0) return false;
    moved += client.swapped_out_total;
  }
  return moved > 0;
}

class Upgrades : public testing::Test {
 protected:
  static StageOptions options() {
    StageOptions options;
    options.link_mbps = 2000;  // swaps that take a while
    options.scheduler["NVSHARE_RESTART_GRACE"] = "0.5";
    return options;
  }

  // What each phase is held to; the program "limited" is a tenant with limits, which an earlier scheduler was told.
  void expect_shared_by(size_t programs, size_t with_new_library, bool new_scheduler) {
    EXPECT_TRUE(stage_.wait_until([&] { return all_had_turns(stage_.status(), programs) || stage_.anybody_ended(); }));
    ASSERT_FALSE(stage_.anybody_ended());
    const auto report = stage_.status();
    ASSERT_TRUE(report);
    size_t newest = 0;
    for (const ClientReport& client : report->clients) {
      newest += client.protocol == kNow ? 1 : 0;
      EXPECT_TRUE(client.protocol == kNow || client.protocol == kBefore) << client.protocol;
      if (new_scheduler) {
        EXPECT_EQ(client.library.empty(), client.protocol < 2) << "every library since version 2 says which it is";
      }
    }
    EXPECT_EQ(newest, new_scheduler ? with_new_library : 0) << "what both sides speak, and no older version";
    const auto limited =
        std::find_if(report->tenants.begin(), report->tenants.end(), [](const TenantReport& tenant) { return tenant.name == "limited"; });
    ASSERT_NE(limited, report->tenants.end());
    EXPECT_EQ(limited->gpu_memory_limit, 120 << 20);
    EXPECT_EQ(limited->gpu_core_limit, 80);
  }

  // The scheduler ends while memory moves, as far as that can be met, and one of the other version takes over.
  void replace_scheduler(const std::string& program, bool killed) {
    stage_.wait_until(
        [&] {
          const auto report = stage_.status();
          return report && std::any_of(report->clients.begin(), report->clients.end(),
                                       [](const ClientReport& client) { return client.state == "loading" || client.state == "dropping"; });
        },
        moments() / 10);
    if (killed) {
      stage_.kill_scheduler();
    } else {
      stage_.stop_scheduler();
    }
    stage_.start_scheduler(program);
  }

  Stage stage_{options()};
};

TEST_F(Upgrades, SchedulerAndLibraryOfTwoVersionsUnderSwappingPrograms) {
  stage_.start_scheduler(previous_scheduler());
  if (HasFatalFailure()) return;
  stage_.start_with(previous_library(), "old-1", mix(1));
  stage_.start_tenant("limited", {mix(2)}, 120 << 20, 80);
  ASSERT_NO_FATAL_FAILURE(expect_shared_by(2, 1, false));

  ASSERT_NO_FATAL_FAILURE(replace_scheduler(kSchedulerPath, false));
  stage_.start_with(previous_library(), "old-2", mix(3));
  stage_.start("new-2", mix(4));
  ASSERT_NO_FATAL_FAILURE(expect_shared_by(4, 2, true));

  ASSERT_NO_FATAL_FAILURE(replace_scheduler(previous_scheduler(), true));
  ASSERT_NO_FATAL_FAILURE(expect_shared_by(4, 2, false));
  ASSERT_NO_FATAL_FAILURE(replace_scheduler(kSchedulerPath, true));
  ASSERT_NO_FATAL_FAILURE(expect_shared_by(4, 2, true));

  stage_.tell_to_stop();
  stage_.expect_success_of_all();
  stage_.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
