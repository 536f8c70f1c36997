#!/usr/bin/env python3
"""What libnvshare.so shows to and asks of the process it is loaded into.

  abi_test.py LIBRARY ENTRY_POINTS...

Exports: the hooked entry points and dlsym, dlvsym, dlopen, dlmopen, nothing else. Needs: libc's own libraries only, so that it loads wherever libc does.
Versions: nothing newer than GLIBC_2.17, or the library would kill every process in an older container. Start: no destructors, and no
constructors beyond the compiler's, so that a process that never touches CUDA pays nothing.
"""

import pathlib
import re
import subprocess
import sys

LIBC = re.compile(r"libc\.so\.6|libpthread\.so\.0|libdl\.so\.2|ld-linux[\w-]*\.so\.\d")
GLIBC_MAX = (2, 17)
LOOKUP_HOOKS = {"dlsym", "dlvsym", "dlopen", "dlmopen"}


def run(*command):
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


def dynamic_symbols(library):
    """(name, version or '', defined, weak) of each"""
    for line in run("readelf", "--dyn-syms", "-W", library).splitlines():
        match = re.match(r"\s*\d+: [0-9a-f]+\s+\S+\s+\w+\s+(\w+)\s+\w+\s+(\w+)\s+(\S+)", line)
        if match:
            binding, section, name = match.groups()
            name, _, version = name.partition("@")
            yield name, version.lstrip("@"), section != "UND", binding == "WEAK"


def hooked(entry_points):
    texts = [pathlib.Path(path).read_text() for path in entry_points]
    lines = [line.split() for text in texts for line in text.splitlines() if not line.startswith("#")]
    return {fields[0] for fields in lines if fields[1] in ("grows", "looks", "submit", "custom")}


def exports(symbols, entry_points):
    shown = {name for name, _, defined, _ in symbols if defined}
    listed = hooked(entry_points) | LOOKUP_HOOKS
    yield from (f"exports {name}, which is not listed" for name in sorted(shown - listed))
    yield from (f"does not export {name}" for name in sorted(listed - shown))
    yield from (f"exports {name} weakly: a hook that something else may replace" for name, _, defined, weak in symbols if defined and weak)


def needs(library):
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", library)):
        if not LIBC.fullmatch(name):
            yield f"needs {name}"
    if re.search(r"\((RPATH|RUNPATH)\)", run("readelf", "-d", library)):
        yield "has a search path of its own"


def versions(library, symbols):
    newer = [text for text in set(re.findall(r"Name: GLIBC_(\S+)", run("readelf", "-V", library))) if number(text) > GLIBC_MAX]
    for text in sorted(newer, key=number):
        users = sorted(name for name, version, _, _ in symbols if version.split()[0:1] == [f"GLIBC_{text}"] or version == f"GLIBC_{text}")
        yield f"asks for GLIBC_{text}: {', '.join(users)}"
    if "GLIBCXX" in run("readelf", "-V", library):
        yield "asks for the C++ library"


def thread_locals(symbols):
    # An extern thread_local without constinit is reached through a call to a function that may not exist, tested at each access.
    yield from (f"has a lazily initialised thread_local: {name}; declare it constinit" for name, *_ in symbols if name.startswith("_ZTH"))


def number(text):
    return tuple(int(part) for part in text.split(".")) if re.fullmatch(r"[\d.]+", text) else (99,)


def start_and_end(library):
    pointer_bytes = 8
    sections = run("readelf", "-S", "-W", library)
    for section, allowed, what in ((".init_array", 1, "constructors"), (".fini_array", 1, "destructors")):
        match = re.search(rf"\{section}\s+\S+\s+\S+\s+\S+\s+([0-9a-f]+)", sections)
        count = int(match.group(1), 16) // pointer_bytes if match else 0
        if count > allowed:  # one is the compiler's: frame_dummy, __do_global_dtors_aux
            yield f"has {count - allowed} static {what}"


def main(library, *entry_points):
    symbols = list(dynamic_symbols(library))
    problems = [*exports(symbols, entry_points), *needs(library), *versions(library, symbols), *thread_locals(symbols), *start_and_end(library)]
    for problem in problems:
        print(f"{library}: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
