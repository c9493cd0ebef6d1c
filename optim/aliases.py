"""HeavyBall's names of the optimizers, each one of our classes, or one of them with options set."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from inspect import Signature, signature
from typing import Any

from optim.adamw import AdamW
from optim.adopt import ADOPT
from optim.composable import Composable
from optim.laprop import LaProp
from optim.muon import Muon
from optim.psgd.optimizer import PSGDKron
from optim.rmsprop import RMSprop
from optim.schedule_free_adamw import ScheduleFreeAdamW
from optim.soap import SOAP

# HeavyBall's defaults, where they differ from ours, which are those of the papers
COMMON = {"lr": 2.5e-3, "betas": (0.9, 0.99), "mars_gamma": 0.0025}
ADAMW = {**COMMON, "weight_decay": 0.0}
FLOORED = {**COMMON, "eps": 1e-8}
SCHEDULE_FREE = {"betas": (0.9, 0.99), "eps": 1e-6, "mars_gamma": 0.0025}
EIGENBASIS = {
    "betas": (0.9, 0.95),
    "precondition_frequency": 2,
    "max_precond_dim": 2048,
    "merge_dims": True,
    "mars_gamma": 0.0025,
}
SCHEDULED = {**EIGENBASIS, "use_precond_schedule": True, "precondition_frequency": 1}
KRON = {"lr": 1e-3, "max_size_triangular": 2048, "merge_dims": False, "mars_gamma": 0.0025}

# name -> class, and the options that differ from its defaults; names that are our own need no row
TABLE: Mapping[str, tuple[type[Composable], Mapping[str, Any]]] = {
    "ForeachAdamW": (AdamW, ADAMW),
    "ForeachRMSprop": (RMSprop, {**COMMON, "eps": 1e-6}),
    "ForeachADOPT": (ADOPT, FLOORED),
    "ForeachLaProp": (LaProp, FLOORED),
    "ForeachMuon": (Muon, COMMON),
    "ForeachSFAdamW": (ScheduleFreeAdamW, SCHEDULE_FREE),
    "SFAdamW": (ScheduleFreeAdamW, SCHEDULE_FREE),
    "PaLMForeachSFAdamW": (ScheduleFreeAdamW, {**SCHEDULE_FREE, "palm": True}),
    "PaLMSFAdamW": (ScheduleFreeAdamW, {**SCHEDULE_FREE, "palm": True}),
    "ForeachSOAP": (SOAP, EIGENBASIS),
    "PaLMForeachSOAP": (SOAP, {**EIGENBASIS, "palm": True}),
    "PaLMSOAP": (SOAP, {**EIGENBASIS, "palm": True}),
    "PrecondScheduleForeachSOAP": (SOAP, SCHEDULED),
    "PrecondScheduleSOAP": (SOAP, SCHEDULED),
    "PrecondSchedulePaLMForeachSOAP": (SOAP, {**SCHEDULED, "palm": True}),
    "PrecondSchedulePaLMSOAP": (SOAP, {**SCHEDULED, "palm": True}),
    "KLSOAP": (SOAP, {**EIGENBASIS, "kl_factors": True}),
    "HyperBallAdamW": (RMSprop, {**COMMON, "eps": 1e-8, "update_norm": "hyperball"}),
    "ForeachPSGDKron": (PSGDKron, KRON),
    "ForeachPurePSGD": (PSGDKron, {**KRON, "exp_avg_input": False}),
    "PurePSGD": (PSGDKron, {**KRON, "exp_avg_input": False}),
    "ForeachDelayedPSGD": (PSGDKron, {**KRON, "delayed": True}),
    "DelayedPSGD": (PSGDKron, {**KRON, "delayed": True}),
    "ForeachCachedPSGDKron": (PSGDKron, {**KRON, "cached": True}),
    "CachedPSGDKron": (PSGDKron, {**KRON, "cached": True}),
    "ForeachCachedDelayedPSGDKron": (PSGDKron, {**KRON, "cached": True, "delayed": True}),
    "CachedDelayedPSGDKron": (PSGDKron, {**KRON, "cached": True, "delayed": True}),
}


def with_options(name: str, optimizer: type[Composable], options: Mapping[str, Any]) -> type[Composable]:
    """Return a class with other defaults, which users may replace in turn."""

    @wraps(optimizer.__init__)
    def init(self: Composable, params: Any, *args: Any, **given: Any) -> None:
        positional = [*signature(optimizer).parameters][1 : 1 + len(args)]
        defaults = {key: value for key, value in options.items() if key not in positional}
        optimizer.__init__(self, params, *args, **{**defaults, **given})

    summary = f"`{optimizer.__name__}` with {', '.join(f'{key}={value!r}' for key, value in options.items())}."
    # the module: pickle looks a class up there, and configs build classes of this package alone
    alias: type[Composable] = type(name, (optimizer,), {"__init__": init, "__doc__": summary, "__module__": __name__})
    shown = [p.replace(default=options.get(p.name, p.default)) for p in signature(alias).parameters.values()]
    alias.__signature__ = Signature(shown)
    return alias


ALIASES = {name: with_options(name, *row) for name, row in TABLE.items()}
globals().update(ALIASES)
