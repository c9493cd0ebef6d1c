"""Optimizers and learning-rate schedules for PyTorch, each checked against its reference."""

from optim.adafactor import Adafactor, AdafactorSchedule
from optim.adamw import AdamC, AdamW
from optim.ademamix import AdEMAMix
from optim.adopt import ADOPT
from optim.aliases import ALIASES
from optim.cain import Cain
from optim.combined import Combined, torch_muon
from optim.composable import CommonOptions, Composable
from optim.engine.chain import Chain, ChainOptions, chain
from optim.engine.param_batch import ParamBatch, Update
from optim.engine.transform import FusedTransform, GroupTransform, SkipUpdate, Transform
from optim.eve import Eve
from optim.health import Health
from optim.in_backward import StepInBackward, step_in_backward
from optim.laprop import LaProp
from optim.learned_gradient import LearnedGradient
from optim.lion import Lion
from optim.matrix_blocks import explain, matrix_blocks
from optim.maxfactor import MaxFactor
from optim.muon import MatrixOptions, Muon, MuonLaProp, NorMuon, Scion
from optim.parameter_groups import grouped
from optim.prodigy import Prodigy
from optim.psgd.optimizer import PSGDKron
from optim.rmsprop import RMSprop
from optim.rubik import Rubik
from optim.scaled_adam import ScaledAdam
from optim.schedule_free_adamw import ScheduleFree, ScheduleFreeAdamW
from optim.schedule_free_plus import ScheduleFreePlus
from optim.schedules import (
    Constant,
    Eden,
    Eden2,
    InterpCosine,
    Noam,
    WarmupCosine,
    WarmupInverseSquareRoot,
    WarmupLinear,
    WarmupStableDecay,
)
from optim.shampoo import Shampoo
from optim.soap import SOAP
from optim.t5x_adafactor import FactorDim, HParamMap, T5XAdafactor, standard_logical_factor_rules
from optim.transforms.compose import Branches, Sequential, transform

__all__ = [
    "ADOPT",
    "SOAP",
    "AdEMAMix",
    "Adafactor",
    "AdafactorSchedule",
    "AdamC",
    "AdamW",
    "Branches",
    "Cain",
    "Chain",
    "ChainOptions",
    "Combined",
    "CommonOptions",
    "Composable",
    "Constant",
    "Eden",
    "Eden2",
    "Eve",
    "FactorDim",
    "FusedTransform",
    "GroupTransform",
    "HParamMap",
    "Health",
    "InterpCosine",
    "LaProp",
    "LearnedGradient",
    "Lion",
    "MatrixOptions",
    "MaxFactor",
    "Muon",
    "MuonLaProp",
    "Noam",
    "NorMuon",
    "PSGDKron",
    "ParamBatch",
    "Prodigy",
    "RMSprop",
    "Rubik",
    "ScaledAdam",
    "ScheduleFree",
    "ScheduleFreeAdamW",
    "ScheduleFreePlus",
    "Scion",
    "Sequential",
    "Shampoo",
    "SkipUpdate",
    "StepInBackward",
    "T5XAdafactor",
    "Transform",
    "Update",
    "WarmupCosine",
    "WarmupInverseSquareRoot",
    "WarmupLinear",
    "WarmupStableDecay",
    "chain",
    "explain",
    "grouped",
    "matrix_blocks",
    "standard_logical_factor_rules",
    "step_in_backward",
    "torch_muon",
    "transform",
]


def __getattr__(name: str) -> type[Composable]:
    """Return the optimizer that HeavyBall calls so; see `optim.aliases`."""
    if name in ALIASES:
        return ALIASES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
