#include "scheduler/tenants/admin_peers.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "base/fd.h"
#include "scheduler/tenants/identity.h"
#include "scheduler/testing/test_client.h"

namespace nvshare::scheduler {
namespace {

constexpr char kOfOurNamespace[] = "Name:\tx\nNSpid:\t70\nNSpgid:\t70\n";
constexpr char kOfOneBelow[] = "Name:\tx\nNSpid:\t70\t1\nNSpgid:\t70\t1\n";
const std::string kDocker = "0::/system.slice/docker-" + std::string(64, 'a') + ".scope\n";

TEST(AdminPeers, ANamespaceBelowOursIsAContainerWhateverItsCgroup) {
  const CgroupReader of_host("0::/system.slice/nvshare-scheduler.service\n", "");
  EXPECT_TRUE(may_administer(of_host, "0::/user.slice/user-0.slice/session-1.scope\n", kOfOurNamespace));
  EXPECT_TRUE(may_administer(of_host, "0::/\n", "Name:\tx\nPid:\t7\n")) << "a kernel without PID namespaces";
  EXPECT_FALSE(may_administer(of_host, "0::/default/box\n", kOfOneBelow)) << "containerd's ctr";
  EXPECT_FALSE(may_administer(of_host, "1:name=systemd:/user.slice/user-1000.slice/session-1.scope\n", kOfOneBelow)) << "rootless Podman";
  EXPECT_FALSE(may_administer(of_host, "0::/\n", ""));
  EXPECT_FALSE(may_administer(of_host, "", kOfOurNamespace)) << "a process that is gone";
  EXPECT_FALSE(may_administer(of_host, kUnreadableCgroups, kOfOurNamespace)) << "in a folder of its own, too deep to be shown";
  EXPECT_FALSE(may_administer(of_host, kDocker, kOfOurNamespace)) << "docker run --pid=host";
}

TEST(AdminPeers, OthersInTheSchedulersOwnContainerMay) {
  EXPECT_TRUE(may_administer(CgroupReader(kDocker, ""), kDocker, kOfOneBelow)) << "as the device plugin, in the same pod";
  EXPECT_FALSE(may_administer(CgroupReader("0::/\n", ""), kDocker, kOfOneBelow));
}

// What the real kernel says of a process in a namespace of its own.
TEST(AdminPeers, AProcessInAPidNamespaceOfItsOwnIsRefused) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  const FileDescriptor own(sockets[0]);
  const FileDescriptor peer(sockets[1]);
  EXPECT_TRUE(AdminPeers().may_administer(own.get())) << "this process itself";

  const TestFolder folder;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (folder.path() + "/socket").c_str(), sizeof address.sun_path - 1);
  const FileDescriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWPID) != 0) _exit(77);
    const pid_t contained = fork();
    if (contained == 0) {
      const int connection = socket(AF_UNIX, SOCK_STREAM, 0);
      if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) _exit(1);
      char word = 0;
      _exit(read(connection, &word, 1) == 0 ? 0 : 1);  // until the test has looked at it
    }
    int status = 0;
    waitpid(contained, &status, 0);
    _exit(WEXITSTATUS(status));
  }
  int status = 0;
  FileDescriptor accepted;
  while (!accepted && waitpid(child, &status, WNOHANG) == 0) {
    timeval brief{0, 10'000};
    setsockopt(listener.get(), SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief);
    accepted = FileDescriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  if (!accepted) GTEST_SKIP() << "this user may make no PID namespace";
  const Result<void> allowed = AdminPeers().may_administer(accepted.get());
  ASSERT_FALSE(allowed);
  EXPECT_STREQ(allowed.error().text, "admin requests are not for containers");
  accepted = FileDescriptor();
  waitpid(child, &status, 0);
}

}  // namespace
}  // namespace nvshare::scheduler
