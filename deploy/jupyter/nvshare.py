"""nvshare in IPython and Jupyter notebooks: who has the GPU, wait for it, give it up now.

    %load_ext nvshare
    %nvshare                 who has the GPUs, and where this notebook stands
    %nvshare wait [SECONDS]  until no other program runs or waits on this notebook's GPUs; SECONDS: so long at most
    %nvshare release         this notebook's turn ends now, and PyTorch's unused memory is freed

All of it is asked of nvsharectl (NVSHARECTL says where it is; else it is looked for in PATH). A notebook whose kernel does not run under
nvshare sees the others all the same.
"""
import gc
import json
import os
import shutil
import subprocess
import sys
import time

USE = "accepted: nothing, 'wait', 'wait SECONDS', 'release'"
POLL_S = 0.5
RUNS = ("running", "paused", "dropping", "loading", "unresponsive")


class Problem(Exception):
    """What is said to the user in one line."""


def nvsharectl(*words):
    program = os.environ.get("NVSHARECTL") or shutil.which("nvsharectl")
    if not program:
        raise Problem("there is no nvsharectl in PATH; NVSHARECTL=/path/to/nvsharectl says where it is")
    try:
        # Away from the kernel: its interrupts are not for nvsharectl, which needs no GPU either.
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=20, env=environment, start_new_session=True)
    except OSError as error:
        raise Problem(f"cannot run {program}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Problem(f"'nvsharectl {' '.join(words)}' did not end within 20 s") from None
    if done.returncode != 0:
        raise Problem(done.stderr.strip() or f"'nvsharectl {' '.join(words)}' ended with {done.returncode}")
    return done.stdout


def status():
    return json.loads(nvsharectl("status", "--json"))


def amount(size):
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.3g} {unit}"
        size /= 1024


def duration(ns):
    seconds = ns / 1e9
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def own_clients(report, pid):
    return [client for client in report["clients"] if client["pid"] == pid]


def name_of(report, client):
    return next((tenant["name"] for tenant in report["tenants"] if tenant["id"] == client["tenant"]), str(client["tenant"]))


def described(report, client, pid):
    who = "this notebook" if client["pid"] == pid else f"'{name_of(report, client)}' ({client['program']}, {client['pid']})"
    text = f"{who}: {client['state']} for {duration(client['since_ns'])}, {amount(client['resident'])} on the GPU"
    if client["swapped"] > 0:
        text += f", {amount(client['swapped'])} in host memory"
    if client["waiting_for"]:
        text += f"; waits for {client['waiting_for']}"
    return text


def who_has_it(report, pid):
    """Lines for people."""
    lines = []
    for index, gpu in enumerate(report["gpus"]):
        clients = [client for client in report["clients"] if client["gpu"] == gpu["uuid"]]
        runs = [name_of(report, client) for client in clients if client["state"] in RUNS]
        title = f"GPU {index} ({gpu['name']}, {amount(gpu['total'])}): "
        lines.append(title + (", ".join(f"'{name}'" for name in dict.fromkeys(runs)) + (" has it" if len(set(runs)) == 1 else " have it") if runs else "nobody runs"))
        lines += ["  " + described(report, client, pid) for client in sorted(clients, key=lambda client: client["pid"] != pid)]
    if not own_clients(report, pid):
        lines.append("This notebook uses no GPU" + ("" if "nvshare" in os.environ.get("LD_PRELOAD", "") else
                                                    ", and its kernel does not run under nvshare: see 'A Jupyter server' in nvshare's documents") + ".")
    if report.get("own"):
        lines.append("Only what is yours is shown; all of it is for root and the scheduler's user.")
    return lines


def others_at_work(report, pid):
    """Programs of others that run or wait on this notebook's GPUs; on all, while it uses none."""
    gpus = {client["gpu"] for client in own_clients(report, pid)} or {gpu["uuid"] for gpu in report["gpus"]}
    return [client for client in report["clients"] if client["gpu"] in gpus and client["pid"] != pid and client["state"] != "idle"]


class Line:
    """One line that is written over."""

    def __init__(self):
        self.longest = 0

    def show(self, text):
        self.longest = max(self.longest, len(text))
        print("\r" + text.ljust(self.longest), end="", flush=True)

    def end(self, text):
        self.show(text)
        print()


def wait(words, pid):
    try:
        patience = float(words[0]) if words else None
    except ValueError:
        patience = -1
    if len(words) > 1 or (patience is not None and not 0 <= patience < 1e9):
        raise Problem(f"'{' '.join(words)}' is no number of seconds; {USE}")
    began, line = time.monotonic(), Line()
    report = status()
    if report.get("own"):
        raise Problem("what others run is told to root and the scheduler's user alone; a cell that needs the GPU waits by itself")
    while busy := others_at_work(report, pid):
        waited = time.monotonic() - began
        if patience is not None and waited >= patience:
            line.end(f"gave up after {waited:.1f} s")
            return False
        longest = max(busy, key=lambda client: client["since_ns"])
        line.show(f"waits for '{name_of(report, longest)}', {longest['state']} for {duration(longest['since_ns'])}"
                  f"{f', and {len(busy) - 1} more' if len(busy) > 1 else ''}; {waited:.0f} s so far")
        time.sleep(POLL_S if patience is None else min(POLL_S, max(patience - waited, 0)))
        report = status()
    line.end(f"the GPU is free, after {time.monotonic() - began:.1f} s")
    return True


def release(pid):
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()
    clients = own_clients(status(), pid)
    if not clients:
        raise Problem("this notebook is no client of the scheduler: it has used no GPU yet, or its kernel does not run under nvshare")
    for tenant in sorted({client["tenant"] for client in clients}):
        nvsharectl("release", str(tenant))
    print("released: the next cell that needs the GPU asks for it again")


def nvshare(line):
    """%nvshare: who has the GPUs; %nvshare wait [SECONDS]; %nvshare release."""
    words, pid = line.split(), os.getpid()
    try:
        if not words:
            print("\n".join(who_has_it(status(), pid)))
        elif words[0] == "wait":
            return wait(words[1:], pid)
        elif words == ["release"]:
            release(pid)
        else:
            raise Problem(f"'{line.strip()}' is unknown; {USE}")
    except Problem as problem:
        print(f"nvshare: {problem}", file=sys.stderr)
    return None


def load_ipython_extension(ipython):
    ipython.register_magic_function(nvshare, "line", "nvshare")
