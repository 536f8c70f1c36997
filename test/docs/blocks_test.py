#!/usr/bin/env python3
"""The shell blocks of README.md and of the documents, run on the stand-in GPU, page by page and in their order.

  blocks_test.py --build DIR [unittest arguments]
  blocks_test.py --list      those that do not run, with their reasons

Each block of code says what it is: ```sh, ```text, ```json, ```toml, ```yaml, ```ini. What is ```sh runs, unless the line before it is
<!-- not run: REASON -->. What a block needs and readers have anyway stands in <!-- run before: COMMANDS -->, before it (`start NAME`
starts a tenant, `end NAME` ends it, `gone NAME` waits for its end; $TREE is the source tree). Every FILE.py that a block runs is a program
that works on 64 MiB of the GPU for the seconds of its first argument, or for a moment. Blocks of JSON, TOML and YAML must be such.

Of a block that does not run, each command is read: what it names of this tree is there, `./dev` knows its command, nvsharectl, where no
scheduler is, takes its words, the chart its values, and something knows the names that `kubectl` is given.

Without markdown-it (tools/install-dependencies.sh docs) it is skipped: exit status 77.
"""
import argparse
import functools
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import unittest

try:
    import yaml
    from markdown_it import MarkdownIt
except ImportError:
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/page"))
from stage import Stage  # noqa: E402

ARGUMENTS = argparse.Namespace()
PATIENCE = 120
KINDS = {"sh", "text", "json", "toml", "yaml", "ini"}
# No pipe: grep ends at the first match, and nvsharectl would fail of that now and then.
WRONG_USE = 125  # of nvsharectl
# Of the tree's folders these two are made.
IN_TREE = re.compile(r"(?:\./)?((?:bench|cmake|deploy|docs|src|test|tools)/[^=]+|dev)$")
HERE = "/usr/share/nvshare/", "deploy/"  # where packages put what lies in the tree
NAME_THERE = re.compile(r"nvshare\.com/[a-z-]*[a-z]")
PRELUDE = """set -euo pipefail
listed() { grep -qw "$1" <<< "$(nvsharectl status)"; }
start() { nvsharectl run --quiet --name "$1" -- python3 train.py 600 & until listed "$1"; do sleep 0.05; done; }
gone() { while listed "$1"; do sleep 0.05; done; }
end() { nvsharectl kill "$1"; gone "$1"; }
"""
PROGRAM = """import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *words):
    result = getattr(cuda, name)(*words)
    if result != 0: sys.exit(f"{name}: CUDA error {result}")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(64 << 20))
end = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 0.1)
while True:
    call("cuMemsetD8_v2", memory, ctypes.c_ubyte(7), ctypes.c_size_t(64 << 20))
    call("cuCtxSynchronize")
    if time.monotonic() >= end: break
    time.sleep(0.01)
"""


def documents():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/how-to").glob("*.md"))]


def usage_of(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@functools.cache
def kubernetes_names():
    """Labels, annotations and resources that the plugin's sources or the chart name."""
    files = [path for folder in ("src/kubernetes", "deploy/helm") for path in (ROOT / folder).rglob("*") if path.suffix in (".h", ".cc", ".yaml")]
    return {name for path in files for name in re.findall(NAME_THERE, path.read_text())}


class Block:
    def __init__(self, place, kind, text):
        self.place, self.kind, self.text, self.reason, self.before = place, kind, text, None, ""


def blocks_of(name, text):
    found, comment = [], ""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "html_block":
            comment = token.content.strip()
        elif token.type in ("fence", "code_block"):
            block = Block(f"{name}:{token.map[0] + 1}", token.info.strip() if token.type == "fence" else "", token.content)
            if reason := re.fullmatch(r"<!-- not run: (.+) -->", comment):
                block.reason = reason[1]
            if before := re.fullmatch(r"<!-- run before: (.+) -->", comment, re.DOTALL):
                block.before = before[1]
            if re.match(r"<!-- *(not )?run", comment) and not block.reason and not block.before:
                raise AssertionError(f"{block.place}: the comment before it is neither <!-- not run: REASON --> nor <!-- run before: COMMANDS -->")
            found.append(block)
            comment = ""
        elif token.nesting >= 0 and token.type != "inline":
            comment = ""
    return found


def script_of(blocks):
    lines = [PRELUDE]
    for block in blocks:
        if block.kind == "sh" and not block.reason:
            lines += [f"echo '== {block.place}'", block.before, block.text]
    return "\n".join(lines) + "\n"


def commands_of(text):
    """The words of each command of a block of simple commands."""
    found = [[]]
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();&|<>")
        lexer.commenters = "#"
        lexer.whitespace_split = True
        for word in lexer:
            if re.fullmatch(r"[();&|]+", word):
                found.append([])
            else:
                found[-1].append(word)
        found.append([])
    return [words for words in found if words]


class Blocks(unittest.TestCase):
    def test_each_says_what_it_is(self):
        for path in documents():
            for block in blocks_of(path.relative_to(ROOT), path.read_text()):
                with self.subTest(block.place):
                    self.assertIn(block.kind, KINDS, "write ```sh, or what else it is")
                    reader = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}.get(block.kind)
                    if reader:
                        reader(block.text)

    def test_those_that_can_run(self):
        ran = 0
        for path in documents():
            blocks = blocks_of(path.relative_to(ROOT), path.read_text())
            if any(block.kind == "sh" and not block.reason for block in blocks):
                with self.subTest(path.relative_to(ROOT)):
                    ran += 1
                    status, said = self.run_page(script_of(blocks))
                    self.assertEqual(status, 0, said[-4000:])
        self.assertGreater(ran, 2)

    def test_those_that_do_not_run_name_what_is_there(self):
        read = 0
        for path in documents():
            for block in blocks_of(path.relative_to(ROOT), path.read_text()):
                if block.kind == "sh" and block.reason:
                    with self.subTest(block.place):
                        read += 1
                        self.assertEqual(self.wrong_with(block.text), [])
        self.assertGreater(read, 10)

    def test_one_that_names_what_is_not_there_is_noticed(self):
        for text in ("kubectl apply -f deploy/examples/no-such.yaml\n", "./dev tset\n", "nvsharectl set job=1 kore=5\n", "if true; then\n",
                     "cp /usr/share/nvshare/jupyter/no-such.py .\n", "helm install nvshare deploy/helm/nvshare --set imge.repository=x\n",
                     "kubectl annotate pod trainer nvshare.com/gpu-cores-limit=30\n", "build/release/bin/fleet --no-such-option 1\n"):
            self.assertNotEqual(self.wrong_with(text), [], text)

    def wrong_with(self, text):
        """What a block names that does not exist; nothing of it is run."""
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return [done.stderr]
        wrong = []
        for words in commands_of(text):
            for word in words:
                word = word.replace(*HERE)
                if (named := IN_TREE.match(word)) and not (ROOT / named[1]).exists():
                    wrong.append(f"{word} is not in the tree")
            if words[0] == "./dev" and not re.search(rf"^  (\S+, )*{re.escape(words[1])}\b", usage_of("./dev", "help"), re.MULTILINE):
                wrong.append(f"./dev has no command {words[1]}")
            if words[0] == "nvsharectl":
                wrong += self.wrong_words(words[1:])
            if words[:2] in (["helm", "install"], ["helm", "upgrade"]):
                values = [word for flag, value in zip(words, words[1:]) if flag in ("-f", "--set") for word in (flag, value)]
                done = subprocess.run([ROOT / "tools/render-chart.py", *values], cwd=ROOT, capture_output=True, text=True, check=False)
                wrong += [done.stderr] if done.returncode != 0 else []
            if words[0] == "kubectl":
                named = re.findall(NAME_THERE, " ".join(words))
                wrong += [f"nothing knows {name}" for name in named if name not in kubernetes_names()]
            if words[0] == "build/release/bin/fleet":
                known = usage_of(ARGUMENTS.build / "bin/fleet", "--help")
                wrong += [f"fleet has no {word}" for word in words if word.startswith("--") and word not in known]
        return wrong

    @staticmethod
    def wrong_words(words):
        program = words.index("--") if "--" in words else len(words)
        done = subprocess.run([ARGUMENTS.build / "bin/nvsharectl", *words[:program], *(["--", "true"] if words[program:] else [])], check=False,
                              env={**os.environ, "NVSHARE_RUNTIME_DIR": "/dev/null/none"}, capture_output=True, text=True)
        return [done.stderr] if done.returncode == WRONG_USE else []

    def test_one_that_fails_is_noticed(self):
        for text in ("```sh\nnvsharectl run --no-such-option -- python3 train.py\n```\n", "```sh\nnvsharectl set nobody priority=1\n```\n"):
            status, said = self.run_page(script_of(blocks_of("x.md", text)))
            self.assertNotEqual(status, 0, said)
            self.assertIn("== x.md:1", said)

    def run_page(self, script):
        """(exit status, what was printed)"""
        stage = Stage(ARGUMENTS.build)
        try:
            work, programs = stage.path / "work", stage.path / "programs"
            work.mkdir()
            programs.mkdir()
            for name in set(re.findall(r"[\w-]+\.py\b", script)):
                (work / name).write_text(PROGRAM)
            # The short form is installed beside nvsharectl.
            for name in ("nvsharectl", "nvshare-scheduler", "nvshare-device-plugin"):
                (programs / name).symlink_to(stage.build / "bin" / name)
            (programs / "nvshare").write_text((ROOT / "deploy/packaging/nvshare").read_text())
            (programs / "nvshare").chmod(0o755)
            environment = {**stage.environment, "PATH": f"{programs}:/usr/bin:/bin", "TERM": "dumb", "TREE": str(ROOT)}
            # Into a file: programs in the background would keep a pipe open.
            with open(stage.path / "said", "wb") as said:
                child = subprocess.Popen(["bash", "-c", script], cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=said,
                                         stderr=subprocess.STDOUT, start_new_session=True)
                try:
                    status = child.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    status = "still running"
                finally:
                    try:
                        os.killpg(child.pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
            return status, (stage.path / "said").read_text(errors="replace")
        finally:
            stage.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--list", action="store_true")
    ARGUMENTS, others = parser.parse_known_args()
    if ARGUMENTS.list:
        for block in (block for path in documents() for block in blocks_of(path.relative_to(ROOT), path.read_text())):
            if block.kind == "sh" and block.reason:
                print(f"{block.place}: {block.reason}")
        sys.exit()
    if not ARGUMENTS.build:
        parser.error("--build is missing")
    unittest.main(argv=[sys.argv[0], *others])
