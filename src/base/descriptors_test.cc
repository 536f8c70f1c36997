#include "base/descriptors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nvshare {
namespace {

class DescriptorsTest : public testing::Test {
 protected:
  DescriptorsTest() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    from_.reset(pair[0]);
    to_.reset(pair[1]);
  }
  // The read end of a pipe that holds `text`.
  static FileDescriptor pipe_with(const char* text) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    EXPECT_EQ(write(ends[1], text, strlen(text)), static_cast<ssize_t>(strlen(text)));
    close(ends[1]);
    return FileDescriptor(ends[0]);
  }
  static int open_descriptors() {
    int count = 0;
    DIR* folder = opendir("/proc/self/fd");
    while (readdir(folder) != nullptr) ++count;
    closedir(folder);
    return count;
  }
  static std::span<const std::byte> bytes_of(const char* text) { return {reinterpret_cast<const std::byte*>(text), strlen(text)}; }

  FileDescriptor from_;
  FileDescriptor to_;
  std::byte buffer_[64];
};

TEST_F(DescriptorsTest, ArriveInOrderWithTheirPacketAndAreClosedOnExec) {
  Descriptors sent;
  sent.add(pipe_with("one"));
  sent.add(pipe_with("two"));
  ASSERT_EQ(send_packet(from_.get(), bytes_of("hello"), sent, MSG_NOSIGNAL), 5);
  ASSERT_EQ(send_packet(from_.get(), bytes_of("plain"), {}, MSG_NOSIGNAL), 5);
  Descriptors got;
  ASSERT_EQ(receive_packet(to_.get(), buffer_, &got, 0), 5);
  EXPECT_EQ(memcmp(buffer_, "hello", 5), 0);
  ASSERT_EQ(got.count(), 2);
  for (int i = 0; i < 2; ++i) {
    char text[8] = {};
    EXPECT_EQ(fcntl(got.get(i), F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(read(got.get(i), text, sizeof text), 3);
    EXPECT_STREQ(text, i == 0 ? "one" : "two");
  }
  // Those of the packet before are gone from the list.
  ASSERT_EQ(receive_packet(to_.get(), buffer_, &got, 0), 5);
  EXPECT_EQ(got.count(), 0);
}

TEST_F(DescriptorsTest, TheMostThatFitArriveAndOneMoreIsRefused) {
  Descriptors sent;
  for (int i = 0; i < Descriptors::kMax; ++i) EXPECT_TRUE(sent.add(pipe_with("x")));
  EXPECT_FALSE(sent.add(pipe_with("x")));
  ASSERT_EQ(send_packet(from_.get(), bytes_of("many"), sent, MSG_NOSIGNAL), 4);
  Descriptors got;
  ASSERT_EQ(receive_packet(to_.get(), buffer_, &got, 0), 4);
  EXPECT_EQ(got.count(), Descriptors::kMax);
}

// It was taken for one with too many, so that a program with as many files open as it may have lost its connection again and again.
TEST_F(DescriptorsTest, APacketWhoseDescriptorsCannotBeOpenedComesWithNone) {
  Descriptors sent;
  sent.add(pipe_with("one"));
  sent.add(pipe_with("two"));
  ASSERT_EQ(send_packet(from_.get(), bytes_of("hello"), sent, MSG_NOSIGNAL), 5);
  ASSERT_EQ(send_packet(from_.get(), bytes_of("plain"), {}, MSG_NOSIGNAL), 5);
  const int before = open_descriptors();
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  rlimit one_more = files;
  one_more.rlim_cur = static_cast<rlim_t>(FileDescriptor(dup(to_.get())).get()) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one_more), 0);
  Descriptors got;
  const ssize_t length = receive_packet(to_.get(), buffer_, &got, 0);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(length, 5);
  EXPECT_EQ(got.count(), 0) << "one alone says nothing";
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(receive_packet(to_.get(), buffer_, &got, 0), 5);
}

TEST_F(DescriptorsTest, APacketWithTooManyIsAnErrorAndLeavesNoneOpen) {
  constexpr int kTooMany = Descriptors::kMax + 5;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kTooMany)] = {};
  char byte = 'x';
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * kTooMany);
  FileDescriptor one = pipe_with("x");
  for (size_t i = 0; i < kTooMany; ++i) {
    int fd = one.get();
    memcpy(CMSG_DATA(header) + i * sizeof fd, &fd, sizeof fd);
  }
  ASSERT_EQ(sendmsg(from_.get(), &message, MSG_NOSIGNAL), 1);
  const int before = open_descriptors();
  Descriptors got;
  EXPECT_EQ(receive_packet(to_.get(), buffer_, &got, 0), -1);
  EXPECT_EQ(errno, EMSGSIZE);
  EXPECT_EQ(got.count(), 0);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(DescriptorsTest, TheEndOfTheConnectionIsZeroBytes) {
  from_.reset();
  Descriptors got;
  EXPECT_EQ(receive_packet(to_.get(), buffer_, &got, 0), 0);
}

}  // namespace
}  // namespace nvshare
