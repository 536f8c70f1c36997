#include "scheduler/sockets/closing_threads.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "scheduler/log.h"
#include "scheduler/testing/test_lingering.h"

namespace nvshare::scheduler {
namespace {

using namespace std::chrono_literals;

constexpr int kLong = 600;  // seconds

class ClosingThreadsTest : public testing::Test {
 protected:
  static std::pair<FileDescriptor, FileDescriptor> pair() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  }
  // It is on its way when this returns, and the other side has the last one.
  static void send_away(const FileDescriptor& through, FileDescriptor what) {
    Descriptors sent;
    sent.add(std::move(what));
    const std::byte packet[1] = {};
    EXPECT_EQ(send_packet(through.get(), packet, sent, MSG_NOSIGNAL), 1);
  }
  // Within half a minute, which only a failing test takes.
  bool all_are_closed() const {
    for (int i = 0; i < 30'000 && closing_.waiting() > 0; ++i) std::this_thread::sleep_for(1ms);
    return closing_.waiting() == 0;
  }

  ClosingThreads closing_;
};

TEST_F(ClosingThreadsTest, AConnectionThatLingersIsClosedSoon) {
  LingeringSocket lingers(kLong);
  closing_.close_later(std::move(lingers.socket), 1);
  EXPECT_EQ(lingers.socket.get(), -1);
  EXPECT_TRUE(all_are_closed());
}

TEST_F(ClosingThreadsTest, SoAreThoseThatLieUnreadInASocketAndInASocketThere) {
  LingeringSocket first(kLong), second(kLong);
  auto [inner, inner_peer] = pair();
  send_away(inner_peer, std::move(first.socket));
  auto [outer, outer_peer] = pair();
  send_away(outer_peer, std::move(inner));
  send_away(outer_peer, std::move(second.socket));
  closing_.close_socket_later(std::move(outer), 1);
  EXPECT_TRUE(all_are_closed());
}

TEST_F(ClosingThreadsTest, ThePeerReadsWhatItWasToldAndThenTheEnd) {
  auto [ours, theirs] = pair();
  ASSERT_EQ(send(theirs.get(), "unread", 6, 0), 6);
  ASSERT_EQ(send(ours.get(), "why", 3, 0), 3);
  closing_.close_socket_later(std::move(ours), 1);
  EXPECT_TRUE(send(theirs.get(), "more", 4, MSG_NOSIGNAL) < 0 && errno == EPIPE);
  EXPECT_TRUE(all_are_closed());
  char said[8] = {};
  ASSERT_EQ(recv(theirs.get(), said, sizeof said, 0), 3) << std::strerror(errno);
  EXPECT_STREQ(said, "why");
  EXPECT_EQ(recv(theirs.get(), said, sizeof said, 0), 0);
}

TEST_F(ClosingThreadsTest, ASocketWithoutDescriptorsIsClosedAtOnce) {
  for (const int packets : {0, 1, 5}) {
    for (const bool is_open : {true, false}) {
      auto [ours, theirs] = pair();
      for (int i = 0; i < packets; ++i) ASSERT_EQ(send(theirs.get(), "unread", i % 2 == 0 ? 6 : 0, 0), i % 2 == 0 ? 6 : 0);
      if (!is_open) theirs.reset();
      const int number = ours.get();
      closing_.close_socket_later(std::move(ours), 1);
      EXPECT_EQ(fcntl(number, F_GETFD), -1) << packets;
    }
  }
}

// Also where the packet has nothing else, and follows one without anything.
TEST_F(ClosingThreadsTest, OneWithDescriptorsIsNot) {
  for (const bool is_alone : {true, false}) {
    LingeringSocket lingers(kLong);
    auto [ours, theirs] = pair();
    if (!is_alone) {
      ASSERT_EQ(send(theirs.get(), "", 0, 0), 0);
    }
    Descriptors sent;
    sent.add(std::move(lingers.socket));
    ASSERT_EQ(send_packet(theirs.get(), {}, sent, MSG_NOSIGNAL), 0);
    sent.clear();
    const auto begun = std::chrono::steady_clock::now();
    closing_.close_socket_later(std::move(ours), 1);
    EXPECT_TRUE(all_are_closed());
    EXPECT_LT(std::chrono::steady_clock::now() - begun, 20s);
  }
}

TEST_F(ClosingThreadsTest, ManyOfManyAreCountedUntilTheyAreClosed) {
  for (uint64_t i = 0; i < 2000; ++i) closing_.close_later(FileDescriptor(dup(0)), i % 100);
  EXPECT_TRUE(all_are_closed());
  EXPECT_EQ(closing_.waiting(7), 0);
}

}  // namespace
}  // namespace nvshare::scheduler
