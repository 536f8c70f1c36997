#include "cli/scheduler_link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/fd.h"
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
  const auto link = find_scheduler();
  ASSERT_TRUE(link);
  EXPECT_FALSE(link->admin);
  EXPECT_NE(link->admin_error.find("no scheduler answers at"), std::string::npos) << link->admin_error;
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

}  // namespace
}  // namespace nvshare::cli
