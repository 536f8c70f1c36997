// Limits of pods, by their UID: kept for clients that come later, in force for all processes that the kernel shows in the pod, for no
// other.
#include "scheduler/testing/test_pods.h"

namespace nvshare::scheduler {
namespace {

namespace admin = protocol::admin;

TEST_F(PodsTest, LimitsWaitForTheirPodsClientsAndHoldForAllOfThem) {
  set({{kTrain, "team/train", 4 * kGiB, 30, false}});
  join(1, kTrain);
  join(2, kTrain);
  join(3, kServe);
  EXPECT_EQ(tenants(), "pod team/train 4 30; pod " + std::string(kServe) + " 0 100; ");
  EXPECT_EQ(sink_.limits[1], 4u * kGiB);
  EXPECT_EQ(sink_.limits[2], 4u * kGiB);
  EXPECT_EQ(sink_.limits[3], 0u);
}

TEST_F(PodsTest, ChangesReachClientsAtOnceAndRemovalRestoresTheDefault) {
  join(1, kTrain);
  set({{kTrain, "team/train", 4 * kGiB, 30, false}});
  EXPECT_EQ(sink_.limits[1], 4u * kGiB);
  EXPECT_EQ(tenants(), "pod team/train 4 30; ");
  set({{kTrain, "team/train", 6 * kGiB, 100, false}});
  EXPECT_EQ(sink_.limits[1], 6u * kGiB);
  EXPECT_EQ(tenants(), "pod team/train 6 100; ");
  set({{kTrain, "team/train", 0, 100, false}}, true);
  EXPECT_EQ(sink_.limits[1], 0u);
  EXPECT_EQ(tenants(), "pod team/train 0 100; ");
}

// Deleted by force, its processes going on: told so by name, or by a list of all pods in which it is not.
TEST_F(PodsTest, APodThatIsGoneIsHeldToWhatItHad) {
  const std::string all = "pod team/train 3 50; pod team/serve 2 60; ";
  set({{kTrain, "team/train", 3 * kGiB, 50, false, 7, true}, {kServe, "team/serve", 2 * kGiB, 60, false, -7, false}});
  join(1, kTrain);
  join(2, kServe);
  EXPECT_EQ(tenants(), all);
  set({{kTrain, "", 0, 100, true}});
  set({}, true);
  EXPECT_EQ(tenants(), all);
  EXPECT_EQ(sink_.limits[1], static_cast<uint64_t>(3 * kGiB));
  EXPECT_EQ(sink_.limits[2], 2u * kGiB);
  EXPECT_EQ(status_of(engine_->parts(), now_).tenants.at(0).priority, 0) << "nobody gives it one any more";
  EXPECT_FALSE(status_of(engine_->parts(), now_).tenants.at(0).ends);
  EXPECT_EQ(status_of(engine_->parts(), now_).tenants.at(1).priority, -7);
  join(3, kTrain);
  EXPECT_EQ(sink_.limits[3], static_cast<uint64_t>(3 * kGiB));
  // Its last client leaves, and comes back.
  for (ConnectionId connection : {1, 3, 2}) engine_->disconnected(connection, "its connection ended", ++now_);
  EXPECT_EQ(tenants(), "") << "no clients, nobody who speaks for it";
  join(4, kTrain);
  EXPECT_EQ(sink_.limits[4], static_cast<uint64_t>(3 * kGiB));
  EXPECT_EQ(tenants(), "pod team/train 3 50; ");
  set({{kTrain, "team/train", kGiB, 100, false}});
  EXPECT_EQ(tenants(), "pod team/train 1 100; ") << "it is there after all";
  set({{kTrain, "", 0, 100, true}});
  EXPECT_EQ(tenants(), "pod team/train 1 100; ");
}

TEST_F(PodsTest, ASchedulerThatStartsAnewHoldsAPodThatIsGoneToWhatItHad) {
  keeps_tenants_ = true;
  start();
  set({{kTrain, "team/train", 3 * kGiB, 50, false}}, true);
  join(1, kTrain, test_registration(kGiB), getpid());
  set({}, true);
  const uint64_t id = status_of(engine_->parts(), now_).clients.at(0).id;
  start();
  set({}, true);
  auto returning = test_registration(kGiB);
  returning.client_id = id;
  join(2, kTrain, returning, getpid());
  EXPECT_EQ(sink_.limits[2], static_cast<uint64_t>(3 * kGiB));
  EXPECT_EQ(tenants(), "pod team/train 3 50; ");
}

// Its priority shows whether a pod is gone.
TEST_F(PodsTest, AllPodsMayBeNamedInSeveralRequests) {
  using List = admin::PodsRequest::List;
  const auto pod = [](const char* uid) { return admin::PodRequest{uid, uid, kGiB, 100, false, 5}; };
  const auto tell = [&](List list, std::vector<admin::PodRequest> pods) {
    EXPECT_TRUE(engine_->orders().set_pods({std::move(pods), false, list}, ++now_));
  };
  const auto priorities = [&] {
    std::string text;
    for (const auto& tenant : status_of(engine_->parts(), now_).tenants) text += std::to_string(tenant.priority);
    return text;
  };
  set({pod(kTrain), pod(kServe), pod(kOther), pod(kLate)});
  ConnectionId connection = 0;
  for (const char* uid : {kTrain, kServe, kOther, kLate}) join(++connection, uid);
  ASSERT_EQ(priorities(), "5555");
  tell(List::kFirst, {pod(kTrain)});
  tell(List::kNone, {pod(kServe)});
  EXPECT_EQ(priorities(), "5555") << "not all were named yet";
  tell(List::kLast, {pod(kOther)});
  EXPECT_EQ(priorities(), "5550");
  tell(List::kFirst, {pod(kTrain)});  // who named them ended, and comes again
  tell(List::kFirst, {pod(kServe)});
  tell(List::kLast, {pod(kOther)});
  EXPECT_EQ(priorities(), "0550");
  tell(List::kLast, {pod(kOther)});
  EXPECT_EQ(priorities(), "0550") << "its first part went to a scheduler of before";
  EXPECT_EQ(sink_.limits[4], 1u * kGiB);
}

// A pod's first client comes before the node's agent is back.
TEST_F(PodsTest, WhatWasToldOfPodsWithoutClientsOutlivesTheScheduler) {
  keeps_tenants_ = true;
  start();
  admin::PodRequest granted{kServe, "team/serve", 0, 100, false};
  set({{kTrain, "team/train", 3 * kGiB, 50, false}, {kOther, "team/other", 2 * kGiB, 60, false}});
  join(1, kServe);
  granted.gpu_memory_on = {{status_of(engine_->parts(), now_).gpus.at(0).uuid, kGiB}};
  engine_->disconnected(1, "its connection ended", ++now_);
  set({granted, {kOther, "", 0, 100, true}});
  for (int round = 0; round < 2; ++round) {
    start();
    join(2, kTrain);
    join(3, kServe);
    join(4, kOther);
    EXPECT_EQ(sink_.limits[2], static_cast<uint64_t>(3 * kGiB));
    EXPECT_EQ(sink_.limits[3], 1u * kGiB);
    EXPECT_EQ(sink_.limits[4], 2u * kGiB) << "it is gone, and comes back";
    EXPECT_EQ(tenants(), "pod team/train 3 50; pod team/serve 0 100; pod team/other 2 60; ");
  }
  set({}, true);
  set({{kTrain, "team/train", 0, 100, false}});
  start();
  join(5, kTrain);
  EXPECT_EQ(sink_.limits[5], 0u) << "what was told last";
}

// What is kept of them has a bound, whatever is deleted in a scheduler's life.
TEST_F(PodsTest, OfPodsThatAreGoneTheLatestAreKnown) {
  const auto uid = [](size_t i) { return fmt::format("{:08x}-31d7-4f6e-9c05-7a1b2c3d4e5f", i); };
  for (size_t i = 0; i <= PodRegistry::kGoneMax; ++i) {
    set({{uid(i), "team/" + std::to_string(i), 3 * kGiB, 50, false}});
    set({{uid(i), "", 0, 100, true}});
  }
  join(1, uid(0).c_str());
  EXPECT_EQ(sink_.limits[1], 0u);
  join(2, uid(1).c_str());
  EXPECT_EQ(sink_.limits[2], static_cast<uint64_t>(3 * kGiB));
  EXPECT_NE(tenants().find("pod team/1 3 50"), std::string::npos) << tenants();
}

TEST_F(PodsTest, AGoneMemberWhoseProgramsRunIsKnown) {
  const auto uid = [](size_t i) { return fmt::format("{:08x}-31d7-4f6e-9c05-7a1b2c3d4e5f", i); };
  admin::PodRequest member{kServe, "team/serve", 4 * kGiB, 100, false};
  member.member_of = kTrain;
  set({{kTrain, "team/train", 4 * kGiB, 100, false}, member});
  join(1, kServe);
  set({{kServe, "", 0, 100, true}});
  for (size_t i = 0; i <= PodRegistry::kGoneMax; ++i) {
    set({{uid(i), "team/" + std::to_string(i), 3 * kGiB, 50, false}});
    set({{uid(i), "", 0, 100, true}});
  }
  join(2, kServe);
  EXPECT_EQ(sink_.limits[2], static_cast<uint64_t>(4 * kGiB));
  EXPECT_EQ(tenants(), "pod team/train 4 100; ");
}

// The device plugin has just started and has not heard the API server: it knows what was granted, not what annotations said.
TEST_F(PodsTest, WhoDoesNotKnowAllOfAPodOnlyLowers) {
  tenants_file_ = folder_.path() + "/tenants";
  start();
  join(1, kTrain);
  set({{kTrain, "team/train", 4 * kGiB, 30, false, -5, true, {{"GPU-x", kGiB}}}});
  const auto granted = [](const char* uid, int64_t memory, int core, std::map<std::string, int64_t> on = {}) {
    return admin::PodRequest{uid, uid, memory, core, false, 0, false, std::move(on), true};
  };
  for (int round = 0; round < 2; ++round) {
    set({granted(kTrain, 8 * kGiB, 50, {{"GPU-x", 2 * kGiB}}), granted(kServe, 6 * kGiB, 60)});
    EXPECT_EQ(sink_.limits[1], 4u * kGiB);
    EXPECT_NE(tenants().find("pod team/train 4 30; "), std::string::npos) << tenants() << "also over a restart of the scheduler";
    EXPECT_EQ(status_of(engine_->parts(), now_).tenants.at(0).priority, -5);
    start();
    join(1, kTrain);
  }
  set({granted(kTrain, 0, 100)});
  EXPECT_EQ(sink_.limits[1], 4u * kGiB) << "none is more than any";
  set({granted(kTrain, 3 * kGiB, 20)});
  EXPECT_EQ(sink_.limits[1], 3u * kGiB);
  EXPECT_NE(tenants().find("pod team/train 3 20; "), std::string::npos) << tenants();
  set({granted(kServe, 6 * kGiB, 60)});
  join(2, kServe);
  EXPECT_EQ(sink_.limits[2], 6u * kGiB) << "of a pod of which nothing holds yet it is all there is";
  set({granted(kServe, 5 * kGiB, 70)});
  EXPECT_NE(tenants().find("5 60; "), std::string::npos) << tenants();
  set({{kTrain, "team/train", 8 * kGiB, 50, false}});
  EXPECT_EQ(sink_.limits[1], 8u * kGiB) << "whoever knows all of it may raise it";
  PodLimits held{"team/train", 0, 40, 7, true, {{"GPU-a", 5}, {"GPU-b", 3}}};
  held.core_reserved = 40;
  const PodLimits lowest = lowest_of(held, {"0b4e", 9, 50, 0, false, {{"GPU-b", 2}, {"GPU-c", 1}}});
  EXPECT_EQ(lowest.name, "team/train");
  EXPECT_EQ(lowest.gpu_memory_limit, 9);
  EXPECT_EQ(lowest.core_limit, 40);
  EXPECT_EQ(lowest.core_reserved, 40) << "what it was granted stays";
  EXPECT_EQ(lowest_of(held, {"0b4e", 9, 20}).core_reserved, 20) << "as far as its ceiling allows";
  EXPECT_EQ(lowest_of({"0b4e", 9, 20}, held).core_reserved, 0) << "nothing is reserved by whoever only lowers";
  EXPECT_EQ(lowest.priority, 7);
  EXPECT_TRUE(lowest.ends);
  EXPECT_EQ(lowest.memory_on, (std::map<std::string, int64_t>{{"GPU-a", 5}, {"GPU-b", 2}, {"GPU-c", 1}}));
}

// What the node granted is reserved; a ceiling, whoever set it, takes from that and adds nothing.
TEST_F(PodsTest, OnlyWhatWasGrantedIsReserved) {
  const auto reserved = [&] {
    const auto tenant = status_of(engine_->parts(), now_).tenants.at(0);
    return std::pair(tenant.gpu_core_limit, tenant.gpu_core_reserved);
  };
  protocol::admin::PodRequest pod{kTrain, "team/train", 0, 95, false};
  set({pod});
  join(1, kTrain);
  EXPECT_EQ(reserved(), std::pair(95, 0)) << "an annotation";
  pod.gpu_core_reserved = 50;
  pod.gpu_core_limit = 50;
  set({pod});
  EXPECT_EQ(reserved(), std::pair(50, 50)) << "granted";
  pod.gpu_core_reserved = pod.gpu_core_limit = 30;
  set({pod});
  EXPECT_EQ(reserved(), std::pair(30, 30)) << "granted, and lowered by an annotation";
  protocol::admin::SetRequest change;
  change.tenant = "team/train";
  change.gpu_core_ceiling = 20;
  ASSERT_TRUE(engine_->set(change, now_));
  EXPECT_EQ(reserved(), std::pair(20, 20));
  change.gpu_core_ceiling = 100;
  change.gpu_core_limit = 60;
  ASSERT_TRUE(engine_->set(change, now_));
  EXPECT_EQ(reserved(), std::pair(30, 30)) << "the pod's own limit is lower";
  pod.gpu_core_limit = 100;
  pod.gpu_core_reserved = 0;
  set({pod});
  EXPECT_EQ(reserved(), std::pair(60, 60)) << "by the administrator";
}

TEST_F(PodsTest, TheLowestOfAdminPodAndProgramHolds) {
  auto modest = test_registration(kGiB);
  modest.memory_limit = 2 * kGiB;
  set({{kTrain, "team/train", 4 * kGiB, 30, false}});
  join(1, kTrain, modest);
  EXPECT_EQ(sink_.limits[1], 2u * kGiB);
  auto greedy = test_registration(kGiB);
  greedy.memory_limit = 9 * kGiB;
  set({{kServe, "team/serve", 4 * kGiB, 30, false}});
  join(2, kServe, greedy);
  EXPECT_EQ(sink_.limits[2], 4u * kGiB) << "a client's own word only lowers";
  ASSERT_TRUE(engine_->set({{}, "team/serve", 3 * kGiB, 20}, ++now_));
  EXPECT_EQ(sink_.limits[2], 3u * kGiB);
  set({{kServe, "team/serve", 5 * kGiB, 90, false}});
  EXPECT_EQ(sink_.limits[2], 3u * kGiB) << "what an administrator set is no annotation's to raise";
  EXPECT_NE(tenants().find("pod team/serve 3 20"), std::string::npos) << tenants();
  ASSERT_TRUE(engine_->set({{}, "team/serve", 0, 100}, ++now_));
  EXPECT_NE(tenants().find("pod team/serve 5 90"), std::string::npos) << tenants();
}

// Containers of 4 and 2 GiB, each with its own in its environment.
TEST_F(PodsTest, AnEnvironmentsLimitIsItsContainersAndThePodHasTheSum) {
  auto trainer = test_registration(kGiB);
  trainer.memory_limit = 4 * kGiB;
  auto sidecar = test_registration(kGiB);
  sidecar.memory_limit = 2 * kGiB;
  join(1, kTrain, trainer, 0, 'a');
  join(2, kTrain, sidecar, 0, 'b');
  EXPECT_EQ(sink_.limits[1], 4u * kGiB);
  EXPECT_EQ(sink_.limits[2], 2u * kGiB);
  EXPECT_EQ(status_of(engine_->parts(), now_).tenants.at(0).memory.at(0).limit, 6 * kGiB);
  set({{kTrain, "team/train", 6 * kGiB, 100, false}});
  EXPECT_EQ(sink_.limits[1], 4u * kGiB);
  set({{kTrain, "team/train", 3 * kGiB, 100, false}});
  EXPECT_EQ(sink_.limits[1], 3u * kGiB) << "an annotation is the pod's";
  EXPECT_EQ(sink_.limits[2], 2u * kGiB);
  // A program that drops its variable has what its pod has, and its neighbours keep their own.
  join(3, kTrain, test_registration(kGiB), 0, 'c');
  EXPECT_EQ(sink_.limits[3], 3u * kGiB);
  EXPECT_EQ(sink_.limits[2], 2u * kGiB);
  auto modest = test_registration(kGiB);
  modest.memory_limit = kGiB;
  join(4, kTrain, modest, 0, 'a');
  EXPECT_EQ(sink_.limits[1], 1u * kGiB) << "one process's environment lowers its container's";
  EXPECT_EQ(sink_.limits[2], 2u * kGiB);
}

// What it was granted on each GPU lowers the pod's limit there, and an annotation's both.
TEST_F(PodsTest, WhatWasGrantedOnAGpuHoldsThere) {
  join(1, kTrain);
  const std::string gpu = status_of(engine_->parts(), now_).gpus.at(0).uuid;
  const auto with = [&](int64_t limit, std::map<std::string, int64_t> on) {
    admin::PodRequest pod{kTrain, "team/train", limit, 100, false};
    pod.gpu_memory_on = std::move(on);
    set({pod});
  };
  with(8 * kGiB, {{gpu, 4 * kGiB}, {"GPU-other", kGiB}});
  EXPECT_EQ(sink_.limits[1], 4u * kGiB);
  join(2, kTrain);
  EXPECT_EQ(sink_.limits[2], 4u * kGiB) << "and for clients that come later";
  with(3 * kGiB, {{gpu, 4 * kGiB}});
  EXPECT_EQ(sink_.limits[1], 3u * kGiB);
  with(0, {{gpu, 5 * kGiB}});
  EXPECT_EQ(sink_.limits[1], 5u * kGiB);
  with(0, {{"GPU-other", kGiB}});
  EXPECT_EQ(sink_.limits[1], 0u);
  with(0, {{gpu, 2 * kGiB}});
  set({{kTrain, "", 0, 100, true}});
  EXPECT_EQ(sink_.limits[1], static_cast<uint64_t>(2 * kGiB)) << "also when it is gone";
}

// Two pods share a claim. The first one ends before the other, and schedulers and agents start anew meanwhile.
TEST_F(PodsTest, PodsOfOneClaimAreOneTenant) {
  keeps_tenants_ = true;
  start();
  admin::PodRequest leader{kTrain, "team/train", 4 * kGiB, 30, false};
  admin::PodRequest member{kServe, "team/serve", 4 * kGiB, 30, false};
  member.member_of = kTrain;
  set({member});
  join(1, kServe);
  EXPECT_EQ(sink_.limits[1], 4u * kGiB) << "also where only the member was told of yet";
  set({leader, member});
  join(2, kTrain);
  join(3, kServe, test_registration(kGiB), 0, 'b');
  EXPECT_EQ(tenants(), "pod team/train 4 30; ");
  ASSERT_EQ(status_of(engine_->parts(), now_).tenants.size(), 1u);
  EXPECT_EQ(status_of(engine_->parts(), now_).tenants.at(0).clients, 3u);
  leader.gpu_memory_limit = 2 * kGiB;
  set({leader});
  for (ConnectionId connection : {1, 2, 3}) EXPECT_EQ(sink_.limits[connection], 2u * kGiB) << connection;
  engine_->disconnected(2, "its connection ended", ++now_);
  start();
  join(4, kServe);
  EXPECT_EQ(sink_.limits[4], 2u * kGiB) << "a scheduler that starts anew";
  set({{kServe, "", 0, 100, true}});
  join(5, kServe);
  EXPECT_EQ(tenants(), "pod team/train 2 30; ") << "a member that is gone, and goes on";
  set({{kTrain, "", 0, 100, true}});
  join(6, kServe);
  EXPECT_EQ(sink_.limits[6], 2u * kGiB) << "both are gone";
  EXPECT_EQ(tenants(), "pod team/train 2 30; ");
}

// It is told late that the pod shares a claim: what runs is held to the claim's limits by itself, what comes later with the others.
TEST_F(PodsTest, AMemberThatIsToldOfLateKeepsItsLimits) {
  join(1, kServe);
  admin::PodRequest member{kServe, "team/serve", 4 * kGiB, 30, false};
  member.member_of = kTrain;
  set({{kTrain, "team/train", 4 * kGiB, 30, false}, member});
  EXPECT_EQ(sink_.limits[1], 4u * kGiB);
  join(2, kServe);
  EXPECT_EQ(tenants(), "pod team/train 4 30; pod team/serve 4 30; ");
}

TEST_F(PodsTest, OutsideThePodNothingChanges) {
  set({{kTrain, "team/train", 4 * kGiB, 30, false}});
  Peer outside;
  outside.pid = 400'000'000;
  cgroups_[outside.pid] = "0::/user.slice/session-1.scope\n";
  engine_->connected(9, std::move(outside));
  auto liar = test_registration(kGiB);
  std::snprintf(liar.program, sizeof liar.program, "team/train");
  engine_->received(9, protocol::encode(liar).span(), ++now_);
  EXPECT_EQ(sink_.limits[9], 0u);
  // A process that ended, its number another one's by now: that one's pod is not its.
  Peer gone;
  gone.pid = 500'000'000;
  gone.start_time = 5;
  cgroups_[gone.pid] = container_of(kTrain, 'a');
  engine_->connected(10, std::move(gone));
  engine_->received(10, protocol::encode(test_registration(kGiB)).span(), ++now_);
  EXPECT_EQ(sink_.limits[10], 0u);
}

// Limits are ceilings: however much they add up to, nobody is kept from a GPU of 16 GiB for them.
TEST_F(PodsTest, LimitsThatAddUpToMoreThanThereIsKeepNobodyOut) {
  join_asking(1, kServe, 10 * kGiB);
  join_asking(2, kOther, 6 * kGiB);
  join_asking(3, kLate, 100 * kGiB);
  join(4, kTrain);
  ASSERT_TRUE(sink_.closed.empty());
  EXPECT_EQ(sink_.limits[1], 10u * kGiB);
  EXPECT_EQ(sink_.limits[3], 100u * kGiB);
  set({{kTrain, "team/train", 12 * kGiB, 40, false}});
  EXPECT_EQ(sink_.limits[4], 12u * kGiB);
  ASSERT_TRUE(engine_->set({{}, "team/train", 11 * kGiB}, ++now_)) << "nor are they refused";
  EXPECT_EQ(sink_.limits[4], 11u * kGiB);
  EXPECT_TRUE(sink_.closed.empty());
}

TEST_F(PodsTest, PrioritiesAreAddedAndLive) {
  const auto priority = [&] { return status_of(engine_->parts(), now_).tenants.at(0).priority; };
  set({{kTrain, "team/train", 0, 100, false, -5, false}});
  join(1, kTrain);
  EXPECT_EQ(priority(), -5);
  ASSERT_TRUE(engine_->set({{}, "team/train", {}, {}, 20}, ++now_));
  EXPECT_EQ(priority(), 15);
  set({{kTrain, "team/train", 0, 100, false, 100, false}});
  EXPECT_EQ(priority(), 100) << "no more than there is";
  ASSERT_TRUE(engine_->set({{}, "team/train", {}, {}, 0}, ++now_));
  set({{kTrain, "", 0, 100, true}});
  EXPECT_EQ(priority(), 0);
}

// What a pod's end does to turns is the policy's (policy_test.cc): here, that the word reaches it, for those that are there, and again
// for those that come back to a new scheduler.
TEST_F(PodsTest, APodThatEndsGetsTheNextTurn) {
  const auto locks = [&] { return sink_.locks; };
  const auto obey = [&](ConnectionId connection) {  // out, or in: all at once
    const bool out = sink_.dropped.contains(connection);
    if (!out) return;
    protocol::LockReleased released{sink_.dropped[connection], 0, {}, 0, 0, 0, {12 * kGiB, 0, 0, 12 * kGiB, 12 * kGiB}};
    sink_.dropped.erase(connection);
    engine_->received(connection, protocol::encode(released).span(), now_ += 1'000'000);
  };
  settings_.policy.switch_time_mode = policy::SwitchTimeMode::kFixed;
  start();
  for (ConnectionId connection = 1; connection <= 3; ++connection) {
    join(connection, connection == 3 ? kTrain : kServe, test_registration(12 * kGiB));
    engine_->received(connection, protocol::encode(protocol::ReqLock{1}).span(), ++now_);
  }
  protocol::SwapProgress loaded{};
  loaded.direction = 1;
  loaded.finished = 1;
  loaded.id = sink_.dropped.empty() ? sink_.granted[1].grant : 0;
  loaded.memory = {12 * kGiB, 12 * kGiB, 0, 12 * kGiB, 12 * kGiB};
  engine_->received(1, protocol::encode(loaded).span(), now_ += 1'000'000);
  EXPECT_EQ(locks(), (std::vector<ConnectionId>{1}));
  EXPECT_FALSE(sink_.dropped.contains(1)) << "its turn lasts a minute";
  set({{kTrain, "team/train", 0, 100, false, 0, true}});
  EXPECT_TRUE(status_of(engine_->parts(), now_).tenants.at(0).ends);
  ASSERT_TRUE(sink_.dropped.contains(1));
  obey(1);
  EXPECT_EQ(locks(), (std::vector<ConnectionId>{1, 3})) << "before the second, which has waited for longer";
  set({{kTrain, "", 0, 100, true}});
  EXPECT_FALSE(status_of(engine_->parts(), now_).tenants.at(0).ends);
}

// Its container has no library (a runtime that drops CDI devices): nobody knew, and a pod without limits was not even looked for.
TEST_F(PodsTest, AGrantedPodThatNeverConnectsIsTold) {
  GpuUuid gpu;
  gpu.fill(1);
  gpus_ = {{gpu, "GPU of this test", 8 * kGiB}};
  start();
  EXPECT_TRUE(engine_->to_look_at().in_use.empty()) << "nobody to look for";
  set({{kTrain, "team/train", 0, 100, false}});
  EXPECT_EQ(engine_->to_look_at().in_use.size(), 1u);
  cgroups_[getpid()] = container_of(kTrain, 'a');
  const auto sample = [&](int samples) {
    for (int i = 0; i < samples; ++i) {
      now_ += 1'000'000'000;
      GpuSample seen;
      seen.uuid = gpu;
      seen.taken_at = now_;
      seen.used_before = seen.used_after = kGiB;
      seen.processes = {{getpid(), kGiB}};
      engine_->memory_sampled({seen}, now_);
    }
  };
  sample(9);
  EXPECT_TRUE(engine_->parts().notices.after(0).empty()) << "it may be about to connect";
  sample(3);
  const auto notices = engine_->parts().notices.after(0);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].uid, kTrain);
  EXPECT_EQ(notices[0].reason, "NotShared");
  EXPECT_NE(notices[0].text.find("past nvshare, 1024 MiB"), std::string::npos) << notices[0].text;
  EXPECT_EQ(status_of(engine_->parts(), now_).bypasses.size(), 1u) << "and so the metric";
  EXPECT_TRUE(engine_->parts().notices.after(notices[0].number).empty());
}

TEST_F(PodsTest, AnAllocationPastTheLimitIsToldWithWhoHasWhat) {
  set({{kTrain, "team/train", 4 * kGiB, 100, false}});
  join(1, kTrain);
  join(2, kTrain);
  join(3, kServe);
  const auto ask = [&](ConnectionId connection, int64_t bytes) {
    engine_->received(connection, protocol::encode(protocol::AskHeadroom{++request_, static_cast<uint64_t>(bytes), 0}).span(), ++now_);
  };
  ask(1, 5 * kGiB);
  auto notices = engine_->parts().notices.after(0);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].reason, "GpuOutOfMemory");
  EXPECT_EQ(notices[0].uid, kTrain);
  for (const char* part : {"asked for 5120 MiB", "limit of 4096 MiB", "(500000001)", "(500000002)", "contexts do not"}) {
    EXPECT_NE(notices[0].text.find(part), std::string::npos) << notices[0].text;
  }
  for (int i = 0; i < 1000; ++i) ask(1, 5 * kGiB);
  const uint64_t first = notices[0].number;
  EXPECT_TRUE(engine_->parts().notices.after(first).empty()) << "not each of them";
  now_ += PodNotices::kInterval;
  ask(1, 5 * kGiB);
  notices = engine_->parts().notices.after(first);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].text.find("1001 times"), std::string::npos) << notices[0].text;
}

TEST_F(PodsTest, NoticesAreBounded) {
  PodNotices notices;
  for (int i = 0; i < 1000; ++i) notices.add("pod " + std::to_string(i), "NotShared", "text", i);
  EXPECT_EQ(notices.after(0).size(), PodNotices::kMost);
  EXPECT_EQ(notices.after(0).back().uid, "pod 999") << "the latest stay";
}

}  // namespace
}  // namespace nvshare::scheduler
