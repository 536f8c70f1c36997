// A scheduler that was stopped, whose queue of connections was full: a program that looked for one waited in connect() for good. It has to
// go on as without a scheduler, as where the queue takes it and nobody answers.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "base/fd.h"
#include "e2e/harness/stage.h"
#include "protocol/paths.h"

namespace nvshare::e2e {
namespace {

TEST(Regressions, ASchedulerThatStandsStillHoldsNoProgramUp) {
  Stage stage;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = stage.runtime_directory() + protocol::kClientSocket;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
  const FileDescriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  std::vector<FileDescriptor> queue;
  do {
    queue.emplace_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  } while (connect(queue.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && queue.size() < 100);
  ASSERT_EQ(errno, EAGAIN) << "the queue is not full";
  Child& child = stage.start("alone", {"mix", "--steps", "5", "--hold", "8M", "--largest", "4M", "--stop", "/none"});
  stage.expect_success(child);
  EXPECT_TRUE(child.logged("no nvshare-scheduler answers")) << child.log();
}

// A container's mount of the scheduler's folder leads nowhere once that was removed. Nobody said so.
TEST(Regressions, AFolderThatWasRemovedIsNamed) {
  Stage stage;
  const std::string folder = stage.directory() + "/removed";
  std::filesystem::create_directories(folder);
  Child& child = stage.start_command(
      "removed",
      {"/bin/sh", "-c", "cd " + folder + " && rmdir " + folder + " && exec " + kWorkerPath + " mix --steps 5 --hold 8M --largest 4M"}, true,
      {{"NVSHARE_RUNTIME_DIR", "."}});
  stage.expect_success(child);
  EXPECT_TRUE(child.logged("was removed")) << child.log();
}

}  // namespace
}  // namespace nvshare::e2e
