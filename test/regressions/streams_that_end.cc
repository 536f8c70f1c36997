// What the library remembered of a stream outlived it: a capture whose stream or context was destroyed stayed counted, so that the program
// never drained again; memory freed in the order of a destroyed stream went to the next stream with its handle while the old one's work
// still wrote to it. And stream-ordered calls took the current context instead of the stream's.
#include <gtest/gtest.h>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

class StreamsThatEnd : public testing::TestWithParam<int> {};

TEST_P(StreamsThatEnd, LeaveNothingBehind) {
  StageOptions options;
  options.gpu["SIMGPU_COUNT"] = std::to_string(GetParam());
  Stage stage(options);
  stage.start_scheduler();
  Child& child = stage.start("streams", {"streams", "--hold", "110M"});
  EXPECT_TRUE(stage.wait_until([&] { return child.logged("streams done") || stage.anybody_ended(); }));
  // It drains, again and again.
  Child& neighbour = stage.start("neighbour", {"mix", "--hold", "120M", "--largest", "100M"});
  EXPECT_TRUE(stage.wait_until([&] {
    auto client = stage.client_of(neighbour.pid());
    return (client && client->turns >= 2) || stage.anybody_ended();
  }));
  EXPECT_FALSE(child.logged("the handle is another one")) << "nothing was tested";
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

INSTANTIATE_TEST_SUITE_P(Regressions, StreamsThatEnd, testing::Values(1, 2),
                         [](const auto& gpus) { return gpus.param == 1 ? "OnOneGpu" : "OnTwoGpus"; });

}  // namespace
}  // namespace nvshare::e2e
