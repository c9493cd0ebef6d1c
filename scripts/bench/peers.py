"""Optimizers to compare: ours, with what they may cost, and their peers."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bench.measure import lacking
from optim import Combined


@dataclass(frozen=True)
class Spec:
    """One optimizer of a table: where it comes from, its options, and what it may cost.

    With ``rest`` it gets the matrices, the parameters of two axes, and the optimizer of that row gets all others.
    """

    name: str
    module: str
    optimizer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    period: int = 1
    max_ratio: float = math.inf
    max_state_bytes: float = math.inf
    rest: Spec | None = None


UNIT = Spec("torch_adamw_fused", "torch.optim", "AdamW", {"fused": True})
ROWS = (
    UNIT,
    Spec("torch_adafactor", "torch.optim", "Adafactor"),
    Spec("torch_adafactor_foreach", "torch.optim", "Adafactor", {"foreach": True}),
    Spec("pytorch_optimizer_adafactor", "pytorch_optimizer", "AdaFactor", {"betas": (None, 0.999), "foreach": False}),
    Spec("pytorch_optimizer_adafactor_foreach", "pytorch_optimizer", "AdaFactor", {"betas": (None, 0.999)}),
    # HeavyBall has no Adafactor: its plainest rule, with whole second moments, and its LaProp
    Spec("heavyball_adamw", "heavyball", "AdamW"),
    Spec("heavyball_laprop", "heavyball", "LaProp"),
    # at its own frequency: a period has one refresh of the bases; HeavyBall's SOAP cannot take 0-dimensional parameters
    Spec("pytorch_optimizer_soap", "pytorch_optimizer", "SOAP", period=10),
    Spec("icefall_eve", "zipformer", "Eve"),
    Spec("icefall_scaled_adam", "zipformer", "ScaledAdam", {"clipping_scale": 2.0}, period=4),
    Spec("Adafactor", "optim", "Adafactor", max_ratio=2.1, max_state_bytes=0.12),
    Spec("T5XAdafactor_128", "optim", "T5XAdafactor", {"lr": 0.02, "factor_map": "matrices"}, 1, 2.1, 0.21),
    Spec(
        "T5XAdafactor_32",
        "optim",
        "T5XAdafactor",
        {"lr": 0.02, "factor_map": "matrices", "min_dim_size_to_factor": 32},
        max_ratio=2.1,
        max_state_bytes=0.10,
    ),
    Spec("MaxFactor", "optim", "MaxFactor", max_ratio=2.3, max_state_bytes=0.12),
    Spec("Eve", "optim", "Eve", max_ratio=1.8),
    Spec("Cain", "optim", "Cain", period=12, max_ratio=5),  # fits one axis of each tensor, in turns
    Spec("ScaledAdam", "optim", "ScaledAdam", {"clipping_scale": 2.0}, period=4, max_ratio=2.8),
    Spec("LearnedGradient", "optim", "LearnedGradient", period=10, max_ratio=35),
    Spec("AdamW", "optim", "AdamW", max_ratio=1.1),
    Spec("RMSprop", "optim", "RMSprop", max_ratio=2.4),
    Spec("LaProp", "optim", "LaProp", max_ratio=2.4),
    Spec("ADOPT", "optim", "ADOPT", max_ratio=2.4),
    Spec("Lion", "optim", "Lion", max_ratio=2.4),
    Spec("AdamC", "optim", "AdamC", {"weight_decay": 0.05}, max_ratio=1.1),
    Spec("AdEMAMix", "optim", "AdEMAMix"),
    Spec("Prodigy", "optim", "Prodigy"),
    Spec("ScheduleFreePlus", "optim", "ScheduleFreePlus"),
    Spec("AdamW_caution", "optim", "AdamW", {"caution": True}),
    Spec("torch_rmsprop", "torch.optim", "RMSprop"),
    Spec("pytorch_optimizer_laprop", "pytorch_optimizer", "LaProp"),
    Spec("pytorch_optimizer_adopt", "pytorch_optimizer", "ADOPT"),
    Spec("pytorch_optimizer_lion", "pytorch_optimizer", "Lion"),
    Spec("heavyball_rmsprop", "heavyball", "RMSprop"),
    Spec("heavyball_adopt", "heavyball", "ADOPT"),
    Spec("schedulefree_adamw", "schedulefree", "AdamWScheduleFree", {"foreach": False}),
    Spec("schedulefree_adamw_foreach", "schedulefree", "AdamWScheduleFree"),
    Spec("pytorch_optimizer_schedule_free", "pytorch_optimizer", "ScheduleFreeAdamW"),
    Spec("heavyball_schedule_free", "heavyball", "SFAdamW"),
    Spec("ScheduleFreeAdamW", "optim", "ScheduleFreeAdamW", max_ratio=2.4, max_state_bytes=8.01),
    Spec("SOAP", "optim", "ForeachSOAP", period=2),
    Spec("SOAP_10", "optim", "ForeachSOAP", {"precondition_frequency": 10}, 10, 40),
    Spec("SOAP_kl", "optim", "SOAP", {"kl_factors": True, "merge_dims": True}, 10),
    Spec("Shampoo", "optim", "Shampoo", {"merge_dims": True}, 10),
    # PSGD updates its preconditioner at each of the first steps, ours as its peers do
    Spec("pytorch_optimizer_kron", "pytorch_optimizer", "Kron"),
    Spec("heavyball_psgd_kron", "heavyball", "PSGDKron"),
    Spec("PSGDKron", "optim", "ForeachPSGDKron", max_ratio=70),
    # Muon's usual form: AdamW for all that is no matrix
    Spec("torch_muon_adamw", "torch.optim", "Muon", rest=UNIT),
    Spec("heavyball_muon_adamw", "heavyball", "Muon", rest=UNIT),
    Spec("Muon", "optim", "Muon", max_ratio=40, max_state_bytes=4.1, rest=Spec("AdamW", "optim", "AdamW")),
    Spec("Muon_polar_express", "optim", "Muon", {"orthogonalization": "polar_express"}, rest=UNIT),
    Spec("Muon_bfloat16", "optim", "Muon", {"ns_dtype": "bfloat16"}, rest=Spec("AdamW", "optim", "AdamW")),
    Spec("Muon_alone", "optim", "Muon"),
    Spec("MuonLaProp", "optim", "MuonLaProp", max_ratio=45, max_state_bytes=8.01, rest=UNIT),
    Spec("NorMuon", "optim", "NorMuon", max_ratio=42, max_state_bytes=4.2, rest=UNIT),
    Spec("Scion", "optim", "Scion", max_ratio=40, max_state_bytes=4.01),
)


def find_optimizer(row: Spec) -> Any:
    """Return the class of a row.

    Raises:
        ValueError: its module is not installed, or has no such class.
    """
    found = getattr(_module(row.module), row.optimizer, None)
    if found is None:
        raise ValueError(f"{row.module} has no {row.optimizer}, which row {row.name} needs; choose rows with --only")
    return found


def build_optimizer(row: Spec, named: Sequence[tuple[str, Tensor]]) -> Optimizer:
    """Return the optimizer of a row for (name, parameter) pairs.

    Raises:
        ValueError: its module is not installed, or has no such class.
    """
    found = find_optimizer(row)
    if row.rest is None:
        return found(named, **row.options)
    matrices = [(name, param) for name, param in named if param.dim() == 2]
    others = [(name, param) for name, param in named if param.dim() != 2]
    members = [found(matrices, **row.options)] if matrices else []
    return Combined([*members, build_optimizer(row.rest, others)] if others else members)


def _module(name: str) -> ModuleType:
    if why := lacking(name):
        raise ValueError(f"{why}; or choose rows with --only")
    if name == "zipformer":
        spec = importlib.util.find_spec(name)
        assert spec is not None
        return _zipformer_optim(Path(next(iter(spec.submodule_search_locations or ())), "modules", "optim.py"))
    module = importlib.import_module(name)
    if name == "heavyball":
        module.utils.compile_mode = None  # else it compiles for minutes
    return module


def _zipformer_optim(file: Path) -> ModuleType:
    """Import one file of the package, whose own ``__init__`` needs much that is not installed."""
    spec = importlib.util.spec_from_file_location("zipformer_optim", file)
    assert spec is not None
    assert spec.loader is not None
    module, seeding = importlib.util.module_from_spec(spec), ModuleType("zipformer.utils")
    vars(seeding)["fix_random_seed"] = torch.manual_seed  # the file's own tests call it, nothing else
    sys.modules["zipformer.utils"], sys.modules[spec.name] = seeding, module  # torch.compile looks it up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["zipformer.utils"]
    return module
