"""A restored recognizer → what transcribes recordings with it."""

from __future__ import annotations

from asr.cli.builders.restore import Restored
from asr.cli.errors import ConfigError
from asr.inference.transcribe import Transcriber

DEFAULT_SEGMENT_S = 15.0  # for checkpoints that do not say how long utterances of training were
SHORTEST_SEGMENT_S = 1.0


def transcriber_of(restored: Restored, max_segment_s: float | None, each_channel: bool = False) -> Transcriber:
    """Return a transcriber.

    Args:
        restored: what decodes.
        max_segment_s: longer recordings are cut; None: the longest utterances of training, but for 5 %.
        each_channel: decode all channels; False: the first.

    Raises:
        ConfigError: the recognizer was trained on features without audio.
    """
    features = restored.data_module.features
    if not features.from_audio:
        raise ConfigError(
            f"run: it was trained on features without audio, {features.num_features} per frame, and cannot read audio; "
            "give features of the same kind to asr-evaluate manifest=PATH"
        )
    longest_s = max_segment_s or restored.checkpoint.data.get("utterance_s", DEFAULT_SEGMENT_S)
    parts = restored.recognizer, restored.decoder, restored.data_module
    return Transcriber(*parts, max(SHORTEST_SEGMENT_S, longest_s), each_channel)
