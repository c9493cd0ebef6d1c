"""Work that the threads of a server hand to the main thread, which does it in order."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn, TypeVar

Result = TypeVar("Result")

TIDY_S = 5.0


class MainThread:
    """Does one thing after the other, so that a recognizer is used by one thread alone, and Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()

    def ask(self, work: Callable[[], Result]) -> Result:
        """Have something done, and return its result; called by other threads."""
        future: Future[Result] = Future()
        self._waiting.put((future, work))
        return future.result()

    def run(self, tidy: Callable[[], object]) -> NoReturn:
        """Do what is asked for until a signal ends it.

        Args:
            tidy: called when nothing waits to be done, and every few seconds.
        """
        while True:
            if self._waiting.empty():  # a stream whose packet waits is not idle
                tidy()
            try:
                future, work = self._waiting.get(timeout=TIDY_S)
            except queue.Empty:
                continue
            try:
                future.set_result(work())
            except Exception as error:  # for the thread that has asked
                future.set_exception(error)
