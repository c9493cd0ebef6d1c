"""Speech that is recognized while it is recorded, for several pages at a time."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import numpy as np

from asr.demo.errors import Refused
from asr.inference.streaming import Partial, StreamingRecognizer

MAX_STREAMS = 4
IDLE_S = 30.0  # a page sends several packets in a second
BYTES = 2  # of a sample


@dataclass
class _Stream:
    recognizer: StreamingRecognizer
    max_samples: int
    num_samples: int = 0
    heard_at_s: float = field(default_factory=time.monotonic)


class LiveStreams:
    """Recognizes a bounded number of streams; used by one thread.

    Args:
        start: a recognizer of a stream of a rate in Hz; raises ValueError for a rate that cannot be resampled.
        max_s: longest stream.
    """

    def __init__(self, start: Callable[[int], StreamingRecognizer], max_s: float) -> None:
        self.start, self.max_s = start, max_s
        self.streams: dict[str, _Stream] = {}

    def open(self, rate_hz: int) -> dict[str, Any]:
        """Return the name of a new stream, which nobody can guess.

        Raises:
            Refused: there are too many, or the rate cannot be resampled.
        """
        if len(self.streams) >= MAX_STREAMS:
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{MAX_STREAMS} live recordings are open; end one, or wait {IDLE_S:.0f} s if its page is closed",
            )
        try:
            recognizer = self.start(rate_hz)
        except ValueError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        name = secrets.token_urlsafe(16)
        self.streams[name] = _Stream(recognizer, round(self.max_s * rate_hz))
        return {"stream": name}

    def hear(self, name: str, pcm: bytes, ends: bool) -> dict[str, Any]:
        """Return what was heard since the last endpoint.

        Args:
            name: of the stream.
            pcm: samples of 16 bits, little-endian.
            ends: whether they are the last; the stream is then forgotten.

        Raises:
            Refused: there is no such stream, half a sample is left, or the stream is too long, which ends it.
        """
        stream = self.streams.get(name)
        if stream is None:
            raise Refused(
                HTTPStatus.NOT_FOUND, f"this live recording is over: it has ended, or nothing came for {IDLE_S:.0f} s"
            )
        if len(pcm) % BYTES:
            raise Refused(HTTPStatus.BAD_REQUEST, f"{len(pcm)} bytes are no samples of {8 * BYTES} bits")
        stream.num_samples += len(pcm) // BYTES
        stream.heard_at_s = time.monotonic()
        if ends or stream.num_samples > stream.max_samples:
            del self.streams[name]
        if stream.num_samples > stream.max_samples:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"this live recording is longer than {self.max_s:g} s, which is all that is taken (max_duration_s)",
            )
        samples = np.frombuffer(pcm, dtype="<i2").astype(np.float32) * np.float32(2**-15)
        partial = stream.recognizer.accept(samples)
        if not ends:
            return _row(partial)
        # what an endpoint has made final is not in the rest
        rest = stream.recognizer.finish()
        return _row(Partial(" ".join(filter(None, (partial.text, rest.text))) if partial.is_final else rest.text, True))

    def drop_idle(self) -> None:
        """Forget the streams whose pages are closed."""
        now = time.monotonic()
        self.streams = {name: one for name, one in self.streams.items() if now - one.heard_at_s < IDLE_S}


def _row(partial: Partial) -> dict[str, Any]:
    return {"text": partial.text, "is_final": partial.is_final}
