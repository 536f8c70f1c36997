#!/usr/bin/env python3
"""The house rules, checked. Each check says what it looks for; ./dev lint runs all of them.

  tools/lint.py [--only NAME[,NAME]] [--jobs N] [--build-dir DIR]

clang-tidy remembers which files were clean (a hash over the file, the headers of ours that it includes, its compile command and
.clang-tidy), so that a second run looks only at what changed. All clones of a user share that memory, as they share ccache's:
$NVSHARE_LINT_CACHE, by default ~/.cache/nvshare-lint. Entries that were not used for 30 days go.
What it does not know it looks at up to sixteen files at a time, as most of the time goes into headers that each would bring along again;
where something is found in them, fewer at a time, down to each by itself.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import names

ROOT = pathlib.Path(__file__).resolve().parent.parent
CPP_SUFFIXES = {".cc", ".h", ".c", ".cpp"}
LINES_MAX = 600
# Written so that this file does not find itself.
FORBIDDEN = [
    (re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b"), "unfinished work belongs in an issue, not in the code"),
    (re.compile(r"\.\./shared\b"), "a path outside the repository"),
    (re.compile(r"(?<![\w.])/wo" r"rk/|/tmp/bui" r"ld-"), "a path of one developer's machine"),
    (re.compile(r"/run/nvshare/cli" r"ent:/run/nvshare/client(?!:ro)"), "a mount by which a container's root can take the scheduler's place"),
    (re.compile(r"\bNO" r"LINT(NEXTLINE|BEGIN)?\b(?!\()"), "a suppression without the check's name in parentheses"),
]
# Folders of pure functions, and what their sources may include: of ours by path, of the standard library what has no clock, thread, lock,
# environment or file in it.
PURE = {"src/policy/": ("policy/",), "src/interposer/turn/": ("interposer/turn/", "protocol/messages.h")}
PURE_HEADERS = set(
    "algorithm array bit bitset cmath compare concepts cstddef cstdint cstdlib deque functional iterator limits map memory"
    " numeric optional ranges set span string string_view tuple type_traits unordered_map unordered_set utility variant vector".split()
)
# What those headers declare all the same.
IMPURE_CALL = re.compile(r"\b(clock_gettime|gettimeofday|(?:std::)?s?rand|getenv|setenv|system|nanosleep)\s*\(")

# What clang's thread-safety analysis does not know.
PLAIN_MUTEX = re.compile(
    r"\bstd::((recursive_|shared_)?(timed_)?mutex|condition_variable(_any)?|lock_guard|unique_lock|shared_lock|scoped_lock)\b"
    r"|\bpthread_(mutex|cond|rwlock|spinlock)_t\b"
)
MUTEXES_ARE_MADE_IN = "src/base/mutex.h"
# The class of spdlog's that this file derives from takes it as its argument.
PLAIN_MUTEX_MAY = {"src/scheduler/log.h": ("std::mutex",)}

# What makes files that are checked in; each has --check.
GENERATORS = ("tools/generate_entry_points.py", "bench/plots.py")

# What the library's folders may include of the library, besides themselves, log.h and sync.h: src/interposer/README.md. A folder that is
# named stands for those in it, too.
INTERPOSER = "src/interposer/"
# Where the library's one process and its gate may be reached for, and what there is once made. An Entry is what exported functions do it by.
REACHED_FOR = re.compile(r"\b(?:this_process\(\)|program_gate\b|made_once\b|Entry(?:\(\)|\{\}|::of\b|\s+\w+[;({]))")
REACHING_IS_DONE_IN = tuple(
    INTERPOSER + name for name in ("hooks/entry.h", "process/process.h", "process/process.cc", "gate/gate.h", "gate/gate.cc", "once.h")
)
EXPORTS_ARE_IN = (INTERPOSER + "hooks/", INTERPOSER + "generated/")
AGAIN_BY_WHO_WAS_PASSED_ONE = {INTERPOSER + "hooks/submit.h": {"Entry::of"}}
INTERPOSER_MAY = {
    "gate": {"process", "symbols"},
    "generated": {"hooks", "symbols"},
    "hooks": {"gate", "generated", "link", "memory", "process", "symbols"},
    "host_arena": {"process", "symbols"},
    "link": {"gate", "memory", "process", "symbols", "turn"},
    "memory": {"gate", "host_arena", "process", "swap/copies", "symbols"},
    "memory/backends": {"host_arena", "memory/blocks", "memory/pools", "process", "symbols"},
    "memory/blocks": {"gate", "host_arena", "link", "memory/backends", "memory/limits", "memory/residency", "process", "swap/copies"},
    "memory/driver_memory": {"gate", "memory/limits", "memory/residency", "process", "symbols"},
    "memory/handles": {"hooks", "memory/blocks", "memory/limits", "process", "swap/copies", "symbols"},
    "memory/limits": {"memory/blocks", "process"},
    "memory/pools": {"memory/blocks", "process", "symbols"},
    "memory/residency": {"memory/backends", "memory/blocks", "memory/limits", "process", "swap/copies"},
    "process": {"gate", "hooks", "link", "memory", "swap", "symbols"},
    "swap": {"gate", "host_arena", "memory", "process", "symbols"},
    "swap/copies": {"host_arena", "memory"},
    "symbols": {"generated"},
    "turn": set(),
}
# The same of the policy's folders, besides what stands beside them: src/policy/README.md and theirs.
POLICY = "src/policy/"
POLICY_MAY = {
    "gangs": {"limits", "memory", "turns"},
    "limits": {"gangs", "turns"},
    "memory": {"gangs", "limits", "turns"},
    "reports": {"gangs", "limits", "turns"},
    "sharing": {"gangs", "turns"},
    "turns": {"gangs", "limits", "memory", "sharing"},
}
POLICY_ALL_MAY = "policy/memory/room.h"  # the accounting
POLICY_INTERFACE = {"policy/modes.h", "policy/overloaded.h", "policy/parts.h", "policy/policy.h"}

# The same of the scheduler's folders: src/scheduler/README.md. All may use the files beside them, which may use none of the folders, but for
# those that put everything together.
SCHEDULER = "src/scheduler/"
SCHEDULER_USES_ALL = (SCHEDULER + "daemon.", SCHEDULER + "main.cc")
SCHEDULER_MAY = {
    "tenants": set(),
    "gpus": {"host", "tenants"},
    "host": {"gpus", "tenants"},
    "clients": {"gpus", "tenants"},
    "memory": {"clients", "gpus", "tenants"},
    "engine": {"clients", "gpus", "host", "memory", "tenants"},
    "sockets": {"engine", "tenants"},
    "viewers": {"engine"},
}


def tracked_files():
    """Files of the repository, those that are not committed yet included."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return sorted(path for path in set(listing.split("\0")) if path and (ROOT / path).is_file())


def text_of(path):
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def is_cpp(path):
    return pathlib.PurePath(path).suffix in CPP_SUFFIXES


def is_test(path):
    name = os.path.basename(path)
    return path.startswith("test/") or name.endswith(("_test.cc", "_test.h")) or name.startswith("test_") or "/testing/" in path


def is_generated(text):
    return any("Generated by" in line for line in text.splitlines()[:5])


def check_format(arguments):
    """clang-format leaves every C++ file as it is, generated ones included."""
    paths = [path for path in tracked_files() if is_cpp(path)]
    result = subprocess.run(
        ["clang-format", "--dry-run", "-Werror", "--ferror-limit=1", *paths], cwd=ROOT, capture_output=True, text=True
    )
    bad = sorted({line.split(":", 1)[0] for line in result.stderr.splitlines() if "clang-format-violations" in line})
    if result.returncode != 0 and not bad:
        return [result.stderr.strip()]
    return [f"{path}: not formatted; ./dev format does it" for path in bad]


def check_length(arguments):
    """Sources are at most 600 lines: a longer one wants splitting. Tests are exempt (a table of cases may be long), generated files too
    (nobody reads them top to bottom)."""
    problems = []
    for path in tracked_files():
        if pathlib.PurePath(path).suffix not in CPP_SUFFIXES | {".py", ".sh", ".S"} or is_test(path):
            continue
        text = text_of(path)
        if text is not None and not is_generated(text) and text.count("\n") > LINES_MAX:
            problems.append(f"{path}: {text.count(chr(10))} lines, at most {LINES_MAX}")
    return problems


def impure_lines(pure, text):
    """(number, line) of what a source of the folder of pure functions may not have."""
    for number, line in enumerate(text.splitlines(), 1):
        code = line.split("//", 1)[0]
        included = re.match(r'\s*#\s*include\s*(.*)', code)
        ours = included and re.match(r'"([^"]+)"', included[1])
        system = included and re.match(r"<([^>]+)>", included[1])
        if ours:
            allowed = ours[1].startswith(PURE[pure])
        elif included:
            allowed = bool(system) and system[1] in PURE_HEADERS
        else:
            allowed = not IMPURE_CALL.search(code)
        if not allowed:
            yield number, line.strip()


def check_pure(arguments):
    """policy/ and interposer/turn/ are pure functions: they read no clock, no random numbers, no environment, start no threads and take no
    locks, so they include only the headers of PURE_HEADERS. turn/ includes nothing of the library but itself, so it can reach no gate,
    socket or driver."""
    problems = []
    for path in tracked_files():
        pure = next((folder for folder in PURE if path.startswith(folder)), None)
        if pure is None or not is_cpp(path) or is_test(path):
            continue
        problems += [f"{path}:{number}: {pure} may not use this: {line}" for number, line in impure_lines(pure, text_of(path) or "")]
    return problems


def may_have_of_policy(path, line):
    """Whether the source may have that line, if it includes something of the policy."""
    included = re.match(r'\s*#\s*include\s*"(policy/(?:(\w+)/)?[^"]*)"', line)
    if not included:
        return True
    if not path.startswith(POLICY):
        return included[1] in POLICY_INTERFACE
    folder = path[len(POLICY) :].rpartition("/")[0]
    return not folder or not included[2] or included[1] == POLICY_ALL_MAY or included[2] in POLICY_MAY.get(folder, set()) | {folder}


def check_includes(arguments):
    """The library's, the scheduler's and the policy's folders include of each other what src/interposer/README.md, src/scheduler/README.md and
    src/policy/README.md say; others include of the policy its interface."""
    problems = []
    for path in tracked_files():
        if is_cpp(path) and not is_test(path):
            lines = enumerate((text_of(path) or "").splitlines(), 1)
            problems += [f"{path}:{at}: may not use this of {POLICY} (README.md there): {line}" for at, line in lines if not may_have_of_policy(path, line)]
    for path in tracked_files():
        layer, allowed = (INTERPOSER, INTERPOSER_MAY) if path.startswith(INTERPOSER) else (SCHEDULER, SCHEDULER_MAY)
        folder = path.removeprefix(layer).rpartition("/")[0]
        if not path.startswith(layer) or not is_cpp(path) or is_test(path) or path.startswith(SCHEDULER_USES_ALL):
            continue
        if folder and folder not in allowed:
            problems.append(f"{path}: what {layer}{folder}/ may include is not in tools/lint.py")
            continue
        may = allowed.get(folder, set()) | {folder}
        for number, line in enumerate((text_of(path) or "").splitlines(), 1):
            included = re.match(rf'\s*#\s*include\s*"{layer.removeprefix("src/")}((?:\w+/)*)', line)
            is_daemon = layer == SCHEDULER and '"scheduler/daemon.h"' in line
            if is_daemon or (included and included[1] and not any(included[1].startswith(f"{each}/") for each in may)):
                included = included[1] or "daemon.h"
                problems.append(f"{path}:{number}: {layer}{folder} may not use {included} (README.md there): {line.strip()}")
    return problems


def check_mutexes(arguments):
    """Mutexes of src/ are base/mutex.h's, which clang's thread-safety analysis knows. Tests may have the standard library's."""
    problems = []
    for path in tracked_files():
        if not path.startswith("src/") or path == MUTEXES_ARE_MADE_IN or not is_cpp(path) or is_test(path):
            continue
        for number, line in enumerate((text_of(path) or "").splitlines(), 1):
            found = PLAIN_MUTEX.search(line.split("//", 1)[0])
            if found and found[0] not in PLAIN_MUTEX_MAY.get(path, ()):
                problems.append(f"{path}:{number}: {found[0]}: base/mutex.h has the ones that clang can check, with GUARDED_BY for members")
    return problems


def check_reaching(arguments):
    """The library's parts are given the process and the gate that they belong to. Only what the program calls reaches for them, since a C
    function has no other way to it: exported functions by an Entry, which none but they make."""
    problems = []
    for path in tracked_files():
        if not path.startswith(INTERPOSER) or path in REACHING_IS_DONE_IN or not is_cpp(path) or is_test(path):
            continue
        exported = False
        for number, line in enumerate((text_of(path) or "").splitlines(), 1):
            if path.startswith(EXPORTS_ARE_IN) and line.startswith(('extern "C" {', '}  // extern "C"')):
                exported = line.startswith("extern")
            found = REACHED_FOR.search(line.split("//", 1)[0])
            may = (exported and found and found[0].startswith("Entry")) or (found and found[0] in AGAIN_BY_WHO_WAS_PASSED_ONE.get(path, ()))
            if found and not may:
                problems.append(
                    f"{path}:{number}: reaches for the process or its gate; who calls this gives them (hooks/entry.h): {line.strip()}"
                )
    return problems


def check_sizes(arguments):
    """No class has more than 20 public functions or 30 members, no function more than 60 lines without a comment
    that says why (docs/adr/0024). No line of the documents has more than 120 characters."""
    import sizes
    import wrap

    return sizes.problems(ROOT, tracked_files()) + wrap.problems()


def check_names(arguments):
    """Sources that are compiled together have no name twice in their unnamed namespaces."""
    return names.problems(ROOT, tracked_files())


def check_subjects(arguments):
    """Subjects of new commits are at most 72 characters long."""
    import subjects

    problems, looked_at = subjects.problems(ROOT)
    print(f"  commit subjects: {looked_at}")
    return problems


def check_words(arguments):
    """No unfinished work, no paths of one machine, no unnamed suppressions; no tabs or trailing blanks in sources."""
    problems = []
    for path in tracked_files():
        suffix = pathlib.PurePath(path).suffix
        text = text_of(path)
        if text is None or path.startswith("bench/results/") or path == "LICENSE":
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for pattern, reason in FORBIDDEN:
                if pattern.search(line):
                    problems.append(f"{path}:{number}: {reason}: {line.strip()[:100]}")
            if suffix in CPP_SUFFIXES | {".py", ".sh", ".cmake", ".md"} and line != line.rstrip():
                problems.append(f"{path}:{number}: trailing blanks")
    return problems


def check_headers(arguments):
    """Every header of ours begins its code with #pragma once."""
    problems = []
    for path in tracked_files():
        if path.endswith(".h") and not re.search(r"^#pragma once$", text_of(path) or "", re.MULTILINE):
            problems.append(f"{path}: no #pragma once")
    return problems


def check_generated(arguments):
    """Checked-in generated files are what their generator makes now."""
    problems = []
    for generator in GENERATORS:
        result = subprocess.run([sys.executable, str(ROOT / generator), "--check"], cwd=ROOT, capture_output=True, text=True)
        if result.returncode != 0:
            problems.append((result.stdout + result.stderr).strip() or f"{generator} --check failed")
    return problems


def check_links(arguments):
    """Links of Markdown files lead to files of the repository and to headings that are there."""
    sys.path.insert(0, str(ROOT / "tools/site"))
    import markdown_links

    return markdown_links.problems(ROOT, tracked_files())


def check_shell(arguments):
    """Shell scripts parse (and pass shellcheck where it is installed)."""
    problems = []
    for path in tracked_files():
        text = text_of(path)
        if text is None or not re.match(r"#!.*\b(bash|sh)\b", text):
            continue
        commands = [["bash", "-n", path]]
        if shutil.which("shellcheck"):
            commands.append(["shellcheck", "--severity=warning", path])
        for command in commands:
            result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            if result.returncode != 0:
                problems.append((result.stdout + result.stderr).strip())
    return problems


# Options of g++ that clang does not know.
GCC_ONLY = re.compile(r"\s-fno-tree-loop-distribute-patterns\b")


CLEAN_FILES_DAYS = 30
FILES_AT_ONCE = 16
# For each of CLI11's 118 parameters that could be references performance-unnecessary-value-param goes through everything that is looked at.
APART_HEADERS = ("#include <CLI/CLI.hpp>",)


def clean_files_dir():
    """The folder with an empty file for each source that was clean, named by its key; without those that nobody used lately."""
    default = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "nvshare-lint"
    folder = pathlib.Path(os.environ.get("NVSHARE_LINT_CACHE") or default)
    folder.mkdir(parents=True, exist_ok=True)
    oldest = time.time() - CLEAN_FILES_DAYS * 86400
    for entry in folder.iterdir():
        try:
            if re.fullmatch(r"[0-9a-f]{64}", entry.name) and entry.stat().st_mtime < oldest:
                entry.unlink()
        except FileNotFoundError:
            pass  # another run was faster
    return folder


class Tidy:
    """clang-tidy over the compile commands of one build directory."""

    def __init__(self, build_dir, analyzer_nodes):
        analyzer = ["-Xclang", "-analyzer-config", "-Xclang", f"max-nodes={analyzer_nodes}"]
        self.extra = [f"--extra-arg={option}" for option in ["-Wno-unknown-warning-option", "-Wthread-safety", *analyzer]]
        self.database = build_dir / "lint-cache"
        self.database.mkdir(parents=True, exist_ok=True)
        self.clean_dir = clean_files_dir()
        self.ground = hashlib.sha256((ROOT / ".clang-tidy").read_bytes())
        self.ground.update(subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout)
        self.ground.update(" ".join(self.extra).encode())
        self.header_cache = {}
        self.apart = names.stay_apart(ROOT, tracked_files(), by_wish=True)
        self.commands = {}
        for entry in json.loads((build_dir / "compile_commands.json").read_text()):
            path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), ROOT)
            # A source that is built twice (for libnvshare.so and for the daemons) is looked at once.
            entry["command"] = GCC_ONLY.sub("", entry["command"])
            self.commands.setdefault(path, entry)
        (self.database / "compile_commands.json").write_text(json.dumps(list(self.commands.values())))

    def sources(self):
        """Everything that ships, and the stand-in GPU. Tests are left out: their framework's macros cost most of the time and the
        compilers' warnings cover them."""
        wanted = []
        for path in sorted(self.commands):
            ships = path.startswith("src/") and not is_test(path)
            stand_in = path.startswith("test/simgpu/") and not path.endswith("_test.cc")
            if (ships or stand_in) and path.endswith((".cc", ".cpp")) and (ROOT / path).is_file() and not is_generated(text_of(path) or ""):
                wanted.append(path)
        return wanted

    def own_headers(self, path):
        """The headers of ours that `path` includes, through others as well."""
        if path in self.header_cache:
            return self.header_cache[path]
        found = set()
        self.header_cache[path] = found
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', text_of(path) or "", re.MULTILINE):
            for base in ("src", "test", os.path.dirname(path), ""):
                candidate = os.path.normpath(os.path.join(base, name))
                if (ROOT / candidate).is_file():
                    if candidate not in found:
                        found.add(candidate)
                        found |= self.own_headers(candidate)
                    break
        return found

    def key(self, path):
        digest = self.ground.copy()
        # Each clone stands in a folder of its own.
        digest.update(self.commands[path]["command"].replace(str(ROOT), "ROOT").encode())
        for name in [path, *sorted(self.own_headers(path))]:
            digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
        return digest.hexdigest()

    def command_of_all(self, path):
        """The compile command without what names the file, and what of APART_HEADERS the file includes: those that have both alike can be
        looked at together, but what the compiler has apart with its like alone."""
        entry = self.commands[path]
        kept = re.sub(r"\s-(?:o|c)\s+\S+", "", entry["command"])
        apart = [header for header in APART_HEADERS if any(header in (text_of(name) or "") for name in (path, *self.own_headers(path)))]
        return entry["directory"], kept, *apart, path in self.apart

    def groups(self, unknown):
        """Lists of files that are looked at together: neighbours of one target. The longest first, so that no processor is idle at the end."""
        targets = {}
        for path in unknown:
            targets.setdefault(self.command_of_all(path), []).append(path)
        return sorted((piece for files in targets.values() for piece in self.pieces(files)), key=len, reverse=True)

    def pieces(self, files):
        """`files` in lists of at most FILES_AT_ONCE about as long as each other, in none of which two define the same name."""
        wanted = -(-len(files) // FILES_AT_ONCE)
        at_once = -(-len(files) // wanted)
        pieces = []
        for path in sorted(files):  # neighbours include the same headers
            defined = {(space, name) for _, space, name in names.names_of(text_of(path) or "")}
            bound = at_once if len(pieces) < wanted else FILES_AT_ONCE
            piece = next((piece for piece in pieces if len(piece[0]) < bound and not piece[1] & defined), None)
            if piece is None:
                pieces.append(piece := ([], set()))
            piece[0].append(path)
            piece[1].update(defined)
        return [chosen for chosen, _ in pieces]

    def tidy(self, database, path, *options):
        return subprocess.run(["clang-tidy", "--quiet", "-p", str(database), *options, *self.extra, str(path)],
                              cwd=ROOT, capture_output=True, text=True)

    def all_clean(self, files):
        """Whether nothing is found in `files` looked at as one, a copy of their texts: clang's path analysis goes through the main file alone.
        What is found may be due to that."""
        includes = [re.findall(r"^\s*#\s*include\s*(\S+)", text_of(path) or "", re.MULTILINE) for path in files]
        if any(len(set(of_one)) < len(of_one) for of_one in includes):
            return False  # each by itself knows whether it is a mistake; here all would have <string> twice
        folder = self.database / hashlib.sha256("\0".join(files).encode()).hexdigest()[:16]
        folder.mkdir(exist_ok=True)
        together = folder / "together.cc"
        together.write_text("\n".join(text_of(path) for path in files))
        entry = dict(self.commands[files[0]])
        entry["command"] = entry["command"].replace(entry["file"], str(together))
        entry["file"] = str(together)
        (folder / "compile_commands.json").write_text(json.dumps([entry]))
        return self.tidy(folder, together, "--checks=-readability-duplicate-include").returncode == 0

    def run(self, files):
        """Returns (problems, seconds) for files that nobody knows as clean. Where something is found in several, by halves down to each alone."""
        start = time.monotonic()
        problems = []
        if len(files) == 1:
            problems = self.found_alone(files[0])
        elif not self.all_clean(files):
            middle = len(files) // 2
            problems = self.run(files[:middle])[0] + self.run(files[middle:])[0]
        if not problems:
            for path in files:
                (self.clean_dir / self.key(path)).touch()
        return problems, time.monotonic() - start

    def found_alone(self, path):
        result = self.tidy(self.database, ROOT / path)
        if result.returncode == 0:
            return []
        # The counts of suppressed warnings on stderr say nothing.
        output = result.stdout.strip() or result.stderr.strip()
        return [output.replace(str(ROOT) + "/", "")]

    def known(self, path):
        stamp = self.clean_dir / self.key(path)
        if not stamp.exists():
            return False
        stamp.touch()
        return True


def check_tidy(arguments):
    """clang-tidy with the checks of .clang-tidy."""
    if not (arguments.build_dir / "compile_commands.json").exists():
        return [f"{arguments.build_dir}/compile_commands.json is missing; ./dev build makes it"]
    tidy = Tidy(arguments.build_dir, arguments.analyzer_nodes)
    problems = []
    sources = tidy.sources()
    unknown = [path for path in sources if not tidy.known(path)]
    groups = list(tidy.groups(unknown))
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for files, (found, seconds) in zip(groups, pool.map(tidy.run, groups)):
            problems += found
            if arguments.verbose:
                print(f"    {seconds:5.1f} s {' '.join(files)}", flush=True)
    print(f"  clang-tidy: {len(unknown)} files looked at, {len(sources) - len(unknown)} unchanged since they were clean")
    return problems


CHECKS = {
    "format": check_format,
    "length": check_length,
    "pure": check_pure,
    "includes": check_includes,
    "mutexes": check_mutexes,
    "reaching": check_reaching,
    "sizes": check_sizes,
    "words": check_words,
    "subjects": check_subjects,
    "headers": check_headers,
    "names": check_names,
    "generated": check_generated,
    "links": check_links,
    "shell": check_shell,
    "tidy": check_tidy,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="comma-separated names of checks: " + ", ".join(CHECKS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--analyzer-nodes", type=int, default=20000,
                        help="how far clang-tidy's path analysis goes in a function (its own default, 225000, takes three times as long)")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(CHECKS)
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        parser.error(f"unknown check {', '.join(unknown)}; there are {', '.join(CHECKS)}")

    failed = []
    for name in names:
        start = time.monotonic()
        problems = CHECKS[name](arguments)
        print(f"lint: {name:10} {'FAILED' if problems else 'ok':7} {time.monotonic() - start:6.1f} s", flush=True)
        for problem in problems:
            print(problem)
        if problems:
            failed.append(name)
    if failed:
        print(f"lint: failed: {', '.join(failed)}")
    else:
        print("lint: clean")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
