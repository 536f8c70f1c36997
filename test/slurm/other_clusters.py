"""Tests that start a Slurm of their own, since it is configured otherwise. Run by slurm_test.py."""
import pathlib
import re
import shutil
import tempfile
import time
import unittest

import cluster
from cluster import PROGRAMS, wait_until


class TwoNodes(unittest.TestCase):
    """A cluster of its own: each node has a scheduler and a stand-in GPU."""

    def setUp(self):
        self.slurm = cluster.Cluster(PROGRAMS, nodes=2)
        self.addCleanup(self.slurm.stop)
        self.slurm.start()

    def tearDown(self):
        for node in self.slurm.nodes:
            self.assertTrue(wait_until(lambda node=node: not [one for one in self.slurm.status(node)["tenants"] if one["kind"] == "job"]), self.slurm.status(node))

    def steady(self, stop):
        return f"SIMGPU_STATE={self.slurm.gpu_state(self.slurm.node)}${{SLURMD_NODENAME#{self.slurm.node}}} " + self.slurm.worker("steady", "--stop", stop)

    def expect_tenant(self, job, node):
        self.assertTrue(wait_until(lambda: (self.slurm.tenant(job, node) or {"clients": 0})["clients"] > 0), self.slurm.output(job) + self.slurm.tails())
        return self.slurm.tenant(job, node)

    def test_a_job_on_two_nodes_and_a_heterogeneous_one(self):
        first, second = self.slurm.nodes
        stop = self.slurm.folder / "out/stop"
        self.slurm.write(self.slurm.folder / "out/step.sh", f"{self.steady(str(stop))}\n")
        step = f"bash {self.slurm.folder}/out/step.sh"
        job = self.slurm.submit(f"srun {step}", "-N2", "-n2", "--nvshare=cores=40,memory=300M")
        for node in (first, second):
            tenant = self.expect_tenant(job, node)
            self.assertEqual((tenant["clients"], tenant["gpu_core_limit"], tenant["gpu_memory_limit"]), (1, 40, 300_000_000))
        stop.touch()
        self.assertTrue(self.slurm.wait_for(job, "COMPLETED"), self.slurm.output(job))
        stop.unlink()

        # Slurm has one --nvshare for a submission, the last; shards are each part's own.
        parts = ("-n1", f"-w{first}", "--gres=shard:3", ":", "-n1", f"-w{second}", "--gres=shard:6")
        job = self.slurm.submit(f"srun --het-group=0,1 {step}", *parts)
        self.assertEqual(self.expect_tenant(job, first)["gpu_core_limit"], 30)
        self.assertEqual(self.expect_tenant(job + 1, second)["gpu_core_limit"], 60)
        stop.touch()
        self.assertTrue(self.slurm.wait_for(job, "COMPLETED"), self.slurm.output(job))


@unittest.skipUnless(cluster.cgroup_version(), "it needs PrologFlags=Contain, and that cgroups")
class PrivateTmp(unittest.TestCase):
    """job_container/tmpfs: each job has a mount namespace with a /tmp and /dev/shm of its own."""

    def setUp(self):
        if pathlib.Path("/tmp") in pathlib.Path(PROGRAMS.library).resolve().parents:
            self.skipTest(f"{PROGRAMS.library} is in /tmp, which the jobs of this test have for themselves; build elsewhere")
        self.slurm = cluster.Cluster(PROGRAMS, private_tmp=True)
        self.addCleanup(self.slurm.stop)
        try:
            self.slurm.start()
        except cluster.CannotStart as problem:
            self.skipTest(f"job_container/tmpfs does not start here: {problem}")

    def test_a_job_with_two_steps_is_one_tenant_and_is_gone_at_its_end(self):
        stop = self.slurm.folder / "out/stop"
        marker = pathlib.Path(tempfile.mkdtemp(prefix="nvs-outside-", dir="/tmp"))
        self.addCleanup(marker.rmdir)
        step = self.slurm.worker("steady", "--stop", str(stop))
        script = f"ls -d {marker}; touch /tmp/inside; findmnt -no SOURCE /tmp; srun --overlap {step} & {step} & wait"
        job = self.slurm.submit(script, "--nvshare=cores=40,memory=300M")
        self.assertTrue(wait_until(lambda: (self.slurm.tenant(job) or {"clients": 0})["clients"] == 2), self.slurm.output(job) + self.slurm.tails())
        self.assertIn("No such file", self.slurm.output(job), "its /tmp is the machine's: nothing is shown")
        self.assertFalse(pathlib.Path("/tmp/inside").exists())
        tenant = self.slurm.tenant(job)
        self.assertEqual((tenant["kind"], tenant["user"], tenant["gpu_core_limit"], tenant["gpu_memory_limit"]), ("job", "root", 40, 300_000_000))
        # What is told from beside the steps reaches the scheduler, too.
        self.assertEqual(self.slurm.ask("scontrol", "suspend", str(job)).returncode, 0)
        self.assertTrue(wait_until(lambda: self.slurm.tenant(job)["paused"]), self.slurm.status())
        time.sleep(3)
        self.assertEqual(self.slurm.ask("scontrol", "resume", str(job)).returncode, 0)
        self.assertTrue(wait_until(lambda: not self.slurm.tenant(job)["paused"]), self.slurm.status())
        stop.touch()
        self.assertTrue(self.slurm.wait_for(job, "COMPLETED"), self.slurm.output(job))
        self.assertEqual(self.slurm.output(job).count("all right"), 2)
        self.assertTrue(wait_until(lambda: not self.slurm.tenant(job)), self.slurm.status())


@unittest.skipUnless(all(shutil.which(name, path=cluster.search_path()) for name in ("slurmdbd", "mariadbd", "sacct")),
                     "missing: slurmdbd, mariadbd or sacct (Debian: slurmdbd mariadb-server)")
class Accounting(unittest.TestCase):
    """With slurmdbd and its database: what sacct says of a job that used nvshare."""

    def test_sacct_has_gpu_time_billed_and_peak_memory(self):
        slurm = cluster.Cluster(PROGRAMS, accounting=True)
        self.addCleanup(slurm.stop)
        slurm.start()
        job = slurm.submit(slurm.worker("mix", "--steps", "60", "--hold", "60M", "--largest", "40M", "--threads", "2"), "--nvshare=cores=50")
        self.assertTrue(slurm.wait_for(job, "COMPLETED"), slurm.output(job))
        said = []

        def look():
            said[:] = slurm.ask("sacct", "-n", "-P", "-X", "-j", str(job), "-o", "AdminComment,State,TRESUsageInTot,AllocTRES").stdout.strip().split("|")
            return len(said) == 4 and said[1] == "COMPLETED" and said[0]
        self.assertTrue(wait_until(look), f"{said}\n{slurm.tails()}")
        print("sacct:", said)
        found = re.fullmatch(r"nvshare: gpu_time=([\d.]+)s billed=([\d.]+)s memory_peak=(\d+)MiB", said[0])
        self.assertTrue(found, said)
        self.assertGreaterEqual(int(found[3]), 60)
        # Slurm has no way for a plugin to add to the usage of TRES, and takes no later word of it.
        changed = slurm.ask("sacctmgr", "-i", "modify", "job", "where", f"JobID={job}", "set", "TRESUsageInTot=gres/gpumem=60")
        print("sacctmgr:", changed.returncode, changed.stderr.strip() or changed.stdout.strip())
        self.assertNotEqual(changed.returncode, 0)
