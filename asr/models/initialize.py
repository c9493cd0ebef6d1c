"""Initial weights beyond what PyTorch's modules choose themselves."""

from __future__ import annotations

import torch
from torch import nn

BIAS_STD = 0.01


def initialize(model: nn.Module) -> None:
    """Give every bias that starts at zero a small random value.

    Optimizers whose steps are relative to the parameter (Cain, ScaledAdam, LearnedGradient) need hundreds of updates to
    leave zero; a fair comparison of optimizers needs the same initialization for all.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") and not parameter.any():
                parameter.normal_(std=BIAS_STD)
