#!/usr/bin/env python3
"""nvshare in containers of real engines, with a stand-in GPU: Podman (root, rootless), containerd by ctr, Docker.

    test/engines/engines_test.py --build build/release [--engines podman,rootless,ctr,docker] [--verbose]

What a container gets: by CDI devices where the engine takes them (Podman, Docker 28.2), else (ctr of containerd 1.6) the same mounts and
variables, read from the same CDI specification. The stand-in GPU comes as NVIDIA's driver does, by a CDI specification of its own,
nvidia.com/gpu=0. The image is made from this machine's own files, since no registry is needed for it.

Needs root, and is left out with a word for each engine that the machine does not have or cannot run. It writes specifications into
/var/run/cdi, where engines look, and removes them; where nvshare's lie there already, it does nothing.
"""
import argparse
import contextlib
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

DEBUG = ["--env=NVSHARE_LOG_LEVEL=debug"] if "NVSHARE_TEST_DEBUG" in os.environ else []
OPTIONS = argparse.Namespace()
CDI = pathlib.Path("/var/run/cdi")  # the engines' own place
OURS = ("nvshare.com-gpu.json", "nvshare.com-gpu-names.json", "nvshare.com-gpu-memory.json")
DRIVER = "nvidia.com-gpu.json"
IMAGE = "localhost/nvshare-engines-test:1"
LIMIT_MIB = 64
PATIENCE_S = int(os.environ.get("NVSHARE_TEST_PATIENCE_S", "60"))
USER = "nvshare-engines"  # of rootless containers; made and removed
LIBRARY = "/usr/lib/nvshare/libnvshare.so"


def run(*command, check=True, **more):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=120, **more)
    if check and result.returncode != 0:
        raise RuntimeError(f"{' '.join(str(word) for word in command)}: {result.stdout}{result.stderr}")
    return result


def wait_for(condition, what):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited for {what}")


class Node:
    """A machine with nvshare: scheduler, CDI specifications, the image's files. Its GPU is the stand-in."""

    def __init__(self):
        self.build = OPTIONS.build.resolve()
        # Below a folder that everybody may pass, for users of rootless containers.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nvshare-engines-", dir="/var/tmp"))
        self.folder.chmod(0o755)
        self.root = self.folder / "rootfs"
        (self.folder / "gpu").mkdir()
        (self.folder / "stop").mkdir()
        self.environment = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(self.build / "simgpu"),
            "SIMGPU_STATE": str(self.folder / "gpu/state"),
            # The stand-in knows processes by the numbers of their own PID namespaces. So its NVML tells nothing of containers, and who comes
            # makes its GPU anew, as the scheduler knows it: each container has the whole memory, and the scheduler shares it out.
            "NVSHARE_NVML": "off",
            "SIMGPU_MEMORY_MB": "512",
            "NVSHARE_MEMORY_RESERVE_PERCENT": "5",
            "NVSHARE_RUNTIME_DIR": str(self.folder / "run"),
            "NVSHARE_LOCK_DIR": str(self.folder / "locks"),
            "NVSHARE_INSTALL_DIR": str(self.folder / "install"),
            "NVSHARE_LIBRARY": str(self.build / "lib/libnvshare.so"),
            "NVSHARE_GPU_MEMORY_UNIT": "1Mi",
            "NVSHARE_CDI_DIR": str(CDI),
            "NVSHARE_SWITCH_TIME_MODE": "fixed",
            "NVSHARE_SWITCH_TIME_FIXED": "0.1",
        }
        self.made_cdi = not CDI.exists()
        self.scheduler = self.holder = None

    def start(self):
        self.log = open(self.folder / "scheduler.log", "w", encoding="utf-8")
        self.scheduler = subprocess.Popen([self.build / "bin/nvshare-scheduler"], env=self.environment, stderr=self.log)
        wait_for((self.folder / "run/client/scheduler.sock").exists, "the scheduler's socket")
        # A program of the machine, past nvshare: as long as it runs the stand-in's GPU is the same one.
        self.holder = subprocess.Popen(
            [self.build / "bin/e2e_worker", "limit-follow", "--most", "0", "--stop", self.folder / "end"], env=self.environment, stdout=self.log
        )
        wait_for((self.folder / "gpu/state").exists, "the stand-in's GPU")
        (self.folder / "gpu/state").chmod(0o666)  # the device files of a real GPU are everybody's too
        run(self.build / "bin/nvshare-device-plugin", "--write-cdi", env=self.environment)
        (self.folder / "gpu").chmod(0o777)
        driver = {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": "0", "containerEdits": {"env": ["LD_LIBRARY_PATH=/usr/lib/driver", "SIMGPU_STATE=/driver/gpu/state"]}}],
            "containerEdits": {
                "mounts": [
                    {"hostPath": str(self.build / "simgpu"), "containerPath": "/usr/lib/driver", "options": ["ro", "bind"]},
                    {"hostPath": str(self.folder / "gpu"), "containerPath": "/driver/gpu", "options": ["rw", "bind"]},
                ]
            },
        }
        (CDI / DRIVER).write_text(json.dumps(driver), encoding="utf-8")
        self.make_root()

    def make_root(self):
        for folder in ("bin", "usr/bin", "usr/lib", "lib", "lib64", "proc", "sys", "dev", "tmp", "etc", "run", "stop"):
            (self.root / folder).mkdir(parents=True)
        worker = self.build / "bin/e2e_worker"
        shutil.copy(worker, self.root / "usr/bin/worker")
        shutil.copy("/bin/busybox", self.root / "bin/busybox")
        for tool in ("sh", "cat", "sleep", "id", "echo", "touch", "env"):
            (self.root / "bin" / tool).symlink_to("busybox")
        # What the worker, the stand-in and the library that comes from outside are linked with.
        for line in "".join(run("ldd", program).stdout for program in (worker, self.build / "lib/libnvshare.so")).splitlines():
            if (found := re.search(r"(/\S+) \(0x", line)) and "/simgpu/" not in line:
                place = self.root / found.group(1).lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(found.group(1), place)
        self.archive = self.folder / "image.tar"
        run("tar", "-C", self.root, "-cf", self.archive, ".")

    def status(self):
        return json.loads(run(self.build / "bin/nvsharectl", "status", "--json", env=self.environment).stdout)

    def programs(self):
        """By process: its tenant's report, with the client's as 'client'."""
        status = self.status()
        tenants = {tenant["id"]: tenant for tenant in status["tenants"]}
        return {client["pid"]: {**tenants[client["tenant"]], "client": client} for client in status["clients"]}

    def stop(self):
        if self.holder is not None:
            (self.folder / "end").touch()
            self.holder.wait(PATIENCE_S)
        if self.scheduler is not None:
            self.scheduler.send_signal(signal.SIGTERM)
            self.scheduler.wait(PATIENCE_S)
            self.log.close()
        for name in (*OURS, DRIVER):
            (CDI / name).unlink(missing_ok=True)
        if self.made_cdi:
            with contextlib.suppress(OSError):
                CDI.rmdir()
        shutil.rmtree(self.folder)


class Container:
    def __init__(self, process, name, end, file):
        self.file = file
        self.process, self.name, self.end = process, name, end

    def log(self):
        return self.file.read_text(encoding="utf-8", errors="replace")


class Engine:
    """How an engine runs the image's worker. `why_not` says why it cannot, or is None."""

    def __init__(self, node):
        self.node = node
        self.count = 0
        self.running = []

    def begin(self, command, name, end):
        file = self.node.folder / f"{name}.log"
        with open(file, "w", encoding="utf-8") as log:
            process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd="/")
        self.running.append(Container(process, name, end, file))
        return self.running[-1]

    def name(self):
        self.count += 1
        return f"nvshare-engines-{os.getpid()}-{self.count}"

    def kind(self, pid):
        """What the scheduler takes a container of it for: rootless ones have no cgroup of their own where cgroups are of version 1, and a
        user's PID namespaces say nothing."""
        return "container" if "libpod-" in pathlib.Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8") else "process"

    def tidy(self):
        for container in self.running:
            if container.process.poll() is None:
                container.end()
                container.process.wait(PATIENCE_S)
        self.running.clear()

    def close(self):
        pass


# No image needs a network here, and a machine may let nobody raise a limit.
PODMAN_PLAIN = ("--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")


class Podman(Engine):
    label = "podman"
    as_user = ()
    runtime = ()

    def why_not(self):
        if shutil.which("podman") is None:
            return "podman is not installed"
        problems = []
        for runtime in ("crun", "runc"):
            if shutil.which(runtime) is None:
                continue
            self.runtime = (f"--runtime={runtime}",)
            run(*self.podman(), "import", self.node.archive, IMAGE, cwd="/")
            tried = run(*self.podman(), "run", "--rm", *PODMAN_PLAIN, IMAGE, "/bin/sh", "-c", "exit 0", check=False, cwd="/")
            if tried.returncode == 0:
                return None
            problems.append(f"{runtime}: {tried.stderr.strip()}")
        return "podman runs no container here: " + "; ".join(problems or ["neither crun nor runc is installed"])

    def podman(self):
        return (*self.as_user, "podman", *self.runtime)

    def start(self, arguments, options=(), limit=LIMIT_MIB, plain_mounts=()):
        name = self.name()
        devices = ["--device=nvidia.com/gpu=0", "--device=nvshare.com/gpu=0", f"--device=nvshare.com/gpu-memory={limit}Mi", *DEBUG]
        mounts = [f"--volume={self.node.folder / 'stop'}:/stop:ro", *(f"--volume={mount}" for mount in plain_mounts)]
        command = [*self.podman(), "run", "--rm", f"--name={name}", *PODMAN_PLAIN, *devices, *mounts, *options, IMAGE, *arguments]
        return self.begin(command, name, lambda: run(*self.podman(), "kill", name, check=False, cwd="/"))

    def pid(self, container):
        return int(run(*self.podman(), "inspect", "--format={{.State.Pid}}", container.name, cwd="/").stdout)

    def close(self):
        run(*self.podman(), "rmi", "--force", IMAGE, check=False, cwd="/")


class RootlessPodman(Podman):
    label = "rootless podman"

    def why_not(self):
        if shutil.which("newuidmap") is None or shutil.which("runuser") is None:
            return "newuidmap (package uidmap) or runuser is missing"
        with contextlib.suppress(KeyError):
            pwd.getpwnam(USER)
            return f"there is a user {USER} already"
        run("useradd", "--create-home", "--shell", "/bin/sh", USER)
        self.made = True
        identity = pwd.getpwnam(USER)
        self.runtime_folder = self.node.folder / "user"
        self.runtime_folder.mkdir(mode=0o700)
        os.chown(self.runtime_folder, identity.pw_uid, identity.pw_gid)
        self.as_user = ("runuser", "-u", USER, "--", "env", f"HOME={identity.pw_dir}", f"XDG_RUNTIME_DIR={self.runtime_folder}")
        return super().why_not()

    def close(self):
        if not getattr(self, "made", False):
            return
        if self.as_user:
            super().close()
            # In its user namespace lie files that only that may remove.
            run(*self.podman(), "system", "migrate", check=False, cwd="/")
            run(*self.podman(), "unshare", "rm", "-rf", f"{pwd.getpwnam(USER).pw_dir}/.local", check=False, cwd="/")
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if process.stat().st_uid == pwd.getpwnam(USER).pw_uid:
                    os.kill(int(process.name), signal.SIGKILL)
        run("userdel", "--remove", USER, check=False)


class Ctr(Engine):
    label = "containerd"

    def kind(self, pid):
        return "container"  # by its PID namespace: its cgroup, /NAMESPACE/NAME, may be any folder's name

    def why_not(self):
        for program in ("containerd", "ctr", "runc"):
            if shutil.which(program) is None:
                return f"{program} is not installed"
        folder = self.node.folder / "containerd"
        folder.mkdir()
        config = folder / "config.toml"
        config.write_text(
            f'version = 2\nroot = "{folder}/root"\nstate = "{folder}/state"\n[grpc]\naddress = "{folder}/socket"\n', encoding="utf-8"
        )
        self.address = f"{folder}/socket"
        self.daemon = subprocess.Popen(
            ["containerd", "--config", config], stdout=subprocess.DEVNULL, stderr=open(folder / "log", "w", encoding="utf-8")
        )
        with contextlib.suppress(AssertionError):
            wait_for(lambda: pathlib.Path(self.address).exists() or self.daemon.poll() is not None, "containerd")
        if self.daemon.poll() is not None or not pathlib.Path(self.address).exists():
            return "containerd does not start here: " + (folder / "log").read_text(encoding="utf-8")[-300:]
        tried = run(*self.ctr(), "run", "--rm", "--rootfs", self.node.root, self.name(), "/bin/sh", "-c", "exit 0", check=False)
        return None if tried.returncode == 0 else f"ctr runs no container here: {tried.stderr.strip()[-300:]}"

    def ctr(self):
        return ("ctr", "--address", self.address)

    def edits(self, limit):
        """What the CDI devices would bring: ctr of containerd 1.6 knows none."""
        mounts, variables = [], []
        for file, name in (("nvshare.com-gpu-names.json", "0"), ("nvshare.com-gpu-memory.json", f"{limit}Mi"), (DRIVER, "0")):
            spec = json.loads((CDI / file).read_text(encoding="utf-8"))
            device = next(device for device in spec["devices"] if device["name"] == name)
            for edits in (spec.get("containerEdits", {}), device["containerEdits"]):
                mounts += [(mount["hostPath"], mount["containerPath"], mount["options"]) for mount in edits.get("mounts", [])]
                variables += edits.get("env", [])
        return mounts, variables

    def start(self, arguments, options=(), limit=LIMIT_MIB, plain_mounts=()):
        name = self.name()
        mounts, variables = self.edits(limit)
        mounts += [(str(self.node.folder / "stop"), "/stop", ["ro"])] + [(*mount.split(":")[:2], ["ro"]) for mount in plain_mounts]
        words = [f"--env={variable}" for variable in variables]
        words += [f"--mount=type=bind,src={host},dst={there},options=rbind:{'ro' if 'ro' in how else 'rw'}" for host, there, how in mounts]
        command = [*self.ctr(), "run", "--rm", *words, *options, "--rootfs", self.node.root, name, *arguments]
        return self.begin(command, name, lambda: run(*self.ctr(), "task", "kill", "--signal", "SIGKILL", name, check=False))

    def pid(self, container):
        for line in run(*self.ctr(), "task", "ls").stdout.splitlines():
            if line.split()[0] == container.name:
                return int(line.split()[1])
        raise AssertionError(f"{container.name} is no task")

    def close(self):
        if getattr(self, "daemon", None) is not None:
            self.daemon.send_signal(signal.SIGTERM)
            self.daemon.wait(PATIENCE_S)


class Docker(Podman):
    label = "docker"

    def why_not(self):
        if shutil.which("docker") is None:
            return "docker is not installed"
        if run("docker", "info", check=False).returncode != 0:
            return "docker's daemon does not answer"
        version = run("docker", "version", "--format={{.Server.Version}}").stdout.strip()
        if tuple(int(part) for part in version.split(".")[:2]) < (28, 2):
            return f"docker {version} has CDI only as a feature that its daemon's configuration switches on; from 28.2 it is on"
        run("docker", "import", self.node.archive, IMAGE)
        return None

    def podman(self):
        return ("docker",)


class Checks:
    """The tests, of one engine each."""

    node = None
    engine = None

    def setUp(self):
        for file in (self.node.folder / "stop").iterdir():
            file.unlink()
        self.addCleanup(self.engine.tidy)

    def holds(self, container, pieces):
        def said():
            if container.process.poll() is not None:
                raise AssertionError(f"it ended: {container.log()}")
            return f"holds {pieces} pieces" in container.log()

        try:
            wait_for(said, f"'holds {pieces} pieces'")
        except AssertionError as problem:
            raise AssertionError(f"{problem}: {container.log()}") from problem

    def ends_well(self, container):
        (self.node.folder / "stop/all").touch()
        self.assertEqual(container.process.wait(PATIENCE_S), 0, container.log())

    HOLD = ("/usr/bin/worker", "limit-follow", "--piece", "4M", "--most", "40", "--stop", "/stop/all")

    def test_limits_and_identity_of_two_containers_on_one_gpu(self):
        engine = self.engine
        first, second = engine.start(self.HOLD), engine.start(self.HOLD, limit=32)
        self.holds(first, 16)
        self.holds(second, 8)
        programs = self.node.programs()
        by_pid = {engine.pid(first): LIMIT_MIB, engine.pid(second): 32}
        # A container has its own PID namespace: the scheduler knows its process by the machine's number.
        self.assertEqual(set(programs), set(by_pid))
        for pid, limit in by_pid.items():
            self.assertEqual(programs[pid]["kind"], engine.kind(pid), programs[pid])
            self.assertEqual(programs[pid]["client"]["gpu_memory_limit"], limit << 20)
        self.assertEqual(len({program["id"] for program in programs.values()}), 2, "each is a tenant of its own")
        self.ends_well(first)
        self.ends_well(second)

    def test_containers_that_do_not_fit_take_turns(self):
        engine = self.engine
        mix = ("/usr/bin/worker", "mix", "--hold", "300M", "--largest", "60M", "--floor", "280M", "--stop", "/stop/all", "--seed")
        containers = [engine.start((*mix, str(seed)), limit=400) for seed in (1, 2)]

        def swapped():
            for container in containers:
                self.assertIsNone(container.process.poll(), container.log())
            programs = self.node.programs().values()
            return len(programs) == 2 and all(program["client"]["swapped_out_total"] > 0 for program in programs)

        try:
            wait_for(swapped, "all to be swapped")
        except AssertionError as problem:
            raise AssertionError(f"{problem}: {self.node.status()}") from problem
        for container in containers:
            self.ends_well(container)

    def test_a_container_cannot_change_what_it_was_given(self):
        engine = self.engine
        script = (
            f"echo x >> {LIBRARY}; echo x > /etc/ld.so.preload; touch /run/nvshare/client/x; cat /etc/ld.so.preload;"
            " unset NVSHARE_GPU_MEMORY_LIMIT NVSHARE_GPU_MEMORY_GRANT; exec " + " ".join(self.HOLD)
        )
        option = "--env=NVSHARE_GPU_MEMORY_LIMIT=200Mi"
        container = engine.start(("/bin/sh", "-c", script), options=(option,) if isinstance(engine, Podman) else ())
        # It has rid itself of its limit, which without a cluster is a variable; not of the library.
        self.holds(container, 40)
        self.assertIn(LIBRARY, container.log().splitlines())
        self.assertGreaterEqual(len(re.findall("Read-only file system|Permission denied", container.log())), 3, container.log())
        self.assertEqual(set(self.node.programs()), {engine.pid(container)})
        self.ends_well(container)

    def test_the_containers_own_variables_do_not_raise_its_limit(self):
        engine = self.engine
        if not isinstance(engine, Podman):
            self.skipTest("ctr has no CDI: its variables are the given ones")
        container = engine.start(self.HOLD, options=("--env=NVSHARE_GPU_MEMORY_LIMIT=200Mi", "--env=NVSHARE_GPU_MEMORY_GRANT=200Mi"))
        self.holds(container, 16)
        self.ends_well(container)

    def test_a_read_only_root(self):
        engine = self.engine
        container = engine.start(self.HOLD, options=("--read-only",))
        self.holds(container, 16)
        self.ends_well(container)

    def test_a_user_namespace(self):
        engine = self.engine
        if isinstance(engine, RootlessPodman):
            self.skipTest("each of its containers has one: the other tests show it")
        if isinstance(engine, Docker):
            self.skipTest("that is a setting of its daemon")
        if isinstance(engine, Ctr):
            self.skipTest("ctr maps users of its own snapshots only, not of a folder")
        mapping = ("--uidmap=0:100000:1000", "--gidmap=0:100000:1000")
        container = engine.start(self.HOLD, options=mapping)
        self.holds(container, 16)
        (program,) = self.node.programs().values()
        self.assertEqual(program["client"]["pid"], engine.pid(container))
        self.assertEqual(os.stat(f"/proc/{program['client']['pid']}").st_uid, 100000)
        self.ends_well(container)

    def test_a_scheduler_cannot_be_commanded_from_a_container(self):
        engine = self.engine
        control = f"{self.node.build}/bin/nvsharectl"
        whole = f"{self.node.folder}/run:/whole:ro"
        container = engine.start(("/bin/sh", "-c", "echo ready; sleep 60"), plain_mounts=(whole,))
        wait_for(lambda: "ready" in container.log(), "the container")
        pid = engine.pid(container)
        # As root of the machine even, in its cgroup, or in its PID namespace: the kernel says which container asks.
        by_cgroup = "libpod-" in pathlib.Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
        command = [control] if by_cgroup else ["nsenter", f"--target={pid}", "--pid", control]
        asked = subprocess.run(
            [*command, "status"], env={**self.node.environment}, capture_output=True, text=True, check=False, timeout=60,
            preexec_fn=(lambda: join_cgroups_of(pid)) if by_cgroup else None,
        )
        self.assertNotEqual(asked.returncode, 0, asked.stdout)
        self.assertIn("container", asked.stderr + asked.stdout)


def join_cgroups_of(pid):
    """This process into the cgroups of that one, in each hierarchy that is mounted."""
    for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        name = controllers.removeprefix("name=")
        for base in (pathlib.Path("/sys/fs/cgroup") / name, pathlib.Path("/sys/fs/cgroup")):
            procs = pathlib.Path(f"{base}{path}") / "cgroup.procs"
            if procs.exists():
                with contextlib.suppress(OSError):
                    procs.write_text(str(os.getpid()), encoding="utf-8")
                break


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--engines", default="podman,rootless,ctr,docker")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("tests", nargs="*", help="names of tests")
    parser.parse_args(namespace=OPTIONS)
    for reason, is_so in (
        ("it takes root", os.geteuid() != 0),
        ("busybox (package busybox-static) is not installed", not pathlib.Path("/bin/busybox").exists()),
        (f"nvshare's specifications lie in {CDI} already", any((CDI / name).exists() for name in (*OURS, DRIVER))),
    ):
        if is_so:
            print(f"skipped: {reason}")
            return 0
    node = Node()
    engines = []
    suite = unittest.TestSuite()
    try:
        node.start()
        kinds = {"podman": Podman, "rootless": RootlessPodman, "ctr": Ctr, "docker": Docker}
        for name in OPTIONS.engines.split(","):
            engine = kinds[name](node)
            engines.append(engine)
            why_not = engine.why_not()
            print(f"{engine.label}: {'skipped: ' + why_not if why_not else 'tested'}", flush=True)
            if why_not is not None:
                continue
            case = type(f"Engine_{name}", (Checks, unittest.TestCase), {"node": node, "engine": engine})
            for test in unittest.defaultTestLoader.getTestCaseNames(case):
                if not OPTIONS.tests or test in OPTIONS.tests:
                    suite.addTest(case(test))
        result = unittest.TextTestRunner(verbosity=2 if OPTIONS.verbose else 1).run(suite)
        return 0 if result.wasSuccessful() else 1
    finally:
        for engine in engines:
            engine.tidy()
            engine.close()
        node.stop()


if __name__ == "__main__":
    sys.exit(main())
