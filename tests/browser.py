"""Chromium without a window, spoken to over a pipe in its own protocol (DevTools); no driver."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
PATIENCE = 30.0  # seconds for an answer


class Browser:
    """One page. ``console``, ``errors`` and ``requests`` say what it did besides."""

    def __init__(self, profile: Path) -> None:
        self.console: list[str] = []
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._count, self._session, self._buffer = 0, None, b""
        self._pid = self._spawn(profile)

    def __enter__(self) -> Browser:
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._end()

    def open(self, path: Path, *, width: int = 1200, height: int = 900, **features: str) -> None:
        """Show a file. ``features``: media features, such as ``prefers_color_scheme="dark"``."""
        media = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.call("Emulation.setEmulatedMedia", features=media)
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **screen)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.until("document.readyState === 'complete'")

    def run(self, script: str):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.run(script):
            if time.monotonic() > deadline:
                raise AssertionError(f"{script} did not become true in {PATIENCE:.0f} s")
            time.sleep(0.02)

    def press(self, key: str, times: int = 1) -> None:
        """A key of the keyboard, such as ``ArrowRight``."""
        codes = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, "PageUp": 33, " ": 32}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        text = {"text": key} if key == " " else {}
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            where = {"x": x, "y": y, "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **where)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **parameters) -> dict:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer.get("method"), answer.get("params", {}))

    def _note(self, event: str | None, about: dict) -> None:
        if event == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(a.get("value", a)) for a in about["args"]))
        elif event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(about["exceptionDetails"]))
        elif event == "Log.entryAdded":
            self.errors.append(f"{about['entry']['level']}: {about['entry']['text']}")
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])

    def _read(self) -> dict:
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], PATIENCE)[0]:
                raise AssertionError(f"Chromium did not answer in {PATIENCE:.0f} s.")
            part = os.read(self._from, 1 << 16)
            if not part:
                raise AssertionError("Chromium ended; see its words on standard error.")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _spawn(self, profile: Path) -> int:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        if program is None:
            raise AssertionError("Chromium is missing; apt-get install chromium.")
        ours, theirs = _pipe(), _pipe()  # it reads from 3 and writes to 4
        self._to, self._from = ours[1], theirs[0]
        actions = [
            (os.POSIX_SPAWN_DUP2, ours[0], 3),
            (os.POSIX_SPAWN_DUP2, theirs[1], 4),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, str(profile) + ".log", os.O_WRONLY | os.O_CREAT, 0o644),
        ]
        arguments = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        pid = os.posix_spawn(program, arguments, os.environ, file_actions=actions, setpgroup=0)
        os.close(ours[0])
        os.close(theirs[1])
        return pid

    def _end(self) -> None:
        """Ask it to close; after a while insist, for all of its processes."""
        try:
            self._session = None
            self.call("Browser.close")
        except (AssertionError, OSError):
            pass
        deadline = time.monotonic() + 5
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.killpg(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                break
            time.sleep(0.02)
        os.close(self._to)
        os.close(self._from)


def _pipe() -> tuple[int, int]:
    """Clear of the numbers that the browser wants."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high
