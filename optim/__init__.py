"""Optimizers and learning-rate schedules for PyTorch, each checked against its reference."""

from optim.adafactor import Adafactor, AdafactorSchedule
from optim.adamw import AdamW
from optim.cain import Cain
from optim.combined import Combined
from optim.composable import CommonOptions, Composable
from optim.engine.batch import ParamBatch, Update
from optim.engine.chain import Chain, chain
from optim.engine.transform import FusedTransform, GroupTransform, Transform
from optim.eve import Eve
from optim.health import Health
from optim.learned_gradient.optimizer import LearnedGradient
from optim.maxfactor import MaxFactor
from optim.muon import MatrixOptions, Muon
from optim.muon_laprop import MuonLaProp
from optim.nor_muon import NorMuon
from optim.parameter_groups import grouped
from optim.scaled_adam import ScaledAdam
from optim.schedules.constant import Constant
from optim.schedules.eden import Eden
from optim.schedules.eden2 import Eden2
from optim.schedules.inverse_square_root import WarmupInverseSquareRoot
from optim.schedules.noam import Noam
from optim.schedules.warmup_cosine import WarmupCosine
from optim.schedules.warmup_linear import WarmupLinear
from optim.schedules.warmup_stable_decay import WarmupStableDecay
from optim.scion import Scion
from optim.t5x_adafactor.factor_rules import FactorDim, HParamMap, standard_logical_factor_rules
from optim.t5x_adafactor.optimizer import T5XAdafactor

__all__ = [
    "Adafactor",
    "AdafactorSchedule",
    "AdamW",
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
    "LearnedGradient",
    "MatrixOptions",
    "MaxFactor",
    "Muon",
    "MuonLaProp",
    "Noam",
    "NorMuon",
    "ParamBatch",
    "ScaledAdam",
    "Scion",
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
]
