"""Names in unnamed namespaces that two sources of a layer both have: where sources are compiled several at a time they would meet
(cmake/NvshareTargets.cmake, nvshare_unity). It reads lines as clang-format leaves them; the compiler has the last word."""
import pathlib
import re

# What one nvshare_unity may put together, in ./dev demo's build.
LAYERS = ("src/cli/", "src/interposer/", "src/policy/", "src/protocol/", "src/scheduler/", "test/simgpu/")
# Sources that are in no nvshare_unity of their layer, or in another one.
ELSEWHERE = {"src/scheduler/viewers/metrics.cc", "src/scheduler/viewers/metrics_site.cc", "src/scheduler/trace.cc", "src/scheduler/trace_ring.cc", "test/simgpu/nvml.cc"}
# What stays apart by wish, and what CMake keeps apart because it has options of its own.
APART = re.compile(r"nvshare_unity\(\w+[^)]*\bAPART\b([^)]*)\)|set_source_files_properties\(([^)]*?)PROPERTIES\s+COMPILE_")
TYPE = re.compile(r"(?:class|struct|union|enum(?: class)?) (?:\w+\([^)]*\) )?(\w+)\b(?!.*;$)")
ALIAS = re.compile(r"using (\w+) =")
FUNCTION = re.compile(r"[\w:<>,&*\[\] ]+?[ &*](\w+)\(([^)]*)")
VARIABLE = re.compile(r"[\w:<>,&*() ]+?[ &*](\w+)(?:\[[^\]]*\])*(?: =.*|\{.*|;.*)$")


def names_of(text):
    """Yields (line number, namespace, name) of what unnamed namespaces define; a function's name has its parameters."""
    spaces = []
    for number, line in enumerate(text.splitlines(), 1):
        if opened := re.match(r"namespace ?([\w:]*) ?\{$", line):
            spaces.append(opened[1])
        elif line.startswith("}  // namespace") and spaces:
            spaces.pop()
        elif "" in spaces and re.match(r"(?!namespace |using [\w: ]+;|(class|struct) \w+;)[A-Za-z]", line):
            code = line.split("//", 1)[0].rstrip()
            for pattern in (TYPE, ALIAS, FUNCTION, VARIABLE):
                if found := pattern.match(code):
                    parameters = f"({found[2]})" if pattern is FUNCTION else ""
                    yield number, "::".join(spaces), found[1] + parameters
                    break


def stay_apart(root, paths, by_wish=False):
    """The sources that the CMakeLists.txt among `paths` have compiled by themselves; by_wish: without those of other options."""
    return {str(pathlib.PurePath(path).parent / name) for path in paths if path.endswith("CMakeLists.txt")
            for names in APART.findall((root / path).read_text()) for name in " ".join(names[:1] if by_wish else names).split()}


def problems(root, paths):
    """`paths`: all files; those in LAYERS that are compiled into something other than a test are looked at."""
    apart = stay_apart(root, paths) | ELSEWHERE
    found = []
    for layer in LAYERS:
        seen = {}
        for path in paths:
            name = path.rsplit("/", 1)[-1]
            if not path.startswith(layer) or not name.endswith(".cc") or path in apart:
                continue
            if name.endswith("_test.cc") or name.startswith("test_") or name == "main.cc" or "/testing/" in path:
                continue
            for number, space, defined in names_of((root / path).read_text()):
                first = seen.setdefault((space, defined), path)
                if first != path:
                    found.append(f"{path}:{number}: {defined} is also a name of {first}; sources of a layer are compiled together (tools/names.py)")
    return found
