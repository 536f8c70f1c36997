// The file of a scheduler's clients, which grows by appended lines: what its successor knows after any end of the last write. And when the
// file of tenants is written.
#include "scheduler/clients/known_clients.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "scheduler/engine/engine.h"
#include "scheduler/engine/reports.h"
#include "scheduler/testing/test_amounts.h"
#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {
namespace {

constexpr int64_t kStep = KnownClients::kLeaseStep;

std::string text_of(const std::string& file) {
  std::ifstream stream(file);
  std::ostringstream content;
  content << stream.rdbuf();
  return content.str();
}

size_t lines_in(const std::string& text) { return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')); }

class KnownClientsTest : public testing::Test {
 protected:
  // All processes live, and began when their number says.
  static uint64_t start_time(pid_t pid) { return static_cast<uint64_t>(pid) + 7; }
  static KnownClient client_with(pid_t pid, int64_t lease = 0) {
    return {pid, start_time(pid), static_cast<policy::TenantId>(pid), "GPU-1", lease, 3, 4};
  }
  KnownClients open() const { return KnownClients(file_, start_time); }

  TestFolder folder_;
  std::string file_ = folder_.path() + "/clients";
};

// Found by test/simulation (seed 1750186628): its line was to be appended when the file was written anew, and it was in no list just then.
TEST_F(KnownClientsTest, OneThatDepartsIsKeptWhenTheFileIsWrittenAnewForIt) {
  for (int others = 0; others < 80; ++others) {
    const std::string file = file_ + std::to_string(others);
    policy::ClientId id = 0;
    {
      KnownClients known(file, start_time);
      id = known.join(0, client_with(10));
      known.keep_on_gpu(id, 2 * kStep, false);
      for (int i = 0; i < others; ++i) known.leave(known.join(0, client_with(11)));
      known.keep_on_gpu(id, kStep, true);  // a line for keep_up()
      known.depart(id);
    }
    EXPECT_TRUE(KnownClients(file, start_time).missing().contains(id)) << others;
  }
}

TEST_F(KnownClientsTest, WhoseProcessHasEndedIsKeptUntilItsMemoryIsFree) {
  policy::ClientId ended = 0, lives = 0;
  {
    KnownClients known = open();
    ended = known.join(0, client_with(10));
    lives = known.join(0, client_with(11));
  }
  const auto begin = [](pid_t pid) { return pid == 10 ? 0 : start_time(pid); };
  {
    KnownClients next(file_, begin);
    EXPECT_TRUE(next.ended().contains(ended) && next.missing().contains(lives));
    EXPECT_FALSE(next.missing().contains(ended));
    next.end(lives);
    EXPECT_TRUE(next.ended().contains(lives) && next.missing().empty());
    next.forget(lives);
    EXPECT_FALSE(next.ended().contains(lives));
  }
  KnownClients last(file_, begin);
  EXPECT_TRUE(last.ended().contains(ended)) << "for the next one as well";
  EXPECT_TRUE(last.missing().empty());
  last.forget(ended);
  EXPECT_TRUE(KnownClients(file_, begin).ended().empty());
}

TEST_F(KnownClientsTest, AProcessIsFoundByWhatItIsWhateverIdItSays) {
  const KnownClient mine = client_with(10), other = client_with(11);
  KnownClient elsewhere = mine;
  elsewhere.gpu = "GPU-2";
  policy::ClientId first = 0, second = 0, others = 0;
  {
    KnownClients known = open();
    first = known.join(0, mine);
    others = known.join(0, other);
    second = known.join(0, mine);
    known.join(0, elsewhere);
  }
  KnownClients next = open();
  const auto find = [&](policy::ClientId claimed, pid_t pid, uint64_t start, const char* gpu) {
    return next.find_missing(claimed, pid, start, gpu);
  };
  EXPECT_EQ(find(first, 10, start_time(10), "GPU-1"), first);
  EXPECT_EQ(find(second, 10, start_time(10), "GPU-1"), second);
  EXPECT_EQ(find(0, 10, start_time(10), "GPU-1"), second) << "the later one";
  EXPECT_EQ(find(others, 10, start_time(10), "GPU-1"), second) << "never another's";
  EXPECT_EQ(find(first, 10, start_time(10) + 1, "GPU-1"), 0U) << "the number was used again";
  EXPECT_EQ(find(first, 10, start_time(10), "GPU-3"), 0U);
}

// A restart of thousands costs what it has: each of them may say no id, or another's.
TEST_F(KnownClientsTest, ThousandsThatSayNoIdAreFound) {
  constexpr pid_t kMany = 2000;
  {
    std::ofstream file(file_);
    for (pid_t pid = 1; pid <= kMany; ++pid) file << "client " << pid + 100 << " " << pid << " " << start_time(pid) << " 1 GPU-1 0 0 0\n";
  }
  KnownClients next = open();
  ASSERT_EQ(next.missing().size(), size_t{kMany});
  for (pid_t pid = 1; pid <= kMany; ++pid) {
    ASSERT_EQ(next.find_missing(0, pid, start_time(pid), "GPU-1"), static_cast<policy::ClientId>(pid) + 100);
  }
  next.end(101);
  EXPECT_EQ(next.find_missing(0, 1, start_time(1), "GPU-1"), 0U);
}

TEST(KnownClientsFileTest, IdsOutliveTheSchedulerAndTheDeadAreNotWaitedFor) {
  TestFolder folder;
  std::string file = folder.path() + "/clients";
  KnownClient self{getpid(), start_time_of(getpid())};
  KnownClient dead{getpid(), self.start_time + 1};  // the number was used again
  policy::ClientId mine = 0;
  {
    KnownClients known(file);
    mine = known.join(0, self);
    known.join(0, dead);
    known.leave(known.join(0, self));
    EXPECT_EQ(known.problem(), "");
  }
  KnownClients next(file);
  EXPECT_EQ(next.missing().size(), 1u);
  EXPECT_EQ(next.missing().count(mine), 1u);
  EXPECT_GT(next.join(mine, dead), mine + 2) << "not its own, and never an id that was used";
  EXPECT_EQ(next.join(mine, self), mine);
  EXPECT_TRUE(next.missing().empty());
  std::ofstream(file) << "next x\nclient\nclient 5 y\n\xff\xff\nclient 9999999999999999999999 1 1\n";
  EXPECT_TRUE(KnownClients(file).missing().empty());
  std::ofstream(file) << "next 18446744073709551615\nclient 18446744073709551615 1 1 2 GPU-1 0 0 0\n";
  KnownClients damaged(file);
  EXPECT_NE(damaged.problem(), "");
  EXPECT_EQ(damaged.join(0, self), 1u) << "0 is nobody's id";
  KnownClients unwritable("/nonexistent/clients");
  unwritable.join(0, self);
  EXPECT_NE(unwritable.problem(), "");
}

// Wherever the file ends: what the whole lines before say holds, and half a line says nothing.
TEST_F(KnownClientsTest, AFileThatEndsAnywhereIsTakenUpToItsLastWholeLine) {
  policy::ClientId first = 0, second = 0;
  {
    KnownClients known = open();
    first = known.join(0, client_with(1001, kStep));
    second = known.join(0, client_with(1002));
    known.keep_lease(first, 12 * kStep, 0);
    known.leave(second);
  }
  const std::string all = text_of(file_);
  ASSERT_EQ(lines_in(all), 5u) << all;
  const size_t second_line = all.find('\n') + 1, third_line = all.find('\n', second_line) + 1;
  const size_t fourth_line = all.find('\n', third_line) + 1, fifth_line = all.find('\n', fourth_line) + 1;
  for (size_t length = 0; length <= all.size(); ++length) {
    std::ofstream(file_) << all.substr(0, length);
    KnownClients next = open();
    SCOPED_TRACE(all.substr(0, length));
    EXPECT_EQ(next.missing().contains(first), length >= third_line);
    EXPECT_EQ(next.missing().contains(second), length >= fourth_line && length < all.size());
    if (length >= third_line) {
      EXPECT_EQ(next.missing().at(first).lease, length >= fifth_line ? 12 * kStep : kStep);
    }
    const bool is_whole = length == 0 || all[length - 1] == '\n';
    EXPECT_EQ(next.problem().empty(), is_whole) << next.problem();
    // What it writes itself does not continue the half line.
    const policy::ClientId third = next.join(0, client_with(1003));
    EXPECT_EQ(next.problem(), "");
    KnownClients last = open();
    EXPECT_EQ(last.problem(), "");
    EXPECT_EQ(last.missing().size(), next.missing().size() + 1);
    EXPECT_EQ(last.missing().at(third).pid, 1003);
  }
}

TEST_F(KnownClientsTest, ALineThatIsTornInTheMiddleIsLeftOutAlone) {
  {
    KnownClients known = open();
    for (pid_t pid = 1001; pid <= 1003; ++pid) known.join(0, client_with(pid));
  }
  std::string text = text_of(file_);
  const size_t torn = text.find(" 1002 ");
  ASSERT_NE(torn, std::string::npos);
  text.erase(torn, text.find('\n', torn) - torn - 2);
  std::ofstream(file_) << text;
  const KnownClients next = open();
  EXPECT_NE(next.problem().find("line 3 of " + file_), std::string::npos) << next.problem();
  EXPECT_EQ(next.missing().size(), 2u);
  EXPECT_TRUE(next.missing().contains(1) && next.missing().contains(3));
}

// Thousands of changes: the file stays about as long as there are clients, most of them cost one line, and none is lost.
TEST_F(KnownClientsTest, TheFileIsWrittenAnewNowAndThenAndSaysTheSame) {
  constexpr size_t kClients = 20;
  KnownClients known = open();
  std::map<policy::ClientId, int64_t> leases;
  size_t rewrites = 0;
  std::string before;
  for (int i = 0; i < 3000; ++i) {
    if (leases.size() < kClients || i % 3 == 0) {
      leases[known.join(0, client_with(1000 + i))] = 0;
    } else {
      const policy::ClientId id = leases.begin()->first;
      known.keep_lease(id, leases[id] += 2 * kStep, 0);
    }
    if (leases.size() > kClients) {
      known.leave(leases.begin()->first);
      leases.erase(leases.begin());
    }
    const std::string now = text_of(file_);
    EXPECT_LE(lines_in(now), 2 * kClients + 80);
    rewrites += now.starts_with(before) ? 0 : 1;
    before = now;
    if (i % 100 != 0) continue;
    const KnownClients next = open();
    EXPECT_EQ(next.problem(), "");
    ASSERT_EQ(next.missing().size(), leases.size());
    for (const auto& [id, lease] : leases) EXPECT_EQ(next.missing().at(id).lease, lease) << id;
  }
  EXPECT_GT(rewrites, 5u);
  EXPECT_LT(rewrites, 100u) << "some 4,000 changes";
}

TEST_F(KnownClientsTest, WhatBecameLessIsAppendedByKeepUp) {
  policy::ClientId id = 0;
  {
    KnownClients known = open();
    id = known.join(0, client_with(1001, 10 * kStep));
    known.keep_lease(id, kStep, 0);
    EXPECT_EQ(open().missing().at(id).lease, 10 * kStep);
    known.keep_up();
    EXPECT_EQ(open().missing().at(id).lease, kStep);
    known.keep_lease(id, 0, 0);
    known.leave(id);
    known.keep_up();
  }
  EXPECT_TRUE(open().missing().empty());
}

TEST_F(KnownClientsTest, WhoHasLeftIsMissedUntilItsMemoryIsFree) {
  policy::ClientId id = 0, other = 0;
  {
    KnownClients known = open();
    id = known.join(0, client_with(1001));
    other = known.join(0, client_with(1002));
    known.keep_on_gpu(id, 12 * kStep - 5, false);
    known.keep_on_gpu(id, 2 * kStep, false);
    known.depart(id);
    known.depart(other);
    known.depart(other + 5);
    EXPECT_EQ(open().missing().at(id).on_gpu, 12 * kStep) << "rounded up, and never less without leave";
    for (pid_t pid = 2000; pid < 2200; ++pid) known.leave(known.join(0, client_with(pid)));  // the file is written anew
    EXPECT_EQ(open().missing().size(), 2u);
    known.forget(other);
    EXPECT_EQ(open().missing().size(), 1u);
  }
  KnownClients next = open();
  EXPECT_EQ(next.problem(), "");
  EXPECT_EQ(next.missing().at(id).on_gpu, 12 * kStep);
  next.forget(id);
  EXPECT_TRUE(open().missing().empty());
}

TEST_F(KnownClientsTest, LessOnTheGpuIsAppendedByKeepUp) {
  KnownClients known = open();
  const policy::ClientId id = known.join(0, client_with(1001));
  known.keep_on_gpu(id, 9 * kStep, false);
  known.keep_on_gpu(id, kStep, true);
  EXPECT_EQ(open().missing().at(id).on_gpu, 9 * kStep);
  known.keep_up();
  EXPECT_EQ(open().missing().at(id).on_gpu, kStep);
}

TEST_F(KnownClientsTest, AFileOfTheReleaseBeforeIsUnderstood) {
  std::ofstream(file_) << "next 9\nclient 4 1001 1008 6 GPU-1 32 3 4\nclient 5 1002 1009 6 GPU-1 32 3 4 -7\n";
  const KnownClients next = open();
  ASSERT_EQ(next.missing().size(), 1u) << "a negative amount is damage";
  EXPECT_EQ(next.missing().at(4).on_gpu, 0);
  EXPECT_EQ(next.missing().at(4).charged, 4);
}

// Found by session_fuzz_test: the file was written anew in the midst of it.
TEST_F(KnownClientsTest, KeepUpOfManyOutlivesARewrite) {
  constexpr pid_t kClients = 200;
  KnownClients known = open();
  for (pid_t i = 0; i < kClients; ++i) known.join(0, client_with(1000 + i, 9 * kStep));
  for (int64_t lease = 8; lease > 0; --lease) {
    for (policy::ClientId id = 1; id <= kClients; ++id) known.keep_lease(id, lease * kStep, 0);
    known.keep_up();
    const KnownClients next = open();
    ASSERT_EQ(next.missing().size(), static_cast<size_t>(kClients));
    for (const auto& [id, client] : next.missing()) ASSERT_EQ(client.lease, lease * kStep) << id;
  }
}

// Somebody cleared the folder, or put another file in its place: the next change writes all of it.
TEST_F(KnownClientsTest, AFileThatIsGoneIsWrittenAnew) {
  KnownClients known = open();
  known.join(0, client_with(1001));
  std::filesystem::remove(file_);
  known.join(0, client_with(1002));
  EXPECT_EQ(open().missing().size(), 2u);
  std::ofstream(file_ + ".other") << "next 1\n";
  std::filesystem::rename(file_ + ".other", file_);
  known.join(0, client_with(1003));
  EXPECT_EQ(open().missing().size(), 3u);
}

// A successor that ends in turn before all are back.
TEST_F(KnownClientsTest, ThoseThatAreNotBackYetOutliveTheNextSchedulerToo) {
  std::vector<policy::ClientId> ids;
  {
    KnownClients known = open();
    for (pid_t pid = 1001; pid <= 1003; ++pid) ids.push_back(known.join(0, client_with(pid, kStep)));
  }
  {
    KnownClients next = open();
    EXPECT_EQ(next.join(ids[1], client_with(1002, 2 * kStep)), ids[1]);
    next.forget(ids[2]);
  }
  KnownClients last = open();
  EXPECT_EQ(last.missing().size(), 2u);
  EXPECT_EQ(last.missing().at(ids[0]).lease, kStep);
  EXPECT_EQ(last.missing().at(ids[1]).lease, 2 * kStep);
  EXPECT_GT(last.join(0, client_with(1004)), ids[2]) << "an id is never given twice";
}

// ---- <runtime>/tenants: when it is written ----

constexpr policy::Duration kSaveInterval = 100'000'000;

class SilentTransport : public Transport {
 public:
  void send(ConnectionId, const protocol::Packet&, Descriptors) override {}
  void close(ConnectionId) override {}
};

class DelayedSaveTest : public testing::Test {
 protected:
  DelayedSaveTest() { start(); }

  void start() {
    set_log_level("error");
    Engine::Options options;
    options.settings.lock_dir = folder_.path();
    options.settings.runtime_dir = folder_.path();
    options.epoch = 77;
    options.known_clients_file = clients_;
    options.tenants_file = tenants_;
    options.look_at_host = [] { return HostBudget::Machine{1000 * kGiB, std::nullopt}; };
    engine_.emplace(std::move(options), transport_, now_);
  }
  void come(ConnectionId connection, uint64_t id = 0) {
    Peer peer;
    peer.pid = getpid();
    peer.start_time = start_time_of(peer.pid);
    engine_->connected(connection, std::move(peer));
    auto message = test_registration(0);
    message.client_id = id;
    engine_->received(connection, protocol::encode(message).span(), now_);
  }
  // The daemon's timer.
  void pass(policy::Duration time) {
    const policy::Instant end = now_ + time;
    for (auto due = engine_->next_deadline(); due && *due <= end; due = engine_->next_deadline()) {
      now_ = std::max(now_ + 1, *due);
      engine_->deadline_reached(now_);
    }
    now_ = end;
  }
  std::string kept() const { return text_of(tenants_) + text_of(tenants_ + ".changes"); }

  TestFolder folder_;
  const std::string clients_ = folder_.path() + "/clients", tenants_ = folder_.path() + "/tenants";
  SilentTransport transport_;
  policy::Instant now_ = 1'000'000'000;
  std::optional<Engine> engine_;
};

TEST_F(DelayedSaveTest, ClientsThatComeWithinATenthOfASecondAreWrittenTogether) {
  size_t writes = 0;
  std::string before = kept();
  for (ConnectionId connection = 1; connection <= 50; ++connection) {
    come(connection);
    if (connection % 2 == 0) engine_->disconnected(connection, "test", now_);
    writes += kept() == before ? 0 : 1;
    before = kept();
    pass(kSaveInterval / 20);
    writes += kept() == before ? 0 : 1;
    before = kept();
  }
  EXPECT_GE(writes, 1u);
  EXPECT_LE(writes, 3u) << "in a quarter of a second";
  pass(kSaveInterval);
  EXPECT_NE(kept().find("\"tenants\""), std::string::npos);
  before = kept();
  pass(10 * kSaveInterval);
  EXPECT_EQ(kept(), before);
}

TEST_F(DelayedSaveTest, WhatPeopleSetIsWrittenAtOnce) {
  protocol::admin::TenantRequest run;
  run.pid = getpid();
  run.name = "train";
  ASSERT_TRUE(engine_->orders().add_run(run));
  EXPECT_NE(kept().find("\"train\""), std::string::npos);
  come(1);
  protocol::admin::SetRequest change;
  change.tenant = "train";
  change.gpu_core_limit = 40;
  ASSERT_TRUE(engine_->set(change, now_));
  EXPECT_NE(kept().find("\"core_limit\": 40"), std::string::npos) << kept();
  engine_.reset();
  EXPECT_NE(text_of(tenants_).find("\"core_limit\": 40"), std::string::npos) << "as a whole, which an earlier release reads too";
}

TEST_F(DelayedSaveTest, ASchedulerThatEndsWritesWhatWaits) {
  come(1);
  EXPECT_EQ(kept(), "");
  engine_.reset();
  EXPECT_NE(kept().find("\"kind\""), std::string::npos);
}

// It was killed within that tenth of a second: its successor knows the client, whose tenant is nobody else's.
TEST_F(DelayedSaveTest, ASchedulerThatIsKilledBeforeTheWriteLosesNoClient) {
  come(1);
  ASSERT_EQ(status_of(engine_->parts(), now_).tenants.size(), 1u);
  const policy::TenantId tenant = status_of(engine_->parts(), now_).tenants[0].id;
  const policy::ClientId client = status_of(engine_->parts(), now_).clients[0].id;
  const std::string clients = text_of(clients_);
  ASSERT_EQ(kept(), "");
  engine_.reset();
  std::filesystem::remove(tenants_);
  std::ofstream(clients_) << clients;

  start();
  protocol::admin::TenantRequest run;
  run.pid = getppid();
  run.name = "other";
  const Result<policy::TenantId> other = engine_->orders().add_run(run);
  ASSERT_TRUE(other) << other.error().text;
  EXPECT_GT(*other, tenant);
  come(2, client);
  ASSERT_EQ(status_of(engine_->parts(), now_).clients.size(), 1u);
  EXPECT_EQ(status_of(engine_->parts(), now_).clients[0].id, client);
}

}  // namespace
}  // namespace nvshare::scheduler
