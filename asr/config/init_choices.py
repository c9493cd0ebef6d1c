"""Options that follow from the weights a run starts from, where the user leaves them open."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from asr.config.build import part, plain
from asr.config.data import source_corpus
from asr.config.init_source import OF_FILE
from asr.data.preparation.saved_corpus import Choice
from asr.plain_data import at, is_within
from asr.text.tokenizer import case_that_is_known, tokenizer_from_state, unknown_characters
from asr.training.checkpoints import LoadedCheckpoint

# where a config has a rate that weights know, and the key that sets it
RATES = {
    "data.sampling_rate_hz": ("features", "sampling_rate_hz"),
    "encoder.subsampling_factor": ("encoder", "subsampling_factor"),
}
TOKENIZER = ("tokenizer", "data.vocab_size")
LR_SHARE = 0.5  # of the rate for new weights; a fifth learned less on all corpora tried: recipes/custom/RESULTS.md


def source_rates(
    config: Mapping[str, Any], source: LoadedCheckpoint | None, overridden: Collection[str]
) -> list[Choice]:
    """Return the rates of features and encodings that the weights of a source know, where this run has others.

    Args:
        config: of a new run.
        source: what it starts from.
        overridden: keys that the command line names, which keep their values.
    """
    if source is None:
        return []
    options = [key for key in overridden if key != "encoder"]  # encoder=conformer_xs says no rate
    return [
        Choice(key, rate, f"as in {config['init']['path']}")
        for key, place in RATES.items()
        if not is_within(key, options)
        and type(rate := at(source.config, *place)) is int
        and type(run_rate := at(config, *place)) is int
        and rate != run_rate
    ]


def fine_tuning(config: DictConfig, source: LoadedCheckpoint | None, overridden: Collection[str]) -> Iterator[Choice]:
    """Yield the choice of a tokenizer, and of a learning rate, for a run that starts from trained weights.

    Args:
        config: of a new run.
        source: what it starts from; None: nothing, or weights without a tokenizer.
        overridden: keys that the command line names, which keep their values.

    Raises:
        ValueError: the corpus, or the tokenizer of the source, cannot be used.
    """
    if source is None:
        return
    keep_tokenizer, is_file = config.init.keep_tokenizer, OmegaConf.select(config, "tokenizer._target_") == OF_FILE
    own_tokenizer = is_file or any(is_within(key, TOKENIZER) for key in overridden)
    if keep_tokenizer is None and not own_tokenizer:
        tokenizer = tokenizer_from_state(source.tokenizer)
        share, most = unknown_characters(tokenizer, _training_texts(plain(config)))
        keep_tokenizer = not most
        lacking = f"{share:.2%} of the characters of the training texts, such as {' '.join(map(repr, most))}"
        if case := case_that_is_known(tokenizer, most):
            lacking += f"; it can spell most of them with {case}, which keeps it and its trained head"
        reason = "can spell the training texts" if keep_tokenizer else f"cannot spell {lacking}"
        yield Choice("init.keep_tokenizer", keep_tokenizer, f"that of the source {reason}")
    # a value that nobody has set is an interpolation of our configs
    is_open = OmegaConf.is_interpolation(config.optimizer, "lr")
    if keep_tokenizer and is_open and not any(is_within(key, ["best_lr"]) for key in overridden):
        usual = config.optimizer.lr
        reason = f"{LR_SHARE:g} of the usual {usual:g}, because encoder and head are already trained"
        yield Choice("optimizer.lr", float(f"{usual * LR_SHARE:.3g}"), reason)


def _training_texts(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the normalized transcripts of the training split."""
    normalize = part(config, "data.text")
    for chunk in source_corpus(config).chunks("train"):
        for segment in map(json.loads, chunk.segments):
            with contextlib.suppress(ValueError):  # half of a surrogate pair: the utterance will be dropped
                yield normalize(segment.get("text") or "")
