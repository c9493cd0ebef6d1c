"""Looking at stored features before they are trained on."""

from __future__ import annotations

import os

from lhotse.cut import Cut

from asr.data.features import Features, read_features
from asr.data.manifests.corpus import Manifests


def stored_problem(features: Features, cut: Cut) -> str | None:
    """Return why the stored features of a cut cannot be used, or None; reads them all."""
    # unlike Path.is_file, this takes an impossible name for a missing file
    if not os.path.isfile(path := os.path.join(cut.features.storage_path, cut.features.storage_key)):
        return f"missing features: {path}"
    try:
        read_features(features, cut)
    except ValueError as error:
        return f"unreadable features: {error}"
    return None


def refuse_unfit(manifests: Manifests, features: Features) -> None:
    """Refuse features that cannot be had from a corpus, before any of its cuts is looked at.

    Raises:
        ValueError: the features need audio and there is none, or the reverse, or those that are there differ in width
            or in the distance of frames.
    """
    brought = next(iter(manifests.features or ()), None)
    if next(iter(manifests.recordings), None) is not None and not features.from_audio:
        raise ValueError(
            "features=stored reads features that a corpus brings without audio, but there is audio; choose "
            "features=log_mel, or features=log_mel_stored to compute them once"
        )
    if brought is None:
        return
    told = f"{brought.num_features} per frame every {1000 * brought.frame_shift:g} ms"
    if features.from_audio:
        raise ValueError(
            f"features=log_mel is computed from audio, but there are features alone, {told}; choose features=stored "
            f"data.num_features={brought.num_features}"
        )
    shift_s = features.frame_shift_s
    if brought.num_features != features.num_features or abs(brought.frame_shift - shift_s) > 1e-6:
        raise ValueError(
            f"the stored features are {told}, but data.num_features={features.num_features} and "
            f"features.frame_shift_ms={1000 * shift_s:g} are set"
        )
