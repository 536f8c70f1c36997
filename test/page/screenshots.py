#!/usr/bin/env python3
"""Makes the pictures of the scheduler's page in the documents: four jobs that do not fit together on the stand-in GPU, in a headless Chromium.

  test/page/screenshots.py [--build BUILD] [--out docs/pictures] [--seconds 75]

`./dev screenshots` builds what it needs. The picture is page.png, light, 1280 pixels wide.
"""
import argparse
import pathlib
import sys
import time

import chromium
from stage import Stage

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SIZE_MAX = 200_000  # bytes, of each picture
HIGHEST = 2000      # pixels


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
    arguments = parser.parse_args()
    program = chromium.find()
    if not program:
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
        browser = chromium.Chromium(program)
        try:
            take(browser, stage, arguments.seconds, arguments.out / "page.png")
        finally:
            browser.close()
    finally:
        stage.close()


if __name__ == "__main__":
    main()
