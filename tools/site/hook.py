"""How mkdocs makes the site of these documents (./dev docs; mkdocs.yml is beside this file).

Markdown is rendered by markdown-it, which reads it as GitHub does: mkdocs' own wants other indents in lists. README.md is the first page. What
documents link to outside docs/ gets a page below source/: Markdown as it is, other files as text, a folder as a list. A link that leads nowhere
is an error (tools/lint.py looks for the same), and so is a document that the navigation does not name.
"""
import html
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile

from markdown_it import MarkdownIt
from mkdocs import exceptions
from mkdocs.structure.files import File
from mkdocs.structure.toc import get_toc

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
import markdown_links  # noqa: E402

TEXT_BYTES_MAX = 300_000  # a longer file is copied, not shown
state = {"pages": {}, "folder": None, "tracked": [], "texts": {}}


def tracked():
    listing = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted({path for path in listing.split("\0") if path and (ROOT / path).is_file()})


def page_of(path):
    """The file below the site's source for a file or folder of the repository."""
    if path == "README.md":
        return "index.md"
    if (ROOT / path).is_dir():
        return f"source/{path}/index.md"
    if path.startswith("docs/"):
        return path[len("docs/"):]
    return f"source/{path}" if path.endswith(".md") or is_picture(path) else f"source/{path}.md"


def is_picture(path):
    return path.endswith((".png", ".svg"))


def address_of(path):
    page = page_of(path)
    return re.sub(r"\.md$", ".html", re.sub(r"(^|/)README\.md$", r"\1index.html", page))


def destination(path):
    """A folder with a README is that; the file that a link leads to."""
    if (ROOT / path).is_dir() and f"{path}/README.md" in state["tracked"]:
        return f"{path}/README.md"
    return path


def text_page(path):
    raw = (ROOT / path).read_bytes()
    if len(raw) > TEXT_BYTES_MAX or b"\0" in raw:
        return None
    return f"# {path}\n\n<pre><code>{html.escape(raw.decode('utf-8', 'replace'), quote=False)}</code></pre>\n"


def folder_page(path):
    inside = [name for name in state["tracked"] if name.startswith(path + "/")]
    rows = sorted({name[len(path) + 1:].split("/")[0] for name in inside})
    return f"# {path}\n\n" + "\n".join(f"- [{row}]({row})" for row in rows) + "\n"


def on_files(files, config):
    state["tracked"] = tracked()
    found = markdown_links.problems(ROOT, state["tracked"])
    if found:
        raise exceptions.PluginError("\n".join(found))
    state["folder"] = tempfile.TemporaryDirectory(prefix="nvs-site-")
    made = pathlib.Path(state["folder"].name)
    queue = ["README.md"] + [path for path in state["tracked"] if path.startswith("docs/")]
    seen = set(queue)
    while queue:
        path = queue.pop()
        page = page_of(path)
        state["pages"][page] = path
        if path.endswith(".md"):
            text = (ROOT / path).read_text(encoding="utf-8")
        elif (ROOT / path).is_dir():
            text = folder_page(path)
        elif not page.startswith("source/") or is_picture(path):
            text = None
        else:
            text = text_page(path)
        stands_in_docs = not page.startswith("source/") and path != "README.md"
        if text is None and not stands_in_docs and not is_picture(path):
            raise exceptions.PluginError(f"a document links to {path}, which is too long to be shown, or no text")
        if text is not None:
            state["texts"][page] = text
        if not stands_in_docs:
            (made / page).parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                shutil.copy(ROOT / path, made / page)
            else:
                (made / page).write_text(text, encoding="utf-8")
            files.append(File(page, str(made), config["site_dir"], config["use_directory_urls"]))
        # Of what is shown for a link's sake alone, Markdown's links are followed; a folder's files are not.
        for _, target in markdown_links.links(text) if text is not None and path.endswith(".md") else []:
            place = markdown_links.place_of(path, target)
            if place and destination(place[0]) not in seen:
                seen.add(destination(place[0]))
                queue.append(destination(place[0]))
    return files


def on_nav(nav, config, files):
    named = {page.file.src_path for page in nav.pages}
    left_out = sorted(page for page in state["pages"] if page.endswith(".md") and not page.startswith("source/") and page not in named)
    if left_out:
        raise exceptions.PluginError(f"tools/site/mkdocs.yml does not name {', '.join(left_out)} in its navigation")
    return nav


def link_to(page, target):
    """The link of a page's document as one between pages of the site."""
    path = state["pages"][page]
    base = path + "/." if (ROOT / path).is_dir() else path
    place = markdown_links.place_of(base, target)
    if place is None:
        return target
    file, anchor = destination(place[0]), place[1]
    if page_of(file) not in state["pages"]:
        return None  # a row of a folder's list that no document links to
    there = posixpath.relpath(address_of(file), posixpath.dirname(address_of(path)) or ".")
    return there + (f"#{anchor}" if anchor else "")


def rendered(page, text):
    """(HTML, tokens for the table of contents)"""
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    tokens, used, contents, open_ = parser.parse(text), {}, [], []
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            inside = tokens[index + 1]
            anchor = markdown_links.slug(inside.content, used)
            token.attrSet("id", anchor)
            name = "".join(child.content for child in inside.children if child.type in ("text", "code_inline"))
            entry = {"level": int(token.tag[1]), "id": anchor, "name": name, "children": []}
            while open_ and open_[-1]["level"] >= entry["level"]:
                open_.pop()
            (open_[-1]["children"] if open_ else contents).append(entry)
            open_.append(entry)
        for child in token.children or []:
            name = {"link_open": "href", "image": "src"}.get(child.type)
            if not name:
                continue
            there = link_to(page, child.attrGet(name))
            if there is None:
                child.type, child.tag, child.attrs = "link_open", "span", {}
            else:
                child.attrSet(name, there)
        children = token.children or []
        for at, child in enumerate(children):
            if child.type == "link_open" and child.tag == "span":
                next(later for later in children[at:] if later.type == "link_close").tag = "span"
    return parser.renderer.render(tokens, parser.options, {}), contents


def on_page_markdown(markdown, page, config, files):
    return ""


def on_page_content(content, page, config, files):
    made, contents = rendered(page.file.src_path, state["texts"][page.file.src_path])
    page.toc = get_toc(contents)
    return made


def on_post_build(config):
    """The theme's script would fetch things from elsewhere where pages are opened as files, or have mermaid's drawings: ours need neither."""
    for script in pathlib.Path(config["site_dir"]).rglob("*.js"):
        text = script.read_text(encoding="utf-8")
        if "https://unpkg.com/" in text:
            script.write_text(text.replace("https://unpkg.com/", "about:blank#"), encoding="utf-8")
    for left in pathlib.Path(config["site_dir"]).rglob("*.map"):
        left.unlink()
    state["folder"].cleanup()
