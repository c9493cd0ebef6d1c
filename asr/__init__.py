"""Speech recognition from Python: `train`, `load`, `compare`, and the parts of a run for your own Lightning trainer.

Names are imported when they are first used, so that a command that needs none of them starts at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from asr.commands.api import Run as Run
    from asr.commands.api import SpeechRecognizer as SpeechRecognizer
    from asr.commands.api import load as load
    from asr.commands.api import train as train
    from asr.commands.api import training_parts as training_parts
    from asr.inference.streaming import Partial as Partial
    from asr.inference.transcripts import Transcript as Transcript
    from asr.training.module import TrainingModule as TrainingModule
    from asr.training.speech_data_module import SpeechDataModule as SpeechDataModule
    from werdict.errors import ConfigError as ConfigError
    from werdict.errors import RunFailed as RunFailed
    from werdict.from_python import compare_results as compare  # noqa: F401

_HOMES = {
    **dict.fromkeys(("Run", "SpeechRecognizer", "load", "train", "training_parts"), "asr.commands.api"),
    "compare": "werdict",
    "ConfigError": "werdict.errors",
    "RunFailed": "werdict.errors",
    "Partial": "asr.inference.streaming",
    "Transcript": "asr.inference.transcripts",
    "TrainingModule": "asr.training.module",
    "SpeechDataModule": "asr.training.speech_data_module",
}
__all__ = tuple(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'asr' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
