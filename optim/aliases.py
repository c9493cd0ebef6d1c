"""HeavyBall's names of the optimizers, each one of our classes, or one of them with options set."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any

from optim.adamw import AdamW
from optim.adopt import ADOPT
from optim.composable import Composable
from optim.laprop import LaProp
from optim.muon.muon import Muon
from optim.psgd.optimizer import PSGDKron
from optim.rmsprop import RMSprop
from optim.schedule_free_adamw import ScheduleFreeAdamW
from optim.soap.optimizer import SOAP

# name -> class, and the options that differ from its defaults; names that are our own need no row
TABLE: Mapping[str, tuple[type[Composable], Mapping[str, Any]]] = {
    "ForeachAdamW": (AdamW, {}),
    "ForeachRMSprop": (RMSprop, {}),
    "ForeachADOPT": (ADOPT, {}),
    "ForeachLaProp": (LaProp, {}),
    "ForeachMuon": (Muon, {}),
    "ForeachSFAdamW": (ScheduleFreeAdamW, {}),
    "SFAdamW": (ScheduleFreeAdamW, {}),
    "PaLMForeachSFAdamW": (ScheduleFreeAdamW, {"palm": True}),
    "PaLMSFAdamW": (ScheduleFreeAdamW, {"palm": True}),
    "ForeachSOAP": (SOAP, {}),
    "PaLMForeachSOAP": (SOAP, {"palm": True}),
    "PaLMSOAP": (SOAP, {"palm": True}),
    "PrecondScheduleForeachSOAP": (SOAP, {"use_precond_schedule": True, "precondition_frequency": 1}),
    "PrecondScheduleSOAP": (SOAP, {"use_precond_schedule": True, "precondition_frequency": 1}),
    "PrecondSchedulePaLMForeachSOAP": (
        SOAP,
        {"use_precond_schedule": True, "precondition_frequency": 1, "palm": True},
    ),
    "PrecondSchedulePaLMSOAP": (SOAP, {"use_precond_schedule": True, "precondition_frequency": 1, "palm": True}),
    "ForeachPSGDKron": (PSGDKron, {}),
    "ForeachPurePSGD": (PSGDKron, {"exp_avg_input": False}),
    "PurePSGD": (PSGDKron, {"exp_avg_input": False}),
    "ForeachDelayedPSGD": (PSGDKron, {"delayed": True}),
    "DelayedPSGD": (PSGDKron, {"delayed": True}),
    "ForeachCachedPSGDKron": (PSGDKron, {"cached": True}),
    "CachedPSGDKron": (PSGDKron, {"cached": True}),
    "ForeachCachedDelayedPSGDKron": (PSGDKron, {"cached": True, "delayed": True}),
    "CachedDelayedPSGDKron": (PSGDKron, {"cached": True, "delayed": True}),
}


def with_options(name: str, optimizer: type[Composable], options: Mapping[str, Any]) -> type[Composable]:
    """Return a class with other defaults, which users may replace in turn; the class itself without options."""
    if not options:
        return optimizer

    @wraps(optimizer.__init__)
    def init(self: Composable, params: Any, *args: Any, **given: Any) -> None:
        optimizer.__init__(self, params, *args, **{**options, **given})

    summary = f"`{optimizer.__name__}` with {', '.join(f'{key}={value!r}' for key, value in options.items())}."
    # the module: pickle looks a class up there, and configs build classes of this package alone
    return type(name, (optimizer,), {"__init__": init, "__doc__": summary, "__module__": __name__})


ALIASES = {name: with_options(name, *row) for name, row in TABLE.items()}
globals().update(ALIASES)
