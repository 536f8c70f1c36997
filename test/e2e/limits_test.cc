// What a program's side does under a compute limit, whatever the policy: gives the GPU up when idle, keeps little work in flight.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "e2e/harness/random.h"
#include "e2e/harness/scripted_scheduler.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

using namespace std::chrono_literals;
using protocol::ReleaseReason;

constexpr int kWays = 5;  // of submitting work, which the worker takes in turn

// Idle for 40 ms after each 5 ms of work, however that was submitted: it has the lock for little more than the work.
TEST(Limits, AProgramThatPausesGivesTheGpuUpAndGetsItBack) {
  Stage stage;
  ScriptedScheduler scheduler(stage.runtime_directory(), {.limited = true, .idle_release_us = 300});
  const int rounds = scaled(8, 2);
  Child& child = stage.start("bursts", {"bursts", "--work", "5000", "--pause", "40000", "--rounds", std::to_string(rounds)});
  stage.expect_success(child);
  auto early = scheduler.releases(ReleaseReason::kEarly);
  // Not each: the test's threads may not get the processor in time.
  ASSERT_GE(static_cast<int>(early.size()), kWays * rounds / 2);
  std::sort(early.begin(), early.end(), [](const auto& a, const auto& b) { return a.held_ns < b.held_ns; });
  std::cout << early.size() << " of " << kWays * rounds << " pauses; held " << early[early.size() / 2].held_ns / 1000 << " us\n";
  if (kSlowness == 1) {
    EXPECT_LT(early[early.size() / 2].held_ns, 25'000'000) << "the lock was held through the pauses";
  }
  // What it says of its use is its work: neither the pause nor what the turn lasted besides.
  for (const auto& release : scheduler.releases()) EXPECT_LE(release.used_ns, release.held_ns);
  std::sort(early.begin(), early.end(), [](const auto& a, const auto& b) { return a.used_ns < b.used_ns; });
  EXPECT_GE(early[early.size() / 2].used_ns, 3'000'000);
  EXPECT_EQ(scheduler.problem(), "");
  stage.expect_gpu_unharmed();
}

// Where it may pause it keeps the lock, says so, and goes on without asking: the lock is asked for once.
TEST(Limits, AProgramThatIsAllowedToPausesAndGoesOnWithoutAsking) {
  Stage stage;
  ScriptedScheduler scheduler(stage.runtime_directory(), {.limited = true, .idle_release_us = 1000, .pause_us = 300});
  const int rounds = scaled(8, 2);
  Child& child = stage.start("bursts", {"bursts", "--work", "5000", "--pause", "40000", "--rounds", std::to_string(rounds)},
                             {{"NVSHARE_LOG_LEVEL", "debug"}});
  stage.expect_success(child);
  EXPECT_TRUE(child.logged("a submission of nothing takes ")) << "it is measured in pauses\n" << child.log();
  auto pauses = scheduler.pauses();
  ASSERT_GE(static_cast<int>(pauses.size()), kWays * rounds / 2);
  EXPECT_EQ(scheduler.grants(), 1);
  EXPECT_TRUE(scheduler.releases(ReleaseReason::kEarly).empty());
  std::sort(pauses.begin(), pauses.end(), [](const auto& a, const auto& b) { return a.lasted_ns < b.lasted_ns; });
  const int64_t lasted_ns = pauses[pauses.size() / 2].lasted_ns;
  std::cout << pauses.size() << " of " << kWays * rounds << " pauses; the one in the middle lasted " << lasted_ns / 1000 << " us\n";
  EXPECT_LE(lasted_ns, 45'000'000 * kSlowness);
  if (kSlowness == 1) {
    EXPECT_GE(lasted_ns, 15'000'000) << "of the 40 ms";
  }
  std::sort(pauses.begin(), pauses.end(), [](const auto& a, const auto& b) { return a.used_ns < b.used_ns; });
  EXPECT_GE(pauses[pauses.size() / 2].used_ns, 3'000'000);
  EXPECT_EQ(scheduler.problem(), "");
  stage.expect_gpu_unharmed();
}

// Drops come whenever they come: in pauses, in work, and while one becomes the other.
TEST(Limits, ADropEndsAPauseAtAnyMoment) {
  Stage stage;
  ScriptedScheduler scheduler(stage.runtime_directory(), {.limited = true, .pause_us = 300, .drop_every = 3ms, .drop_spread = 7ms});
  const int rounds = scaled(60, 10);
  Child& child = stage.start("bursts", {"bursts", "--work", "2000", "--pause", "4000", "--rounds", std::to_string(rounds)});
  stage.expect_success(child);
  int dropped = 0;
  for (const auto& pause : scheduler.pauses()) dropped += pause.ended_by_drop;
  std::cout << scheduler.pauses().size() << " pauses, " << dropped << " ended by drops, of "
            << scheduler.releases(ReleaseReason::kDropped).size() << "\n";
  EXPECT_GE(dropped, kSlowness == 1 ? 10 : 1);
  EXPECT_TRUE(scheduler.releases(ReleaseReason::kNotDrained).empty());
  EXPECT_EQ(scheduler.problem(), "");
  stage.expect_gpu_unharmed();
}

// A thread that the program waits for at its very end was held for its work up to the end of that.
TEST(Limits, NothingIsHeldOnceTheProgramEnds) {
  Stage stage;
  ScriptedScheduler scheduler(stage.runtime_directory(), {.limited = true});
  Child& child = stage.start("submits", {"submits-at-the-end"});
  stage.expect_success(child);
  EXPECT_TRUE(child.logged("it was let go")) << child.log();
  EXPECT_EQ(scheduler.problem(), "");
}

// It has the lock, so it has what it needs, whether it worked or paused when the scheduler died; and comes with it to the next one.
TEST(Limits, AProgramThatPausesKeepsTheLockWhenTheSchedulerDies) {
  for (const auto& pause_us : {"2000", "60000"}) {
    for (const bool comes_back : {false, true}) {
      Stage stage;
      const ScriptedScheduler::Script script{.limited = true, .pause_us = 300};
      auto scheduler = std::make_unique<ScriptedScheduler>(stage.runtime_directory(), script);
      Child& child = stage.start("bursts", {"bursts", "--work", "2000", "--pause", pause_us, "--rounds", std::to_string(scaled(20, 5))});
      ASSERT_TRUE(stage.wait_until([&] { return scheduler->pauses().size() >= 3; }));
      scheduler.reset();
      if (comes_back) {
        scheduler = std::make_unique<ScriptedScheduler>(stage.runtime_directory(), script);
        EXPECT_TRUE(stage.wait_until([&] { return scheduler->came_with_lock() || stage.anybody_ended(); }));
        EXPECT_TRUE(scheduler->came_with_lock());
      }
      stage.expect_success(child);
      if (comes_back) {
        EXPECT_EQ(scheduler->problem(), "");
      }
      stage.expect_gpu_unharmed();
    }
  }
}

// Without a scheduler nobody would give the lock back: a pause that begins then is sat out with it. It works for 300 ms when that happens.
TEST(Limits, NobodyGivesTheLockUpWhileThereIsNoScheduler) {
  Stage stage;
  // It goes by itself: this thread might come too late, when the lock was given up.
  ScriptedScheduler scheduler(stage.runtime_directory(), {.limited = true, .idle_release_us = 300, .gone_with_grant = 2});
  Child& child = stage.start("bursts", {"bursts", "--work", "300000", "--pause", "20000", "--rounds", "2"});
  stage.expect_success(child);
  EXPECT_EQ(scheduler.grants(), 2);
  EXPECT_EQ(scheduler.releases().size(), 1u);
  stage.expect_gpu_unharmed();
}

// Drops meet it wherever it is: in pauses, allocations, captures, graphs, new contexts.
TEST(Limits, ProgramsOfManyKindsPauseAndAreDroppedAtAnyMoment) {
  for (const char* mode : {"mix", "capture-allocation", "contexts", "reset", "recapture", "pools", "churn", "graph-memory", "vmm-churn"}) {
    Stage stage;
    ScriptedScheduler scheduler(stage.runtime_directory(), {.limited = true, .pause_us = 50, .drop_every = 2ms, .drop_spread = 60ms});
    stage.tell_to_go("on");
    Child& child = stage.start(mode, {mode, "--go", stage.go_file("on")});
    const auto enough = static_cast<size_t>(scaled(20, 5));
    stage.wait_until([&] { return scheduler.releases().size() >= enough || stage.anybody_ended(); });
    stage.tell_to_stop();
    stage.expect_success(child);
    std::cout << mode << ": " << scheduler.pauses().size() << " pauses, " << scheduler.releases().size() << " releases\n";
    EXPECT_EQ(scheduler.problem(), "") << mode;
    stage.expect_gpu_unharmed();
  }
}

// The same program, told of no limit, keeps the lock all its life.
TEST(Limits, WithoutALimitAPauseIsNobodysConcern) {
  Stage stage;
  ScriptedScheduler scheduler(stage.runtime_directory(), {});
  Child& child = stage.start("bursts", {"bursts", "--work", "1000", "--pause", "30000", "--rounds", "2"});
  stage.expect_success(child);
  EXPECT_EQ(scheduler.grants(), 1);
  EXPECT_TRUE(scheduler.releases(ReleaseReason::kEarly).empty());
}

// It has done nothing for over a second when others come to want its memory, which takes 0.3 s to move: it need not do nothing for that
// long again.
TEST(Limits, WithoutALimitItsIdleTimeCountsFromItsOwnLastWait) {
  Stage stage;
  ScriptedScheduler scheduler(stage.runtime_directory(), {});
  Child& child = stage.start("bursts", {"bursts", "--work", "1000", "--pause", "2500000", "--rounds", "1"});
  ASSERT_TRUE(stage.wait_until([&] { return scheduler.grants() == 1; }));
  std::this_thread::sleep_for(1500ms);
  scheduler.contend(300'000'000);
  stage.expect_success(child);
  const auto released = scheduler.releases(ReleaseReason::kEarly);
  ASSERT_EQ(released.size(), 1u);
  EXPECT_GT(released[0].idle_ns, 500'000'000) << "0.3 s, had it begun to count when others came";
  EXPECT_EQ(scheduler.problem(), "");
  stage.expect_gpu_unharmed();
}

// Gaps of microseconds between pieces of work are none to give the GPU up for.
TEST(Limits, ABusyProgramKeepsTheGpu) {
  Stage stage;
  ScriptedScheduler scheduler(stage.runtime_directory(), {.limited = true});
  const int rounds = scaled(60, 10);
  Child& child = stage.start("busy", {"bursts", "--work", "2000", "--rounds", std::to_string(rounds)});
  stage.expect_success(child);
  // A loaded machine makes a few gaps of its own, and a program that it slows down by ten has no others.
  if (kSlowness == 1) {
    EXPECT_LE(static_cast<int>(scheduler.releases(ReleaseReason::kEarly).size()), kWays * rounds / 3);
  }
  EXPECT_EQ(scheduler.problem(), "");
}

// 40 pieces of 8 ms each are submitted at once, in each way. Without a bound all of them would be under way at the drop in mid-way, and it
// would take their time.
TEST(Limits, LittleIsInFlightAtADropHoweverItWasSubmitted) {
  Stage stage;
  ScriptedScheduler scheduler(stage.runtime_directory(), {.limited = true, .drop_every = 100ms, .tells_end = true});
  Child& child =
      stage.start("eager", {"bursts", "--work", "8000", "--units", std::to_string(scaled(40, kSlowness == 1 ? 40 : 20)), "--rounds", "1"});
  stage.expect_success(child);
  auto dropped = scheduler.releases(ReleaseReason::kDropped);
  ASSERT_GE(dropped.size(), kSlowness == 1 ? size_t{8} : size_t{3});
  std::sort(dropped.begin(), dropped.end(), [](const auto& a, const auto& b) { return a.drain_ns < b.drain_ns; });
  std::cout << dropped.size() << " drops; drained in " << dropped[dropped.size() / 2].drain_ns / 1000 << " us; of "
            << scheduler.told_ahead() << " the end was told ahead\n";
  EXPECT_GT(scheduler.told_ahead(), 0);
  if (kSlowness == 1) {
    EXPECT_LT(dropped[dropped.size() / 2].drain_ns, 60'000'000) << "of the one in the middle";
  }
  EXPECT_TRUE(scheduler.releases(ReleaseReason::kNotDrained).empty());
  EXPECT_EQ(scheduler.problem(), "");
  stage.expect_gpu_unharmed();
}

// What the program's drains say: at least one of them ended; on a machine that no sanitizer slows, the one in the middle soon.
void expect_short_drains(ScriptedScheduler& scheduler) {
  auto dropped = scheduler.releases(ReleaseReason::kDropped);
  const size_t given_up = scheduler.releases(ReleaseReason::kNotDrained).size();
  EXPECT_EQ(scheduler.problem(), "");
  ASSERT_GE(dropped.size(), 1u) << "no drain ended, " << given_up << " given up";
  std::sort(dropped.begin(), dropped.end(), [](const auto& a, const auto& b) { return a.drain_ns < b.drain_ns; });
  const int64_t middle = dropped[dropped.size() / 2].drain_ns;
  std::cout << dropped.size() << " drops; drained in " << middle / 1000 << " us, " << given_up << " given up\n";
  if (kSlowness > 1) return;
  EXPECT_LT(middle, 400'000'000) << "of the one in the middle";
  EXPECT_LE(given_up, dropped.size());
}

// Submissions for so long, or for longer where a sanitizer makes them slow.
std::string for_ms(int usual, int sanitized) { return std::to_string(kSlowness == 1 ? usual : sanitized); }

// Thirty-two threads submit more than the GPU gets done. When each of them went on after 20 ms of waiting, whatever the others did, seconds
// of work were in flight at a drop.
TEST(Limits, LittleIsInFlightHoweverManyThreadsSubmit) {
  Stage stage;
  ScriptedScheduler scheduler(stage.runtime_directory(), {.drop_every = 400ms, .contended = true});
  stage.expect_success(
      stage.start("eager-threads", {"eager-threads", "--threads", "32", "--work", "2000", "--for-ms", for_ms(2500, 6000)}));
  expect_short_drains(scheduler);
  stage.expect_gpu_unharmed();
}

// Each kernel takes longer than a hold. Each hold let one more of them go, none was seen to end, and all that the program had to do was in
// flight: no drain ended.
TEST(Limits, LittleIsInFlightHoweverLongAKernelTakes) {
  Stage stage;
  ScriptedScheduler scheduler(stage.runtime_directory(), {.drop_every = 400ms, .contended = true});
  stage.expect_success(stage.start("long-kernels", {"eager-threads", "--threads", "1", "--work", "60000", "--for-ms", for_ms(2000, 6000)}));
  expect_short_drains(scheduler);
  stage.expect_gpu_unharmed();
}

// A thread that changes its context with each submission was not paced, and made four events each time.
TEST(Limits, LittleIsInFlightOfAThreadThatChangesItsContext) {
  Stage stage;
  ScriptedScheduler scheduler(stage.runtime_directory(), {.drop_every = 300ms, .contended = true});
  Child& child = stage.start("two-contexts", {"two-contexts", "--work", "2000", "--for-ms", for_ms(2000, 5000)});
  stage.expect_success(child);
  expect_short_drains(scheduler);
  const size_t at = child.log().find("events left: ");
  ASSERT_NE(at, std::string::npos) << child.log();
  EXPECT_LE(std::stoul(child.log().substr(at + 13)), 48u) << "a ring for each context, and the swap engine's";
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
