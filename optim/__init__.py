"""Optimizers and learning-rate schedules for PyTorch, each checked against its reference."""

from optim.adafactor import Adafactor, AdafactorSchedule
from optim.adamw import AdamW
from optim.adopt import ADOPT
from optim.aliases import ALIASES
from optim.cain import Cain
from optim.combined import Combined
from optim.composable import CommonOptions, Composable
from optim.engine.chain import Chain, chain
from optim.engine.param_batch import ParamBatch, Update
from optim.engine.transform import FusedTransform, GroupTransform, SkipUpdate, Transform
from optim.eve import Eve
from optim.health import Health
from optim.in_backward import StepInBackward, step_in_backward
from optim.laprop import LaProp
from optim.learned_gradient.optimizer import LearnedGradient
from optim.lion import Lion
from optim.maxfactor import MaxFactor
from optim.muon.muon import MatrixOptions, Muon
from optim.muon.muon_laprop import MuonLaProp
from optim.muon.nor_muon import NorMuon
from optim.muon.scion import Scion
from optim.parameter_groups import grouped
from optim.psgd.optimizer import PSGDKron
from optim.rmsprop import RMSprop
from optim.rubik import Rubik
from optim.scaled_adam import ScaledAdam
from optim.schedule_free_adamw import ScheduleFreeAdamW
from optim.schedules.constant import Constant
from optim.schedules.eden import Eden
from optim.schedules.eden2 import Eden2
from optim.schedules.interp_cosine import InterpCosine
from optim.schedules.inverse_square_root import WarmupInverseSquareRoot
from optim.schedules.noam import Noam
from optim.schedules.warmup_cosine import WarmupCosine
from optim.schedules.warmup_linear import WarmupLinear
from optim.schedules.warmup_stable_decay import WarmupStableDecay
from optim.soap.optimizer import SOAP
from optim.t5x_adafactor.factor_rules import FactorDim, HParamMap, standard_logical_factor_rules
from optim.t5x_adafactor.optimizer import T5XAdafactor
from optim.transforms.compose import Branches, Sequential, transform
from optim.transforms.schedule_free import ScheduleFree

__all__ = [
    "ADOPT",
    "SOAP",
    "Adafactor",
    "AdafactorSchedule",
    "AdamW",
    "Branches",
    "Cain",
    "Chain",
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
    "RMSprop",
    "Rubik",
    "ScaledAdam",
    "ScheduleFree",
    "ScheduleFreeAdamW",
    "Scion",
    "Sequential",
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
    "grouped",
    "standard_logical_factor_rules",
    "step_in_backward",
    "transform",
]


def __getattr__(name: str) -> type[Composable]:
    """Return the optimizer that HeavyBall calls so; see `optim.aliases`."""
    if name in ALIASES:
        return ALIASES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
