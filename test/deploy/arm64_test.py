#!/usr/bin/env python3
"""The build for 64-bit ARM: what its files are and need, what its tarball and package hold, and what of it runs under qemu-user. Run by
`./dev test-arm64`.

  arm64_test.py --build build/arm64 --dist FOLDER     ends with "N passed, N failed"; the folder is that of `./dev dist --arch arm64`

qemu-user runs one process: a child that a program starts would need the emulator, too, so nothing here starts children: the demo is its
programs, started one by one, in a short form. The GPU is the stand-in.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
QEMU = ["qemu-aarch64"]
OF_LIBC = re.compile(r"^(libc|libm|libdl|libpthread|librt|ld-linux-aarch64)\.so\.\d+$")
PATIENCE_S = 120
# The emulator takes in the descriptors of a packet that its program has no room for.
QEMU_LEAVES_OPEN = "DescriptorsTest.APacketWithTooManyIsAnErrorAndLeavesNoneOpen"
WHERE = argparse.Namespace()


def run(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=PATIENCE_S, check=False, **more)
    if done.returncode != 0:
        raise AssertionError(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def newest_glibc(file):
    found = re.findall(r"GLIBC_(\d+)\.(\d+)", run("aarch64-linux-gnu-objdump", "-T", file))
    return max((tuple(map(int, each)) for each in found), default=(0, 0))


def expect_for_that_machine(test, file):
    head = run("aarch64-linux-gnu-objdump", "-p", file)
    test.assertIn("aarch64", head.splitlines()[1], file)
    test.assertEqual([name for name in re.findall(r"NEEDED +(\S+)", head) if not OF_LIBC.match(name)], [], file)


class Library(unittest.TestCase):
    def test_it_is_for_that_machine_and_needs_libc_alone(self):
        expect_for_that_machine(self, WHERE.build / "lib/libnvshare.so")

    def test_the_library_needs_no_libc_newer_than_2_17(self):
        self.assertLessEqual(newest_glibc(WHERE.build / "lib/libnvshare.so"), (2, 17))

    def test_the_library_has_the_entry_points_of_the_list(self):
        rows = [line.split()[0] for line in (TREE / "src/interposer/entry_points.txt").read_text().splitlines() if line and line[0] not in "# "]
        exported = set(re.findall(r" (\w+)$", run("aarch64-linux-gnu-objdump", "-T", WHERE.build / "lib/libnvshare.so"), re.MULTILINE))
        self.assertTrue({"dlsym", "dlvsym", "cuInit", "cuLaunchKernel", "cuMemAlloc_v2"} <= exported)
        self.assertGreater(len(set(rows) & exported), 200)

    def test_unit_tests(self):
        for program, but in (("base_test", QEMU_LEAVES_OPEN), ("protocol_test", "")):
            self.assertIn("[  PASSED  ]", run(*QEMU, WHERE.build / "bin" / program, "--gtest_brief=1", f"--gtest_filter=-{but}"))


def control(program, *words, runtime):
    done = subprocess.run([*program, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
                          env={**os.environ, "NVSHARE_RUNTIME_DIR": runtime})
    return done.returncode, done.stdout, done.stderr


class Tarball(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="nvshare-arm64-")
        cls.addClassCleanup(cls.folder.cleanup)
        (file,) = WHERE.dist.glob("nvshare-*-linux-aarch64.tar.gz")
        with tarfile.open(file) as tarball:
            tarball.extractall(cls.folder.name)
        (cls.root,) = pathlib.Path(cls.folder.name).glob("nvshare-*")

    def control(self, *words):
        return control([*QEMU, self.root / "bin/nvsharectl"], *words, runtime="/nonexistent")

    def test_its_programs_are_for_that_machine_and_need_libc_alone(self):
        programs = [path for path in self.root.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
        self.assertEqual({"nvsharectl", "nvshare-scheduler", "nvshare-demo-job", "libnvshare.so"} - {path.name for path in programs}, set())
        for path in programs:
            if "simgpu" not in str(path):  # the demo's stand-in, for the machine's own libraries
                expect_for_that_machine(self, path)

    def test_nvsharectl_runs(self):
        version = re.search(r"project\(nvshare VERSION (\S+)", (TREE / "CMakeLists.txt").read_text())[1]
        self.assertEqual(self.control("--version"), (0, f"nvsharectl {version}\n", ""))
        code, out, _ = self.control("run", "--help")
        self.assertEqual(code, 0)
        self.assertIn("--gpu-memory-limit", out)
        code, _, problem = self.control("status")
        self.assertEqual(code, 1)
        self.assertIn("/nonexistent", problem)
        code, out, problem = self.control("run", "--gpu-memory-limit", "much", "true")
        self.assertNotEqual(code, 0)
        self.assertIn("much", out + problem)
        self.assertIn("driver", self.control("doctor", "--json")[1])

    def test_pages_and_scripts_are_there(self):
        for file in ("bin/nvshare", "install.sh", "share/man/man1/nvsharectl.1.gz", "share/bash-completion/completions/nvsharectl",
                     "share/doc/nvshare/LICENSE", "share/nvshare/systemd/nvshare-scheduler.service"):
            self.assertTrue((self.root / file).is_file(), file)


class Demo(unittest.TestCase):
    """Two jobs that do not fit together take turns, and compute what each computes alone."""
    JOBS = 2
    GPU_MB, JOB = 64, ("--bytes", "42M", "--block", "6M", "--steps", "6", "--compute-us", "40000")
    TURN_S = 0.5

    def setUp(self):
        own = self.enterContext(tempfile.TemporaryDirectory(prefix="nvs-arm64-"))
        self.runtime = f"{own}/run"
        self.standing_in = {"LD_LIBRARY_PATH": WHERE.build / "simgpu", "SIMGPU_STATE": f"{own}/gpu", "SIMGPU_MEMORY_MB": self.GPU_MB,
                            "SIMGPU_CONTEXT_MB": 1, "SIMGPU_LINK_MBPS": 850, "NVSHARE_RUNTIME_DIR": self.runtime}

    @contextlib.contextmanager
    def begun(self, program, *words, **environment):
        """The emulator's own libraries are this machine's: `environment` is the emulated program's alone."""
        given = [word for name, value in {**self.standing_in, **environment}.items() for word in ("-E", f"{name}={value}")]
        process = subprocess.Popen([*QEMU, *given, program, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def checksum(self, process):
        said, _ = process.communicate(timeout=PATIENCE_S)
        result = json.loads(said.splitlines()[-1])
        self.assertEqual((process.returncode, result["event"]), (0, "result"), said)
        return result["checksum"]

    def status(self):
        code, out, _ = control([*QEMU, WHERE.build / "bin/nvsharectl"], "status", "--json", runtime=self.runtime)
        return json.loads(out) if code == 0 else None

    def test_jobs_take_turns(self):
        alone, program = [], WHERE.build / "bin/nvshare-demo-job"
        for seed in range(self.JOBS):
            with self.begun(program, *self.JOB, "--seed", str(seed)) as job:
                alone.append(self.checksum(job))
        self.assertEqual(len(set(alone)), self.JOBS)
        settings = {"NVSHARE_SWITCH_TIME_MODE": "fixed", "NVSHARE_SWITCH_TIME_FIXED": self.TURN_S, "NVSHARE_MEMORY_RESERVE_PERCENT": 10,
                    "NVSHARE_LOCK_DIR": f"{self.runtime}/locks", "NVSHARE_RUNTIME_DIR": self.runtime}
        with self.begun(WHERE.build / "bin/nvshare-scheduler", **settings) as scheduler, contextlib.ExitStack() as jobs:
            deadline = time.monotonic() + PATIENCE_S
            while not self.status():
                self.assertTrue(scheduler.poll() is None and time.monotonic() < deadline, "the scheduler does not answer")
                time.sleep(0.05)
            shared = [jobs.enter_context(self.begun(program, *self.JOB, "--seed", str(seed), LD_PRELOAD=WHERE.build / "lib/libnvshare.so"))
                      for seed in range(self.JOBS)]
            self.assertEqual([self.checksum(job) for job in shared], alone)
            (gpu,) = self.status()["gpus"]
            self.assertGreaterEqual(gpu["switches"], 3)
            self.assertGreater(gpu["usage"]["swapped_out"], 0)


class Package(unittest.TestCase):
    def test_it_is_for_that_machine_and_holds_the_same(self):
        (file,) = (WHERE.dist / "packages").glob("nvshare_*_arm64.deb")
        fields = run("dpkg-deb", "--field", file)
        self.assertIn("Architecture: arm64\n", fields)
        self.assertRegex(fields, r"Depends: libc6 \(>= 2\.\d+\), libgcc-s1, libstdc\+\+6 \(>= 12\)\n")
        with tempfile.TemporaryDirectory(prefix="nvshare-arm64-") as folder:
            run("dpkg-deb", "--extract", file, folder)
            root = pathlib.Path(folder)
            for program in ("bin/nvsharectl", "bin/nvshare-scheduler", "lib/nvshare/libnvshare.so"):
                expect_for_that_machine(self, root / "usr" / program)
            for name in ("bin/nvshare", "share/man/man1/nvsharectl.1.gz", "share/bash-completion/completions/nvsharectl"):
                self.assertTrue((root / "usr" / name).is_file(), name)
            self.assertTrue((root / "etc/nvshare/scheduler.toml").is_file())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--dist", type=pathlib.Path, required=True)
    arguments, rest = parser.parse_known_args()
    WHERE.build, WHERE.dist = arguments.build.resolve(), arguments.dist.resolve()
    result = unittest.main(argv=[sys.argv[0], *rest], exit=False).result
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
