// A daemon that ends and starts anew: clients come back to it, sockets and locks change hands.
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "scheduler/testing/test_daemon.h"

namespace nvshare::scheduler {
namespace {

using namespace std::chrono_literals;
namespace admin = protocol::admin;
using protocol::LockOk;
using protocol::Refused;
using protocol::ReleaseReason;
using protocol::ReqLock;

TEST_F(DaemonTest, AfterARestartTheHolderKeepsItsLockAndIdsAreNotReused) {
  TestClient a = client();
  TestClient b = client();
  TestClient c = client();
  settings_.policy.switch_time_fixed = 3'600'000'000'000;
  settings_.restart_grace = 60'000'000'000;
  start();
  auto a_before = a.join(test_registration(12 * kGiB));
  auto b_before = b.join(test_registration(12 * kGiB));
  ASSERT_TRUE(a_before && b_before);
  a.send(ReqLock{1});
  ASSERT_TRUE(a.expect<LockOk>());
  b.send(ReqLock{1});
  stop();
  ASSERT_TRUE(a.expect_close());
  ASSERT_TRUE(b.expect_close());
  start();

  // B is back first, and a newcomer before A; neither may run before A has said that it does.
  auto again = test_registration(12 * kGiB);
  again.client_id = b_before->client_id;
  again.wants_lock = 1;
  auto b_after = b.join(again);
  ASSERT_TRUE(b_after);
  EXPECT_EQ(b_after->client_id, b_before->client_id);
  EXPECT_NE(b_after->epoch, b_before->epoch);
  auto newcomer = test_registration(12 * kGiB);
  newcomer.client_id = a_before->client_id;  // a lie: that is not its own
  auto c_after = c.join(newcomer);
  ASSERT_TRUE(c_after);
  EXPECT_NE(c_after->client_id, a_before->client_id);
  EXPECT_NE(c_after->client_id, b_before->client_id);
  c.send(ReqLock{1});
  EXPECT_FALSE(b.comes_within<LockOk>(300ms));
  EXPECT_FALSE(c.comes_within<LockOk>(1ms));

  again.client_id = a_before->client_id;
  again.wants_lock = 0;
  again.has_lock = 1;
  again.memory.resident = 12 * kGiB;
  auto a_after = a.join(again);
  ASSERT_TRUE(a_after);
  EXPECT_EQ(a_after->client_id, a_before->client_id);
  auto lock = a.expect<LockOk>();
  ASSERT_TRUE(lock);
  EXPECT_EQ(lock->grant.epoch, a_after->epoch);
  EXPECT_FALSE(b.comes_within<LockOk>(200ms));
  release(a, lock->grant, 12 * kGiB, 0, ReleaseReason::kEarly);
  EXPECT_TRUE(b.expect<LockOk>());
}

TEST_F(DaemonTest, AfterARestartWhoDoesNotComeBackIsNotWaitedForLongerThanTheGrace) {
  TestClient a = client();
  TestClient b = client();
  settings_.restart_grace = 300'000'000;
  start();
  ASSERT_TRUE(a.join(test_registration(kGiB)));
  stop();
  start();
  ASSERT_TRUE(b.join(test_registration(kGiB)));
  b.send(ReqLock{1});
  EXPECT_TRUE(b.expect<LockOk>());
}

TEST_F(DaemonTest, AClientThatRegistersAnewReplacesItsOldSelf) {
  TestClient a = client(true);  // its forked child keeps the old connection open
  start();
  ASSERT_TRUE(a.join(test_registration(12 * kGiB)));
  a.send(ReqLock{1});
  ASSERT_TRUE(a.expect<LockOk>());
  ASSERT_TRUE(a.join(test_registration(12 * kGiB)));
  a.send(ReqLock{1});
  EXPECT_TRUE(a.expect<LockOk>());
  EXPECT_EQ(status().clients.size(), 1u);
}

TEST_F(DaemonTest, ASecondSchedulerIsRefused) {
  TestClient a = client();
  TestClient b(folder_.path() + "/other" + protocol::kClientSocket);
  start();
  auto same_folder = Daemon::start(settings_, "/nonexistent");
  ASSERT_FALSE(same_folder);
  EXPECT_NE(std::string(same_folder.error().text).find("pid " + std::to_string(getpid())), std::string::npos) << same_folder.error().text;

  // Another folder, the same GPU: its clients are refused, and told who has the GPU.
  ASSERT_TRUE(a.join(test_registration(kGiB)));
  Settings other = settings_;
  other.runtime_dir = folder_.path() + "/other";
  RunningDaemon second(other);
  b.connect();
  b.send(test_registration(kGiB));
  auto refused = b.expect<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_NE(std::string(refused->reason).find(settings_.runtime_dir), std::string::npos) << refused->reason;
  EXPECT_TRUE(b.expect_close());
  EXPECT_TRUE(b.join(test_registration(kGiB, 2))) << "another GPU is free";
}

// An update starts the new scheduler first: it failed until the old one had gone.
TEST_F(DaemonTest, ASchedulerWaitsForTheOneBeforeIt) {
  start();
  const uint64_t epoch = status().epoch;
  Settings patient = settings_;
  patient.take_over_patience = 60'000'000'000;
  auto second = std::async(std::launch::async, [&] { return std::make_unique<RunningDaemon>(patient); });
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  EXPECT_EQ(status().epoch, epoch) << "the first one serves";
  stop();
  daemon_ = second.get();
  EXPECT_NE(status().epoch, epoch);
}

TEST_F(DaemonTest, SocketsOfADeadSchedulerAreReplacedAndOwnOnesRemoved) {
  start();
  stop();
  std::string path = settings_.runtime_dir + protocol::kClientSocket;
  struct stat status {};
  EXPECT_NE(stat(path.c_str(), &status), 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  {
    FileDescriptor dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  start();
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0666u);
  ASSERT_EQ(stat((settings_.runtime_dir + "/admin").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}
// ---- the clients' socket, where others can write its folder ----

FileDescriptor socket_at(const std::string& path, int (*use)(int, const sockaddr*, socklen_t)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  FileDescriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  return use(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? std::move(made) : FileDescriptor();
}

// A scheduler answers what is no message; who only listens there does not.
bool is_served(const std::string& path) {
  const FileDescriptor client = socket_at(path, connect);
  if (!client || send(client.get(), "?", 1, MSG_NOSIGNAL) != 1) return false;
  pollfd answer{client.get(), POLLIN, 0};
  return poll(&answer, 1, 100) == 1;
}

TEST_F(DaemonTest, AClientsSocketThatOthersRemoveOrReplaceIsMadeAnew) {
  settings_.log_level = "critical";
  set_log_level(settings_.log_level);
  start();
  const std::string path = settings_.runtime_dir + protocol::kClientSocket;
  ASSERT_TRUE(is_served(path));
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_TRUE(eventually([&] { return is_served(path); }));

  ASSERT_EQ(unlink(path.c_str()), 0);
  const FileDescriptor impostor = socket_at(path, bind);
  ASSERT_TRUE(impostor && listen(impostor.get(), 64) == 0);
  EXPECT_TRUE(eventually([&] { return is_served(path); }));

  std::filesystem::remove_all(std::filesystem::path(path).parent_path());
  EXPECT_TRUE(eventually([&] { return is_served(path); }));
}

// Who can write the folder has a moment between a socket's birth and its permissions, if it is born there.
TEST_F(DaemonTest, ALinkInPlaceOfTheClientsSocketKeepsItsTargetsPermissions) {
  auto folder = RuntimeDir::open(settings_.runtime_dir);
  ASSERT_TRUE(folder) << folder.error().text;
  const auto first = folder->listen_clients();
  ASSERT_TRUE(first) << first.error().text;
  const std::string path = settings_.runtime_dir + protocol::kClientSocket;
  const std::string target = settings_.runtime_dir + "/target";
  std::ofstream(target) << "of root alone\n";
  ASSERT_EQ(chmod(target.c_str(), 0600), 0);

  std::atomic<bool> ends = false;
  std::thread attacker([&] {
    const std::string link = path + ".link";
    while (!ends) {
      if (symlink(target.c_str(), link.c_str()) == 0 || errno == EEXIST) rename(link.c_str(), path.c_str());
    }
  });
  for (const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(500); std::chrono::steady_clock::now() < until;) {
    const auto listener = folder->listen_clients_again();
    EXPECT_TRUE(listener) << listener.error().text;
  }
  ends = true;
  attacker.join();
  struct stat status {};
  ASSERT_EQ(stat(target.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);

  const auto last = folder->listen_clients_again();
  EXPECT_TRUE(last && folder->has_own_clients_socket());
  unlink(path.c_str());
  const FileDescriptor impostor = socket_at(path, bind);
  EXPECT_TRUE(impostor && !folder->has_own_clients_socket());
}

}  // namespace
}  // namespace nvshare::scheduler
