"""A headless Chromium, spoken to over its DevTools protocol: JSON messages, each ended by a zero byte, over two pipes."""
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ANSWER_SECONDS = 120


def find():
    """The program, or None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Chromium:
    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory(prefix="nvs-chromium-", ignore_cleanup_errors=True)
        there_in, here_out = os.pipe()
        here_in, there_out = os.pipe()
        # Root needs no-sandbox. Descriptors 3 and 4 are the protocol's. No services of the browser's own, which look outside.
        words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server", "--hide-scrollbars",
                 f"--user-data-dir={self.folder.name}/profile", "--remote-debugging-pipe"]
        with open(pathlib.Path(self.folder.name) / "log", "w") as log:
            self.process = subprocess.Popen(
                ["/bin/bash", "-c", f'exec "$0" "$@" 3<&{there_in} 4>&{there_out}', *words], pass_fds=(there_in, there_out), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, env={**os.environ, "HOME": self.folder.name})
        os.close(there_in)
        os.close(there_out)
        self.out, self.input, self.buffer, self.number = here_out, here_in, b"", 0
        self.events = []

    def log(self):
        return (pathlib.Path(self.folder.name) / "log").read_text(errors="replace")

    def call(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            answer = self.read(deadline, method)
            if answer.get("id") != self.number:
                self.events.append(answer)
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            return answer["result"]

    def read(self, deadline, method):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.input], [], [], max(deadline - time.monotonic(), 0))
            part = os.read(self.input, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError(f"no answer to {method}; Chromium said:\n{self.log()}")
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, url, width=1280, height=900, dark=False):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, target, session)
        tab.call("Runtime.enable")
        tab.call("Log.enable")
        tab.resize(width, height)
        tab.colours(dark)
        tab.call("Page.enable")
        tab.call("Page.navigate", url=url)
        return tab

    def close(self):
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.input)
        self.folder.cleanup()


class Tab:
    def __init__(self, browser, target, session):
        self.browser, self.target, self.session = browser, target, session

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression[:200]}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression, seconds=ANSWER_SECONDS):
        """Until it is true; its value, or None when that took too long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if value := self.evaluate(expression):
                return value
            time.sleep(0.05)
        return None

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def colours(self, dark):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def press(self, key, code=None, text=""):
        codes = {"Tab": 9, "Enter": 13}
        keys = {"key": key, "code": code or key, "windowsVirtualKeyCode": codes.get(key, 0), **({"text": text} if text else {})}
        self.call("Input.dispatchKeyEvent", type="keyDown", **keys)
        self.call("Input.dispatchKeyEvent", type="keyUp", **keys)

    def screenshot(self):
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)["data"])

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
