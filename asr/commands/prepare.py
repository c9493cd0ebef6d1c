"""``asr-prepare``: make the data of a recipe, without training."""

from __future__ import annotations

from omegaconf import DictConfig

from asr.run.build import resolve
from asr.run.data import data_for_run
from asr.run.parts import plain


def run(config: DictConfig) -> None:
    """Prepare what is missing and print the table."""
    resolve(config, lambda _: None)
    data_for_run(plain(config))
