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

// A burst may last as long as a moment, and several moments in a row may fall into bursts.
TEST(ShareBursts, LongBurstsArePutApartForAsLongAsTheyRepeatThemselves) {
  const Program bursts{.burst = 30, .pause = 60, .varies = 10};
  for (unsigned seed = 1; seed <= 3; ++seed) {
    Machine machine(time_slicing, {}, 64 * kGiB, {.step = kMs / 2, .slice = 2 * kMs, .seed = seed});
    const ClientId first = machine.add(bursts);
    machine.add(bursts);
    machine.run(5 * kSec);
    for (int i = 0; i < 8; ++i) {
      machine.of(first).put_apart = 0;
      machine.run(10 * kSec);
      EXPECT_GT(machine.of(first).put_apart, 10) << "seed " << seed << ", from second " << 5 + 10 * i;
    }
  }
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
