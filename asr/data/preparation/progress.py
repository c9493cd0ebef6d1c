"""One line of progress: hours of audio that are done, how fast, and the time left."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from asr.console import PlainConsole, bar_title


class Timed(Protocol):
    """Something that stands for seconds of audio."""

    @property
    def duration_s(self) -> float:
        """Seconds of audio."""
        ...


T = TypeVar("T", bound=Timed)


def track_hours(done: Iterable[T], total_s: float, description: str) -> Iterator[T]:
    """Yield the items, and show how many hours of audio they are.

    Args:
        done: what is done; each item stands for its seconds.
        total_s: seconds of all.
        description: what is done with them.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    begin = time.monotonic()
    with Progress(*columns, console=PlainConsole()) as progress:
        line = progress.add_task(bar_title(description), total=total_s, status="")
        done_s = 0.0
        for item in done:
            done_s += item.duration_s
            rate = done_s / max(time.monotonic() - begin, 1e-3)
            status = f"{done_s / 3600:.2f} of {total_s / 3600:.2f} h, {rate:,.0f} × real time"
            progress.update(line, completed=done_s, status=status)
            yield item
        # sums of rounded seconds need not be equal
        progress.update(line, completed=total_s)
