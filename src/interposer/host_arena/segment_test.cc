#include "interposer/host_arena/segment.h"

#include <gtest/gtest.h>

#include <vector>

namespace nvshare::interposer {
namespace {

constexpr size_t kUnit = HostSegment::kUnitBytes;

class HostSegments : public testing::Test {
 protected:
  HostSegments() : memory_(1) {
    segment_.data = memory_.data();  // never written to
    segment_.bytes = 8 * kUnit;
  }
  size_t unit_of(const HostSlot& slot) const { return static_cast<size_t>(slot.data - segment_.data) / kUnit; }

  std::vector<char> memory_;
  HostSegment segment_;
};

TEST_F(HostSegments, GivesWholeUnitsFromTheFront) {
  HostSlot first, second;
  ASSERT_TRUE(segment_.take(1, &first));
  ASSERT_TRUE(segment_.take(kUnit + 1, &second));
  EXPECT_EQ(first.bytes, kUnit);
  EXPECT_EQ(second.bytes, 2 * kUnit);
  EXPECT_EQ(unit_of(first), 0u);
  EXPECT_EQ(unit_of(second), 1u);
  EXPECT_EQ(segment_.used_bytes(), 3 * kUnit);
}

TEST_F(HostSegments, AHoleIsUsedOnlyByWhatFits) {
  HostSlot slots[4], late;
  for (HostSlot& slot : slots) ASSERT_TRUE(segment_.take(2 * kUnit, &slot));
  EXPECT_FALSE(segment_.take(1, &late)) << "it is full";
  segment_.give_back(slots[1]);
  EXPECT_FALSE(segment_.take(3 * kUnit, &late));
  segment_.give_back(slots[3]);
  EXPECT_FALSE(segment_.take(3 * kUnit, &late)) << "there is as much, but not in one piece";
  ASSERT_TRUE(segment_.take(2 * kUnit, &late));
  EXPECT_EQ(unit_of(late), 2u);
  EXPECT_EQ(segment_.used_bytes(), 6 * kUnit);
}

TEST_F(HostSegments, HandsOutNothingWhileItLeavesOrIsNotThere) {
  HostSlot slot;
  segment_.leaving = true;
  EXPECT_FALSE(segment_.take(1, &slot));
  EXPECT_FALSE(segment_.may_go()) << "it does already";
  segment_ = HostSegment{};
  EXPECT_FALSE(segment_.take(1, &slot));
  EXPECT_FALSE(segment_.may_be_pinned());
}

TEST_F(HostSegments, OfTheLargestSizeIsUsedToItsLastUnit) {
  segment_.bytes = protocol::kArenaSegmentBytesMax;
  HostSlot slot;
  for (size_t i = 0; i < segment_.bytes / kUnit; ++i) ASSERT_TRUE(segment_.take(kUnit, &slot));
  EXPECT_EQ(unit_of(slot), segment_.bytes / kUnit - 1);
  EXPECT_EQ(segment_.used_bytes(), segment_.bytes);
  EXPECT_FALSE(segment_.take(1, &slot));
}

}  // namespace
}  // namespace nvshare::interposer
