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

    def test_the_rest_is_what_passed_nowhere(self):
        def report(*cases: str) -> str:
            with tempfile.NamedTemporaryFile("w", suffix=".xml", delete=False) as file:
                file.write("<testsuite>" + "".join("<testcase " + case for case in cases) + "</testsuite>")
            self.addCleanup(pathlib.Path(file.name).unlink)
            return file.name

        here = report('name="Turns.Here" status="run"/>', 'name="Short.Here" status="run"/>', 'name="Short.Failed" status="fail"><failure/></testcase>')
        there = report('name="Turns.There" status="run"/>', 'name="Turns.Skipped" status="notrun"><skipped/></testcase>',
                       'name="Turns.Failed" status="fail"><failure/></testcase>', 'name="Short.There" status="run"/>')
        tests = [test_named(f"Turns.{name}", "e2e") for name in ("Here", "There", "Skipped", "Failed", "NotThere")]
        tests += [test_named(f"Short.{name}", "unit") for name in ("Here", "Failed", "There")]
        self.assertEqual(part_of_tests.left_by(tests, here, [there]), [False, False, True, True, True, False, True, True])
        self.assertEqual(part_of_tests.left_by(tests, here, []), [False, True, True, True, True, False, True, True])


if __name__ == "__main__":
    unittest.main()
