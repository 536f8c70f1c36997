// The engine and memory of clients that have left, or are not back after a restart.
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "scheduler/testing/test_engine.h"

namespace nvshare::scheduler {
namespace {

// Found by test/simulation (seed 240): for one step it was nobody's, and the policy gave it away.
TEST_F(EngineTest, WhatAProcessHasIsNobodyElsesWhileItRegistersAnew) {
  for (const bool noticed : {true, false}) {
    const ConnectionId first = noticed ? 1 : 11, waits = noticed ? 2 : 12, again = noticed ? 3 : 13;
    const pid_t pid = noticed ? 1001 : 1011, neighbour = noticed ? 1002 : 1012;
    join(first, pid, 10 * kGiB, 10 * kGiB);
    join(waits, neighbour, 9 * kGiB, 0);
    for (int i = 0; i < 3; ++i) sample(10 * kGiB, {{pid, 10 * kGiB}, {neighbour, 0}});
    send(waits, protocol::ReqLock{});
    const auto granted = [&] {
      const std::optional<protocol::LockOk> grant = packets_.last<protocol::LockOk>(waits);
      return grant ? static_cast<int64_t>(grant->budget) : 0;
    };
    EXPECT_LE(granted() + 10 * kGiB, gpu().safe_limit);
    if (noticed) engine().disconnected(first, "test", ++now_);
    const int64_t before = granted();
    EXPECT_LE(before + 10 * kGiB, gpu().safe_limit);
    join(again, pid, 10 * kGiB, 10 * kGiB);
    EXPECT_LE(granted(), before) << (noticed ? "after its end" : "before its end was noticed");
    EXPECT_EQ(gpu().departed, 0);
    for (const ConnectionId connection : {waits, again}) engine().disconnected(connection, "test", ++now_);
    for (int i = 0; i < 3; ++i) sample(0, {});
  }
}

// Each look reads /proc, and nobody is served meanwhile; processes that live on without their connections may be as many as a user may
// start.
TEST_F(EngineTest, TheHostIsLookedAtOnceForAllThatLeaveTogether) {
  has_nvml_ = false;
  for (ConnectionId id = 1; id <= 50; ++id) join(id, static_cast<pid_t>(id), kMiB, 0);
  looks_at_host_ = 0;
  for (ConnectionId id = 1; id <= 49; ++id) engine().disconnected(id, "test", ++now_);
  EXPECT_EQ(looks_at_host_, 0);
  const auto due = engine().next_deadline();
  ASSERT_TRUE(due);
  EXPECT_LE(*due, now_ + 20 * kMillisecond);
  now_ = *due;
  engine().deadline_reached(now_);
  EXPECT_EQ(looks_at_host_, 1);
  engine().deadline_reached(now_ += 20 * kMillisecond);
  EXPECT_EQ(looks_at_host_, 1) << "nobody has left since";
}

TEST_F(EngineTest, TheHostIsLookedAtAtOnceWhenWhoLeavesHadMemoryToSwapTo) {
  has_nvml_ = false;
  join(1, 100, kMiB, 0);
  send(1, protocol::ArenaRequest{1, 64 * kMiB, static_cast<uint8_t>(protocol::ArenaOwner::kProcess), 1, {}});
  ASSERT_TRUE(packets_.last<protocol::ArenaSegment>(1));
  looks_at_host_ = 0;
  engine().disconnected(1, "test", ++now_);
  EXPECT_GT(looks_at_host_, 0);
}

// With clients that come and go between the parts.
TEST_F(EngineTest, HousekeepingInPartsEndsAndBeginsAnew) {
  has_nvml_ = false;
  settings_.policy.overhead_default = kMiB;  // all of them fit
  constexpr ConnectionId kClients = 600;
  for (ConnectionId id = 1; id <= kClients; ++id) join(id, static_cast<pid_t>(100'000 + id), kMiB, 0);
  ConnectionId next = kClients + 1;
  for (int round = 0; round < 3; ++round) {
    looks_at_host_ = 0;
    int parts = 1;
    while (!engine().housekeep(now_, false) && parts < 100) {
      ++parts;
      engine().disconnected(next - kClients, "it left", ++now_);
      join(next, static_cast<pid_t>(100'000 + next), kMiB, 0);
      ++next;
    }
    EXPECT_GE(parts, 8) << "five others beside three of clients";
    EXPECT_LT(parts, 100);
    EXPECT_EQ(looks_at_host_, 1);
  }
  EXPECT_EQ(engine().parts().clients.all().size(), kClients);
}

// What fails is not in the way of the rest.
TEST_F(EngineTest, HousekeepingGoesOnBehindAPartThatFails) {
  has_nvml_ = false;
  join(1, 100, kMiB, 0);
  look_fails_ = true;
  int failures = 0, ends = 0;
  for (int part = 0; part < 20; ++part) {
    try {
      ends += engine().housekeep(++now_, false) ? 1 : 0;
    } catch (const std::exception&) {
      ++failures;
    }
  }
  EXPECT_GE(failures, 2);
  EXPECT_GE(ends, 2);
}

TEST_F(EngineTest, ThousandsThatLiveOnWithoutTheirConnectionsAreLookedAtByAndBy) {
  has_nvml_ = false;
  alive_.emplace();
  constexpr pid_t kProcesses = 1000;
  for (pid_t pid = 1; pid <= kProcesses; ++pid) {
    alive_->insert(pid);
    join(static_cast<ConnectionId>(pid), pid, kMiB, kMiB);
    send(static_cast<ConnectionId>(pid), protocol::ReqLock{1});
    engine().disconnected(static_cast<ConnectionId>(pid), "test", ++now_);
  }
  const auto second = [&] {
    now_ += 1000 * kMillisecond;
    for (int i = 0; i < 3; ++i) {
      if (const auto due = engine().next_deadline(); due && *due <= now_) engine().deadline_reached(now_);
    }
    engine().housekeep(now_);
  };
  second();
  for (int i = 0; i < 3; ++i) {
    looks_at_processes_ = 0;
    second();
    EXPECT_GT(looks_at_processes_, 0);
    EXPECT_LE(looks_at_processes_, 600);
  }
  alive_->clear();
  for (int i = 0; i < 12; ++i) second();
  looks_at_processes_ = 0;
  second();
  EXPECT_EQ(looks_at_processes_, 0) << "all are known to have ended";
  EXPECT_EQ(gpu().departed, 0);
}

// Found by process: a registration went over all that had left, tens of thousands beside a program that forks and connects.
TEST(LeftClients, AreFoundByTheirProcess) {
  LeftClients left;
  for (policy::ClientId id = 1; id <= 6; ++id) {
    left.put(
        id,
        {.pid = static_cast<pid_t>(id % 2), .start_time = 7, .gpu = 0, .since = static_cast<policy::Instant>(id), .waits_for_end = id > 3});
  }
  EXPECT_EQ(left.of_process(1, 7), (std::vector<policy::ClientId>{1, 3, 5}));
  EXPECT_TRUE(left.of_process(1, 8).empty()) << "another process that has its number";
  EXPECT_EQ(left.waiting(), (LeftClients::ByTime{{4, 4}, {5, 5}, {6, 6}}));
  left.erase(5);
  left.erase(5);
  left.put(3, {.pid = 0, .start_time = 7, .gpu = 0, .since = 9, .waits_for_end = true});
  EXPECT_EQ(left.of_process(1, 7), (std::vector<policy::ClientId>{1}));
  EXPECT_EQ(left.of_process(0, 7), (std::vector<policy::ClientId>{2, 3, 4, 6}));
  EXPECT_EQ(left.waiting(), (LeftClients::ByTime{{4, 4}, {6, 6}, {9, 3}}));
  for (const policy::ClientId id : {1, 2, 3, 4, 6}) left.erase(static_cast<policy::ClientId>(id));
  EXPECT_TRUE(left.all().empty());
  EXPECT_TRUE(left.waiting().empty());
}

// Each of its segments asked for itself whether the process lives, which held up all others for milliseconds.
TEST_F(EngineTest, AProcessThatLeavesManySegmentsIsLookedAtOnce) {
  alive_.emplace().insert(1001);
  join(1, 1001, kGiB, kGiB);
  for (uint64_t i = 1; i <= 100; ++i) {
    send(1, protocol::ArenaRequest{i, i * 2 * kMiB, static_cast<uint8_t>(protocol::ArenaOwner::kProcess), 0, {}});
  }
  looks_at_processes_ = 0;
  engine().disconnected(1, "test", ++now_);
  EXPECT_GT(looks_at_processes_, 0);
  EXPECT_LE(looks_at_processes_, 5);
}

TEST_F(EngineTest, ClientsThatAreNotBackYetAfterARestartAreNotForeign) {
  KnownClient missing{getpid(), start_time_of(getpid())};
  KnownClients(folder_.path() + "/clients").join(0, missing);
  join(1, 1001, 4 * kGiB, 4 * kGiB);
  for (int i = 0; i < 3; ++i) sample(12 * kGiB, {{1001, 4 * kGiB}, {getpid(), 8 * kGiB}});
  EXPECT_EQ(gpu().foreign, 0);
  send(1, protocol::MemUpdate{{9 * kGiB, 4 * kGiB, 0, 5 * kGiB, 0}, 0, 0, 0, 0});
  send(1, protocol::ReqLock{1});
  now_ += settings_.restart_grace;
  engine().deadline_reached(now_);  // it does not come back
  EXPECT_EQ(gpu().foreign, 8 * kGiB) << "before anybody is granted memory";
  EXPECT_FALSE(packets_.last<protocol::LockOk>(1));
  for (int i = 0; i < 3; ++i) sample(12 * kGiB, {{1001, 4 * kGiB}, {getpid(), 8 * kGiB}});
  EXPECT_EQ(gpu().foreign, 8 * kGiB);
}

TEST_F(EngineTest, WhatAClientFreesCountsWhileARestartIsWaitedOut) {
  KnownClient missing{getpid(), start_time_of(getpid())};
  KnownClients(folder_.path() + "/clients").join(0, missing);
  join(1, 1001, 6 * kGiB, 6 * kGiB);
  send(1, protocol::MemUpdate{{5 * kGiB, 5 * kGiB, 0, 0, 0}, 5 * kGiB, 0, 0, kGiB, 1});
  EXPECT_EQ(client(0).allocated, 5 * kGiB);
  EXPECT_FALSE(packets_.last<protocol::MemAvailable>(1)) << "what it wants is looked at later";
}

// A process that stands still may come back later than the grace lasts.
TEST_F(EngineTest, AfterARestartEachGpuIsLookedAtUntilClientsAreBack) {
  KnownClient missing{getpid(), start_time_of(getpid())};
  KnownClients(folder_.path() + "/clients").join(0, missing);
  EXPECT_EQ(engine().to_look_at().in_use.size(), 1u);
  now_ += settings_.restart_grace;
  engine().deadline_reached(now_);
  EXPECT_TRUE(engine().to_look_at().in_use.empty());
}

// A child of the last client's process keeps its memory: the next client finds it counted (simulation, seed 8000214321).
TEST_F(EngineTest, AGpuIsLookedAtForAWhileAfterItsLastClientHasLeft) {
  join(1, 1001, 4 * kGiB, 4 * kGiB);
  sample(4 * kGiB, {});
  engine().disconnected(1, "test", ++now_);
  for (int looks = 0; engine().to_look_at().in_use.size() == 1; ++looks) {
    ASSERT_LT(looks, 10);
    sample(4 * kGiB, {});
  }
  EXPECT_EQ(gpu().foreign, 4 * kGiB);
}

TEST_F(EngineTest, TheDeadsMemoryCountsUntilNvmlShowsItFreeAndIsNotForeignMeanwhile) {
  join(1, 1001, 4 * kGiB, 4 * kGiB);
  for (int i = 0; i < 3; ++i) sample(4 * kGiB, {{1001, 4 * kGiB}});
  engine().disconnected(1, "test", ++now_);
  EXPECT_TRUE(!engine().parts().departures.is_empty());
  EXPECT_EQ(engine().to_look_at().in_use.size(), 1u);
  sample(4 * kGiB, {{1001, 4 * kGiB}});
  EXPECT_GE(gpu().departed, 4 * kGiB);
  EXPECT_EQ(gpu().foreign, 0);
  sample(0, {});
  EXPECT_EQ(gpu().departed, 0);
  EXPECT_FALSE(!engine().parts().departures.is_empty());
}

// Told to use less than the GPU has, nothing else would count such memory.
TEST_F(EngineTest, TheDeadsMemoryCountsAfterNvmlHasForgottenTheProcess) {
  settings_.gpu_physical_memory = 8 * kGiB;
  join(1, 1001, 6 * kGiB, 6 * kGiB);
  for (int i = 0; i < 3; ++i) sample(8 * kGiB, {{1001, 6 * kGiB}, {5, 2 * kGiB}});
  engine().disconnected(1, "test", ++now_);
  // The driver still tears it down, for longer than the grace of those whom nobody watches.
  for (int i = 0; i < 20; ++i) sample(8 * kGiB, {{1001, 6 * kGiB}, {5, 2 * kGiB}});
  EXPECT_GE(gpu().departed, 6 * kGiB);
  for (int i = 0; i < 3; ++i) sample(7 * kGiB, {{5, 2 * kGiB}});
  EXPECT_GE(gpu().departed, 6 * kGiB) << "5 GiB are in use that no process has";
  sample(2 * kGiB, {{5, 2 * kGiB}});
  EXPECT_EQ(gpu().departed, 0);
}

TEST_F(EngineTest, MemoryThatNobodyExplainsCountsAsTheDeadsForALittleWhileOnly) {
  join(1, 1001, 4 * kGiB, 4 * kGiB);
  for (int i = 0; i < 3; ++i) sample(4 * kGiB, {{1001, 4 * kGiB}});
  engine().disconnected(1, "test", ++now_);
  sample(10 * kGiB, {});  // a program that NVML does not list has come
  EXPECT_GE(gpu().departed, 4 * kGiB);
  now_ += settings_.policy.departed_grace;
  sample(10 * kGiB, {});
  EXPECT_EQ(gpu().departed, 0);
}

// NVML shows the end of a program before we know of it: what it had is free, and must not be taken off what others have (simulation, seed
// 174522905).
TEST_F(EngineTest, WhatADyingClientNoLongerHasIsNotTakenOffTheMemoryOfOthers) {
  constexpr pid_t kParent = 1001, kNeighbour = 1002;
  join(1, kParent, 4 * kGiB, 4 * kGiB);
  join(2, kNeighbour, 8 * kGiB, 8 * kGiB);
  for (int i = 0; i < 3; ++i) sample(12 * kGiB, {{kParent, 4 * kGiB}, {kNeighbour, 8 * kGiB}});
  engine().disconnected(1, "test", ++now_);  // its child keeps its memory, for which NVML lists nobody
  sample(12 * kGiB, {{kNeighbour, 8 * kGiB}});
  EXPECT_GE(gpu().departed, 4 * kGiB);
  sample(4 * kGiB, {});  // the neighbour's end, of which we do not know
  EXPECT_GE(gpu().departed, 4 * kGiB) << "it is the dead client's that is there";
  engine().disconnected(2, "test", ++now_);
  sample(4 * kGiB, {});
  now_ += settings_.policy.departed_grace;
  for (int i = 0; i < 3; ++i) sample(4 * kGiB, {});
  EXPECT_EQ(gpu().departed, 0);
  EXPECT_EQ(gpu().foreign, 4 * kGiB) << "by now it is others'";
  join(3, 1003, 6 * kGiB, 6 * kGiB);
  for (int i = 0; i < 3; ++i) sample(10 * kGiB, {{1003, 6 * kGiB}});
  sample(4 * kGiB, {});
  EXPECT_EQ(gpu().foreign, 4 * kGiB);
}

// A client whose context is gone for good, and whose handles are not, is no reason to count what others had for ever.
TEST_F(EngineTest, WhatOthersFreeIsSeenBesideAClientThatIsListedNoMore) {
  constexpr pid_t kOther = 5;
  join(1, 1001, 4 * kGiB, 4 * kGiB);
  for (int i = 0; i < 3; ++i) sample(9 * kGiB, {{1001, 4 * kGiB}, {kOther, 5 * kGiB}});
  EXPECT_EQ(gpu().foreign, 5 * kGiB);
  for (int i = 0; i < 3; ++i) sample(4 * kGiB, {});
  EXPECT_GT(gpu().foreign, 0) << "it may be the client whose memory is free";
  for (int i = 0; i < 10; ++i) sample(4 * kGiB, {});
  EXPECT_EQ(gpu().foreign, 0);
}

TEST_F(EngineTest, ASampleFromBeforeTheDeathSaysNothingAboutIt) {
  join(1, 1001, 4 * kGiB, 4 * kGiB);
  for (int i = 0; i < 3; ++i) sample(4 * kGiB, {{1001, 4 * kGiB}});
  GpuSample old;
  old.uuid.fill(1);
  old.taken_at = now_;
  now_ += kMillisecond;
  engine().disconnected(1, "test", now_);
  engine().memory_sampled({old}, ++now_);
  EXPECT_GE(gpu().departed, 4 * kGiB);
}

TEST_F(EngineTest, AProcessThatComesAgainAndAgainCountsOnce) {
  for (const bool nvml : {false, true}) {
    has_nvml_ = nvml;
    engine_.reset();
    const auto first = static_cast<ConnectionId>(nvml ? 100 : 1);
    for (ConnectionId i = 0; i < 40; ++i) {
      join(first + i, 1001, kGiB, kGiB);
      engine().disconnected(first + i, "test", ++now_);
    }
    join(first + 50, 1002, 12 * kGiB, 0);
    send(first + 50, protocol::ReqLock{1});
    EXPECT_TRUE(packets_.last<protocol::LockOk>(first + 50)) << "a dead client's memory counts once";
  }
}

// ---- processes that outlive their connection, or their scheduler ----

class OutlivesTest : public EngineTest {
 protected:
  static constexpr pid_t kFirst = 1001, kNeighbour = 1002;

  OutlivesTest() { alive_ = {kFirst, kNeighbour}; }

  // The first program has loaded so much; what it was given last is its own.
  void load_first(uint64_t bytes = 10 * kGiB) {
    join(1, kFirst, bytes, 0);
    send(1, protocol::ReqLock{1});
    const auto lock = packets_.last<protocol::LockOk>(1);
    ASSERT_TRUE(lock);
    const protocol::MemoryReport memory{bytes, bytes, 0, 0, 0};
    send(1, protocol::MemUpdate{memory, lock->budget, lock->budget_sequence, 0, 0, 0});
    send(1, protocol::LockReleased{lock->grant, 1, {}, 0, 0, 0, memory});
  }
  // Another wants 9 GiB, which is more than is left. False: they are not granted.
  bool neighbour_is_granted() {
    if (!packets_.last<protocol::Registered>(kWaits)) {
      join(kWaits, kNeighbour, 9 * kGiB, 0);
      send(kWaits, protocol::ReqLock{1});
    }
    const auto grant = packets_.last<protocol::LockOk>(kWaits);
    return grant && grant->budget >= 9 * static_cast<uint64_t>(kGiB);
  }
  void pass(policy::Duration time) {
    for (const policy::Instant end = now_ + time; now_ < end;) {
      now_ = std::min(end, now_ + kSecond);
      engine().deadline_reached(now_);
      engine().housekeep(now_);
    }
  }
  void restart() {
    engine_.reset();
    packets_ = {};
  }

  static constexpr ConnectionId kWaits = 9;
};

TEST_F(OutlivesTest, WithoutNvmlALostConnectionFreesNothingWhileItsProcessLives) {
  has_nvml_ = false;
  load_first();
  engine().disconnected(1, "test", ++now_);
  EXPECT_TRUE(!engine().parts().departures.is_empty());
  pass(10 * kSecond);
  EXPECT_FALSE(neighbour_is_granted());
  alive_->erase(kFirst);
  pass(kSecond);
  EXPECT_TRUE(neighbour_is_granted());
  EXPECT_FALSE(!engine().parts().departures.is_empty());
}

// What the children of a program keep that has ended, as any other's memory.
TEST_F(OutlivesTest, TheFirstClientThatIsBackIsGrantedByWhatNvmlHasShownBefore) {
  load_first(4 * kGiB);
  restart();
  sample(12 * kGiB, {{kFirst, 4 * kGiB}});
  join(1, kFirst, 9 * kGiB, 4 * kGiB);  // nobody else is awaited
  EXPECT_EQ(gpu().foreign, 8 * kGiB);
  send(1, protocol::ReqLock{1});
  EXPECT_FALSE(packets_.last<protocol::LockOk>(1));
}

// The driver takes a moment after the end of the process.
TEST_F(OutlivesTest, WithoutNvmlTheDeadsMemoryCountsForTheGraceAndNotLonger) {
  has_nvml_ = false;
  load_first();
  engine().disconnected(1, "test", ++now_);
  alive_->erase(kFirst);
  EXPECT_FALSE(neighbour_is_granted());
  const policy::Instant end = now_ + settings_.policy.departed_grace;
  for (auto due = engine().next_deadline(); due && *due <= end; due = engine().next_deadline()) {
    ASSERT_FALSE(neighbour_is_granted()) << (end - now_) / kMillisecond << " ms before";
    engine().deadline_reached(now_ = *due);
  }
  EXPECT_TRUE(neighbour_is_granted()) << "at its very end";
}

// It may run another program by now, without a GPU.
TEST_F(OutlivesTest, WithoutNvmlAProcessThatLivesOnHasItForAMinuteAtMost) {
  has_nvml_ = false;
  load_first();
  engine().disconnected(1, "test", ++now_);
  pass(settings_.policy.watched_grace + 2 * kSecond);
  EXPECT_TRUE(neighbour_is_granted());
}

// Found by test/simulation (seed 1750240303): killed just before the scheduler was, which saw its end; or while there was none.
TEST_F(OutlivesTest, WithoutNvmlWhatTheDeadHadCountsForTheGraceWithTheNextSchedulerToo) {
  for (const bool seen : {true, false}) {
    SCOPED_TRACE(seen ? "its end was seen" : "it ended while there was no scheduler");
    has_nvml_ = false;
    alive_ = {kFirst, kNeighbour};
    restart();
    load_first();
    if (seen) {
      alive_->erase(kFirst);
      engine().disconnected(1, "test", ++now_);
    }
    engine_.reset();
    alive_->erase(kFirst);
    restart();
    EXPECT_FALSE(neighbour_is_granted());
    pass(settings_.policy.departed_grace + kSecond);
    EXPECT_TRUE(neighbour_is_granted());
    restart();
    now_ += 60 * kSecond;
    EXPECT_TRUE(engine().parts().departures.is_empty()) << "it was forgotten";
    restart();
    std::filesystem::remove(folder_.path() + "/clients");
  }
}

// Found by test/simulation (seeds 18003, 322785): killed just before the scheduler was.
TEST_F(OutlivesTest, WhatAKilledProgramHasCountsForTheNextSchedulerToo) {
  for (const bool nvml : {false, true}) {
    SCOPED_TRACE(nvml ? "NVML" : "no NVML");
    has_nvml_ = nvml;
    alive_ = {kFirst, kNeighbour};
    restart();
    load_first();
    if (nvml) sample(10 * kGiB, {{kFirst, 10 * kGiB}});
    engine().disconnected(1, "test", ++now_);
    restart();
    EXPECT_FALSE(neighbour_is_granted());
    now_ += settings_.restart_grace;
    engine().deadline_reached(now_);
    EXPECT_FALSE(neighbour_is_granted()) << "it does not come back, and is not gone";
    alive_->erase(kFirst);
    if (nvml) {
      sample(0, {});
      pass(kSecond);
    } else {
      pass(kSecond);
      EXPECT_FALSE(neighbour_is_granted()) << "the driver takes a moment after the end of the process";
      pass(settings_.policy.departed_grace);
    }
    EXPECT_TRUE(neighbour_is_granted());
    restart();
    std::filesystem::remove(folder_.path() + "/clients");
  }
}

// Found by test/simulation (seed 80836): it goes on with a load for which it has leave.
TEST_F(OutlivesTest, AStoppedProgramKeepsWhatItWasGrantedOverARestart) {
  for (const bool nvml : {false, true}) {
    SCOPED_TRACE(nvml ? "NVML" : "no NVML");
    has_nvml_ = nvml;
    restart();
    join(1, kFirst, 10 * kGiB, 0);
    send(1, protocol::ReqLock{1});
    ASSERT_GE(packets_.last<protocol::LockOk>(1)->budget, 10 * static_cast<uint64_t>(kGiB));
    restart();
    EXPECT_FALSE(neighbour_is_granted());
    if (nvml) sample(kGiB, {{kFirst, kGiB}});
    now_ += settings_.restart_grace;
    engine().deadline_reached(now_);
    EXPECT_FALSE(neighbour_is_granted());
    EXPECT_GE(gpu().departed, 10 * kGiB);

    join(2, kFirst, 10 * kGiB, 10 * kGiB);
    EXPECT_EQ(gpu().departed, 0) << "it is back, and counts once";
    restart();
    std::filesystem::remove(folder_.path() + "/clients");
  }
}

// Found by test/simulation (seeds 30045972, 32024249, 581136601): it grew while no scheduler was there, and was stopped before the next one
// came.
TEST_F(OutlivesTest, WhatAStoppedProgramGrewByWithoutASchedulerCountsOnceNvmlShowsIt) {
  load_first(2 * kGiB);
  restart();
  join(kWaits, kNeighbour, kGiB, 0);
  sample(10 * kGiB, {{kFirst, 10 * kGiB}});
  now_ += settings_.restart_grace;
  engine().deadline_reached(now_);
  EXPECT_GE(gpu().departed, 10 * kGiB) << "by the look before";
  sample(12 * kGiB, {{kFirst, 12 * kGiB}});
  EXPECT_GE(gpu().departed, 12 * kGiB) << "by the next look";
  EXPECT_EQ(gpu().foreign, 0);
  sample(2 * kGiB, {{kFirst, 2 * kGiB}});
  EXPECT_GE(gpu().departed, 12 * kGiB) << "it may be about to use it again";
}

// Found by test/simulation (seed 200019): its connection broke just before the scheduler ended.
TEST_F(OutlivesTest, AProcessWhoseConnectionBrokeIsKnownToTheNextScheduler) {
  has_nvml_ = false;
  load_first();
  const uint64_t id = packets_.last<protocol::Registered>(1)->client_id;
  engine().disconnected(1, "test", ++now_);
  restart();
  join(2, kFirst, 10 * kGiB, 10 * kGiB, id);
  EXPECT_EQ(packets_.last<protocol::Registered>(2)->client_id, id);
  EXPECT_EQ(client(0).resident, 10 * kGiB);
  EXPECT_EQ(gpu().departed, 0);
}

// Found by test/simulation (seed 1720027961): it registered anew over another connection, and its scheduler ended before it could hear its
// new id. The third scheduler believed none of what it had.
TEST_F(OutlivesTest, AProcessIsKnownToTheNextSchedulerByAnEarlierIdToo) {
  for (const bool knows_an_id : {true, false}) {
    has_nvml_ = false;
    load_first();
    const uint64_t first = packets_.last<protocol::Registered>(1)->client_id;
    engine().disconnected(1, "test", ++now_);
    join(2, kFirst, 10 * kGiB, 10 * kGiB, first);
    const uint64_t second = packets_.last<protocol::Registered>(2)->client_id;
    ASSERT_NE(second, first);
    restart();
    join(3, kFirst, 10 * kGiB, 10 * kGiB, knows_an_id ? first : 0);
    EXPECT_EQ(packets_.last<protocol::Registered>(3)->client_id, second);
    EXPECT_EQ(client(0).resident, 10 * kGiB);
    EXPECT_EQ(gpu().departed, 0);
    restart();
    std::filesystem::remove(folder_.path() + "/clients");
  }
}

TEST_F(OutlivesTest, WhatNvmlListsCountsForAsLongAsItDoes) {
  load_first();
  for (int i = 0; i < 3; ++i) sample(10 * kGiB, {{kFirst, 10 * kGiB}});
  engine().disconnected(1, "test", ++now_);
  const policy::Instant left = now_;
  while (now_ < left + 2 * settings_.policy.watched_grace) {
    sample(10 * kGiB, {{kFirst, 10 * kGiB}});
    engine().deadline_reached(now_);
    ASSERT_FALSE(neighbour_is_granted()) << (now_ - left) / kSecond << " s later";
  }
  EXPECT_EQ(gpu().foreign, 0);
  sample(0, {});
  EXPECT_TRUE(neighbour_is_granted());
}

}  // namespace
}  // namespace nvshare::scheduler
