"""Ranges of options as types: the values of a config are checked against the signature of what they build."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Probability = Annotated[float, Field(ge=0, lt=1)]  # of dropout: 1 would leave nothing
Share = Annotated[float, Field(ge=0, le=1)]
PartialShare = Annotated[float, Field(gt=0, lt=1)]  # some of it, not all: of a weighted sum both terms count
