"""``asr-prepare``: make the data of a recipe, without training."""

from __future__ import annotations

from asr.run.build import settled
from asr.run.compose import Composed
from asr.run.data import data_for_run


def run(composed: Composed) -> None:
    """Prepare what is missing and print the table."""
    composed, _ = settled(composed, lambda options: None)
    data_for_run(composed.options)
