// A program that used two GPUs and ended its context on one of them was still asked to get that GPU's lock before it went on with the
// other. Without a context nothing could be brought in there, so the lock went back, was asked for again, and so on for ever.
#include <gtest/gtest.h>

#include <algorithm>

#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

TEST(Regressions, AGpuThatWasGivenUpHoldsNothingUp) {
  StageOptions options;
  options.switch_time = "0.2";
  options.gpu = {{"SIMGPU_COUNT", "2"}};
  Stage stage(options);
  stage.start_scheduler();
  Child& leaver = stage.start("leaver", {"leave-gpu", "--hold", "110M"});
  ASSERT_TRUE(stage.wait_until([&] { return leaver.logged("both") || stage.anybody_ended(); }));
  for (const char* gpu : {"0", "1"}) {
    stage.start(std::string("neighbour-") + gpu, {"meet", "--gpus", gpu, "--meeting", stage.directory() + "/meeting-" + gpu, "--parties",
                                                  "1", "--leads", "1", "--hold", "110M"});
  }
  ASSERT_TRUE(stage.wait_until([&] { return leaver.logged("left") || stage.anybody_ended(); }));
  // It goes on taking turns with its neighbour on the second GPU.
  auto turns = [&] {
    uint64_t seen = 0;
    auto report = stage.status();
    if (!report) return seen;
    for (const auto& client : report->clients) {
      if (client.pid == leaver.pid() && report->gpus.size() > 1 && client.gpu == report->gpus[1].uuid) seen = client.turns;
    }
    return seen;
  };
  const uint64_t before = turns();
  EXPECT_TRUE(stage.wait_until([&] { return turns() >= before + 3 || stage.anybody_ended(); })) << turns() - before << " turns";
  stage.tell_to_stop();
  stage.expect_success_of_all();
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
