// The engine without sockets: what it makes of NVML's figures, and what it believes of what clients say.
#include <fmt/format.h>

#include "scheduler/testing/test_engine.h"

namespace nvshare::scheduler {
namespace {

TEST_F(EngineTest, ForeignMemoryAndOverheadComeFromNvml) {
  join(1, 1001, 4 * kGiB, 4 * kGiB);
  for (int i = 0; i < 3; ++i) sample(7 * kGiB, {{1001, 4 * kGiB + 500 * kMiB}, {5, kGiB}});
  EXPECT_EQ(client(0).overhead, 500 * kMiB);
  EXPECT_EQ(gpu().foreign, 7 * kGiB - 4 * kGiB - 500 * kMiB);
  EXPECT_TRUE(gpu().nvml);
  int64_t limit = gpu().safe_limit;
  for (int i = 0; i < 3; ++i) sample(5 * kGiB, {{1001, 4 * kGiB + 500 * kMiB}});
  EXPECT_GT(gpu().safe_limit, limit);
}

TEST_F(EngineTest, AClientThatNvmlDoesNotListCountsByItsOwnReport) {
  join(1, 1001, 4 * kGiB, 4 * kGiB);
  for (int i = 0; i < 3; ++i) sample(4 * kGiB + 300 * kMiB, {{77, 4 * kGiB + 300 * kMiB}});  // another PID namespace's number
  EXPECT_EQ(gpu().foreign, 0);
}

// Under a compute limit one says it with every turn, several times between two looks (simulation, seed 3300001333).
TEST_F(EngineTest, AContextIsMeasuredThoughItsClientSaysAgainWhatItHas) {
  join(1, 1001, 4 * kGiB, 4 * kGiB);
  for (int i = 0; i < 3; ++i) {
    send(1, protocol::MemUpdate{{4 * kGiB, 4 * kGiB, 0, 0, 0}, 0, 0, 0, 0, 0});
    sample(4 * kGiB + 500 * kMiB, {{1001, 4 * kGiB + 500 * kMiB}});
  }
  EXPECT_EQ(client(0).overhead, 500 * kMiB);
}

// From another PID namespace it lists nobody: that is no news of contexts (simulation, seeds 10 and 3300011219).
TEST_F(EngineTest, AContextThatNvmlCannotListCounts) {
  join(1, 1001, 4 * kGiB, 4 * kGiB);
  for (int i = 0; i < 60; ++i) sample(4 * kGiB + 185 * kMiB, {});
  EXPECT_EQ(client(0).overhead, 300 * kMiB);
  sample(4 * kGiB, {});
  EXPECT_EQ(client(0).overhead, 300 * kMiB) << "what it has may be on its way out, and not be told yet";
  for (int i = 0; i < 60; ++i) sample(4 * kGiB, {});
  EXPECT_EQ(client(0).overhead, 0) << "nobody has one";
}

// All of a user's contexts that NVML has not listed count as a part of the GPU; what they take beyond that is in use all the same
// (simulation, seed 325).
TEST_F(EngineTest, ContextsThatNvmlCannotListCountInAll) {
  constexpr int kClients = 8;
  auto message = test_registration(kGiB);
  message.memory.resident = kGiB;
  for (int i = 0; i < kClients; ++i) join_as(1 + i, 1001 + i, 1000, message);
  const int64_t contexts = kClients * 400 * kMiB;
  for (int i = 0; i < 3; ++i) sample(kClients * kGiB + contexts, {});
  EXPECT_LT(gpu().overhead, contexts / 2);
  EXPECT_EQ(gpu().overhead + gpu().foreign, contexts);
}

// NVML lists processes that have a context. Handles of physical memory outlive it.
TEST_F(EngineTest, MemoryOfAClientWhoseContextIsGoneIsNotForeign) {
  join(1, 1001, 4 * kGiB, 4 * kGiB);
  join(2, 1002, kGiB, kGiB);
  for (int i = 0; i < 3; ++i) sample(5 * kGiB, {{1001, 4 * kGiB}, {1002, kGiB}});
  const int64_t limit = gpu().safe_limit;
  for (int i = 0; i < 3; ++i) sample(5 * kGiB, {{1002, kGiB}});
  EXPECT_EQ(gpu().foreign, 0);
  EXPECT_EQ(gpu().safe_limit, limit);
  for (int i = 0; i < 3; ++i) sample(7 * kGiB, {{1002, kGiB}, {5, 2 * kGiB}});
  EXPECT_EQ(gpu().foreign, 2 * kGiB) << "what others have is";
}

// Two programs once stood still for ever where host memory was short: what one had allocated without the lock counted as swapped, so that
// the host memory that it did not use was not asked back (simulation, seed 97).
TEST_F(EngineTest, WhatWasAllocatedWithoutTheLockNeedsNoHostMemory) {
  join(1, 1001, 4 * kGiB, 4 * kGiB);
  send(1, protocol::ArenaRequest{1, uint64_t{4} * kGiB, static_cast<uint8_t>(protocol::ArenaOwner::kProcess), 1, {}});
  const auto report = [&](uint64_t allocated, uint64_t resident) {
    protocol::MemUpdate update{};
    update.memory = {allocated, resident, 0, uint64_t{4} * kGiB, allocated};
    send(1, update);
    return status_of(engine().parts(), now_).host_memory_used;
  };
  EXPECT_EQ(report(4 * kGiB, 4 * kGiB), 0);
  EXPECT_EQ(report(6 * kGiB, 4 * kGiB), 0) << "an address, so far";
  EXPECT_EQ(report(6 * kGiB, 3 * kGiB), kGiB) << "moved out";
  EXPECT_EQ(report(7 * kGiB, 2 * kGiB), 2 * kGiB) << "both at once";
  EXPECT_EQ(report(6 * kGiB, 2 * kGiB), 2 * kGiB) << "freed: it may be what was never written";
  EXPECT_EQ(report(6 * kGiB, 6 * kGiB), 0) << "came in";
  EXPECT_EQ(report(6 * kGiB, 3 * kGiB), 3 * kGiB) << "and has been written since";
}

// What is prepared and not used lies in a segment of which a part is in use, and does not come back: a neighbour's load once waited for
// that for ever (simulation, seed 1590173813).
TEST_F(EngineTest, HostMemoryIsNotPreparedBeyondWhatAClientHas) {
  join(1, 1001, 864 * kMiB, 864 * kMiB);
  join(2, 1002, 15 * kGiB, 0);
  const auto prepared = [&](ConnectionId of) {
    const auto told = packets_.last<protocol::PrepareSwap>(of);
    return told ? static_cast<int64_t>(told->bytes) : -1;
  };
  EXPECT_GE(prepared(1), 0) << "both do not fit";
  EXPECT_LT(prepared(1), 864 * kMiB + 64 * kMiB);
  EXPECT_EQ(prepared(1) % (64 * kMiB), 0) << "no segments too small to swap to";
}

TEST_F(EngineTest, ToldToUseLessForeignMemoryFirstFillsTheRest) {
  settings_.gpu_physical_memory = 10 * kGiB;
  join(1, 1001, 0, 0);
  for (int i = 0; i < 3; ++i) sample(6 * kGiB, {{5, 6 * kGiB}});
  EXPECT_EQ(gpu().foreign, 0);
  for (int i = 0; i < 3; ++i) sample(8 * kGiB, {{5, 8 * kGiB}});
  EXPECT_EQ(gpu().foreign, 2 * kGiB);
}

TEST_F(EngineTest, AnIncredibleSizeOfTheGpuIsNotBelieved) {
  Peer peer;
  peer.pid = 1001;
  peer.start_time = 1;
  engine().connected(1, std::move(peer));
  auto message = test_registration(0);
  message.gpu_total_bytes = 1;
  send(1, message);
  EXPECT_EQ(gpu().total, 16 * kGiB);
}

TEST_F(EngineTest, WhatAClientSaysBeyondWhatNvmlShowsHarmsOnlyItself) {
  join(1, 1001, 4 * kGiB, 4 * kGiB);
  join(2, 1002, 0, 0);
  const std::vector<ProcessMemory> processes = {{1001, 4 * kGiB + 300 * kMiB}, {1002, 300 * kMiB}};
  for (int i = 0; i < 3; ++i) sample(4 * kGiB + 600 * kMiB, processes);
  const int64_t limit = gpu().safe_limit;
  const uint64_t all = uint64_t{1} << 50;
  send(2, protocol::MemUpdate{{all, all, all, 0, 0}, 0, 0, 0, 0, 0});
  EXPECT_LE(client(1).resident, kGiB);
  EXPECT_LE(client(1).unswappable, kGiB);
  for (int i = 0; i < 3; ++i) sample(4 * kGiB + 600 * kMiB, processes);
  EXPECT_GE(gpu().safe_limit, limit);
  EXPECT_EQ(gpu().foreign, 0) << "nor does it hide others' memory";
  join(3, 1003, 0, 0);
  EXPECT_GT(packets_.last<protocol::Registered>(3)->memory_ceiling, static_cast<uint64_t>(10 * kGiB));
  send(1, protocol::ReqLock{1});
  EXPECT_GE(packets_.last<protocol::LockOk>(1)->budget, static_cast<uint64_t>(4 * kGiB));

  // As soon as it has that memory, it counts.
  for (int i = 0; i < 3; ++i) sample(8 * kGiB + 600 * kMiB, {processes[0], {1002, 4 * kGiB + 300 * kMiB}});
  EXPECT_GE(client(1).unswappable, 4 * kGiB);
}

TEST_F(EngineTest, WhatWasGrantedIsBelievedBeforeNvmlShowsIt) {
  join(1, 1001, 4 * kGiB, 0);
  for (int i = 0; i < 3; ++i) sample(300 * kMiB, {{1001, 300 * kMiB}});
  send(1, protocol::ReqLock{1});
  const auto lock = packets_.last<protocol::LockOk>(1);
  ASSERT_TRUE(lock);
  send(1, protocol::MemUpdate{{4 * kGiB, 4 * kGiB, 0, 0, 0}, lock->budget, lock->budget_sequence, 0, 0, 0});
  EXPECT_EQ(client(0).resident, 4 * kGiB);
  send(1, protocol::LockReleased{lock->grant, 1, {}, 0, 0, 0, {4 * kGiB, 4 * kGiB, 0, 0, 0}});
  sample(300 * kMiB, {{1001, 300 * kMiB}});  // begun before it had loaded
  EXPECT_EQ(client(0).resident, 4 * kGiB);
  sample(4 * kGiB + 300 * kMiB, {{1001, 4 * kGiB + 300 * kMiB}});
  EXPECT_EQ(client(0).resident, 4 * kGiB);
  for (int i = 0; i < 2; ++i) sample(300 * kMiB, {{1001, 300 * kMiB}});
  EXPECT_LE(client(0).resident, kGiB) << "NVML does not show what it still speaks of";
}

TEST_F(EngineTest, ManyIdleRegistrationsTakeAPartOfTheGpuAndThatNotForLong) {
  join(1, 1001, 0, 0);
  for (int i = 0; i < 3; ++i) sample(300 * kMiB, {{1001, 300 * kMiB}});
  const int64_t alone = gpu().safe_limit;
  for (int i = 0; i < 60; ++i) join_as(100 + i, 2000 + i, 1000, test_registration(0));
  EXPECT_GE(gpu().safe_limit, alone - gpu().total / 16) << "of one user, each process a tenant of its own";
  EXPECT_LT(gpu().safe_limit, alone) << "but they may be about to make contexts";
  for (int i = 0; i < 60; ++i) sample(300 * kMiB, {{1001, 300 * kMiB}});
  EXPECT_EQ(gpu().safe_limit, alone) << "NVML has not listed them for 10 s";
  for (int i = 0; i < 3; ++i) sample(kGiB, {{1001, 300 * kMiB}, {2000, 400 * kMiB}});
  EXPECT_LE(gpu().safe_limit, alone - 400 * kMiB) << "one has made its context after all";
}

TEST_F(EngineTest, ALockOfTheFormerSchedulerIsBelievedOnlyOfThoseThatItKnew) {
  join(1, 1001, 12 * kGiB, 0);
  send(1, protocol::ReqLock{1});
  ASSERT_TRUE(packets_.last<protocol::LockOk>(1));
  for (int i = 0; i < 50; ++i) {
    auto liar = test_registration(12 * kGiB);
    liar.has_lock = 1;
    liar.client_id = 1;
    join_as(2, 1002, 1000, liar);
    EXPECT_FALSE(packets_.last<protocol::DropLock>(1));
    EXPECT_TRUE(packets_.last<protocol::DropLock>(2)) << "counts as running, and is the first to go";
    engine().disconnected(2, "test", ++now_);
  }
  EXPECT_EQ(client(0).state, "loading");
}

TEST_F(EngineTest, WithoutNvmlALaterClientCorrectsTheSizeThatALiarGaveTheGpu) {
  has_nvml_ = false;
  auto message = test_registration(0);
  const uint64_t honest = message.gpu_total_bytes;
  message.gpu_total_bytes = 1;
  join_as(1, 1001, 1000, message);
  message.gpu_total_bytes = honest;
  join_as(2, 1002, 1001, message);
  EXPECT_EQ(status_of(engine().parts(), now_).gpus.at(0).total, static_cast<int64_t>(honest));
  message.gpu_total_bytes = uint64_t{1} << 50;
  join_as(3, 1003, 1000, message);
  EXPECT_LE(status_of(engine().parts(), now_).gpus.at(0).total, int64_t{1} << 42);
}

TEST_F(EngineTest, WithoutNvmlAClientHasWhatItWasGrantedAndNoMore) {
  has_nvml_ = false;
  auto liar = test_registration(0);
  const uint64_t all = uint64_t{1} << 50;
  liar.memory = {all, all, all, 0, 0};
  join_as(1, 1001, 1000, liar);
  EXPECT_EQ(client(0).resident, 0);
  send(1, protocol::MemUpdate{{all, all, all, 0, 0}, 0, 0, 0, 0, 0});
  EXPECT_EQ(client(0).unswappable, 0);
  join(2, 1002, 4 * kGiB, 0);
  send(2, protocol::ReqLock{1});
  const auto lock = packets_.last<protocol::LockOk>(2);
  ASSERT_TRUE(lock);
  EXPECT_GE(lock->budget, static_cast<uint64_t>(4 * kGiB));
  send(2, protocol::LockReleased{lock->grant, 1, {}, 0, 0, 0, {4 * kGiB, 4 * kGiB, 0, 0, 0}});
  EXPECT_EQ(client(1).resident, 4 * kGiB);
}

TEST_F(EngineTest, AClaimDoesNotGrowPastTheTenantsLimit) {
  join(1, 1001, kGiB, 0);
  const std::string tenant = std::to_string(client(0).tenant);
  ASSERT_TRUE(engine().set({{}, tenant, kGiB, {}, {}}, now_));
  send(1, protocol::MemUpdate{{8 * kGiB, 0, 0, 0, 0}, 0, 0, 0, 0, 0});
  EXPECT_LE(client(0).allocated, kGiB + ClaimBound::kSlack);
  ASSERT_TRUE(engine().set({{}, tenant, 256 * kMiB, {}, {}}, now_));
  send(1, protocol::MemUpdate{{kGiB, 0, 0, 0, 0}, 0, 0, 0, 0, 0});
  EXPECT_EQ(client(0).allocated, kGiB) << "what it had before";
}

TEST_F(EngineTest, ANameOfNoTenantOrOfSeveralIsAnsweredWithThoseThereAre) {
  const auto refusal = [&](const std::string& tenant) {
    const Result<void> done = engine().set({{}, tenant, kGiB, {}, {}}, now_);
    return done ? std::string("no refusal") : std::string(done.error().text);
  };
  EXPECT_EQ(refusal("nobody"), "there is no tenant 'nobody'; there are: none");
  join(1, 1001, kGiB, 0);
  join(2, 1002, kGiB, 0);
  const std::string one = fmt::format("test ({})", client(0).tenant), other = fmt::format("test ({})", client(1).tenant);
  ASSERT_NE(one, other);
  const std::string none = refusal("nobody"), several = refusal("test");
  EXPECT_TRUE(none.starts_with("there is no tenant 'nobody'; there are: ")) << none;
  EXPECT_TRUE(several.starts_with("several tenants are called 'test': ") && several.ends_with("; name one by its id")) << several;
  for (const std::string& text : {none, several}) {
    EXPECT_NE(text.find(one), std::string::npos) << text;
    EXPECT_NE(text.find(other), std::string::npos) << text;
  }
}

// What viewers wait for; a memory limit is the ledger's business, which no step of the policy sees.
TEST_F(EngineTest, LimitsAndTurnsAreChangesAndFiguresAreNot) {
  join(1, 1001, kGiB, 0);
  const std::string tenant = std::to_string(client(0).tenant);
  uint64_t before = engine().parts().steps.changes();
  ASSERT_TRUE(engine().set({{}, tenant, kGiB, {}, {}}, now_));
  EXPECT_GT(engine().parts().steps.changes(), before);
  before = engine().parts().steps.changes();
  ASSERT_TRUE(engine().set({{}, tenant, kGiB, {}, {}}, now_));
  EXPECT_EQ(engine().parts().steps.changes(), before) << "the same limit again";
  protocol::admin::SetRequest sharing;
  sharing.tenant = tenant;
  sharing.sharing = "turns";
  ASSERT_TRUE(engine().set(sharing, now_));
  EXPECT_GT(engine().parts().steps.changes(), before);
  before = engine().parts().steps.changes();
  send(1, protocol::MemUpdate{{kGiB / 2, 0, 0, 0, 0}, 0, 0, 0, 0, 0});
  EXPECT_EQ(engine().parts().steps.changes(), before) << "an amount";
  send(1, protocol::ReqLock{1});
  EXPECT_GT(engine().parts().steps.changes(), before);
  EXPECT_EQ(status_of(engine().parts(), now_).changes, engine().parts().steps.changes());
}

TEST_F(EngineTest, WithoutNvmlTheConfiguredSizeOfTheGpuHolds) {
  settings_.gpu_physical_memory = 8 * kGiB;
  has_nvml_ = false;
  auto message = test_registration(0);
  message.gpu_total_bytes = 1;
  join_as(1, 1001, 1000, message);
  EXPECT_EQ(status_of(engine().parts(), now_).gpus.at(0).total, 8 * kGiB);
}

TEST_F(EngineTest, HugeFiguresFromAClientDoNotOverflow) {
  join(1, 1001, kGiB, 0);
  send(1, protocol::ReqLock{1});
  send(1, protocol::MemUpdate{{uint64_t(kGiB), 0, 0, 0}, UINT64_MAX, 1, UINT64_MAX, UINT64_MAX, UINT64_MAX});
  auto answer = packets_.last<protocol::MemAvailable>(1);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->granted, 0);
  EXPECT_EQ(answer->request, UINT64_MAX);
}

}  // namespace
}  // namespace nvshare::scheduler
