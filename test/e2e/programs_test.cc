// What programs do besides launching kernels, while they take turns: graphs, captures, several contexts, forks, exits and resets.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

class Programs : public testing::Test {
 protected:
  void SetUp() override {
    stage_.start_scheduler();
    // A neighbour that makes everybody else take turns.
    neighbour_ = &stage_.start("neighbour", {"mix", "--seed", "99", "--hold", "120M", "--largest", "100M"});
  }
  void TearDown() override {
    stage_.tell_to_stop();
    stage_.expect_success_of_all();
    stage_.expect_gpu_unharmed();
  }

  // Until the program had so many turns, or ended.
  void run_for_turns(Child& child, int turns) {
    uint64_t had = 0;
    EXPECT_TRUE(stage_.wait_until([&] {
      if (auto client = stage_.client_of(child.pid())) had = client->turns;
      return had >= static_cast<uint64_t>(turns) || !child.running();
    })) << had
        << " turns";
    EXPECT_TRUE(child.running()) << child.log();
  }

  // Until the program stands still and some of its memory is swapped out.
  void wait_until_out(Child& child) {
    EXPECT_TRUE(stage_.wait_until([&] {
      auto client = stage_.client_of(child.pid());
      return (client && client->swapped > 0 && child.logged("standing still")) || !child.running();
    }));
    EXPECT_TRUE(child.running()) << child.log();
  }

  Stage stage_;
  Child* neighbour_ = nullptr;
};

TEST_F(Programs, GraphsReplayAcrossTurns) { run_for_turns(stage_.start("graph", {"graph", "--hold", "100M"}), scaled(30, 6)); }

TEST_F(Programs, AllocationInACapture) { run_for_turns(stage_.start("capture", {"capture-allocation", "--hold", "100M"}), scaled(20, 5)); }

TEST_F(Programs, ManyThreadsSubmitWhileDropsCome) {
  run_for_turns(stage_.start("race", {"race", "--hold", "100M", "--threads", "6"}), scaled(60, 6));
}

TEST_F(Programs, GrowingAndShrinking) { run_for_turns(stage_.start("grow", {"grow", "--hold", "120M"}), scaled(30, 6)); }

TEST_F(Programs, AllocationAtEveryMoment) {
  run_for_turns(stage_.start("churn", {"churn", "--hold", "60M", "--threads", "3"}), scaled(30, 6));
}

TEST_F(Programs, ContextDestroyedWhileSwappedOut) {
  Child& child = stage_.start("contexts", {"contexts", "--hold", "120M", "--go", stage_.go_file("contexts")});
  wait_until_out(child);
  stage_.tell_to_go("contexts");
  stage_.expect_success(child);
}

TEST_F(Programs, PrimaryContextResetWhileSwappedOut) {
  Child& child = stage_.start("reset", {"reset", "--hold", "120M", "--go", stage_.go_file("reset")});
  wait_until_out(child);
  stage_.tell_to_go("reset");
  stage_.expect_success(child);
}

TEST_F(Programs, ForksAndExecs) {
  Child& child = stage_.start("fork", {"fork", "--hold", "100M", "--steps", std::to_string(scaled(10, 3))});
  stage_.expect_success(child);
}

TEST_F(Programs, LeavingWhileSwappedOut) {
  for (const char* how : {"return", "exit", "thread-exit", "_exit", "exec", "free", "destroy", "release"}) {
    std::string name = std::string("leave-") + how;
    Child& child = stage_.start(name, {"leave", "--how", how, "--hold", "100M", "--go", stage_.go_file(name)});
    wait_until_out(child);
    stage_.tell_to_go(name);
    stage_.expect_success(child);
    EXPECT_TRUE(stage_.wait_until([&] { return !stage_.client_of(child.pid()); }, moments())) << how;
    stage_.forget(child);
  }
}

TEST_F(Programs, AbortingWhileSwappedOut) {
  Child& child = stage_.start("abort", {"leave", "--how", "abort", "--hold", "100M", "--go", stage_.go_file("abort")});
  wait_until_out(child);
  stage_.tell_to_go("abort");
  EXPECT_EQ(child.wait(patience()), 128 + SIGABRT) << child.log();
  EXPECT_TRUE(child.logged("all right")) << child.log();
  EXPECT_TRUE(stage_.wait_until([&] { return !stage_.client_of(child.pid()); }, moments()));
  stage_.forget(child);
}

TEST_F(Programs, AThousandThreadsSubmitWhileTurnsGoOn) {
  // No more work than the stand-in gets done: what it is behind with would have to be waited for at each drop.
  Child& child = stage_.start("crowd", {"crowd", "--hold", "100M", "--threads", std::to_string(scaled(1000, 100)), "--pause-us",
                                        std::to_string(100'000 * kSlowness)});
  EXPECT_TRUE(stage_.wait_until([&] { return child.logged("all began") || !child.running(); }));
  auto client = stage_.client_of(child.pid());
  run_for_turns(child, (client ? static_cast<int>(client->turns) : 0) + scaled(20, 4));
}

// Gives its turn back early when it does nothing, and finds its bytes again.
TEST_F(Programs, IdleOnesMakeRoom) {
  Child& child = stage_.start("hold", {"hold", "--hold", "120M", "--go", stage_.go_file("hold")});
  wait_until_out(child);
  usleep(300'000);
  stage_.tell_to_go("hold");
  stage_.expect_success(child);
}

}  // namespace
}  // namespace nvshare::e2e
