#include <algorithm>

#include "scheduler/testing/test_engine.h"

namespace nvshare::scheduler {
namespace {

using protocol::MpsGroup;
using protocol::MpsState;

class EngineMpsTest : public EngineTest {
 protected:
  void connect(ConnectionId connection, uid_t uid) {
    Peer peer;
    peer.pid = 500;
    peer.uid = uid;
    peer.start_time = 1;
    engine().connected(connection, std::move(peer));
  }
  bool is_closed(ConnectionId connection) {
    return std::find(packets_.closed.begin(), packets_.closed.end(), connection) != packets_.closed.end();
  }
};

TEST_F(EngineMpsTest, ItIsOffUnlessSomebodyLooksAfterIt) {
  connect(1, 1000);
  send(1, protocol::AskMps{});
  ASSERT_TRUE(packets_.last<MpsGroup>(1));
  EXPECT_EQ(packets_.last<MpsGroup>(1)->state, static_cast<uint8_t>(MpsState::kOff));
  EXPECT_TRUE(is_closed(1));
}

TEST_F(EngineMpsTest, WhoAsksWaitsForTheAnswerAndMayDoNothingElse) {
  int asked = 0;
  ask_mps_ = [&](ConnectionId, const Peer& peer, const std::string& group) {
    ++asked;
    EXPECT_EQ(group, "");
    EXPECT_EQ(peer.uid, 1000u);
  };
  connect(1, 1000);
  send(1, protocol::AskMps{});
  send(1, protocol::AskMps{});
  EXPECT_EQ(asked, 1) << "once";
  EXPECT_FALSE(is_closed(1));
  engine().answer_mps(1, MpsGroup{static_cast<uint8_t>(MpsState::kServes), {}, "/run/pipe", ""});
  EXPECT_STREQ(packets_.last<MpsGroup>(1)->directory, "/run/pipe");
  EXPECT_TRUE(is_closed(1));
  engine().answer_mps(1, MpsGroup{});  // it is gone: nothing happens
  connect(2, 1000);
  send(2, protocol::AskMps{});
  send(2, test_registration(0));
  EXPECT_TRUE(packets_.last<protocol::Refused>(2)) << "its connection is for that alone";
}

TEST_F(EngineMpsTest, ARegisteredClientMayNotAsk) {
  join(1, 501, 0, 0);
  send(1, protocol::AskMps{});
  EXPECT_TRUE(packets_.last<protocol::Refused>(1));
}

TEST_F(EngineMpsTest, OnlyProcessesOfThatUserThatAreListedAreAttached) {
  join_as(1, 501, 1000, test_registration(0));
  join_as(2, 502, 1000, test_registration(0));
  join_as(3, 503, 1001, test_registration(0));
  engine().sharing().mps_seen({{1000, ""}, 1, {501, 503}}, now_);
  EXPECT_TRUE(client(0).mps);
  EXPECT_FALSE(client(1).mps);
  EXPECT_FALSE(client(2).mps) << "of another user";
  engine().sharing().mps_seen({{1000, ""}, 1, {}}, now_);
  EXPECT_FALSE(client(0).mps);
}

TEST_F(EngineMpsTest, AGroupIsAskedForByNameAndABadOneIsRefused) {
  std::vector<std::string> asked;
  ask_mps_ = [&](ConnectionId, const Peer&, const std::string& group) { asked.push_back(group); };
  connect(1, 1000);
  send(1, protocol::AskMps{0, "team"});
  connect(2, 1000);
  send(2, protocol::AskMps{0, "../1001"});
  EXPECT_EQ(asked, std::vector<std::string>{"team"});
  ASSERT_TRUE(packets_.last<protocol::Refused>(2));
  EXPECT_NE(std::string(packets_.last<protocol::Refused>(2)->reason).find("accepted: 1 to 32 letters"), std::string::npos)
      << packets_.last<protocol::Refused>(2)->reason;
  connect(3, 1000);  // as the version before asks
  engine().received(3, protocol::encode(protocol::AskMps{}, 2).span(), now_);
  EXPECT_EQ(asked, (std::vector<std::string>{"team", ""}));
}

// Two of one user in two groups are on two servers, between which the driver switches: they take turns.
TEST_F(EngineMpsTest, GroupsOfOneUserTakeTurnsAndThoseOfOneGroupDoNot) {
  for (const pid_t pid : {501, 502, 503}) {
    join_as(static_cast<ConnectionId>(pid), pid, 1000, test_registration(0));
    send(static_cast<ConnectionId>(pid), protocol::ReqLock{1});
  }
  engine().sharing().mps_seen({{1000, "a"}, 1, {501, 502}}, ++now_);
  engine().sharing().mps_seen({{1000, "b"}, 2, {503}}, ++now_);
  EXPECT_EQ(client(0).mps_group, "a");
  EXPECT_EQ(client(1).mps_group, "a");
  EXPECT_EQ(client(2).mps_group, "b");
  const auto dropped = [&](ConnectionId id) { return packets_.last<protocol::DropLock>(id).has_value(); };
  for (int ms = 0; ms < 500 && !dropped(501) && !dropped(503); ++ms) engine().deadline_reached(now_ += kMillisecond);
  EXPECT_EQ(dropped(501), dropped(502));
  EXPECT_NE(dropped(501), dropped(503));
  engine().sharing().mps_seen({{1000, "a"}, 1, {}}, ++now_);
  EXPECT_FALSE(client(0).mps);
  EXPECT_EQ(client(0).mps_group, "");
  EXPECT_TRUE(client(2).mps) << "another daemon's";
}

// Two that fit together, of two tenants: only one has the lock at a time, and the setting takes effect at once.
TEST_F(EngineMpsTest, WithSharingInTurnsTenantsHaveASliceEach) {
  for (const pid_t pid : {501, 502}) {
    join(static_cast<ConnectionId>(pid), pid, 0, 0);
    send(static_cast<ConnectionId>(pid), protocol::ReqLock{1});
  }
  EXPECT_TRUE(packets_.last<protocol::LockOk>(501));
  EXPECT_TRUE(packets_.last<protocol::LockOk>(502));
  protocol::admin::SetRequest change;
  change.settings["sharing"] = "turns";
  ASSERT_TRUE(engine().set(change, ++now_));
  EXPECT_TRUE(packets_.last<protocol::DropLock>(501).has_value() != packets_.last<protocol::DropLock>(502).has_value()) << "one of them";
  const ConnectionId dropped = packets_.last<protocol::DropLock>(501) ? 501 : 502;
  const ConnectionId other = dropped == 501 ? 502 : 501;
  const auto drop = *packets_.last<protocol::DropLock>(dropped);
  protocol::LockReleased released{};
  released.grant = drop.grant;
  send(dropped, released);
  send(dropped, protocol::ReqLock{2});
  EXPECT_FALSE(packets_.last<protocol::DropLock>(other)) << "its slice is not over";
  now_ += 110 * kMillisecond;
  engine().deadline_reached(now_);
  EXPECT_TRUE(packets_.last<protocol::DropLock>(other));
}

// A client that waits for its slice as the scheduler ends would wait until the next one is there.
TEST_F(EngineMpsTest, WhereTurnsMoveNoMemoryNobodyWaitsWhileTheSchedulerIsAway) {
  protocol::admin::SetRequest change;
  change.settings["sharing"] = "turns";
  ASSERT_TRUE(engine().set(change, now_));
  for (const pid_t pid : {501, 502, 503}) {
    join(static_cast<ConnectionId>(pid), pid, 0, 0);
    send(static_cast<ConnectionId>(pid), protocol::ReqLock{1});
  }
  const auto runs = [&](ConnectionId id) {
    const auto lock = packets_.last<protocol::LockOk>(id);
    const auto drop = packets_.last<protocol::DropLock>(id);
    return lock && (!drop || drop->grant.grant != lock->grant.grant);
  };
  ASSERT_NE(runs(501) + runs(502) + runs(503), 3);
  engine().sharing().end(++now_);
  for (const ConnectionId id : {501, 502, 503}) EXPECT_TRUE(runs(id)) << id;
}

// The setting is the node's; a tenant may be told otherwise, and back.
TEST_F(EngineMpsTest, ATenantMayBeToldHowItShares) {
  std::string first;
  for (const pid_t pid : {501, 502}) {
    join(static_cast<ConnectionId>(pid), pid, 0, 0);
    send(static_cast<ConnectionId>(pid), protocol::ReqLock{1});
    if (first.empty()) first = std::to_string(client(0).tenant);
  }
  const auto set = [&](const char* sharing) {
    protocol::admin::SetRequest change;
    change.tenant = first;
    change.sharing = sharing;
    ASSERT_TRUE(engine().set(change, ++now_));
  };
  const auto dropped = [&] {
    return packets_.last<protocol::DropLock>(501).has_value() || packets_.last<protocol::DropLock>(502).has_value();
  };
  set("together");
  EXPECT_FALSE(dropped());
  set("turns");
  EXPECT_TRUE(dropped()) << "it takes turns with all others";
  EXPECT_EQ(status_of(engine().parts(), now_).tenants.at(0).sharing, "turns");
  protocol::admin::SetRequest node;
  node.settings["sharing"] = "turns";
  ASSERT_TRUE(engine().set(node, ++now_));
  set("together");
  EXPECT_EQ(status_of(engine().parts(), now_).tenants.at(0).sharing, "together");
  set("node");
  EXPECT_EQ(status_of(engine().parts(), now_).tenants.at(0).sharing, "node");
}

// What clients say they submitted decides; what was not asked for is not heard.
TEST_F(EngineMpsTest, WithSharingAutoBothWaysAreMeasured) {
  protocol::admin::SetRequest change;
  change.settings["sharing"] = "auto";
  ASSERT_TRUE(engine().set(change, now_));
  for (const pid_t pid : {501, 502}) {
    join(static_cast<ConnectionId>(pid), pid, 0, 0);
    send(static_cast<ConnectionId>(pid), protocol::ReqLock{1});
  }
  uint64_t work = 0;
  bool counts = false;
  std::map<ConnectionId, uint64_t> answered, released;
  for (int ms = 0; ms < 3000 && status_of(engine().parts(), now_).gpus.at(0).sharing_trials == 0; ++ms) {
    now_ += kMillisecond;
    engine().deadline_reached(now_);
    work += 10;
    for (const ConnectionId client : {501, 502}) {
      if (const auto drop = packets_.last<protocol::DropLock>(client); drop && released[client] != drop->grant.grant) {
        released[client] = drop->grant.grant;
        protocol::LockReleased answer{};
        answer.grant = drop->grant;
        send(client, answer);
        send(client, protocol::ReqLock{2});
      }
      const auto asked = packets_.last<protocol::AskProgress>(client);
      if (!asked || answered[client] == asked->question) continue;
      answered[client] = asked->question;
      counts = asked->counts != 0;
      send(client, protocol::Progress{asked->question, work});
      send(client, protocol::Progress{asked->question + 7, 1'000'000'000});
    }
  }
  const auto gpu = status_of(engine().parts(), now_).gpus.at(0);
  EXPECT_EQ(gpu.sharing_trials, 1u);
  EXPECT_NEAR(static_cast<double>(gpu.sharing_percent), 100, 2) << "the same either way";
  EXPECT_EQ(gpu.sharing, "together");
  EXPECT_FALSE(counts) << "nobody counts after it";
}

// A library of the release before does not know the question: it is never asked, and nothing is tried while it runs.
TEST_F(EngineMpsTest, WithSharingAutoAnEarlierLibraryIsNotAskedAndAllRunTogether) {
  protocol::admin::SetRequest change;
  change.settings["sharing"] = "auto";
  ASSERT_TRUE(engine().set(change, now_));
  join(501, 501, 0, 0);
  Peer peer;
  peer.pid = 502;
  peer.start_time = 1;
  engine().connected(502, std::move(peer));
  auto earlier = test_registration(0);
  earlier.version_max = 2;
  send(502, earlier);
  ASSERT_TRUE(packets_.last<protocol::Registered>(502));
  EXPECT_EQ(packets_.last<protocol::Registered>(502)->version, 2u);
  send(501, protocol::ReqLock{1});
  engine().received(502, protocol::encode(protocol::ReqLock{1}, 2).span(), ++now_);
  for (int ms = 0; ms < 3000; ++ms) {
    now_ += kMillisecond;
    engine().deadline_reached(now_);
  }
  for (const ConnectionId client : {501, 502}) {
    EXPECT_FALSE(packets_.last<protocol::AskProgress>(client)) << client;
    EXPECT_FALSE(packets_.last<protocol::DropLock>(client)) << client;
    EXPECT_TRUE(packets_.last<protocol::LockOk>(client)) << client;
  }
  EXPECT_EQ(status_of(engine().parts(), now_).gpus.at(0).sharing_trials, 0u);
}

}  // namespace
}  // namespace nvshare::scheduler
