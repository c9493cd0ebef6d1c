"""The kind of export that a recognizer allows."""

from __future__ import annotations

from asr.export.graph import Export
from asr.export.offline_ctc import OfflineCtc
from asr.export.offline_transducer import OfflineTransducer
from asr.export.streaming_ctc import StreamingCtc
from asr.export.streaming_transducer import StreamingTransducer
from asr.models.heads.protocols import FrameScores, Transduces
from asr.models.recognizer import Recognizer


def export_of(recognizer: Recognizer, model_type: str, streaming: bool) -> Export:
    """Return the export.

    Args:
        recognizer: in evaluation mode.
        model_type: ``ctc`` or ``transducer``.
        streaming: whether it is to take chunks.

    Raises:
        ValueError: the recognizer has no such head, or cannot take chunks.
    """
    head = recognizer.head
    if not isinstance(head, FrameScores if model_type == "ctc" else Transduces):
        other = "transducer" if model_type == "ctc" else "ctc"
        raise ValueError(f"model_type={model_type}: {type(head).__name__} has none; give model_type={other}")
    if model_type == "ctc":
        return StreamingCtc(recognizer) if streaming else OfflineCtc(recognizer)
    return StreamingTransducer(recognizer) if streaming else OfflineTransducer(recognizer)
