#!/usr/bin/env python3
"""The scheduler's page in a headless Chromium, on the stand-in GPU: what it shows is what `nvsharectl status --json` says, it can be read
with a keyboard and a screen reader, light and dark, from 360 to 2560 pixels.

  page_test.py --build BUILD [unittest arguments]

Without a Chromium (tools/install-dependencies.sh test) it is skipped: exit status 77. axe-core comes from npm (axe.py); where that cannot
be reached only its check is skipped, and says so.
"""
import argparse
import json
import os
import pathlib
import sys
import time
import unittest

import axe
import chromium
import made_up
from stage import Stage

SKIPPED = 77
PATIENCE = 120
PROGRAM = argparse.Namespace(build=None, browser=None)
MARKUP = "<img src=x onerror=document.title='taken'>"
TOKEN = "a-token-of-the-tests+/="


def amount(n):
    """As nvsharectl and the page write bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1023.5:
            break
        n /= 1024
    return f"{float(f'{n:.{2 if n < 9.995 else 1 if n < 99.95 else 0}f}'):g} {unit}"


def said(status):
    """What the page's tables must hold, of such a report; without what changes by itself."""
    gpu = status["gpus"][0]
    names = {tenant["id"]: tenant["name"] for tenant in status["tenants"]}
    tenants = {}
    for tenant in status["tenants"]:
        clients = [client for client in status["clients"] if client["tenant"] == tenant["id"]]
        if not clients:
            continue
        states = [client["state"] for client in clients]
        memory = next((each for each in tenant["memory"] if each["gpu"] == gpu["uuid"]), None)
        core, reserved = tenant["gpu_core_limit"], tenant["gpu_core_reserved"]
        tenants[tenant["name"]] = [
            ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)),
            amount(sum(client["resident"] for client in clients)), amount(sum(client["swapped"] for client in clients)),
            f"{amount(memory['charged'])} of {amount(memory['limit'])}" if memory and memory["limit"] else "none",
            f"{core} %" if core < 100 else "none", f"{reserved} %" if reserved else "none", str(tenant["priority"])]
    programs = {
        str(client["pid"]): [client["program"], names[client["tenant"]], client["state"], amount(client["allocated"]), amount(client["resident"]),
                             amount(client["swapped"]), str(client["turns"]), client["waiting_for"] or "–"]
        for client in status["clients"]}
    return {"gpu": f"GPU 0: {gpu['name']}", "uuid": gpu["uuid"], "tenants": tenants, "programs": programs}


# The same, as a reader sees it.
SEEN = """(() => {
  const rows = (table) => [...document.querySelectorAll(`.gpu ${table} tbody tr`)].map((row) =>
    [...row.cells].map((cell) => (cell.querySelector('.swatch') ? cell.lastChild : cell).textContent));
  const tenants = {}, programs = {};
  for (const c of rows('.tenants')) tenants[c[0]] = [c[1].split(';')[0], c[2], c[3], c[4], c[7], c[8], c[9]];
  for (const c of rows('.programs')) programs[c[1]] = [c[0], c[2], c[3], c[5], c[6], c[7], c[8], c[9]];
  const text = (selector) => document.querySelector(selector).textContent;
  return {gpu: text('.gpu h2'), uuid: text('.gpu .uuid'), tenants, programs};
})()"""


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Two that fit together, and one that does not, whose turn does not come.
        cls.stage = Stage(PROGRAM.build, NVSHARE_SWITCH_TIME_MODE="fixed", NVSHARE_SWITCH_TIME_FIXED="24h")
        cls.addClassCleanup(cls.stage.close)
        stage = cls.stage
        resident = lambda: [client["resident"] for client in stage.status()["clients"]]
        stage.run("train", "160M", "--gpu-memory-limit", "200Mi", "--priority", "3")
        stage.wait_for(lambda: sum(resident()) >= 160 << 20, "the first program's memory")
        stage.run(MARKUP, "64M")
        stage.wait_for(lambda: sum(resident()) >= 224 << 20, "the second program's memory")
        stage.run("late", "300M")
        stage.wait_for(lambda: any(client["state"] == "waiting" for client in stage.status()["clients"]), "a program that waits")
        stage.remember_programs()
        cls.browser = chromium.Chromium(PROGRAM.browser)
        cls.addClassCleanup(cls.browser.close)
        cls.light = None

    def open(self, url=None, **more):
        tab = self.browser.open(url or self.stage.url, **more)
        self.addCleanup(tab.close)
        return tab

    def open_live(self, dark=False):
        """One tab for all tests that look at it in light: what they change there they change back."""
        tab = self.open(dark=True) if dark else self.light or self.browser.open(self.stage.url)
        if not dark:
            Page.light = tab
        self.assertTrue(tab.wait_for("document.getElementById('connection')?.textContent === 'Live'"), tab.evaluate("document.body.innerText"))
        return tab

    def test_it_shows_what_status_says(self):
        tab = self.open_live()
        deadline = time.monotonic() + PATIENCE
        while True:
            # A look lies between two reports, which may differ.
            before = said(self.stage.status())
            reports = int(tab.evaluate("document.body.dataset.reports"))
            tab.wait_for(f"Number(document.body.dataset.reports) > {reports + 1}")
            seen, after = tab.evaluate(SEEN), said(self.stage.status())
            if seen == before == after or time.monotonic() > deadline:
                break
        self.maxDiff = None
        self.assertEqual(seen, after)
        self.assertEqual(len(seen["programs"]), 3)
        self.assertIn("waiting", [program[2] for program in seen["programs"].values()])
        # And the page goes on: what changes in the scheduler changes there.
        self.stage.control("set", "train", "priority=7")
        try:
            self.assertTrue(tab.wait_for(f"({SEEN}).tenants.train[6] === '7'"))
        finally:
            self.stage.control("set", "train", "priority=3")

    def test_its_drawings_hold_what_the_table_says(self):
        tab = self.open_live()
        self.assertTrue(tab.wait_for("document.querySelectorAll('.memory polygon').length >= 3"), "others, and the two that are resident")
        label = tab.evaluate("document.querySelector('.memory svg').getAttribute('aria-label')")
        for name, row in tab.evaluate(SEEN)["tenants"].items():
            self.assertIn(f"{name} {row[1]}", label)
        self.assertTrue(tab.wait_for("[...document.querySelectorAll('.turns path')].some((path) => /^t\\d$/.test(path.getAttribute('class')))"),
                        "a turn is drawn")

    def test_what_is_drawn_alike_stays(self):
        tab = self.open_live()
        kept = "[...document.querySelectorAll('.memory svg .safe, .turns svg text')]"
        self.assertTrue(tab.evaluate(f"(window.kept = {kept}).length > 1"))
        reports = int(tab.evaluate("document.body.dataset.reports"))
        self.assertTrue(tab.wait_for(f"Number(document.body.dataset.reports) > {reports + 1}"))
        self.assertEqual(tab.evaluate("window.kept.filter((element) => !element.isConnected).length"), 0)

    def test_names_stay_text(self):
        tab = self.open_live()
        self.assertTrue(tab.wait_for(f"({SEEN}).tenants[{json.dumps(MARKUP)}] !== undefined"), "its name is there as it is")
        self.assertEqual(tab.evaluate("document.querySelectorAll('img').length"), 0)
        self.assertEqual(tab.evaluate("document.title"), "nvshare")

    def test_nothing_comes_from_outside(self):
        tab = self.open_live()
        asked = tab.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
        self.assertIn(self.stage.url + "status.jsonl", asked)
        self.assertEqual([url for url in asked if not url.startswith(self.stage.url)], [])
        refusal = tab.evaluate("fetch('http://127.0.0.1:1/').then(() => 'fetched', (problem) => String(problem))")
        self.assertIn("Failed to fetch", refusal)
        blocked = [event for event in self.browser.events if "Content Security Policy" in str(event)]
        self.assertTrue(blocked, "its policy forbids it to look elsewhere")
        self.assertTrue(all("127.0.0.1:1/" in str(event) for event in blocked), blocked)

    def test_every_width_from_360_to_2560_fits(self):
        tab = self.open_live()
        for width in (360, 640, 900, 1280, 1920, 2560):
            tab.resize(width, 900)
            reports = int(tab.evaluate("document.body.dataset.reports"))
            tab.wait_for(f"Number(document.body.dataset.reports) > {reports + 1}")  # drawings are made anew
            self.assertLessEqual(tab.evaluate("document.scrollingElement.scrollWidth"), width)
            wide = tab.evaluate("[...document.querySelectorAll('main *')].filter((e) => !e.closest('.scroll') && !e.closest('svg') &&"
                                " e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))")
            self.assertEqual(wide, [], f"at {width} pixels")
        tab.resize(1280, 900)

    def test_it_can_be_used_with_a_keyboard(self):
        tab = self.open_live()
        focused = []
        tab.evaluate("document.activeElement.blur()")
        for _ in range(6):
            tab.press("Tab")
            focused.append(tab.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"))
        title = tab.evaluate("document.querySelector('.gpu h2').textContent")
        for wanted in ("To the GPUs", "Hold still", f"Tenants of {title}"):
            self.assertIn(wanted, focused)
        self.assertTrue(any(text.startswith("Programs (") for text in focused), focused)
        tab.evaluate("document.getElementById('hold').focus()")
        tab.press("Enter", text="\r")
        self.assertEqual(tab.evaluate("document.getElementById('hold').getAttribute('aria-pressed')"), "true")
        self.assertEqual(tab.evaluate("document.getElementById('connection').textContent"), "Held still")
        tab.press("Enter", text="\r")
        self.assertTrue(tab.wait_for("document.getElementById('connection').textContent === 'Live'"))

    def test_a_screen_reader_finds_names_for_everything(self):
        tab = self.open_live()
        tab.evaluate("document.querySelector('details').open = true")
        found = {}
        for node in tab.call("Accessibility.getFullAXTree")["nodes"]:
            if not node.get("ignored"):
                found.setdefault(node.get("role", {}).get("value"), []).append(node.get("name", {}).get("value", ""))
        for role, least in (("image", 2), ("table", 2), ("button", 1), ("heading", 2), ("region", 3), ("columnheader", 20), ("rowheader", 6)):
            self.assertGreaterEqual(len(found.get(role, [])), least, f"{role}: {found.get(role)}")
            self.assertNotIn("", found[role], role)
        self.assertEqual(len(found.get("status", [])), 1)

    def test_colours_can_be_told_apart_in_light_and_dark(self):
        grounds = []
        for dark in (False, True):
            tab = self.open_live(dark=dark)
            colours = tab.evaluate("(() => { const style = getComputedStyle(document.documentElement);"
                                   " return Object.fromEntries(['ground', 'panel', 'text', 'quiet', 'bad', ...[0,1,2,3,4,5,6,7].map((i) => `t${i}`)]"
                                   ".map((name) => [name, style.getPropertyValue('--' + name).trim()])); })()")
            grounds.append(colours["ground"])
            for ground in ("ground", "panel"):
                for name in ("text", "quiet", "bad"):
                    self.assertGreaterEqual(contrast(colours[name], colours[ground]), 4.5, f"{name} on {ground}, dark: {dark}")
            for i in range(8):
                self.assertGreaterEqual(contrast(colours[f"t{i}"], colours["ground"]), 4.5, f"t{i}, dark: {dark}: its letter is written on it")
        self.assertNotEqual(*grounds)

    def test_a_token_is_asked_for_and_taken(self):
        stage = Stage(PROGRAM.build, token=TOKEN)
        self.addCleanup(stage.close)
        tab = self.open(stage.url)
        self.assertTrue(tab.wait_for("document.getElementById('ask')?.hidden === false"))
        self.assertEqual(tab.evaluate("document.getElementById('about').textContent"), "")
        for text, then in (("x" * 20, "The token is wrong"), (TOKEN, "Live")):
            tab.evaluate("document.getElementById('token').focus()")
            tab.call("Input.insertText", text=text)
            tab.press("Enter", text="\r")
            self.assertTrue(tab.wait_for(f"document.getElementById('connection').textContent === '{then}'"), then)
        # Also from a link, which keeps it out of the address.
        other = self.open(stage.url + "#token=" + TOKEN)
        self.assertTrue(other.wait_for("document.getElementById('connection')?.textContent === 'Live'"))
        self.assertEqual(other.evaluate("location.href"), stage.url)

    def test_it_says_that_there_is_no_gpu_yet(self):
        stage = Stage(PROGRAM.build, NVSHARE_NVML="off")
        self.addCleanup(stage.close)
        tab = self.open(stage.url)
        shown = "document.getElementById('none')?.checkVisibility()"
        self.assertTrue(tab.wait_for(shown), "no empty page")
        self.assertIn("No GPU is known yet", tab.evaluate("document.getElementById('none').textContent"))
        stage.run("first", "16M")
        self.assertTrue(tab.wait_for(f"document.querySelectorAll('.gpu').length === 1 && !{shown}"))
        stage.remember_programs()

    def test_a_long_name_leaves_the_figures_where_they_are(self):
        stage = Stage(PROGRAM.build)
        self.addCleanup(stage.close)
        tab, facts = self.open(stage.url), "document.querySelector('.gpu .facts')?.textContent"
        self.assertTrue(tab.wait_for(facts))
        self.assertNotIn("of 0 B", tab.evaluate(facts), "no program has used it, so no bound is known")
        stage.run("y" * 300, "16M")
        self.assertTrue(tab.wait_for("document.querySelector('.gpu .tenants')?.textContent.includes('yyy') && document.querySelector('.tenants.set') !== null"))
        stage.remember_programs()
        for width in (360, 1280):
            tab.resize(width, 900)
            reports = int(tab.evaluate("document.body.dataset.reports"))
            tab.wait_for(f"Number(document.body.dataset.reports) > {reports + 1}")
            for table in ("tenants", "programs"):
                self.assertLess(tab.evaluate(f"document.querySelector('.{table}').offsetWidth"), 1500, f"{table} at {width} pixels")
        self.assertLess(tab.evaluate("document.querySelector('.tenants tbody tr').offsetHeight"), 400)

    def test_it_says_when_the_scheduler_is_gone_and_follows_the_next(self):
        stage = Stage(PROGRAM.build)
        self.addCleanup(stage.close)
        stage.environment["NVSHARE_PAGE_ADDRESS"] = stage.url.split("/")[2]
        stage.run("kept", "16M")
        tab = self.open(stage.url)
        self.assertTrue(tab.wait_for("document.querySelector('.gpu .tenants')?.textContent.includes('kept')"))
        stage.remember_programs()
        about = tab.evaluate("document.getElementById('about').textContent")
        stage.scheduler.kill()
        stage.scheduler.wait()
        self.assertTrue(tab.wait_for("document.getElementById('connection').textContent.startsWith('No answer')"))
        stage.children[0] = stage.scheduler = stage.start(stage.build / "bin/nvshare-scheduler")
        self.assertTrue(tab.wait_for("document.getElementById('connection').textContent === 'Live'"))
        self.assertTrue(tab.wait_for("document.querySelector('.gpu .tenants').textContent.includes('kept')"))
        self.assertNotEqual(tab.evaluate("document.getElementById('about').textContent"), about)
        stage.control("set", "kept", "memory=300Mi", "core=40")
        self.assertTrue(tab.wait_for("/of 300 MiB.*40 %/.test(document.querySelector('.gpu .tenants').textContent)"), "a limit that is set meanwhile")

    def test_axe_finds_nothing_serious(self):
        try:
            script = axe.script()
        except axe.NotHad as why:
            print(f"axe-core {axe.PACKAGE.release} was not run: {why}", file=sys.stderr)
            self.skipTest(str(why))
        for dark in (False, True):
            for width in (1280, 360):
                tab = self.open_live(dark=dark)
                tab.resize(width, 900)
                tab.evaluate("document.querySelector('details').open = true")
                found = self.checked_by_axe(tab, script)
                print(f"axe-core {axe.PACKAGE.release}, {'dark' if dark else 'light'}, {width} pixels: {found['passes']} rules passed, violated: "
                      f"{found['violations']}", file=sys.stderr)
                self.assertGreater(found["passes"], 20)
                self.assertEqual(serious(found), [])
                tab.resize(1280, 900)
        # It sees: what is wrong on a page is found.
        tab = self.open_live(dark=True)
        tab.evaluate("document.querySelector('h1').style.color = getComputedStyle(document.body).backgroundColor;"
                     " document.querySelector('.memory svg').removeAttribute('aria-label');"
                     " document.querySelector('#hold').textContent = ''; true")
        self.assertTrue({"button-name", "color-contrast"} & {each["id"] for each in serious(self.checked_by_axe(tab, script))})

    def checked_by_axe(self, tab, script):
        tab.evaluate(script + "; true")
        return tab.evaluate("axe.run().then((result) => ({passes: result.passes.length, violations: result.violations.map((each) =>"
                            " ({id: each.id, impact: each.impact, nodes: each.nodes.map((node) => node.html.slice(0, 120))}))}))")

    def test_another_axe_than_the_pinned_one_is_refused(self):
        with self.assertRaisesRegex(ValueError, "another SHA-512"):
            axe.script(b"not what npm had")
        path = os.environ["PATH"]
        try:
            os.environ["PATH"] = "/nonexistent"
            with self.assertRaisesRegex(axe.NotHad, "no npm"):
                axe.fetch()
        finally:
            os.environ["PATH"] = path


# Counts how often something in each GPU's panel was changed.
COUNT = """(() => {
  window.counts = {};
  const count = (list) => {
    for (const {target} of list) {
      const panel = (target.nodeType === Node.TEXT_NODE ? target.parentNode : target).closest?.('.gpu');
      if (panel) window.counts[panel.dataset.gpu] = (window.counts[panel.dataset.gpu] || 0) + 1;
    }
  };
  new MutationObserver(count).observe(document.getElementById('gpus'), {subtree: true, childList: true, characterData: true});
})()"""


class ManyGpus(unittest.TestCase):
    """Of many GPUs those on the screen are drawn, of the others one with each report: what the page takes does not grow with them."""

    @classmethod
    def setUpClass(cls):
        cls.scheduler = made_up.Scheduler()
        cls.addClassCleanup(cls.scheduler.close)
        cls.browser = chromium.Chromium(PROGRAM.browser)
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.tab = self.browser.open(self.scheduler.url)
        self.addCleanup(self.tab.close)
        self.assertTrue(self.tab.wait_for("document.querySelectorAll('.gpu').length === 8"))
        self.reports(2)

    def reports(self, count):
        seen = int(self.tab.evaluate("document.body.dataset.reports"))
        self.assertTrue(self.tab.wait_for(f"Number(document.body.dataset.reports) >= {seen + count}"))

    def text(self, gpu):
        return self.tab.evaluate(f"document.querySelector('[data-gpu={gpu}] .tenants tbody tr').textContent")

    def test_all_are_there_and_follow(self):
        first, last = self.scheduler.gpus[0], self.scheduler.gpus[-1]
        for gpu in self.scheduler.gpus:
            self.assertIn("1 idle", self.text(gpu), "drawn once, for who does not look at the screen")
            self.assertEqual(self.tab.evaluate(f"document.querySelectorAll('[data-gpu={gpu}] .tenants tbody tr').length"), 25)
        self.scheduler.change(first)
        self.assertTrue(self.tab.wait_for(f"document.querySelector('[data-gpu={first}] .tenants').textContent.includes('1 running')", 5))
        self.scheduler.change(last)
        self.reports(9)
        self.assertIn("1 running", self.text(last), "within a report for each that is not on the screen")
        self.scheduler.change(last)
        self.tab.evaluate(f"document.querySelector('[data-gpu={last}]').scrollIntoView()")
        self.assertTrue(self.tab.wait_for(f"!document.querySelector('[data-gpu={last}] .tenants').textContent.includes('1 running')", 5))

    def test_what_is_not_on_the_screen_costs_next_to_nothing(self):
        self.tab.evaluate(COUNT)
        last, before = self.scheduler.gpus[-1], int(self.tab.evaluate("document.body.dataset.reports"))
        for _ in range(40):
            self.scheduler.change(last)
            time.sleep(0.1)
        self.scheduler.change(self.scheduler.gpus[0])
        self.reports(1)
        counts, reports = self.tab.evaluate("window.counts"), int(self.tab.evaluate("document.body.dataset.reports")) - before
        drawn = 15  # a panel of which figures and one state change
        self.assertLess(counts.get(last, 0), drawn * (reports / (len(self.scheduler.gpus) - 2) + 2), f"{counts}, {reports} reports")
        self.assertGreater(counts[self.scheduler.gpus[0]], 0, "this one is on the screen")

    def test_changes_that_are_not_on_the_screen_wake_nobody(self):
        questions, last, began = self.scheduler.questions, self.scheduler.gpus[-1], time.monotonic()
        while last in questions[-1]["gpus"]:
            self.assertLess(time.monotonic(), began + PATIENCE, "it follows those on the screen alone")
            time.sleep(0.05)
        index, before, began = len(questions) - 1, questions[-1]["told"], time.monotonic()
        for _ in range(20):
            self.scheduler.change(last)
            time.sleep(0.1)
        told = sum(question["told"] for question in questions[index:])  # not to who was told of all GPUs, and is gone
        self.assertLessEqual(told - before, (time.monotonic() - began) / made_up.WAIT_S + 2)

    def test_what_comes_onto_the_screen_is_asked_for(self):
        for _ in range(3):  # a whole report may come first
            scheduler = made_up.Scheduler(wait_s=60)
            self.addCleanup(scheduler.close)
            tab, last = self.browser.open(scheduler.url), scheduler.gpus[-1]
            self.addCleanup(tab.close)
            self.assertTrue(tab.wait_for(f"document.querySelector('[data-gpu={last}]') !== null"))
            time.sleep(0.5)  # it waits for changes by then
            scheduler.change(last)
            reports = tab.evaluate("document.body.dataset.reports")
            tab.evaluate(f"document.querySelector('[data-gpu={last}]').scrollIntoView()")
            self.assertTrue(tab.wait_for(f"document.querySelector('[data-gpu={last}] .tenants').textContent.includes('1 running')"))
            if tab.evaluate("document.body.dataset.reports") == reports:
                return
        self.fail("it was shown by the next whole report alone")

    def test_where_nobody_may_wait_it_asks_seldom(self):
        scheduler = made_up.Scheduler(wait_s=0)  # as the 17th page of one address is answered
        self.addCleanup(scheduler.close)
        tab = self.browser.open(scheduler.url)
        self.addCleanup(tab.close)
        self.assertTrue(tab.wait_for("Number(document.body?.dataset.reports) >= 2"))
        before, began = scheduler.told, time.monotonic()
        time.sleep(4)
        self.assertLessEqual(scheduler.told - before, time.monotonic() - began + 2)

    def test_reports_without_news_are_drawn_with_the_next_news(self):
        scheduler = made_up.Scheduler(wait_s=0.3)
        self.addCleanup(scheduler.close)
        tab, gpu = self.browser.open(scheduler.url), scheduler.gpus[0]
        self.addCleanup(tab.close)
        self.assertTrue(tab.wait_for("Number(document.body?.dataset.reports) >= 3"), "at last they are drawn without")
        drawn, told = int(tab.evaluate("document.body.dataset.reports")), scheduler.told
        while scheduler.told < told + 12:
            time.sleep(0.05)
        self.assertLess(int(tab.evaluate("document.body.dataset.reports")) - drawn, 8, "of twelve")
        running = scheduler.change(gpu) % 2 == 1
        self.assertTrue(tab.wait_for(f"document.querySelector('[data-gpu={gpu}] .tenants').textContent.includes('1 running') === {json.dumps(running)}", 2))

    def test_a_look_that_was_held_up_is_not_what_looks_cost(self):
        for costs, cost in (([7], 7), ([7, 200], 7), ([200, 6, 7, 8, 9], 7), ([6, 7, 8, 9, 200], 7), ([200, 300, 7, 400, 6], 7), ([9] * 5, 9)):
            self.assertEqual(self.tab.evaluate(f"figures.typical({costs})"), cost, costs)

    def test_the_past_begins_before_the_page_was_opened(self):
        gpu, second, gib = "GPU-0000", int(1e9), 1 << 30
        def seen(now, client, state, resident):
            return {"now": now * second, "seen": {"client": client, "tenant": client, "gpu": 0, "state": state, "memory": {"resident": resident}}}
        lines = [
            {"release": "1.2.3"}, {"names": {"client": 1, "tenant": 1, "gpu": f"made up, {gpu}"}}, {"names": {"client": 2, "tenant": 2, "gpu": f"made up, {gpu}"}},
            {"names": {"client": 3, "tenant": 3, "gpu": f"made up, {gpu}"}},
            # For a minute: one runs and leaves room for the other half way, of which one has the memory alone; a third has left.
            seen(100, 1, "running", 30 * gib), seen(100, 2, "waiting", 0), seen(100, 3, "running", gib), {"event": "ClientLeft", "now": 104 * second, "client": 3},
            seen(130, 1, "waiting", 0), seen(130, 2, "loading", 0), seen(136, 2, "running", 40 * gib), {"event": "Tick", "now": 160 * second}]
        scheduler = made_up.Scheduler(clients=2, gpus=1, past="".join(json.dumps(line) + "\n" for line in lines))
        self.addCleanup(scheduler.close)
        tab = self.browser.open(scheduler.url)
        self.addCleanup(tab.close)
        self.assertTrue(tab.wait_for(f"document.querySelector('[data-gpu={gpu}]') !== null"))
        cells = f"remembered.cellsOf({json.dumps(scheduler.past)}, 0, 3000).get('{gpu}')"
        self.assertEqual(tab.evaluate(f"{cells}.map((cell) => cell.at).join()"), ",".join(map(str, range(-20, 0))))
        entry = f"((at, tenant) => {{ const cell = {cells}.find((each) => each.at === at); return JSON.stringify(cell.tenants.get(tenant) || null); }})"
        parts = {key: json.loads(tab.evaluate(f"{entry}({key[0]}, {key[1]})")) for key in ((-20, 1), (-20, 2), (-20, 3), (-19, 3), (-10, 2), (-1, 1), (-1, 2))}
        nothing = {"resident": 0, "ran": 0, "moved": 0, "waited": 0, "took": 3000}
        self.assertEqual(parts[-20, 1], {**nothing, "resident": 30 * gib, "ran": 3000})
        self.assertEqual(parts[-20, 2], {**nothing, "waited": 3000})
        self.assertEqual(parts[-19, 3], {**nothing, "ran": 1000}, "it left after a second of that")
        self.assertEqual(parts[-10, 2], {**nothing, "moved": 3000})
        self.assertEqual(parts[-1, 1], {**nothing, "waited": 3000})
        self.assertEqual(parts[-1, 2], {**nothing, "resident": 40 * gib, "ran": 3000})
        # And in the page: both have turns, drawn for a minute of the two that the picture has room for, before anything has happened since.
        turns = f"document.querySelector('[data-gpu={gpu}] .turns svg')"
        self.assertTrue(tab.wait_for(f"{turns}?.querySelectorAll('path.t0, path.t1').length >= 3", 5), "two that ran, and one whose memory moved")
        begins = tab.evaluate(f"Math.min(...[...{turns}.querySelectorAll('path.t0')].map((path) => path.getBBox().x)) / {turns}.viewBox.baseVal.width")
        self.assertLess(begins, 0.6, "of the picture")

    def test_columns_keep_their_widths_until_a_text_needs_more(self):
        scheduler = made_up.Scheduler(wait_s=1)
        self.addCleanup(scheduler.close)
        tab, gpu = self.browser.open(scheduler.url), scheduler.gpus[0]
        self.addCleanup(tab.close)
        table = f"document.querySelector('[data-gpu={gpu}] .tenants')"
        self.assertTrue(tab.wait_for(f"{table}?.classList.contains('set')"))
        widths = f"[...{table}.rows[0].cells].map((cell) => cell.getBoundingClientRect().width)"
        before = tab.evaluate(widths)
        scheduler.change(gpu)
        self.assertTrue(tab.wait_for(f"{table}.textContent.includes('1 running')"))
        self.assertTrue(tab.evaluate(f"{table}.classList.contains('set')"))
        self.assertEqual(tab.evaluate(widths), before)
        with scheduler.changed:
            scheduler.changes += 1
            scheduler.clients[0].update(at=scheduler.changes, state="in a state that takes a whole sentence, and then another one, to be told of")
            scheduler.changed.notify_all()
        self.assertTrue(tab.wait_for(f"{table}.textContent.includes('a whole sentence')"))
        self.assertTrue(tab.wait_for(f"{table}.classList.contains('set')"), "and so wide they stay")
        self.assertEqual(tab.evaluate(f"[...{table}.querySelectorAll('td')].filter((cell) => cell.scrollWidth > cell.clientWidth).length"), 0)
        self.assertGreater(tab.evaluate(widths)[1], before[1])

    def test_programs_are_listed_once_somebody_looks(self):
        panel = f"document.querySelector('[data-gpu={self.scheduler.gpus[0]}] details')"
        self.assertFalse(self.tab.evaluate(f"{panel}.open"), "25 of them")
        self.tab.evaluate(f"{panel}.open = true")
        self.assertTrue(self.tab.wait_for(f"{panel}.querySelectorAll('tbody tr').length === 25", 5))


def serious(found):
    return [each for each in found["violations"] if each["impact"] in ("serious", "critical")]


def contrast(one, other):
    """By WCAG 2: from 1 to 21, of two colours as #rrggbb."""
    def luminance(colour):
        parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM.build, PROGRAM.browser = arguments.build, chromium.find()
    if not PROGRAM.browser:
        print("skipped: there is no Chromium; tools/install-dependencies.sh test installs one", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
