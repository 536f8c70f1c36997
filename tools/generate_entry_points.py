#!/usr/bin/env python3
"""Generates src/interposer/generated/ from the list of entry points and their signatures.

Reads src/interposer/entry_points.txt (symbol, class, since) and src/cuda/driver_api.h, driver_api_newer.h (signatures), the same of NVML
(nvml_entry_points.txt, cuda/nvml_api.h), and writes
  real_driver_table.h/.cc  one typed slot per function that nvshare hooks or calls; their names; the hook of each
  hooks.h                  declarations of every hooked function
  submit_hooks.cc          the wrappers of class submit
  growing_hooks.cc         the wrappers of classes grows and looks
  unhooked_names.h         the names of the functions that are known and neither hooked nor called
  nvml_table.h/.cc         the slots, names and hooks of NVML's functions
  libnvshare.map           the linker's export list

  generate_entry_points.py                          write the files
  generate_entry_points.py --check                  exit 1 and say which differ, change nothing
  generate_entry_points.py --unclassified LIBCUDA   exit 1 and list the driver symbols that LIBCUDA exports and nobody has classified

Only Python's standard library; the driver's symbols are read with `nm` or `readelf`, whichever is there.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENTRY_POINTS = ROOT / "src/interposer/entry_points.txt"
DRIVER_API = ROOT / "src/cuda/driver_api.h"
DRIVER_API_NEWER = ROOT / "src/cuda/driver_api_newer.h"
NVML_ENTRY_POINTS = ROOT / "src/interposer/nvml_entry_points.txt"
NVML_API = ROOT / "src/cuda/nvml_api.h"
GENERATED = ROOT / "src/interposer/generated"

CLASSES = ("pass", "uncounted", "grows", "looks", "submit", "custom")
HOOKED = ("grows", "looks", "submit", "custom")
PER_THREAD_SUFFIXES = ("_ptsz", "_ptds")
NVML_CLASSES = ("custom", "call")
LOOKUP_HOOKS = ("dlsym", "dlvsym", "dlopen", "dlmopen")  # symbols/dlsym.S


class Parameter(NamedTuple):
    type: str
    name: str


class EntryPoint(NamedTuple):
    symbol: str
    kind: str
    since: int  # 0 when not hooked


class Failure(Exception):
    pass


def base_name(symbol):
    """cuMemcpyAsync_ptsz -> cuMemcpyAsync, whose signature it has."""
    for suffix in PER_THREAD_SUFFIXES:
        if symbol.endswith(suffix):
            return symbol[: -len(suffix)]
    return symbol


def read_entry_points(path):
    entries = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#"):
            continue
        fields = line.split()
        where = f"{path}:{number}"
        if len(fields) not in (2, 3) or fields[1] not in CLASSES:
            raise Failure(f"{where}: '{line}' is not 'symbol class [since]' with a class of {', '.join(CLASSES)}")
        hooked = fields[1] in HOOKED
        if hooked != (len(fields) == 3):
            raise Failure(f"{where}: {fields[0]}: 'since' belongs to hooked symbols, and to all of them")
        if entries and entries[-1].symbol >= fields[0]:
            raise Failure(f"{where}: {fields[0]} is out of order, or twice there")
        entries.append(EntryPoint(fields[0], fields[1], int(fields[2]) if hooked else 0))
    return entries


def read_signatures(path):
    """name -> list of Parameter"""
    text = re.sub(r"//[^\n]*", "", path.read_text())
    signatures = {}
    for match in re.finditer(r"\bCUresult\s+(cu\w+)\(([^()]*)\);", text):
        name, inside = match.group(1), " ".join(match.group(2).split())
        if name in signatures:
            raise Failure(f"{path}: {name} is declared twice")
        if base_name(name) != name:
            raise Failure(f"{path}: {name}: declare {base_name(name)}; per-thread variants derive from it")
        parameters = []
        for declaration in filter(None, inside.split(", ")):
            parsed = re.fullmatch(r"(.+[\s*])(\w+)", declaration)
            if not parsed:
                raise Failure(f"{path}: {name}: cannot read the parameter '{declaration}'")
            parameters.append(Parameter(parsed.group(1).strip(), parsed.group(2)))
        signatures[name] = parameters
    return signatures


class Nvml:
    """NVML's two input files, checked against each other."""

    def __init__(self, list_path, api_path):
        lines = [line.split() for line in list_path.read_text().splitlines() if line and not line.startswith("#")]
        for fields in lines:
            if len(fields) != 2 or fields[1] not in NVML_CLASSES:
                raise Failure(f"{list_path}: '{' '.join(fields)}' is not 'symbol class' with a class of {', '.join(NVML_CLASSES)}")
        self.slots = [fields[0] for fields in lines]
        self.hooked = [fields[0] for fields in lines if fields[1] == "custom"]
        self.declarations = dict(re.findall(r"^(?=Return (nvml\w+)\()(Return nvml\w+\([^()]*\));$", api_path.read_text(), re.M))
        if self.slots != sorted(set(self.slots)):
            raise Failure(f"{list_path} is out of order, or has something twice")
        if set(self.slots) != set(self.declarations):
            raise Failure(f"only one of {list_path} and {api_path} has: {', '.join(sorted(set(self.slots) ^ set(self.declarations)))}")


class Interface:
    """What the two input files say, checked against each other."""

    def __init__(self, entries, signatures):
        symbols = {entry.symbol for entry in entries}
        self.submits = [entry for entry in entries if entry.kind == "submit"]
        self.growing = [entry for entry in entries if entry.kind in ("grows", "looks")]
        self.hooked = [entry for entry in entries if entry.kind in HOOKED]
        self.signatures = signatures
        for entry in self.hooked:
            if base_name(entry.symbol) not in signatures:
                raise Failure(f"{entry.symbol} is hooked, but {DRIVER_API} does not declare {base_name(entry.symbol)}")
        for name in signatures:
            if name not in symbols:
                raise Failure(f"{DRIVER_API} declares {name}, which {ENTRY_POINTS} does not list")
        self.slots = sorted(set(signatures) | {entry.symbol for entry in self.hooked})
        self.since = {entry.symbol: entry.since for entry in entries}
        self.unhooked = sorted(symbols - set(self.slots))

    def parameters(self, symbol):
        return self.signatures[base_name(symbol)]

    def declaration(self, symbol):
        inside = ", ".join(f"{parameter.type} {parameter.name}" for parameter in self.parameters(symbol))
        return f"CUresult {symbol}({inside})"

    def arguments(self, symbol):
        return ", ".join(parameter.name for parameter in self.parameters(symbol))

    def stream_index(self, symbol):
        """The position of the stream among the parameters; None when it has none (synchronous, or streams inside a struct)."""
        streams = [index for index, parameter in enumerate(self.parameters(symbol)) if parameter.type == "CUstream"]
        if len(streams) > 1:
            raise Failure(f"{symbol} has several streams: make it custom")
        return streams[0] if streams else None


def is_copy(interface, symbol):
    """A copy whose addresses may lie on several GPUs; the 32-bit interface's cannot be ours."""
    types = [parameter.type for parameter in interface.parameters(symbol)]
    return symbol.startswith("cuMemcpy") and not any("_v1" in type_ for type_ in types)


def is_fill(interface, symbol):
    """A fill, which wants access to the memory; as above."""
    types = [parameter.type for parameter in interface.parameters(symbol)]
    return symbol.startswith("cuMemset") and not any("_v1" in type_ for type_ in types)


def banner(comment):
    return (
        f"{comment} Generated by tools/generate_entry_points.py from entry_points.txt and cuda/driver_api.h. Do not edit.\n"
        f"{comment} clang-format off\n"
    )


def real_driver_table_header(interface):
    lines = [f"  decltype(&cuda::api::{base_name(symbol)}) {symbol};" for symbol in interface.slots]
    return f"""{banner("//")}#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/driver_api.h"

namespace nvshare::interposer {{

// Functions of the real driver, one slot each, in the order of names. No slot is ever null in a table that real_driver() hands out: what a driver
// lacks is a function that answers so.
struct RealDriver {{
{chr(10).join(lines)}
}};

inline constexpr size_t kDriverSlots = {len(interface.slots)};
static_assert(sizeof(RealDriver) == kDriverSlots * sizeof(void*));

inline constexpr int kNewestListed = {max(interface.since.values())};  // the newest CUDA version of which entry_points.txt has a function

extern const char* const kSlotNames[kDriverSlots];  // sorted bytewise
extern const uint16_t kSlotSince[kDriverSlots];     // CUDA version that introduced it (see entry_points.txt); 0: not hooked
extern const RealDriver kHooks;                     // what libnvshare.so exports in its place; null: not hooked
extern const RealDriver kMissing;                   // functions that answer missing_function() (symbols/real_driver.h)

}}  // namespace nvshare::interposer
"""


def real_driver_table_source(interface):
    names = "\n".join(f'    "{symbol}",' for symbol in interface.slots)
    since = "\n".join(f"    {interface.since[symbol]},  // {symbol}" for symbol in interface.slots)
    hooks = "\n".join(f"    .{entry.symbol} = &{entry.symbol}," for entry in interface.hooked)
    missing = "\n".join(f"    .{symbol} = missing<decltype(RealDriver::{symbol})>," for symbol in interface.slots)
    return f"""{banner("//")}#include "interposer/generated/real_driver_table.h"

#include "interposer/generated/hooks.h"
#include "interposer/symbols/missing.h"

namespace nvshare::interposer {{

const char* const kSlotNames[kDriverSlots] = {{
{names}
}};

const uint16_t kSlotSince[kDriverSlots] = {{
{since}
}};

constinit const RealDriver kHooks = {{
{hooks}
}};

constinit const RealDriver kMissing = {{
{missing}
}};

}}  // namespace nvshare::interposer
"""


def unhooked_names_header(interface):
    """One string: an array of pointers would have to be relocated in every process that the library is loaded into."""
    names = "\n".join(f'    "{symbol}\\0"' for symbol in interface.unhooked)
    offsets, at = [], 0
    for symbol in interface.unhooked:
        offsets.append(at)
        at += len(symbol) + 1
    rows = "\n".join("    " + ", ".join(map(str, offsets[i : i + 20])) + "," for i in range(0, len(offsets), 20))
    return f"""{banner("//")}#pragma once

#include <cstddef>
#include <cstdint>

namespace nvshare::interposer {{

// Sorted bytewise; name n begins at kUnhookedNames + kUnhookedOffsets[n].
inline constexpr size_t kUnhooked = {len(offsets)};
inline constexpr char kUnhookedNames[] =
{names};
inline constexpr uint16_t kUnhookedOffsets[kUnhooked] = {{
{rows}
}};

}}  // namespace nvshare::interposer
"""


def hooks_header(interface):
    declarations = "\n".join(f"NVSHARE_EXPORT {interface.declaration(entry.symbol)};" for entry in interface.hooked)
    return f"""{banner("//")}#pragma once

#include "cuda/driver_api.h"
#include "interposer/symbols/export.h"

namespace nvshare::interposer {{

using namespace cuda;

extern "C" {{
{declarations}
}}

}}  // namespace nvshare::interposer
"""


def wrapper(interface, symbol, attributes, call):
    arguments = ", ".join(filter(None, ["Entry()", interface.arguments(symbol)]))
    return f"{attributes}{interface.declaration(symbol)} {{\n  return {call}({arguments});\n}}\n"


def submit_hooks_source(interface):
    wrappers = []
    for entry in interface.submits:
        index = interface.stream_index(entry.symbol)
        stream = "kNoStream" if index is None else str(index)
        per_thread = "true" if base_name(entry.symbol) != entry.symbol else "false"
        function = "submit_copy" if is_copy(interface, entry.symbol) else "submit_fill" if is_fill(interface, entry.symbol) else "submit"
        call = f"{function}<&RealDriver::{entry.symbol}, {stream}, {per_thread}>"
        wrappers.append(wrapper(interface, entry.symbol, "NVSHARE_EXPORT ", call))
    return f"""{banner("//")}#include "interposer/generated/hooks.h"
#include "interposer/hooks/submit.h"

namespace nvshare::interposer {{
extern "C" {{

{chr(10).join(wrappers)}
}}  // extern "C"
}}  // namespace nvshare::interposer
"""


def growing_hooks_source(interface):
    wrappers = [
        wrapper(interface, entry.symbol, "NVSHARE_EXPORT ", f"{'with_room' if entry.kind == 'grows' else 'look'}<&RealDriver::{entry.symbol}>")
        for entry in interface.growing
    ]
    return f"""{banner("//")}#include "interposer/generated/hooks.h"
#include "interposer/hooks/looks.h"

namespace nvshare::interposer {{
extern "C" {{

{chr(10).join(wrappers)}
}}  // extern "C"
}}  // namespace nvshare::interposer
"""


def nvml_banner():
    return banner("//").replace("entry_points.txt and cuda/driver_api.h", "nvml_entry_points.txt and cuda/nvml_api.h")


def nvml_table_header(nvml):
    slots = "\n".join(f"  decltype(&cuda::nvml::api::{symbol}) {symbol};" for symbol in nvml.slots)
    hooks = "\n".join(f"NVSHARE_EXPORT {nvml.declarations[symbol]};" for symbol in nvml.hooked)
    return f"""{nvml_banner()}#pragma once

#include <cstddef>

#include "cuda/nvml_api.h"
#include "interposer/symbols/export.h"

namespace nvshare::interposer {{

// NVML's functions, one slot each, in the order of names.
struct NvmlTable {{
{slots}
}};

inline constexpr size_t kNvmlSlots = {len(nvml.slots)};
static_assert(sizeof(NvmlTable) == kNvmlSlots * sizeof(void*));

extern const char* const kNvmlNames[kNvmlSlots];
extern const NvmlTable kNvmlHooks;  // what libnvshare.so exports in its place; null: not hooked

using cuda::nvml::Handle;
using cuda::nvml::MemoryV1;
using cuda::nvml::MemoryV2;
using cuda::nvml::ProcessV1;
using cuda::nvml::ProcessV2;
using cuda::nvml::Return;

extern "C" {{
{hooks}
}}

}}  // namespace nvshare::interposer
"""


def nvml_table_source(nvml):
    names = "\n".join(f'    "{symbol}",' for symbol in nvml.slots)
    hooks = "\n".join(f"    .{symbol} = &{symbol}," for symbol in nvml.hooked)
    return f"""{nvml_banner()}#include "interposer/generated/nvml_table.h"

namespace nvshare::interposer {{

const char* const kNvmlNames[kNvmlSlots] = {{
{names}
}};

constinit const NvmlTable kNvmlHooks = {{
{hooks}
}};

}}  // namespace nvshare::interposer
"""


def version_script(interface, nvml):
    exported = sorted([entry.symbol for entry in interface.hooked] + nvml.hooked + list(LOOKUP_HOOKS))
    symbols = "\n".join(f"    {symbol};" for symbol in exported)
    return f"{banner('#')}{{\n  global:\n{symbols}\n  local:\n    *;\n}};\n"


def outputs(interface, nvml):
    """file name -> contents"""
    return {
        "real_driver_table.h": real_driver_table_header(interface),
        "real_driver_table.cc": real_driver_table_source(interface),
        "hooks.h": hooks_header(interface),
        "unhooked_names.h": unhooked_names_header(interface),
        "submit_hooks.cc": submit_hooks_source(interface),
        "growing_hooks.cc": growing_hooks_source(interface),
        "nvml_table.h": nvml_table_header(nvml),
        "nvml_table.cc": nvml_table_source(nvml),
        "libnvshare.map": version_script(interface, nvml),
    }


def exported_functions(library):
    """Names of the functions that a shared library defines for others."""
    if shutil.which("nm"):
        command = ["nm", "-D", "--defined-only", library]
        pattern = re.compile(r"^[0-9a-f]+ [TWi] ([^@\s]+)", re.M)
    elif shutil.which("readelf"):
        command = ["readelf", "--dyn-syms", "-W", library]
        pattern = re.compile(r"FUNC\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+\d+ ([^@\s]+)", re.M)
    else:
        raise Failure("neither nm nor readelf is installed (package binutils)")
    result = subprocess.run(command, text=True, capture_output=True, check=False)
    if result.returncode != 0:
        raise Failure(f"{' '.join(command)}: {result.stderr.strip()}")
    return set(pattern.findall(result.stdout))


def unclassified(entries, library):
    known = {entry.symbol for entry in entries}
    return sorted(name for name in exported_functions(library) if name.startswith("cu") and name not in known)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="only say whether the files are up to date")
    mode.add_argument("--unclassified", metavar="LIBCUDA", help="list what this driver exports beyond the list")
    arguments = parser.parse_args()

    entries = read_entry_points(ENTRY_POINTS)
    if arguments.unclassified:
        missing = unclassified(entries, arguments.unclassified)
        for symbol in missing:
            print(f"{symbol}: not in {ENTRY_POINTS.relative_to(ROOT)}")
        return 1 if missing else 0

    files = outputs(Interface(entries, {**read_signatures(DRIVER_API), **read_signatures(DRIVER_API_NEWER)}), Nvml(NVML_ENTRY_POINTS, NVML_API))
    differing = [name for name, contents in files.items() if not up_to_date(GENERATED / name, contents)]
    if not arguments.check:
        GENERATED.mkdir(parents=True, exist_ok=True)
        for name in differing:
            (GENERATED / name).write_text(files[name])
            print(f"{(GENERATED / name).relative_to(ROOT)}: written")
        return 0
    strangers = sorted(path.name for path in GENERATED.iterdir() if path.name not in files and path.name != "README.md")
    for name in differing:
        print(f"{(GENERATED / name).relative_to(ROOT)}: differs: run tools/generate_entry_points.py")
    for name in strangers:
        print(f"{(GENERATED / name).relative_to(ROOT)}: is not generated and does not belong there")
    return 1 if differing or strangers else 0


def up_to_date(path, contents):
    return path.exists() and path.read_text() == contents


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"generate_entry_points.py: {failure}")
