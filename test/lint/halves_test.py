#!/usr/bin/env python3
"""tools/half-of-tests.py leaves no test out of both halves, and only those that take long out of one."""
import importlib.util
import pathlib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("half_of_tests", ROOT / "tools" / "half-of-tests.py")
half_of_tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(half_of_tests)


def test_named(name: str, *labels: str) -> dict:
    return {"name": name, "properties": [{"name": "TIMEOUT", "value": 60.0}, {"name": "LABELS", "value": list(labels)}]}


class Halves(unittest.TestCase):
    def test_each_long_test_is_in_one_of_them(self):
        for label in ("e2e", "property"):
            tests = [test_named(f"Turns.Number{i}", "unit", label) for i in range(200)]
            first = [half_of_tests.is_in_half(test, 0) for test in tests]
            self.assertEqual([half_of_tests.is_in_half(test, 1) for test in tests], [not one for one in first])
            self.assertGreater(sum(first), 60)
            self.assertLess(sum(first), 140)

    def test_every_other_test_is_in_both(self):
        for test in (test_named("Turns.One", "unit"), test_named("Turns.Two"), {"name": "Turns.Three"}):
            self.assertTrue(half_of_tests.is_in_half(test, 0) and half_of_tests.is_in_half(test, 1), test)


if __name__ == "__main__":
    unittest.main()
