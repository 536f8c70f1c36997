// An allocation that decided, without the lock, to be an address only, and was entered into the books after the swap engine had brought in
// everything for the next turn, had no memory while the program ran: its first use was a fault.
#include <gtest/gtest.h>

#include "e2e/harness/random.h"
#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

// A program's first turn begins while its threads allocate.
TEST(Regressions, AllocationAsATurnBegins) {
  Stage stage;
  stage.start_scheduler();
  for (int i = 0; i < scaled(25, 6); ++i) {
    Child& child = stage.start("churn-" + std::to_string(i), {"churn", "--threads", "8", "--rounds", "3", "--hold", "0"});
    stage.expect_success(child);
    stage.forget(child);
  }
  stage.expect_gpu_unharmed();
}

}  // namespace
}  // namespace nvshare::e2e
