#include "scheduler/identity.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scheduler/tenants.h"

namespace nvshare::scheduler {
namespace {

const std::string kId(64, 'a');

std::string identified(const std::string& cgroups) {
  auto found = identify_cgroup(cgroups);
  if (!found) return "nothing";
  const bool pod = found->kind == CgroupIdentity::Kind::kPod;
  return (pod ? "pod " : found->kind == CgroupIdentity::Kind::kContainer ? "container " : "unit ") + found->name;
}

TEST(Identity, KnowsContainersOfEveryRuntime) {
  EXPECT_EQ(identified("0::/system.slice/docker-" + kId + ".scope\n"), "container " + kId);
  EXPECT_EQ(identified("12:memory:/docker/" + kId + "\n0::/\n"), "container " + kId);
  EXPECT_EQ(identified("0::/machine.slice/libpod-" + kId + ".scope/container\n"), "container " + kId);
  EXPECT_EQ(identified("0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + kId + ".scope\n"), "container " + kId);
  EXPECT_EQ(identified("0::/lxc.payload.box/system.slice/cron.service\n"), "container box");
  EXPECT_EQ(identified("0::/machine.slice/machine-box.scope\n"), "container box");
}

constexpr char kUid[] = "0b4e6a2c-31d7-4f6e-9c05-7a1b2c3d4e5f";
constexpr char kUidSlice[] = "pod0b4e6a2c_31d7_4f6e_9c05_7a1b2c3d4e5f.slice";
const std::string kPod = std::string("pod ") + kUid;

TEST(Identity, KnowsAPodByEitherCgroupDriver) {
  const std::string folder = std::string("pod") + kUid;
  const std::string slice = kUidSlice;
  for (const char* quality : {"", "/burstable", "/besteffort"}) {
    EXPECT_EQ(identified("0::/kubepods" + std::string(quality) + "/" + folder + "/" + kId + "\n"), kPod) << quality;
  }
  for (const char* runtime : {"cri-containerd", "crio", "docker"}) {
    const std::string container = std::string("/") + runtime + "-" + kId + ".scope\n";
    EXPECT_EQ(identified("0::/kubepods.slice/kubepods-" + slice + container), kPod);
    EXPECT_EQ(identified("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-" + slice + container), kPod);
    EXPECT_EQ(identified("0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-" + slice + container), kPod);
    EXPECT_EQ(identified("0::/gpu.slice/gpu-kubepods.slice/gpu-kubepods-burstable.slice/gpu-kubepods-burstable-" + slice + container), kPod)
        << "--cgroup-root";
  }
  EXPECT_EQ(identified("0::/system.slice/containerd.service/kubepods-burstable-" + slice + ":cri-containerd:" + kId + "\n"),
            "unit containerd.service")
      << "a runtime that was told another cgroup driver than the kubelet: unknown, so nobody's pod";
  EXPECT_EQ(identified("0::/kubepods/burstable/pod" + std::string(32, 'c') + "/" + kId + "\n"), "pod " + std::string(32, 'c')) << "static";
}

TEST(Identity, KnowsAPodInEveryHierarchyThatAgrees) {
  const std::string path = std::string("/kubepods/burstable/pod") + kUid + "/" + kId + "\n";
  EXPECT_EQ(identified("11:memory:" + path + "4:cpu,cpuacct:" + path + "1:name=systemd:" + path), kPod);
  EXPECT_EQ(identified("11:memory:" + path + "2:rdma:/\n0::/system.slice/containerd.service\n"), kPod) << "hybrid";
  EXPECT_EQ(identified("0::/system.slice/containerd.service\n11:memory:" + path), kPod);
  std::string other = path;
  other[other.find(kUid)] = 'f';
  EXPECT_EQ(identified("11:memory:" + path + "4:cpu:" + other).substr(0, 10), "container ") << "neither of the two pods";
}

TEST(Identity, KnowsAPodFromInsideAnotherCgroupNamespace) {
  EXPECT_EQ(identified(std::string("0::/../../pod") + kUid + "/" + kId + "\n"), kPod);
  EXPECT_EQ(identified(std::string("0::/../../../burstable/pod") + kUid + "/" + kId + "\n"), kPod);
  EXPECT_EQ(identified(std::string("0::/../../kubepods-burstable-") + kUidSlice + "/crio-" + kId + ".scope\n"), kPod);
}

TEST(Identity, NamesThatAContainerNestsInItsOwnCgroupSayNothing) {
  const std::string theirs = std::string("/kubepods/besteffort/pod") + kUid + "/" + kId;
  EXPECT_EQ(identified("0::/kubepods/burstable/pod" + std::string(32, 'e') + "/" + kId + theirs + "\n"), "pod " + std::string(32, 'e'));
  EXPECT_EQ(identified("0::/system.slice/docker-" + kId + ".scope" + theirs + "\n"), "container " + kId);
  EXPECT_EQ(identified(std::string("0::/user.slice/pod") + kUid + "\n"), "nothing") << "no kubelet's";
  EXPECT_EQ(identified(std::string("0::/kubepods/podium\n")), "nothing");
  EXPECT_FALSE(may_administer(std::string("0::/kubepods/pod") + kUid + "/" + kId + "\n", "0::/system.slice/nvshare-scheduler.service\n"));
}

TEST(Identity, KnowsUnitsButNotLoginSessions) {
  EXPECT_EQ(identified("0::/system.slice/train.service\n"), "unit train.service");
  EXPECT_EQ(identified("0::/user.slice/user-1000.slice/user@1000.service/app.slice/train.service\n"), "unit train.service");
  EXPECT_EQ(identified("0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-r12.scope\n"), "unit run-r12.scope");
  EXPECT_EQ(identified("0::/user.slice/user-1000.slice/session-3.scope\n"), "nothing");
  EXPECT_EQ(identified("0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope\n"), "nothing");
  EXPECT_EQ(identified("0::/\n"), "nothing");
  EXPECT_EQ(identified(""), "nothing");
  EXPECT_EQ(identified("garbage\n:\n::\n"), "nothing");
}

TEST(Identity, AdminRequestsDoNotComeOutOfContainers) {
  std::string container = "0::/system.slice/docker-" + kId + ".scope\n";
  std::string other = "0::/system.slice/docker-" + std::string(64, 'b') + ".scope\n";
  EXPECT_TRUE(may_administer("0::/\n", "0::/\n"));
  EXPECT_TRUE(may_administer("0::/user.slice/session-1.scope\n", "0::/system.slice/nvshare-scheduler.service\n"));
  EXPECT_FALSE(may_administer(container, "0::/system.slice/nvshare-scheduler.service\n"));
  EXPECT_FALSE(may_administer(container, other));
  EXPECT_TRUE(may_administer(container, container)) << "both in the same container";
  EXPECT_FALSE(may_administer("", "0::/\n")) << "a process that is gone";
}

// A child that lives until killed.
struct Child {
  Child() : pid(fork()) {
    while (pid == 0) pause();
  }
  ~Child() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  pid_t pid;
};

TEST(Identity, ThePeerIsTheProcessThatConnected) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  FileDescriptor ends[] = {FileDescriptor(pair[0]), FileDescriptor(pair[1])};
  auto peer = peer_of(pair[0]);
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, getuid());
  EXPECT_NE(peer->start_time, 0u);
  EXPECT_EQ(peer->start_time, start_time_of(getpid()));
  ASSERT_TRUE(peer->pidfd);
  pollfd polled{peer->pidfd.get(), POLLIN, 0};
  EXPECT_EQ(poll(&polled, 1, 0), 0) << "it lives";
  EXPECT_FALSE(peer_of(polled.fd)) << "no socket";
}

TEST(Identity, AProcessIsNumberedAsTheViewerSeesIt) {
  const char* host = "Name:\tviewer\nNSpid:\t100\nx\n";
  const char* other_host = "Name:\tjob\nNSpid:\t200\n";
  const char* in_container = "Name:\tjob\nNSpid:\t300\t7\nx:\n";
  const char* viewer_in_container = "Name:\tviewer\nNSpid:\t400\t8\n";
  EXPECT_EQ(pid_as_seen_by(host, other_host, true), 200);
  EXPECT_EQ(pid_as_seen_by(host, in_container, false), 300);
  EXPECT_EQ(pid_as_seen_by(viewer_in_container, in_container, true), 7);
  EXPECT_EQ(pid_as_seen_by(viewer_in_container, in_container, false), 0) << "another container";
  EXPECT_EQ(pid_as_seen_by(viewer_in_container, other_host, false), 0);
  EXPECT_EQ(pid_as_seen_by(host, "", true), 0) << "it has ended";
  EXPECT_EQ(pid_as_seen_by(getpid(), getpid()), getpid());
}

TEST(Identity, ReadsProc) {
  EXPECT_EQ(parent_of(getpid()), getppid());
  EXPECT_EQ(start_time_of(-1), 0u);
  EXPECT_EQ(start_time_of(0), 0u);
  EXPECT_FALSE(short_name_of(getpid()).empty());
  EXPECT_FALSE(cgroups_of(getpid()).empty());
  pid_t gone = 0;
  {
    Child child;
    gone = child.pid;
    EXPECT_GE(start_time_of(gone), start_time_of(getpid()));
    EXPECT_EQ(parent_of(gone), getpid());
  }
  EXPECT_EQ(start_time_of(gone), 0u);
}

Peer peer_with(pid_t pid) {
  Peer peer;
  peer.pid = pid;
  peer.start_time = start_time_of(pid);
  return peer;
}

TEST(Tenants, AProcessTreeIsOneTenantAndGoesWithItsRoot) {
  Tenants tenants;
  {
    Child root;
    auto run = tenants.add_run(root.pid, "train", 5);
    ASSERT_TRUE(run);
    Tenant& tenant = tenants.join(peer_with(root.pid), "python3");
    EXPECT_EQ(tenant.id, *run);
    EXPECT_EQ(tenant.kind, "run");
    EXPECT_EQ(tenant.gpu_memory_limit, 5);
    EXPECT_EQ(tenants.find("train"), &tenant);
    EXPECT_EQ(tenants.find(std::to_string(*run)), &tenant);
    EXPECT_EQ(*tenants.add_run(root.pid, "renamed", 6), *run);
    EXPECT_EQ(tenants.find(*run)->gpu_memory_limit, 6);
    tenants.leave(*run);
    EXPECT_TRUE(tenants.has_runs()) << "its root lives";
  }
  EXPECT_FALSE(tenants.has_runs());
  EXPECT_TRUE(tenants.all().empty());
  EXPECT_FALSE(tenants.add_run(99'999'999, "nobody", 0));
}

TEST(Tenants, ChildrenOfARunBelongToIt) {
  Tenants tenants;
  ASSERT_TRUE(tenants.add_run(getpid(), "tests", 0));
  Child child;
  EXPECT_EQ(tenants.join(peer_with(child.pid), "x").name, "tests");
}

TEST(Tenants, TwoOfTheSameNameAreToldApartById) {
  Tenants tenants;
  Child a;
  Child b;
  auto first = tenants.add_run(a.pid, "train", 0);
  ASSERT_TRUE(first);
  ASSERT_TRUE(tenants.add_run(b.pid, "train", 0));
  EXPECT_EQ(tenants.find("train"), nullptr);
  EXPECT_NE(tenants.find(std::to_string(*first)), nullptr);
}

}  // namespace
}  // namespace nvshare::scheduler
