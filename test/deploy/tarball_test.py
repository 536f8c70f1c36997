#!/usr/bin/env python3
"""The tarball of ./dev dist, unpacked in a folder of its own: what is in it, what its programs need, and that they run from there. With a real
Slurm where one can start. And the Debian package of the same build, on an Ubuntu. Run by ./dev test-dist, for what ctest cannot see: both are
of a build of its own.

  tarball_test.py TARBALL PACKAGE      ends with "N passed, N failed"
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
SLURM_CANNOT_START = NO_SUCH_MACHINE = 77
OF_LIBC = re.compile(r"^(libc|libm|libdl|libpthread|librt|ld-linux-x86-64)\.so\.\d+$")
TARBALL = PACKAGE = None


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=200, check=False, **options)
    if done.returncode != 0:
        raise AssertionError(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Tarball(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="nvshare-tarball-"))
        cls.folder.chmod(0o755)  # as slurmd's jobs run as anybody
        with tarfile.open(TARBALL) as tarball:
            tarball.extractall(cls.folder)
        (cls.root,) = cls.folder.glob("nvshare-*")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def programs(self):
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
                yield path

    def test_what_is_in_it(self):
        for file in ("bin/nvshare", "bin/nvsharectl", "bin/nvshare-scheduler", "bin/nvshare-demo-job", "install.sh", "lib/libnvshare.so",
                     "lib/nvshare/simgpu/libcuda.so.1", "lib/nvshare/simgpu/libnvidia-ml.so.1", "lib/nvshare/slurm/nvshare_spank.so",
                     "lib/nvshare/slurm/nvshare-slurm-step", "share/doc/nvshare/docs/slurm.md", "share/doc/nvshare/CHANGELOG.md",
                     "share/nvshare/systemd/nvshare-scheduler.service", "share/nvshare/slurm/nvshare.conf"):
            self.assertTrue((self.root / file).is_file(), file)

    def test_its_programs_need_libc_alone_and_no_new_one(self):
        newest = tuple(map(int, re.search(r"^GLIBC_MAX=([\d.]+)", (TREE / "tools/make-dist.sh").read_text(), re.MULTILINE)[1].split(".")))
        found = list(self.programs())
        self.assertGreater(len(found), 8)
        for path in found:
            name = str(path.relative_to(self.root))
            needed = re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", path))
            if "simgpu" not in name:  # the demo's stand-in, for the machine's own libraries
                self.assertEqual([one for one in needed if not OF_LIBC.match(one)], [], name)
            versions = [tuple(map(int, one.split("."))) for one in re.findall(r"GLIBC_(\d[\d.]*)", run("objdump", "-T", path))]
            self.assertLessEqual(max(versions, default=(0,)), newest, name)

    def test_its_programs_run_from_where_they_are(self):
        environment = {"PATH": os.environ["PATH"], "NVSHARE_RUNTIME_DIR": "/nonexistent"}
        releases = run(self.root / "bin/nvsharectl", "version", env=environment)
        self.assertIn(str(self.root / "lib/libnvshare.so"), releases)
        self.assertRegex(releases, r"(?m)^scheduler +\d+\.\d+\.\d+ at ")
        self.assertRegex(releases, r"(?m)^Slurm plugin +\d+\.\d+\.\d+ at ")
        self.assertNotIn("two releases", releases)
        self.assertEqual(run(self.root / "bin/nvshare", "--version"), run(self.root / "bin/nvsharectl", "--version"))
        self.assertRegex(run(self.root / "bin/nvshare-scheduler", "--version"), r"^\d+\.\d+\.\d+")
        nothing = subprocess.run([self.root / "bin/nvshare"], capture_output=True, text=True, check=False)
        self.assertEqual((nothing.returncode, nothing.stderr), (125, "nvshare: no program is named; for instance: nvshare python3 train.py\n"))

    def test_a_job_on_its_stand_in(self):
        own = self.folder / "own"
        environment = {"PATH": os.environ["PATH"], "HOME": str(own), "NVSHARE_RUNTIME_DIR": str(own / "run"), "SIMGPU_STATE": str(own / "gpu"),
                       "SIMGPU_MEMORY_MB": "4096", "LD_LIBRARY_PATH": str(self.root / "lib/nvshare/simgpu")}
        own.mkdir()
        job = [self.root / "bin/nvshare-demo-job", "--bytes", "48M", "--steps", "2"]
        alone = json.loads(run(*job, env=environment).splitlines()[-1])
        shared = json.loads(run(self.root / "bin/nvshare", *job, env=environment).splitlines()[-1])
        self.assertEqual((shared["event"], shared["checksum"]), ("result", alone["checksum"]))

    def test_the_plugin_says_for_which_slurm_it_is_and_how_another_is_built(self):
        says = (self.root / "lib/nvshare/slurm/README").read_text()
        self.assertRegex(says, r"is for Slurm \d\d\.\d\d\.\d+\.")
        manual = (self.root / "share/doc/nvshare/docs/slurm.md").read_text()
        self.assertIn("-DNVSHARE_SLURM_PLUGIN=ON -DNVSHARE_SLURM_INCLUDE=", manual)
        exported = re.findall(r" [DRBT] (\w+)$", run("nm", "-D", "--defined-only", self.root / "lib/nvshare/slurm/nvshare_spank.so"), re.MULTILINE)
        self.assertIn("plugin_version", exported)
        self.assertEqual([one for one in exported if not one.startswith(("slurm_spank_", "plugin_", "spank_plugin"))], [])

    def test_the_plugin_in_a_real_slurm(self):
        command = [sys.executable, str(TREE / "test/slurm/slurm_test.py"), "--plugin", self.root / "lib/nvshare/slurm/nvshare_spank.so",
                   "--library", self.root / "lib/libnvshare.so", "--scheduler", self.root / "bin/nvshare-scheduler", "--control", self.root / "bin/nvsharectl",
                   "--worker", "none", "--stand-in", self.root / "lib/nvshare/simgpu", "Limits.test_bad_values_are_refused_at_submission",
                   "Deaths.test_two_hundred_short_jobs"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == SLURM_CANNOT_START:
            self.skipTest(done.stdout.strip())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_package_on_a_fresh_ubuntu(self):
        command = [sys.executable, str(TREE / "test/deploy/fresh_machine_test.py"), "--package", PACKAGE, "--suite", "noble"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode == NO_SUCH_MACHINE:
            self.skipTest(done.stdout.strip())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 3 or not all(pathlib.Path(file).is_file() for file in sys.argv[1:]):
        sys.exit("usage: tarball_test.py TARBALL PACKAGE   (./dev test-dist makes them)")
    TARBALL, PACKAGE = sys.argv[1:]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Tarball))
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad - len(result.skipped)} passed, {bad} failed")
    sys.exit(bad != 0)
