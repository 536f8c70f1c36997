// Memory moved in the first context of a process, whatever had become of it. After that had failed for good, another context's memory
// stayed on the GPU, whoever waited for it, or was not there when the program ran.
#include <gtest/gtest.h>

#include <algorithm>

#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

TEST(Regressions, AFailedContextKeepsNobodysMemory) {
  Stage stage;
  stage.start_scheduler();
  Child& child = stage.start("failing", {"failing-context", "--hold", "110M"});
  ASSERT_TRUE(stage.wait_until([&] { return child.logged("one failed") || stage.anybody_ended(); }));
  Child& neighbour = stage.start("neighbour", {"mix", "--hold", "110M", "--largest", "80M"});
  int64_t most = 0;
  EXPECT_TRUE(stage.wait_until([&] {
    const auto client = stage.client_of(child.pid());
    const auto other = stage.client_of(neighbour.pid());
    if (client) most = std::max(most, client->swapped);
    return (client && other && client->turns >= 4 && other->turns >= 4 && most > 0) || stage.anybody_ended();
  })) << most
      << " bytes at most were swapped out: " << stage.raw_status();
  stage.tell_to_stop();
  stage.expect_success_of_all();
  EXPECT_EQ(stage.gpu_counters().faults, 1u) << "the one that was meant";
}

// One that fails while memory comes in by it leaves pieces that may hold anything: they come in once more, by another.
TEST(Regressions, AContextThatFailsWhileMemoryComesInLosesNothingOfTheOthers) {
  Stage stage;
  stage.start_scheduler();
  Child& first = stage.start("first", {"failing-context", "--by", "load", "--hold", "110M"});
  Child& second = stage.start("second", {"failing-context", "--by", "load", "--hold", "110M"});
  ASSERT_TRUE(stage.wait_for_turns({&first, &second}, 2)) << stage.raw_status();
  stage.order_gpu("set_faults copy_breaks");
  EXPECT_TRUE(stage.wait_until([&] { return stage.gpu_counters().faults > 0 || stage.anybody_ended(); }));
  EXPECT_TRUE(stage.wait_for_turns({&first, &second}, 3)) << stage.raw_status();
  EXPECT_TRUE(first.logged("copying in failed") || second.logged("copying in failed")) << "nothing was tested";
  stage.tell_to_stop();
  stage.expect_success_of_all();
}

}  // namespace
}  // namespace nvshare::e2e
