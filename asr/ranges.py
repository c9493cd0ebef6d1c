"""Ranges of values as types: a config is checked against them in the signatures of what it builds."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, StringConstraints

Text = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) in (int, float) else value)]
"""A text that may look like a number, such as 2024, which Hydra then makes of it."""
Tag = Annotated[Text, StringConstraints(min_length=1, max_length=64)]  # of wandb, by its own limit

Probability = Annotated[float, Field(ge=0, lt=1)]  # of dropout: 1 would leave nothing
Fraction = Annotated[float, Field(ge=0, le=1)]
PartialFraction = Annotated[float, Field(gt=0, lt=1)]  # some of it, not all: of a weighted sum both terms count
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what torch takes
