#!/usr/bin/env python3
"""The Debian package on a machine that never saw it (fresh_machine.py): installed by apt-get with what it depends on, its service under a real
systemd, programs on the stand-in GPU, upgraded while they run, removed, installed again, purged; nothing is left. Run by ctest for a Debian of
this machine's release, and by tarball_test.py for the portable package on an Ubuntu.

    fresh_machine_test.py --build DIR | --package FILE [--suite noble|jammy|trixie|...]

Where no such machine can be had it is skipped with the reason: exit status 77."""
import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fresh_machine import SUITES, Machine, NotHad, root_folder  # noqa: E402

TREE = pathlib.Path(__file__).resolve().parents[2]
SERVICE = "nvshare-scheduler.service"
STAND_IN = {"LD_LIBRARY_PATH": "/usr/lib/nvshare/simgpu", "SIMGPU_STATE": "/dev/shm/gpu", "SIMGPU_MEMORY_MB": "64", "SIMGPU_CONTEXT_MB": "1"}
SETTINGS = {"NVSHARE_SWITCH_TIME_MODE": "fixed", "NVSHARE_SWITCH_TIME_FIXED": "300ms", "NVSHARE_MEMORY_RESERVE_PERCENT": "10"}
# Two of them do not fit together, so they take turns; each computes for so long that it outlasts an upgrade.
JOB = ("nvshare-demo-job", "--bytes", "36M", "--block", "3M", "--steps", "250")
COMPUTE_US = "2000"
ALONE_S, IN_TURNS_S = 60, 120  # on a busy machine; else a second, and ten
# What any package changes, and what is not the package's.
NOT_ITS = ("dev/", "proc/", "sys/", "run/systemd/", "run/log/", "root/", "tmp/", "var/cache/", "var/log/", "var/tmp/", "var/lib/apt/", "var/lib/dpkg/status",
           "var/lib/dpkg/available", "var/lib/dpkg/diversions", "var/lib/dpkg/lock", "var/lib/dpkg/triggers/", "var/lib/systemd/timers/", "etc/ld.so.cache")
PACKAGE = None
ROOT = None


def next_release(package, place):
    """The same, as if it were the next one."""
    subprocess.run(["dpkg-deb", "--raw-extract", package, place / "tree"], check=True)
    control = place / "tree/DEBIAN/control"
    text = control.read_text()
    version = next(line for line in text.splitlines() if line.startswith("Version: "))
    control.write_text(text.replace(version, f"{version}+next"))
    subprocess.run(["dpkg-deb", "--build", "-Znone", "--root-owner-group", place / "tree", place / "next.deb"], check=True, capture_output=True)
    return place / "next.deb"


class FreshMachine(unittest.TestCase):
    def setUp(self):
        self.began = time.monotonic()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="nvshare-fresh-")))
        (self.folder / "scratch").mkdir()
        try:
            self.machine = Machine(ROOT, self.folder / "scratch")
        except NotHad as why:
            self.skipTest(str(why))
        self.addCleanup(self.machine.end)
        for package, name in ((PACKAGE, "nvshare.deb"), (next_release(PACKAGE, self.folder), "next.deb")):
            shutil.copy(package, self.machine.path(f"/root/{name}"))

    def step(self, what):
        print(f"{time.monotonic() - self.began:6.1f} s: {what}", flush=True)

    def run_there(self, *words, status=0):
        code, text = self.machine.called(*words)
        self.assertEqual(code, status, f"{words}:\n{text}")
        return text

    def apt(self, *words):
        return self.run_there("apt-get", "-q", "-y", *words)

    def installed(self, file):
        said = self.apt("install", f"/root/{file}")
        self.assertNotIn("Failed", said)

    def service(self):
        """(whether it runs, whether it starts at boot)"""
        return self.machine.called("systemctl", "is-active", SERVICE)[1].strip(), self.machine.called("systemctl", "is-enabled", SERVICE)[1].strip()

    def process(self):
        return int(self.run_there("systemctl", "show", "--property=MainPID", "--value", SERVICE))

    def with_stand_in(self, *words):
        return ("env", *(f"{name}={value}" for name, value in STAND_IN.items()), *words)

    def job(self, seed, *under, compute_us="0"):
        return subprocess.Popen(self.machine.words(*self.with_stand_in(*under, *JOB, "--seed", seed, "--compute-us", compute_us)), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def checksum(self, job, seconds=IN_TURNS_S):
        try:
            said, errors = job.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            stands, log = self.where_jobs_stand(), self.machine.called("journalctl", "--no-pager", "-n", "30", "-u", SERVICE)[1]
            job.kill()
            self.fail(f"a job did not end within {seconds} s; its threads:\n{stands}the scheduler's log:\n{log}")
        self.assertEqual(job.returncode, 0, said + errors)
        return json.loads(said.splitlines()[-1])["checksum"]

    def where_jobs_stand(self):
        """Of each thread the name, the state, and what it waits for in the kernel."""
        return self.machine.called("sh", "-c", 'for p in /proc/[0-9]*; do [ "$(cat $p/comm)" = nvshare-demo-jo ] || continue; for t in $p/task/*; do '
                                   'echo "$(cat $t/comm) $(cut -d" " -f3 $t/stat) $(cat $t/wchan) $(cat $t/syscall)"; done; done 2> /dev/null')[1]

    def until(self, what, seconds=30):
        end = time.monotonic() + seconds
        while not (found := what()):
            self.assertLess(time.monotonic(), end, "it never came to pass")
            time.sleep(0.1)
        return found

    def status(self):
        code, text = self.machine.called("nvsharectl", "status", "--json")
        return json.loads(text) if code == 0 else {"clients": []}

    def files(self):
        """{path: digest}; of links, where to."""
        found, root = {}, self.machine.path("/")
        for folder, below, names in os.walk(root):
            place = pathlib.Path(folder).relative_to(root)
            below[:] = [name for name in below if not f"{place / name}/".startswith(NOT_ITS)]
            for path in (root / place / name for name in names if not str(place / name).startswith(NOT_ITS)):
                if path.is_symlink():
                    found[str(path.relative_to(root))] = os.readlink(path)
                elif path.is_file():
                    found[str(path.relative_to(root))] = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
        return found

    def test_installed_used_upgraded_removed_and_purged(self):
        before = self.files()
        self.assertGreater(len(before), 3000)

        self.step("As it comes, on a machine without a GPU")
        self.installed("nvshare.deb")
        self.assertEqual(self.service(), ("active", "enabled"))
        # Of Ubuntu 22.04 it has something to say by itself.
        self.assertEqual([line for line in self.run_there("systemd-analyze", "verify", SERVICE).splitlines() if "nvshare" in line], [])
        version = self.run_there("nvsharectl", "version")
        self.assertIn("library       /usr/lib/nvshare/libnvshare.so\n", version.replace("\t", " "))
        self.assertRegex(version, r"(?m)^running +scheduler \d+\.\d+\.\d+ in /run/nvshare$")
        doctor = self.run_there("nvsharectl", "doctor", status=1)
        self.assertIn("problem  driver        no NVIDIA driver and no NVIDIA GPU\n", doctor)
        self.assertRegex(doctor, r"ok +socket +a scheduler answers in /run/nvshare, 0 clients\n")

        self.step("With a GPU, and settings of the machine's own")
        self.machine.path("/etc/default/nvshare-scheduler").write_text("".join(f"{name}={value}\n" for name, value in {**STAND_IN, **SETTINGS}.items()))
        self.run_there("systemctl", "restart", SERVICE)
        self.assertEqual([gpu["nvml"] for gpu in self.status()["gpus"]], [True])
        alone = [self.checksum(self.job(seed), ALONE_S) for seed in "12"]

        self.step("It dies, and comes back")
        first = self.process()
        self.run_there("systemctl", "kill", "--signal=KILL", SERVICE)
        self.until(lambda: self.process() not in (0, first) and self.service()[0] == "active")

        self.step("Upgraded in the midst of turns: another scheduler, and the programs go on with it")
        jobs = [self.job(seed, "nvshare", compute_us=COMPUTE_US) for seed in "12"]
        self.until(lambda: len(self.status()["clients"]) == 2 and self.status()["gpus"][0]["switches"] > 0)
        former = self.process()
        self.installed("next.deb")
        self.assertNotEqual(self.process(), former)
        self.assertEqual(self.service(), ("active", "enabled"))
        self.until(lambda: len(self.status()["clients"]) == 2 and self.status()["gpus"][0]["switches"] > 0)
        self.assertEqual([self.checksum(job) for job in jobs], alone)

        self.step("Who switched it off keeps it off")
        self.run_there("systemctl", "disable", "--now", SERVICE)
        self.apt("install", "--reinstall", "/root/next.deb")
        self.assertEqual(self.service(), ("inactive", "disabled"))
        self.run_there("systemctl", "enable", "--now", SERVICE)

        self.step("Removed: settings alone are left, for who installs it again")
        self.machine.path("/etc/nvshare/scheduler.toml").write_text('switch_time_mode = "auto"\n')
        self.apt("remove", "nvshare")
        self.assertEqual(self.service()[0], "inactive")
        self.assertFalse(self.machine.path("/run/nvshare").exists() or self.machine.path("/run/nvshare-locks").exists())
        left = [path for path in set(self.files()) - set(before) if "nvshare" in path and not path.startswith("var/lib/")]
        self.assertEqual(sorted(left), ["etc/default/nvshare-scheduler", "etc/nvshare/scheduler.toml", f"etc/systemd/system/multi-user.target.wants/{SERVICE}"])
        self.installed("nvshare.deb")
        self.assertEqual(self.service(), ("active", "enabled"))
        self.assertEqual(self.machine.path("/etc/nvshare/scheduler.toml").read_text(), 'switch_time_mode = "auto"\n')

        self.step("Purged: nothing is left")
        self.apt("purge", "--autoremove", "nvshare")
        self.assertEqual(self.service()[0], "inactive")
        after = self.files()
        changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        self.assertEqual(changed, [])
        self.assertEqual(self.run_there("systemctl", "list-unit-files", "--no-legend", "nvshare*", status=1), "")
        self.assertFalse(self.machine.path("/etc/nvshare").exists() or self.machine.path("/usr/lib/nvshare").exists())


def packages_from(arguments, folder):
    if arguments.package:
        return arguments.package.resolve()
    subprocess.run([TREE / "tools/make-packages.sh", "--deb", arguments.build.resolve(), folder], check=True, capture_output=True)
    (package,) = pathlib.Path(folder).glob("nvshare_*.deb")
    return package


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--build", type=pathlib.Path)
    source.add_argument("--package", type=pathlib.Path)
    parser.add_argument("--suite", choices=sorted(SUITES))
    arguments, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="nvshare-fresh-") as folder:
        PACKAGE = packages_from(arguments, folder)
        try:
            with root_folder(PACKAGE, arguments.suite) as ROOT:
                result = unittest.main(argv=[sys.argv[0], *rest], exit=False).result
        except NotHad as why:
            print(f"skipped: {why}")
            sys.exit(77)
    for _, why in result.skipped:
        print(f"skipped: {why}")
    sys.exit(77 if result.skipped else not result.wasSuccessful())
