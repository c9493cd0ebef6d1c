"""How much audio a run has been trained on, counted from the size of its updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class NominalAudio:
    """Counts the seconds of audio that updates may hold at most, on all ranks.

    The seconds that they do hold would have to be summed and saved; the maximum follows from the number of updates, as
    long as their size is constant. When the number of processes changes, a new count starts.

    Attributes:
        update: all updates after this one have the same size.
        audio_s: in the updates up to that one.
    """

    def __init__(self) -> None:
        self.update, self.audio_s = 0, 0.0

    def read(self, update: int, update_s: float) -> float:
        """Return the seconds in all updates up to ``update``; those after ``self.update`` hold ``update_s`` each."""
        return self.audio_s + (update - self.update) * update_s

    def state_dict(self, update_s: float) -> dict[str, float]:
        """Return the state for a checkpoint."""
        return {"update": self.update, "audio_s": self.audio_s, "update_s": update_s}

    def load_state_dict(self, state: Mapping[str, Any], update: int, update_s: float) -> None:
        """Continue after ``update``, with updates of ``update_s`` from now on."""
        self.update, self.audio_s = int(state["update"]), float(state["audio_s"])
        # only if the size has changed: a sum in two parts may differ in its last bit from that of an uninterrupted run
        if update_s != state["update_s"]:
            self.update, self.audio_s = update, self.read(update, state["update_s"])
