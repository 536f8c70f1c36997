#include "cli/scheduler_link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/fd.h"
#include "cli/wait_to_start.h"
#include "protocol/paths.h"

namespace nvshare::cli {
namespace {

FileDescriptor listen_at(const std::string& path, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  FileDescriptor listener(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  const bool listens =
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && listen(listener.get(), 8) == 0;
  return listens ? std::move(listener) : FileDescriptor();
}

class SchedulerLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/nvshare-link-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    setenv(protocol::kRuntimeDirectoryVariable, name, 1);
  }
  void TearDown() override {
    unsetenv(protocol::kRuntimeDirectoryVariable);
    std::filesystem::remove_all(folder_);
  }
  void make_folders() {
    for (const char* socket : {protocol::kClientSocket, protocol::kAdminSocket}) {
      std::filesystem::create_directories(std::filesystem::path(folder_ + socket).parent_path());
    }
  }

  std::string folder_;
};

TEST_F(SchedulerLinkTest, WhereOnlyClientsAreServedThereIsNoAdmin) {
  EXPECT_FALSE(find_scheduler());
  make_folders();
  const FileDescriptor clients = listen_at(folder_ + protocol::kClientSocket, SOCK_SEQPACKET);
  ASSERT_TRUE(clients);
  auto link = find_scheduler();
  ASSERT_TRUE(link);
  EXPECT_FALSE(link->admin);
  EXPECT_NE(link->admin_error.find("no scheduler answers at"), std::string::npos) << link->admin_error;
  RunOptions options;
  EXPECT_EQ(left_out(options), "limits come from the environment alone");
  options.name = "train";
  EXPECT_EQ(left_out(options), "--name train is not taken, limits come from the environment alone");
  options.wait = true;
  testing::internal::CaptureStderr();
  EXPECT_EQ(wait_to_start(options, "", *link), kExitCannotRun);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("--wait: only a scheduler that answers you"), std::string::npos) << said;
  EXPECT_NE(said.find("Without --wait the program begins at once"), std::string::npos) << said;
}

TEST_F(SchedulerLinkTest, WhereNoneAnswersItIsSaidWhatStartsOne) {
  const auto link = find_scheduler();
  ASSERT_FALSE(link);
  EXPECT_NE(std::string(link.error().text).find("(NVSHARE_RUNTIME_DIR); 'nvsharectl run' starts one there"), std::string::npos)
      << link.error().text;
}

// It listens for admins first, as a scheduler does, while others look for it without pause.
TEST_F(SchedulerLinkTest, OfASchedulerThatIsJustBeginningTheAdminIsFoundToo) {
  for (int round = 0; round < 100; ++round) {
    make_folders();
    FileDescriptor admin, clients;
    std::thread scheduler([&] {
      admin = listen_at(folder_ + protocol::kAdminSocket, SOCK_STREAM);
      clients = listen_at(folder_ + protocol::kClientSocket, SOCK_SEQPACKET);
    });
    std::optional<SchedulerLink> link;
    while (!link) {
      if (auto found = find_scheduler()) link = std::move(*found);
    }
    scheduler.join();
    ASSERT_TRUE(admin && clients);
    ASSERT_TRUE(link->admin) << "in round " << round << ": " << link->admin_error;
    std::filesystem::remove_all(folder_);
  }
}

// The user's own directory, without NVSHARE_RUNTIME_DIR: its name can be guessed, and /tmp is everybody's.
class OwnSchedulerTest : public SchedulerLinkTest {
 protected:
  void SetUp() override {
    SchedulerLinkTest::SetUp();
    unsetenv(protocol::kRuntimeDirectoryVariable);
    const char* before = std::getenv("XDG_RUNTIME_DIR");
    before_ = before != nullptr ? before : "";
    parent_ = folder_;
    setenv("XDG_RUNTIME_DIR", parent_.c_str(), 1);
    folder_ = parent_ + "/nvshare";
    make_folders();
    chmod(folder_.c_str(), 0755);
    admin_ = listen_at(folder_ + protocol::kAdminSocket, SOCK_STREAM);
    clients_ = listen_at(folder_ + protocol::kClientSocket, SOCK_SEQPACKET);
    std::ofstream(folder_ + "/scheduler.log") << "begun\n";
  }
  void TearDown() override {
    setenv("XDG_RUNTIME_DIR", before_.c_str(), 1);
    folder_ = parent_;
    SchedulerLinkTest::TearDown();
  }

  std::string parent_, before_;
  FileDescriptor admin_, clients_;
};

TEST_F(OwnSchedulerTest, InADirectoryOfOnesOwnItIsFound) {
  const auto link = find_scheduler();
  ASSERT_TRUE(link) << link.error().text;
  EXPECT_TRUE(link->own);
  EXPECT_EQ(link->runtime_directory, folder_);
  EXPECT_EQ(own_log(), folder_ + "/scheduler.log");
}

TEST_F(OwnSchedulerTest, WhereOthersCouldPutASocketNobodyIsAsked) {
  chmod(folder_.c_str(), 0777);
  const auto link = find_scheduler();
  ASSERT_FALSE(link);
  EXPECT_NE(std::string(link.error().text).find("is writable for others"), std::string::npos) << link.error().text;
  EXPECT_FALSE(own_log());
}

TEST_F(OwnSchedulerTest, InSomebodyElsesDirectoryNobodyIsAsked) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make somebody else's directory";
  constexpr uid_t kSomebody = 1234;
  ASSERT_EQ(chown(folder_.c_str(), kSomebody, kSomebody), 0);
  const auto link = find_scheduler();
  ASSERT_FALSE(link);
  EXPECT_NE(std::string(link.error().text).find("belongs to another user"), std::string::npos) << link.error().text;
  EXPECT_FALSE(own_log());
}

TEST_F(OwnSchedulerTest, ALinkIsNoDirectoryOfOnesOwn) {
  std::filesystem::rename(folder_, parent_ + "/elsewhere");
  std::filesystem::create_directory_symlink(parent_ + "/elsewhere", folder_);
  EXPECT_FALSE(find_scheduler());
  EXPECT_FALSE(own_log());
}

// As with sudo, where it keeps the variable: who has the folder could rename what root makes there.
TEST_F(OwnSchedulerTest, ARuntimeDirectoryThatOthersCanChangeIsPassedOver) {
  const std::string elsewhere = "/tmp/nvshare-" + std::to_string(geteuid());
  EXPECT_EQ(own_runtime_directory(), folder_);
  chmod(parent_.c_str(), 0777);
  EXPECT_EQ(own_runtime_directory(), elsewhere);
  chmod(parent_.c_str(), 01777);
  EXPECT_EQ(own_runtime_directory(), folder_);
  if (geteuid() != 0) return;
  chmod(parent_.c_str(), 0700);
  ASSERT_EQ(chown(parent_.c_str(), 1234, 1234), 0);
  EXPECT_EQ(own_runtime_directory(), elsewhere);
}

}  // namespace
}  // namespace nvshare::cli
