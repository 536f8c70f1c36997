#!/usr/bin/env python3
"""Documents' lines are at most 120 characters long, but for tables, code and what cannot be broken.

  tools/wrap.py [FILE...]      of all documents that people write, where none is named; tools/lint.py says where there are such lines

Only paragraphs and list items with a longer line are laid anew. Where markdown-it is installed a page is written only if it is rendered as
before.
"""
import argparse
import pathlib
import re
import sys
import textwrap

try:
    from markdown_it import MarkdownIt
except ImportError:
    MarkdownIt = None

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH = 120
FENCE = re.compile(r"\s*(```|~~~)")
ITEM = re.compile(r"(\s*)([-*+]|\d+[.)])\s+")
# At the start of a line these would begin something else than text; they stay with the word before.
BEGINS = re.compile(r" (?=([-+*>|=]|#+|\d+[.)])(?: |$))")
STAYS = "\0"
# Generated, as is docs/reference (bench/mission_page.py, tools/reference.py).
LEFT_OUT = {ROOT / "docs/mission-scenarios.md"}
WHERE = ("*.md", "bench/*.md", "deploy/**/*.md", "docs/*.md", "docs/adr/*.md", "docs/how-to/*.md", "src/**/*.md", "test/**/*.md")


def documents():
    found = [path for pattern in WHERE for path in ROOT.glob(pattern)]
    return sorted(set(found) - LEFT_OUT)


def problems():
    return [f"{path.relative_to(ROOT)}:{number}: longer than {WIDTH} characters; tools/wrap.py lays it anew"
            for path in documents() for number in too_long(path.read_text(encoding="utf-8"))]


def laid_anew(lines):
    """A paragraph's or an item's lines, none longer than can be helped; lines that are short enough stay."""
    hard = any(line.endswith(("  ", "\\")) for line in lines[:-1])
    if hard or all(len(line) <= WIDTH for line in lines):
        return lines
    item = ITEM.match(lines[0])
    first = item[0] if item else re.match(r"\s*", lines[0])[0]
    others = " " * len(first) if item else first
    if len(lines) > 1:
        others = re.match(r"\s*", lines[1])[0]
    text = " ".join([lines[0][len(first):], *(line.strip() for line in lines[1:])])
    wrapped = textwrap.wrap(BEGINS.sub(STAYS, text), WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False,
                            break_on_hyphens=False)
    return [line.replace(STAYS, " ") for line in wrapped]


def blocks(text):
    """(lines, whether they are text that may be laid anew) of each part of a page, in their order."""
    block, closes, after_blank = [], None, True
    for line in text.splitlines():
        if closes:
            yield [line], False
            if closes(line):
                closes = None
            continue
        special = None
        if fence := FENCE.match(line):
            special = closes = lambda other, mark=fence[1]: other.strip() == mark
        elif line.lstrip().startswith("<!--") and "-->" not in line:
            special = closes = lambda other: "-->" in other
        is_code = not block and after_blank and line.startswith("    ")
        if special or not line.strip() or is_code or line.lstrip().startswith(("|", "#", "<", ">", "![")):
            if block:
                yield block, True
            block = []
            yield [line], False
        elif ITEM.match(line):
            if block:
                yield block, True
            block = [line]
        else:
            block.append(line)
        after_blank = not line.strip() or (is_code and after_blank)
    if block:
        yield block, True


def wrapped(text):
    return "\n".join(line for lines, is_text in blocks(text) for line in (laid_anew(lines) if is_text else lines)) + "\n"


def too_long(text):
    """The numbers of lines that could be shorter."""
    found, number = [], 1
    for lines, is_text in blocks(text):
        if is_text and laid_anew(lines) != lines:
            found += [number + i for i, line in enumerate(lines) if len(line) > WIDTH]
        number += len(lines)
    return found


def rendered(text):
    return re.sub(r"\s+", " ", MarkdownIt("commonmark").enable("table").render(text)) if MarkdownIt else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    bad = 0
    for path in arguments.files or documents():
        text = path.read_text(encoding="utf-8")
        if (anew := wrapped(text)) != text:
            if rendered(anew) != rendered(text):
                print(f"{path}: would not be rendered as before; left as it is", file=sys.stderr)
                bad = 1
                continue
            path.write_text(anew, encoding="utf-8")
    return bad


if __name__ == "__main__":
    sys.exit(main())
