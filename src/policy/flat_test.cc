#include "policy/flat.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace nvshare::policy {
namespace {

using Pair = std::pair<int64_t, uint64_t>;

template <typename Index, typename Of>
void expect_same(const Index& index, const Of& expected) {
  ASSERT_EQ(index.size(), expected.size());
  EXPECT_TRUE(std::equal(index.begin(), index.end(), expected.begin(), expected.end()));
  EXPECT_TRUE(std::equal(index.rbegin(), index.rend(), expected.rbegin(), expected.rend()));
}

TEST(Flat, HasWhatATreeHas) {
  std::mt19937_64 random(1);
  for (const uint64_t keys : {3U, 50U, 3000U}) {
    FlatSet<Pair> index;
    std::set<Pair> expected;
    for (int i = 0; i < 20'000; ++i) {
      const Pair key{static_cast<int64_t>(random() % keys), random() % 2};
      if (random() % (i / 5'000 % 2 == 0 ? 3 : 2) != 0) {  // it becomes long, and short again
        ASSERT_EQ(index.insert(key), expected.insert(key).second);
      } else {
        ASSERT_EQ(index.erase(key), expected.erase(key));
      }
      ASSERT_EQ(index.contains(key), expected.contains(key));
      const Pair other{static_cast<int64_t>(random() % keys), random() % 2};
      ASSERT_EQ(std::distance(index.begin(), index.lower_bound(other)), std::distance(expected.begin(), expected.lower_bound(other)));
      ASSERT_EQ(std::distance(index.begin(), index.upper_bound(other)), std::distance(expected.begin(), expected.upper_bound(other)));
      if (i % 500 == 0) expect_same(index, expected);
    }
    expect_same(index, expected);
    while (!expected.empty()) {
      index.erase(index.begin());
      expected.erase(expected.begin());
      if (expected.size() % 100 == 0) expect_same(index, expected);
    }
    EXPECT_EQ(index.begin(), index.end());
  }
}

TEST(Flat, AMapKeepsTheFirstOfAKey) {
  FlatMap<uint64_t, int> index;
  EXPECT_EQ(index.find(1), index.end());
  for (uint64_t key = 1000; key > 0; --key) EXPECT_TRUE(index.emplace(key, static_cast<int>(key)));
  EXPECT_FALSE(index.emplace(7, 1));
  EXPECT_EQ(index.at(7), 7);
  EXPECT_EQ(index.size(), 1000U);
  index.clear();
  EXPECT_TRUE(index.empty());
  EXPECT_EQ(index.find(7), index.end());
}

// As a tree does whose iterator has gone on before the entry changes.
TEST(Flat, GoesThroughEntriesThatChange) {
  FlatMap<uint64_t, int> index;
  for (uint64_t key = 10; key <= 1000; key += 10) index.emplace(key, static_cast<int>(key));
  std::vector<int> seen;
  each_while_changing(index, [&](int value) {
    seen.push_back(value);
    const auto key = static_cast<uint64_t>(value);
    if (value % 20 == 0) index.erase(key);
    index.emplace(key + 5, 0);  // before the next one, or behind the last one
  });
  ASSERT_EQ(seen.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], 10 * (i + 1));
  EXPECT_EQ(index.size(), 150U);
}

TEST(Flat, ATableFindsWhatIsInIt) {
  std::mt19937_64 random(2);
  std::vector<int> numbers(500);
  PointerTable<int> table;
  std::map<uint64_t, int*> expected;
  EXPECT_EQ(table.find(0), nullptr);
  for (int i = 0; i < 50'000; ++i) {
    const uint64_t key = random() % numbers.size() << (i % 3 * 20);  // some of which fall together
    if (expected.contains(key)) {
      table.erase(key);
      expected.erase(key);
    } else {
      int* const number = &numbers[random() % numbers.size()];
      table.insert(key, number);
      expected.emplace(key, number);
    }
    ASSERT_EQ(table.size(), expected.size());
    if (i % 500 != 0) continue;
    for (uint64_t other = 0; other < numbers.size(); ++other) {
      for (const int shift : {0, 20, 40}) {
        const auto at = expected.find(other << shift);
        ASSERT_EQ(table.find(other << shift), at == expected.end() ? nullptr : at->second);
      }
    }
  }
}

}  // namespace
}  // namespace nvshare::policy
