#!/usr/bin/env python3
"""A thousand programs that start at once on the stand-in GPU, whose memory does not fit together: all have to come to their right end.

  bench/crowd.py [--build BUILD] [--programs 1000] [--patience 600] [--json FILE]

Each is a process of its own with the library, that allocates, fills, copies and checks memory (`e2e_worker mix`). Prints when the first, the
median and the last had ended; exits 1 when one failed, did not end, or found other bytes than it wrote.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTEXT_MIB = 1
MIX = ["mix", "--floor", "3M", "--hold", "5M", "--largest", "2M", "--steps", "30"]


def run(build, programs, patience):
    gpu_mib = 2 * CONTEXT_MIB * programs + 200  # half of it for contexts, which cannot be swapped; a fifth of the memory fits beside them
    with tempfile.TemporaryDirectory(prefix="nvs-crowd-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        folder = pathlib.Path(name)
        environment = {
            "PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(build / "simgpu"), "NVSHARE_RUNTIME_DIR": str(folder / "run"),
            "NVSHARE_LOCK_DIR": str(folder / "lock"), "SIMGPU_STATE": str(folder / "gpu"), "SIMGPU_MEMORY_MB": str(gpu_mib),
            "NVSHARE_MEMORY_RESERVE_PERCENT": str(100 * (CONTEXT_MIB * programs + 100) // gpu_mib), "SIMGPU_CONTEXT_MB": str(CONTEXT_MIB),
            "NVSHARE_REQUIRE_SCHEDULER": "wait", "NVSHARE_LOG_LEVEL": "info",
        }
        (folder / "run").mkdir()
        log = (folder / "scheduler.log").open("w")
        scheduler = subprocess.Popen([build / "bin/nvshare-scheduler"], env=environment, stdout=log, stderr=log)
        while not list((folder / "run").rglob("scheduler.sock")):
            if scheduler.poll() is not None:
                sys.exit((folder / "scheduler.log").read_text())
            time.sleep(0.01)
        gate, opener = os.pipe()  # a shell in each process waits at it, so that all begin in the same moment
        preload = f"LD_PRELOAD={build / 'lib/libnvshare.so'}"
        running = {}
        for number in range(programs):
            command = ["/bin/sh", "-c", "read line; exec env \"$@\"", "sh", preload, build / "bin/e2e_worker", *MIX, "--seed", str(number + 1)]
            with (folder / f"out-{number}").open("w") as output:
                running[number] = subprocess.Popen(command, stdin=gate, stdout=output, stderr=output, env=environment)
        os.close(gate)
        begin = time.monotonic()
        os.close(opener)
        ended, failed, verified = [], [], 0
        while running and time.monotonic() - begin < patience:
            for number in [number for number, process in running.items() if process.poll() is not None]:
                status = running.pop(number).returncode
                text = (folder / f"out-{number}").read_text()
                blocks = re.search(r"(\d+) blocks verified", text)
                verified += int(blocks.group(1)) if blocks else 0
                if status != 0 or "all right" not in text:
                    failed.append({"program": number, "status": status, "output": text[-1500:]})
                ended.append(time.monotonic() - begin)
            time.sleep(0.02)
        for number, process in running.items():
            process.kill()
            process.wait()
            failed.append({"program": number, "status": "did not end", "output": (folder / f"out-{number}").read_text()[-500:]})
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        rss = re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{scheduler.pid}/status").read_text())
        ticks = pathlib.Path(f"/proc/{scheduler.pid}/stat").read_text().rsplit(")", 1)[1].split()
        scheduler.kill()
        scheduler.wait()
        return {
            "programs": programs, "failed": len(failed), "blocks_verified": verified,
            "ended_s": {"first": round(ended[0], 2), "median": round(ended[len(ended) // 2], 2), "last": round(ended[-1], 2)} if ended else None,
            "processor_s": {"programs": round(used.ru_utime + used.ru_stime, 1),
                            "scheduler": round((int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"), 1)},
            "scheduler_rss_mib": round(int(rss.group(1)) / 1024, 1), "gpu_mib": gpu_mib, "load_average": round(os.getloadavg()[0], 1),
        }, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--patience", type=float, default=600, help="seconds until all have to have ended")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    found, failed = run(arguments.build.resolve(), arguments.programs, arguments.patience)
    print(json.dumps(found))
    for one in failed[:5]:
        print(f"program {one['program']}: {one['status']}\n{one['output']}", file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
