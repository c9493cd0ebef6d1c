"""``asr-prepare``: make the data of a recipe, without training."""

from __future__ import annotations

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from asr.config.build import plain, transcripts_lm_order
from asr.config.by_corpus import choose_by_corpus
from asr.config.command_line import override_key
from asr.config.data import data_for_run
from asr.config.init import take_rates
from asr.config.mixtures import complete_sources
from asr.config.replaced_defaults import drop_replaced_defaults


def run(config: DictConfig) -> None:
    """Prepare what is missing and print the table."""
    drop_replaced_defaults(config, HydraConfig.get().overrides.task, HydraConfig.get().runtime.choices)
    complete_sources(config)
    if config.init.path is not None:
        take_rates(config, _typed())
    if config.data.by_corpus:
        choose_by_corpus(config, _typed())
    transcripts_lm_order(plain(config))  # checked as asr-train does
    data_for_run(plain(config))


def _typed() -> set[str]:
    return {override_key(word) for word in HydraConfig.get().overrides.task}
