#!/usr/bin/env python3
"""A real Slurm (slurmctld, slurmd, munge) with the plugin, on the stand-in GPU: jobs are tenants with their limits, and none is left behind.

  slurm_test.py --plugin FILE --library FILE --scheduler PROGRAM --control PROGRAM --worker PROGRAM --stand-in FOLDER [unittest arguments]

Skipped, with a word, where no Slurm can start.
"""
import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import time
import unittest

import cluster
from cluster import wait_until
from other_clusters import Accounting, PrivateTmp, TwoNodes  # noqa: F401, pylint: disable=unused-import

PROGRAMS = cluster.PROGRAMS
SLURM = None
SKIPPED = 77  # for ctest
MIX = ("mix", "--steps", "60", "--hold", "60M", "--largest", "40M", "--threads", "2")


def setUpModule():
    global SLURM
    SLURM = cluster.Cluster(PROGRAMS)
    try:
        SLURM.start()
    except cluster.CannotStart as problem:
        SLURM.stop()
        print(f"skipped: Slurm's daemons do not start here: {problem}")
        sys.stdout.flush()
        os._exit(SKIPPED)
    except BaseException:
        print(SLURM.tails(), file=sys.stderr)
        SLURM.stop()
        raise


def tearDownModule():
    SLURM.stop()


class Jobs(unittest.TestCase):
    def setUp(self):
        self.files = 0

    def tearDown(self):
        SLURM.ask("scancel", "-u", "root")
        self.assertTrue(wait_until(lambda: not SLURM.ask("squeue", "-h").stdout.strip()), SLURM.ask("squeue").stdout)
        left = wait_until(lambda: [] == [one for one in (SLURM.status() or {"tenants": [1]})["tenants"] if one["kind"] == "job"])
        self.assertTrue(left, f"tenants are left: {SLURM.status()['tenants']}")
        self.assertEqual([path for path in (SLURM.folder / "run/jobs").iterdir()], [])

    def run(self, result=None):
        bad = len(result.failures) + len(result.errors) if result else 0
        super().run(result)
        if result and len(result.failures) + len(result.errors) > bad:
            print(SLURM.tails(), file=sys.stderr)

    def stop_file(self):
        self.files += 1
        return str(SLURM.folder / f"out/{self.id()}.{self.files}.stop")

    def steady(self, stop):
        return SLURM.worker("steady", "--work", "1000", "--stop", stop)

    def end(self, stop):
        pathlib.Path(stop).touch()

    def has_client(self, job):
        tenant = SLURM.tenant(job)
        return tenant is not None and tenant["clients"] > 0

    def expect_client(self, job):
        self.assertTrue(wait_until(lambda: self.has_client(job)), f"job {job} ({SLURM.state(job)}):\n{SLURM.output(job)}")
        return SLURM.tenant(job)

    def shares(self, jobs, right):
        """Until the parts of the GPU's time (percent) that jobs are billed since now are right, and are so for 1.2 s."""
        def used():
            return {job: sum(one["used_ns"] for one in (SLURM.tenant(job) or {"compute": []})["compute"]) for job in jobs}
        before, begin, shares = used(), time.monotonic(), {}

        def look():
            seconds = time.monotonic() - begin
            now = used()
            shares.update({job: (now[job] - before[job]) / seconds / 1e7 for job in jobs})
            return seconds > 1.2 and right(*[shares[job] for job in jobs])
        self.assertTrue(wait_until(look, pause=0.2), f"the shares never became right: {shares}")
        print("shares:", {job: round(share, 1) for job, share in shares.items()})


class Limits(Jobs):
    def test_two_jobs_hold_30_and_60_percent_and_a_third_waits_for_shards(self):
        stops = [self.stop_file() for _ in range(3)]
        script = SLURM.worker(*MIX) + " && {}"
        first = SLURM.submit(script.format(self.steady(stops[0])), "--gres=shard:3")
        second = SLURM.submit(script.format("srun " + self.steady(stops[1])), "--gres=shard:6")
        third = SLURM.submit(self.steady(stops[2]), "--gres=shard:3")
        for job in (first, second):
            self.assertTrue(wait_until(lambda job=job: "units" in SLURM.output(job)), SLURM.output(job))
            self.assertIn("all right", SLURM.output(job))
        self.assertEqual(SLURM.state(third), "PENDING")
        tenants = [SLURM.tenant(first), SLURM.tenant(second)]
        self.assertEqual([one["gpu_core_limit"] for one in tenants], [30, 60])
        self.assertEqual([(one["kind"], one["user"], one["partition"]) for one in tenants], [("job", "root", "main")] * 2)
        part = cluster.GPU_MEMORY_MB << 20
        self.assertEqual([round(one["gpu_memory_limit"] / part, 2) for one in tenants], [0.3, 0.6])
        self.shares((first, second), lambda a, b: 4 < a < 35 and b < 66 and b > 1.3 * a)
        shown = SLURM.control("status").stdout
        self.assertIn("root", shown)
        self.assertIn(f"job {first}", shown)

        changed = SLURM.control("set", f"job={first}", "core=70")
        self.assertEqual(changed.returncode, 0, changed.stderr)
        self.assertEqual(SLURM.control("set", f"job={second}", "core=20").returncode, 0)
        self.shares((first, second), lambda a, b: 1 < b < 25 and a < 76 and a > 1.3 * b)
        self.end(stops[0])
        self.assertTrue(SLURM.wait_for(first, "COMPLETED"), SLURM.output(first))
        self.expect_client(third)
        self.end(stops[1])
        self.end(stops[2])
        for job in (second, third):
            self.assertTrue(SLURM.wait_for(job, "COMPLETED"), SLURM.output(job))
        comment = SLURM.ask("scontrol", "show", "job", str(second)).stdout
        self.assertIn("AdminComment=nvshare: gpu_time=", comment)

    def test_what_is_asked_for_holds_for_all_steps_and_whatever_the_environment(self):
        stop = self.stop_file()
        variables = "".join(f"export {name}={value}; " for name, value in SLURM.environment.items())
        script = f"{variables} srun --export=ALL --overlap {self.steady(stop)} & {self.steady(stop)} & wait"
        job = SLURM.submit(script, "--nvshare=memory=300M,cores=40,priority=5", "--export=NONE")
        self.assertTrue(wait_until(lambda: (SLURM.tenant(job) or {"clients": 0})["clients"] == 2), SLURM.output(job))
        tenant = SLURM.tenant(job)
        self.assertEqual((tenant["gpu_memory_limit"], tenant["gpu_core_limit"], tenant["priority"]), (300_000_000, 40, 5))
        self.end(stop)
        self.assertTrue(SLURM.wait_for(job, "COMPLETED"), SLURM.output(job))

    def test_defaults_and_variables_of_the_submission(self):
        worker = SLURM.worker("mix", "--steps", "2", "--hold", "8M", "--largest", "4M")
        ran = SLURM.ask("srun", "--nvshare", "bash", "-c", f"echo $LD_PRELOAD $NVSHARE_REQUIRE_SCHEDULER $SLURM_JOB_ID; exec {worker}")
        library, patience, own = ran.stdout.split("\n")[0].split()
        self.assertEqual([library, patience], [PROGRAMS.library, "wait"], ran.stderr)
        # A job of srun's own ends with its last task.
        self.assertIn("AdminComment=nvshare: gpu_time=", SLURM.ask("scontrol", "show", "job", own).stdout, ran)
        for options, variables, cores in (((), {"SLURM_NVSHARE": "cores=35"}, 35), (("--nvshare=cores=25",), {"SLURM_NVSHARE_CORES": "35"}, 25),
                                          (("--nvshare",), {}, 80), (("--gres=shard:5", "--nvshare=cores=90"), {}, 50)):
            stop = self.stop_file()
            job = SLURM.submit(self.steady(stop), *options, environment=dict(SLURM.environment, **variables))
            self.assertEqual(self.expect_client(job)["gpu_core_limit"], cores)
            self.end(stop)
            self.assertTrue(SLURM.wait_for(job, "COMPLETED"), SLURM.output(job))

    def test_a_script_of_an_array_that_exports_nothing(self):
        stop = self.stop_file()
        script = SLURM.folder / "out/array.sh"
        variables = "".join(f"export {name}={value}\n" for name, value in SLURM.environment.items())
        script.write_text("#!/bin/bash\n#SBATCH --nvshare=cores=20,memory=100M\n#SBATCH --export=NONE\n#SBATCH --array=1-3\n"
                          f"#SBATCH -o {SLURM.folder}/out/%A_%a_%j.out\n{variables}{self.steady(stop)}\n", encoding="utf-8")
        ran = SLURM.ask("sbatch", "--parsable", str(script))
        self.assertEqual(ran.returncode, 0, ran.stderr)
        def tenants():
            return [one for one in SLURM.status()["tenants"] if one["kind"] == "job" and one["clients"] == 1]
        self.assertTrue(wait_until(lambda: len(tenants()) == 3), SLURM.status())
        self.assertEqual(len({one["job"] for one in tenants()}), 3)
        self.assertEqual({(one["gpu_core_limit"], one["gpu_memory_limit"]) for one in tenants()}, {(20, 100_000_000)})
        self.end(stop)
        self.assertTrue(wait_until(lambda: not SLURM.ask("squeue", "-h").stdout.strip()))
        outputs = [path.read_text() for path in (SLURM.folder / "out").glob(f"{ran.stdout.strip()}_*.out")]
        self.assertEqual([output.count("all right") for output in outputs], [1, 1, 1])

    @unittest.skipUnless(shutil.which("bwrap"), "bwrap is missing (Debian: bubblewrap)")
    def test_in_a_container_with_the_two_mounts_that_the_manual_names(self):
        stop, job_folder = self.stop_file(), SLURM.folder / "run"
        gpu = [PROGRAMS.stand_in, str(pathlib.Path(PROGRAMS.worker).parent), str(SLURM.folder / "gpu"), str(SLURM.folder / "out")]  # as --nv and data
        mounts = [str(pathlib.Path(PROGRAMS.library).parent), str(job_folder / "client")]
        container = "bwrap --unshare-all --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp "
        container += " ".join(f"--bind {folder} {folder}" for folder in gpu + mounts)
        for cores in (20, 40):
            look = f"ls {job_folder}; ls /tmp /work 2>/dev/null | wc -l; hostname > /dev/null; readlink /proc/self/ns/pid"
            job = SLURM.submit(f"readlink /proc/self/ns/pid; srun {container} bash -c '{look}; {self.steady(stop)}'", f"--nvshare=cores={cores}")
            tenant = self.expect_client(job)
            self.assertEqual((tenant["job"], tenant["gpu_core_limit"]), (job, cores))
            self.end(stop)
            self.assertTrue(SLURM.wait_for(job, "COMPLETED"), SLURM.output(job))
            output = SLURM.output(job)
            self.assertIn("all right", output)
            self.assertNotIn("admin", output)
            self.assertEqual(len(set(re.findall(r"pid:\[\d+\]", output))), 2, "it is a container")
            pathlib.Path(stop).unlink()

    def test_an_ordinary_user(self):
        stop = self.stop_file()
        script = f"id -un; grep Uid /proc/self/status; {self.steady(stop)}"
        job = SLURM.submit(script, "--uid=nobody", "--nvshare=cores=30")
        tenant = self.expect_client(job)
        self.assertEqual((tenant["user"], tenant["gpu_core_limit"]), ("nobody", 30))
        self.assertEqual({os.stat(f"/proc/{pid}").st_uid for pid in SLURM.processes(job)}, {65534})
        self.end(stop)
        self.assertTrue(SLURM.wait_for(job, "COMPLETED"), SLURM.output(job))

    def test_a_job_that_does_not_ask_is_left_alone(self):
        ran = SLURM.ask("srun", "bash", "-c", "echo ${LD_PRELOAD-nothing}")
        self.assertEqual((ran.returncode, ran.stdout.strip()), (0, "nothing"), ran.stderr)

    def test_bad_values_are_refused_at_submission(self):
        for command in (["srun", "true"], ["sbatch", "--wrap", "true"], ["salloc", "true"]):
            for asked, said in (("cores=0", "1 to 100"), ("memory=lots", "accepted: memory=BYTES"), ("colour=red", "'colour=red'"),
                                ("priority=11", "-100 to 10"), ("cores=96", "1 to 95")):
                ran = SLURM.ask(command[0], f"--nvshare={asked}", *command[1:])
                self.assertNotEqual(ran.returncode, 0, asked)
                self.assertIn(said, ran.stderr)
        ran = SLURM.ask("srun", "true", environment=dict(SLURM.environment, SLURM_NVSHARE_CORES="many"))
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("SLURM_NVSHARE_CORES", ran.stderr)

    def test_a_user_who_sets_the_variables_gains_nothing(self):
        stop = self.stop_file()
        environment = dict(SLURM.environment, NVSHARE_GPU_MEMORY_LIMIT="1000Gi", NVSHARE_RUNTIME_DIR="/nonexistent", SLURM_SHARDS_ON_NODE="10",
                           NVSHARE_REQUIRE_SCHEDULER="0", NVSHARE_GPU_CORE_LIMIT="100", LD_PRELOAD="")
        job = SLURM.submit(self.steady(stop), "--nvshare=cores=20,memory=200M", environment=environment)
        tenant = self.expect_client(job)
        self.assertEqual((tenant["gpu_core_limit"], tenant["gpu_memory_limit"]), (20, 200_000_000))
        self.assertEqual([one["limit"] for one in tenant["memory"]], [200_000_000])
        # A process that leaves its step's tree is the job's all the same, by its cgroup; without cgroups it is a tenant of its own.
        if SLURM.control_groups:
            orphan = self.stop_file()
            leaves = f"(setsid {self.steady(orphan)} > /dev/null &) ; sleep 0.1; exec sleep 60"
            other = SLURM.submit(leaves, "--nvshare=cores=20")
            self.assertEqual(self.expect_client(other)["gpu_core_limit"], 20)
        self.end(stop)


class Ends(Jobs):
    def test_cancelled(self):
        cancelled = SLURM.submit(self.steady(self.stop_file()), "--nvshare=cores=50")
        self.expect_client(cancelled)
        SLURM.ask("scancel", str(cancelled))
        self.assertTrue(SLURM.wait_for(cancelled, "CANCELLED"))
        self.assertTrue(wait_until(lambda: SLURM.tenant(cancelled) is None))

    def test_preempted_and_requeued(self):
        stop = self.stop_file()
        low = SLURM.submit(self.steady(stop), "--gres=shard:6", "-p", "low", "--requeue", "--nvshare=cores=45")
        self.expect_client(low)
        stop_high = self.stop_file()
        high = SLURM.submit(self.steady(stop_high), "--gres=shard:6")
        self.assertEqual(self.expect_client(high)["gpu_core_limit"], 60)
        self.assertTrue(wait_until(lambda: SLURM.tenant(low) is None), "the preempted job's tenant is gone")
        self.end(stop_high)
        self.assertTrue(SLURM.wait_for(high, "COMPLETED"), SLURM.output(high))
        SLURM.ask("scontrol", "update", f"JobId={low}", "StartTime=now")
        self.assertEqual(self.expect_client(low)["gpu_core_limit"], 45)
        SLURM.ask("scontrol", "requeue", str(low))
        self.assertTrue(wait_until(lambda: SLURM.tenant(low) is None))
        self.end(stop)

    def test_suspended_a_job_holds_up_nobody_that_fits(self):
        stop, other_stop = self.stop_file(), self.stop_file()
        job = SLURM.submit(self.steady(stop), "--nvshare=cores=50")
        self.expect_client(job)
        self.assertEqual(SLURM.ask("scontrol", "suspend", str(job)).returncode, 0)
        other = SLURM.submit(SLURM.worker(*MIX), "--nvshare=cores=50")
        self.assertTrue(SLURM.wait_for(other, "COMPLETED"), SLURM.output(other))
        self.assertEqual(SLURM.state(job), "SUSPENDED")
        self.assertEqual(SLURM.ask("scontrol", "resume", str(job)).returncode, 0)
        self.end(stop)
        self.end(other_stop)
        self.assertTrue(SLURM.wait_for(job, "COMPLETED"), SLURM.output(job))

    def holding(self, stop):
        """A program that has more than half of the GPU's memory, and checks it now and then."""
        return SLURM.worker("mix", "--floor", "270M", "--hold", "280M", "--largest", "4M", "--stop", stop)

    def resident(self, job):
        report, tenant = SLURM.status(), SLURM.tenant(job)
        return sum(one["resident"] for one in report["clients"] if tenant and one["tenant"] == tenant["id"])

    def expect_resident(self, job):
        self.assertTrue(wait_until(lambda: self.resident(job) > 250 << 20), f"{SLURM.status()}\n{SLURM.output(job)}")

    def suspend_until_moved(self, job):
        # Slurm gives two seconds, which a busy machine may not find enough: what is left then stays until the job goes on.
        for _ in range(10):
            self.assertEqual(SLURM.ask("scontrol", "suspend", str(job)).returncode, 0)
            self.assertTrue(wait_until(lambda: SLURM.tenant(job)["paused"]))
            if wait_until(lambda: self.resident(job) == 0, 3):
                return
            self.assertEqual(SLURM.ask("scontrol", "resume", str(job)).returncode, 0)
            self.expect_resident(job)
        self.fail(f"never moved out in time: {SLURM.status()}")

    def test_suspended_a_job_moves_its_memory_out_for_one_that_needs_it(self):
        # As bash's child the program runs on until Slurm freezes it; as the task itself SIGTSTP has stopped it before.
        for start in ("", "exec "):
            stop, other_stop = self.stop_file(), self.stop_file()
            job = SLURM.submit(start + self.holding(stop), "--nvshare=cores=90")
            self.expect_resident(job)
            self.suspend_until_moved(job)
            other = SLURM.submit(self.holding(other_stop), "--nvshare=cores=90")
            self.expect_resident(other)
            self.assertEqual(SLURM.state(job), "SUSPENDED")
            self.assertEqual(self.resident(job), 0)
            self.end(other_stop)
            self.assertTrue(SLURM.wait_for(other, "COMPLETED"), SLURM.output(other))
            self.assertEqual(SLURM.ask("scontrol", "resume", str(job)).returncode, 0)
            self.expect_resident(job)
            self.end(stop)
            self.assertTrue(SLURM.wait_for(job, "COMPLETED"), SLURM.output(job))
            self.assertIn("all right", SLURM.output(job))

    def slow(self):
        """The environment of a job whose memory takes about five seconds to move out: longer than Slurm waits before it stops it."""
        return dict(SLURM.environment, SIMGPU_LINK_MBPS="60")

    def has_moved(self, pids):
        """Whether a thread of these processes has run within 0.3 s."""
        def times():
            return {str(file): file.read_text().split()[0] for pid in pids for file in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")}
        before = times()
        time.sleep(0.3)
        return times() != before

    @unittest.skipUnless(cluster.cgroup_version(), "Slurm stops processes one by one where it has no cgroups")
    def test_suspended_a_job_runs_on_until_its_memory_is_out_and_no_longer(self):
        for start in ("", "exec "):
            stop, other_stop = self.stop_file(), self.stop_file()
            job = SLURM.submit(start + self.holding(stop), "--nvshare=cores=90", environment=self.slow())
            self.expect_resident(job)
            begin = time.monotonic()
            self.assertEqual(SLURM.ask("scontrol", "suspend", str(job)).returncode, 0)
            self.assertTrue(wait_until(lambda: SLURM.state(job) == "SUSPENDED"))
            pids = SLURM.processes(job)
            self.assertTrue(wait_until(lambda job=job: self.resident(job) == 0), SLURM.status())
            seconds = time.monotonic() - begin
            self.assertTrue(wait_until(lambda pids=pids: not self.has_moved(pids), 5), "it is stopped again")
            print(f"moved out {seconds:.1f} s after scontrol suspend")
            self.assertGreater(seconds, 2.2, "Slurm's own time would have been enough: nothing is shown")
            other = SLURM.submit(self.holding(other_stop), "--nvshare=cores=90")
            self.expect_resident(other)
            self.assertFalse(self.has_moved(pids))
            self.end(other_stop)
            self.assertTrue(SLURM.wait_for(other, "COMPLETED"), SLURM.output(other))
            self.assertEqual(SLURM.ask("scontrol", "resume", str(job)).returncode, 0)
            self.expect_resident(job)
            self.end(stop)
            self.assertTrue(SLURM.wait_for(job, "COMPLETED"), SLURM.output(job))
            self.assertIn("all right", SLURM.output(job))

    @unittest.skipUnless(cluster.cgroup_version(), "Slurm stops processes one by one where it has no cgroups")
    def test_suspended_and_resumed_at_any_time_a_job_goes_on(self):
        stop = self.stop_file()
        job = SLURM.submit(self.holding(stop), "--nvshare=cores=90", environment=self.slow())
        self.expect_resident(job)
        seed = int(os.environ.get("NVSHARE_TEST_SEED", time.time_ns() % 1000000))
        print("NVSHARE_TEST_SEED:", seed)
        chance = random.Random(seed)
        for _ in range(int(os.environ.get("NVSHARE_TEST_ROUNDS", 4))):
            pids = SLURM.processes(job)
            self.assertEqual(SLURM.ask("scontrol", "suspend", str(job)).returncode, 0)
            pause = chance.uniform(0, 9)
            time.sleep(pause)
            self.assertEqual(SLURM.ask("scontrol", "resume", str(job)).returncode, 0)
            self.assertTrue(wait_until(lambda pids=pids: self.has_moved(pids)), f"resumed {pause:.1f} s after: {SLURM.status()}")
            self.assertTrue(wait_until(lambda: not SLURM.tenant(job)["paused"]), SLURM.status())
        self.assertEqual(SLURM.ask("scontrol", "suspend", str(job)).returncode, 0)
        other = SLURM.submit(self.holding(self.stop_file()), "--nvshare=cores=90", environment=self.slow())
        self.expect_client(other)
        self.assertEqual(SLURM.ask("scontrol", "resume", str(job)).returncode, 0)
        self.end(stop)
        self.assertTrue(SLURM.wait_for(job, "COMPLETED"), SLURM.output(job))
        self.assertIn("all right", SLURM.output(job))
        time.sleep(chance.uniform(0, 3))
        self.assertEqual(SLURM.ask("scontrol", "suspend", str(other)).returncode, 0)
        time.sleep(chance.uniform(0, 4))
        SLURM.ask("scancel", str(other))
        self.assertTrue(SLURM.wait_for(other, "CANCELLED"), SLURM.state(other))

    def busy(self, stop):
        """A program with more than half of the GPU's memory that is never idle: it gives up no turn by itself."""
        return SLURM.worker("steady", "--work", "1000", "--hold", "280M", "--stop", stop)

    def client(self, job):
        """Of a job with one program; None before it is there."""
        report, tenant = SLURM.status(), SLURM.tenant(job)
        found = [one for one in report["clients"] if tenant and one["tenant"] == tenant["id"]]
        return found[0] if found else None

    def states(self, jobs):
        return [(self.client(job) or {"state": ""})["state"] for job in jobs]

    def turns_last(self, period, multiplier):
        self.assertEqual(SLURM.control("set", f"switch_time_fixed={period}", f"switch_time_multiplier={multiplier}").returncode, 0)

    def sigterm(self, job):
        self.assertEqual(SLURM.ask("scancel", "--full", "--signal=TERM", str(job)).returncode, 0)

    def submit_busy(self, stop, *options):
        job = SLURM.submit(f"trap '' TERM; {self.busy(stop)}", "--nvshare=cores=90", *options)
        self.assertTrue(wait_until(lambda: SLURM.tenant(job)))
        # No limit of time: it has rules of its own about turns.
        self.assertEqual(SLURM.control("set", f"job={job}", "ceiling=100").returncode, 0)
        self.assertTrue(wait_until(lambda: "units" in SLURM.output(job)), SLURM.output(job))
        return job

    def stop_the_turns_while_last_in_line(self, last):
        """From now on turns last an hour: `last` has just had one, and waits behind everybody else."""
        def stopped():
            self.turns_last("200ms", 5)
            if not wait_until(lambda: self.states([last]) == ["running"]) or not wait_until(lambda: self.states([last]) == ["waiting"], pause=0.01):
                return False
            self.turns_last("3600", 1000)
            time.sleep(0.5)  # for a drain under way
            return self.states([last]) == ["waiting"]
        self.assertTrue(wait_until(stopped, 60), SLURM.status())

    def expect_to_wait_on(self, job, seconds):
        turns, end = self.client(job)["turns"], time.monotonic() + seconds
        while time.monotonic() < end:
            self.assertEqual((self.states([job]), self.client(job)["turns"]), (["waiting"], turns))
            time.sleep(0.1)

    def next_turn_comes_after(self, event, patience, *options):
        """Nobody's turn ends, and of two that wait the one behind has the next turn once SIGTERM has come to it."""
        self.addCleanup(self.turns_last, "200ms", 5)
        stops = [self.stop_file() for _ in range(3)]
        jobs = [self.submit_busy(stops[0]), self.submit_busy(stops[1]), self.submit_busy(stops[2], *options)]
        *others, ends = jobs
        self.stop_the_turns_while_last_in_line(ends)
        self.assertTrue(wait_until(lambda: sorted(self.states(others)) == ["running", "waiting"]), SLURM.status())
        (runs,) = [job for job in others if self.states([job]) == ["running"]]
        (waits,) = set(others) - {runs}
        self.assertGreater(self.client(waits)["since_ns"], self.client(ends)["since_ns"], "it waits for longer")
        self.expect_to_wait_on(ends, 2)
        turns = self.client(waits)["turns"]
        event(ends)
        begin = time.monotonic()
        self.assertTrue(wait_until(lambda: self.states([ends]) == ["running"], patience, pause=0.01), f"{SLURM.status()}\n{SLURM.output(ends)}")
        print(f"job {ends} runs {time.monotonic() - begin:.2f} s after it; job {waits} had waited for longer, and does")
        self.assertEqual((self.states([runs, waits]), self.client(waits)["turns"]), (["waiting", "waiting"], turns))
        self.assertEqual([SLURM.tenant(job)["ends"] for job in (runs, waits, ends)], [False, False, True])
        return jobs, stops

    def test_sigterm_brings_a_job_its_next_turn_before_one_that_waits_longer_and_once(self):
        jobs, stops = self.next_turn_comes_after(self.sigterm, 30)
        self.stop_the_turns_while_last_in_line(jobs[2])
        for _ in range(5):
            self.sigterm(jobs[2])
            self.expect_to_wait_on(jobs[2], 0.5)
        self.turns_last("200ms", 5)
        for stop in stops:
            self.end(stop)
        for job in jobs:
            self.assertTrue(SLURM.wait_for(job, "COMPLETED"), SLURM.output(job))
            self.assertIn("all right", SLURM.output(job))

    @unittest.skipUnless(os.environ.get("NVSHARE_TEST_LONG"), "Slurm's shortest time limit is a minute: NVSHARE_TEST_LONG=1")
    def test_a_job_at_its_time_limit_has_the_next_turn(self):
        jobs, stops = self.next_turn_comes_after(lambda job: None, 120, "--time=1")
        self.turns_last("200ms", 5)
        self.assertTrue(SLURM.wait_for(jobs[2], "TIMEOUT"), SLURM.state(jobs[2]))
        for stop in stops:
            self.end(stop)

    def test_an_array(self):
        job = SLURM.submit(SLURM.worker(*MIX), "--nvshare=cores=50", "--array=1-4")
        self.assertTrue(wait_until(lambda: not SLURM.ask("squeue", "-h", "-j", str(job)).stdout.strip()))
        outputs = [path.read_text() for path in (SLURM.folder / "out").glob(f"{job}_*.out")]
        self.assertEqual(len(outputs), 4)
        for output in outputs:
            self.assertIn("all right", output)


class Deaths(Jobs):
    def test_slurmstepd_is_killed(self):
        job = SLURM.submit(self.steady(self.stop_file()), "--nvshare=cores=50", "--no-requeue")
        self.expect_client(job)
        for stepd in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (stepd / "cmdline").read_bytes().startswith(f"slurmstepd: [{job}.batch]".encode()):
                    os.kill(int(stepd.name), signal.SIGKILL)
            except OSError:
                pass
        SLURM.ask("scancel", str(job))
        self.assertTrue(wait_until(lambda: SLURM.state(job) in ("CANCELLED", "FAILED", "NODE_FAIL", "COMPLETED")), SLURM.state(job))
        # Slurm itself leaves the processes of such a step behind. They keep the job's limits; with them the tenant goes.
        if SLURM.has_processes(job):
            self.assertEqual(SLURM.tenant(job)["gpu_core_limit"], 50)
            SLURM.kill_processes(job)

    def test_the_scheduler_is_killed_and_away_when_a_job_starts(self):
        stop = self.stop_file()
        running = SLURM.submit(self.steady(stop), "--nvshare=cores=30")
        self.expect_client(running)
        self.assertEqual(SLURM.control("set", f"job={running}", "ceiling=35").returncode, 0)
        SLURM.kill("scheduler")
        waiting = SLURM.submit(SLURM.worker(*MIX), "--nvshare=cores=45")
        short = SLURM.ask("srun", "--nvshare", "true")  # it comes and goes meanwhile
        self.assertEqual(short.returncode, 0, short.stderr)
        self.assertTrue(wait_until(lambda: "waits for one before it uses the GPU" in SLURM.output(waiting)), SLURM.output(waiting))
        self.assertEqual(SLURM.state(waiting), "RUNNING")
        SLURM.start_scheduler()
        tenant = SLURM.tenant(waiting)
        self.assertIsNotNone(tenant)
        self.assertEqual(tenant["gpu_core_limit"], 45)
        self.assertTrue(SLURM.wait_for(waiting, "COMPLETED"), SLURM.output(waiting))
        self.assertIn("all right", SLURM.output(waiting))
        self.assertEqual(self.expect_client(running)["gpu_core_limit"], 35)
        self.end(stop)
        self.assertTrue(SLURM.wait_for(running, "COMPLETED"), SLURM.output(running))

    def test_two_hundred_short_jobs(self):
        def run(_):
            return SLURM.ask("srun", "--nvshare=cores=20", "true")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            failed = [ran.stderr for ran in pool.map(run, range(200)) if ran.returncode != 0]
        self.assertEqual(failed, [])


def main():
    parser = argparse.ArgumentParser()
    for name in ("plugin", "library", "scheduler", "control", "worker", "stand-in"):
        parser.add_argument(f"--{name}", required=True)
    programs, rest = parser.parse_known_args()
    PROGRAMS.__dict__.update(vars(programs))
    why = cluster.missing()
    if why:
        print(f"skipped: {why}")
        sys.exit(SKIPPED)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the cluster is stopped
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
