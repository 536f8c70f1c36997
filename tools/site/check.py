#!/usr/bin/env python3
"""Looks at the built site: every link leads to a page and an anchor that are there, and nothing is fetched from outside when it is viewed.

  tools/site/check.py build/site
"""
import html.parser
import pathlib
import posixpath
import re
import sys
import urllib.parse

FETCHED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data"), ("image", "href"), ("use", "href")}
# Links that say something about a page and fetch nothing.
TELLS = {"canonical", "prev", "next", "license", "author"}
OUTSIDE = re.compile(r"(?:https?:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?\s*((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)
POLICY = "default-src 'self' file: data: blob: 'unsafe-inline'"


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.fetched, self.policy = set(), [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        of = dict(attributes)
        if "id" in of:
            self.ids.add(of["id"])
        if tag == "a" and of.get("name"):
            self.ids.add(of["name"])
        if tag == "meta" and of.get("http-equiv") == "Content-Security-Policy" and of.get("content") == POLICY:
            self.policy = True
        if tag == "link" and of.get("rel") in TELLS:
            return
        for name, value in attributes:
            if value is None:
                continue
            if (tag, name) in FETCHED or name == "xlink:href":
                self.fetched.append(value)
                self.links.append(value)
            elif name == "href":
                self.links.append(value)
            elif name == "srcset":
                self.fetched += [part.split()[0] for part in value.split(",")]
            elif name == "style":
                self.fetched += IN_STYLE.findall(value)


def problems(folder):
    folder, found = pathlib.Path(folder), []
    pages = {str(path.relative_to(folder)): Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    if "index.html" not in pages:
        return [f"{folder}/index.html is missing"]
    for name, page in sorted(pages.items()):
        if not page.policy and name != "404.html":
            found.append(f"{name}: does not forbid what is outside (Content-Security-Policy)")
        found += [f"{name}: fetches {address} from outside" for address in page.fetched if OUTSIDE.match(address)]
        if name == "404.html":
            continue  # its links are for a site at the root of a server
        for link in page.links:
            if OUTSIDE.match(link) or re.match(r"[a-z]+:", link):
                continue
            place, _, anchor = link.partition("#")
            place = urllib.parse.unquote(place.partition("?")[0])
            there = posixpath.normpath(posixpath.join(posixpath.dirname(name), place)) if place else name
            if (folder / there).is_dir():
                there = posixpath.normpath(posixpath.join(there, "index.html"))
            if not (folder / there).is_file():
                found.append(f"{name}: the link {link} leads to {there}, which is not there")
            elif anchor and there in pages and urllib.parse.unquote(anchor) not in pages[there].ids and not anchor.startswith("__"):
                found.append(f"{name}: the link {link} leads to no anchor")
    for path in sorted([*folder.rglob("*.css"), *folder.rglob("*.svg")]):
        text = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(folder)}: fetches {address} from outside" for address in IN_STYLE.findall(text)]
        found += [f"{path.relative_to(folder)}: fetches {address} from outside" for address in re.findall(r"<(?:image|use|script)[^>]*href=\"(https?:[^\"]+)", text)]
    for path in sorted(folder.rglob("*.js")):
        if re.search(r"https?://(?:unpkg\.com|[^\"'\s]*jsdelivr|cdn[^\"'\s]*|fonts\.g[^\"'\s]*)", path.read_text(encoding="utf-8")):
            found.append(f"{path.relative_to(folder)}: has the address of a place from which scripts are fetched")
    return found


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = problems(sys.argv[1])
    print("\n".join(found) or f"{sys.argv[1]}: every link leads somewhere, nothing comes from outside")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
