"""A server for one page on this machine, with a recognizer behind it; nothing is stored, and nothing is fetched."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files
from io import BytesIO
from typing import Any

from asr.console import PlainConsole
from asr.demo.errors import Refused
from asr.demo.live import LiveStreams
from asr.demo.recordings import Recordings, memory_file
from asr.demo.requests import address_of, content_length, copy, drain, refuse_foreign, refuse_foreign_post, shown_name
from asr.demo.work import MainThread
from asr.error_text import first_line
from asr.errors import RunFailed

HOST = "127.0.0.1"  # other addresses would need an encrypted connection: browsers give no microphone to pages without
MAX_CONNECTIONS = 32
MAX_UPLOADS = 2  # in memory at a time
MAX_PACKET_BYTES = 2**21
WAIT_S = 30.0  # for what a client sends next, and for the whole head of a request
DRAINED_S, DRAINED_BYTES = 1.0, 2**28
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
SELF = ("script-src", "style-src", "connect-src", "img-src")
POLICY = "; ".join(
    [
        *("default-src 'none'", *(f"{kind} 'self'" for kind in SELF), "media-src blob:"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

console = PlainConsole(stderr=True)


@dataclass(frozen=True)
class Demo:
    """What the page can ask for.

    Attributes:
        about: plain data for the page: the model and the limits.
        recordings: transcribes whole recordings.
        live: recognizes live streams; None if the recognizer cannot.
        max_upload_bytes: of a recording.
    """

    about: dict[str, Any]
    recordings: Recordings
    live: LiveStreams | None
    max_upload_bytes: int


class DemoServer(socketserver.ThreadingMixIn, HTTPServer):
    """Listens from the beginning, and answers once it is told what with.

    Args:
        port: of this machine; 0: any that is free.

    Raises:
        OSError: the port is in use, or may not be used.
    """

    daemon_threads = True
    allow_reuse_port = False  # newer Pythons would let a second server take the port of the first

    def __init__(self, port: int) -> None:
        self.demo: Demo | None = None
        self.main_thread = MainThread()
        self.uploads = threading.BoundedSemaphore(MAX_UPLOADS)
        self.connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((HOST, port), Handler)

    def server_bind(self) -> None:
        """Bind without the look-up of a name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)

    def serve(self, demo: Demo) -> None:
        """Answer requests until a signal ends this."""
        self.demo = demo
        threading.Thread(target=self.serve_forever, daemon=True).start()
        try:
            self.main_thread.run(demo.live.drop_idle if demo.live else lambda: None)
        finally:
            self.shutdown()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, unless there are too many."""
        if not self.connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self.connections.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer the requests of a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that have gone, at any moment of a connection; no other error leaves a handler."""


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of a connection."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # answers of HTTP/0.9, to what names no version, have no headers
    server_version, sys_version = "werdict", ""
    timeout = WAIT_S
    server: DemoServer

    def handle_one_request(self) -> None:
        """Answer the next request of the connection, which is shut if its head takes too long, byte by byte."""
        self.head_timer = threading.Timer(self.timeout, self._hang_up)
        self.head_timer.daemon = True
        self.head_timer.start()
        try:
            super().handle_one_request()
        finally:
            self.head_timer.cancel()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        """Answer with a file of the page, or what the page says about the model."""
        self._answer(self._page)

    def do_POST(self) -> None:
        """Answer with text for audio."""
        self._answer(self._heard)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is no HTTP, or of a method that is not known."""
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing for a request."""

    @property
    def demo(self) -> Demo:
        """What is asked; requests are answered only once it is there."""
        assert self.server.demo is not None
        return self.server.demo

    def _answer(self, answer: Callable[[str, dict[str, str]], tuple[str, bytes]]) -> None:
        self.head_timer.cancel()
        try:
            refuse_foreign(self.headers)
            self._send(HTTPStatus.OK, *answer(*address_of(self.path)))
        except Refused as refused:
            self._refuse(refused.status, str(refused))
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            # the page shows it, and so does the terminal, because it is no fault of the recording
            told = str(error) if isinstance(error, RunFailed) else f"{type(error).__name__}: {first_line(error)}"
            console.print_line(f"a request failed: {told}")
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, told)

    def _page(self, path: str, _: dict[str, str]) -> tuple[str, bytes]:
        if path == "/about":
            return _json(self.demo.about)
        if path not in PAGE:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        return PAGE[path]

    def _heard(self, path: str, query: dict[str, str]) -> tuple[str, bytes]:
        refuse_foreign_post(self.headers)
        if path == "/transcribe":
            return _json(self._transcribed(shown_name(query.get("name", ""))))
        kind, _, stream = path.removeprefix("/").partition("/")
        if kind != "streams":
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        live = self.demo.live
        if live is None:
            raise Refused(HTTPStatus.NOT_FOUND, "this model cannot hear live speech")
        pcm = BytesIO()
        copy(self.rfile, pcm, content_length(self.headers, MAX_PACKET_BYTES, "at a time"))
        ask = self.server.main_thread.ask
        if stream:
            return _json(ask(lambda: live.hear(stream, pcm.getvalue(), "end" in query)))
        rate_hz = query.get("rate_hz", "")
        if not (rate_hz.isascii() and rate_hz.isdecimal() and len(rate_hz) < 10):
            raise Refused(HTTPStatus.BAD_REQUEST, "rate_hz must be a number of samples per second")
        return _json(ask(lambda: live.open(int(rate_hz))))

    def _transcribed(self, name: str) -> dict[str, Any]:
        num_bytes = content_length(self.headers, self.demo.max_upload_bytes, "max_upload_mb")
        if not self.server.uploads.acquire(blocking=False):
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{MAX_UPLOADS} recordings are at work already; try again in a moment"
            )
        try:
            with memory_file() as file:
                copy(self.rfile, file, num_bytes)
                return self.server.main_thread.ask(lambda: self.demo.recordings.transcribe(file, name))
        finally:
            self.server.uploads.release()

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Say why, and end the connection, on which more of the request may lie."""
        self.close_connection = True
        self._send(status, *_json({"error": message}))
        with contextlib.suppress(OSError):
            drain(self.connection, self.rfile, DRAINED_S, DRAINED_BYTES)

    def _send(self, status: HTTPStatus, content_type: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)


def _json(data: dict[str, Any]) -> tuple[str, bytes]:
    return "application/json", json.dumps(data).encode()


def _read_page() -> dict[str, tuple[str, bytes]]:
    """Return the files of the page by their paths."""
    found = {}
    for file in files("asr.demo").joinpath("page").iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind:
            found["/" if file.name == "index.html" else f"/{file.name}"] = f"{kind}; charset=utf-8", file.read_bytes()
    return found


PAGE = _read_page()
