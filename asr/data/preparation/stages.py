"""What is done with every chunk of a corpus: checked, and if that is asked for, its features stored."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from asr.data.features import Features, LogMel, cause, read_features
from asr.data.jobs import run_jobs
from asr.data.manifests.feature_storage import FeatureFiles
from asr.data.preparation.ctc_lengths import CtcLengths
from asr.data.preparation.cuts import Limits, check_cuts, supervised_cuts
from asr.data.preparation.parts import Part, SplitParts, cut_of, text_of_cut, unreadable
from asr.data.preparation.progress import track_hours
from asr.data.preparation.saved_corpus import Chunk, SavedCorpus
from asr.errors import raise_if_out_of_resources
from asr.text.normalize import TextNormalizer
from asr.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class CheckChunk:
    """Checks audio and text of a chunk, or finds that an earlier call has.

    Attributes:
        folder: of the parts.
        text: normalizer of transcripts.
        limits: which cuts are used.
        features: cut → features.
    """

    folder: Path
    text: TextNormalizer
    limits: Limits
    features: Features

    def __call__(self, chunk: Chunk) -> Part:
        """Return the part of a chunk."""
        path, made_of = self.folder / f"checked-{chunk.name}.jsonl", chunk.digest()
        if found := Part.found(path, chunk.split, made_of):
            return found
        manifests = chunk.manifests()
        checked = check_cuts(chunk.split, supervised_cuts(manifests), self.text, self.limits, self.features)
        duration_s = sum(segment.duration for segment in manifests.supervisions)
        return Part.write(
            path, chunk.split, made_of, checked.cuts, checked.dropped, duration_s, final=not checked.bad_sources
        )


def check_corpus(corpus: SavedCorpus, check: CheckChunk, num_jobs: int) -> dict[str, SplitParts]:
    """Check all chunks of a corpus, with one line of progress."""
    chunks = (chunk for split in corpus.splits for chunk in corpus.chunks(split))
    num_chunks = sum(len(split.sizes) for split in corpus.splits.values())
    checked = {split: SplitParts(split, []) for split in corpus.splits}
    done = run_jobs(check, chunks, min(num_jobs, num_chunks))
    for part in track_hours(done, corpus.duration_s, "checking data and text"):
        checked[part.split].parts.append(part)
    return checked


@dataclass(frozen=True)
class StoreFeatures:
    """Computes and stores the features of the cuts of a part, or finds that an earlier call has.

    Attributes:
        split: that the part is of.
        features: to compute.
        work: folder that they are stored in now.
        final: the same folder when all is done; cuts hold absolute paths.
    """

    split: SplitParts
    features: LogMel
    work: Path
    final: Path

    def __call__(self, part: Part) -> Part:
        """Return the part with features."""
        path = part.path.with_name(part.path.name.replace("checked-", "stored-", 1))
        left_out = sorted(self.split.left_out)
        made_of = f"{part.made_of} without {left_out}" if left_out else part.made_of
        if found := Part.found(path, part.split, made_of):
            return found
        done, dropped = [], []
        with FeatureFiles(self.work) as storage:
            for line, _ in self.split.lines_of(part):
                cut = cut_of(line, str(part.path))
                # the same name in every preparation, which may be interrupted
                storage.key = hashlib.sha256(f"{part.split}/{cut.id}".encode()).hexdigest()[:32]
                try:
                    cut = self.features.store(cut, storage)
                    read_features(self.features, cut)
                except Exception as error:  # a decoder may raise anything on a broken file
                    if storage.failure is not None:
                        raise storage.failure from error
                    raise_if_out_of_resources(error, cut.id)
                    dropped.append(unreadable(part.split, cut.id, cause(error)))
                else:
                    cut.features.storage_path = str(self.final)
                    done.append(cut)
        return Part.write(path, part.split, made_of, done, dropped, part.duration_s, final=not dropped)


def store_features(split: SplitParts, features: LogMel, work: Path, final: Path, num_jobs: int) -> SplitParts:
    """Store the features of a split, with one line of progress."""
    store = StoreFeatures(split, features, work, final)
    done = run_jobs(store, split.parts, min(num_jobs, len(split.parts)))
    total_s = sum(part.duration_s for part in split.parts)
    parts = list(track_hours(done, total_s, f"storing features of {split.name}"))
    return SplitParts(split.name, parts, split.dropped)


def ctc_lengths(split: SplitParts, tokenizer: Tokenizer, frame_shift_s: float, num_jobs: int) -> CtcLengths:
    """Return the lengths of the cuts of a split."""

    def of_part(part: Part) -> CtcLengths:
        cuts = [data for _, data in split.lines_of(part)]
        return CtcLengths.of((data["duration"] for data in cuts), map(text_of_cut, cuts), tokenizer, frame_shift_s)

    return CtcLengths.joined(list(run_jobs(of_part, split.parts, min(num_jobs, len(split.parts)))))
