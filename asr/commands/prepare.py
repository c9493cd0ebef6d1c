"""``asr-prepare``: make the data of a recipe, without training."""

from __future__ import annotations

from asr.run.choices import choose_by_corpus, choose_by_words
from asr.run.compose import Composed
from asr.run.data import data_for_run


def run(composed: Composed) -> None:
    """Prepare what is missing and print the table."""
    data_for_run(choose_by_corpus(*choose_by_words(composed)).options)
