// The automatic switch time: the mission's table case by case, and what the log says of it and of who runs beside whom.
#include <gtest/gtest.h>

#include "policy/testing/test_world.h"
#include "policy/turns/turns.h"

namespace nvshare::policy::testing {
namespace {

constexpr Bytes kGb = 1'000'000'000;

struct Case {
  const char* what;
  Bytes bytes;      // that move, each way: both directions of the link work at once
  Bytes bandwidth;  // bytes per second
  int64_t multiplier;
  Duration document;  // what the table of memory-aware scheduling, 8.2, says
  Duration ours;
};

// The table's first line says 5 s, the code below it 10 s at least: a turn of 5 s would pay a program's context switches and first misses
// with more than a tenth of itself. We keep the minimum (switch_time_min), and the table's 5 s come out where it is lowered.
TEST(SwitchTime, TheTableOfTheMission) {
  for (const Case& each :
       {Case{"10 GB at 10 GB/s", 10 * kGb, 10 * kGb, 5, 5 * kSec, 10 * kSec},
        Case{"10 GB at 1 GB/s", 10 * kGb, kGb, 5, 50 * kSec, 50 * kSec}, Case{"12 GB at 1 GB/s", 12 * kGb, kGb, 5, 60 * kSec, 60 * kSec},
        Case{"12 GB at what an H200's link does", 12 * kGb, 55 * kGb, 5, 5 * kSec, 10 * kSec},
        Case{"less than a GB: a second at least, says the document", kGb / 2, kGb, 5, 10 * kSec, 10 * kSec},
        Case{"100 GB at 1 GB/s: five minutes at most", 100 * kGb, kGb, 5, 300 * kSec, 300 * kSec},
        Case{"12 GB at 1 GB/s, twice", 12 * kGb, kGb, 2, 24 * kSec, 24 * kSec}}) {
    Config config;
    config.switch_time_multiplier = each.multiplier;
    Gpu gpu;
    gpu.link.median.out = gpu.link.median.in = each.bandwidth;
    const Duration cost = swap_time(gpu, each.bytes, each.bytes);
    EXPECT_NEAR(static_cast<double>(switch_time(config, cost)), static_cast<double>(each.ours), 1e6) << each.what;
    if (each.document == each.ours) continue;
    config.switch_time_min = kSec;
    EXPECT_LE(switch_time(config, cost), each.document + kSec / 1000) << each.what << ": with a lower minimum the table's value, or less";
    EXPECT_GE(switch_time(config, cost), std::min(each.document, 5 * cost) - kSec / 1000) << each.what;
  }
  // Before a swap was measured the document's careful 1 GB/s holds; in mode fixed its 60 s.
  EXPECT_NEAR(static_cast<double>(switch_time({}, swap_time(Gpu{}, 12 * kGb, 0))), 60e9, 1e6);
  Config fixed;
  fixed.switch_time_mode = SwitchTimeMode::kFixed;
  EXPECT_EQ(switch_time(fixed, 1), 60 * kSec);
}

struct Told : ::testing::Test {
  Told() : state(make_state({})) { feed(GpuAppeared{0, 16 * kGiB}); }
  void feed(const Event& event) {
    for (const Action& action : step(*state, event, now)) {
      if (const auto* note = std::get_if<Note>(&action)) notes.push_back(note->text);
    }
  }
  void join(ClientId id, Bytes bytes) {
    feed(ClientJoined{id, 0, id, 0, {bytes, 0, 0}, true, false, false});
    feed(LockRequested{id});
  }
  bool has(const std::string& text) const {
    return std::any_of(notes.begin(), notes.end(), [&](const std::string& note) { return note.find(text) != std::string::npos; });
  }
  std::string all() const {
    std::string text;
    for (const std::string& note : notes) text += note + "\n";
    return text;
  }
  Instant now = 1000 * kSec;
  StatePointer state;
  std::vector<std::string> notes;
};

TEST_F(Told, TheSwitchTimeWithItsTermsWhenItChanges) {
  join(1, 12 * kGiB);
  join(2, 12 * kGiB);
  EXPECT_TRUE(has("turns last 64.4 s while others wait: ")) << all();
  EXPECT_TRUE(has("12288 MiB in at 953 MiB/s assumed take 12.9 s, times 5, within 10.0 s and 300.0 s")) << all();
  const size_t known = notes.size();
  now += kSec;
  feed(Tick{});
  EXPECT_EQ(notes.size(), known) << "nothing has changed";
}

TEST_F(Told, WhoRunsBesideWhomAndWhoWaitsForWhat) {
  join(1, 4 * kGiB);
  join(2, 4 * kGiB);
  EXPECT_TRUE(has("gets the lock, beside client 1: they need 8192 MiB together, ")) << all();
  join(3, 12 * kGiB);
  EXPECT_TRUE(has("waits for a neighbour's turn to end: it needs 12288 MiB; clients 1, 2 have the lock")) << all();
}

}  // namespace
}  // namespace nvshare::policy::testing
