#!/usr/bin/env python3
"""The documents as a site: every link leads somewhere, nothing comes from outside; and the checks notice where that is not so."""
import functools
import http.server
import importlib.util
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/site"))
sys.path.insert(0, str(ROOT / "test/page"))
import check  # noqa: E402
import chromium  # noqa: E402
import markdown_links  # noqa: E402


class Links(unittest.TestCase):
    def found(self, **texts):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in texts.items():
                pathlib.Path(folder, name + ".md").write_text(text)
            pathlib.Path(folder, "data").mkdir()
            pathlib.Path(folder, "data/one.json").write_text("{}")
            return markdown_links.problems(folder, [name + ".md" for name in texts] + ["data/one.json"])

    def test_links_that_lead_somewhere(self):
        self.assertEqual(self.found(a="# A `b`, c\n[x](b.md#two-words-1) [y](#a-b-c) [z](data) [w](data/one.json) [v](https://example.org/none)\n",
                                    b="## Two words\n## Two words\n"), [])

    def test_a_file_that_is_not_there(self):
        self.assertIn("a.md:2: the link none.md leads to none.md", self.found(a="x\n[x](none.md)\n")[0])

    def test_a_heading_that_is_not_there(self):
        self.assertIn("b.md has no heading #three", self.found(a="[x](b.md#three)\n", b="# Two\n")[0])

    def test_a_picture_that_is_not_there(self):
        self.assertEqual(len(self.found(a="![x](none.svg)\n<img src=\"none.png\">\n")), 2)

    def test_code_has_no_links(self):
        self.assertEqual(self.found(a="`[x](none.md)`\n\n    [x](none.md)\n\n```sh\n[x](none.md)\n# not a heading\n```\n"), [])


class Checks(unittest.TestCase):
    HEAD = f'<head><meta http-equiv="Content-Security-Policy" content="{check.POLICY}"></head>'

    def found(self, body, head=HEAD, **others):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "index.html").write_text(head + body)
            for name, text in others.items():
                pathlib.Path(folder, name.replace("_", ".")).write_text(text)
            return check.problems(folder)

    def test_a_good_page(self):
        self.assertEqual(self.found('<p id="x"><a href="#x">x</a><a href="https://example.org/">outside</a>'), [])

    def test_bad_pages(self):
        for body in ('<a href="none.html">x</a>', '<a href="#none">x</a>', '<script src="https://example.org/x.js"></script>', '<img src="//example.org/x">',
                     '<p style="background: url(https://example.org/x)">', '<link rel="stylesheet" href="https://example.org/x.css">'):
            self.assertNotEqual(self.found(body), [], body)

    def test_a_page_that_allows_the_outside(self):
        self.assertNotEqual(self.found("", head=""), [])

    def test_styles_and_scripts(self):
        self.assertNotEqual(self.found("", x_css="@import 'https://example.org/x.css';"), [])
        self.assertNotEqual(self.found("", x_js="load('https://unpkg.com/x')"), [])


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@unittest.skipUnless(shutil.which("mkdocs") and importlib.util.find_spec("markdown_it"), "no mkdocs or markdown-it here; tools/install-dependencies.sh docs installs it")
class Site(unittest.TestCase):
    def test_it_is_built_and_every_link_leads_somewhere(self):
        with tempfile.TemporaryDirectory() as folder:
            built = subprocess.run(["mkdocs", "build", "--quiet", "--strict", "-f", ROOT / "tools/site/mkdocs.yml", "-d", folder], capture_output=True, text=True)
            self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
            self.assertEqual(check.problems(folder), [])
            first = pathlib.Path(folder, "index.html").read_text()
            self.assertIn('href="user-guide.html#the-page"', first)  # README's, which names docs/user-guide.md
            self.assertIn('href="source/bench/results/index.html"', first)
            if chromium.find():
                self.look_at(folder)

    def look_at(self, folder):
        """In a browser: a page fetches nothing from outside, scripts included; what is searched for is found; a phone is wide enough."""
        handler = functools.partial(QuietHandler, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            here = f"http://127.0.0.1:{server.server_port}/"
            browser = chromium.Chromium(chromium.find())
            try:
                tab = browser.open(here + "index.html?q=page_address", width=390)
                found = "document.querySelector('.md-search-result__meta')?.innerText"
                self.assertTrue(tab.wait_for(f"/^[1-9]\\d* matching/.test({found})"), tab.evaluate(found))
                fetched = tab.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
                self.assertGreater(len(fetched), 3)
                self.assertEqual([address for address in fetched if not address.startswith((here, "data:", "blob:"))], [])
                # Wide tables scroll in frames of their own, which the page's script makes.
                width = "document.documentElement.scrollWidth"
                self.assertTrue(tab.wait_for(f"{width} <= 390"), tab.evaluate(width))
                # Words are broken that are longer than a phone is wide: paths in texts and in headings.
                tab = browser.open(here + "adr/0002-without-the-lock-memory-is-an-address.html", width=360)
                self.assertTrue(tab.wait_for("document.readyState === 'complete' && document.querySelector('article') !== null"))
                tab.evaluate("document.querySelector('article').insertAdjacentHTML('beforeend', '<p>' + 'x'.repeat(200) + '</p><h1>' + 'x'.repeat(60) + '</h1>')")
                for pixels in (360, 2560):
                    tab.resize(pixels, 900)
                    self.assertTrue(tab.wait_for(f"{width} <= {pixels}"), tab.evaluate(width))
            finally:
                browser.close()
                server.shutdown()


if __name__ == "__main__":
    unittest.main()
