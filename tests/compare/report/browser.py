"""A Chromium without a window, spoken to over two pipes in the DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome", "microsoft-edge")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")
TIMEOUT_S = 60
# Chromium reads commands from descriptor 3 and answers on 4
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def find_chromium() -> str | None:
    """Return the executable that ``WERDICT_CHROMIUM`` names, or one of a usual name."""
    return next(filter(None, map(shutil.which, (os.environ.get("WERDICT_CHROMIUM", ""), *NAMES))), None)


class Browser:
    """Ends with ``close``; ``requests`` holds every address that was asked for."""

    def __init__(self, executable: str, profile: Path) -> None:
        (child_in, ours_out), (ours_in, child_out) = os.pipe(), os.pipe()
        # far from 3 and 4, which they are copied to
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (child_in, child_out)]
        os.close(child_in)
        os.close(child_out)
        command = [sys.executable, "-c", START, *map(str, ends), executable, *OPTIONS, f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(
            command, pass_fds=ends, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for end in ends:
            os.close(end)
        self.input, self.output = ours_in, ours_out
        self.buffer, self.number = b"", 0
        self.requests: list[str] = []
        self.loaded = False
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Network.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a command."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.output, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def show(self, page: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a page on a screen of that size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.requests, self.loaded = [], False
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self.loaded:
            self._next()

    def value(self, expression: str) -> Any:
        """Return what a script on the page gives; the tools may run one where the page may not."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Save the whole page as it looks."""
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def close(self) -> None:
        """End the browser."""
        self.session = None
        self.call("Browser.close")
        self.process.wait(TIMEOUT_S)
        os.close(self.input)
        os.close(self.output)

    def _next(self) -> dict[str, Any]:
        """Return the next message, and take note of what it says."""
        end = time.monotonic() + TIMEOUT_S
        while b"\0" not in self.buffer:
            assert select.select([self.input], [], [], max(0, end - time.monotonic()))[0], "Chromium does not answer"
            read = os.read(self.input, 2**20)
            assert read, "Chromium has ended"
            self.buffer += read
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        self.loaded |= message.get("method") == "Page.loadEventFired"
        return message
