"""Rows of the tables that compare optimizers; those of bench_optimizers.py: ours with what they may cost, and peers."""

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

from optim import Combined

INSTALL = {
    "pytorch_optimizer": "pip install '.[bench]'",
    "heavyball": "pip install '.[bench]'",
    "schedulefree": "pip install '.[peers]'",
    # its requirements exclude the torch that this project needs, so the extra cannot hold it; one file of it is read
    "zipformer": "pip install '.[bench]' and then pip install --no-deps 'zipformer==0.1.3'",
}


@dataclass(frozen=True)
class Row:
    """One optimizer of the table: where it comes from, its options, and what it may cost.

    With ``rest`` it gets the matrices, the parameters of two axes, and the optimizer of that row gets all others.
    """

    name: str
    module: str
    optimizer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    period: int = 1
    max_ratio: float = math.inf
    max_state_bytes: float = math.inf
    rest: Row | None = None


UNIT = Row("torch_adamw_fused", "torch.optim", "AdamW", {"fused": True})
ROWS = (
    UNIT,
    Row("torch_adafactor", "torch.optim", "Adafactor"),
    Row("torch_adafactor_foreach", "torch.optim", "Adafactor", {"foreach": True}),
    Row("pytorch_optimizer_adafactor", "pytorch_optimizer", "AdaFactor", {"betas": (None, 0.999), "foreach": False}),
    Row("pytorch_optimizer_adafactor_foreach", "pytorch_optimizer", "AdaFactor", {"betas": (None, 0.999)}),
    # HeavyBall has no Adafactor: its plainest rule, with whole second moments, and its LaProp
    Row("heavyball_adamw", "heavyball", "AdamW"),
    Row("heavyball_laprop", "heavyball", "LaProp"),
    # at its own frequency: a period has one refresh of the bases; HeavyBall's SOAP cannot take 0-dimensional parameters
    Row("pytorch_optimizer_soap", "pytorch_optimizer", "SOAP", period=10),
    Row("icefall_eve", "zipformer", "Eve"),
    Row("icefall_scaled_adam", "zipformer", "ScaledAdam", {"clipping_scale": 2.0}, period=4),
    Row("Adafactor", "optim", "Adafactor", max_ratio=2.1, max_state_bytes=0.12),
    Row("T5XAdafactor_128", "optim", "T5XAdafactor", {"lr": 0.02, "factor_map": "matrices"}, 1, 2.1, 0.21),
    Row(
        "T5XAdafactor_32",
        "optim",
        "T5XAdafactor",
        {"lr": 0.02, "factor_map": "matrices", "min_dim_size_to_factor": 32},
        max_ratio=2.1,
        max_state_bytes=0.10,
    ),
    Row("MaxFactor", "optim", "MaxFactor", max_ratio=2.3, max_state_bytes=0.12),
    Row("Eve", "optim", "Eve", max_ratio=1.8),
    Row("Cain", "optim", "Cain", period=12, max_ratio=5),  # fits one axis of each tensor, in turns
    Row("ScaledAdam", "optim", "ScaledAdam", {"clipping_scale": 2.0}, period=4, max_ratio=2.8),
    Row("LearnedGradient", "optim", "LearnedGradient", period=10, max_ratio=35),
    Row("AdamW", "optim", "AdamW", max_ratio=1.1),
    Row("RMSprop", "optim", "RMSprop", max_ratio=2.4),
    Row("LaProp", "optim", "LaProp", max_ratio=2.4),
    Row("ADOPT", "optim", "ADOPT", max_ratio=2.4),
    Row("Lion", "optim", "Lion", max_ratio=2.4),
    Row("AdamW_caution", "optim", "AdamW", {"caution": True}),
    Row("torch_rmsprop", "torch.optim", "RMSprop"),
    Row("pytorch_optimizer_laprop", "pytorch_optimizer", "LaProp"),
    Row("pytorch_optimizer_adopt", "pytorch_optimizer", "ADOPT"),
    Row("pytorch_optimizer_lion", "pytorch_optimizer", "Lion"),
    Row("heavyball_rmsprop", "heavyball", "RMSprop"),
    Row("heavyball_adopt", "heavyball", "ADOPT"),
    Row("schedulefree_adamw", "schedulefree", "AdamWScheduleFree", {"foreach": False}),
    Row("schedulefree_adamw_foreach", "schedulefree", "AdamWScheduleFree"),
    Row("pytorch_optimizer_schedule_free", "pytorch_optimizer", "ScheduleFreeAdamW"),
    Row("heavyball_schedule_free", "heavyball", "SFAdamW"),
    Row("ScheduleFreeAdamW", "optim", "ScheduleFreeAdamW", max_ratio=2.4, max_state_bytes=8.01),
    Row("SOAP", "optim", "ForeachSOAP", period=2),
    Row("SOAP_10", "optim", "ForeachSOAP", {"precondition_frequency": 10}, 10, 40),
    # PSGD updates its preconditioner at each of the first steps, ours as its peers do
    Row("pytorch_optimizer_kron", "pytorch_optimizer", "Kron"),
    Row("heavyball_psgd_kron", "heavyball", "PSGDKron"),
    Row("PSGDKron", "optim", "ForeachPSGDKron", max_ratio=70),
    # Muon's usual form: AdamW for all that is no matrix
    Row("torch_muon_adamw", "torch.optim", "Muon", rest=UNIT),
    Row("heavyball_muon_adamw", "heavyball", "Muon", rest=UNIT),
    Row("Muon", "optim", "Muon", max_ratio=40, max_state_bytes=4.1, rest=Row("AdamW", "optim", "AdamW")),
    Row("Muon_polar_express", "optim", "Muon", {"orthogonalization": "polar_express"}, rest=UNIT),
    Row("Muon_bfloat16", "optim", "Muon", {"ns_dtype": "bfloat16"}, rest=Row("AdamW", "optim", "AdamW")),
    Row("Muon_alone", "optim", "Muon"),
    Row("MuonLaProp", "optim", "MuonLaProp", max_ratio=45, max_state_bytes=8.01, rest=UNIT),
    Row("NorMuon", "optim", "NorMuon", max_ratio=42, max_state_bytes=4.2, rest=UNIT),
    Row("Scion", "optim", "Scion", max_ratio=40, max_state_bytes=4.01),
)


def find_optimizer(row: Row) -> Any:
    """Return the class of a row.

    Raises:
        ValueError: its module is not installed, or has no such class.
    """
    found = getattr(_module(row.module), row.optimizer, None)
    if found is None:
        raise ValueError(f"{row.module} has no {row.optimizer}, which row {row.name} needs; choose rows with --only")
    return found


def build_optimizer(row: Row, named: Sequence[tuple[str, Tensor]]) -> Optimizer:
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
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ValueError(f"{name} is not installed: {INSTALL.get(name, 'pip install .')}; or choose rows with --only")
    if name == "zipformer":
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
