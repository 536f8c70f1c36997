// cuMemRangeGetAttributes had no hook, while cuMemRangeGetAttribute had: with the backend `managed` it answered for plain memory, which is
// managed memory there, and which a driver refuses.
#include <gtest/gtest.h>

#include "e2e/harness/stage.h"

namespace nvshare::e2e {
namespace {

class RangesOfPlainMemory : public testing::TestWithParam<const char*> {};

TEST_P(RangesOfPlainMemory, HaveNoAttributes) {
  Stage stage;
  stage.start_scheduler();
  Child& bare = stage.start_bare("bare", {"range-attributes"});
  stage.expect_success(bare);
  Child& child = stage.start("ranges", {"range-attributes"}, {{"NVSHARE_MEMORY_BACKEND", GetParam()}});
  stage.expect_success(child);
}

INSTANTIATE_TEST_SUITE_P(Regressions, RangesOfPlainMemory, testing::Values("vmm", "managed", "none"),
                         [](const auto& backend) { return std::string(backend.param); });

}  // namespace
}  // namespace nvshare::e2e
