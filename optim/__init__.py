"""Optimizers and learning-rate schedules for PyTorch, each checked against its reference."""

from optim.eve import Eve
from optim.parameter_groups import grouped
from optim.schedules.constant import Constant
from optim.schedules.eden import Eden
from optim.schedules.warmup_cosine import WarmupCosine

__all__ = ["Constant", "Eden", "Eve", "WarmupCosine", "grouped"]
