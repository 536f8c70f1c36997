// A child was forked while another thread held a mutex of what is known of graphs (pools and green contexts had the same): whatever it gave
// back in its exit handlers hung, although the driver's answer to a forked child is an error at once.
#include <gtest/gtest.h>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

TEST(Regressions, AForkedChildDoesNotWaitForThreadsThatItHasNot) {
  Stage stage;
  stage.start_scheduler();
  Child& child = stage.start("forks", {"fork-beside-graphs", "--steps", std::to_string(scaled(150, 30))});
  stage.expect_success(child);
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
