"""A Ctrl-C ends training, whatever Python or Lightning make of it."""

from __future__ import annotations

import signal

import lightning.pytorch as pl
import pytest

from asr.training.fit import fit
from tests.training.test_out_of_memory import SMALL
from tests.training.tiny import GivenData, Metrics, tiny_module, tiny_trainer


class LosesIt(pl.Callback):
    """Is interrupted while an object is deleted: Python prints and ignores what is raised there."""

    def on_train_batch_end(self, trainer, pl_module, *_):
        class Deleted:
            def __del__(self) -> None:
                signal.raise_signal(signal.SIGINT)

        Deleted()


class FailsAfterIt(pl.Callback):
    """Fails while it cleans up, as Lightning does when its data loader has not begun."""

    def on_train_batch_end(self, trainer, pl_module, *_):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("Please call iter first") from None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("callback", [LosesIt, FailsAfterIt])
@pytest.mark.parametrize("max_steps", [1, 9])
def test_an_interrupt_is_never_lost(callback, max_steps):
    metrics, before = Metrics(), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(tiny_trainer(max_steps, [callback(), metrics]), tiny_module(), GivenData([SMALL] * 9))
    assert signal.getsignal(signal.SIGINT) is before
    assert len(metrics.seen) <= 1
