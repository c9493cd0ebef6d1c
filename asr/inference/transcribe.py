"""Recordings of any length → transcripts."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.data.loading.loader import DataModule
from asr.data.manifests.audio_files import audio_files
from asr.decoding.hypothesis import Decoder
from asr.evaluation.wer import Utterance
from asr.inference.batches import Processed
from asr.inference.decode import decode_all
from asr.inference.transcript import Segment, Transcript
from asr.models.recognizer import Recognizer


@dataclass(frozen=True)
class Transcriber:
    """Decodes recordings, the long ones in parts between pauses.

    Attributes:
        max_segment_s: the most seconds of a part.
        each_channel: decode all channels; False: the first.
    """

    recognizer: Recognizer
    decoder: Decoder
    data_module: DataModule
    max_segment_s: float
    each_channel: bool = False

    def __call__(self, files: Sequence[Path], name: str = "audio") -> tuple[list[Transcript], list[tuple[str, str]]]:
        """Return the transcripts of files that can be read, in order, and (path, reason) for the others."""
        with tempfile.TemporaryDirectory() as folder:
            read, unreadable = audio_files(files, self.max_segment_s, self.each_channel, Path(folder))
            places = {cut.id: (path, cut) for path, of_file in read for cut in of_file}
            cuts = [cut for _, cut in places.values()]
            parts = self.recognizer, self.decoder, self.data_module
            decoded = decode_all(*parts, cuts, name) if cuts else Processed[Utterance]()
        segments: dict[Path, list[Segment]] = defaultdict(list)
        for result in decoded.results:
            path, cut = places[result.id]
            if result.hypothesis:
                segments[path].append(Segment.of(result, cut.channel + 1, cut.start, round(cut.end, 3)))
        # a recording is read whole or not at all
        failed = {str(places[cut_id][0]): reason for cut_id, reason in decoded.unread}
        done = [
            Transcript.of(path, segments[path], self._silence(of_file))
            for path, of_file in read
            if str(path) not in failed
        ]
        return done, [*unreadable, *failed.items()]

    def _silence(self, parts: Sequence[Any]) -> float:
        """Return the share of a recording that is in none of its parts."""
        if not parts:
            return 1.0
        recording = parts[0].recording
        total_s = recording.duration * (recording.num_channels if self.each_channel else 1)
        return float(1 - sum(part.duration for part in parts) / total_s)
