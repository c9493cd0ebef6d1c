"""Work that threads hand to another thread."""

import queue
import threading

import pytest

from asr.demo.work import MainThread


class Ended(BaseException):
    """A signal, which ends what is at work."""


def end() -> None:
    raise Ended


def test_work_is_done_in_order_and_nothing_is_tidied_while_some_waits():
    main, done, asked = MainThread(), [], queue.SimpleQueue()

    def ask(name: str) -> None:
        main.ask(lambda: done.append(name))
        asked.put(name)

    for number in range(3):
        threading.Thread(target=ask, args=(str(number),), daemon=True).start()
        while main._waiting.qsize() <= number:
            pass

    with pytest.raises(Ended):
        main.run(end)
    assert done == ["0", "1", "2"]
    assert {asked.get(timeout=10) for _ in range(3)} == {"0", "1", "2"}


def test_an_error_is_for_the_thread_that_has_asked():
    main, caught = MainThread(), queue.SimpleQueue()

    def ask() -> None:
        try:
            main.ask(lambda: 1 / 0)
        except ZeroDivisionError as error:
            caught.put(error)

    threading.Thread(target=ask, daemon=True).start()
    while not main._waiting.qsize():
        pass
    with pytest.raises(Ended):
        main.run(end)
    assert isinstance(caught.get(timeout=10), ZeroDivisionError)
