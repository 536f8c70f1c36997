#!/usr/bin/env python3
"""All files of the tree say one release, and tools/set-version.py changes all of them. Run by ctest."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
FILES = ("CMakeLists.txt", "CHANGELOG.md", "deploy/helm/nvshare/Chart.yaml", "deploy/nvshare.yaml", "deploy/docker/Dockerfile", "docs/kubernetes.md", "docs/pictures/top.svg")


def set_version(*words, tree=TREE):
    return subprocess.run([sys.executable, TREE / "tools/set-version.py", "--tree", tree, *words], capture_output=True, text=True, timeout=30, check=False)


class Version(unittest.TestCase):
    def setUp(self):
        self.copy = pathlib.Path(tempfile.mkdtemp(prefix="nvshare-version-"))
        self.addCleanup(shutil.rmtree, self.copy)
        for file in FILES:
            (self.copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TREE / file, self.copy / file)
        self.version = re.search(r"project\(nvshare VERSION (\S+)", (TREE / "CMakeLists.txt").read_text())[1]

    def test_all_files_say_one_release(self):
        done = set_version()
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_one_that_says_another_is_named(self):
        for file in FILES[2:]:
            text = (self.copy / file).read_text()
            (self.copy / file).write_text(text.replace(self.version, "7.7.7", 1))
            done = set_version(tree=self.copy)
            self.assertEqual(done.returncode, 1, file)
            self.assertIn(f"{file} says 7.7.7", done.stderr)
            (self.copy / file).write_text(text)

    def test_a_new_one_is_written_everywhere(self):
        changelog = self.copy / "CHANGELOG.md"
        changelog.write_text(changelog.read_text().replace("## ", "## 9.8.7, not released yet\n\n## ", 1))
        done = set_version("9.8.7", tree=self.copy)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(changelog.read_text(), r"(?m)^## 9\.8\.7, \d{4}-\d\d-\d\d$")
        for file in ("CMakeLists.txt", "deploy/helm/nvshare/Chart.yaml", "deploy/nvshare.yaml", "deploy/docker/Dockerfile", "docs/kubernetes.md"):
            text = (self.copy / file).read_text()
            self.assertIn("9.8.7", text)
            self.assertNotIn(self.version, text, file)
        self.assertEqual(set_version(tree=self.copy).returncode, 0)

    def test_wrong_uses_are_explained(self):
        self.assertIn("three numbers, such as 0.2.0", set_version("v2", tree=self.copy).stderr)
        done = set_version("3.3.3", tree=self.copy)
        self.assertEqual(done.returncode, 1)
        self.assertIn("CHANGELOG.md has no section '## 3.3.3, not released yet'", done.stderr)
        self.assertEqual(set_version(tree=self.copy).returncode, 0, "nothing was written")


if __name__ == "__main__":
    unittest.main()
