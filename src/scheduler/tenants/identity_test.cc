#include "scheduler/tenants/identity.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {
namespace {

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

// What the kernel answers of SO_PEERPIDFD, in a child to which a filter gives this error; the child's exit status says what came of it.
int peer_when_the_kernel_says(int error) {
  const pid_t child = fork();
  if (child == 0) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) _exit(9);
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 77 /* SO_PEERPIDFD */, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (static_cast<unsigned>(error) & SECCOMP_RET_DATA)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{sizeof filter / sizeof filter[0], filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) _exit(9);
    _exit(peer_of(pair[0]) ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

TEST(Identity, OnlyAKernelWithoutPidfdsOfPeersLeavesItToTheNumber) {
  const int without = peer_when_the_kernel_says(ENOPROTOOPT);
  if (without == 9) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(without, 1) << "before Linux 6.5";
  EXPECT_EQ(peer_when_the_kernel_says(ESRCH), 0) << "the process is gone, and its number may be another's";
  EXPECT_EQ(peer_when_the_kernel_says(EMFILE), 0);
  EXPECT_EQ(peer_when_the_kernel_says(EINVAL), 0);
}

// In a PID namespace of its own, of sockets whose other ends are of two processes outside: 0, or what was wrong.
int peers_outside(int of_one, int of_other) {
  const auto one = peer_of(of_one), again = peer_of(of_one), other = peer_of(of_other);
  if (!one || !again || !other) return 1;
  if (one->pid != 0 || other->pid != 0) return 2;
  if (one->start_time == 0 || other->start_time == 0) return 3;
  if (one->start_time == other->start_time) return 4;
  return one->start_time == again->start_time || !one->pidfd ? 0 : 5;
}

int exit_status_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

TEST(Identity, ProcessesThatAreNotSeenAreToldApart) {
  int of_this[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, of_this), 0);
  const FileDescriptor ends[] = {FileDescriptor(of_this[0]), FileDescriptor(of_this[1])};
  const pid_t child = fork();
  if (child == 0) {
    int of_child[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, of_child) != 0 || unshare(CLONE_NEWPID) != 0) _exit(9);
    const pid_t inside = fork();
    if (inside == 0) _exit(peers_outside(of_this[0], of_child[0]));
    _exit(exit_status_of(inside));
  }
  const int outcome = exit_status_of(child);
  if (outcome == 9) GTEST_SKIP() << "no PID namespace may be made here";
  EXPECT_EQ(outcome, 0);
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
  EXPECT_NE(cgroups_of(getpid()), kUnreadableCgroups);
  EXPECT_EQ(cgroups_in("/proc/none"), "");
  EXPECT_EQ(cgroups_in("/proc"), kUnreadableCgroups) << "it is there, and what it says is not";
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
    EXPECT_TRUE(has_runs(tenants)) << "its root lives";
  }
  EXPECT_FALSE(has_runs(tenants));
  tenants.prune();
  EXPECT_TRUE(tenants.all().empty());
  EXPECT_FALSE(tenants.add_run(99'999'999, "nobody", 0));
}

TEST(Tenants, ChildrenOfARunBelongToIt) {
  Tenants tenants;
  ASSERT_TRUE(tenants.add_run(getpid(), "tests", 0));
  Child child;
  EXPECT_EQ(tenants.join(peer_with(child.pid), "x").name, "tests");
}

// Processes with made-up cgroups.
struct Cgroups {
  std::map<pid_t, std::string> texts;
  Tenants::LookAtCgroups look() {
    return [this](pid_t pid) { return texts[pid]; };
  }
};

TEST(Tenants, TwoUsersUnitsOfTheSameNameAreTwoTenants) {
  Cgroups cgroups;
  Tenants tenants(cgroups.look());
  Child alice, bob, system, nested;
  const std::string users = "0::/user.slice/user-";
  cgroups.texts[alice.pid] = users + "1000.slice/user@1000.service/app.slice/train.service\n";
  cgroups.texts[bob.pid] = users + "1001.slice/user@1001.service/app.slice/train.service\n";
  cgroups.texts[system.pid] = "0::/system.slice/train.service\n";
  cgroups.texts[nested.pid] = "0::/system.slice/train.service/another.service/mine.scope\n";
  const Tenant& of_alice = tenants.join(peer_with(alice.pid), "x");
  const Tenant& of_bob = tenants.join(peer_with(bob.pid), "x");
  const Tenant& of_system = tenants.join(peer_with(system.pid), "x");
  EXPECT_NE(of_alice.id, of_bob.id);
  EXPECT_NE(of_alice.id, of_system.id);
  EXPECT_EQ(tenants.join(peer_with(nested.pid), "x").id, of_system.id) << "a group below its own is no way out";
  EXPECT_EQ(tenants.find("user-1000/train.service"), &of_alice);
  EXPECT_EQ(tenants.find("train.service"), &of_system) << "by the name that it always had";
}

// A process passes its socket on and ends: what is asked over that is not answered for the one that has its number then.
TEST(Tenants, WhoHasTheNumberOfAProcessThatEndedIsNotTakenForIt) {
  Tenants tenants;
  Child root;
  const auto run = tenants.add_run(root.pid, "train", 5);
  ASSERT_TRUE(run);
  Peer before = peer_with(root.pid);
  --before.start_time;
  EXPECT_NE(tenants.join(before, "x").id, *run);
  EXPECT_EQ(tenants.join(peer_with(root.pid), "x").id, *run);
}

TEST(Tenants, ProcessesThatAreNotSeenAreNotOneTenant) {
  Tenants tenants([](pid_t) { return std::string(); });
  Peer one, other;
  one.start_time = 7;
  other.start_time = 8;
  const policy::TenantId of_one = tenants.join(one, "x").id;
  EXPECT_NE(tenants.join(other, "x").id, of_one) << "they would have each other's host memory";
  EXPECT_EQ(tenants.join(one, "x").id, of_one);
}

TEST(Tenants, WhatAUserNamesAFolderIsMadePrintable) {
  Cgroups cgroups;
  Tenants tenants(cgroups.look());
  Child unit, container;
  const std::string user = "0::/user.slice/user-1000.slice/user@1000.service/";
  cgroups.texts[unit.pid] = user + "app.slice/a\x1b]0;b\a.service\n";
  cgroups.texts[container.pid] = user + "machine-\xff\u202ec.scope\n";
  const Tenant& of_unit = tenants.join(peer_with(unit.pid), "x");
  EXPECT_EQ(of_unit.name, "user-1000/a?]0;b?.service");
  EXPECT_EQ(tenants.join(peer_with(container.pid), "x").name, "user-1000/??c");
  EXPECT_EQ(tenants.join(peer_with(unit.pid), "x").id, of_unit.id) << "it is known by its path";
}

TEST(Tenants, NoUserIsTakenForAPodOrAContainer) {
  const std::string uid = "0b4e6a2c-31d7-4f6e-9c05-7a1b2c3d4e5f";
  const std::string id(64, 'a');
  Cgroups cgroups;
  Tenants tenants(cgroups.look());
  Child pod, liar, container, other_liar;
  cgroups.texts[pod.pid] = "0::/kubepods/burstable/pod" + uid + "/" + id + "\n";
  cgroups.texts[liar.pid] = "0::/user.slice/user-1000.slice/user@1000.service/kubepods/burstable/pod" + uid + "/" + id + "\n";
  cgroups.texts[container.pid] = "0::/system.slice/docker-" + id + ".scope\n";
  cgroups.texts[other_liar.pid] = "0::/user.slice/user-1000.slice/user@1000.service/docker-" + id + ".scope\n";
  EXPECT_NE(tenants.join(peer_with(pod.pid), "x").id, tenants.join(peer_with(liar.pid), "x").id);
  EXPECT_NE(tenants.join(peer_with(container.pid), "x").id, tenants.join(peer_with(other_liar.pid), "x").id);
  EXPECT_EQ(tenants.find(id)->kind, "container") << "the liar does not even share its name";
  EXPECT_EQ(tenants.find(id.substr(0, 12)), tenants.find(id)) << "as docker ps shows it";
  EXPECT_EQ(tenants.find(id.substr(0, 11)), nullptr);
  Child named;
  tenants.join(peer_with(named.pid), id.substr(0, 12));
  EXPECT_EQ(tenants.find(id.substr(0, 12)), nullptr) << "a program chose that name";
}

// Containers of engines whose cgroups nobody knows, such as containerd's `ctr`.
TEST(Tenants, ProcessesOfOnePidNamespaceAreOneTenant) {
  EXPECT_EQ(pid_namespace_below(getpid()), 0u);
  EXPECT_EQ(pid_namespace_below(0), 0u);
  // Two containers: the first has a process beside its first one, and one in a namespace of its own below.
  int report[2];
  ASSERT_EQ(pipe(report), 0);
  std::vector<pid_t> makers;
  for (const int processes : {3, 1}) {
    const pid_t maker = fork();
    ASSERT_GE(maker, 0);
    if (maker == 0) {
      if (unshare(CLONE_NEWPID) != 0) _exit(1);
      const pid_t first = fork();
      if (first == 0) {
        for (int i = 1; i < processes; ++i) {
          if (i == 2 && unshare(CLONE_NEWPID) != 0) _exit(1);
          if (fork() == 0) break;
        }
        char byte = 1;
        if (write(report[1], &byte, 1) != 1) _exit(1);
        pause();
        _exit(0);
      }
      waitpid(first, nullptr, 0);
      _exit(0);
    }
    makers.push_back(maker);
  }
  char bytes[4];
  close(report[1]);
  for (size_t got = 0; got < sizeof bytes;) {
    const ssize_t count = read(report[0], bytes, sizeof bytes - got);
    if (count <= 0) {
      for (const pid_t maker : makers) waitpid(maker, nullptr, 0);
      GTEST_SKIP() << "no PID namespace can be made here (" << strerror(errno) << ")";
    }
    got += static_cast<size_t>(count);
  }
  close(report[0]);
  const auto children_of = [](pid_t parent) {
    std::vector<pid_t> children;
    std::ifstream file("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
    for (pid_t child = 0; file >> child;) children.push_back(child);
    return children;
  };
  const pid_t first = children_of(makers[0]).at(0), second = children_of(makers[1]).at(0);
  const std::vector<pid_t> others = children_of(first);
  ASSERT_EQ(others.size(), 2u);
  Cgroups cgroups;
  Tenants tenants(cgroups.look());
  const auto in_namespace = [](pid_t pid) {
    Peer peer = peer_with(pid);
    peer.pid_namespace = pid_namespace_below(pid);
    return peer;
  };
  const Tenant& of_first = tenants.join(in_namespace(first), "x");
  EXPECT_EQ(of_first.kind, "container");
  for (const pid_t other : others) EXPECT_EQ(tenants.join(in_namespace(other), "x").id, of_first.id);
  EXPECT_NE(tenants.join(in_namespace(second), "x").id, of_first.id);
  EXPECT_EQ(tenants.join(peer_with(second), "x").kind, "process") << "of a user, who can make any number of namespaces";
  for (const pid_t each : {first, second}) kill(each, SIGKILL);
  for (const pid_t maker : makers) waitpid(maker, nullptr, 0);
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
