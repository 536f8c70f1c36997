// The clients' sockets, on a listener and a loop of their own.
#include "scheduler/sockets/client_sockets.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "scheduler/log.h"
#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {
namespace {

class ClientSocketsTest : public testing::Test {
 protected:
  ClientSocketsTest() {
    set_log_level("error");
    address_.sun_family = AF_UNIX;
    std::strncpy(address_.sun_path, (folder_.path() + "/socket").c_str(), sizeof address_.sun_path - 1);
  }

  FileDescriptor listener() const {
    FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_), 0);
    EXPECT_EQ(listen(socket.get(), 64), 0);
    return socket;
  }

  FileDescriptor connect() const {
    FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_), 0);
    return socket;
  }

  TestFolder folder_;
  sockaddr_un address_{};
};

// A scheduler's sockets and engine on a loop that a test runs.
struct Served {
  Served(const std::string& folder, FileDescriptor listener, const ConnectionBounds::Limits& limits)
      : sockets(
            loop, std::move(listener), [] {}, limits, 1024, policy::Duration{60} * 1'000'000'000),
        engine(options_in(folder), sockets, monotonic_ns()) {
    sockets.serve(engine);
  }
  static Engine::Options options_in(const std::string& folder) {
    Engine::Options options;
    options.settings.lock_dir = options.settings.runtime_dir = folder;
    options.look_at_host = [] { return HostBudget::Machine{int64_t{1} << 30, std::nullopt}; };
    return options;
  }
  // What is to come about, and what is done then, one after the other. Once.
  using Steps = std::vector<std::pair<std::function<bool()>, std::function<void()>>>;
  void run(const Steps& steps) {
    auto next = steps.begin();
    Timer look(loop, [&] {
      if (next->first()) (next++)->second();
      if (next == steps.end()) return loop.stop();
      look.arm(monotonic_ns() + 1'000'000);
    });
    look.arm(monotonic_ns());
    loop.run();
  }
  bool has(int64_t connections) const { return sockets.bounds().count() == connections; }

  EventLoop loop;
  ClientSockets sockets;
  Engine engine;
};

int open_descriptors() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

// 3 of 10 that one process makes at once; the others are closed before anything is read about it, with a word.
TEST_F(ClientSocketsTest, AProcessThatConnectsTooOftenIsRefused) {
  ConnectionBounds::Limits limits;
  limits.connects_per_second = 1;
  limits.connect_burst = 3;
  Served served(folder_.path(), listener(), limits);
  std::vector<FileDescriptor> clients;
  for (int i = 0; i < 10; ++i) clients.push_back(connect());
  // All of them are in the listener's queue: the loop has served them when the last one was either let in or refused.
  const ConnectionBounds& bounds = served.sockets.bounds();
  served.run({{[&] { return bounds.count() + static_cast<int64_t>(bounds.refused()) == 10; }, [] {}}});
  EXPECT_LT(bounds.count(), 10) << "a few more where the machine took seconds";
  EXPECT_GE(bounds.count(), 3);
  std::byte bytes[protocol::kMessageBytesMax];
  const ssize_t length = recv(clients.back().get(), bytes, sizeof bytes, MSG_DONTWAIT);
  ASSERT_GT(length, 0);
  const auto refused = protocol::decode<protocol::Refused>({bytes, static_cast<size_t>(length)});
  ASSERT_TRUE(refused);
  EXPECT_EQ(std::string(refused->reason), "process " + std::to_string(getpid()) + " connects too often");
}

TEST_F(ClientSocketsTest, ConnectionsOfOneProcessTakeOneDescriptorMoreTogether) {
  Served served(folder_.path(), listener(), {});
  const int before = open_descriptors();
  std::vector<FileDescriptor> clients;
  for (int i = 0; i < 10; ++i) clients.push_back(connect());
  served.run(
      {{[&] { return served.has(10); },
        [&] {
          EXPECT_EQ(open_descriptors(), before + 10 + 10 + 1) << "ends here, ends of the scheduler, and one pidfd";
          EXPECT_EQ(served.sockets.bounds().descriptors(), 11);
          clients.resize(3);
        }},
       {[&] { return served.has(3) && open_descriptors() == before + 3 + 3 + 1; }, [&] { clients.clear(); }},  // a thread closes them
       {[&] { return served.has(0) && open_descriptors() == before; }, [] {}}});
}

// Their sockets live on, in another process's hands.
TEST_F(ClientSocketsTest, WithTheirProcessAllOfItsConnectionsEnd) {
  constexpr int64_t kOfTheChild = 40;  // more than end at once
  Served served(folder_.path(), listener(), {});
  std::vector<FileDescriptor> clients;
  for (int64_t i = 0; i < kOfTheChild; ++i) clients.emplace_back(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const pid_t child = fork();
  if (child == 0) {
    for (const FileDescriptor& socket : clients) {
      if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_) != 0) _exit(1);
    }
    for (;;) pause();
  }
  clients.push_back(connect());
  served.run({{[&] { return served.has(kOfTheChild + 1); },
               [&] {
                 EXPECT_EQ(served.sockets.bounds().descriptors(), kOfTheChild + 1 + 2);
                 kill(child, SIGKILL);
               }},
              {[&] { return served.has(1); }, [&] { EXPECT_EQ(served.sockets.bounds().descriptors(), 2) << "ours"; }}});
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace nvshare::scheduler
