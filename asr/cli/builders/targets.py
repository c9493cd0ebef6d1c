"""What each place of a config may build.

Configs travel inside checkpoints and between people. So a ``_target_`` is looked up in this table before anything is
imported, and what is found must be the class itself: not a function, not something that a module has imported.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from typing import Any

from asr.cli.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Subclasses:
    """Public classes of a package that extend a base.

    Attributes:
        base: dotted name of the base class, which is not allowed itself.
        package: that the classes are defined in.
    """

    base: str
    package: str

    def __str__(self) -> str:
        return f"any {self.base.rpartition('.')[2]} of {self.package}"

    def may_hold(self, module: str, name: str) -> bool:
        """Return whether the module may be imported to look for the class."""
        return f"{module}.".startswith(f"{self.package}.")

    def accepts(self, found: Any, module: str) -> bool:
        """Return whether what was found is such a class."""
        package, _, name = self.base.rpartition(".")
        base = getattr(importlib.import_module(package), name)
        in_package = f"{getattr(found, '__module__', '')}.".startswith(f"{self.package}.")
        return inspect.isclass(found) and issubclass(found, base) and found is not base and in_package


@dataclass(frozen=True)
class PrepareFunctions:
    """The functions ``prepare_*`` of the modules ``prepare`` of recipes, also those in the user's ``recipes_dir``."""

    def __str__(self) -> str:
        return "a function asr.recipes.<corpus>.prepare.prepare_…"

    def may_hold(self, module: str, name: str) -> bool:
        """Return whether the module may be imported to look for the function."""
        return re.fullmatch(r"asr\.recipes\.\w+\.prepare", module) is not None and name.startswith("prepare_")

    def accepts(self, found: Any, module: str) -> bool:
        """Return whether what was found is a function of that module."""
        return inspect.isfunction(found) and found.__module__ == module


@dataclass(frozen=True)
class Named:
    """One class, or one function that builds, by the name that configs use."""

    name: str

    def __str__(self) -> str:
        return self.name

    def may_hold(self, module: str, name: str) -> bool:
        """Return whether this is the name."""
        return f"{module}.{name}" == self.name

    def accepts(self, found: Any, module: str) -> bool:
        """Return whether what was found can be called; its name has decided already."""
        return callable(found)


Allowed = tuple[Subclasses | PrepareFunctions | Named, ...]


def _named(prefix: str, *names: str) -> Allowed:
    return tuple(Named(f"{prefix}.{name}") for name in names)


OPTIMIZERS: Allowed = (
    Subclasses("torch.optim.Optimizer", "optim"),
    Subclasses("torch.optim.Optimizer", "torch.optim"),
)
TRANSFORMS: Allowed = (Subclasses("optim.Transform", "optim"),)
OWN_CALLBACKS = Subclasses("lightning.pytorch.Callback", "asr.training.callbacks")

# Keys below a place without an entry belong to the nearest place above. Of Lightning there is nothing here that takes
# a path: its constructors, and the methods that it calls by itself, write nowhere outside the run's folder.
ALLOWED: dict[str, Allowed] = {
    "data.prepare": (PrepareFunctions(),),
    "data.text": _named("asr.text.normalize", "TextNormalizer"),
    "data.limits": _named("asr.data.preparation.cuts", "Limits"),
    "data.batch": _named("asr.data.loading.sampling", "BucketingConfig"),
    "data.workers": _named("asr.data.loading.loader", "Workers"),
    "features": _named("asr.data.features", "LogMel", "PrecomputedFeatures"),
    "tokenizer": _named("asr.text", "subword.SentencePieceTrainer", "character.CharacterTokenizerTrainer"),
    "augment.audio": _named("asr.data.loading", "perturb.SpeedPerturb", "acoustics.Acoustics"),
    "augment.audio.speed": _named("asr.data.loading.perturb", "SpeedPerturb"),
    "augment.audio.room": _named("asr.data.loading.acoustics", "Reverberate"),
    "augment.audio.noise": _named("asr.data.loading.acoustics", "AddNoise"),
    "augment.audio.babble": _named("asr.data.loading.acoustics", "AddBabble"),
    "augment.audio.telephone": _named("asr.data.loading.acoustics", "Telephone"),
    "augment.audio.volume": _named("asr.data.loading.acoustics", "Volume"),
    "augment.features": _named("asr.features.specaugment", "SpecAugment"),
    "encoder": _named(
        "asr.models.encoders",
        "transformer.TransformerEncoder",
        "conformer.ConformerEncoder",
        "zipformer.encoder.ZipformerEncoder",
    ),
    "head": _named(
        "asr.models.heads",
        *("ctc.CtcHead", "cr_ctc.CrCtcHead", "ctc_attention.CtcAttentionHead"),
        *("transducer.head.TransducerHead", "transducer.with_ctc.TransducerCtcHead"),
    ),
    "decoder": _named(
        "asr.decoding",
        *("ctc_greedy.CtcGreedy", "ctc_beam.CtcBeam", "attention_rescoring.AttentionRescoring"),
        *("transducer_greedy.TransducerGreedy", "transducer_beam.TransducerBeam"),
    ),
    "optimizer": OPTIMIZERS,
    "optimizer.transforms": TRANSFORMS,
    "parameter_rules": _named("optim", "grouped"),
    "parameter_rules.rules": (*OPTIMIZERS, *TRANSFORMS),
    "schedule": (
        Subclasses("torch.optim.lr_scheduler.LRScheduler", "optim"),
        # those whose state is plain numbers, which alone a checkpoint gives back, and that follow updates alone
        *_named(
            "torch.optim.lr_scheduler",
            *("ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "ExponentialLR"),
            *("LinearLR", "OneCycleLR", "PolynomialLR", "StepLR"),
        ),
    ),
    "trainer": _named("lightning.pytorch", "Trainer"),
    "trainer.step_in_backward": _named("optim", "step_in_backward"),
    "trainer.strategy": _named("lightning.pytorch.strategies", "DDPStrategy", "SingleDeviceStrategy"),
    "trainer.plugins": _named(
        "lightning.pytorch.plugins.environments",
        "LightningEnvironment",
        "SLURMEnvironment",
        "TorchElasticEnvironment",
    ),
    "logger": _named("asr.tracking", "metrics_csv.MetricsCsv", "wandb_logger.WandbTracking"),
    "callbacks": (
        OWN_CALLBACKS,
        *_named(
            "lightning.pytorch.callbacks",
            "DeviceStatsMonitor",
            "EarlyStopping",
            "LearningRateMonitor",
            "ModelSummary",
            "Timer",
        ),
    ),
    "callbacks.optimizer_health.measure": _named("optim.health", "Health"),
}

# what is left there waits for arguments that the program passes on later; elsewhere an object is needed at once
PARTIAL = {
    "data.prepare",
    "optimizer",
    "optimizer.transforms",
    "parameter_rules.rules",
    "schedule",
    "logger",
    "callbacks",
    "callbacks.optimizer_health.measure",
}


def allowed_at(key: str) -> Allowed:
    """Return what the place of a dotted key may build."""
    return ALLOWED[_place(key)]


def may_be_partial(key: str) -> bool:
    """Return whether a dotted key may hold ``_partial_: true``."""
    return _place(key) in PARTIAL


def _place(key: str) -> str:
    place = key
    while place not in ALLOWED:
        place, dot, _ = place.rpartition(".")
        assert dot, f"no place above {key!r} is in the table"
    return place


def locate(name: object, key: str) -> Any:
    """Return the class or function that ``_target_`` names, if its place in the config may hold it.

    Raises:
        ConfigError: it may not, or no such class or function exists.
    """
    if not isinstance(name, str):
        raise ConfigError(f"{key}._target_ must be the name of a class, given {name!r}")
    allowed = allowed_at(key)
    module, _, attribute = name.rpartition(".")
    is_public = all(part.isidentifier() and not part.startswith("_") for part in name.split("."))
    # before importing, which runs code of the module
    fitting = [kind for kind in allowed if is_public and kind.may_hold(module, attribute)]
    names = ", ".join(map(str, allowed))
    if not fitting:
        raise ConfigError(
            f"{key}._target_: {name!r} is not allowed here.{did_you_mean(name, map(str, allowed))} Allowed: {names}."
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        hint = "; if its recipe lies in a folder of yours, add recipes_dir=PATH" if key == "data.prepare" else ""
        raise ConfigError(f"{key}._target_: there is no {name!r} ({error}){hint}") from error
    if not any(kind.accepts(found, module) for kind in fitting):
        raise ConfigError(f"{key}._target_: {name!r} is not allowed here. Allowed: {names}.")
    return found
