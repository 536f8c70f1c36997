#include "policy/sharing/share_gain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace nvshare::policy {
namespace {

// Two that work all the time, and a third whose requests each take as much from both as they are worth.
struct Spells {
  SpellPieces pieces;
  void add(size_t way, int64_t first, int64_t second, int64_t requests) { pieces[way].push_back({{1, first}, {2, second}, {3, requests}}); }
};

TEST(ShareGain, IsThatOfTheMeansAndSureWhereThePiecesAgree) {
  Spells spells;
  for (int piece = 0; piece < 5; ++piece) spells.add(0, 450'000, 450'000, 0);
  for (int piece = 0; piece < 5; ++piece) spells.add(1, 500'000, 500'000, 0);
  const ShareGain gain = gain_of(spells.pieces, {});
  EXPECT_NEAR(static_cast<double>(gain.ratio), 11'111, 5);
  EXPECT_TRUE(gain.is_sure_of(gain.ratio - kGainParts));
}

TEST(ShareGain, IsUnsureWhereThePiecesDiffer) {
  Spells spells;
  const int64_t uneven[] = {100'000, 900'000, 200'000, 800'000, 250'000};
  for (const int64_t rate : uneven) spells.add(0, rate, rate, 0);
  for (const int64_t rate : uneven) spells.add(1, rate + 50'000, rate + 50'000, 0);
  const ShareGain gain = gain_of(spells.pieces, {});
  EXPECT_GT(gain.ratio, kGainParts * 108 / 100);
  EXPECT_FALSE(gain.is_sure_of(gain.ratio - kGainParts));
}

// Requests that came in one of the spells only made turns look better or worse by as much as they took.
TEST(ShareGain, RequestsThatFallIntoOneSpellMakeNoDifference) {
  std::mt19937 random;
  for (int i = 0; i < 100; ++i) {
    Spells spells;
    for (size_t way = 0; way < 2; ++way) {
      for (int piece = 0; piece < 5; ++piece) {
        const auto part = static_cast<int64_t>(random() % (way == 0 ? 7 : 4));  // of ten, that requests have
        const int64_t left = (way == 0 ? 45'000 : 50'000) * (10 - part);
        spells.add(way, left, left, part * 1000);
      }
    }
    const ShareGain gain = gain_of(spells.pieces, {{3, 0}});
    EXPECT_NEAR(static_cast<double>(gain.ratio), 11'111, 500) << i;
  }
}

// As in seed 1 of "2 that pause between steps, 2 servers" (share_latency_test.cc): one server was busy for all of the first spell and idle
// in the second, the other did next to nothing, once.
TEST(ShareGain, AServerThatDidNextToNothingHidesNotWhatAnotherTook) {
  Spells spells;
  const int64_t busy[] = {17'933, 18'083, 17'783, 18'450, 11'300};
  const int64_t left[] = {34'133, 34'416, 34'699, 34'066, 41'199};
  for (size_t piece = 0; piece < 5; ++piece) spells.add(0, left[piece] / 2, left[piece] / 2, busy[piece]);
  for (int piece = 0; piece < 5; ++piece) spells.add(1, 24'300 + piece * 50, 24'300 + piece * 50, 0);
  for (size_t way = 0; way < 2; ++way)
    for (PieceRates& piece : spells.pieces[way]) piece[4] = way == 0 && &piece == &spells.pieces[0].front() ? 450 : 0;
  EXPECT_LT(gain_of(spells.pieces, {{3, 0}, {4, 0}}).ratio, kGainParts * 103 / 100) << "1.33 if both count as one";
}

// Its requests were the same in all of the first spell: what they took cannot be told from what the way did.
TEST(ShareGain, IsUnsureWhereAServerWasBusyInAllOfOneSpellOnly) {
  Spells spells;
  for (int piece = 0; piece < 5; ++piece) spells.add(0, 300'000, 300'000, 30'000);
  for (int piece = 0; piece < 5; ++piece) spells.add(1, 450'000, 450'000, 0);
  const ShareGain gain = gain_of(spells.pieces, {{3, 0}});
  EXPECT_FALSE(gain.is_sure_of(gain.ratio - kGainParts));
  EXPECT_TRUE(gain.is_vague());
  for (PieceRates& piece : spells.pieces[0]) piece[3] = 0;
  const ShareGain without = gain_of(spells.pieces, {{3, 0}});
  EXPECT_TRUE(without.is_sure_of(without.ratio - kGainParts));
  EXPECT_FALSE(without.is_vague());
}

// More servers than are told from each other.
TEST(ShareGain, ManyServersTogetherMakeNoDifferenceOnAverage) {
  std::mt19937 random;
  double sum = 0;
  for (int i = 0; i < 200; ++i) {
    Spells spells;
    for (size_t way = 0; way < 2; ++way) {
      for (int piece = 0; piece < 5; ++piece) {
        spells.add(way, 0, 0, 0);
        int64_t left = 100;
        for (ClientId id = 3; id < 11; ++id) {
          const auto part = static_cast<int64_t>(random() % (way == 0 ? 13 : 6));
          spells.pieces[way].back()[id] = part * 1000;
          left -= part;
        }
        for (const ClientId id : {1, 2}) spells.pieces[way].back()[id] = (way == 0 ? 4'500 : 5'000) * left;
      }
    }
    std::map<ClientId, int> seldom;
    for (ClientId id = 3; id < 11; ++id) seldom[id] = 0;
    sum += static_cast<double>(gain_of(spells.pieces, seldom).ratio) / 200;
  }
  EXPECT_NEAR(sum, 11'111, 300) << "17'094 if nothing were put aside";
}

// Their levels differ between the ways as they please: who took what cannot be told, so nothing may look sure. Both ways do the same here,
// and one of the two servers takes all that is taken.
TEST(ShareGain, IsUnsureOfServersWhoseRequestsComeInStep) {
  const int64_t step[] = {-2000, -1000, 0, 1000, 2000}, apart[] = {1, -2, 0, 2, -1}, noise[] = {800, -500, 300, -700, 100};
  for (const int64_t own : {0, 300, 600}) {
    for (const int64_t takes_nothing : {5000, -5000}) {
      Spells spells;
      for (size_t way = 0; way < 2; ++way) {
        for (size_t piece = 0; piece < 5; ++piece) {
          const int64_t side = way == 0 ? -1 : 1;
          const int64_t idle = 5000 + side * takes_nothing / 2 + step[piece],
                        busy = 5000 - side * 1900 + step[piece] + own * apart[piece] / 2;
          const int64_t left = 450'000 - 450'000 * busy / 20'000 + noise[(piece + 2 * way) % 5];
          spells.add(way, left, left, idle);
          spells.pieces[way].back()[4] = busy;
        }
      }
      const ShareGain gain = gain_of(spells.pieces, {{3, 0}, {4, 0}});
      EXPECT_TRUE(gain.is_vague() || !(gain.ratio > kGainParts * 103 / 100 && gain.is_sure_of(gain.ratio - kGainParts)))
          << gain.ratio << " " << own;
      if (own == 0) {
        EXPECT_TRUE(gain.is_vague());
      }
    }
  }
}

// What it says of its requests goes with what the others get done, and is another in each way.
TEST(ShareGain, OneThatLiesOfItsRequestsMovesItAsMuchAsOneClient) {
  Spells spells;
  for (int piece = 0; piece < 5; ++piece) spells.add(0, 450'000 + piece * 1000, 450'000 + piece * 1000, 5 - piece);
  for (int piece = 0; piece < 5; ++piece) spells.add(1, 450'000 + piece * 1000, 450'000 + piece * 1000, 1'000'005 - piece);
  const ShareGain gain = gain_of(spells.pieces, {{3, 0}});
  EXPECT_GT(gain.ratio, 0);
  EXPECT_LE(gain.ratio, 3 * kGainParts) << "(2 + 1) / (2 - 1)";
}

// What counts of it is how its pieces differ from their mean.
TEST(ShareGain, OneThatSaysThatItDidEndlesslyMuchWeighsAsMuchAsAnother) {
  for (const int64_t lie : {int64_t{1'000'000'000}, int64_t{1} << 40, std::numeric_limits<int64_t>::max()}) {
    for (const size_t way : {size_t{0}, size_t{1}}) {
      Spells spells;
      for (size_t each = 0; each < 2; ++each) {
        for (int piece = 0; piece < 5; ++piece) {
          const bool lies = each == way && piece % 2 == 1;
          spells.add(each, 450'000, 450'000, 0);
          spells.pieces[each].back()[2] = lies ? lie : 0;
        }
      }
      const ShareGain gain = gain_of(spells.pieces, {});
      EXPECT_GE(gain.ratio, kGainParts / 3 - 1) << "1 / (1 + 2)";
      EXPECT_LE(gain.ratio, kGainParts * 3 + 1);
      const ShareGain of_requests = gain_of(spells.pieces, {{2, 0}});
      EXPECT_GE(of_requests.ratio, 0);
      EXPECT_LE(of_requests.ratio, 3 * kGainParts);
    }
  }
}

TEST(GainPool, WeighsTrialsByHowSureTheyAre) {
  GainPool pool;
  pool.add({10'500, 100 * 100});
  pool.add({9'000, 1000 * 1000});
  EXPECT_NEAR(static_cast<double>(pool.ratio()), 10'470, 20);
  EXPECT_EQ(pool.trials(), 2);
}

TEST(GainPool, BeginsAnewWithOneThatDoesNotGoWithThoseBefore) {
  GainPool pool;
  for (int i = 0; i < 10; ++i) pool.add({11'000, 100 * 100});
  pool.add({10'000, 100 * 100});
  EXPECT_EQ(pool.ratio(), 10'000);
  EXPECT_EQ(pool.trials(), 1);
}

// A way that is 3 % worse and wins one trial in four by chance, as trials differ by 8 %, wins two in sum in less than one in five.
TEST(GainPool, NoiseWinsSeldom) {
  const auto wins_of = [](size_t trials) {
    std::mt19937 random;
    int wins = 0;
    for (int i = 0; i < 2000; ++i) {
      GainPool pool;
      for (size_t each = 0; each < trials; ++each) {
        int64_t noise = 0;  // of a standard deviation of 8 %
        for (int part = 0; part < 12; ++part) noise += static_cast<int64_t>(random() % 1601) - 800;
        pool.add({9'700 + noise / 2 * 866 / 800, 800 * 800});
      }
      wins += pool.ratio() > 10'300;
    }
    return wins;
  };
  const int once = wins_of(1);
  EXPECT_GT(once, 2000 / 8);
  EXPECT_LT(wins_of(2), 2000 / 5);
  EXPECT_LT(wins_of(4), wins_of(2));
}

}  // namespace
}  // namespace nvshare::policy
