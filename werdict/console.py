"""Printing text of users and files: shown as it stands, never read as markup or as commands to the terminal."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import Progress, ProgressColumn
from rich.segment import Segment
from rich.text import Text

T = TypeVar("T")
OutputFormat = Literal["table", "json"]
LINE_EVERY_S = 9.0  # without a terminal

# C0 and C1 control characters move the cursor or change the window's title; line ends and tabs are harmless
CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
# ranges of format characters that reorder text, end a line or hide: directions, separators, operators without a shape,
# annotations, tags. The joiners U+200C and U+200D stay, because Persian, Hindi and emoji are spelled with them.
_FORMATS = (
    *((0xAD, 0xAD), (0x61C, 0x61C), (0x200B, 0x200B), (0x200E, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F)),
    *((0xFEFF, 0xFEFF), (0xFFF9, 0xFFFB), (0x1D173, 0x1D17A), (0xE0000, 0xE007F)),
)
ESCAPES = CONTROLS | {
    code: chr(code).encode("unicode_escape").decode() for first, last in _FORMATS for code in range(first, last + 1)
}


def printable(text: str) -> str:
    """Return text with characters that control a terminal, reorder or hide, and what no encoding has, as escapes."""
    return text.translate(ESCAPES).encode("utf-8", "backslashreplace").decode("utf-8")


def one_line(text: str) -> str:
    """Return text as ``printable`` does, and ends of lines as escapes too: no stranger's text begins a line."""
    return printable(text.replace("\n", "\\n"))


class PlainConsole(Console):
    """A console on which ``[red]``, ``:smile:`` and escape sequences are text like any other.

    A string is printed as one line: ends of lines in it are escapes.

    Args:
        stderr: print to standard error.
        quiet: print nothing.
        options: of rich's ``Console``.
    """

    def __init__(self, *, stderr: bool = False, quiet: bool = False, **options: Any) -> None:
        if os.environ.get("COLUMNS") == "0":  # as some terminals say; rich would print nothing
            del os.environ["COLUMNS"]
        super().__init__(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print strings, each without an end of a line in it, and what rich draws."""
        super().print(*(one_line(part) if isinstance(part, str) else part for part in objects), **options)

    def print_line(self, text: str | Text) -> None:
        """Print text in one line, however long."""
        self.print(text, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Raise an error if nobody reads standard output any more; rich would exit without a message.

        Raises:
            BrokenPipeError: always.
        """
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield what is printed; also rich's own ``Text`` keeps most control characters."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return what a string looks like; rich calls this for every string, cells of tables included."""
        return super().render_str(printable(text), **options)


# of standard output, for all parts that print during a run: rich prints nothing into the line of a progress bar only if
# both have one console
console = PlainConsole()


@contextlib.contextmanager
def json_result(output_format: OutputFormat) -> Iterator[dict[str, Any]]:
    """Yield what a command fills with its result, also if it then fails.

    As ``json`` the result alone goes to standard output, and what the command prints to standard error.
    """
    result: dict[str, Any] = {}
    is_json = output_format == "json"
    try:
        with contextlib.redirect_stdout(sys.stderr) if is_json else contextlib.nullcontext():
            yield result
    finally:
        if is_json and result:
            print(json.dumps(result, indent=1))


def bar_title(text: str) -> str:
    """Return text as the description of a progress bar, which rich reads as markup whatever the console does."""
    return escape(one_line(text))


class PlainProgress(Progress):
    """Progress bars; without a terminal, such as under nohup, a line from time to time.

    Args:
        columns: of rich's ``Progress``.
        stderr: print to standard error.
        options: of rich's ``Progress``.
    """

    def __init__(self, *columns: ProgressColumn, stderr: bool = False, **options: Any) -> None:
        self.last_line, self.plain = time.monotonic(), PlainConsole(stderr=stderr)
        super().__init__(*columns, console=self.plain, **options)

    def get_renderable(self) -> RenderableType:
        """Return the bars; rich asks for them several times a second, from a thread of its own."""
        now = time.monotonic()
        if now - self.last_line > LINE_EVERY_S and not self.plain.is_terminal:
            self.last_line = now
            for task in self.tasks if not self.finished else ():
                done = f"{task.completed:,.0f}" if task.total is None else f"{task.percentage:.0f} %"
                self.plain.print_line(f"{Text.from_markup(task.description).plain}: {done}, {task.elapsed:.0f} s")
        return super().get_renderable()

    def stop(self) -> None:
        """Remove the bars, or end their line in a log."""
        if self.live.transient:  # rich would print an empty line into a log
            self.live.stop()
        else:
            super().stop()


def track(
    items: Iterable[T] | Sequence[T], description: str, total: int | None = None, transient: bool = False
) -> Iterator[T]:
    """Iterate with a progress bar; its description may hold names of files."""
    with PlainProgress(transient=transient) as progress:
        yield from progress.track(items, total, description=bar_title(description))
