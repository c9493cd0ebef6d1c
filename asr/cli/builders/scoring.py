"""A run's config → how its hypotheses are scored."""

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
