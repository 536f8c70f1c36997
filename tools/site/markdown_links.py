"""Links and anchors of Markdown files, as GitHub and the site (hook.py) make them. For tools/lint.py: it needs nothing but Python."""
import pathlib
import posixpath
import re
import urllib.parse

OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:|//")  # https:, mailto:
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^()\s<>]+(?:\([^()\s]*\)[^()\s]*)?)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
HTML = re.compile(r"<(?:a|img)\s[^>]*?(?:href|src)=\"([^\"]+)\"")
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
FENCE = re.compile(r"^ *(```+|~~~+)")


def slug(title, used):
    """The anchor of a heading: GitHub's rule. `used` counts those of the page."""
    text = re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", title)
    text = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
    number = used.get(text, 0)
    used[text] = number + 1
    return f"{text}-{number}" if number else text


def prose(text):
    """The lines outside code: (number, line), code in backticks emptied."""
    fence, blank, in_list = None, True, False
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and line.strip() == mark[1]:
                fence = None
            continue
        if mark:
            fence = mark[1]
            continue
        if re.match(r" {0,3}([-*+]|\d+\.)\s", line):
            in_list = True
        elif line.strip() and not line.startswith(" "):
            in_list = False
        code = line.startswith("    ") and blank and not in_list
        blank = not line.strip() or code
        if not code:
            yield number, re.sub(r"(`+)(?:(?!\1).)*?\1", lambda code: "`" * len(code[0]), line)


def anchors(text):
    used, found = {}, set()
    fence = None
    for line in text.splitlines():
        mark = FENCE.match(line)
        if mark and (fence is None or (mark[1].startswith(fence) and line.strip() == mark[1])):
            fence = None if fence else mark[1]
        elif fence is None and (heading := HEADING.match(line)):
            found.add(slug(heading[2], used))
    return found | set(re.findall(r"<a\s+(?:id|name)=\"([^\"]+)\"", text))


def links(text):
    """[(line, target)]"""
    found = []
    for number, line in prose(text):
        found += [(number, target) for pattern in (LINK, REFERENCE, HTML) for target in pattern.findall(line)]
    return found


def place_of(path, target):
    """Where `target`, a link in the file `path`, leads: (path from the root of the repository, anchor); None: to the outside."""
    if OUTSIDE.match(target):
        return None
    name, _, anchor = target.partition("#")
    name = urllib.parse.unquote(name)
    return (posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) if name else path), anchor


def problems(root, paths):
    """Every link of the Markdown files `paths` leads to a tracked file, or a folder of some, and to a heading that is there."""
    root, found, known = pathlib.Path(root), [], {}
    places = set(paths)
    for path in paths:
        places |= {str(folder) for folder in pathlib.PurePosixPath(path).parents}
    for path in paths:
        if not path.endswith(".md"):
            continue
        for number, target in links((root / path).read_text(encoding="utf-8")):
            place = place_of(path, target)
            if place is None:
                continue
            file, anchor = place
            if file not in places:
                found.append(f"{path}:{number}: the link {target} leads to {file}, which is not in the repository")
            elif anchor and file.endswith(".md"):
                if file not in known:
                    known[file] = anchors((root / file).read_text(encoding="utf-8"))
                if anchor not in known[file]:
                    found.append(f"{path}:{number}: the link {target}: {file} has no heading #{anchor}")
    return found
