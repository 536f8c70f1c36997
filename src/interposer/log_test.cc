#include "interposer/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>

#include "base/fd.h"

namespace {

std::atomic<int> filled{-1};  // the pipe that another process fills as soon as it was seen to have room

void fill(int fd) {
  const std::string text(4096, 'x');
  fcntl(fd, F_SETFL, O_NONBLOCK);
  while (write(fd, text.data(), text.size()) > 0) {
  }
  fcntl(fd, F_SETFL, 0);
}

}  // namespace

// The log's own: this program's function goes before the C library's.
extern "C" int ppoll(pollfd* fds, nfds_t count, const timespec* patience, const sigset_t* mask) {
  timespec rest = patience != nullptr ? *patience : timespec{};
  const long ready = syscall(SYS_ppoll, fds, count, patience != nullptr ? &rest : nullptr, mask, sizeof(uint64_t));
  if (const int fd = filled.load(); ready > 0 && fd >= 0) fill(fd);
  return static_cast<int>(ready);
}

namespace nvshare::interposer {
namespace {

TEST(Log, WhatAVariableHasInItMakesNoLineOfItsOwn) {
  testing::internal::CaptureStderr();
  log(LogLevel::kError, "VARIABLE is '%s'", "8Gi\nnvshare[1]: error: forged\x1b[31m \x7f\u00e4");
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find("VARIABLE is '8Gi?nvshare[1]: error: forged?[31m ?\u00e4'\n"), std::string::npos) << line;
}

TEST(Log, ALineDoesNotWaitWhereAnotherProcessTakesTheRoom) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  FileDescriptor reads(ends[0]), writes(ends[1]);
  iovec text_of_one{const_cast<char*>("x"), 1};
  if (syscall(SYS_pwritev2, writes.get(), &text_of_one, 1, -1L, -1L, RWF_NOWAIT) < 0) GTEST_SKIP() << "a kernel before Linux 6.4";
  const FileDescriptor before(dup(STDERR_FILENO));
  ASSERT_GE(dup2(writes.get(), STDERR_FILENO), 0);
  filled.store(writes.get());
  std::future<void> line = std::async(std::launch::async, [] { log(LogLevel::kError, "a line"); });
  const bool returned = line.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  filled.store(-1);
  dup2(before.get(), STDERR_FILENO);
  std::string text(1 << 20, ' ');
  while (!returned && line.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    if (read(reads.get(), text.data(), text.size()) < 0) break;
  }
  line.wait();
  EXPECT_TRUE(returned) << "it waited for a reader";
}

}  // namespace
}  // namespace nvshare::interposer
