#!/usr/bin/env python3
"""nvsharectl's completions in real shells, bash, zsh and fish: what the tab key offers. Run by ctest.

  completion_test.py --build BUILD [unittest arguments]

A shell that is not there is left out (tools/install-dependencies.sh test installs both).
"""
import argparse
import json
import os
import pathlib
import pty
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
ARGUMENTS = argparse.Namespace(build=None)
PATIENCE_S = 120
# A program names its tenant, and root presses the tab key.
HOSTILE = "$(touch${IFS}ran)`touch${IFS}ran`"
REPORT = {"ok": True, "clients": [{"id": 7, "pid": 1}], "tenants": [
    {"id": 1, "name": "train", "paused": False}, {"id": 2, "name": "translate"}, {"id": 3, "name": "serve"}, {"id": 4, "name": HOSTILE},
    {"id": 5, "name": "x y"}, {"id": 6, "name": 'q"q'}], "gpus": [{"uuid": "GPU-1", "name": "card"}]}

# Line -> what it is completed by.
COMMANDS = "run status top trace replay set pause resume release kill logs doctor convert version demo"
OFFERED = {
    "nvsharectl ": COMMANDS,
    "nvsharectl pa": "pause",
    "nvsharectl pause tr": "train translate",
    "nvsharectl resume tra": "train translate",
    "nvsharectl run --after se": "serve",
    "nvsharectl kill train --signal TE": "TERM",
    "nvshare --qu": "--quiet",
    "nvshare --after tra": "train translate",
    "nvsharectl set s": "serve",
    "nvsharectl set train pau": "paused=",
    "nvsharectl set train core=40 m": "memory=",
    "nvsharectl run --gpu-m": "--gpu-memory-limit",
    "nvsharectl trace --ou": "--output",
    "nvsharectl replay --j": "--json",
}
# To zsh the word that is completed, where nothing is.
NOT_OFFERED = ["nvsharectl pause train tr", "nvsharectl run -- cat --gpu-m"]

# Line -> what names of all kinds become.
NAMES = {"nvsharectl pause ": {"train", "translate", "serve", HOSTILE, "x y"}, "nvsharectl run --after x": {"x y"}}

# Tab puts all matches into the line, ctrl-X writes the line to a file.
ZSH_SETUP = """PROMPT=; fpath=({share}/zsh/vendor-completions $fpath); autoload -Uz compinit; compinit -u -D
all() {{ _main_complete; compstate[insert]=all; compstate[list]= }}
zle -C all complete-word all; bindkey '^I' all
say() {{ print -r -- "$BUFFER" >> {said}; BUFFER= }}
zle -N say; bindkey '^X' say
"""


class Zsh:
    def __init__(self, folder, environment):
        self.said = folder / "said"
        self.said.touch()
        self.count = 0
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], {**environment, "TERM": "dumb"})
        self.type(ZSH_SETUP.format(share=folder / "share", said=self.said))

    def type(self, text):
        os.write(self.terminal, text.encode())

    def completed(self, line):
        self.count += 1
        self.type(line + "\t\x18")
        deadline, heard = time.monotonic() + PATIENCE_S, b""
        while len(lines := self.said.read_text().splitlines()) < self.count:
            if time.monotonic() > deadline:
                raise AssertionError(f"{line!r}: zsh said {heard.decode(errors='replace')}")
            if select.select([self.terminal], [], [], 0.02)[0]:
                heard += os.read(self.terminal, 1 << 16)
        return lines[-1]

    def offered(self, line):
        before, completed = line.rsplit(" ", 1)[0] + " ", self.completed(line)
        if not completed.startswith(before):
            raise AssertionError(f"{line!r} became {completed!r}")
        return completed.removeprefix(before).split()

    def close(self):
        self.type("exit\n")
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


class Completions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="nvshare-completions-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        subprocess.run([TREE / "tools/command-pages.py", cls.folder, ARGUMENTS.build / "bin/nvsharectl"], check=True, timeout=PATIENCE_S)
        program = cls.folder / "bin/nvsharectl"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(REPORT, separators=(',', ':'), ensure_ascii=False)}\nEND\n")
        program.chmod(0o755)
        cls.environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(cls.folder), "LANG": "C.UTF-8"}

    @unittest.skipUnless(shutil.which("fish"), "there is no fish")
    def test_fish(self):
        def offered(line):
            script = f"source {self.folder}/share/fish/vendor_completions.d/{line.split()[0]}.fish; complete -C '{line}'"
            done = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, env=self.environment,
                                  cwd=self.folder)
            self.assertEqual(done.stderr, "")
            return dict((row + "\t").split("\t")[:2] for row in done.stdout.splitlines())
        for line, wanted in OFFERED.items():
            self.assertEqual(sorted(offered(line)), sorted(wanted.split()), line)
        for line in NOT_OFFERED:
            self.assertEqual(offered(line), {}, line)
        for line, wanted in NAMES.items():
            self.assertEqual(set(offered(line)), wanted, line)
        self.assertFalse((self.folder / "ran").exists())
        self.assertIn("A tenant's turns end", offered("nvsharectl pa")["pause"])
        self.assertTrue(offered("nvsharectl run --pri")["--priority"].startswith("-100 to 100"))

    @unittest.skipUnless(shutil.which("zsh"), "there is no zsh")
    def test_zsh(self):
        zsh = Zsh(self.folder, self.environment)
        self.addCleanup(zsh.close)
        for line, wanted in OFFERED.items():
            self.assertEqual(sorted(zsh.offered(line)), sorted(wanted.split()), line)
        for line in NOT_OFFERED:
            self.assertEqual(zsh.completed(line), line)
        for line, wanted in NAMES.items():
            self.assertEqual(set(shlex.split(zsh.completed(line).split(" ", line.count(" "))[-1])), wanted, line)
        self.assertFalse((self.folder / "ran").exists())

    def test_bash(self):
        def offered(line):
            words = line.split(" ")
            script = (f"source {self.folder}/share/bash-completion/completions/{words[0]}; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); "
                      f"_{words[0]} {words[0]} \"${{!#}}\" \"${{@:$#-1:1}}\"; [ ${{#COMPREPLY[@]}} -eq 0 ] || printf '%s\\n' \"${{COMPREPLY[@]}}\"")
            done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, timeout=PATIENCE_S, env=self.environment,
                                  cwd=self.folder)
            self.assertEqual(done.stderr, "")
            return [word for row in done.stdout.splitlines() for word in shlex.split(row)]
        for line, wanted in OFFERED.items():
            flags = "--help --version" if line == "nvsharectl " else ""
            self.assertEqual(sorted(offered(line)), sorted(f"{wanted} {flags}".split()), line)
        for line in [*NOT_OFFERED, "nvsharectl trace -o "]:
            self.assertEqual(offered(line), [], line)
        for line, wanted in NAMES.items():
            self.assertEqual(set(offered(line)) - {"-h", "--help"}, wanted, line)
        self.assertFalse((self.folder / "ran").exists())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    arguments, rest = parser.parse_known_args()
    ARGUMENTS.build = arguments.build.resolve()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
