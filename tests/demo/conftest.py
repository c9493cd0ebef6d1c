"""Servers of asr-demo, each a process of its own for all tests of a session."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

BINARY = "application/octet-stream"
MAX_S = 12.0  # of a recording


@dataclass(frozen=True)
class Answer:
    """What a server has answered.

    Attributes:
        status: code of HTTP.
        headers: of the answer.
        content: bytes of it.
    """

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def data(self) -> Any:
        """The answer as plain data."""
        return json.loads(self.content)

    @property
    def error(self) -> str:
        """Why the request was refused."""
        return str(self.data["error"])


@dataclass(frozen=True)
class Server:
    """A server at work.

    Attributes:
        process: that listens.
        port: of this machine.
        folder: that it was started in, with one for temporary files inside.
    """

    process: subprocess.Popen[bytes]
    port: int
    folder: Path

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.port}/"

    def get(self, path: str = "/", **headers: str) -> Answer:
        """Return the answer to a GET."""
        return self.ask("GET", path, None, headers)

    def post(self, path: str, content: bytes = b"", **headers: str) -> Answer:
        """Return the answer to a POST."""
        return self.ask("POST", path, content, {"Content-Type": BINARY, **headers})

    def ask(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> Answer:
        """Return the answer to a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, content, {name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        found = Answer(answer.status, dict(answer.getheaders()), answer.read())
        connection.close()
        return found

    def files(self) -> list[str]:
        """Return what lies in its folder, and the files without names that it holds."""
        descriptors = Path(f"/proc/{self.process.pid}/fd").iterdir()
        unnamed = [name for name in map(_target, descriptors) if "memfd:recording" in name]
        return unnamed + [str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()]


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except OSError:  # closed meanwhile
        return ""


def _started(folder: Path, *words: str) -> Iterator[Server]:
    temporary = folder / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "asr.cli", "demo", "port=0", "torch_threads=1", *words],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    try:
        yield Server(process, int(line.split("/")[2].partition(":")[2]), folder)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        process.stdout.close()


@pytest.fixture(scope="session")
def demo(causal, tmp_path_factory) -> Iterator[Server]:
    """Return a server with a causal recognizer."""
    limits = "max_upload_mb=1", f"max_duration_s={MAX_S:g}"
    yield from _started(tmp_path_factory.mktemp("demo"), f"run={causal}", *limits, "endpoint_s=0.5")


@pytest.fixture(scope="session")
def offline_demo(small_run, tmp_path_factory) -> Iterator[Server]:
    """Return a server with a recognizer that hears whole recordings only."""
    yield from _started(tmp_path_factory.mktemp("offline"), f"run={small_run.run_dir}")


@pytest.fixture(autouse=True)
def _nothing_is_left(request) -> Iterator[None]:
    """Fail if a test leaves a file behind, also one in memory, or ends a server."""
    yield
    for name in {"demo", "offline_demo"} & {*request.fixturenames}:
        server = request.getfixturevalue(name)
        deadline = time.monotonic() + 10
        while server.files() and time.monotonic() < deadline:
            time.sleep(0.05)  # what a client has left unfinished takes a moment to be noticed
        assert server.files() == []
        assert server.process.poll() is None
        assert server.get("/about").status == 200
