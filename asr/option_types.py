"""Ranges of options as types: the values of a config are checked against the signature of what they build."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, StringConstraints

Text = Annotated[str, BeforeValidator(lambda given: str(given) if type(given) in (int, float) else given)]
"""A text that may look like a number, such as 2024, which Hydra then makes of it."""
Tag = Annotated[Text, StringConstraints(min_length=1, max_length=64)]  # of wandb, by its own limit

Probability = Annotated[float, Field(ge=0, lt=1)]  # of dropout: 1 would leave nothing
Share = Annotated[float, Field(ge=0, le=1)]
PartialShare = Annotated[float, Field(gt=0, lt=1)]  # some of it, not all: of a weighted sum both terms count
