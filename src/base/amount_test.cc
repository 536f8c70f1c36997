#include "base/amount.h"

#include <gtest/gtest.h>

namespace nvshare {
namespace {

TEST(Amount, IsOfThreeDigitsAtMost) {
  EXPECT_STREQ(amount(0).text, "0 B");
  EXPECT_STREQ(amount(1023).text, "1023 B");
  EXPECT_STREQ(amount(1536).text, "1.5 KiB");
  EXPECT_STREQ(amount(100 << 10).text, "100 KiB");
  EXPECT_STREQ(amount(uint64_t{2} << 20).text, "2 MiB");
  EXPECT_STREQ(amount((uint64_t{1} << 30) - 1).text, "1 GiB");
  EXPECT_STREQ(amount((uint64_t{12} << 30) + (uint64_t{300} << 20)).text, "12.3 GiB");
  EXPECT_STREQ(amount(uint64_t{141} << 30).text, "141 GiB");
  EXPECT_STREQ(amount(UINT64_MAX).text, "16 EiB");
}

}  // namespace
}  // namespace nvshare
