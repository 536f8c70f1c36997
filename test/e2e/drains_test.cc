// Drains that cannot end, and programs that wait long: nobody deadlocks, who fits goes on, everybody can see who waits for whom.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

uint64_t count_of(const std::string& log, const std::string& what) {
  uint64_t count = 0;
  for (size_t at = log.find(what); at != std::string::npos; at = log.find(what, at + 1)) ++count;
  return count;
}

class Drains : public testing::Test {
 protected:
  void SetUp() override { stage_.start_scheduler(); }

  std::optional<protocol::admin::ClientReport> client(const Child& child) { return stage_.client_of(child.pid()); }

  // One whose kernel never ends has the GPU, a large one waits for it, small ones come and go; SIGKILL frees all.
  void expect_others_go_on_beside(Child& endless) {
    ASSERT_TRUE(stage_.wait_until([&] { return endless.logged("spinning") || !endless.running(); }));
    Child& large = stage_.start("large", {"mix", "--seed", "2", "--hold", "120M", "--largest", "100M", "--floor", "100M"});
    for (int i = 0; i < 2; ++i) {
      Child& small = stage_.start("small-" + std::to_string(i),
                                  {"mix", "--seed", std::to_string(i), "--hold", "20M", "--largest", "8M", "--steps", "100"});
      stage_.expect_success(small);
      stage_.forget(small);
    }
    EXPECT_TRUE(stage_.wait_until([&] {
      auto seen = client(endless);
      return (seen && !seen->drainable) || !endless.running();
    }));
    auto stuck = client(endless);
    ASSERT_TRUE(stuck && endless.running()) << endless.log();
    EXPECT_GE(stuck->failed_drains, 5u);
    EXPECT_EQ(stuck->swapped, 0);
    // A client that waits says for which one.
    EXPECT_TRUE(stage_.wait_until([&] {
      auto waiting = client(large);
      return waiting && waiting->waiting_for.find("whose GPU work does not end") != std::string::npos;
    }));
    // And others go on still.
    Child& late = stage_.start("late", {"mix", "--seed", "5", "--hold", "20M", "--largest", "8M", "--steps", "100"});
    stage_.expect_success(late);
    endless.signal(SIGKILL);
    ASSERT_TRUE(endless.wait(moments()));
    stage_.forget(endless);
    EXPECT_TRUE(stage_.wait_until([&] {
      auto runs = client(large);
      return runs && runs->state == "running" && runs->allocated >= 100 << 20;
    }));
    stage_.tell_to_stop();
    stage_.expect_success(large);
    stage_.expect_gpu_unharmed();
    EXPECT_EQ(stage_.gpu_counters().used_bytes, 0u);
  }

  Stage stage_;
};

TEST_F(Drains, AKernelThatNeverEndsHoldsUpOnlyWhoNeedsItsMemory) {
  expect_others_go_on_beside(stage_.start("endless", {"endless", "--hold", "120M"}));
}

// The same, while another of its threads goes on submitting: each attempt to drain holds that one up, and lets it go on.
TEST_F(Drains, AThreadBesideAKernelThatNeverEndsGoesOn) {
  Child& endless = stage_.start("endless", {"endless", "--hold", "120M", "--threads", "1"});
  ASSERT_TRUE(stage_.wait_until([&] { return endless.logged("round ") || !endless.running(); }));
  Child& large = stage_.start("waiting", {"hold", "--hold", "120M"});
  EXPECT_TRUE(stage_.wait_until([&] {
    auto seen = client(endless);
    return (seen && seen->failed_drains >= 2) || !endless.running();
  }));
  const uint64_t rounds = count_of(endless.log(), "round ");
  EXPECT_TRUE(stage_.wait_until([&] { return count_of(endless.log(), "round ") >= rounds + 2 || !endless.running(); }));
  EXPECT_TRUE(endless.running()) << endless.log();
  EXPECT_TRUE(large.running()) << large.log();
  EXPECT_TRUE(endless.logged("did not end within")) << endless.log();
  endless.signal(SIGKILL);
  ASSERT_TRUE(endless.wait(moments()));
  stage_.forget(endless);
  stage_.tell_to_stop();
  stage_.expect_success(large);
  stage_.expect_gpu_unharmed();
}

// As an interpreter's callbacks do: the stream waits for a lock that a thread at the gate holds.
TEST_F(Drains, ACallbackThatNeedsALockOfAThreadAtTheGate) {
  Child& caller = stage_.start("caller", {"interpreter-lock", "--hold", "110M"});
  ASSERT_TRUE(stage_.wait_until([&] { return caller.logged("calling back") || !caller.running(); }));
  Child& neighbour = stage_.start("neighbour", {"mix", "--seed", "7", "--hold", "120M", "--largest", "100M", "--floor", "100M"});
  uint64_t failed = 0;
  uint64_t turns = 0;
  uint64_t neighbours = 0;
  const auto wanted = static_cast<uint64_t>(scaled(6, 3));
  EXPECT_TRUE(stage_.wait_until([&] {
    if (auto seen = client(caller)) {
      failed = seen->failed_drains;
      turns = seen->turns;
    }
    if (auto seen = client(neighbour)) neighbours = seen->turns;
    return (failed >= 1 && turns >= wanted && neighbours >= wanted) || stage_.anybody_ended();
  })) << failed
      << " failed drains, " << turns << " turns, the neighbour had " << neighbours;
  EXPECT_FALSE(stage_.anybody_ended()) << caller.log() << neighbour.log();
  stage_.tell_to_stop();
  stage_.expect_success_of_all();
  stage_.expect_gpu_unharmed();
}

TEST(Waiting, WhoWaitsLongSaysForWhom) {
  StageOptions options;
  options.switch_time = "600";  // no turn ends by itself
  Stage stage(options);
  stage.start_scheduler();
  // Its kernel runs until it is killed: it never pauses, so it keeps the GPU however slow this machine is.
  Child& holder = stage.start("holder", {"endless", "--hold", "120M"});
  ASSERT_TRUE(stage.wait_until([&] { return holder.logged("spinning") || stage.anybody_ended(); }));
  Child& waiter = stage.start("waiter", {"hold", "--hold", "120M"});
  const std::string name = "e2e_worker (pid " + std::to_string(holder.pid()) + ", tenant ";
  EXPECT_TRUE(stage.wait_until([&] { return waiter.logged("has waited for GPU 0") || stage.anybody_ended(); }));
  EXPECT_TRUE(waiter.logged(name)) << waiter.log();
  auto report = stage.client_of(waiter.pid());
  ASSERT_TRUE(report);
  EXPECT_NE(report->waiting_for.find(name), std::string::npos) << report->waiting_for;
  holder.signal(SIGKILL);
  ASSERT_TRUE(holder.wait(moments()));
  stage.forget(holder);
  stage.tell_to_stop();
  stage.expect_success(waiter);
}

// A trainer that fits beside neither a server nor a notebook, which fit beside each other: both are served within their pauses, long before
// the trainer's turn is over, and the trainer goes on. How long they wait is said, not judged: this machine may be busy.
TEST(Waiting, InteractiveProgramsAreServedInMidTurn) {
  if (kSlowness > 1) GTEST_SKIP() << "what they use while they begin, slowed by a sanitizer, counts against them for minutes";
  StageOptions options;
  options.gpu_memory_mb = 256;
  options.link_mbps = 20000;
  options.scheduler["NVSHARE_SWITCH_TIME_MODE"] = "auto";
  // No turn ends by itself within this test.
  options.scheduler["NVSHARE_SWITCH_TIME_MIN"] = "600";
  options.scheduler["NVSHARE_SWITCH_TIME_MAX"] = "900";
  Stage stage(options);
  stage.start_scheduler();
  // These come first: a newcomer would have to wait for the end of the trainer's turn. Their pauses are longer than any early release
  // waits.
  const std::string until_told = "1000000";
  Child& server = stage.start("server", {"cells", "--hold", "140M", "--busy-us", "6000", "--pause-us", "7000000", "--steps", until_told});
  Child& notebook =
      stage.start("notebook", {"cells", "--hold", "45M", "--busy-us", "1000", "--pause-us", "6000000", "--steps", until_told});
  ASSERT_TRUE(stage.wait_until([&] { return (server.logged("serving") && notebook.logged("serving")) || stage.anybody_ended(); }));
  Child& trainer = stage.start("trainer", {"mix", "--seed", "1", "--hold", "165M", "--floor", "160M", "--largest", "4M"});
  // Its first turn comes in a pause of theirs, and it has another one only if they end that. What they used while they began counts against
  // them: on a busy machine a minute or two.
  uint64_t turns = 0;
  const auto had_two = [&] {
    if (auto seen = stage.client_of(trainer.pid())) turns = seen->turns;
    return turns >= 2 || stage.anybody_ended();
  };
  EXPECT_TRUE(stage.wait_until(had_two, 4 * patience())) << "the trainer had " << turns << " turns";
  EXPECT_FALSE(stage.anybody_ended()) << server.log() << notebook.log() << trainer.log();
  stage.tell_to_stop();
  stage.expect_success_of_all();
  auto of = [](const Child& child) {
    const std::string log = child.log();
    const size_t at = log.find("waits_ms");
    return at == std::string::npos ? std::string("no waits") : log.substr(at, log.find('\n', at) - at);
  };
  std::cout << "the trainer had " << turns << " turns\nserver: " << of(server) << "\nnotebook: " << of(notebook) << "\n";
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
