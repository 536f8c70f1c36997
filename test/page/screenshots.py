#!/usr/bin/env python3
"""Makes the pictures of `nvsharectl top` and of the scheduler's page in the documents: four jobs that do not fit together on the stand-in GPU.

  test/page/screenshots.py [--build BUILD] [--out docs/pictures] [--seconds 75]

`./dev screenshots` builds what it needs. page.png is the page in a headless Chromium, light, 1280 pixels wide; top.svg is what
`nvsharectl top` shows in a terminal, with a colour for each tenant. --only top needs no Chromium.
"""
import argparse
import html
import os
import pathlib
import pty
import re
import select
import subprocess
import sys
import termios
import time

import chromium
from stage import Stage

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SIZE_MAX = 200_000  # bytes, of each picture
HIGHEST = 2000      # pixels
COLUMNS, ROWS = 96, 14  # of top
LETTER, LINE = 8.4, 18  # pixels
# Of the tenants a, b, c, ... in top's bars; the rest of the text has the first.
TEXT, TENANTS, QUIET = "#e6e6e6", ("#4fc3a1", "#e8a33d", "#7aa5f5", "#c58be0"), "#7d8590"


def drawn(text):
    """What a terminal shows, as SVG. Each run of letters has its width, so that columns stand below each other in every font."""
    lines = text.rstrip("\n").split("\n")
    width, height = COLUMNS * LETTER + 24, len(lines) * LINE + 24
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-family="monospace" font-size="14" xml:space="preserve">',
             "<!-- Made by ./dev screenshots -->", f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#14181d"/>']
    for row, line in enumerate(lines):
        in_bar = re.match(r"  (?:on GPU|in host|turns)\s+\[(.*)\]", line)
        for run in re.finditer(r"\S+(?: \S+)*", line):
            pieces = [(run.start(), run[0])]
            if in_bar:  # each tenant's part of a bar by itself
                pieces = [(piece.start(), piece[0]) for piece in re.finditer(r"([a-d])\1*|[^a-d\s]+(?: [^a-d\s]+)*|[a-d]", line) if run.start() <= piece.start() < run.end()]
            for at, piece in pieces:
                inside = in_bar and in_bar.start(1) <= at < in_bar.end(1)
                colour = TENANTS[ord(piece[0]) - ord("a")] if inside and piece[0] in "abcd" else QUIET if inside else TEXT
                if not in_bar and at == 0 and re.match(r"[a-d] ", line):
                    parts.append(one(0, row, piece[0], TENANTS[ord(piece[0]) - ord("a")]))
                    at, piece = at + 2, piece[2:]
                parts.append(one(at, row, piece, colour))
    return "\n".join([*parts, "</svg>", ""])


def one(column, row, words, colour):
    return (f'<text x="{12 + column * LETTER:.1f}" y="{12 + (row + 1) * LINE - 5}" textLength="{len(words) * LETTER:.1f}" '
            f'lengthAdjust="spacingAndGlyphs" fill="{colour}">{html.escape(words, quote=False)}</text>')


def screen_of_top(stage, seconds):
    """What `nvsharectl top` shows in a terminal after so many seconds: it writes each line that changed to its place."""
    here, there = pty.openpty()
    termios.tcsetwinsize(there, (ROWS, COLUMNS))
    top = subprocess.Popen([str(stage.build / "bin/nvsharectl"), "top", "--no-colour"], env={**stage.environment, "TERM": "xterm"}, stdin=there, stdout=there, stderr=there)
    os.close(there)
    said, deadline = b"", time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([here], [], [], left)[0]:
            said += os.read(here, 1 << 16)
    os.write(here, b"q")
    while True:
        try:
            if not os.read(here, 1 << 16):
                break
        except OSError:  # its end of the terminal is closed
            break
    if top.wait(60) != 0:
        sys.exit(f"nvsharectl top ended with {top.returncode}: {said[-2000:]!r}")
    os.close(here)
    rows = [""] * ROWS
    for row, line in re.findall(r"\x1b\[(\d+);1H(.*?)\x1b\[K", said.decode(errors="replace")):
        rows[int(row) - 1] = re.sub(r"\x1b\[[\d;]*m", "", line).rstrip()
    return "\n".join(rows).rstrip("\n") + "\n"


def take_top(stage, seconds, file):
    file.write_text(drawn(screen_of_top(stage, seconds)))
    print(f"{file}: {file.stat().st_size} bytes")


def take(browser, stage, seconds, file):
    tab = browser.open(stage.url, width=1280, height=900)
    if not tab.wait_for("document.getElementById('connection')?.textContent === 'Live'"):
        sys.exit(f"the page did not become live: {tab.evaluate('document.body.innerText')}")
    time.sleep(seconds)
    tab.resize(1280, min(tab.evaluate("Math.ceil(document.body.getBoundingClientRect().height)"), HIGHEST))
    time.sleep(1)
    picture = tab.screenshot()
    if len(picture) > SIZE_MAX:
        sys.exit(f"{file} would have {len(picture)} bytes; at most {SIZE_MAX} are wanted")
    file.write_bytes(picture)
    print(f"{file}: {len(picture)} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/pictures")
    parser.add_argument("--seconds", type=float, default=75, help="of history in the picture (75)")
    parser.add_argument("--only", choices=("top", "page"), help="one of the pictures")
    arguments = parser.parse_args()
    program = chromium.find()
    if not program and arguments.only != "top":
        sys.exit("there is no Chromium; tools/install-dependencies.sh test installs one")
    arguments.out.mkdir(parents=True, exist_ok=True)
    # Turns of a few seconds, so that a minute shows several.
    stage = Stage(arguments.build, gpu_mb=1024, NVSHARE_SWITCH_TIME_MODE="fixed", NVSHARE_SWITCH_TIME_FIXED="4")
    try:
        stage.run("train-large", "600M", "--priority", "5")
        stage.run("train-small", "300M", "--gpu-memory-limit", "400Mi")
        stage.run("notebook", "200M")
        stage.run("batch", "500M", "--gpu-core-limit", "25")
        stage.wait_for(lambda: len(stage.status()["clients"]) == 4, "four programs")
        stage.remember_programs()
        if arguments.only != "page":
            take_top(stage, arguments.seconds if arguments.only else 30, arguments.out / "top.svg")
        if arguments.only == "top":
            return
        browser = chromium.Chromium(program)
        try:
            take(browser, stage, arguments.seconds, arguments.out / "page.png")
        finally:
            browser.close()
    finally:
        stage.close()


if __name__ == "__main__":
    main()
