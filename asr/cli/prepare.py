"""``asr-prepare``: prepare the data of a recipe without training."""

from __future__ import annotations

from omegaconf import DictConfig

from asr.cli.app import run_app
from asr.cli.data import data_for_run
from asr.cli.parts import plain


def main() -> None:
    """Run ``asr-prepare``."""
    run_app("prepare", prepare)


def prepare(config: DictConfig) -> None:
    """Prepare missing data and print their table."""
    data_for_run(plain(config))


if __name__ == "__main__":
    main()
