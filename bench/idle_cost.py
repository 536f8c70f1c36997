#!/usr/bin/env python3
"""What scheduler and device plugin cost when nothing happens: processor time, wake-ups and memory, without clients and with idle ones.

  bench/idle_cost.py [--build BUILD] [--clients 20] [--seconds 20] [--json FILE]

Asked: under 0.1 % of a processor, at most 32 MiB each. On the stand-in GPU and its NVML: a real NVML's own cost comes on top. The plugin runs
without a kubelet (it waits for one) and without an API server. Processor time is the kernel's, in nanoseconds (/proc/PID/task/*/schedstat);
wake-ups are voluntary context switches. "start" leaves out the first seconds, in which clients come.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CPU_MAX_PERCENT = 0.1
RSS_MAX_MIB = 32
SETTLE_SECONDS = 3


def usage(pid):
    """Nanoseconds on a processor and voluntary context switches of all threads, so far."""
    busy = switches = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            busy += int((task / "schedstat").read_text().split()[0])
            status = (task / "status").read_text()
        except FileNotFoundError:
            continue  # it has just ended
        switches += int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return busy, switches


def resident_mib(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return {key: round(int(status.split(f"\n{key}:")[1].split()[0]) / 1024, 1) for key in ("VmRSS", "RssAnon")}


def measure(pids, seconds):
    before = {name: usage(pid) for name, pid in pids.items()}
    begin = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - begin
    found = {}
    for name, pid in pids.items():
        busy, switches = usage(pid)
        memory = resident_mib(pid)
        found[name] = {
            "cpu_percent": round((busy - before[name][0]) / took / 1e7, 4),
            "wakeups_per_second": round((switches - before[name][1]) / took, 1),
            "rss_mib": memory["VmRSS"],
            "rss_anonymous_mib": memory["RssAnon"],
        }
    return found


def run(build, clients, seconds):
    with tempfile.TemporaryDirectory(prefix="nvs-idle-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        folder = pathlib.Path(name)
        environment = {
            "PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(build / "simgpu"), "NVSHARE_RUNTIME_DIR": str(folder / "run"),
            "NVSHARE_LOCK_DIR": str(folder / "lock"), "SIMGPU_STATE": str(folder / "gpu"), "SIMGPU_MEMORY_MB": "2048", "NVSHARE_MEMORY_RESERVE_PERCENT": "20", "SIMGPU_CONTEXT_MB": "1",
            "NVSHARE_INSTALL_DIR": str(folder / "install"), "NVSHARE_KUBELET_DIR": str(folder / "kubelet"), "NVSHARE_API_SERVER": "off",
            "NVSHARE_POD_RESOURCES_SOCKET": str(folder / "pods.sock"), "NVSHARE_GPU_MEMORY_UNIT": "1Mi",
            "NVSHARE_LIBRARY": str(build / "lib/libnvshare.so"), "NVSHARE_METRICS_ADDRESS": "127.0.0.1:0",
        }
        for made in ("run", "kubelet", "install"):
            (folder / made).mkdir()
        log = (folder / "log").open("w")

        def start(*command, **more):
            return subprocess.Popen([str(word) for word in command], env={**environment, **more}, stdout=log, stderr=log)

        started = {"scheduler": start(build / "bin/nvshare-scheduler")}
        while not list((folder / "run").rglob("admin.sock")):
            if started["scheduler"].poll() is not None:
                sys.exit((folder / "log").read_text())
            time.sleep(0.01)
        if (build / "bin/nvshare-device-plugin").exists():
            started["device plugin"] = start(build / "bin/nvshare-device-plugin")
        pids = {name: process.pid for name, process in started.items()}
        time.sleep(SETTLE_SECONDS)
        found = {"no clients": measure(pids, seconds)}
        workers = [
            start(build / "bin/e2e_worker", "limit-follow", "--piece", "1M", "--most", 1, "--stop", folder / "stop",
                  LD_PRELOAD=str(build / "lib/libnvshare.so"))
            for _ in range(clients)
        ]
        control = [str(build / "bin/nvsharectl"), "status", "--json"]
        joined, deadline = 0, time.monotonic() + 60
        while joined < clients and time.monotonic() < deadline:
            status = subprocess.run(control, env=environment, capture_output=True, text=True, check=False)
            joined = len(json.loads(status.stdout)["clients"]) if status.returncode == 0 else 0
            time.sleep(0.2)
        time.sleep(SETTLE_SECONDS)
        # Stopped, so that on a small machine they take no time from what is measured.
        for worker in workers:
            worker.send_signal(19)
        found[f"{joined} idle clients"] = measure(pids, seconds)
        for process in [*workers, *started.values()]:
            process.kill()
            process.wait()
        if joined < clients:
            sys.exit(f"only {joined} of {clients} clients came:\n" + (folder / "log").read_text()[-3000:])
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    found = run(arguments.build.resolve(), arguments.clients, arguments.seconds)
    good = True
    for when, programs in found.items():
        for program, figures in programs.items():
            well = figures["cpu_percent"] < CPU_MAX_PERCENT and figures["rss_mib"] <= RSS_MAX_MIB
            good = good and well
            print(f"{when:16} {program:14} " + "  ".join(f"{key} {value}" for key, value in figures.items()) + ("" if well else "  TOO MUCH"))
    if arguments.json:
        required = {"cpu_percent_below": CPU_MAX_PERCENT, "rss_mib_at_most": RSS_MAX_MIB}
        arguments.json.write_text(json.dumps({"seconds": arguments.seconds, "required": required, "measured": found}, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
