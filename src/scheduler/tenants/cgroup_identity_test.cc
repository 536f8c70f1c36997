#include "scheduler/tenants/cgroup_identity.h"

#include <gtest/gtest.h>

namespace nvshare::scheduler {
namespace {

const std::string kId(64, 'a');
constexpr char kUid[] = "0b4e6a2c-31d7-4f6e-9c05-7a1b2c3d4e5f";
constexpr char kUidSlice[] = "pod0b4e6a2c_31d7_4f6e_9c05_7a1b2c3d4e5f.slice";
const std::string kPod = std::string("pod ") + kUid;
constexpr char kService[] = "0::/system.slice/nvshare-scheduler.service\n";

std::string named(const std::optional<CgroupIdentity>& found) {
  if (!found) return "nothing";
  if (found->kind == CgroupIdentity::Kind::kJob) return "job " + found->name;
  const bool pod = found->kind == CgroupIdentity::Kind::kPod;
  return (pod ? "pod " : found->kind == CgroupIdentity::Kind::kContainer ? "container " : "unit ") + found->name;
}

std::string identified(const std::string& cgroups, const CgroupReader& reader = {}) { return named(reader.identify(cgroups)); }

bool may_administer(const std::string& peer, const std::string& own) { return CgroupReader(own, "").may_administer(peer); }

TEST(CgroupIdentity, KnowsContainersOfEveryRuntime) {
  EXPECT_EQ(identified("0::/system.slice/docker-" + kId + ".scope\n"), "container " + kId);
  EXPECT_EQ(identified("12:memory:/docker/" + kId + "\n0::/\n"), "container " + kId);
  EXPECT_EQ(identified("0::/machine.slice/libpod-" + kId + ".scope/container\n"), "container " + kId);
  EXPECT_EQ(identified("0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + kId + ".scope\n"),
            "container user-1000/" + kId);
  EXPECT_EQ(identified("0::/lxc.payload.box/system.slice/cron.service\n"), "container box");
  EXPECT_EQ(identified("0::/machine.slice/machine-box.scope\n"), "container box");
}

TEST(CgroupIdentity, KnowsAPodByEitherCgroupDriver) {
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

TEST(CgroupIdentity, KnowsAPodInEveryHierarchyThatAgrees) {
  const std::string path = std::string("/kubepods/burstable/pod") + kUid + "/" + kId + "\n";
  EXPECT_EQ(identified("11:memory:" + path + "4:cpu,cpuacct:" + path + "1:name=systemd:" + path), kPod);
  EXPECT_EQ(identified("11:memory:" + path + "2:rdma:/\n0::/system.slice/containerd.service\n"), kPod) << "hybrid";
  EXPECT_EQ(identified("0::/system.slice/containerd.service\n11:memory:" + path), kPod);
  std::string other = path;
  other[other.find(kUid)] = 'f';
  EXPECT_EQ(identified("11:memory:" + path + "4:cpu:" + other).substr(0, 10), "container ") << "neither of the two pods";
}

TEST(CgroupIdentity, KnowsAPodFromInsideAnotherCgroupNamespace) {
  EXPECT_EQ(identified(std::string("0::/../../pod") + kUid + "/" + kId + "\n"), kPod);
  EXPECT_EQ(identified(std::string("0::/../../../burstable/pod") + kUid + "/" + kId + "\n"), kPod);
  EXPECT_EQ(identified(std::string("0::/../../kubepods-burstable-") + kUidSlice + "/crio-" + kId + ".scope\n"), kPod);
}

TEST(CgroupIdentity, NamesThatAContainerNestsInItsOwnCgroupSayNothing) {
  const std::string theirs = std::string("/kubepods/besteffort/pod") + kUid + "/" + kId;
  EXPECT_EQ(identified("0::/kubepods/burstable/pod" + std::string(32, 'e') + "/" + kId + theirs + "\n"), "pod " + std::string(32, 'e'));
  EXPECT_EQ(identified("0::/system.slice/docker-" + kId + ".scope" + theirs + "\n"), "container " + kId);
  EXPECT_EQ(identified(std::string("0::/user.slice/pod") + kUid + "\n"), "nothing") << "no kubelet's";
  EXPECT_EQ(identified(std::string("0::/kubepods/podium\n")), "nothing");
  EXPECT_FALSE(may_administer(std::string("0::/kubepods/pod") + kUid + "/" + kId + "\n", "0::/system.slice/nvshare-scheduler.service\n"));
}

TEST(CgroupIdentity, KnowsASlurmJobWhereRootsSlurmdMakesItsFolder) {
  EXPECT_EQ(identified("6:freezer:/slurm/uid_1000/job_7/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service\n"), "job 7");
  EXPECT_EQ(identified("9:name=systemd:/system.slice/slurmd.service\n6:freezer:/slurm_node3/uid_0/job_12/step_batch\n0::/\n"), "job 12");
  EXPECT_EQ(identified("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"), "job 7");
  EXPECT_EQ(identified("0::/system.slice/node3_slurmstepd.scope/job_7/step_extern/user/task_special\n"), "job 7");
  EXPECT_EQ(CgroupReader().identify("0::/system.slice/slurmstepd.scope/job_7/step_0\n")->path, "/system.slice/slurmstepd.scope/job_7");
  EXPECT_EQ(identified("0::/system.slice/slurmstepd.scope/system\n"), "unit slurmstepd.scope") << "of no job";
  for (const char* number : {"", "0", "x", "-1", "7x", "4294967296"}) {
    EXPECT_EQ(identified(std::string("6:freezer:/slurm/uid_0/job_") + number + "/step_0\n"), "nothing") << number;
  }
  EXPECT_TRUE(may_administer("6:freezer:/slurm/uid_0/job_7/step_0\n", kService)) << "slurmstepd, where the plugin runs";
}

TEST(CgroupIdentity, FoldersLikeAJobsAnywhereElseAreNone) {
  const std::string user = "/user.slice/user-1000.slice/user@1000.service";
  EXPECT_EQ(identified("0::" + user + "/slurmstepd.scope/job_7/step_0\n"), "unit user-1000/slurmstepd.scope");
  EXPECT_EQ(identified("0::" + user + "/app.slice/slurm/uid_0/job_7\n"), "nothing");
  EXPECT_EQ(identified("0::/docker/" + kId + "/slurm/uid_0/job_7\n"), "container " + kId);
  EXPECT_EQ(identified("0::/../slurm/uid_0/job_7\n"), "nothing") << "outside our namespace: not at the root";
  EXPECT_EQ(identified(std::string("0::/kubepods/pod") + kUid + "/system.slice/slurmstepd.scope/job_7/step_0\n"), kPod);
  // A job's process may move where its user may make folders, in hierarchies that Slurm does not use.
  EXPECT_EQ(identified("6:freezer:/slurm/uid_1000/job_7/step_0\n1:name=systemd:" + user + "/docker-" + kId + ".scope\n"), "job 7");
  EXPECT_EQ(identified("1:name=systemd:" + user + "/docker-" + kId + ".scope\n6:freezer:/slurm/uid_1000/job_7/step_0\n"), "job 7");
}

TEST(CgroupIdentity, KnowsUnitsButNotLoginSessions) {
  EXPECT_EQ(identified("0::/system.slice/train.service\n"), "unit train.service");
  EXPECT_EQ(identified("0::/user.slice/user-1000.slice/user@1000.service/app.slice/train.service\n"), "unit user-1000/train.service");
  EXPECT_EQ(identified("0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-r12.scope\n"), "unit user-1000/run-r12.scope");
  EXPECT_EQ(identified("0::/user.slice/user-1000.slice/session-3.scope\n"), "nothing");
  EXPECT_EQ(identified("0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope\n"), "nothing");
  EXPECT_EQ(identified("0::/\n"), "nothing");
  EXPECT_EQ(identified(""), "nothing");
  EXPECT_EQ(identified("garbage\n:\n::\n"), "nothing");
}

TEST(CgroupIdentity, AdminRequestsDoNotComeOutOfContainers) {
  std::string container = "0::/system.slice/docker-" + kId + ".scope\n";
  std::string other = "0::/system.slice/docker-" + std::string(64, 'b') + ".scope\n";
  EXPECT_TRUE(may_administer("0::/\n", "0::/\n"));
  EXPECT_TRUE(may_administer("0::/user.slice/session-1.scope\n", "0::/system.slice/nvshare-scheduler.service\n"));
  EXPECT_FALSE(may_administer(container, "0::/system.slice/nvshare-scheduler.service\n"));
  EXPECT_FALSE(may_administer(container, other));
  EXPECT_TRUE(may_administer(container, container)) << "both in the same container";
  EXPECT_FALSE(may_administer("", "0::/\n")) << "a process that is gone";
}

// Folders that a tenant makes below its own, with the names of another's.
TEST(CgroupIdentity, NobodyLeavesItsTenantByFoldersOfItsOwn) {
  const std::string user = "/user.slice/user-1000.slice/user@1000.service";
  const std::string slice = kUidSlice;
  const std::string by_cgroupfs = std::string("/kubepods/burstable/pod") + kUid + "/" + kId;
  const std::string by_systemd =
      "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-" + slice + "/cri-containerd-" + kId + ".scope";
  struct {
    std::string own, is;
  } const tenants[] = {
      {user, "user"},
      {user + "/app.slice/job.service", "unit user-1000/job.service"},
      {"/system.slice/job.service", "unit job.service"},
      {"/system.slice/docker-" + std::string(64, 'b') + ".scope", "container " + std::string(64, 'b')},
      {"/kubepods/besteffort/pod" + std::string(32, 'e') + "/" + std::string(64, 'b'), "pod " + std::string(32, 'e')},
  };
  const std::string names_of_others[] = {by_cgroupfs,
                                         by_systemd,
                                         "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-" + slice,
                                         std::string("/pod") + kUid + "/" + kId,
                                         "/system.slice/other.service",
                                         "/docker/" + kId,
                                         "/system.slice/docker-" + kId + ".scope",
                                         "/user@0.service/root.service"};
  for (const auto& [own, is] : tenants) {
    const auto path = CgroupReader().identify("0::" + own + "\n");
    for (const std::string& names : names_of_others) {
      const auto found = CgroupReader().identify("0::" + own + names + "\n");
      if (is == "user") {  // whose manager may make any number of units and containers, all of them its own
        EXPECT_EQ(named(found).find("pod "), std::string::npos) << names;
        EXPECT_TRUE(!found || found->name.starts_with("user-1000/")) << names << ": " << named(found);
        EXPECT_TRUE(!found || found->path.starts_with(own)) << names;
        continue;
      }
      ASSERT_TRUE(path && found) << own << names;
      EXPECT_EQ(named(found), is) << own << names;
      EXPECT_EQ(found->path, path->path) << own << names;
    }
  }
}

TEST(CgroupIdentity, ThePathTellsTwoOfTheSameNameApart) {
  const auto path = [](const std::string& cgroups) { return CgroupReader().identify(cgroups).value_or(CgroupIdentity{}).path; };
  EXPECT_EQ(path("0::/system.slice/train.service\n"), "/system.slice/train.service");
  EXPECT_EQ(path("0::/user.slice/user-1000.slice/user@1000.service/app.slice/train.service/sub\n"),
            "/user.slice/user-1000.slice/user@1000.service/app.slice/train.service");
  EXPECT_EQ(path("0::/docker/" + kId + "/init\n"), "/docker/" + kId);
}

// What the scheduler's own cgroup shows of the kubelet's root, and what it makes of others'.
TEST(CgroupIdentity, PodsCountOnlyBelowTheKubeletsRoot) {
  const std::string slice = kUidSlice;
  const std::string container = "/cri-containerd-" + kId + ".scope\n";
  const std::string own_uid = "11111111_2222_3333_4444_555555555555.slice";
  const auto systemd = [](const std::string& root, const std::string& stem, const std::string& pod) {
    return "0::" + root + "/" + stem + "-burstable.slice/" + stem + "-burstable-" + pod;
  };
  const std::string kind_root = "/kubelet.slice/kubelet-kubepods.slice";
  const std::string plain = systemd("/kubepods.slice", "kubepods", slice) + container;
  const std::string in_kind = systemd(kind_root, "kubelet-kubepods", slice) + container;
  const std::string node = "/docker/" + std::string(64, 'd');
  const std::string in_node = systemd(node + kind_root, "kubelet-kubepods", slice) + container;
  const CgroupReader on_host(kService, "");
  const CgroupReader in_pod(systemd("/kubepods.slice", "kubepods", "pod" + own_uid) + container, "");
  const CgroupReader in_kinds_pod(systemd(kind_root, "kubelet-kubepods", "pod" + own_uid) + container, "");
  const CgroupReader in_nodes_pod(systemd(node + kind_root, "kubelet-kubepods", "pod" + own_uid) + container, "");
  EXPECT_EQ(identified(plain, on_host), kPod);
  EXPECT_EQ(identified(in_kind, on_host), kPod);
  EXPECT_EQ(identified(in_node, on_host), "container " + std::string(64, 'd')) << "kind's node, seen from its host";
  EXPECT_EQ(identified(plain, in_pod), kPod);
  EXPECT_EQ(identified(in_kind, in_pod), "container " + kId) << "not below this kubelet's root";
  EXPECT_EQ(identified(in_kind, in_kinds_pod), kPod);
  EXPECT_EQ(identified(plain, in_kinds_pod), "container " + kId);
  EXPECT_EQ(identified(in_node, in_nodes_pod), kPod);
  EXPECT_EQ(identified(plain, in_nodes_pod), "container " + kId);

  const std::string v1 = "/kubelet/kubepods/burstable/pod";
  const CgroupReader in_old_kind("4:cpu:" + node + v1 + std::string(32, 'f') + "/" + kId + "\n0::/\n", "");
  EXPECT_EQ(identified("4:cpu:" + node + v1 + kUid + "/" + kId + "\n0::/\n", in_old_kind), kPod);
  EXPECT_EQ(identified("4:cpu:" + v1 + kUid + "/" + kId + "\n0::/\n", in_old_kind), "container " + kId);
  EXPECT_EQ(identified("4:cpu:" + v1 + kUid + "/" + kId + "\n0::/\n", on_host), kPod) << "a standard place";
}

TEST(CgroupIdentity, OnlyFoldersOfTheRightFormArePods) {
  const std::string slice = kUidSlice;
  for (const std::string& path : {
           "/kubepods.slice/kubepods-besteffort.slice/kubepods-burstable-" + slice,
           "/kubepods.slice/other.slice/kubepods-" + slice,
           "/kubepods.slice/kubepods-burstable-pod" + std::string(kUid) + ".slice",
           "/kubepods/anything/pod" + std::string(kUid),
           "/kubepods/burstable/pod" + std::string(kUid).substr(1),
           "/a.slice/b-kubepods.slice/b-kubepods-" + slice,
           "/xkubepods.slice/xkubepods-" + slice,
           "/home/kubepods/pod" + std::string(kUid),
       }) {
    EXPECT_EQ(identified("0::" + path + "\n"), "nothing") << path;
  }
}

// The scheduler's pod in a cgroup namespace of its own, as version 2 gives it one: it sees its own folder as the root.
TEST(CgroupIdentity, InACgroupNamespaceOfItsOwnTheSchedulerKnowsItsPodByItsMounts) {
  const std::string mounts = std::string("700 690 8:1 /var/lib/kubelet/pods/") + kUid + "/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n";
  const CgroupReader reader("0::/\n", mounts);
  const std::string plugin = "0::/../cri-containerd-" + kId + ".scope\n";
  const std::string other_slice = "kubepods-burstable-pod11111111_2222_3333_4444_555555555555.slice";
  EXPECT_EQ(identified("0::/\n", reader), kPod);
  EXPECT_EQ(identified(plugin, reader), kPod);
  EXPECT_TRUE(reader.may_administer(plugin)) << "the device plugin, in the same pod";
  EXPECT_TRUE(reader.may_administer("0::/../" + kId + "\n")) << "the same by cgroupfs";
  EXPECT_EQ(identified("0::/../../" + other_slice + "/cri-containerd-" + kId + ".scope\n", reader),
            "pod 11111111-2222-3333-4444-555555555555");
  EXPECT_FALSE(reader.may_administer("0::/../../" + other_slice + "/cri-containerd-" + kId + ".scope\n"));
  EXPECT_EQ(identified("0::/../../../kubepods-besteffort.slice/kubepods-besteffort-" + std::string(kUidSlice) + "/x\n", reader), kPod);
  EXPECT_EQ(
      identified("0::/../../../../user.slice/user-1000.slice/user@1000.service/kubepods.slice/kubepods-" + std::string(kUidSlice) + "\n",
                 reader),
      "nothing")
      << "somebody's own folders";
  EXPECT_EQ(identified("0::/../../../../system.slice/job.service\n", reader), "unit job.service");

  const CgroupReader in_docker("0::/\n", "700 690 8:1 /var/lib/docker/containers/x/hosts /etc/hosts rw - ext4 /dev/sda1 rw\n");
  EXPECT_FALSE(in_docker.may_administer("0::/../docker-" + kId + ".scope\n")) << "another container";
  EXPECT_FALSE(in_docker.may_administer("0::/../" + kId + "\n"));
  EXPECT_TRUE(in_docker.may_administer("0::/\n"));
}

}  // namespace
}  // namespace nvshare::scheduler
