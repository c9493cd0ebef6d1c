"""Which requests are answered: those of the page itself, from this machine, within limits.

A browser sends requests of any page to any address, also of this machine: other origins are told by ``Origin`` and
``Sec-Fetch-Site``, and pages whose name was pointed to this machine (DNS rebinding) by ``Host``.
"""

from __future__ import annotations

import re
import socket
import time
from email.message import Message
from http import HTTPStatus
from io import BufferedIOBase
from pathlib import PurePosixPath
from typing import IO
from urllib.parse import parse_qs, urlsplit

from asr.console import printable
from asr.demo.errors import Refused

# a tunnel may lead another port of this machine here
LOCAL = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?", re.ASCII | re.IGNORECASE)
CONTENT_TYPE = "application/octet-stream"  # which a page of another origin cannot send unasked
MAX_NAME = 200  # characters
BLOCK = 2**16  # bytes
PATIENCE_S, SLOWEST_BYTES_PER_S = 10.0, 500_000  # of an upload, whose place others wait for


def refuse_foreign(headers: Message) -> None:
    """Refuse what does not come from the page.

    Raises:
        Refused: it is for another host, or from another origin.
    """
    hosts = headers.get_all("Host", [])
    if len(hosts) != 1 or not LOCAL.fullmatch(hosts[0]):
        raise Refused(HTTPStatus.FORBIDDEN, "only requests to 127.0.0.1 or localhost are answered")
    origins = headers.get_all("Origin", [])
    if any(origin.lower() != f"http://{hosts[0]}".lower() for origin in origins):
        raise Refused(HTTPStatus.FORBIDDEN, "only requests of the page itself are answered")


def refuse_foreign_post(headers: Message) -> None:
    """Refuse data that another page sends.

    Raises:
        Refused: it comes from another page, or is not sent as the page sends it.
    """
    if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        raise Refused(HTTPStatus.FORBIDDEN, "only requests of the page itself are answered")
    if headers.get("Content-Type", "").lower() != CONTENT_TYPE:
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"what is sent must have the type {CONTENT_TYPE}")


def content_length(headers: Message, max_bytes: int, limit: str) -> int:
    """Return the number of bytes that follow a request.

    Args:
        headers: of the request.
        max_bytes: that are taken.
        limit: where that number comes from.

    Raises:
        Refused: their number is not said, or too large.
    """
    given = headers.get_all("Content-Length", [])
    if "Transfer-Encoding" in headers or len(given) != 1 or not re.fullmatch(r"\d{1,18}", given[0], re.ASCII):
        raise Refused(HTTPStatus.LENGTH_REQUIRED, "the number of bytes must be said, in one header Content-Length")
    if int(given[0]) > max_bytes:
        raise Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"{int(given[0]) / 1e6:.1f} MB were sent, and at most {max_bytes / 1e6:g} MB are taken ({limit})",
        )
    return int(given[0])


def copy(source: BufferedIOBase, target: IO[bytes], num_bytes: int) -> None:
    """Copy what follows a request.

    Raises:
        ConnectionError: the client has gone before its end, or is so slow that others would wait for it.
    """
    deadline = time.monotonic() + PATIENCE_S + num_bytes / SLOWEST_BYTES_PER_S
    while num_bytes:
        block = source.read1(min(BLOCK, num_bytes))
        if not block or time.monotonic() > deadline:
            raise ConnectionAbortedError("the client has gone, or is too slow")
        target.write(block)
        num_bytes -= len(block)


def address_of(target: str) -> tuple[str, dict[str, str]]:
    """Return the path and the query of a request, of which each key stands once.

    Raises:
        Refused: they cannot be read.
    """
    try:
        parts = urlsplit(target)
        query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=8, errors="replace")
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST, "the address cannot be read") from None
    if any(len(values) > 1 for values in query.values()) or parts.netloc:
        raise Refused(HTTPStatus.BAD_REQUEST, "the address cannot be read")
    return parts.path, {key: values[0] for key, values in query.items()}


def shown_name(given: str) -> str:
    """Return the name of a file as it is shown; it is never opened."""
    name = printable(PurePosixPath(given.replace("\\", "/")).name).replace("\n", " ").replace("\t", " ")
    return name[:MAX_NAME].strip() or "recording"


def drain(connection: socket.socket, source: BufferedIOBase, seconds: float, max_bytes: int) -> None:
    """Read on for a moment after an early answer: a client that is still sending would not see it.

    Args:
        connection: to the client; nothing is sent on it any more.
        source: what the client sends.
        seconds: that are waited for the next bytes.
        max_bytes: read at most.
    """
    connection.shutdown(socket.SHUT_WR)
    connection.settimeout(seconds)
    while max_bytes > 0 and (block := source.read(min(BLOCK, max_bytes))):
        max_bytes -= len(block)
