"""A machine that never saw nvshare: a minimal Debian or Ubuntu in a root folder of its own, with its own systemd as process 1, in namespaces of its own
(processes, mounts, control groups, network: no registry can be reached from it). What is written there is gone when it ends.

The folder is made by debootstrap once, with the packages that the package under test depends on, and kept under ~/.cache/nvshare."""
import contextlib
import fcntl
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
import time
import urllib.request

DEBIAN, UBUNTU = "http://deb.debian.org/debian", "http://archive.ubuntu.com/ubuntu"
# What Ubuntu's releases are signed with is in no package of Debian 12.
UBUNTU_KEYS = (f"{UBUNTU}/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb",
               "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8", "usr/share/keyrings/ubuntu-archive-keyring.gpg")
# Suites besides that of this machine.
SUITES = {"bookworm": DEBIAN, "trixie": DEBIAN, "jammy": UBUNTU, "noble": UBUNTU}
SCRIPTS = {DEBIAN: "sid", UBUNTU: "gutsy"}  # of debootstrap, for suites that are newer than it
TOOLS = {"debootstrap": "debootstrap", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux"}
# What process 1 must not have: the clock and the kernel are the host's.
WITHOUT = "-sys_time,-sys_module,-sys_rawio,-syslog"

# $1: the root, $2: an empty folder. The host's file system is out of reach afterwards.
START = """
set -e
mount -t tmpfs tmpfs "$2"
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
cd "$2/root"
mount -t proc proc proc
mount -o bind,ro proc/sys proc/sys
mount -t sysfs -o ro sysfs sys
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  mount -t cgroup2 cgroup2 sys/fs/cgroup
else
  mount -t tmpfs tmpfs sys/fs/cgroup
  mkdir sys/fs/cgroup/systemd
  mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
fi
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/shm dev/pts
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs tmpfs dev/shm
for device in null zero full random urandom tty; do touch "dev/$device"; mount --bind "/dev/$device" "dev/$device"; done
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=755 tmpfs run
pivot_root . mnt
umount -l /mnt
exec env -i container=nvshare PATH=/usr/sbin:/usr/bin setpriv --bounding-set "$3" --inh-caps "$3" \
  /lib/systemd/systemd --system --log-target=journal --show-status=0
"""


class NotHad(Exception):
    """Why there is none here: a sentence's end."""


def called(*words, seconds=600, **options):
    try:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL, check=False, **options)
    except subprocess.TimeoutExpired:
        return -1, f"{words[0]} did not end within {seconds} s"
    return done.returncode, done.stdout + done.stderr


def cache():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "nvshare/fresh-machine"


def release():
    told = platform.freedesktop_os_release()
    if told.get("ID") != "debian":
        raise NotHad(f"the package is for {told.get('PRETTY_NAME', 'this system')}, and the test makes machines of Debian alone, if it is told no suite")
    return told["VERSION_CODENAME"]


def keyring(mirror, folder):
    """Arguments of debootstrap."""
    if mirror == DEBIAN:
        return []
    address, digest, inside = UBUNTU_KEYS
    with urllib.request.urlopen(address, timeout=30) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != digest:
        raise NotHad(f"{address} is not what it was")
    (folder / "keys.deb").write_bytes(content)
    subprocess.run(["dpkg-deb", "--extract", folder / "keys.deb", folder / "keys"], check=True)
    return [f"--keyring={folder / 'keys' / inside}"]


def make(suite, mirror, package, place):
    """A root folder at `place`, with what `package` depends on downloaded."""
    try:
        with urllib.request.urlopen(f"{mirror}/dists/{suite}/InRelease", timeout=10):
            pass
    except OSError as problem:
        raise NotHad(f"{mirror} cannot be reached ({problem}), and there is no root folder of an earlier run") from problem
    part = place.with_name(f"{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(prefix="nvshare-keys-") as folder:
            script = f"/usr/share/debootstrap/scripts/{SCRIPTS[mirror]}"
            # In namespaces: killed, it leaves no process and no mount behind.
            code, text = called("unshare", "--mount", "--pid", "--fork", "--kill-child", "debootstrap", "--variant=minbase", "--include=systemd,systemd-sysv",
                                *keyring(mirror, pathlib.Path(folder)), suite, part, mirror, script)
        if code != 0:
            raise NotHad(f"debootstrap failed: {text[-500:]}")
        shutil.copy("/etc/resolv.conf", part / "etc/resolv.conf")
        shutil.copy(package, part / "root/package.deb")
        code, text = called("chroot", part, "sh", "-c", "apt-get update -q && apt-get install -q -y --download-only /root/package.deb")
        if code != 0:
            raise NotHad(f"what the package depends on cannot be downloaded: {text[-500:]}")
        (part / "root/package.deb").unlink()
        for old in place.parent.glob(f"*-{suite}-*"):
            if old != part:
                shutil.rmtree(old)
        part.rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def root_folder(package, suite=None):
    """The root folder of that suite (None: of this machine's), while nobody makes another in its place."""
    if os.geteuid() != 0:
        raise NotHad("it takes root to make a root folder and namespaces")
    for tool, debian in TOOLS.items():
        if not shutil.which(tool):
            raise NotHad(f"there is no {tool} (Debian: {debian}; tools/install-dependencies.sh machine)")
    suite = suite or release()
    mirror = SUITES.get(suite, DEBIAN)
    depends = subprocess.run(["dpkg-deb", "--field", package, "Architecture", "Depends"], capture_output=True, text=True, check=True).stdout
    place = cache() / f"{'ubuntu' if mirror == UBUNTU else 'debian'}-{suite}-{hashlib.sha256((mirror + depends).encode()).hexdigest()[:12]}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.parent / "lock", "w", encoding="ascii") as lock:
        if not place.is_dir():
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.is_dir():
                make(suite, mirror, package, place)
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield place


def own_groups():
    """A control group of our own, empty yet, in each hierarchy that systemd uses: what it makes there is below it."""
    groups = []
    mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    own = {fields[1]: fields[2] for fields in (line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines())}
    for _, where, kind, options, *_ in mounts:
        if kind == "cgroup2":
            controllers = ""
        elif kind == "cgroup":
            controllers = next((name for name in own if name and set(name.split(",")) <= set(options.split(","))), None)
        else:
            continue
        if controllers is None or controllers not in own or controllers == "cpuset":  # a group of cpuset takes nobody before it has processors
            continue
        parent = pathlib.Path(where + own[controllers])
        for old in parent.glob("nvshare-fresh-*"):
            if not pathlib.Path(f"/proc/{old.name.rsplit('-', 1)[1]}").exists():
                remove_group(old)  # of a run that was killed
        group = parent / f"nvshare-fresh-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as problem:
            for made in groups:
                remove_group(made)
            raise NotHad(f"control groups cannot be made here ({problem})") from problem
        groups.append(group)
    return groups


def remove_group(group):
    """Where nobody is in it any more."""
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


class Machine:
    def __init__(self, root, scratch):
        self.groups = own_groups()
        join = "".join(f"echo 0 > '{group}/cgroup.procs'\n" for group in self.groups)
        words = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup", "--fork", "--kill-child",
                 "sh", "-c", START, "machine", root, scratch, WITHOUT]
        self.log = open(pathlib.Path(scratch).with_suffix(".log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(["sh", "-c", f'set -e\n{join}exec "$@"', "join", *map(str, words)], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT)
        self.first = None
        try:
            self._wait()
        except BaseException:
            self.end()
            raise

    def _said(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text(encoding="utf-8")[-500:]

    def _wait(self):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise NotHad(f"no machine starts here: {self._said().strip()}")
            with contextlib.suppress(OSError):
                children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
                if children and pathlib.Path(f"/proc/{children[0]}/comm").read_text() == "systemd\n":
                    self.first = children[0]
                    if self.called("systemctl", "is-system-running")[1].strip() in ("running", "degraded"):
                        self.called("ip", "link", "set", "lo", "up")
                        return
            time.sleep(0.1)
        raise AssertionError(f"systemd does not come up: {self._said()}")

    def called(self, *words, seconds=120):
        """(exit status, what it says) of a command there."""
        return called(*self.words(*words), seconds=seconds)

    def words(self, *words):
        return ["nsenter", "--target", self.first, "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME=/root", "DEBIAN_FRONTEND=noninteractive", *map(str, words)]

    def path(self, inside):
        """A file there, as this process sees it."""
        return pathlib.Path(f"/proc/{self.first}/root{inside}")

    def end(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
        until = time.monotonic() + 10
        while time.monotonic() < until and any(group.exists() for group in self.groups):
            for group in self.groups:
                remove_group(group)
            time.sleep(0.05)
