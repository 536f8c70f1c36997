#include "cli/units.h"

#include <gtest/gtest.h>

namespace nvshare::cli {
namespace {

TEST(Units, BytesHaveThreeDigitsAndABinaryUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(384ull << 20), "384 MiB");
  EXPECT_EQ(format_bytes(143771ull << 20), "140 GiB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "16 EiB");
}

TEST(Units, BytesNeverShowFourDigitsOfAUnit) {
  EXPECT_EQ(format_bytes((1ull << 20) - 1), "1 MiB");
  EXPECT_EQ(format_bytes((1ull << 30) - 1), "1 GiB");
  EXPECT_EQ(format_bytes(1023ull << 10), "1023 KiB");
}

TEST(Units, DurationsAreSaidAsOneWould) {
  EXPECT_EQ(format_duration(-5), "0 s");
  EXPECT_EQ(format_duration(999), "<1 ms");
  EXPECT_EQ(format_duration(850'000'000), "850 ms");
  EXPECT_EQ(format_duration(999'900'000), "1 s");
  EXPECT_EQ(format_duration(12'340'000'000), "12.3 s");
  EXPECT_EQ(format_duration(59'990'000'000), "1 min 00 s");
  EXPECT_EQ(format_duration(185'000'000'000), "3 min 05 s");
  EXPECT_EQ(format_duration(7'620'000'000'000), "2 h 07 min");
  EXPECT_EQ(format_duration(273'600'000'000'000), "3 d 04 h");
}

}  // namespace
}  // namespace nvshare::cli
