"""Optimizers and learning-rate schedules for PyTorch, each checked against its reference."""

from optim.adafactor import Adafactor as Adafactor
from optim.adafactor import AdafactorSchedule as AdafactorSchedule
from optim.adamw import AdamC as AdamC
from optim.adamw import AdamW as AdamW
from optim.ademamix import AdEMAMix as AdEMAMix
from optim.adopt import ADOPT as ADOPT
from optim.aliases import ALIASES
from optim.cain import Cain as Cain
from optim.combined import Combined as Combined
from optim.combined import torch_muon as torch_muon
from optim.composable import CommonOptions as CommonOptions
from optim.composable import Composable as Composable
from optim.engine.chain import Chain as Chain
from optim.engine.chain import ChainOptions as ChainOptions
from optim.engine.chain import chain as chain
from optim.engine.param_batch import ParamBatch as ParamBatch
from optim.engine.param_batch import Update as Update
from optim.engine.transform import FusedTransform as FusedTransform
from optim.engine.transform import GroupTransform as GroupTransform
from optim.engine.transform import SkipUpdate as SkipUpdate
from optim.engine.transform import Transform as Transform
from optim.eve import Eve as Eve
from optim.health import Health as Health
from optim.in_backward import StepInBackward as StepInBackward
from optim.in_backward import step_in_backward as step_in_backward
from optim.laprop import LaProp as LaProp
from optim.learned_gradient import LearnedGradient as LearnedGradient
from optim.lion import Lion as Lion
from optim.matrix_blocks import explain as explain
from optim.matrix_blocks import matrix_blocks as matrix_blocks
from optim.maxfactor import MaxFactor as MaxFactor
from optim.muon import MatrixOptions as MatrixOptions
from optim.muon import Muon as Muon
from optim.muon import MuonLaProp as MuonLaProp
from optim.muon import NorMuon as NorMuon
from optim.muon import Scion as Scion
from optim.parameter_groups import grouped as grouped
from optim.prodigy import Prodigy as Prodigy
from optim.psgd.optimizer import PSGDKron as PSGDKron
from optim.rmsprop import RMSprop as RMSprop
from optim.rubik import Rubik as Rubik
from optim.scaled_adam import ScaledAdam as ScaledAdam
from optim.schedule_free_adamw import ScheduleFree as ScheduleFree
from optim.schedule_free_adamw import ScheduleFreeAdamW as ScheduleFreeAdamW
from optim.schedule_free_plus import ScheduleFreePlus as ScheduleFreePlus
from optim.schedules import Constant as Constant
from optim.schedules import Eden as Eden
from optim.schedules import Eden2 as Eden2
from optim.schedules import InterpCosine as InterpCosine
from optim.schedules import Noam as Noam
from optim.schedules import WarmupCosine as WarmupCosine
from optim.schedules import WarmupInverseSquareRoot as WarmupInverseSquareRoot
from optim.schedules import WarmupLinear as WarmupLinear
from optim.schedules import WarmupStableDecay as WarmupStableDecay
from optim.shampoo import Shampoo as Shampoo
from optim.soap import SOAP as SOAP
from optim.t5x_adafactor import FactorDim as FactorDim
from optim.t5x_adafactor import HParamMap as HParamMap
from optim.t5x_adafactor import T5XAdafactor as T5XAdafactor
from optim.t5x_adafactor import standard_logical_factor_rules as standard_logical_factor_rules
from optim.transforms.compose import Branches as Branches
from optim.transforms.compose import Sequential as Sequential
from optim.transforms.compose import transform as transform

# classes and functions of this package, but not its modules
__all__ = [name for name, x in sorted(globals().items()) if getattr(x, "__module__", "").startswith("optim.")]


def __getattr__(name: str) -> type[Composable]:
    """Return the optimizer that HeavyBall calls so; see `optim.aliases`."""
    if name in ALIASES:
        return ALIASES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
