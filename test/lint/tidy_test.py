#!/usr/bin/env python3
"""tools/lint.py shows clang-tidy several files at a time, and says of each what clang-tidy says of it alone."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import lint  # noqa: E402

# Finds BAD, and two definitions of the same name.
CLANG_TIDY = """#!/bin/sh
for last; do :; done
[ "$last" = --version ] && exit
echo "$last" >> "$LOOKED_AT"
if grep -q BAD "$last" || [ "$(grep -c 'int same' "$last")" -gt 1 ]; then echo "$last: found"; exit 1; fi
"""


class Tidy(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("bin", "build", "src/base"):
            (self.root / name).mkdir(parents=True)
        (self.root / ".clang-tidy").write_text("Checks: x\n")
        (self.root / "bin/clang-tidy").write_text(CLANG_TIDY)
        (self.root / "bin/clang-tidy").chmod(0o755)
        before = dict(os.environ), lint.ROOT
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before[0]), setattr(lint, "ROOT", before[1])))
        os.environ.update(PATH=f"{self.root}/bin:{os.environ['PATH']}", LOOKED_AT=f"{self.root}/looked-at", NVSHARE_LINT_CACHE=f"{self.root}/cache")
        lint.ROOT = self.root
        subprocess.run(["git", "init", "-q", str(self.root)], check=True)
        self.commands = []

    def source(self, name, text, options="-O2"):
        path = f"src/base/{name}.cc"
        (self.root / path).write_text(text)
        self.commands.append({"directory": f"{self.root}/build", "file": f"{self.root}/{path}",
                              "command": f"c++ {options} -o {name}.o -c {self.root}/{path}"})
        (self.root / "build/compile_commands.json").write_text(json.dumps(self.commands))

    def looked_at(self):
        """The problems that a run of the check says, and how many times clang-tidy ran for it."""
        (self.root / "looked-at").write_text("")
        tidy = lint.Tidy(self.root / "build", 1)
        problems = []
        for files in tidy.groups([path for path in tidy.sources() if not tidy.known(path)]):
            problems += tidy.run(files)[0]
        return problems, len((self.root / "looked-at").read_text().splitlines())

    def test_sixteen_clean_files_are_looked_at_once(self):
        for i in range(16):
            self.source(f"clean{i}", f"int clean{i};\n")
        self.assertEqual(self.looked_at(), ([], 1))
        self.assertEqual(self.looked_at(), ([], 0), "they are known")

    def test_a_problem_is_said_of_its_file_alone(self):
        for i in range(8):
            self.source(f"file{i}", "BAD\n" if i == 5 else f"int file{i};\n")
        problems, _ = self.looked_at()
        self.assertEqual(problems, ["src/base/file5.cc: found"])
        self.assertEqual(self.looked_at(), (problems, 1), "the others are known")

    def test_names_that_clash_are_no_problem(self):
        for i in range(4):
            self.source(f"file{i}", "static int same;\n" if i in (0, 3) else f"int file{i};\n")
        problems, runs = self.looked_at()
        self.assertEqual((problems, runs), ([], 3), "all, and each half")

    def test_names_that_are_known_to_clash_are_not_tried_together(self):
        for i in range(4):
            self.source(f"file{i}", "namespace {\nint same = 0;\n}\n" if i in (0, 3) else f"int file{i};\n")
        self.assertEqual(self.looked_at(), ([], 2))

    def test_what_the_compiler_has_apart_is_looked_at_alone(self):
        for i in range(4):
            self.source(f"file{i}", f"int file{i};\n")
        (self.root / "src/base/CMakeLists.txt").write_text("nvshare_unity(base APART file2.cc)\n")
        self.assertEqual(self.looked_at(), ([], 2))

    def test_a_header_that_costs_more_the_more_there_is_beside_it(self):
        for i in range(4):
            self.source(f"file{i}", f"int file{i};\n")
        (self.root / "src/base/program.h").write_text("#include <CLI/CLI.hpp>\n")
        self.source("program", '#include "base/program.h"\nint program;\n')
        self.assertEqual(self.looked_at(), ([], 2))

    def test_what_includes_a_header_twice_is_looked_at_alone(self):
        self.source("once", "#include <string>\nint once;\n")
        self.source("twice", "#include <string>\n#include <string>\n")
        self.assertEqual(self.looked_at(), ([], 2))

    def test_other_options_are_another_group(self):
        self.source("one", "int one;\n")
        self.source("other", "int other;\n", "-O2 -DOTHER")
        self.assertEqual(self.looked_at(), ([], 2))


if __name__ == "__main__":
    unittest.main()
