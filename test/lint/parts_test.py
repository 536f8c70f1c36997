#!/usr/bin/env python3
"""tools/part-of-tests.py leaves no test out of all parts, and only those that take long out of one."""
import collections
import importlib.util
import pathlib
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("part_of_tests", ROOT / "tools" / "part-of-tests.py")
part_of_tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(part_of_tests)


def test_named(name: str, *labels: str) -> dict:
    return {"name": name, "properties": [{"name": "TIMEOUT", "value": 60.0}, {"name": "LABELS", "value": list(labels)}]}


class Parts(unittest.TestCase):
    def test_each_long_test_is_in_one_of_them(self):
        for label in ("e2e", "property"):
            for parts in (2, 3, 4):
                tests = [test_named(f"Turns{i % 40}.Number{i}", "unit", label) for i in range(240)]
                sizes = collections.Counter(part_of_tests.parts_of(tests, parts))
                self.assertEqual(sorted(sizes), list(range(1, parts + 1)))
                for size in sizes.values():
                    self.assertAlmostEqual(size, 240 / parts, delta=40)

    def test_a_suites_take_turns_wherever_they_stand(self):
        turns = [test_named(f"Turns.Number{i}", "e2e") for i in range(6)]
        others = [test_named(f"Deaths.Number{i}", "e2e") for i in range(5)]
        parts = part_of_tests.parts_of(turns, 3)
        self.assertEqual(parts[:3], parts[3:])
        self.assertEqual(sorted(parts[:3]), [1, 2, 3])
        self.assertEqual(part_of_tests.parts_of(others + turns, 3)[5:], parts)

    def test_suites_of_one_test_are_in_different_ones(self):
        tests = [test_named(f"Suite{i}.One", "e2e") for i in range(60)]
        self.assertEqual(set(part_of_tests.parts_of(tests, 3)), {1, 2, 3})

    def test_every_other_test_is_in_each(self):
        tests = [test_named("Turns.One", "unit"), test_named("Turns.Two"), {"name": "Turns.Three"}]
        self.assertEqual(part_of_tests.parts_of(tests, 3), [0, 0, 0])

    def test_what_passed_elsewhere_is_left_out_and_nothing_else(self):
        cases = ('name="Turns.Passed" status="run"/>', 'name="Turns.Skipped" status="notrun"><skipped/></testcase>', 'name="Short.Passed" status="run"/>',
                 'name="Turns.Failed" status="fail"><failure/></testcase>')
        tests = [test_named(f"Turns.{name}", "e2e") for name in ("Passed", "Skipped", "Failed", "NotThere")] + [test_named("Short.Passed", "unit")]
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as report:
            report.write("<testsuite>" + "".join("<testcase " + case for case in cases) + "</testsuite>")
            report.flush()
            self.assertEqual(part_of_tests.left_by(tests, [report.name]), [False, True, True, True, True])
        self.assertEqual(part_of_tests.left_by(tests, []), [True] * 5)


if __name__ == "__main__":
    unittest.main()
