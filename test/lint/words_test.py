#!/usr/bin/env python3
"""tools/lint.py finds words that no file of the project may have."""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import lint  # noqa: E402

FOLDER = "/run/nvshare/client"


class Words(unittest.TestCase):
    def found(self, line):
        return [reason for pattern, reason in lint.FORBIDDEN if pattern.search(line)]

    def test_the_clients_folder_is_mounted_read_only(self):
        self.assertTrue(self.found(f"docker run -v {FOLDER}:{FOLDER} IMAGE"))
        self.assertTrue(self.found(f"-v {FOLDER}:{FOLDER}:rw"))
        self.assertFalse(self.found(f"docker run -v {FOLDER}:{FOLDER}:ro IMAGE"))
        self.assertFalse(self.found(f"Mount {FOLDER} alone"))


if __name__ == "__main__":
    unittest.main()
