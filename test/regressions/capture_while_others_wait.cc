// While somebody waits for the GPU, submissions are paced with events. One of them was recorded on the stream that had just begun to
// capture, and queries of others ruined captures in global mode. And an allocation inside a capture waited for memory that only a drain
// could free, which itself waited for the capture's end.
#include <gtest/gtest.h>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

void run_beside_a_neighbour(const Arguments& arguments) {
  Stage stage;
  stage.start_scheduler();
  stage.start("neighbour", {"mix", "--hold", "120M", "--largest", "100M"});
  Child& child = stage.start("captures", arguments);
  uint64_t turns = 0;
  EXPECT_TRUE(stage.wait_until([&] {
    if (auto client = stage.client_of(child.pid())) turns = client->turns;
    return turns >= static_cast<uint64_t>(scaled(20, 4)) || stage.anybody_ended();
  })) << turns
      << " turns";
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

TEST(Regressions, CapturesOfOneThreadWhileAnotherSubmits) { run_beside_a_neighbour({"recapture", "--hold", "120M"}); }

TEST(Regressions, AllocationInACaptureThatWaitsForRoom) { run_beside_a_neighbour({"capture-allocation", "--hold", "120M"}); }

}  // namespace
}  // namespace nvshare::e2e
