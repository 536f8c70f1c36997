// Compute limits on virtual time: what a change of a limit keeps, who runs together in which mode, and what the log says of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "policy/limits/quota.h"
#include "policy/testing/quota_world.h"

namespace nvshare::policy::testing {
namespace {

struct Log {
  explicit Log(QuotaWorld& world) {
    world.tamper_with([this](Actions& actions) {
      for (const Action& action : actions) {
        if (const auto* note = std::get_if<Note>(&action)) notes.push_back(*note);
        drops += std::holds_alternative<SendDrop>(action);
      }
    });
  }
  int count(const std::string& text, Note::Level level, TenantId tenant = 0) const {
    return static_cast<int>(std::count_if(notes.begin(), notes.end(), [&](const Note& note) {
      return note.level == level && note.text.find(text) != std::string::npos && (tenant == 0 || note.tenant == tenant);
    }));
  }
  const Note* find(const std::string& text) const {
    const auto at = std::find_if(notes.begin(), notes.end(), [&](const Note& note) { return note.text.find(text) != std::string::npos; });
    return at == notes.end() ? nullptr : &*at;
  }
  std::vector<Note> notes;
  int drops = 0;
};

double share_of(QuotaWorld& world, TenantId tenant, Duration time, const std::function<void()>& meanwhile) {
  const double before = world.work(tenant);
  const Instant end = world.now() + time;
  while (world.now() < end) meanwhile();
  return (world.work(tenant) - before) * 100 / static_cast<double>(time);
}

// Kernels of 300 ms under 10 %: after one of them it owes 270 ms of GPU time.
void get_into_debt(QuotaWorld& world) {
  world.limit(1, 10);
  world.add(1, 300 * kMsec);
  world.run_for(10 * kSeconds);
  for (int i = 0; i < 1000 && world.tenant(1).debt < 150 * kMsec; ++i) world.run_for(10 * kMsec);
  ASSERT_GE(world.tenant(1).debt, 150 * kMsec);
}

using Change = std::function<void(QuotaWorld&)>;

// Each way to change a limit, and what else could clear an account.
TEST(QuotaRules, EachWayToChangeALimitKeepsWhatIsOwed) {
  const std::vector<std::pair<const char*, Change>> ways = {
      {"raised and lowered", [](QuotaWorld& world) { world.limit(1, 90), world.limit(1, 10); }},
      {"lowered and raised", [](QuotaWorld& world) { world.limit(1, 5), world.limit(1, 10); }},
      {"taken away and set, as an annotation is removed and put back", [](QuotaWorld& world) { world.limit(1, 100), world.limit(1, 10); }},
      {"taken away, another one, and set", [](QuotaWorld& world) { world.limit(1, 100), world.limit(1, 50), world.limit(1, 10); }},
      {"taken away while a neighbour has a limit",
       [](QuotaWorld& world) {
         world.limit(2, 20);
         world.add_bursty(2, kMsec, 3600 * kSeconds);
         world.limit(1, 100);
         world.run_for(kMsec);
         world.limit(1, 10);
       }},
      {"set to what it is", [](QuotaWorld& world) { world.limit(1, 10); }},
      {"another scheduling mode",
       [](QuotaWorld& world) {
         Config config;
         config.scheduling_mode = mode_named("weighted");
         world.set_config(config);
         world.set_config({});
       }},
      {"a restart of the scheduler", [](QuotaWorld& world) { world.restart(true); }},
  };
  for (const auto& [what, change] : ways) {
    QuotaWorld world({}, 1);
    get_into_debt(world);
    world.limit(1, 10);  // brings its account up to now
    const Duration owed = world.tenant(1).debt;
    ASSERT_GE(owed, 100 * kMsec);
    change(world);
    EXPECT_GE(world.tenant(1).debt, owed - 20 * kMsec) << what;
    EXPECT_LE(world.tenant(1).debt, owed + 20 * kMsec) << what;
    world.run_for(owed * 9);  // at 10 % that much is paid back in ten times as long
    EXPECT_FALSE(world.broken()) << what << ": " << world.describe();
  }
}

// 10 -> 100 -> 10 again and again: the time without the limit is given away, the time under it is not.
TEST(QuotaRules, TakingALimitAwayAndSettingItAgainFreesNobody) {
  for (const Duration window : {Duration{0}, 2 * kSeconds}) {
    Config config;
    config.compute_window = window;
    QuotaWorld world(config, 1);
    world.limit(1, 10);
    world.add(1, 20 * kMsec);
    world.run_for(10 * kSeconds);
    const double share = share_of(world, 1, 40 * kSeconds, [&] {
      world.limit(1, 100);
      world.limit(1, 10);
      world.run_for(50 * kMsec);
    });
    EXPECT_LT(share, 11) << "window " << window;
    EXPECT_FALSE(world.broken()) << world.describe();
  }
}

// As on an H200: the first 0.63 s of a program that had done nothing since it got a limit of 90 were free of it, whether or not it owed for
// the limit before, or others have one.
TEST(QuotaRules, ALimitThatBeginsBeforeItsTenantGivesItNoAdvance) {
  for (const auto& [owes, others] : std::vector<std::pair<bool, bool>>{{false, false}, {false, true}, {true, false}, {true, true}}) {
    QuotaWorld world({}, 3);
    world.limit(2, others ? 50 : 100);
    world.add_bursty(2, kMsec, 100 * kSeconds);
    if (owes) world.limit(1, 50);
    const ClientId own = world.add_bursty(1, 100 * kMsec, 2 * kSeconds, 20 * kUs).id;
    world.run_for(kSeconds);
    world.limit(1, 100);
    world.limit(1, 90);
    world.run_for(kSeconds / 2);
    const double before = world.work(1);
    world.begin_work(own);
    world.run_for(kSeconds / 2);
    ASSERT_EQ(world.broken(), std::nullopt) << world.describe();
    EXPECT_LT(world.work(1) - before, 0.92 * kSeconds / 2) << owes << others << world.describe();
  }
}

// It ends while it has no limit, and comes back to another one.
TEST(QuotaRules, WhatIsOwedOutlivesTheProgramAlsoWithoutALimit) {
  QuotaWorld world({}, 1);
  get_into_debt(world);
  world.limit(2, 20);  // somebody else has one all along: accounts are kept
  world.add(2);
  const ClientId id = world.jobs().begin()->first;
  const Duration owed = world.tenant(1).debt;
  world.limit(1, 100);
  world.remove(id);
  world.run_for(kMsec);
  world.limit(1, 10);
  world.add(1, 300 * kMsec);
  EXPECT_GE(world.tenant(1).debt, owed - 20 * kMsec);
}

TEST(QuotaRules, SerialRunsTogetherWhatAddsUpToAHundredAndInTurnsWhatDoesNot) {
  Config config;
  config.scheduling_mode = mode_named("serial");
  for (const auto& [first, second, mode] :
       std::vector<std::tuple<int, int, std::string>>{{30, 60, "together"}, {50, 50, "together"}, {50, 60, "turns"}, {50, 100, "turns"}}) {
    QuotaWorld world(config, 1);
    world.limit(1, first);
    world.limit(2, second);
    world.add(1);
    world.add(2);
    bool at_once = false;
    for (int i = 0; i < 400; ++i) {
      world.run_for(10 * kMsec);
      at_once |=
          std::all_of(world.jobs().begin(), world.jobs().end(), [](const auto& entry) { return entry.second.state == Job::State::kBusy; });
    }
    EXPECT_EQ(world.gpu().mode, mode) << first << " + " << second;
    EXPECT_EQ(at_once, mode == "together") << first << " + " << second;
    EXPECT_FALSE(world.broken()) << world.describe();
  }
}

// The mission's table: limits of 50 and 60 have 9 and 11 of the 20 slices of 100 ms that a window of 2 s has, and none waits long for one.
TEST(QuotaRules, RoundRobinHandsOutNineAndElevenOfTwentySlices) {
  Config config;
  config.scheduling_mode = mode_named("round-robin");
  QuotaWorld world(config, 1);
  world.limit(1, 50);
  world.limit(2, 60);
  world.add(1);
  world.add(2);
  world.run_for(4 * kSeconds);
  std::vector<TenantId> slices;  // in the order of their beginning
  std::set<GrantId> known;
  world.tamper_with([&](Actions& actions) {
    for (const Action& action : actions) {
      const auto* lock = std::get_if<SendLock>(&action);
      if (lock != nullptr && known.insert(lock->grant).second) slices.push_back(world.jobs().at(lock->client).tenant);
    }
  });
  double work[2] = {world.work(1), world.work(2)};
  const auto slices_in = [&](Duration time) {
    for (TenantId tenant : {1, 2}) work[tenant - 1] = world.work(tenant);
    world.run_for(time);
    return std::pair((world.work(1) - work[0]) / 100e6, (world.work(2) - work[1]) / 100e6);
  };
  for (int window = 0; window < 10; ++window) {
    const auto [first, second] = slices_in(2 * kSeconds);
    EXPECT_NEAR(first, 9.1, 1.0) << window;
    EXPECT_NEAR(second, 10.9, 1.0) << window;
  }
  // The tenant that is owed most has the next one: a slice of the one, then one or two of the other.
  const auto of_first = std::count(slices.begin(), slices.end(), TenantId{1});
  EXPECT_GE(of_first, 80) << "of 20 s in slices of 100 ms";
  for (size_t i = 2; i < slices.size(); ++i)
    EXPECT_FALSE(slices[i] == 1 && slices[i - 1] == 1) << "the smaller one has no two in a row, at " << i;
  EXPECT_FALSE(world.broken()) << world.describe();
}

TEST(QuotaNotes, ThrottlingIsToldOnceInTenSecondsWithItsFigures) {
  QuotaWorld world({}, 1);
  Log log(world);
  world.limit(1, 10);
  world.add(1);
  world.run_for(25 * kSeconds);
  const int throttled = log.count("throttled: used ", Note::Level::kInfo, 1),
            released = log.count("may run again, after ", Note::Level::kInfo, 1);
  EXPECT_GE(throttled, 2);
  EXPECT_LE(throttled, 3);
  EXPECT_GE(released, throttled - 1);
  EXPECT_LE(released, throttled);
  const Note* note = log.find("times since the last such line");
  ASSERT_NE(note, nullptr) << "the others are counted";
  EXPECT_NE(note->text.find("of 200 ms in this window of 2000 ms, limit 10 %, in force 10 %; owes "), std::string::npos) << note->text;
  EXPECT_EQ(note->gpu, GpuId{0});
  EXPECT_EQ(log.count("", Note::Level::kDebug), 0) << "nobody asked for these";
}

TEST(QuotaNotes, ChangesAndScalingAreTold) {
  QuotaWorld world({}, 1);
  Log log(world);
  world.limit(1, 80);
  world.limit(2, 80);
  world.add(1);
  world.add(2);
  world.run_for(kSeconds);
  EXPECT_NE(log.find("add up to 160 % of 100 %: each is scaled, tenant 1 80 % to 50 %, tenant 2 80 % to 50 %"), nullptr)
      << world.describe();
  world.limit(2, 20);
  EXPECT_NE(log.find("compute limit 20 % now (was 80 %); used "), nullptr);
  world.run_for(12 * kSeconds);
  world.limit(2, 19);
  world.run_for(kSeconds);
  EXPECT_NE(log.find("in force as they are, no longer scaled"), nullptr);
  world.limit(1, 100);
  EXPECT_NE(log.find("compute limit none now (was 80 %)"), nullptr);
}

// What both are owed is forgotten, and what that left was too little for either to run again: long slices swing further than a period.
TEST(QuotaRules, TenantsThatAreThrottledTogetherRunAgain) {
  Config config;
  config.scheduling_mode = mode_named("dynamic");
  for (Duration before = 0; before < 3 * kSeconds; before += 150 * kMsec) {
    for (const bool reserves : {false, true}) {
      QuotaWorld world(config, 1);
      world.limit(1, 70);
      world.add(1);
      world.run_for(kSeconds);
      world.add_bursty(2, 700 * kMsec, 300 * kMsec);
      world.run_for(before);
      reserves ? world.limit(2, 30) : world.ceiling(2, 30);
      world.run_for(20 * kSeconds);
      const double done = world.work(1) + world.work(2);
      world.run_for(10 * kSeconds);
      EXPECT_GT(world.work(1) + world.work(2) - done, 2.0 * kSeconds) << before / kMsec << (reserves ? " reserved" : "");
    }
  }
}

TEST(QuotaNotes, AWindowsResetIsToldOnceInTenSeconds) {
  Config config;
  config.compute_window = kSeconds;
  QuotaWorld world(config, 1);
  Log log(world);
  world.limit(1, 30);
  world.add(1);
  world.run_for(25 * kSeconds);
  EXPECT_GE(log.count("window reset after 1000 ms, tenant 1 used ", Note::Level::kInfo), 2);
  EXPECT_LE(log.count("window reset after ", Note::Level::kInfo), 4);
}

TEST(QuotaNotes, AtDebugEachBillAndEachDropIsThereWithItsReason) {
  Config config;
  config.explains = true;
  QuotaWorld world(config, 1);
  Log log(world);
  world.limit(1, 30);
  world.limit(2, 60);
  world.add(1);
  world.add(2);
  world.run_for(3 * kSeconds);
  EXPECT_GT(log.drops, 5);
  EXPECT_EQ(log.count("DropLock: ", Note::Level::kDebug), log.drops);
  EXPECT_GT(log.count("DropLock: its tenant has used up its compute limit", Note::Level::kDebug), 0);
  EXPECT_GT(log.count("billed ", Note::Level::kDebug, 1), log.drops / 2);
  EXPECT_GT(log.count("gets the lock, alone", Note::Level::kDebug), 0);
}

}  // namespace
}  // namespace nvshare::policy::testing
