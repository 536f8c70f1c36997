// Processes and their pidfds, with connections that are mere numbers.
#include "scheduler/sockets/peer_processes.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

namespace nvshare::scheduler {
namespace {

class PeerProcessesTest : public testing::Test {
 protected:
  ~PeerProcessesTest() override {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  pid_t start_child() {
    const pid_t child = fork();
    if (child == 0) {
      for (;;) pause();
    }
    children_.push_back(child);
    return child;
  }
  static FileDescriptor pidfd(pid_t pid) { return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }
  static int open_descriptors() {
    return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
  }
  // Ended, and waited for: its number may be anybody's.
  void end(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    std::erase(children_, child);
  }
  // What is to come about, and what is done then, one after the other. Once.
  using Steps = std::vector<std::pair<std::function<bool()>, std::function<void()>>>;
  void run(const Steps& steps) {
    auto next = steps.begin();
    Timer look(loop_, [&] {
      if (next->first()) (next++)->second();
      if (next == steps.end()) return loop_.stop();
      look.arm(monotonic_ns() + 1'000'000);
    });
    look.arm(monotonic_ns());
    loop_.run();
  }
  // That a few rounds of the loop are over.
  static std::function<bool()> a_while() {
    return [rounds = 20]() mutable { return --rounds == 0; };
  }
  std::function<bool()> ended(size_t connections) {
    return [this, connections] { return ended_.size() == connections; };
  }

  std::vector<pid_t> children_;
  EventLoop loop_;
  std::vector<uint64_t> ended_;
  PeerProcesses processes_{loop_, [this](uint64_t connection) { ended_.push_back(connection); }};
};

TEST_F(PeerProcessesTest, ConnectionsOfAProcessShareADescriptorAndHearOfItsEnd) {
  const pid_t one = start_child(), other = start_child();
  const int before = open_descriptors();
  for (const uint64_t connection : {1u, 2u, 3u}) processes_.join(connection, one, pidfd(one));
  processes_.join(4, other, pidfd(other));
  EXPECT_EQ(open_descriptors(), before + 2);
  processes_.leave(2);
  processes_.end_if_dead(one);
  run({{a_while(),
        [&] {
          EXPECT_TRUE(ended_.empty()) << "both live";
          end(one);
        }},
       {ended(2), [] {}},
       {a_while(),
        [&] {
          EXPECT_EQ(ended_, (std::vector<uint64_t>{1, 3})) << "each once";
          EXPECT_EQ(open_descriptors(), before + 1);
          processes_.leave(4);
          EXPECT_EQ(open_descriptors(), before);
          end(other);
        }},
       {a_while(), [&] { EXPECT_EQ(ended_.size(), 2u) << "nobody is told of it"; }}});
}

// The kernel gives the number of one that has ended to another, before the loop has come to that end.
TEST_F(PeerProcessesTest, AProcessWithTheNumberOfOneThatEndedIsAnotherOne) {
  const pid_t former = start_child(), later = start_child();
  processes_.join(1, former, pidfd(former));
  processes_.join(2, former, pidfd(former));
  end(former);
  processes_.end_if_dead(former);
  EXPECT_EQ(ended_, (std::vector<uint64_t>{1, 2})) << "before the newcomer is there";
  processes_.join(3, former, pidfd(later));
  run({{a_while(),
        [&] {
          EXPECT_EQ(ended_.size(), 2u) << "it lives";
          end(later);
        }},
       {ended(3), [&] { EXPECT_EQ(ended_.back(), 3u); }}});
}

TEST_F(PeerProcessesTest, OneThatEndedAndWasNotWaitedForHasEnded) {
  const pid_t child = start_child();
  processes_.join(1, child, pidfd(child));
  const FileDescriptor ended = pidfd(child);
  kill(child, SIGKILL);
  pollfd polled{ended.get(), POLLIN, 0};
  ASSERT_EQ(poll(&polled, 1, 20'000), 1);
  processes_.end_if_dead(child);
  EXPECT_EQ(ended_, (std::vector<uint64_t>{1}));
}

// Of those that this PID namespace does not show nobody knows whether they are the same.
TEST_F(PeerProcessesTest, ThoseWithoutANumberShareNothing) {
  const pid_t one = start_child(), other = start_child();
  const int before = open_descriptors();
  processes_.join(1, 0, pidfd(one));
  processes_.join(2, 0, pidfd(other));
  processes_.join(3, 0, FileDescriptor());
  EXPECT_EQ(open_descriptors(), before + 2);
  end(one);
  processes_.end_if_dead(0);
  EXPECT_TRUE(ended_.empty());
  run({{ended(1), [] {}}, {a_while(), [&] { EXPECT_EQ(ended_, (std::vector<uint64_t>{1})); }}});
  processes_.leave(2);
  processes_.leave(3);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(PeerProcessesTest, AProcessWithManyConnectionsEndsAFewAtATime) {
  const pid_t child = start_child();
  for (uint64_t connection = 1; connection <= 500; ++connection) processes_.join(connection, child, pidfd(child));
  std::set<size_t> seen;  // how many had ended whenever something else had its turn
  std::function<void()> look = [&] {
    seen.insert(ended_.size());
    if (ended_.size() < 500) loop_.post(look);
  };
  end(child);
  look();
  run({{ended(500), [] {}}});
  EXPECT_GT(seen.size(), 10u);
}

}  // namespace
}  // namespace nvshare::scheduler
