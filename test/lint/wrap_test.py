#!/usr/bin/env python3
"""tools/wrap.py finds lines of documents that are too long, lays them anew, and leaves alone what is no text."""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import wrap  # noqa: E402

LONG = "word " * 30
LEFT = f"""# A heading {LONG}

| a table | {LONG} |
|---|---|

```text
{LONG}
- {LONG}
```

<!-- run before: {LONG} -->

    code {LONG}
    more {LONG}

A short line
and another one.

https://example.org/{'a' * 130}
"""


class Wrap(unittest.TestCase):
    def test_what_is_no_text_stays(self):
        self.assertEqual(wrap.wrapped(LEFT), LEFT)
        self.assertEqual(wrap.too_long(LEFT), [])

    def test_long_lines_are_found_and_laid_anew(self):
        text = f"# A\n\nShort.\n\n- item {LONG}\n  goes on\n- other\n\n{LONG}\nend\n"
        self.assertEqual(wrap.too_long(text), [5, 9])
        anew = wrap.wrapped(text)
        self.assertLessEqual(max(map(len, anew.splitlines())), 120)
        self.assertEqual(anew.split(), text.split())
        self.assertTrue(all(line.startswith(("- item", "  ")) for line in anew.split("\n\n")[2].splitlines()[:-1]))
        self.assertEqual(wrap.wrapped(anew), anew)

    def test_no_line_begins_with_what_would_be_a_list(self):
        for mark in ("-", "+", "1.", "#", ">"):
            text = "word " * 23 + f"abc {mark} word and more\n"
            for line in wrap.wrapped(text).splitlines():
                self.assertFalse(line.startswith(mark), line)

    def test_the_documents_are_so(self):
        self.assertEqual(wrap.problems(), [])
        looked_at = {str(path.relative_to(ROOT)) for path in wrap.documents()}
        for one in ("README.md", "CHANGELOG.md", "bench/README.md", "docs/known-gaps.md", "docs/how-to/containers.md", "src/policy/README.md",
                    "docs/adr/0001-policy-is-a-pure-function.md", "test/gpu/conformance/README.md"):
            self.assertIn(one, looked_at)


if __name__ == "__main__":
    unittest.main()
