"""A stand-in GPU, a scheduler with the page, and CUDA programs that share the GPU, all in a folder of their own."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

PATIENCE = 120


class Stage:
    def __init__(self, build, gpu_mb=512, token=None, **more):
        self.build = pathlib.Path(build).resolve()
        self.folder = tempfile.TemporaryDirectory(prefix="nvs-page-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.path = pathlib.Path(self.folder.name)
        (self.path / "run").mkdir()
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": self.folder.name, "LD_LIBRARY_PATH": str(self.build / "simgpu"),
            "NVSHARE_RUNTIME_DIR": str(self.path / "run"), "NVSHARE_LOCK_DIR": str(self.path / "lock"), "SIMGPU_STATE": str(self.path / "gpu"),
            "SIMGPU_MEMORY_MB": str(gpu_mb), "SIMGPU_CONTEXT_MB": "4", "NVSHARE_MEMORY_RESERVE_PERCENT": "10",
            "NVSHARE_LIBRARY": str(self.build / "lib/libnvshare.so"), "NVSHARE_PAGE_ADDRESS": "127.0.0.1:0", **more,
        }
        if token:
            file = self.path / "token"
            file.touch(0o600)
            file.write_text(token + "\n")
            self.environment["NVSHARE_PAGE_TOKEN_FILE"] = str(file)
        self.log = self.path / "log"
        self.children = []
        self.scheduler = self.start(self.build / "bin/nvshare-scheduler")
        self.url = self.wait_for(lambda: (found := re.search(r"page at (http://\S+)", self.log.read_text())) and found[1], "the page's address")

    def start(self, *command):
        with self.log.open("a") as log:
            child = subprocess.Popen([str(word) for word in command], env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.children.append(child)
        return child

    def run(self, name, size, *options, compute_us=2000):
        """A tenant with one program that works on so much memory until it is killed."""
        return self.start(self.build / "bin/nvsharectl", "run", "--name", name, *options, "--", self.build / "bin/nvshare-demo-job",
                          "--bytes", size, "--block", "8M", "--steps", 1000000, "--compute-us", compute_us)

    def control(self, *words):
        return subprocess.run([str(self.build / "bin/nvsharectl"), *words], env=self.environment, capture_output=True, text=True, check=True).stdout

    def status(self):
        return json.loads(self.control("status", "--json"))

    def wait_for(self, ready, what):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if found := ready():
                return found
            if self.children and self.children[0].poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"{what} did not come; the programs said:\n{self.log.read_text()[-4000:]}")

    def close(self):
        for child in reversed(self.children):
            child.kill()
            child.wait()
        # nvsharectl's programs, which it leaves behind when it is killed.
        for client in self.programs:
            try:
                os.kill(client, 9)
            except ProcessLookupError:
                pass
        self.folder.cleanup()

    programs = ()

    def remember_programs(self):
        self.programs = tuple(client["pid"] for client in self.status()["clients"])
