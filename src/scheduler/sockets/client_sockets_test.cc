// The clients' sockets, on a listener and a loop of their own.
#include "scheduler/sockets/client_sockets.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

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

// 3 of 10 that one process makes at once; the others are closed before anything is read about it, with a word.
TEST_F(ClientSocketsTest, AProcessThatConnectsTooOftenIsRefused) {
  ConnectionBounds::Limits limits;
  limits.connects_per_second = 1;
  limits.connect_burst = 3;
  EventLoop loop;
  ClientSockets sockets(
      loop, listener(), [] {}, limits, 1024, policy::Duration{60} * 1'000'000'000);
  Engine::Options options;
  options.settings.lock_dir = options.settings.runtime_dir = folder_.path();
  options.look_at_host = [] { return HostBudget::Machine{int64_t{1} << 30, std::nullopt}; };
  Engine engine(std::move(options), sockets, monotonic_ns());
  sockets.serve(engine);
  std::vector<FileDescriptor> clients;
  for (int i = 0; i < 10; ++i) clients.push_back(connect());
  // All of them are in the listener's queue: the loop has served them when the last one was either let in or refused.
  Timer look(loop, [&] {
    if (sockets.bounds().count() + static_cast<int64_t>(sockets.bounds().refused()) == 10) return loop.stop();
    look.arm(monotonic_ns() + 1'000'000);
  });
  look.arm(monotonic_ns());
  loop.run();
  EXPECT_LT(sockets.bounds().count(), 10) << "a few more where the machine took seconds";
  EXPECT_GE(sockets.bounds().count(), 3);
  std::byte bytes[protocol::kMessageBytesMax];
  const ssize_t length = recv(clients.back().get(), bytes, sizeof bytes, MSG_DONTWAIT);
  ASSERT_GT(length, 0);
  const auto refused = protocol::decode<protocol::Refused>({bytes, static_cast<size_t>(length)});
  ASSERT_TRUE(refused);
  EXPECT_EQ(std::string(refused->reason), "process " + std::to_string(getpid()) + " connects too often");
}

}  // namespace
}  // namespace nvshare::scheduler
