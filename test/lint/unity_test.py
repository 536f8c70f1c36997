#!/usr/bin/env python3
"""What is compiled several sources at a time (cmake/NvshareTargets.cmake, nvshare_unity) is the same text for the compiler wherever the clone
lies, so that ccache has it: a sanitizer's build is most of what CI takes. The sanitizers' presets are configured, nothing is built.
"""
import json
import pathlib
import shlex
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# ccache makes the paths that follow these relative (CCACHE_BASEDIR), or looks only at what is found there.
PATHS = ("-I", "-isystem", "-iquote", "-include", "-o", "-c")


def commands_of(preset: str) -> list[list[str]]:
    with tempfile.TemporaryDirectory(prefix="nvshare-unity-") as folder:
        subprocess.run(["cmake", "--preset", preset, "-B", folder], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        entries = json.loads((pathlib.Path(folder) / "compile_commands.json").read_text())
        return [shlex.split(entry["command"].replace(folder, "BUILD")) for entry in entries if "/Unity/unity_" in entry["file"]]


def arguments_with_the_clones_place(command: list[str]) -> list[str]:
    """Arguments that name the clone or the build folder, but for the paths that ccache knows."""
    return [argument for before, argument in zip([""] + command, command)
            if (str(ROOT) in argument or "BUILD" in argument) and before not in PATHS and not argument.startswith(PATHS)
            and not argument.startswith("-fmacro-prefix-map=")]


class Unity(unittest.TestCase):
    def test_no_source_knows_where_the_clone_lies(self):
        for preset in ("asan", "tsan"):
            commands = commands_of(preset)
            self.assertGreater(len(commands), 20, preset)
            for command in commands:
                with self.subTest(preset=preset, file=command[-1]):
                    # CMake's file includes the sources by their full paths: those would be what __FILE__ is.
                    self.assertIn(f"-fmacro-prefix-map={ROOT}/=", command)
                    self.assertEqual(arguments_with_the_clones_place(command), [])


if __name__ == "__main__":
    unittest.main()
