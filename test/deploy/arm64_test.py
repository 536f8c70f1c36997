#!/usr/bin/env python3
"""The build for 64-bit ARM: what its files are and need, and what of it runs under qemu-user. Run by `./dev test-arm64`, which builds the
library and unit tests alone.

  arm64_test.py --build build/arm64      ends with "N passed, N failed"

qemu-user runs one process: a child that a program starts would need the emulator, too, so nothing here starts children. A GPU is not there,
nor is anything said of one.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import unittest

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
QEMU = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    arguments, rest = parser.parse_known_args()
    WHERE.build = arguments.build.resolve()
    result = unittest.main(argv=[sys.argv[0], *rest], exit=False).result
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
