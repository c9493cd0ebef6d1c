"""What a recipe chooses by its corpus, put into the config of a run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from omegaconf import DictConfig, OmegaConf

from asr.config.build import part, plain
from asr.config.data import source_corpus
from asr.config.help import CONFIGS
from asr.config.init import RATES
from asr.console import PlainConsole
from asr.data.preparation.corpus_facts import Advice, Budget, Choice, CorpusFacts
from asr.errors import ConfigError
from asr.nested import is_within
from asr.subprocesses import is_first_process

ABSENT = object()
BUDGET = ("trainer.max_steps", "trainer.max_epochs", "data.batch.max_duration_s")


def choose_by_corpus(config: DictConfig, overridden: Collection[str]) -> bool:
    """Replace options by those that a recipe's prepare function chooses for the corpus; say each, and why.

    Args:
        config: of a new run with ``data.by_corpus``, composed.
        overridden: keys that the command line names, which keep their values.

    Returns:
        Whether an option has changed.

    Raises:
        ValueError: the corpus cannot be used.
    """
    if not isinstance(config.data.by_corpus, bool):
        raise ConfigError(f"data.by_corpus must be true or false, given {config.data.by_corpus!r}")
    if config.data.sources is not None:
        if "data.by_corpus" in overridden:
            raise ConfigError("data.by_corpus: nothing is chosen for a mixture of corpora; leave it out")
        return False
    choose: Any = getattr(getattr(part(plain(config), "data.prepare"), "func", None), "choose", None)
    if choose is None:
        raise ConfigError("data.by_corpus: this recipe chooses nothing by its corpus; leave it out")
    own = Budget(config.trainer.max_steps, config.data.batch.max_duration_s)
    options = [key for key in overridden if key != "encoder"]  # encoder=conformer_xs says nothing of the corpus
    # one of them alone would make too few, or too many, passes over the corpus
    kept = [*options, *(BUDGET if any(is_within(key, options) for key in BUDGET) else ())]
    if config.init.path is not None:
        kept += RATES  # those of its weights are taken
    if "tokenizer" in overridden:
        kept.append("encoder.subsampling_factor")  # it follows from characters as tokens
    console, changed = PlainConsole(quiet=not is_first_process()), False
    for choice in choose(CorpusFacts.of(source_corpus(plain(config))), own):
        if isinstance(choice, Advice):
            console.print_line(f"note: {choice.text}")
        # an option that this encoder lacks belongs to another one
        elif not is_within(choice.key, kept) and OmegaConf.select(config, choice.key, default=ABSENT) is not ABSENT:
            _set(config, choice)
            shown = "null" if choice.value is None else choice.value
            console.print_line(f"chosen for this corpus: {choice.key}={shown}  ({choice.reason})")
            changed = True
    return changed


def _set(config: DictConfig, choice: Choice) -> None:
    is_group = isinstance(choice.value, str)
    value = OmegaConf.load(CONFIGS / choice.key / f"{choice.value}.yaml") if is_group else choice.value
    OmegaConf.update(config, choice.key, value, merge=False)
