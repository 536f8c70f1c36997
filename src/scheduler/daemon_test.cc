// A whole daemon on a thread, clients as processes, real sockets.
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <sstream>
#include <thread>

#include "scheduler/testing/test_daemon.h"

namespace nvshare::scheduler {
namespace {

using namespace std::chrono_literals;
namespace admin = protocol::admin;
using protocol::DropLock;
using protocol::LockOk;
using protocol::LockReleased;
using protocol::Refused;
using protocol::ReleaseReason;
using protocol::ReqLock;

// Of which `status` is written on another thread.
TEST_F(DaemonTest, AnswersComeInTheOrderOfTheirRequests) {
  start();
  const FileDescriptor socket = connect_admin(settings_.runtime_dir);
  const std::string requests = "{\"request\":\"status\"}\n{\"request\":\"none\"}\n{\"request\":\"status\"}\n{\"request\":\"none\"}\n";
  ASSERT_EQ(send(socket.get(), requests.data(), requests.size(), MSG_NOSIGNAL), static_cast<ssize_t>(requests.size()));
  std::string answers;
  char bytes[4096];
  while (std::count(answers.begin(), answers.end(), '\n') < 4) {
    const ssize_t length = recv(socket.get(), bytes, sizeof bytes, 0);
    ASSERT_GT(length, 0);
    answers.append(bytes, static_cast<size_t>(length));
  }
  std::istringstream lines(answers);
  for (const bool is_status : {true, false, true, false}) {
    std::string line;
    std::getline(lines, line);
    EXPECT_EQ(static_cast<bool>(admin::decode_status(line)), is_status) << line.substr(0, 200);
  }
}

TEST_F(DaemonTest, AskersOfTheStatusAllHaveOne) {
  start();
  std::vector<std::future<bool>> askers;
  for (int i = 0; i < 8; ++i) {
    askers.push_back(std::async(std::launch::async, [&] {
      for (int n = 0; n < 20; ++n) {
        if (!admin::decode_status(ask_admin(settings_.runtime_dir, R"({"request":"status"})"))) return false;
      }
      return true;
    }));
  }
  for (std::future<bool>& asker : askers) EXPECT_TRUE(asker.get());
}

// The report that one viewer has is another's, too, where that one would have one soon; a viewer that asks without `early_ms` has its own.
TEST_F(DaemonTest, ViewersShareWholeReports) {
  start();
  const uint64_t changes = status().changes;
  ASSERT_NE(changes, 0u);
  const auto whole = [&](int within_ms, int early_ms) {
    return ask_admin(settings_.runtime_dir,
                     fmt::format(R"({{"request":"status","changes":{},"within_ms":{},"early_ms":{}}})", changes, within_ms, early_ms));
  };
  const std::string first = whole(1, 10'000);
  ASSERT_TRUE(admin::decode_status(first)) << first;
  EXPECT_EQ(whole(10'000, 10'000), first) << "down to its uptime, and at once";
  EXPECT_NE(whole(1, 0), first);
  EXPECT_NE(ask_admin(settings_.runtime_dir, R"({"request":"status"})"), first);
}

// Each `nvsharectl run` asks again and again: the more do, the longer each is to wait.
TEST_F(DaemonTest, ManyThatAskForTheirTurnsAreToldToAskMoreRarely) {
  start();
  const auto again_ms = [&] {
    const auto turn = protocol::admin::decode_turn(ask_admin(settings_.runtime_dir, R"({"request":"turn","tenant":1})"));
    EXPECT_TRUE(turn) << turn.error().text;
    return turn ? turn->again_ms : 0;
  };
  EXPECT_EQ(again_ms(), 0);
  const auto begin = std::chrono::steady_clock::now();
  constexpr int kAsked = 200;
  int64_t last = 0;
  for (int i = 0; i < kAsked; ++i) last = again_ms();
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GE(last + took + 20, kAsked * AskPace::kApartNs / 1'000'000);
}

TEST(AskPace, QuestionsComeApartHoweverManyAsk) {
  AskPace pace;
  EXPECT_EQ(pace.next(1000), 0);
  EXPECT_EQ(pace.next(1000), 2 * AskPace::kApartNs);
  EXPECT_EQ(pace.next(1000), 3 * AskPace::kApartNs);
  EXPECT_EQ(pace.next(1000 + 3 * AskPace::kApartNs), 0) << "all have had theirs";
  for (int i = 0; i < 100'000; ++i) EXPECT_LE(pace.next(1000 + 4 * AskPace::kApartNs), AskPace::kMostNs);
}

TEST_F(DaemonTest, TwoThatDoNotFitTakeTurns) {
  TestClient a = client();
  TestClient b = client();
  start();
  auto registered = a.join(test_registration(12 * kGiB));
  ASSERT_TRUE(registered);
  EXPECT_EQ(registered->version, protocol::kVersionMax);
  EXPECT_STREQ(registered->release, NVSHARE_VERSION);
  EXPECT_EQ(registered->gpu_total_bytes, 16 * kGiB);
  EXPECT_GT(registered->memory_ceiling, 12 * kGiB);
  ASSERT_TRUE(b.join(test_registration(12 * kGiB)));
  TestClient* turn[] = {&a, &b};
  a.send(ReqLock{1});
  ASSERT_TRUE(eventually([&] { return status().clients.at(0).turns == 1; }));
  b.send(ReqLock{1});
  for (int i = 0; i < 6; ++i) {
    TestClient& runs = *turn[i % 2];
    auto lock = runs.expect<LockOk>();
    while (lock && lock->budget < 12 * kGiB) lock = runs.expect<LockOk>();  // grows while the other moves out
    ASSERT_TRUE(lock) << "turn " << i;
    EXPECT_EQ(lock->grant.epoch, registered->epoch);
    report_loaded(runs, *lock, 12 * kGiB);
    auto drop = runs.expect<DropLock>();
    ASSERT_TRUE(drop);
    EXPECT_EQ(drop->grant.grant, lock->grant.grant);
    release(runs, drop->grant, 12 * kGiB, 12 * kGiB, ReleaseReason::kDropped);
    runs.send(ReqLock{2});
    obey_eviction(runs, 12 * kGiB);
  }
  auto report = status();
  ASSERT_EQ(report.gpus.size(), 1u);
  EXPECT_GE(report.gpus[0].switches, 5u);
  EXPECT_FALSE(report.gpus[0].nvml);
  ASSERT_EQ(report.clients.size(), 2u);
  EXPECT_GE(report.clients[0].turns, 3u);
  EXPECT_EQ(report.clients[0].pid, a.pid());
}

TEST_F(DaemonTest, TwoThatFitRunTogether) {
  TestClient a = client();
  TestClient b = client();
  start();
  for (TestClient* each : {&a, &b}) {
    ASSERT_TRUE(each->join(test_registration(4 * kGiB)));
    each->send(ReqLock{1});
    auto lock = each->expect<LockOk>();
    ASSERT_TRUE(lock);
    report_loaded(*each, *lock, 4 * kGiB);
  }
  EXPECT_FALSE(a.comes_within<DropLock>(300ms));
  EXPECT_FALSE(b.comes_within<DropLock>(1ms));
}

TEST_F(DaemonTest, AKilledHoldersLockIsFreeThoughItsChildHoldsTheSocket) {
  TestClient holder = client(true);
  TestClient waiter = client();
  settings_.policy.switch_time_fixed = 3'600'000'000'000;  // nothing but the death ends the turn
  start();
  ASSERT_TRUE(holder.join(test_registration(12 * kGiB)));
  holder.send(ReqLock{1});
  auto lock = holder.expect<LockOk>();
  ASSERT_TRUE(lock);
  report_loaded(holder, *lock, 12 * kGiB);
  ASSERT_TRUE(waiter.join(test_registration(12 * kGiB)));
  waiter.send(ReqLock{1});
  EXPECT_FALSE(waiter.comes_within<LockOk>(200ms));
  holder.kill(SIGKILL);
  holder.wait_for_death();
  EXPECT_TRUE(waiter.expect<LockOk>());
  EXPECT_TRUE(eventually([&] { return status().clients.size() == 1; }));
}

TEST_F(DaemonTest, ABadMessageClosesThatConnectionOnly) {
  TestClient good = client();
  TestClient bad = client();
  TestClient early = client();
  start();
  ASSERT_TRUE(good.join(test_registration(kGiB)));
  ASSERT_TRUE(bad.join(test_registration(kGiB)));
  protocol::Packet garbage;
  garbage.length = 100;
  std::memset(garbage.bytes, 0xee, sizeof garbage.bytes);
  bad.send_packet(garbage);
  auto refused = bad.expect<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_NE(std::string(refused->reason).find("bad message"), std::string::npos);
  EXPECT_TRUE(bad.expect_close());
  early.connect();
  early.send(ReqLock{1});
  refused = early.expect<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_NE(std::string(refused->reason).find("Register"), std::string::npos);
  EXPECT_TRUE(early.expect_close());
  good.send(ReqLock{1});
  EXPECT_TRUE(good.expect<LockOk>());
  EXPECT_TRUE(bad.join(test_registration(kGiB))) << "it may come back";
}

TEST_F(DaemonTest, AMessageTooLongIsRefused) {
  start();
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  FileDescriptor direct(fd);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (settings_.runtime_dir + protocol::kClientSocket).c_str());
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  char large[4096] = {};
  ASSERT_EQ(send(fd, large, sizeof large, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof large));
  std::byte bytes[protocol::kMessageBytesMax];
  ssize_t length = recv(fd, bytes, sizeof bytes, 0);
  ASSERT_GT(length, 0);
  EXPECT_TRUE(protocol::decode<Refused>({bytes, static_cast<size_t>(length)}));
  EXPECT_EQ(recv(fd, bytes, sizeof bytes, 0), 0);
}

TEST_F(DaemonTest, DescriptorsThatAMessageMayNotCarryAreRefused) {
  TestClient a = client();
  start();
  ASSERT_TRUE(a.join(test_registration(kGiB)));
  Descriptors one;
  one.add(FileDescriptor(dup(0)));
  a.send(ReqLock{1}, one);
  auto refused = a.expect<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_STREQ(refused->reason, "bad message: ReqLock comes with 1 descriptors; accepted: 0 to 0");
  EXPECT_TRUE(a.expect_close());
}

TEST_F(DaemonTest, WhoSentMoreThanWasReadStillLearnsWhyItWasRefused) {
  TestClient eager = client();
  start();
  eager.connect();
  for (uint64_t i = 0; i < 50; ++i) eager.send(ReqLock{i});  // the first is refused, the rest never read
  auto refused = eager.expect<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->reason[0], 0);
}

TEST_F(DaemonTest, NoCommonVersionIsRefusedWithBothRanges) {
  TestClient newer = client();
  start();
  auto message = test_registration(kGiB);
  message.version_min = 70;
  message.version_max = 71;
  newer.connect();
  newer.send_packet(protocol::encode(message, 70));
  auto refused = newer.expect<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_NE(std::string(refused->reason).find("70 to 71"), std::string::npos) << refused->reason;
  EXPECT_TRUE(newer.expect_close());
}

TEST_F(DaemonTest, ALibraryOfAnEarlierVersionIsServedInIt) {
  TestClient earlier = client();
  start();
  auto message = test_registration(kGiB);
  message.version_max = 1;
  auto registered = earlier.join(message);
  ASSERT_TRUE(registered);
  EXPECT_EQ(registered->version, 1);
  EXPECT_STREQ(registered->release, "") << "it has no such field";
  earlier.send_packet(protocol::encode(ReqLock{1}, 1));
  EXPECT_TRUE(earlier.expect<LockOk>());
  EXPECT_EQ(status().clients.at(0).protocol, 1u);
  earlier.send_packet(protocol::encode(protocol::About{"9.9"}, 2));
  auto refused = earlier.expect<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_STREQ(refused->reason, "bad message: About has version 2; this connection speaks 1");
}

TEST_F(DaemonTest, AClientThatDoesNotReadHoldsUpNobody) {
  TestClient silent = client();
  TestClient other = client();
  start();
  auto report = silent.join(test_registration(kGiB));
  ASSERT_TRUE(report);
  silent.send(ReqLock{1});
  auto lock = silent.expect<LockOk>();
  ASSERT_TRUE(lock);
  silent.kill(SIGSTOP);
  // Every change of its limit is a message to it; they replace each other, so that it is still there when it wakes.
  std::string tenant = std::to_string(status().tenants.at(0).id);
  for (int i = 1; i <= 1000; ++i) {
    auto ok = admin::decode_ok(ask_admin(
        settings_.runtime_dir, admin::encode(admin::SetRequest{{}, tenant, static_cast<int64_t>(i * kGiB), std::nullopt}).substr(0)));
    ASSERT_TRUE(ok) << ok.error().text;
  }
  ASSERT_TRUE(other.join(test_registration(kGiB)));
  other.send(ReqLock{1});
  EXPECT_TRUE(other.expect<LockOk>());
  silent.kill(SIGCONT);
  std::optional<protocol::UpdateLimit> last;
  do {
    last = silent.expect<protocol::UpdateLimit>();
  } while (last && last->memory_limit != 1000 * kGiB);
  EXPECT_TRUE(last) << "the last limit must arrive";
}

TEST_F(DaemonTest, AClientThatNeverReadsItsAnswersIsClosed) {
  TestClient other = client();
  start();
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  FileDescriptor direct(fd);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (settings_.runtime_dir + protocol::kClientSocket).c_str());
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  auto send_now = [&](const auto& payload) {
    auto packet = protocol::encode(payload);
    return send(fd, packet.bytes, packet.length, MSG_NOSIGNAL) == packet.length;
  };
  ASSERT_TRUE(send_now(test_registration(kGiB)));
  ASSERT_TRUE(send_now(ReqLock{1}));
  bool closed = false;
  for (uint64_t request = 1; request < 20'000 && !closed; ++request) {
    closed = !send_now(protocol::MemUpdate{{kGiB, kGiB, 0, 0}, 0, 0, 0, 1ULL << 49, request});  // never fits: answered at once
  }
  EXPECT_TRUE(closed);
  ASSERT_TRUE(other.join(test_registration(kGiB)));
  EXPECT_TRUE(eventually([&] { return status().clients.size() == 1; }));
}

TEST_F(DaemonTest, AToldSizeIsTheSizeThatClientsHear) {
  TestClient a = client();
  TestClient b = client();
  settings_.gpu_physical_memory = static_cast<int64_t>(8 * kGiB);
  start();
  auto registered = a.join(test_registration(0));
  ASSERT_TRUE(registered);
  EXPECT_EQ(registered->gpu_total_bytes, 8 * kGiB);
  EXPECT_LT(registered->memory_ceiling, 8 * kGiB);
  // Whoever only asks hears the same, and becomes no client.
  auto question = test_registration(0);
  question.asks_only = 1;
  question.memory_limit = kGiB;
  auto answer = b.join(question);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->gpu_total_bytes, 8 * kGiB);
  EXPECT_EQ(answer->memory_limit, kGiB);
  EXPECT_TRUE(b.expect_close());
  auto report = status();
  EXPECT_EQ(report.clients.size(), 1u);
  EXPECT_TRUE(report.gpus.at(0).told);
  EXPECT_EQ(report.gpus.at(0).real_total, static_cast<int64_t>(16 * kGiB));
}

TEST_F(DaemonTest, AdminSetsLimitsAndSettings) {
  TestClient a = client();
  start();
  ASSERT_TRUE(a.join(test_registration(kGiB)));
  std::string reply = ask_admin(settings_.runtime_dir, fmt::format(R"({{"request":"tenant","pid":{},"name":"train"}})", getpid()));
  EXPECT_TRUE(admin::decode_tenant(reply)) << reply;
  EXPECT_NE(ask_admin(settings_.runtime_dir, R"({"request":"tenant","pid":99999999})").find("no process"), std::string::npos);
  EXPECT_TRUE(admin::decode_ok(ask_admin(settings_.runtime_dir, R"({"request":"set","settings":{"switch_time_mode":"auto"}})")));
  EXPECT_EQ(status().switch_time_mode, "auto");
  EXPECT_NE(ask_admin(settings_.runtime_dir, R"({"request":"set","settings":{"switch_time_mode":"x"}})").find("accepted"),
            std::string::npos);
  EXPECT_NE(ask_admin(settings_.runtime_dir, "nonsense").find("\"ok\":false"), std::string::npos);
  std::string tenant = std::to_string(status().clients.at(0).tenant);
  EXPECT_TRUE(
      admin::decode_ok(ask_admin(settings_.runtime_dir, R"({"request":"set","tenant":")" + tenant + R"(","gpu_memory_limit":"2Gi"})")));
  auto limit = a.expect<protocol::UpdateLimit>();
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->memory_limit, 2 * kGiB);
}

TEST_F(DaemonTest, AProcessTreeRegisteredByRunIsOneTenantWithItsLimit) {
  TestClient a = client();
  TestClient b = client();
  start();
  auto reply =
      ask_admin(settings_.runtime_dir, fmt::format(R"({{"request":"tenant","pid":{},"name":"train","gpu_memory_limit":"3Gi"}})", getpid()));
  ASSERT_TRUE(admin::decode_tenant(reply)) << reply;
  auto registered = a.join(test_registration(kGiB));
  ASSERT_TRUE(registered);
  EXPECT_EQ(registered->memory_limit, 3 * kGiB);
  auto lower = test_registration(kGiB);
  lower.memory_limit = 2 * kGiB;
  registered = b.join(lower);
  ASSERT_TRUE(registered);
  EXPECT_EQ(registered->memory_limit, 2 * kGiB) << "the lowest counts";
  auto report = status();
  ASSERT_EQ(report.tenants.size(), 1u);
  EXPECT_EQ(report.tenants[0].kind, "run");
  EXPECT_EQ(report.tenants[0].clients, 2u);
}

// It stayed in `status` until the next client came.
TEST_F(DaemonTest, ARunThatEndsWithoutAClientIsForgotten) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  start();
  ask_admin(settings_.runtime_dir, fmt::format(R"({{"request":"tenant","pid":{},"name":"train"}})", child));
  EXPECT_EQ(status().tenants.size(), 1U);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(eventually([&] { return status().tenants.empty(); }));
}

TEST_F(DaemonTest, EndsWhenIdleAndOnAdminRequest) {
  settings_.exit_when_idle = 0;
  auto idle = Daemon::start(settings_, "/nonexistent");
  ASSERT_TRUE(idle);
  (*idle)->run();  // returns
  idle->reset();
  settings_.exit_when_idle.reset();
  auto asked = Daemon::start(settings_, "/nonexistent");
  ASSERT_TRUE(asked);
  std::thread asker([&] { EXPECT_TRUE(admin::decode_ok(ask_admin(settings_.runtime_dir, R"({"request":"shutdown"})"))); });
  (*asked)->run();
  asker.join();
}

// A connection of the test's own process.
FileDescriptor connect_to_clients(const std::string& runtime_dir) {
  FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (runtime_dir + protocol::kClientSocket).c_str(), sizeof address.sun_path - 1);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fd.reset();
  return fd;
}

// 3,066 of them used up the descriptors, and no program could start any more.
TEST_F(DaemonTest, SilentConnectionsAreBoundedAndClosed) {
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_max < 4096) GTEST_SKIP() << "needs 4096 descriptors, for both ends";
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  TestClient honest = client();
  settings_.register_within = 3'000'000'000;  // all are there before the first has to go, on a busy machine, too
  start();
  ASSERT_TRUE(honest.join(test_registration(kGiB)));
  std::vector<FileDescriptor> silent;
  for (int64_t i = 0; i < bounds::kConnectionsPerProcess + 20; ++i) silent.push_back(connect_to_clients(settings_.runtime_dir));
  ASSERT_TRUE(eventually([&] { return status().bounds.connections_refused >= 20; }));
  EXPECT_EQ(status().bounds.connections_refused, 20u);
  EXPECT_LE(status().bounds.connections, bounds::kConnectionsPerProcess + 1);
  char reason[512] = {};
  ASSERT_GT(recv(silent.back().get(), reason, sizeof reason, 0), 8);
  EXPECT_NE(std::string(reason + 8).find("connections to the scheduler; accepted: up to 512"), std::string::npos) << reason + 8;
  EXPECT_TRUE(eventually([&] { return status().bounds.connections == 1; })) << "the honest one's";
  ASSERT_GT(recv(silent.front().get(), reason, sizeof reason, 0), 8);
  EXPECT_STREQ(reason + 8, "it did not register in time");
  honest.send(ReqLock{1});
  EXPECT_TRUE(honest.expect<LockOk>());
}

// It asked again at once, for ever.
TEST_F(DaemonTest, WithoutDescriptorsAcceptingWaitsAndGoesOn) {
#ifdef NVSHARE_SANITIZED
  GTEST_SKIP() << "the undefined behaviour sanitizer itself needs descriptors to look at memory";
#endif
  TestClient late = client();
  start();
  ASSERT_EQ(status().clients.size(), 0u);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;  // fewer than are open
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  rusage used_before{};
  getrusage(RUSAGE_SELF, &used_before);
  late.connect();
  late.send(test_registration(kGiB));
  EXPECT_FALSE(late.comes_within<protocol::Registered>(500ms));
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto microseconds = [](const rusage& usage) {
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
  };
  EXPECT_LT(microseconds(used) - microseconds(used_before), 250'000) << "of 500,000 that passed";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(late.expect<protocol::Registered>());
}

TEST_F(DaemonTest, WithoutNvmlAUserNamesAFewGpus) {
  settings_.gpus_per_user = 3;
  std::vector<TestClient> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(client());
  start();
  const bool is_root = geteuid() == 0;  // whom nothing bounds, outside containers
  for (uint8_t gpu = 1; gpu <= 5; ++gpu) {
    TestClient& each = clients[gpu - 1u];
    each.connect();
    each.send(test_registration(kGiB, gpu));
    if (is_root || gpu <= 3) {
      EXPECT_TRUE(each.expect<protocol::Registered>());
    } else {
      const auto refused = each.expect<Refused>();
      ASSERT_TRUE(refused);
      EXPECT_NE(std::string(refused->reason).find("accepted: up to 3 (NVSHARE_GPUS_PER_USER)"), std::string::npos) << refused->reason;
    }
  }
}

}  // namespace
}  // namespace nvshare::scheduler
