#include "interposer/swap/copies/retained_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace nvshare::interposer {
namespace {

constexpr size_t kWords = kHashUnitBytes / sizeof(uint64_t);

std::vector<uint64_t> unit(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> words(kWords);
  for (uint64_t& word : words) word = random();
  return words;
}

bool both_lanes_differ(const ChunkHash& a, const ChunkHash& b) { return a.first != b.first && a.second != b.second; }

// The kernel on the GPU and the stand-in's must give the same: what changes here changes there.
TEST(ChunkHash, IsWhatItWas) {
  std::vector<uint64_t> words(kWords);
  for (size_t i = 0; i < kWords; ++i) words[i] = i;
  const ChunkHash counting = hash_unit(words.data());
  EXPECT_EQ(counting.first, 0xe858b44b2a70f26bu) << std::hex << counting.first;
  EXPECT_EQ(counting.second, 0xba91b0cf305ec6e5u) << std::hex << counting.second;
}

TEST(ChunkHash, TellsEveryBitAndEveryPlace) {
  std::vector<uint64_t> words = unit(1);
  const ChunkHash before = hash_unit(words.data());
  std::mt19937_64 random(2);
  for (int i = 0; i < 200; ++i) {
    const size_t at = i == 0 ? 0 : (i == 1 ? kWords - 1 : random() % kWords);
    const uint64_t bit = uint64_t{1} << random() % 64;
    words[at] ^= bit;
    EXPECT_TRUE(both_lanes_differ(before, hash_unit(words.data()))) << at << " " << bit;
    words[at] ^= bit;
  }
  EXPECT_EQ(before, hash_unit(words.data()));
  for (const size_t distance : {size_t{1}, size_t{2}, size_t{512}, kWords / 2}) {  // in a thread, among threads, steps apart
    std::swap(words[4], words[4 + distance]);
    EXPECT_TRUE(both_lanes_differ(before, hash_unit(words.data()))) << distance;
    std::swap(words[4], words[4 + distance]);
  }
}

// As memory often is: the same bit of every word, or of two that follow each other.
TEST(ChunkHash, TellsChangesWithAPattern) {
  std::vector<uint64_t> words(kWords, 0);
  std::vector<ChunkHash> seen{hash_unit(words.data())};
  auto is_new = [&] {
    const ChunkHash now = hash_unit(words.data());
    for (const ChunkHash& earlier : seen) EXPECT_TRUE(both_lanes_differ(earlier, now));
    seen.push_back(now);
  };
  for (int bit = 0; bit < 64; bit += 7) {
    std::fill(words.begin(), words.end(), uint64_t{1} << bit);
    is_new();
  }
  for (int bit = 0; bit < 64; bit += 7) {
    std::fill(words.begin(), words.end(), 0);
    words[2] = words[3] = uint64_t{1} << bit;
    is_new();
  }
}

TEST(ChunkHash, OfSeveralUnitsTellsTheirOrderAndNumber) {
  const std::vector<ChunkHash> units{hash_unit(unit(1).data()), hash_unit(unit(2).data()), ChunkHash{}};
  const std::vector<ChunkHash> swapped{units[1], units[0], units[2]};
  EXPECT_TRUE(both_lanes_differ(join_units(units.data(), 2), join_units(swapped.data(), 2)));
  EXPECT_TRUE(both_lanes_differ(join_units(units.data(), 2), join_units(units.data(), 3)));
  EXPECT_TRUE(both_lanes_differ(join_units(units.data(), 1), join_units(units.data() + 1, 1)));
}

class KeptCopies : public testing::Test {
 protected:
  // It leaves with these bytes, and comes in again. Whether it was copied.
  bool leaves(uint64_t bytes, bool has_room = true) {
    const ChunkHash now{bytes, ~bytes};
    if (!copy.wants_hash()) {
      copy.slot = HostSlot{};
      copy.copied(nullptr);
      return true;
    }
    ++hashed;
    const bool same = copy.is_true(now);
    if (same) {
      copy.unchanged();
    } else {
      copy.copied(&now);
    }
    copy.slot.data = copy.known && has_room ? &place : nullptr;
    return !same;
  }
  RetainedCopy copy;
  char place = 0;
  int hashed = 0;
};

TEST_F(KeptCopies, LeaveWithoutACopyWhileTheyAreTrue) {
  EXPECT_TRUE(leaves(1));
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(leaves(1));
  EXPECT_TRUE(leaves(2));
  EXPECT_FALSE(leaves(2));
}

TEST_F(KeptCopies, AreCopiedAgainWhereTheyWereGivenBack) {
  EXPECT_TRUE(leaves(1));
  EXPECT_FALSE(leaves(1, false));
  EXPECT_TRUE(leaves(1));
  EXPECT_FALSE(leaves(1));
}

TEST_F(KeptCopies, ThatChangeEachTimeAreSeldomHashed) {
  for (uint64_t i = 0; i < 400; ++i) EXPECT_TRUE(leaves(i));
  EXPECT_LE(hashed, 400 / 6);
  EXPECT_GE(hashed, 400 / 16);
  // Once they change no more they leave without a copy again, after a rest at most.
  int copied = 0;
  for (int i = 0; i < 40; ++i) copied += leaves(1000) ? 1 : 0;
  EXPECT_LE(copied, RetainedCopy::kRest + 2);
  EXPECT_FALSE(leaves(1000));
}

TEST_F(KeptCopies, ThatChangeNowAndThenAreHashedEachTime) {
  for (uint64_t i = 0; i < 100; ++i) leaves(i / 2);
  EXPECT_EQ(hashed, 100);
}

}  // namespace
}  // namespace nvshare::interposer
