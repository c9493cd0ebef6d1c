"""Checks stored features before they are trained on."""

from __future__ import annotations

import os

from lhotse.cut import Cut

from asr.data.features import Features, read_features
from asr.data.manifests.corpus import Manifests
from asr.data.manifests.feature_storage import IN_SHARD, place_of


def stored_problem(features: Features, cut: Cut) -> str | None:
    """Return why the stored features of a cut cannot be used, or None; reads all of them."""
    place = place_of(cut.features)
    # Path.is_file raises an error on a name that is too long
    if cut.features.storage_type != IN_SHARD and not os.path.isfile(place):
        return f"missing features: {place}"
    try:
        read_features(features, cut)
    except ValueError as error:
        return f"unreadable features: {error}"
    return None


def refuse_unfit(manifests: Manifests, features: Features, of_run: bool = False) -> None:
    """Refuse features that a corpus cannot have, before any of its cuts is checked.

    Args:
        manifests: of the corpus.
        features: that are read.
        of_run: whether these are those of a trained run, which no option changes.

    Raises:
        ValueError: the features need audio and the corpus has none, or the reverse; or those of the corpus have another
            width or frame shift.
    """
    given = next(iter(manifests.features or ()), None)
    if next(iter(manifests.recordings), None) is not None and not features.from_audio:
        if of_run:
            raise ValueError("the run was trained on stored features, and there is audio; name features like those")
        raise ValueError(
            "features=precomputed reads the features of a corpus without audio, but there is audio; choose "
            "features=log_mel, or features=log_mel_precomputed to compute them once"
        )
    if given is None:
        return
    stored = f"{given.num_features} per frame every {1000 * given.frame_shift:g} ms"
    if features.from_audio and of_run:
        raise ValueError(
            f"the run computes its features from audio, but there are features alone, {stored}; name audio"
        )
    if features.from_audio:
        raise ValueError(
            f"features=log_mel is computed from audio, but there are features alone, {stored}; choose "
            f"features=precomputed data.num_features={given.num_features}"
        )
    shift_s = features.frame_shift_s
    if given.num_features != features.num_features or abs(given.frame_shift - shift_s) > 1e-6:
        if of_run:
            raise ValueError(
                f"the stored features are {stored}; the run was trained on {features.num_features} per frame every "
                f"{1000 * shift_s:g} ms"
            )
        raise ValueError(
            f"the stored features are {stored}, but data.num_features={features.num_features} and "
            f"features.frame_shift_ms={1000 * shift_s:g} are set"
        )
