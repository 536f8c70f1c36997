// AskOwn: what a process is told of its own tenants, and nothing of others; and turns that it ends.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "scheduler/testing/test_engine.h"

namespace nvshare::scheduler {
namespace {

constexpr ConnectionId kAsker = 90;

// A process that lives until the test ends, as pids of clients: the engine asks the kernel who they are.
class LiveProcess {
 public:
  LiveProcess() : pid_(fork()) {
    if (pid_ != 0) return;
    pause();
    _exit(0);
  }
  ~LiveProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  LiveProcess(const LiveProcess&) = delete;
  LiveProcess& operator=(const LiveProcess&) = delete;
  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

class EngineOwn : public EngineTest {
 protected:
  EngineOwn() {
    look_at_cgroups_ = [](pid_t) -> std::string { return "0::/user.slice/user-1000.slice/session-3.scope\n"; };
  }
  void join_named(ConnectionId connection, const LiveProcess& process, uid_t uid, const char* program) {
    Peer peer;
    peer.pid = process.pid();
    peer.uid = uid;
    peer.start_time = start_time_of(process.pid());
    engine().connected(connection, std::move(peer));
    auto message = test_registration(kGiB);
    snprintf(message.program, sizeof message.program, "%s", program);
    send(connection, message);
    ASSERT_TRUE(packets_.last<protocol::Registered>(connection));
  }

  // The report's line; empty: refused. `ended`: the process that asks had that number before.
  std::string ask(pid_t pid, uid_t uid, const protocol::AskOwn& question = {}, bool ended = false) {
    packets_.sent[kAsker].clear();
    Peer peer;
    peer.pid = pid;
    peer.uid = uid;
    peer.start_time = start_time_of(pid) - (ended ? 1 : 0);
    peer.account = "user " + std::to_string(uid);
    engine().connected(kAsker, std::move(peer));
    send(kAsker, question);
    const auto answer = packets_.last<protocol::OwnReport>(kAsker);
    if (!answer) return {};
    const int memory = packets_.descriptors.at(kAsker).get(0);
    std::string line(answer->bytes, 0);
    EXPECT_EQ(pread(memory, line.data(), line.size(), 0), static_cast<ssize_t>(line.size()));
    EXPECT_EQ(pwrite(memory, "x", 1, 0), -1) << "nobody changes it on the way";
    return line;
  }
  std::string refusal() {
    const auto refused = packets_.last<protocol::Refused>(kAsker);
    return refused ? refused->reason : "";
  }
};

TEST_F(EngineOwn, NothingOfOthersIsInTheReport) {
  LiveProcess mine;
  LiveProcess secret;
  join_named(1, mine, 1000, "train");
  join_named(2, secret, 1001, "hidden-program");
  send(1, protocol::ReqLock{1});
  send(2, protocol::ReqLock{1});
  const std::string line = ask(mine.pid(), 1000);
  const auto report = protocol::admin::decode_status(line);
  ASSERT_TRUE(report) << line;
  EXPECT_TRUE(report->own);
  ASSERT_EQ(report->clients.size(), 1u);
  EXPECT_EQ(report->clients[0].program, "train");
  EXPECT_EQ(report->clients[0].pid, mine.pid());
  EXPECT_EQ(report->clients[0].allocated, static_cast<int64_t>(kGiB));
  ASSERT_EQ(report->tenants.size(), 1u);
  EXPECT_EQ(report->tenants[0].id, report->clients[0].tenant);
  EXPECT_EQ(report->tenants[0].usage.size(), 1u);
  ASSERT_EQ(report->gpus.size(), 1u);
  EXPECT_EQ(report->gpus[0].total, static_cast<int64_t>(16 * kGiB));
  EXPECT_EQ(report->gpus[0].overhead, 0);
  EXPECT_EQ(line.find("hidden"), std::string::npos) << line;
  for (const char* end : {",", "}"}) {  // a part of another number says nothing
    EXPECT_EQ(line.find(":" + std::to_string(secret.pid()) + end), std::string::npos) << line;
  }
  EXPECT_EQ(status_of(engine().parts(), now_).clients.size(), 2u) << "who asks becomes no client";
}

// Of a container, say, whose process has passed its socket on: the one that has its number now is of the same user outside.
TEST_F(EngineOwn, WhoHasTheNumberOfAProcessThatEndedIsNotAnsweredFor) {
  LiveProcess train, asker;
  join_named(1, train, 1000, "train");
  EXPECT_NE(ask(asker.pid(), 1000).find("train"), std::string::npos);
  const std::string line = ask(asker.pid(), 1000, {}, true);
  EXPECT_NE(line, "");
  EXPECT_EQ(line.find("train"), std::string::npos) << line;
}

TEST_F(EngineOwn, WhoWaitsForANeighbourIsNotToldItsName) {
  LiveProcess mine;
  LiveProcess secret;
  auto large = test_registration(12 * kGiB);
  snprintf(large.program, sizeof large.program, "hidden-program");
  Peer peer;
  peer.pid = secret.pid();
  peer.uid = 1001;
  peer.start_time = start_time_of(secret.pid());
  engine().connected(1, std::move(peer));
  send(1, large);
  send(1, protocol::ReqLock{1});
  ASSERT_TRUE(packets_.last<protocol::LockOk>(1));
  Peer other;
  other.pid = mine.pid();
  other.uid = 1000;
  other.start_time = start_time_of(mine.pid());
  engine().connected(2, std::move(other));
  send(2, test_registration(12 * kGiB));
  send(2, protocol::ReqLock{1});
  ASSERT_FALSE(packets_.last<protocol::LockOk>(2));
  EXPECT_NE(client(1).waiting_for.find("hidden-program"), std::string::npos) << "as root sees it: " << client(1).waiting_for;
  const std::string line = ask(mine.pid(), 1000);
  const auto report = protocol::admin::decode_status(line);
  ASSERT_TRUE(report) << line;
  EXPECT_NE(report->clients.at(0).waiting_for, "");
  EXPECT_EQ(line.find("hidden"), std::string::npos) << line;
}

TEST_F(EngineOwn, AUserSeesAllOfItsProgramsOutsideContainers) {
  LiveProcess one;
  LiveProcess two;
  LiveProcess others;
  join_named(1, one, 1000, "train");
  join_named(2, two, 1000, "serve");
  join_named(3, others, 1001, "hidden");
  LiveProcess shell;
  const auto report = protocol::admin::decode_status(ask(shell.pid(), 1000));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->clients.size(), 2u);
  const auto none = protocol::admin::decode_status(ask(shell.pid(), 1002));
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->clients.empty() && none->tenants.empty() && none->gpus.empty());
}

// A process that the scheduler cannot look at may be in a container: it sees what it is itself.
TEST_F(EngineOwn, WhoMayBeInAContainerSeesItsOwnTenantAlone) {
  LiveProcess one;
  join_named(1, one, 1000, "train");
  const auto report = protocol::admin::decode_status(ask(99'999'999, 1000));
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->clients.empty());
}

TEST_F(EngineOwn, ItsTurnEndsAtItsWordAndAnothersDoesNot) {
  LiveProcess mine;
  LiveProcess others;
  join_named(1, mine, 1000, "train");
  join_named(2, others, 1001, "serve");
  send(1, protocol::ReqLock{1});
  send(2, protocol::ReqLock{1});
  ASSERT_TRUE(packets_.last<protocol::LockOk>(1) && packets_.last<protocol::LockOk>(2));
  const uint64_t tenant = client(0).tenant;
  const uint64_t foreign = client(1).tenant;
  EXPECT_EQ(ask(mine.pid(), 1000, {static_cast<uint8_t>(protocol::OwnWish::kRelease), {}, foreign}), "");
  const std::string of_another = refusal();
  EXPECT_EQ(ask(mine.pid(), 1000, {static_cast<uint8_t>(protocol::OwnWish::kRelease), {}, 4711}), "");
  EXPECT_EQ(of_another, fmt::format("{} is no tenant of yours", foreign));
  EXPECT_EQ(refusal(), "4711 is no tenant of yours");
  EXPECT_FALSE(packets_.last<protocol::DropLock>(2));
  EXPECT_NE(ask(mine.pid(), 1000, {static_cast<uint8_t>(protocol::OwnWish::kRelease), {}, tenant}), "");
  const auto drop = packets_.last<protocol::DropLock>(1);
  ASSERT_TRUE(drop);
  EXPECT_FALSE(packets_.last<protocol::DropLock>(2));
  protocol::LockReleased released{};
  released.grant = drop->grant;
  released.memory.allocated = kGiB;
  send(1, released);
  EXPECT_EQ(client(0).state, "idle");
  send(1, protocol::ReqLock{2});
  const auto again = packets_.last<protocol::LockOk>(1);
  EXPECT_TRUE(again && again->grant.grant != drop->grant.grant) << "it is not paused";
}

TEST_F(EngineOwn, RootReleasesByNameAndAPausedTenantStaysPaused) {
  LiveProcess mine;
  join_named(1, mine, 1000, "train");
  send(1, protocol::ReqLock{1});
  protocol::admin::SetRequest change;
  change.tenant = std::to_string(client(0).tenant);
  change.release = true;
  ASSERT_TRUE(engine().set(change, ++now_));
  EXPECT_TRUE(packets_.last<protocol::DropLock>(1));
  protocol::admin::SetRequest pause;
  pause.tenant = change.tenant;
  pause.paused = true;
  ASSERT_TRUE(engine().set(pause, ++now_));
  ASSERT_TRUE(engine().set(change, ++now_));
  EXPECT_TRUE(status_of(engine().parts(), now_).tenants.at(0).paused);
}

TEST_F(EngineOwn, TooManyQuestionsAreRefusedForASecond) {
  LiveProcess mine;
  join_named(1, mine, 1000, "train");
  for (int64_t i = 0; i < bounds::kOwnQuestionsPerSecond; ++i) ASSERT_NE(ask(mine.pid(), 1000), "");
  EXPECT_EQ(ask(mine.pid(), 1000), "");
  EXPECT_NE(refusal().find("accepted: 20 questions in a second"), std::string::npos) << refusal();
  EXPECT_NE(ask(mine.pid(), 1001), "") << "another user's are its own";
  now_ += 1'000'000'000;
  EXPECT_NE(ask(mine.pid(), 1000), "");
}

TEST_F(EngineOwn, OnlyTheFirstMessageMayBeTheQuestion) {
  LiveProcess mine;
  join_named(1, mine, 1000, "train");
  send(1, protocol::AskOwn{});
  const auto refused = packets_.last<protocol::Refused>(1);
  ASSERT_TRUE(refused);
  EXPECT_NE(std::string(refused->reason).find("may not send AskOwn"), std::string::npos) << refused->reason;
}

}  // namespace
}  // namespace nvshare::scheduler
