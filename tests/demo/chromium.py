"""A headless Chromium, driven by the DevTools protocol over pipes: JSON messages that end with a zero byte."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
    *("--use-fake-device-for-media-stream", "--autoplay-policy=no-user-gesture-required", "--mute-audio"),
)


def program() -> str | None:
    """Return the path of a browser that is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A page of a browser.

    Args:
        to_browser: descriptor of the pipe for commands.
        from_browser: descriptor of the pipe for answers and events.
        timeout_s: for an answer.
    """

    def __init__(self, to_browser: int, from_browser: int, timeout_s: float = 60) -> None:
        self.to_browser, self.from_browser, self.timeout_s = to_browser, from_browser, timeout_s
        self.number, self.session, self.rest = 0, "", b""
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a command."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + self.timeout_s
        while b"\0" not in self.rest:
            waited_s = max(0.0, deadline - time.monotonic())
            assert select.select([self.from_browser], [], [], waited_s)[0], "the browser does not answer"
            data = os.read(self.from_browser, 2**16)
            assert data, "the browser has ended"
            self.rest += data
        message, _, self.rest = self.rest.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def open(self, address: str, width: int = 1280, height: int = 900, *, is_dark: bool = False) -> None:
        """Show an address in a window of a size in CSS pixels."""
        phone = width < 600
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=address)
        self.wait("document.readyState == 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of JavaScript, as if a user had just clicked."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str, timeout_s: float = 60) -> None:
        """Wait until a condition in JavaScript holds."""
        deadline = time.monotonic() + timeout_s
        while not self.run(condition):
            assert time.monotonic() < deadline, f"{condition} never came true; the page: {self.text('body')}"
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        """Return the visible text of an element."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def choose_file(self, selector: str, *paths: Path) -> None:
        """Choose files as a user does."""
        root = self.ask("DOM.getDocument")["root"]["nodeId"]
        node = self.ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.ask("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def picture(self, path: Path) -> None:
        """Save a picture of the whole page."""
        taken = self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(taken))

    def addresses(self) -> list[str]:
        """Return what the page has asked for."""
        return [event["params"]["request"]["url"] for event in self._of("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        """Return errors of scripts, of the policy, and of requests that failed."""
        thrown = [str(event["params"]["exceptionDetails"]) for event in self._of("Runtime.exceptionThrown")]
        entries = [event["params"]["entry"] for event in self._of("Log.entryAdded")]
        return thrown + [f"{entry['text']} {entry.get('url', '')}" for entry in entries if entry["level"] == "error"]

    def _of(self, method: str) -> list[dict[str, Any]]:
        self.run("0")  # events before its answer have come
        return [event for event in self.events if event.get("method") == method]


@contextlib.contextmanager
def browser(folder: Path, *flags: str) -> Iterator[Page]:
    """Yield a page of a new browser.

    Args:
        folder: for the files of the browser.
        flags: more of them.
    """
    command = [str(program()), *FLAGS, *flags, f"--user-data-dir={folder}", "about:blank"]
    (read_here, write_there), (read_there, write_here) = os.pipe(), os.pipe()

    # the browser reads from 3 and writes to 4; pipes that have one of these numbers here are moved away first
    shell = f'exec 8<&{read_there} 9>&{write_there}; exec "$@" 3<&8 4>&9'
    started = subprocess.Popen(
        ["bash", "-c", shell, "bash", *command],
        pass_fds=(read_there, write_there),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_there)
    os.close(write_there)
    try:
        yield Page(write_here, read_here)
    finally:
        started.terminate()
        started.wait(20)
        os.close(write_here)
        os.close(read_here)
