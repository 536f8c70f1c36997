#include "interposer/own_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

namespace nvshare::interposer {
namespace {

bool readable(int fd) {
  pollfd one{fd, POLLIN, 0};
  return poll(&one, 1, 0) == 1 && (one.revents & POLLIN) != 0;
}

// The program has closed `fd`, and has an empty file of its own under that number.
void take_number(int fd) {
  const FileDescriptor file(memfd_create("mine", MFD_CLOEXEC));
  ASSERT_EQ(dup2(file.get(), fd), fd);
}

TEST(OwnSocket, IsClosedOnlyWhileItIsOurs) {
  OwnSocket ours;
  FileDescriptor made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int fd = made.get();
  ours.reset(std::move(made));
  EXPECT_EQ(ours.get(), fd);
  take_number(fd);
  EXPECT_EQ(ours.get(), -1);
  ours.reset();
  EXPECT_NE(fcntl(fd, F_GETFD), -1) << "a file of the program's was closed";
  const FileDescriptor other(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ours.reset(FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  const int number = ours.get();
  ASSERT_EQ(dup2(other.get(), number), number);
  EXPECT_EQ(ours.get(), -1) << "another socket under its number";
  close(fd);
}

TEST(WakeSocket, WakesUntilThatIsTakenIn) {
  WakeSocket wake;
  ASSERT_TRUE(wake.make());
  EXPECT_FALSE(readable(wake.get()));
  for (int each = 0; each < 5000; ++each) wake.wake();  // more than fit in
  EXPECT_TRUE(readable(wake.get()));
  wake.settle();
  EXPECT_FALSE(readable(wake.get()));
  wake.wake();
  EXPECT_TRUE(readable(wake.get()));
}

TEST(WakeSocket, WritesAndReadsNothingElsewhereAndIsMadeAnew) {
  WakeSocket wake;
  ASSERT_TRUE(wake.make());
  const int fd = wake.get();
  take_number(fd);
  wake.wake();
  EXPECT_EQ(lseek(fd, 0, SEEK_END), 0);
  EXPECT_EQ(write(fd, "text", 4), 4);
  EXPECT_EQ(lseek(fd, 0, SEEK_SET), 0);
  wake.settle();
  EXPECT_EQ(lseek(fd, 0, SEEK_CUR), 0);
  ASSERT_TRUE(wake.make());
  EXPECT_NE(wake.get(), fd);
  wake.wake();
  EXPECT_TRUE(readable(wake.get()));
  close(fd);
}

}  // namespace
}  // namespace nvshare::interposer
