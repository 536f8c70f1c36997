"""The page, served with reports that are made up: many GPUs, which no machine of the tests has."""
import contextlib
import http.server
import json
import pathlib
import threading
import time

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "src/scheduler/viewers/page"
FILES = {"/": ("page.html", "text/html"), "/page.css": ("page.css", "text/css"), "/figures.js": ("figures.js", "text/javascript"),
         "/tables.js": ("tables.js", "text/javascript"), "/past.js": ("past.js", "text/javascript"), "/page.js": ("page.js", "text/javascript")}
GIB = 1 << 30
WAIT_S = 3


class Scheduler:
    """Answers as the scheduler's page does (src/scheduler/viewers/page_site.h): `url`; change() changes a client's state, and its GPU's figures go on.
    `past`: what it remembers. `told` counts its lines, `questions` has for each question the GPUs that it follows and its lines; all of it is told every `wait_s`, and once where that
    is 0, as where too many follow."""

    def __init__(self, gpus=8, clients=200, wait_s=WAIT_S, past="\n"):
        self.told, self.questions, self.wait_s, self.closed = 0, [], wait_s, False
        self.past = past
        self.begin, self.changes, self.changed = time.monotonic(), 1, threading.Condition()
        self.gpus = [f"GPU-{number:04}" for number in range(gpus)]
        self.clients = [{"id": number + 1, "at": 1, "gpu": self.gpus[number % gpus], "state": "idle", "turns": 0} for number in range(clients)]
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                path, _, query = self.path.partition("?")
                name, kind = FILES.get(path, (None, "application/x-ndjson"))
                lines = [owner.past.encode()] if path == "/past.jsonl" else None
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # its reader has gone
                    for part in [(PAGE / name).read_bytes()] if name else lines or owner.lines(query):
                        self.wfile.write(part)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.closed = True
        self.server.shutdown()
        self.server.server_close()

    def change(self, gpu):
        """A client there begins a turn, or ends it."""
        with self.changed:
            self.changes += 1
            client = next(each for each in self.clients if each["gpu"] == gpu)
            client.update(at=self.changes, state="running" if client["state"] == "idle" else "idle", turns=client["turns"] + 1)
            self.changed.notify_all()
            return client["turns"]

    def lines(self, query):
        words = dict(word.split("=", 1) for word in query.split("&") if word)
        since, gpus = int(words.get("changes", 0)), words["gpus"].split(",") if "gpus" in words else self.gpus
        question = {"gpus": gpus, "told": 0}
        self.questions.append(question)
        while not self.closed:
            with self.changed:
                if since and not self.changed.wait_for(lambda: any(each["at"] > since and each["gpu"] in gpus for each in self.clients), self.wait_s):
                    since = 0
                self.told += 1
                question["told"] += 1
                line = json.dumps(self.report(since)).encode() + b"\n"
                since = self.changes
            yield line
            if not self.wait_s:
                return

    def report(self, since):
        uptime = int((time.monotonic() - self.begin) * 1e9)
        usage = {"swapped_out": uptime, "swapped_in": 0}
        report = {
            "version": "1.2.3", "pid": 1, "epoch": 7, "changes": self.changes, "uptime_ns": uptime, "host_memory_used": 0,
            "host_memory_budget": GIB, "host_memory_bound": "", "bypasses": [],
            "gpus": [{"uuid": gpu, "name": "made up", "total": 80 * GIB, "safe_limit": 72 * GIB, "foreign": GIB, "overhead": 0, "departed": 0,
                      "nvml": True, "compute_mode": "unlimited", "usage": usage} for gpu in self.gpus],
            "tenants": [] if since else [
                {"id": client["id"], "name": f"tenant{client['id']}", "memory": [], "compute": [], "gpu_core_limit": 100, "gpu_core_reserved": 0,
                 "priority": 0, "clients": 1, "paused": False} for client in self.clients],
            "clients": [self.client(client, uptime) for client in self.clients if client["at"] > since],
        }
        return {**report, "since": since, "there": [client["id"] for client in self.clients]} if since else report

    @staticmethod
    def client(client, uptime):
        moving = {"time_running_ns": uptime if client["state"] == "running" else 0, "time_swapping_ns": 0, "time_waiting_ns": 0}
        return {"id": client["id"], "pid": 1000 + client["id"], "program": f"program{client['id']}", "tenant": client["id"], "gpu": client["gpu"],
                "state": client["state"], "since_ns": 0, "allocated": GIB, "resident": GIB, "swapped": 0, "turns": client["turns"], "waiting_for": "",
                **moving}
