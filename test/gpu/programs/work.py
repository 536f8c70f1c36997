"""What the Python programs of this folder share: the conversation with run.py, and how work is counted. Standard library only.

A program sets itself up, does one unit of its work to warm up, says {"event": "ready"} and waits for a line on its standard input:
  go        units until the line "stop" comes
  go N      exactly N units
and then prints {"event": "result", "units", "checksum", "value", ...} and ends. The same seed, held bytes and units give the same checksum,
whatever happens to its memory in between. So a run that is shared decides how much work there is, and one alone repeats it.
Times are CLOCK_MONOTONIC nanoseconds.
"""
import argparse
import json
import os
import select
import sys
import time

MASK = (1 << 64) - 1


def say(**record):
    print(json.dumps(record), flush=True)


def skip(reason):
    """This machine lacks what the program needs: it says so and ends well."""
    say(event="skip", reason=reason)
    sys.exit(0)


def bytes_of(text):
    """'4G', '512M' or a number of bytes."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(float(text if unit == 1 else text[:-1]) * unit)


def parse(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--held", type=bytes_of, default=bytes_of("4G"), help="GPU memory to hold, about")
    parser.add_argument("--device", default="cuda", help="cpu: to try a program's own logic where there is no GPU")
    return parser.parse_args()


def pieces_of(total, smallest=1 << 20):
    """Sizes that sum up to about `total`: halves of halves, so that large and small blocks are there; each a multiple of 512."""
    sizes = []
    left = total // 512 * 512
    while left >= 2 * smallest:
        sizes.append(left // 2 // 512 * 512)
        left -= sizes[-1]
    return sizes + [left] if left else sizes


class Orders:
    """Standard input without waiting for it. Its end counts as "stop"."""

    def __init__(self):
        self._text = b""
        self._ended = False

    def _read(self):
        piece = os.read(0, 4096)
        self._ended = not piece
        self._text += piece

    def wait_line(self):
        while b"\n" not in self._text and not self._ended:
            self._read()
        line, _, self._text = self._text.partition(b"\n")
        return line.decode().split()

    def told_to_stop(self):
        while not self._ended and select.select([0], [], [], 0)[0]:
            self._read()
        return self._ended or b"stop" in self._text


def run(program):
    """`program`: unit(i) does the i-th piece of work, settle() waits for the GPU, checksum() is text, held() bytes. These may be left out:
    fill() takes what is missing to --held after the first unit, value() is a number that tells how far apart two runs are that are not
    equal, pids() its processes, close() its end."""
    orders = Orders()
    program.unit(0)
    if hasattr(program, "fill"):
        program.fill()
    program.settle()
    say(event="ready", t=time.monotonic_ns(), held=program.held(), pids=getattr(program, "pids", lambda: [os.getpid()])())
    words = orders.wait_line() or ["go", "10"]
    wanted = int(words[1]) if len(words) > 1 else None
    begin = last = time.monotonic_ns()
    done = 0
    while done < wanted if wanted is not None else not orders.told_to_stop():
        done += 1
        program.unit(done)
        if done % 4 == 0:
            program.settle()
        if time.monotonic_ns() - last > 1_000_000_000:
            last = time.monotonic_ns()
            say(event="progress", units=done, t=last)
    program.settle()
    end = time.monotonic_ns()
    result = {"units": done, "begin_ns": begin, "end_ns": end, "work_s": (end - begin) / 1e9, "checksum": program.checksum()}
    if hasattr(program, "value"):
        result["value"] = program.value()
    say(event="result", **result, held=program.held(), checksum_s=(time.monotonic_ns() - end) / 1e9)
    if hasattr(program, "close"):
        program.close()
    sys.stdout.flush()
