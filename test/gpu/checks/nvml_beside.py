"""What NVML says of programs while a check runs: by the scheduler's own samples and by nvidia-smi. Listed beside results, never judged."""
import re
import subprocess
import time

SECOND = 1_000_000_000


def dmon_samples(text):
    """nvidia-smi dmon -s u -o T: the sm column, with seconds of the day."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*(\d+):(\d+):(\d+)\s+\d+\s+(\d+)", line)
        if match:
            hours, minutes, seconds, busy = (int(part) for part in match.groups())
            found.append({"second_of_day": hours * 3600 + minutes * 60 + seconds, "sm_percent": busy})
    return found


def pmon_samples(text):
    """nvidia-smi pmon -s u -o T: the sm column of each process, with seconds of the day. Those that did nothing have a dash there."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*(\d+):(\d+):(\d+)\s+\d+\s+(\d+)\s+\S+\s+(\d+|-)\s", line)
        if match:
            hours, minutes, seconds, pid = (int(part) for part in match.groups()[:4])
            busy = 0 if match[5] == "-" else int(match[5])
            found.append({"second_of_day": hours * 3600 + minutes * 60 + seconds, "pid": pid, "sm_percent": busy})
    return found


def mean_by_pid(samples):
    """The mean of each process's samples."""
    found = {}
    for sample in samples:
        found.setdefault(sample["pid"], []).append(sample["sm_percent"])
    return {pid: sum(values) / len(values) for pid, values in found.items()}


def nvml_of(status):
    """What a report says of each tenant by NVML's samples, beside what was billed of the same seconds; percent. None: not known."""
    if not status or not status.get("gpus"):
        return None
    gpu = status["gpus"][0]
    if gpu.get("nvml_span_ns", 0) <= 0:
        return {"unknown": gpu.get("nvml_unknown") or "not asked"}
    found = {"span_s": round(gpu["nvml_span_ns"] / 1e9, 2), "others": round(gpu["nvml_others"], 2), "tenants": {}}
    for tenant in status.get("tenants", []):
        for compute in tenant.get("compute", []):
            if compute.get("gpu") == gpu.get("uuid") and compute.get("nvml_share", -1) >= 0:
                found["tenants"][tenant["name"]] = {"nvml": round(compute["nvml_share"], 2), "billed": round(compute["nvml_billed"], 2),
                                                    "differs": compute["nvml_differs"]}
    return found


class Smi:
    """nvidia-smi beside a run, outside nvshare; nothing where there is none. Its lines go to a file: a pipe would fill."""

    def __init__(self, config, command):
        self.process = None
        self.path = config.work / f"nvidia-smi-{command}-{time.monotonic_ns()}"
        if not config.simgpu:
            try:
                with open(self.path, "w", encoding="ascii") as lines:
                    self.process = subprocess.Popen(["nvidia-smi", command, "-s", "u", "-o", "T"], stdout=lines, stderr=subprocess.DEVNULL,
                                                    env=config.environment)
            except OSError:
                pass

    def finish(self):
        if self.process is None:
            return ""
        self.process.terminate()
        self.process.wait(timeout=10)
        return self.path.read_text(encoding="ascii", errors="replace")


class Dmon(Smi):
    def __init__(self, config):
        super().__init__(config, "dmon")

    def finish(self):
        return dmon_samples(super().finish())


class NvmlBeside:
    """What NVML says of each tenant while it runs: by the scheduler's own samples, every two seconds, and by nvidia-smi pmon."""

    def __init__(self, tenants):
        self.tenants = tenants
        self.looks = []
        self.pmon = Smi(tenants.config, "pmon")

    def look(self, begin, end):
        last_look = end - SECOND // 5  # the tenants are still at work
        while True:
            at = min(time.monotonic_ns() + 2 * SECOND, last_look)
            time.sleep(max(0.0, (at - time.monotonic_ns()) / 1e9))
            found = nvml_of(self.tenants.scheduler.last)
            if found:
                self.looks.append({"ms": round((time.monotonic_ns() - begin) / 1e6), **found})
            if at >= last_look:
                return

    def finish(self):
        clients = self.tenants.scheduler.clients.values()
        names = {t["id"]: t["name"] for t in self.tenants.scheduler.tenants.values()}
        name_of = {client["pid"]: names.get(client["tenant"], str(client["tenant"])) for client in clients}
        samples = [{**sample, "tenant": name_of.get(sample["pid"], "no client")} for sample in pmon_samples(self.pmon.finish())]
        mean = {name_of.get(pid, f"pid {pid}"): round(percent, 2) for pid, percent in mean_by_pid(samples).items()}
        return {"last": self.looks[-1] if self.looks else None, "looks": self.looks, "pmon": samples, "pmon_mean": mean}
