#!/usr/bin/env python3
"""tools/lint.py finds what sources of pure functions may not include or call."""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import lint  # noqa: E402


class Pure(unittest.TestCase):
    def found(self, line, folder="src/policy/"):
        return [number for number, _ in lint.impure_lines(folder, f"// the first line\n{line}\n")] == [2]

    def test_only_listed_headers_may_be_included(self):
        for name in ("pthread.h", "chrono", "ctime", "mutex", "shared_mutex", "future", "sys/socket.h", "syslog.h", "fstream", "unknown"):
            self.assertTrue(self.found(f"#include <{name}>"), name)
        self.assertTrue(self.found("#  include<pthread.h>"))
        self.assertTrue(self.found("#include HEADER_BY_MACRO"))
        for name in ("vector", "cstdint", "algorithm"):
            self.assertFalse(self.found(f"#include <{name}>"), name)

    def test_of_ours_only_the_folder_itself(self):
        self.assertFalse(self.found('#include "policy/state.h"'))
        self.assertTrue(self.found('#include "scheduler/engine/engine.h"'))
        self.assertTrue(self.found('#include "../scheduler/engine/engine.h"'))
        self.assertFalse(self.found('#include "protocol/messages.h"', "src/interposer/turn/"))
        self.assertTrue(self.found('#include "interposer/gate/gate.h"', "src/interposer/turn/"))

    def test_calls_that_those_headers_declare(self):
        self.assertTrue(self.found('  const char* home = getenv("HOME");'))
        self.assertTrue(self.found("  return std::rand();"))
        self.assertTrue(self.found("  srand(1);"))
        self.assertFalse(self.found("  return at; // getenv() would be impure"))
        self.assertFalse(self.found("  operand(1);"))

    def test_of_the_policy_others_see_its_interface_and_folders_what_their_readme_says(self):
        for path, header, may in (
            ("src/scheduler/engine/engine.cc", "policy/policy.h", True),
            ("src/scheduler/engine/engine.cc", "policy/state.h", False),
            ("src/scheduler/engine/engine.cc", "policy/memory/room.h", False),
            ("src/policy/step.cc", "policy/sharing/sharing.h", True),
            ("src/policy/limits/quota.cc", "policy/turns/turns.h", True),
            ("src/policy/limits/quota.cc", "policy/limits/quota.h", True),
            ("src/policy/limits/quota.cc", "policy/state.h", True),
            ("src/policy/limits/quota.cc", "policy/memory/room.h", True),
            ("src/policy/limits/quota.cc", "policy/memory/memory.h", False),
            ("src/policy/new/new.cc", "policy/turns/turns.h", False),
        ):
            self.assertEqual(may, lint.may_have_of_policy(path, f'#include "{header}"'), (path, header))

    def test_the_sources_are_so(self):
        self.assertEqual(lint.check_pure(None), [])


if __name__ == "__main__":
    unittest.main()
