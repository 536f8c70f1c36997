#!/usr/bin/env python3
"""deploy/jupyter/nvshare.py in a real Jupyter kernel that runs under nvshare, on the stand-in GPU.

  jupyter_test.py --build BUILD [unittest arguments]

Without python3-ipykernel and python3-jupyter-client it is skipped: exit status 77.
"""
import argparse
import os
import pathlib
import sys
import time
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "test/page"))
from stage import Stage  # noqa: E402

SKIPPED = 77
PATIENCE = 120
PROGRAM = argparse.Namespace(build=None)
# What a cell does that uses the GPU, by the driver alone.
CUDA = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"
context, memory, size = ctypes.c_void_p(), ctypes.c_uint64(), 64 << 20
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
call("cuMemsetD8_v2", memory, ctypes.c_ubyte(0x5a), ctypes.c_size_t(size))
call("cuCtxSynchronize")
"""
READ = """
held = (ctypes.c_ubyte * size)()
call("cuMemcpyDtoH_v2", held, memory, ctypes.c_size_t(size))
print("intact" if bytes(held) == b"\\x5a" * size else "changed")
"""


class Kernel:
    """A kernel under `nvsharectl run`, as kernel.json starts it."""

    def __init__(self, stage):
        from jupyter_client import KernelManager
        from jupyter_client.kernelspec import KernelSpec
        environment = {**stage.environment, "PYTHONPATH": str(TREE / "deploy/jupyter"), "NVSHARECTL": str(stage.build / "bin/nvsharectl"),
                       "JUPYTER_RUNTIME_DIR": str(stage.path / "jupyter"), "IPYTHONDIR": str(stage.path / "ipython"), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        self.manager = KernelManager(connection_file=str(stage.path / "kernel.json"))
        self.manager._kernel_spec = KernelSpec(argv=[str(stage.build / "bin/nvsharectl"), "run", "--quiet", "--name", "notebook", "--", sys.executable, "-m",
                                                     "ipykernel_launcher", "-f", "{connection_file}"], display_name="shared", language="python")
        self.manager.start_kernel(env=environment)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def run(self, code):
        """What the cell printed, and its value as text."""
        printed, values = [], []

        def hear(message):
            content = message["content"]
            if message["msg_type"] == "stream":
                printed.append(content["text"])
            elif message["msg_type"] == "execute_result":
                values.append(content["data"]["text/plain"])
            elif message["msg_type"] == "error":
                printed.append("\n".join(content["traceback"]))

        self.client.execute_interactive(code, output_hook=hear, timeout=PATIENCE)
        return "".join(printed), "".join(values)

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)


class Extension(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stage = Stage(PROGRAM.build)
        cls.addClassCleanup(cls.stage.close)
        cls.kernel = Kernel(cls.stage)
        cls.addClassCleanup(cls.kernel.close)
        text, _ = cls.kernel.run("%load_ext nvshare")
        assert text == "", text

    def state(self):
        return [client["state"] for client in self.stage.status()["clients"] if client["program"].startswith("python")]

    def test_a_notebook_from_its_first_cell_to_its_release(self):
        run = self.kernel.run
        self.assertIn("This notebook uses no GPU.", run("%nvshare")[0])
        self.assertIn("is no client of the scheduler", run("%nvshare release")[0])
        self.assertEqual(run(CUDA)[0], "")
        text = run("%nvshare")[0]
        self.assertRegex(text, r"GPU 0 \(.*, 512 MiB\): 'notebook' has it")
        self.assertRegex(text, r"this notebook: running for [\d.]+ s, 64 MiB on the GPU")
        time.sleep(1)
        self.assertEqual(self.state(), ["running"], "alone it keeps its turn")
        self.assertIn("released", run("%nvshare release")[0])
        self.stage.wait_for(lambda: self.state() == ["idle"], "the end of its turn")
        self.assertIn("nobody runs", run("%nvshare")[0])
        self.assertEqual(run(READ)[0], "intact\n")
        self.assertEqual(self.state(), ["running"], "it has a new turn")

        # Somebody else on the GPU.
        job = self.stage.run("train", "64M")
        busy = lambda: [client for client in self.stage.status()["clients"] if client["program"] == "nvshare-demo-job" and client["state"] != "idle"]
        self.stage.wait_for(busy, "the other program")
        self.stage.remember_programs()
        self.assertRegex(run("%nvshare")[0], r"'train' \(nvshare-demo-job, \d+\): \w+ for")
        text, value = run("%nvshare wait 1")
        self.assertRegex(text, r"waits for 'train', \w+ for .*\r *gave up after 1\.\d s")
        self.assertEqual(value, "False")
        os.kill(busy()[0]["pid"], 9)
        job.wait()
        text, value = run("%nvshare wait")
        self.assertIn("the GPU is free, after", text)
        self.assertEqual(value, "True")

    def test_wrong_uses_are_explained(self):
        for words, thing in (("wit", "'wit'"), ("wait soon", "'soon'"), ("wait -1", "'-1'"), ("wait nan", "'nan'"), ("release now", "'release now'")):
            text, value = self.kernel.run("%nvshare " + words)
            self.assertEqual(value, "")
            self.assertRegex(text, f"^nvshare: .*{thing}.*accepted: nothing, 'wait', 'wait SECONDS', 'release'\n$", words)

    def test_without_nvsharectl_or_a_scheduler_it_says_so(self):
        run = self.kernel.run
        run("import os; kept = os.environ['NVSHARECTL'], os.environ['PATH'], os.environ['NVSHARE_RUNTIME_DIR']")
        try:
            run("os.environ['NVSHARECTL'] = ''; os.environ['PATH'] = '/nonexistent'")
            self.assertIn("nvshare: there is no nvsharectl in PATH", run("%nvshare")[0])
            run("os.environ['NVSHARECTL'] = kept[0]; os.environ['NVSHARE_RUNTIME_DIR'] = '/nonexistent/nvshare'")
            text = run("%nvshare")[0]
            self.assertRegex(text, "^nvshare: nvsharectl: .*/nonexistent/nvshare.*\n$")
        finally:
            run("os.environ['NVSHARECTL'], os.environ['PATH'], os.environ['NVSHARE_RUNTIME_DIR'] = kept")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM.build = arguments.build.resolve()
    try:
        import ipykernel  # noqa: F401
        import jupyter_client  # noqa: F401
    except ImportError as missing:
        print(f"skipped: there is no {missing.name}; tools/install-dependencies.sh test installs python3-ipykernel and python3-jupyter-client", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
