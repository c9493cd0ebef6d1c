"""A run's config → how its hypotheses are scored, and what beside the sounds they are found by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asr.cli.errors import ConfigError
from asr.evaluation.wer import Unit
from asr.nested import at


def scoring_unit(config: Mapping[str, Any]) -> Unit:
    """Return what the error rates of a run count; those of runs before there was a choice count words.

    Raises:
        ConfigError: it is neither words nor characters.
    """
    match at(config, "data", "scoring_unit"):
        case None | "word":
            return "word"
        case "character":
            return "character"
        case other:
            raise ConfigError(f"data.scoring_unit must be word or character, given {other!r}")


def transcripts_lm_order(config: Mapping[str, Any]) -> int:
    """Return the order of the language model of the transcripts; 0: the run has none, as runs of before.

    Raises:
        ConfigError: it is impossible.
    """
    order = at(config, "data", "transcripts_lm") or 0
    if type(order) is not int or order < 0:
        raise ConfigError(f"data.transcripts_lm must be a whole number, at least 0, given {order!r}")
    return order
