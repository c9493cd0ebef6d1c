"""Small corpora of features without audio."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lhotse import Features, FeatureSet, NumpyFilesWriter, SupervisionSegment, SupervisionSet

from asr.data.features import PrecomputedFeatures
from tests.data.corpora import SPEC, Pair, Recipe

WIDTH = 5
FEATURES_SPEC = replace(SPEC, features=PrecomputedFeatures(WIDTH))


def matrix(num_frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num_frames, WIDTH)).astype(np.float16)


def store(folder: Path, name: str, frames: np.ndarray, **told: Any) -> Features:
    with NumpyFilesWriter(folder / "matrices") as storage:
        key = storage.write(name, frames)
    described = {
        "type": "mfcc",
        "num_frames": len(frames),
        "num_features": frames.shape[1],
        "frame_shift": 0.01,
        "sampling_rate": 16_000,
        "start": 0.0,
        "duration": round(len(frames) * 0.01, 4),
        "storage_type": "numpy_files",
        "storage_path": str(folder / "matrices"),
        "storage_key": key,
        "recording_id": name,
        "channels": 0,
    }
    return Features(**described | told)


def stored_utterance(folder: Path, name: str, num_frames: int = 100, text: str = "ab") -> Pair:
    features = store(folder, name, matrix(num_frames, seed=len(name)))
    return features, SupervisionSegment(name, name, 0.0, features.duration, text=text)


def file_of(features: Features) -> Path:
    return Path(features.storage_path, features.storage_key)


FeatureRecipe = partial(Recipe, make=stored_utterance)


def write_folder(folder: Path, *pairs: Pair, split: str = "") -> Path:
    """Write features and supervisions as lhotse's manifests; return the folder."""
    folder.mkdir(exist_ok=True, parents=True)
    FeatureSet.from_features(features for features, _ in pairs).to_file(folder / f"features{split}.jsonl.gz")
    SupervisionSet.from_segments(s for _, s in pairs).to_file(folder / f"supervisions{split}.jsonl.gz")
    return folder
