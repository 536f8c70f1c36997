#!/usr/bin/env python3
"""tools/subjects.py finds subjects of new commits that are too long, and looks at nothing where it cannot know which are new."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import subjects  # noqa: E402

NOBODY = {"GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "n@example.org", "GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "n@example.org",
          "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}


class Subjects(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def git(self, *arguments, at=None):
        return subprocess.run(["git", *arguments], cwd=at or self.root, env={**os.environ, **NOBODY}, check=True, capture_output=True,
                              text=True).stdout.strip()

    def commit(self, subject):
        self.git("commit", "-q", "--allow-empty", "-m", subject, "-m", "A line of the body may be longer than a subject. " * 2)
        return self.git("rev-parse", "HEAD")

    def test_new_long_subjects_are_found(self):
        self.git("init", "-q")
        self.commit("o" * 100)
        base = self.commit("b" * 100)
        self.assertEqual(subjects.problems(self.root, base), ([], "0 commits looked at"))
        self.commit("f" * 72)
        self.assertEqual(subjects.problems(self.root, base), ([], "1 commits looked at"))
        self.commit("t" * 73)
        found, looked_at = subjects.problems(self.root, base)
        self.assertEqual(len(found), 1)
        self.assertIn("a subject of 73 characters", found[0])
        self.assertEqual(looked_at, "2 commits looked at")

        shallow = self.root / "shallow"
        self.git("clone", "-q", "--depth", "1", f"file://{self.root}", str(shallow))
        found, looked_at = subjects.problems(shallow, base)
        self.assertEqual(found, [])
        self.assertIn("looked at no commit", looked_at)

        self.git("checkout", "-q", base + "^")
        self.commit("l" * 100)
        found, looked_at = subjects.problems(self.root, base)
        self.assertEqual(found, [])
        self.assertIn("looked at no commit", looked_at)

    def test_outside_of_a_repository(self):
        found, looked_at = subjects.problems(self.root)
        self.assertEqual(found, [])
        self.assertIn("looked at no commit", looked_at)


if __name__ == "__main__":
    unittest.main()
