// Programs that work and pause many times a second under a compute limit, by the work that they get done: alone, and beside neighbours that
// never pause. The programs hear of the end of their own work up to 40 us late.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iomanip>
#include <iostream>

#include "policy/testing/quota_world.h"

namespace nvshare::policy::testing {
namespace {

struct Row {
  Duration on, off;
  int beside;
  double due;  // percent; what it asks for, where that is less than its limit
  double efficiency_together = 1;
  Duration launch = 0, known = 0;  // from a burst's first submission to when the GPU works; what of that and of its end the program knows
  Duration in_flight_least = 0;    // of the neighbours
  Duration switch_takes = 0;
  bool drains_go_first = false;  // as recorded on an H200
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.on / kMsec << " ms of work, " << row.off / kMsec << " ms of pause, beside " << row.beside << ", together "
       << row.efficiency_together << ", " << row.launch / kUs << " us until the GPU works";
}

constexpr int kLimit = 30;
constexpr int kOfNeighbours = 60;
constexpr Duration kSettles = 2 * kSeconds;
constexpr Duration kLasts = 20 * kSeconds;

class BurstyUnderLimits : public ::testing::TestWithParam<Row> {};

TEST_P(BurstyUnderLimits, GetWhatTheirLimitSays) {
  const Row& row = GetParam();
  QuotaWorld world({}, 7);
  world.seen_within = 40 * kUs;
  world.launch_takes = row.launch;
  world.launch_known = row.known;
  world.pause_delay = row.launch > 0 ? 75 * kUs : 0;
  world.efficiency_together = row.efficiency_together;  // of 1: what is missing is missing in the bill
  world.limit(1, kLimit);
  Job& job = world.add_bursty(1, row.on, row.off, 20 * kUs);
  job.in_flight = 4 * kMsec;
  if (row.launch > 0) world.run_for(kSettles);  // it is known to leave gaps when its neighbours come
  for (int n = 0; n < row.beside; ++n) {
    const TenantId tenant = 2 + static_cast<TenantId>(n);
    world.limit(tenant, kOfNeighbours / row.beside);
    Job& neighbour = world.add(tenant, n == 0 ? 20 * kUs : kMsec);
    neighbour.in_flight = n == 0 || !row.drains_go_first ? 4 * kMsec : 7 * kMsec;
    neighbour.in_flight_least = row.in_flight_least;
    world.drains_go_first = row.drains_go_first;
    world.switch_takes = row.switch_takes;
  }
  const auto of_neighbours = [&] {
    double sum = 0;
    for (int n = 0; n < row.beside; ++n) sum += world.work(2 + static_cast<TenantId>(n));
    return sum;
  };
  world.run_for(kSettles);
  const double own_before = world.work(1), others_before = of_neighbours();
  world.run_for(kLasts);
  ASSERT_EQ(world.broken(), std::nullopt) << world.describe();
  const double own = 100 * (world.work(1) - own_before) / static_cast<double>(kLasts);
  const double others = 100 * (of_neighbours() - others_before) / static_cast<double>(kLasts);
  if (std::getenv("NVSHARE_TEST_SHOW") != nullptr)
    std::cout << ::testing::PrintToString(row) << ": " << std::fixed << std::setprecision(2) << own << " of " << row.due << ", neighbours "
              << others << "\n";
  EXPECT_NEAR(own, row.due, 0.7) << world.describe();
  EXPECT_GT(world.job(job.id).pauses, world.job(job.id).bursts * 8 / 10) << "it keeps the lock in its pauses, beside others as well";
  if (row.beside > 0) {
    EXPECT_GT(others, kOfNeighbours - 0.7 * row.beside);
    EXPECT_LT(others, kOfNeighbours + 1.7) << "billed half while one that has ended its work has not said so";
  }
}

// The driver's switching loses a tenth of what two get done together, as on an H100: neither of them is billed for that.
INSTANTIATE_TEST_SUITE_P(CyclesThatLose, BurstyUnderLimits,
                         ::testing::Values(Row{2 * kMsec, 2 * kMsec, 1, 30, 0.9}, Row{2 * kMsec, 2 * kMsec, 2, 30, 0.9},
                                           Row{4 * kMsec, 4 * kMsec, 1, 30, 0.9}, Row{4 * kMsec, 4 * kMsec, 2, 30, 0.9},
                                           Row{4 * kMsec, 4 * kMsec, 1, 30, 0.86}, Row{10 * kMsec, 10 * kMsec, 1, 30, 0.9},
                                           Row{10 * kMsec, 10 * kMsec, 2, 30, 0.9}, Row{10 * kMsec, 10 * kMsec, 2, 30, 0.95}));

// It asks for 31 % and may have 30. Its neighbours take turns, each in 250 ms once, where hand-overs take long.
TEST(BurstyUnderALimit, OneThatAsksForHardlyMoreIsThrottledForShortBesideThoseThatTakeTurns) {
  QuotaWorld world({}, 7);
  world.efficiency_together = 0.9;
  world.limit(1, kLimit);
  const ClientId bursty = world.add_bursty(1, 2 * kMsec, 2 * kMsec, 20 * kUs).id;
  for (const TenantId tenant : {2, 3}) {
    world.limit(tenant, kLimit);
    world.add(tenant, tenant == 2 ? 20 * kUs : kMsec).in_flight = 4 * kMsec;
  }
  world.run_for(kSettles);
  Duration longest = 0, since = 0;
  uint64_t bursts = world.job(bursty).bursts;
  for (Duration ran = 0; ran < kLasts; ran += kMsec) {
    world.run_for(kMsec);
    since = world.job(bursty).bursts == bursts ? since + kMsec : 0;
    bursts = world.job(bursty).bursts;
    longest = std::max(longest, since);
  }
  ASSERT_EQ(world.broken(), std::nullopt) << world.describe();
  EXPECT_LT(longest, 100 * kMsec) << world.describe();
}

// It asks for 31.5 % in bursts of 3.3 ms, of which it may have 30, and begins after a rest. What it saved up there is for a burst, and not
// for the next five seconds, though its neighbours took turns of 250 ms before (as on an H200: 31.0 of 30 for six).
TEST(BurstyUnderALimit, OneThatAsksForHardlyMoreDoesNotLiveOnItsRestForSeconds) {
  QuotaWorld world({}, 7);
  world.limit(1, kLimit);
  Job& job = world.add_bursty(1, 3285 * kUs, 7130 * kUs, 20 * kUs);
  const ClientId bursty = job.id;
  for (const TenantId tenant : {2, 3}) {
    world.limit(tenant, kLimit);
    world.add_bursty(tenant, kSeconds / 2, 100 * kSeconds);
  }
  world.run_for(kSettles);
  world.job(bursty).off = 500 * kMsec;
  world.run_for(kSeconds);
  world.limit(1, 100);  // what it saved before is gone
  world.limit(1, kLimit);
  world.run_for(kSeconds);
  world.job(bursty).off = 7130 * kUs;
  world.run_for(500 * kMsec);
  const uint64_t bursts = world.job(bursty).bursts;
  world.run_for(300 * kMsec);
  ASSERT_GT(world.job(bursty).bursts, bursts + 20) << "it works";
  const double before = world.work(1);
  const Duration lasts = 6300 * kMsec;
  world.run_for(lasts);
  ASSERT_EQ(world.broken(), std::nullopt) << world.describe();
  EXPECT_NEAR(100 * (world.work(1) - before) / static_cast<double>(lasts), kLimit, 0.7) << world.describe();
}

// As on an H200: 35 us until the GPU runs a burst, 20 on average until its end is known, of which the library measures 40; and its message
// comes late. Without a word of that 1 and 1 alone got 28.4, and 2 and 2 beside one 29.05, as on the GPU.
INSTANTIATE_TEST_SUITE_P(
    CyclesThatBeginLate, BurstyUnderLimits,
    ::testing::Values(Row{kMsec, kMsec, 0, 30, 1, 35 * kUs, 40 * kUs}, Row{kMsec, kMsec, 1, 30, 0.9, 35 * kUs, 40 * kUs},
                      Row{kMsec, kMsec, 2, 30, 0.9, 35 * kUs, 40 * kUs}, Row{2 * kMsec, 2 * kMsec, 0, 30, 1, 35 * kUs, 40 * kUs},
                      Row{2 * kMsec, 2 * kMsec, 1, 30, 0.9, 35 * kUs, 40 * kUs}, Row{2 * kMsec, 2 * kMsec, 2, 30, 0.9, 35 * kUs, 40 * kUs},
                      Row{4 * kMsec, 4 * kMsec, 1, 30, 0.9, 35 * kUs, 40 * kUs}, Row{4 * kMsec, 4 * kMsec, 2, 30, 0.9, 35 * kUs, 40 * kUs},
                      Row{3 * kMsec, 7 * kMsec, 0, 30, 1, 35 * kUs, 40 * kUs}));

// A program of which nobody knows, and one beside it that never pauses.
struct Beginner {
  Beginner(Duration on, Duration off) : world({}, 7) {
    world.efficiency_together = 0.9;
    world.limit(1, kLimit);
    world.add_bursty(1, on, off, 20 * kUs).in_flight = 4 * kMsec;
    world.limit(2, kOfNeighbours);
    world.add(2, 20 * kUs).in_flight = 4 * kMsec;
    world.run_for(kSettles);
    const double before = world.work(1), neighbour_before = world.work(2);
    world.run_for(kLasts);
    EXPECT_EQ(world.broken(), std::nullopt) << world.describe();
    own = 100 * (world.work(1) - before) / static_cast<double>(kLasts);
    neighbour = 100 * (world.work(2) - neighbour_before) / static_cast<double>(kLasts);
  }

  QuotaWorld world;
  double own = 0, neighbour = 0;
};

// Its pauses are no longer than those after which turns end. Not seen to leave gaps it had 15.4.
TEST(BurstyUnderALimit, OneWithShortPausesThatBeginsBesideAnotherIsSeenToLeaveGaps) {
  const Beginner beginner(kMsec, kMsec);
  EXPECT_TRUE(beginner.world.tenant(1).beside_others);
  EXPECT_NEAR(beginner.own, kLimit, 1.5) << "what it keeps of its speed beside others is not known";
  EXPECT_NEAR(beginner.neighbour, kOfNeighbours, 0.7);
}

TEST(BurstyUnderALimit, OneThatWorksForLongBetweenSuchPausesKeepsItsTurns) {
  Beginner beginner(20 * kMsec, 700 * kUs);
  EXPECT_EQ(beginner.world.job(1).pauses, 0U) << "who pauses runs beside others";
  EXPECT_NEAR(beginner.neighbour, kOfNeighbours, 0.7);
}

// Of what it says that it did, when it was alone, ten times is no more believed than a quarter.
TEST(BurstyUnderALimit, OneThatBoastsOfItsTurnsAloneGetsAQuarterMoreAtMost) {
  QuotaWorld world({}, 7);
  world.limit(1, kLimit);
  Job& job = world.add_bursty(1, 4 * kMsec, 4 * kMsec, 20 * kUs);
  job.in_flight = 4 * kMsec;
  job.boasts = true;
  world.limit(2, kOfNeighbours);
  world.add(2, 20 * kUs).in_flight = 4 * kMsec;
  world.run_for(kSettles);
  const double before = world.work(1), neighbour_before = world.work(2);
  world.run_for(kLasts);
  ASSERT_EQ(world.broken(), std::nullopt) << world.describe();
  EXPECT_LE(100 * (world.work(1) - before) / static_cast<double>(kLasts), 1.25 * kLimit);
  EXPECT_NEAR(100 * (world.work(2) - neighbour_before) / static_cast<double>(kLasts), kOfNeighbours, 0.7);
}

// Hardly more than the limit: no limit holds it back, and neighbours that never pause make way for its bursts. As recorded on an H200 they
// have 1 or 2 to 4 ms in flight, one with kernels of 1 ms up to 7, and the GPU goes on with that before it begins a burst. 27.3 at most
// before that was known, and 24.3 before bursts were foreseen. Up to 7 ms is more than the pause leaves time for.
constexpr Duration kHardlyMore = 3270 * kUs, kAndPauses = 7100 * kUs;
INSTANTIATE_TEST_SUITE_P(CyclesThatAreForeseen, BurstyUnderLimits,
                         ::testing::Values(Row{kHardlyMore, kAndPauses, 0, 30, 0.9, 35 * kUs, 40 * kUs},
                                           Row{kHardlyMore, kAndPauses, 1, 29.5, 0.9, 35 * kUs, 40 * kUs, kMsec, 130 * kUs, true},
                                           Row{kHardlyMore, kAndPauses, 2, 28.4, 0.9, 35 * kUs, 40 * kUs, kMsec, 130 * kUs, true},
                                           Row{kHardlyMore, kAndPauses, 1, 30, 0.9, 35 * kUs, 40 * kUs, 2 * kMsec, 130 * kUs, true},
                                           Row{kHardlyMore, kAndPauses, 2, 28.4, 0.9, 35 * kUs, 40 * kUs, 2 * kMsec, 130 * kUs, true}));

INSTANTIATE_TEST_SUITE_P(Cycles, BurstyUnderLimits,
                         ::testing::Values(Row{kMsec, kMsec, 0, 30}, Row{2 * kMsec, 2 * kMsec, 0, 30}, Row{2 * kMsec, 2 * kMsec, 1, 30},
                                           Row{2 * kMsec, 2 * kMsec, 2, 30}, Row{4 * kMsec, 4 * kMsec, 0, 30},
                                           Row{4 * kMsec, 4 * kMsec, 1, 30}, Row{4 * kMsec, 4 * kMsec, 2, 30},
                                           Row{10 * kMsec, 10 * kMsec, 0, 30}, Row{10 * kMsec, 10 * kMsec, 1, 30},
                                           Row{10 * kMsec, 10 * kMsec, 2, 30}, Row{3 * kMsec, 7 * kMsec, 0, 30}));

}  // namespace
}  // namespace nvshare::policy::testing
