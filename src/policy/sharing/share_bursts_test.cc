// For whom bursts are put apart where sharing is measured, and for how long.
#include <gtest/gtest.h>

#include <vector>

#include "policy/testing/test_share_machine.h"

namespace nvshare::policy::testing {
namespace {

// Each moment in which bursts are put apart costs a training program its queue. Requests of servers do not meet again and again, and one
// that works all the time but for short pauses cannot be put apart from others.
TEST(ShareBursts, NobodyPausesForBurstsWhereNoneRepeatThemselves) {
  const Program steps{.burst = 40, .pause = 3, .varies = 1}, server{.burst = 10, .every = 600},
      periodic{.burst = 3, .pause = 7, .varies = 2};
  const auto put_apart = [](const std::vector<Program>& programs) {
    Machine machine([](int running) { return running == 1 ? 1.0 : 1.05; }, {}, 64 * kGiB, {.step = kMs / 2, .slice = 2 * kMs});
    std::vector<ClientId> ids;
    for (const Program& program : programs) ids.push_back(machine.add(program));
    machine.run(20 * kSec);  // trials of a new mix are over
    for (const ClientId id : ids) machine.of(id).put_apart = 0;
    const Duration tried = machine.tried();
    machine.run(20 * kSec);
    EXPECT_EQ(machine.tried(), tried) << "all of it is between trials";
    EXPECT_EQ(machine.chosen(), SharingWay::kTogether);
    int times = 0;
    for (const ClientId id : ids) times += machine.of(id).put_apart;
    return times;
  };
  EXPECT_EQ(put_apart({steps, steps, server, server}), 0);
  EXPECT_EQ(put_apart({{}, {}, periodic}), 0);
  EXPECT_GT(put_apart({periodic, periodic, server}), 20);
}

// Each burst in a moment costs 0.7 ms: on an H200 three programs that the driver keeps apart got 0.990 of what they get without nvshare.
// Where each had a burst and waited for none, the moment is over.
TEST(ShareBursts, ThatAreApartAreAskedForOneBurstEach) {
  Machine machine(time_slicing, {}, 64 * kGiB, {.step = kMs / 10, .slice = 2 * kMs});
  std::vector<ClientId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(machine.add({.burst = 2, .pause = 8}));
  machine.run(8 * kSec);
  for (const Duration apart : {Duration{0}, kMs, 10 * kMs / 3}) {
    for (size_t i = 0; i < ids.size(); ++i) machine.begin_anew(ids[i], 20 * kMs + static_cast<Duration>(i) * apart);
    machine.run(kSec);
    int moments = 0, in_moments = 0;
    bool before = false;
    for (int i = 0; i < 30'000; ++i) {
      machine.run(kMs / 10);
      const bool now = machine.bursts_apart();
      moments += now && !before;
      in_moments += now;
      before = now;
    }
    EXPECT_GE(moments, 9) << apart;
    EXPECT_LE(in_moments, moments * 150) << apart << ": tenths of a millisecond; 300, if they met";
  }
}

// A burst may last as long as a moment, and several moments in a row may fall into bursts.
TEST(ShareBursts, LongBurstsArePutApartForAsLongAsTheyRepeatThemselves) {
  Program bursts{.burst = 30, .pause = 60, .varies = 10};
  for (unsigned seed = 1; seed <= 3; ++seed) {
    Machine machine(time_slicing, {}, 64 * kGiB, {.step = kMs / 2, .slice = 2 * kMs, .seed = seed});
    const ClientId first = machine.add(bursts);
    machine.add(bursts);
    machine.run(5 * kSec);
    const double before = machine.work();
    int apart = 0;  // of eight times ten seconds; a pause may take a whole piece of a trial's spell, as if it worked seldom
    for (int i = 0; i < 8; ++i) {
      machine.of(first).put_apart = 0;
      bool in_turns = false;  // burst by burst, all the time
      for (int second = 0; second < 10; ++second) {
        in_turns |= machine.chosen() == SharingWay::kTurns;
        machine.run(kSec);
      }
      apart += in_turns || machine.of(first).put_apart > 10;
    }
    EXPECT_GE(apart, 6) << "seed " << seed;
    Machine together(time_slicing, {}, 64 * kGiB, {.step = kMs / 2, .slice = 2 * kMs, .seed = seed});
    bursts.measured = false;
    for (int i = 0; i < 2; ++i) together.add(bursts);
    bursts.measured = true;
    together.run(5 * kSec);
    EXPECT_GE((machine.work() - before) / (80 * 1000), 0.99 * together.work_in(80 * kSec)) << "seed " << seed;
  }
}

// Bursts that need more of the GPU than there is meet again and again: one after the other all the time they get more done than divided by
// the driver. Those that fit one after the other only have to be put apart now and then.
TEST(ShareBursts, OfMoreWorkThanTheGpuCanDoAreTurnsAllTheTime) {
  struct Case {
    Program program;
    size_t count;
    bool in_turns;
    double least;  // of what is done together
  };
  for (const Case& each : {Case{{.burst = 4.4, .pause = 4}, 3, true, 1.18}, Case{{.burst = 2.2, .pause = 4}, 3, true, 1.3},
                           Case{{.burst = 3.4, .pause = 7}, 3, false, 1.15}, Case{{.burst = 3, .pause = 7}, 2, false, 0.99}}) {
    double done[2] = {};
    for (const bool measured : {false, true}) {
      Machine machine(time_slicing, {}, 64 * kGiB, {.step = kMs / 10, .slice = 2 * kMs});
      Program program = each.program;
      program.measured = measured;
      for (size_t i = 0; i < each.count; ++i) machine.begin_anew(machine.add(program), 20 * kMs + static_cast<Duration>(i) * 5 * kMs / 2);
      machine.run(3 * kSec);
      done[measured] = machine.work_in(4 * kSec);
      if (measured) {
        EXPECT_EQ(machine.chosen() == SharingWay::kTurns, each.in_turns) << each.count << " of " << program.burst << " ms";
      }
    }
    EXPECT_GE(done[true], each.least * done[false]) << each.count << " of " << each.program.burst << " ms every " << each.program.pause;
  }
}

// Small grids whose bursts run beside each other as if alone lose nothing by that: turns are tried, and not taken.
TEST(ShareBursts, ThatCostEachOtherNothingAreNoTurns) {
  Machine machine([](int running) { return 0.98 * running; }, {}, 64 * kGiB, {.step = kMs / 10});
  for (int i = 0; i < 3; ++i) machine.begin_anew(machine.add({.burst = 4.4, .pause = 4, .varies = 1}), 20 * kMs + i * 5 * kMs / 2);
  machine.run(3 * kSec);
  EXPECT_GE(machine.gpu().sharing_trials, 1U);
  for (int i = 0; i < 6; ++i) {
    machine.run(30 * kSec);
    EXPECT_EQ(machine.chosen(), SharingWay::kTogether);
  }
  EXPECT_GE(machine.work_in(60 * kSec) * 8.4 / 4.4, 0.94 * 3);
}

// Under MPS nothing sets bursts apart that overlap: both take longer, and meet again. A trial says whether that costs them anything.
TEST(ShareBursts, UnderMpsAreApartWhereThatCostsNothing) {
  struct Case {
    const char* what;
    Model model;
    Program program;
    size_t count;
    double least;  // of what is done together, as of the sum of what each does alone
  };
  const Model shared = [](int) { return 1.0; }, small = [](int running) { return 0.98 * running; };
  for (const Case& each : {Case{"bursts that fit one after the other", shared, {.burst = 2.8, .pause = 7}, 3, 1.2},
                           Case{"the same, whose pauses vary", shared, {.burst = 2.8, .pause = 7, .varies = 1}, 3, 1},
                           Case{"bursts of more than there is", shared, {.burst = 4.4, .pause = 4}, 3, 1.02},
                           Case{"bursts of small grids", small, {.burst = 2.8, .pause = 7}, 3, 0.985},
                           Case{"bursts of small grids, more than would fit", small, {.burst = 6, .pause = 4}, 3, 0.975}}) {
    double done[2] = {};
    for (unsigned seed = 1; seed <= 2; ++seed) {
      for (const bool measured : {false, true}) {
        Machine machine(each.model, {}, 64 * kGiB, {.step = kMs / 10, .seed = seed});
        Program program = each.program;
        program.measured = measured;
        program.group = 1;
        for (size_t i = 0; i < each.count; ++i) machine.begin_anew(machine.add(program), 20 * kMs + static_cast<Duration>(i) * kMs);
        machine.run(3 * kSec);
        done[measured] += machine.work_in(10 * kSec);
      }
    }
    EXPECT_GE(done[true], each.least * done[false]) << each.what;
  }
}

// Three whose bursts are turns.
std::vector<ClientId> in_turns(Machine& machine) {
  std::vector<ClientId> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(machine.add({.burst = 4.4, .pause = 4}));
    machine.begin_anew(ids.back(), 20 * kMs + i * 5 * kMs / 2);
  }
  machine.run(3 * kSec);
  EXPECT_EQ(machine.chosen(), SharingWay::kTurns);
  return ids;
}

constexpr Clockwork kFine{.step = kMs / 10, .slice = 2 * kMs};

TEST(ShareBursts, WakeNobodyWhereNobodyWorksOrOneAlone) {
  for (const size_t works : {0, 1}) {
    Machine machine(time_slicing, {}, 64 * kGiB, kFine);
    const std::vector<ClientId> ids = in_turns(machine);
    for (size_t i = works; i < ids.size(); ++i) machine.of(ids[i]).wakes_in = 1 << 30;
    machine.run(3 * kSec);
    EXPECT_EQ(machine.chosen(), SharingWay::kTurns);
    const uint64_t before = machine.wakes();
    machine.run(10 * kSec);
    EXPECT_LE(machine.wakes() - before, 10U) << works << " work";  // 330, if bursts were turns
  }
}

// Each time that one which works all the time pauses for a moment all others leave gaps.
TEST(ShareBursts, AreNoTurnsInThePausesOfOneThatWorksAllTheTime) {
  Machine machine(time_slicing, {}, 64 * kGiB, kFine);
  const std::vector<ClientId> ids = in_turns(machine);
  machine.of(ids[0]).burst = 20;
  machine.of(ids[0]).pause = 2;
  machine.run(2 * kSec);
  const uint64_t before = machine.told();
  machine.run(10 * kSec);
  EXPECT_LE(machine.told() - before, 10 * 3 * 50U) << "messages";  // 5304, if they were
}

TEST(ShareBursts, AreNoTurnsWhereTooManyWouldHearOfIt) {
  Machine machine(time_slicing, {}, 128 * kGiB, {.step = kMs / 5, .slice = 2 * kMs});
  in_turns(machine);
  for (int i = 0; i < 62; ++i) {
    machine.of(machine.add({})).wakes_in = 1 << 30;  // it gives the lock up
    machine.run(40 * kMs);
  }
  machine.run(20 * kSec);
  EXPECT_EQ(machine.chosen(), SharingWay::kTogether);
}

// How much of its work it gets done is not counted.
TEST(ShareBursts, AreWaitedForByNobodyThatCannotBeMeasured) {
  Machine machine(time_slicing, {}, 64 * kGiB, kFine);
  in_turns(machine);
  const ClientId apart = machine.add({.burst = 0.5, .pause = 6, .measured = false});
  machine.run(20 * kSec);  // trials are over: in the moment at the beginning of one it does wait
  EXPECT_EQ(machine.chosen(), SharingWay::kTurns);
  machine.of(apart).longest_wait = 0;
  machine.run(5 * kSec);
  EXPECT_EQ(machine.chosen(), SharingWay::kTurns);
  EXPECT_LE(machine.of(apart).longest_wait, kMs);
}

// In the moment that tells who leaves gaps bursts wait for each other, which is no work of theirs.
TEST(ShareBursts, WhatABurstWaitsForOthersHidesNotThatItsProgramPauses) {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    Machine machine(time_slicing, {}, 64 * kGiB, {.step = kMs / 2, .slice = 2 * kMs, .seed = seed});
    machine.add({});
    machine.add({});
    machine.add({.burst = 3, .pause = 7, .varies = 2});
    machine.add({.burst = 10, .every = 250});
    machine.run(3 * kSec);
    EXPECT_EQ(machine.chosen(), SharingWay::kTurns) << "seed " << seed;
    EXPECT_GT(machine.work_in(10 * kSec), 0.93) << "seed " << seed;
  }
}

}  // namespace
}  // namespace nvshare::policy::testing
