"""How much audio the updates of a training were made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class AudioClock:
    """Counts the seconds of audio that updates may have held, on all ranks.

    What they did hold would have to be counted and saved; what they may have held follows from their number, as long as
    they are of one size. Where another number of processes goes on, a new count begins.

    Attributes:
        update: behind which all have been of one size.
        audio_s: in the updates until then.
    """

    def __init__(self) -> None:
        self.update, self.audio_s = 0, 0.0

    def read(self, update: int, update_s: float) -> float:
        """Return the seconds in all updates until one, those that are counted being of ``update_s``."""
        return self.audio_s + (update - self.update) * update_s

    def state_dict(self, update_s: float) -> dict[str, float]:
        """Return what goes into a checkpoint."""
        return {"update": self.update, "audio_s": self.audio_s, "update_s": update_s}

    def load_state_dict(self, state: Mapping[str, Any], update: int, update_s: float) -> None:
        """Go on behind an update, with updates of ``update_s``."""
        self.update, self.audio_s = int(state["update"]), float(state["audio_s"])
        # the same count as without a pause where it can be: a sum in two parts may differ in its last bit
        if update_s != state["update_s"]:
            self.update, self.audio_s = update, self.read(update, state["update_s"])
