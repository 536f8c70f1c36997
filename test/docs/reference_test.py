#!/usr/bin/env python3
"""docs/reference is what tools/reference.py makes of these programs and sources, and what a scheduler serves is in it.

  reference_test.py --build DIR [unittest arguments]
"""
import argparse
import importlib.util
import os
import pathlib
import re
import shutil
import sys
import tempfile
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/page"))
from stage import Stage  # noqa: E402

spec = importlib.util.spec_from_file_location("reference", ROOT / "tools/reference.py")
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)
ARGUMENTS = argparse.Namespace()


class Reference(unittest.TestCase):
    def test_pages_are_what_programs_and_sources_say_now(self):
        for name, text in reference.pages(ARGUMENTS.build).items():
            page = reference.PAGES / name
            self.assertTrue(page.exists(), f"{page} is missing: run tools/reference.py")
            self.assertEqual(page.read_text(), text, f"{page} is stale: run tools/reference.py")

    def test_symptoms_are_what_the_code_says(self):
        """Headings of troubleshooting.md that quote: each part between dots is in some literal of the sources."""
        literals = []
        for path in reference.sources("src"):
            literals += [reference.joined(each[0]) for each in reference.LITERALS.finditer(reference.without_comments((ROOT / path).read_text()))]
        said = "\n".join(re.sub(r"%[-+0 #]*[\d.*]*(?:hh|h|ll|l|z|j)?[a-zA-Z]|\{[^}]*\}", "\u2026", text) for text in literals)
        quoted = re.findall(r"^### .*?`(.+)`$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
        self.assertGreater(len(quoted), 10)
        for symptom in quoted:
            for part in symptom.split("\u2026"):
                self.assertIn(part.strip(), said, symptom)

    def test_each_column_of_status_is_explained(self):
        columns = set(re.findall(r'\{"([A-Z][A-Z ]+)"', (ROOT / "src/cli/status_view.cc").read_text()))
        self.assertGreater(len(columns), 25)
        guide = (ROOT / "docs/user-guide.md").read_text()
        explained = {name.strip() for row in re.findall(r"^\| ([A-Z][A-Z, ]+) \|", guide, re.MULTILINE) for name in row.split(",")}
        # GPU, NAME, PID and PROGRAM say themselves what they are.
        self.assertEqual(columns - explained - {"GPU", "NAME", "PID", "PROGRAM", "TENANT"}, set())

    def test_an_option_without_a_word_about_it(self):
        with self.assertRaisesRegex(reference.Missing, "--new"):
            reference.option_rows({"Options": [("--new TEXT", "")]})

    def test_what_no_table_names_is_noticed(self):
        """A tree in which the code reads another variable, ends with another code, and logs in another way."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(ROOT / "src", pathlib.Path(folder, "src"))
            os.system(f"git -C {folder} init -q")
            root, reference.ROOT = reference.ROOT, pathlib.Path(folder)
            try:
                reference.exit_codes_page()
                reference.messages()
                for path, line, word, make in (
                    ("src/cli/process.cc", "constexpr int kExitNew = 9;", "kExitNew", reference.exit_codes_page),
                    ("src/interposer/link/link.cc", "void f(const char* s) { log(LogLevel::kWarning, s); }", "link.cc", reference.messages),
                    ("src/cli/environment.cc", 'auto x = getenv("NVSHARE_NEW_ONE");', "NVSHARE_NEW_ONE", lambda: reference.variables_page({"a": [("x", "", "")]})),
                ):
                    with open(reference.ROOT / path, "a") as source:
                        source.write(line + "\n")
                    with self.assertRaisesRegex(reference.Missing, word):
                        make()
            finally:
                reference.ROOT = root

    def test_what_a_scheduler_serves(self):
        stage = Stage(ARGUMENTS.build, NVSHARE_METRICS_ADDRESS="127.0.0.1:0")
        try:
            url = stage.wait_for(lambda: (found := re.search(r"metrics at (http://\S+)", stage.log.read_text())) and found[1], "the metrics' address")
            stage.run("one", "64M", "--gpu-core-limit", "50", "--gpu-memory-limit", "200M")
            stage.wait_for(lambda: any(client["allocated"] > 0 for client in stage.status()["clients"]), "the program")
            stage.remember_programs()
            families = {}

            def look():
                text = urllib.request.urlopen(url.rstrip("/").removesuffix("/metrics") + "/metrics", timeout=60).read().decode()
                for line in text.splitlines():
                    if about := re.match(r"# (HELP|TYPE) (\S+) (.*)", line):
                        families.setdefault(about[2], {})[about[1]] = about[3]
                    elif series := re.match(r"(\w+)(?:\{(.*)\})? ", line):
                        families[series[1]]["labels"] = sorted(re.findall(r'(\w+)="', series[2] or ""))
                return "nvshare_tenant_compute_limit_ratio" in families and "nvshare_tenant_memory_limit_bytes" in families

            stage.wait_for(look, "metrics of limits")
            known = {name: {"TYPE": kind, "labels": sorted(labels), "HELP": help_} for name, kind, labels, help_ in reference.metrics()}
            for name, seen in families.items():
                self.assertEqual(known.get(name), seen, name)
            self.assertGreater(len(families), 50)
        finally:
            stage.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    ARGUMENTS, others = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *others])
