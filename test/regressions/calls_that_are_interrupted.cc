// A signal that came while a program registered counted as a scheduler that does not answer: the program ran unshared, and saw a GPU
// without its limit. A thread that was cancelled while it waited in a call took locks of the library's with it. A program whose descriptors
// were all in use when it made its first context ran unshared, or was shared by a thread that nobody could wake.
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

TEST(Regressions, ASignalDoesNotTakeAProgramsScheduler) {
  Stage stage;
  stage.start_scheduler();
  // So that its answers take longer than a signal.
  stage.scheduler().signal(SIGSTOP);
  Child& child = stage.start("signals", {"signals"}, {{"NVSHARE_LOG_LEVEL", "debug"}});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  stage.scheduler().signal(SIGCONT);
  ASSERT_TRUE(stage.wait_until([&] { return child.logged("the GPU has") || stage.anybody_ended(); }));
  stage.scheduler().signal(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  stage.scheduler().signal(SIGCONT);
  stage.expect_success(child);
  EXPECT_FALSE(child.logged("no nvshare-scheduler answers")) << child.log();
  EXPECT_FALSE(child.logged("does not answer")) << child.log();
  stage.expect_gpu_unharmed();
}

TEST(Regressions, ASignalDoesNotTakeTheLimitFromWhatAProgramSees) {
  Stage stage;
  stage.start_scheduler();
  stage.make_tenant("limited", getpid(), int64_t{64} << 20);
  stage.scheduler().signal(SIGSTOP);
  Child& child = stage.start("signals", {"signals"});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  stage.scheduler().signal(SIGCONT);
  stage.expect_success(child);
  EXPECT_TRUE(child.logged("the GPU has 64 MiB")) << child.log();
}

// It had kept captures off for its wait, and was over before it let them go on.
TEST(Regressions, AThreadThatIsCancelledInAFreeKeepsNoCaptureOff) {
  Stage stage;
  stage.start_scheduler();
  Child& child = stage.start("cancelled", {"cancelled-in-a-free"});
  stage.expect_success(child);
  stage.expect_gpu_unharmed();
}

TEST(Regressions, AThreadThatIsCancelledWhileItWaitsTakesNoLockAlong) {
  Stage stage;
  stage.start_scheduler();
  Child& neighbour = stage.start("neighbour", {"mix", "--hold", "110M", "--largest", "80M"});
  const auto neighbour_has_the_gpu = [&] {
    const auto client = stage.client_of(neighbour.pid());
    return (client && client->resident > (int64_t{90} << 20)) || stage.anybody_ended();
  };
  ASSERT_TRUE(stage.wait_until(neighbour_has_the_gpu)) << stage.raw_status();
  Child& child = stage.start("cancelled", {"cancelled", "--hold", "40M", "--grow", "100M", "--go", stage.go_file("grow")});
  ASSERT_TRUE(stage.wait_until([&] { return child.logged("standing still") || stage.anybody_ended(); }));
  ASSERT_TRUE(stage.wait_until(neighbour_has_the_gpu)) << stage.raw_status();  // again: the other one had its turn to fill its memory
  neighbour.signal(SIGSTOP);                                                   // it gives nothing back for now
  stage.tell_to_go("grow");
  const auto goes_on = [&] { return child.logged("cancels") || child.logged("it did not wait") || stage.anybody_ended(); };
  ASSERT_TRUE(stage.wait_until(goes_on)) << child.log();
  const bool waited = child.logged("cancels");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  neighbour.signal(SIGCONT);
  stage.expect_success(child);
  EXPECT_TRUE(child.logged("its call returned")) << child.log();
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
  if (!waited && !HasFailure()) GTEST_SKIP() << "the neighbour had no turn when it was stopped, so the call did not have to wait";
}

// It is shared, or gets no GPU and is told why.
TEST(Regressions, WithoutDescriptorsNoProgramRunsUnshared) {
  int shared = 0, refused = 0;
  for (int spare = 0; spare < 6; ++spare) {
    Stage stage;
    stage.start_scheduler();
    Child& child = stage.start("few", {"few-descriptors", "--spare", std::to_string(spare)});
    stage.expect_success(child);
    EXPECT_FALSE(child.logged("unshared")) << spare << ": " << child.log();
    const bool runs = child.logged("the first context: 0");
    shared += runs ? 1 : 0;
    if (runs) continue;
    ++refused;
    EXPECT_TRUE(child.logged("the first context: 800")) << spare << ": " << child.log();
    EXPECT_TRUE(child.logged("open files")) << spare << ": " << child.log();
  }
  EXPECT_GE(shared, 1);
  EXPECT_GE(refused, 1);
}

TEST(Regressions, WithoutThreadsNoProgramRunsUnshared) {
  Stage stage;
  stage.start_scheduler();
  Child& child = stage.start("threadless", {"no-threads"});
  stage.expect_success(child);
  EXPECT_FALSE(child.logged("unshared")) << child.log();
  EXPECT_TRUE(child.logged("the handle: 800")) << child.log();
  EXPECT_TRUE(child.logged("no thread can be started")) << child.log();
}

// What the library tells ended the program, or kept its thread, where nobody read it.
TEST(Regressions, LinesThatNobodyReadsHurtNoProgram) {
  Stage stage;
  stage.start_scheduler();
  for (const char* full : {"0", "1"}) {
    for (const char* signals : {"0", "1"}) {
      stage.expect_success(stage.start("unread", {"unread", "--full", full, "--signals", signals}, {{"NVSHARE_GPU_MEMORY_LIMIT", "16Mi"}}));
    }
  }
}

// Where nobody listens none are needed.
TEST(Regressions, WithoutDescriptorsAndSchedulerAProgramRunsUnshared) {
  Stage stage;
  Child& child = stage.start("few", {"few-descriptors"});
  stage.expect_success(child);
  EXPECT_TRUE(child.logged("the first context: 0")) << child.log();
}

}  // namespace
}  // namespace nvshare::e2e
