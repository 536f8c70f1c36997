"""A Slurm of the test's own on this machine: munged, slurmctld, slurmd and nvshare-scheduler, each with its files in one folder and on ports
that were free. Needs root and Debian's packages (slurmctld, slurmd, slurm-client, munge)."""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PROGRAMS = argparse.Namespace()  # of the tests' arguments
PATIENCE = 30.0
NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue", "scancel")
SHARDS = 10
CPUS = 16
GPU_MEMORY_MB = 500
CGROUPS = pathlib.Path("/sys/fs/cgroup")
FREEZER = CGROUPS / "freezer"
SLICE = CGROUPS / "system.slice"  # where slurmd puts its own with version 2


class CannotStart(Exception):
    """Slurm's own daemons do not start on this machine, whatever nvshare does."""


def missing():
    """Why no cluster can start here; empty: one can."""
    if os.geteuid() != 0:
        return "slurmd and the plugin need root"
    absent = [name for name in NEEDED if shutil.which(name, path=search_path()) is None]
    if absent:
        return "missing: " + " ".join(absent) + " (Debian: slurmctld slurmd slurm-client munge)"
    return ""


def search_path():
    return "/usr/sbin:/usr/bin:/sbin:/bin:" + os.environ.get("PATH", "")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def cgroup_version():
    """1 where slurmd can make cgroups of version 1, else 0. NVSHARE_TEST_CGROUPS: 0, as if not; 2, version 2 (README.md)."""
    wanted = os.environ.get("NVSHARE_TEST_CGROUPS")
    if wanted is not None:
        return int(wanted)
    try:
        probe = FREEZER / f"nvshare-test-{os.getpid()}"
        probe.mkdir()
        probe.rmdir()
        return 1
    except OSError:
        return 0


def wait_until(condition, patience=PATIENCE, pause=0.05):
    end = time.monotonic() + patience
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(pause)
    return condition()


SLURM_CONF = """
ClusterName=nvsharetest
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmctldPort={controller_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/{proctrack}
PrologFlags={prolog_flags}
JobContainerType={job_container}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/{accounting}
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=10000,bf_interval=1,default_queue_depth=1000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu,shard
ReturnToService=2
KillWait=3
MinJobAge=600
SlurmdParameters=config_overrides
MailProg=/bin/true
PlugStackConfig={own}/plugstack.conf
DebugFlags=NO_CONF_HASH
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=10
PartitionName=low Nodes=ALL MaxTime=INFINITE PriorityTier=1
"""

NODE = ("NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} "
        "ThreadsPerCore=1 RealMemory=1000 Gres=gpu:1,shard:{shards}")

SLURMDBD_CONF = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=root
StorageLoc=slurm
"""

# Systemd is asked for nothing: it may not be there.
CGROUP_CONF = {0: "CgroupPlugin=cgroup/v1\n", 1: "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n", 2: "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n"}

NVSHARE_CONF = """
# of the tests
runtime_dir = {own}/run
library = {library}
shards_per_gpu = {shards}
max_priority = 10
default_cores = 80
max_cores = 95
comment = yes
"""


class Cluster:
    """One node's files lie in the cluster's folder; of a second node, which has a scheduler and a GPU of its own, in `other` therein."""

    def __init__(self, programs, nodes=1, private_tmp=False, accounting=False):
        self.programs = programs
        # Jobs with a /tmp of their own do not see the machine's.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nvs-slurm-", dir="/var/tmp" if private_tmp else "/tmp"))
        self.folder.chmod(0o755)
        self.node = f"nvs{os.getpid()}"
        self.nodes = {self.node: self.folder, f"{self.node}b": self.folder / "other"} if nodes == 2 else {self.node: self.folder}
        self.daemons = {}
        self.logs = []
        self.control_groups = cgroup_version()
        ports = free_ports(3 + nodes)
        self.database_port, self.dbd_port = (ports.pop(), ports.pop()) if accounting else (0, 0)
        lines = [NODE.format(node=node, port=port, cpus=CPUS, shards=SHARDS) for node, port in zip(self.nodes, ports[1:])]
        values = {"folder": self.folder, "nodes": "\n".join(lines), "controller_port": ports[0],
                  "proctrack": "cgroup" if self.control_groups else "linuxproc", "shards": SHARDS, "library": programs.library,
                  "accounting": f"slurmdbd\nAccountingStorageHost=127.0.0.1\nAccountingStoragePort={self.dbd_port}\nAccountingStoragePass={self.folder}/munge/socket" if accounting else "none",
                  "job_container": "job_container/tmpfs" if private_tmp else "job_container/none",
                  "prolog_flags": "Alloc,Contain" if self.control_groups else "Alloc"}
        for name in ("munge", "state", "gpu", "out"):
            (self.folder / name).mkdir()
        (self.folder / "munge").chmod(0o755)
        for name in ("gpu", "out"):
            (self.folder / name).chmod(0o1777)
        for own in self.nodes.values():
            own.mkdir(exist_ok=True)
            own.chmod(0o755)
            self.write(own / "slurm.conf", SLURM_CONF.format(own=own, **values))
            self.write(own / "gres.conf", f"Name=gpu File=/dev/null\nName=shard Count={SHARDS} File=/dev/null\n")
            if private_tmp:
                self.write(own / "job_container.conf", f"AutoBasePath=true\nBasePath={self.folder}/private\n")
            self.write(own / "cgroup.conf", CGROUP_CONF[self.control_groups])
            self.write(own / "plugstack.conf", f"required {programs.plugin} config={own}/nvshare.conf\n")
            self.write(own / "nvshare.conf", NVSHARE_CONF.format(own=own, **values))
        self.environment = {
            "PATH": search_path(), "SLURM_CONF": str(self.folder / "slurm.conf"), "LD_LIBRARY_PATH": programs.stand_in, "HOME": "/",
            "SIMGPU_STATE": str(self.folder / "gpu/state"), "SIMGPU_MEMORY_MB": str(GPU_MEMORY_MB), "SIMGPU_CONTEXT_MB": "10",
        }

    def write(self, path, text):
        path.write_text(text, encoding="utf-8")

    # ---- daemons ----

    def start(self):
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = [f"--{name}={self.folder}/munge/{file}" for name, file in (("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"),
                                                                          ("log-file", "log"), ("seed-file", "seed"))]
        self.spawn("munged", ["munged", "--foreground", "--force", *files])
        if not wait_until((self.folder / "munge/socket").exists, 10):
            raise CannotStart("munged: " + self.tails())
        self.start_scheduler()
        if self.dbd_port:
            self.start_database()
        self.spawn("slurmctld", ["slurmctld", "-D", "-c", "-f", self.environment["SLURM_CONF"]])
        self.start_slurmd()
        def idle():
            return self.ask("sinfo", "-h", "-p", "main", "-N", "-o", "%T").stdout.split() == ["idle"] * len(self.nodes)
        def settled():
            return idle() or any(one.poll() is not None for one in self.daemons.values())
        wait_until(settled)
        if any(one.poll() is not None for one in self.daemons.values()) or not idle():
            own = "nvshare_spank" in (self.folder / f"slurmd-{self.node}.log").read_text(encoding="utf-8", errors="replace")
            raise (RuntimeError if own else CannotStart)("the node does not become idle:\n" + self.tails())

    def start_database(self):
        data = self.folder / "database"
        installed = self.ask("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--auth-root-authentication-method=normal")
        if installed.returncode != 0:
            raise CannotStart("mariadb-install-db: " + installed.stdout + installed.stderr)
        self.spawn("mariadbd", ["mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={self.folder}/database.sock", f"--port={self.database_port}",
                                "--bind-address=127.0.0.1", "--user=root", "--innodb-buffer-pool-size=32M"])
        if not wait_until(lambda: self.ask("mariadb-admin", "--no-defaults", f"--socket={self.folder}/database.sock", "ping").returncode == 0):
            raise CannotStart("mariadbd: " + self.tails())
        conf = self.folder / "slurmdbd.conf"
        self.write(conf, SLURMDBD_CONF.format(folder=self.folder, port=self.dbd_port, database_port=self.database_port))
        conf.chmod(0o600)
        self.spawn("slurmdbd", ["slurmdbd", "-D"], dict(self.environment, SLURM_CONF=str(self.folder / "slurm.conf")))
        if not wait_until(lambda: self.ask("sacctmgr", "-n", "show", "cluster").returncode == 0):
            raise CannotStart("slurmdbd: " + self.tails())
        self.ask("sacctmgr", "-i", "add", "cluster", "nvsharetest")

    def start_slurmd(self):
        if self.control_groups == 2:
            SLICE.mkdir(exist_ok=True)
        for node, own in self.nodes.items():
            conf = str(own / "slurm.conf")
            environment = dict(self.environment, SLURM_CONF=conf, LD_PRELOAD=os.environ.get("NVSHARE_TEST_SLURMD_PRELOAD", ""))
            self.spawn(f"slurmd {node}", ["slurmd", "-D", "-N", node, "-f", conf], environment)

    def start_scheduler(self):
        for node, own in self.nodes.items():
            environment = dict(self.environment, NVSHARE_RUNTIME_DIR=str(own / "run"), NVSHARE_LOCK_DIR=str(own / "lock"),
                               NVSHARE_NVML_INTERVAL="0.05", NVSHARE_LOG_LEVEL="info", NVSHARE_MEMORY_RESERVE_PERCENT="5",
                               NVSHARE_SWITCH_TIME_MODE="fixed", NVSHARE_SWITCH_TIME_FIXED="200ms", SIMGPU_STATE=self.gpu_state(node))
            self.spawn("scheduler" if node == self.node else "scheduler of the other", [self.programs.scheduler], environment)
            if not wait_until(lambda node=node: self.status(node)):
                raise RuntimeError("the scheduler does not answer:\n" + self.tails())
        for file in (self.folder / "gpu").iterdir():  # as a GPU's device files are
            file.chmod(0o666)

    def gpu_state(self, node):
        return str(self.folder / "gpu/state") + node.removeprefix(self.node)

    def spawn(self, name, command, environment=None):
        log = self.folder / f"{name}-{len(self.logs)}.log"
        self.logs.append(log)
        with open(log, "wb") as out:
            self.daemons[name] = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                                  env=environment or self.environment, start_new_session=True)

    def kill(self, name):
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def stop(self):
        self.ask("scancel", "--signal=KILL", "-u", "root")
        self.ask("scancel", "-u", "root")
        wait_until(lambda: not self.ask("squeue", "-h").stdout.strip(), 20)
        first_to_end = ("slurmd", "slurmctld", "slurmdbd", "mariadbd", "scheduler", "munged")
        for name in sorted(self.daemons, key=lambda name: first_to_end.index(name.split()[0])):
            daemon = self.daemons.pop(name)
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.remove_control_groups()
        shutil.rmtree(self.folder, ignore_errors=True)

    def remove_control_groups(self):
        for node in self.nodes:
            own = SLICE / f"{node}_slurmstepd.scope" if self.control_groups == 2 else FREEZER / f"slurm_{node}"
            for folder, _, _ in os.walk(own, topdown=False):
                try:
                    for pid in (pathlib.Path(folder) / "cgroup.procs").read_text(encoding="utf-8").split():
                        os.kill(int(pid), signal.SIGKILL)
                    os.rmdir(folder)
                except OSError:
                    pass

    def tails(self):
        text = ""
        for log in [*self.logs, self.folder / "slurmctld.log", *self.folder.glob("slurmd-*.log")]:
            if log.exists():
                text += f"---- {log.name}\n" + log.read_text(encoding="utf-8", errors="replace")[-3000:]
        return text

    # ---- questions and jobs ----

    def ask(self, *command, environment=None, patience=PATIENCE):
        return subprocess.run(command, env=environment or self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=patience, check=False, cwd=self.folder)

    def control(self, *words):
        return self.ask(self.programs.control, *words, environment=dict(self.environment, NVSHARE_RUNTIME_DIR=str(self.folder / "run")))

    def status(self, node=None):
        """The report of that node's scheduler (of the first one's), or None."""
        try:
            with socket.socket(socket.AF_UNIX) as admin:
                admin.settimeout(5)
                admin.connect(str(self.nodes[node or self.node] / "run/admin/admin.sock"))
                admin.sendall(b'{"request":"status"}\n')
                line = b""
                while not line.endswith(b"\n"):
                    more = admin.recv(1 << 16)
                    if not more:
                        return None
                    line += more
                return json.loads(line)
        except OSError:
            return None

    def tenant(self, job, node=None):
        report = self.status(node)
        found = [one for one in report["tenants"] if one["job"] == job] if report else []
        return found[0] if found else None

    def processes(self, job):
        report, tenant = self.status(), self.tenant(job)
        return [one["pid"] for one in report["clients"] if one["tenant"] == tenant["id"]] if report and tenant else []

    def has_processes(self, job):
        return bool(self.processes(job))

    def kill_processes(self, job):
        for pid in self.processes(job):
            os.kill(pid, signal.SIGKILL)

    def worker(self, mode, *words):
        return " ".join([self.programs.worker, mode, *words])

    def submit(self, script, *options, environment=None):
        """The job's number. `script` runs with bash."""
        ran = self.ask("sbatch", "--parsable", "-o", f"{self.folder}/out/%A_%a_%j.out", "--open-mode=append", *options, "--wrap", script,
                       environment=environment)
        if ran.returncode != 0:
            raise RuntimeError(ran.stderr)
        return int(ran.stdout.split(";")[0])

    def output(self, job):
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted((self.folder / "out").glob(f"*_{job}.out")))

    def state(self, job):
        """JobState, or empty."""
        found = re.search(r"JobState=(\w+)", self.ask("scontrol", "show", "job", str(job)).stdout)
        return found.group(1) if found else ""

    def wait_for(self, job, *states, patience=PATIENCE):
        return wait_until(lambda: self.state(job) in states, patience, 0.1)
