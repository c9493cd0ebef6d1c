"""What is done with every chunk of a corpus, each in a file of its own, so that it is not done again after a kill."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lhotse.cut import Cut
from lhotse.utils import fastcopy
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from asr.data.features import Features, LogMel, read_features
from asr.data.manifests.audio import reading
from asr.data.manifests.corpus import Dropped, write_array
from asr.data.parallel import run_jobs
from asr.data.preparation.cuts import Limits, check_cuts, supervised_cuts
from asr.data.preparation.prepared import CtcLengths, FormerCuts, parse_cut
from asr.data.preparation.saved_corpus import Chunk, SavedCorpus, digest, portable_line
from asr.text.tokenizer import Tokenizer
from werdict.console import PlainProgress, bar_title, track
from werdict.files import write_whole

FEATURES = "features"  # folder of stored ones


@dataclass(frozen=True)
class CheckedChunk:
    """The cuts of a chunk that can be used, and what was dropped of it.

    Attributes:
        path: a line of JSON with what follows, and a line for each cut.
        split: that the cuts are of.
        num_cuts: number of cuts.
        duration_s: of the whole chunk.
        dropped: items of the chunk that are not used.
    """

    path: Path
    split: str
    num_cuts: int
    duration_s: float
    dropped: tuple[Dropped, ...]

    @classmethod
    def write(
        cls, path: Path, split: str, made_of: str | None, cuts: Iterable[Cut], dropped: list[Dropped], duration_s: float
    ) -> CheckedChunk:
        """Write the file, which appears complete or not at all.

        Args:
            path: of the file, in a folder of ``<data.dir>/<corpus>``.
            split: that the cuts are of.
            made_of: digest of all that the chunk depends on; None: a repaired file would change it too, so that a later
                call makes it again.
            cuts: that can be used.
            dropped: items that cannot.
            duration_s: of the whole chunk.
        """
        lines = [portable_line(cut, path.parent, path.parents[2]) for cut in cuts]
        header: dict[str, Any] = {"made_of": made_of, "num_cuts": len(lines), "duration_s": duration_s}
        header["dropped"] = [(item.item, item.reason) for item in dropped]
        write_whole(path, b"".join([json.dumps(header).encode(), b"\n", *lines]))
        return cls(path, split, len(lines), duration_s, tuple(dropped))

    @classmethod
    def found(cls, path: Path, split: str, made_of: str) -> CheckedChunk | None:
        """Return the chunk of an earlier call, if it is made of the same, and no repaired file would change it."""
        if not path.is_file():
            return None
        with path.open("rb") as file:
            header = json.loads(file.readline())
        dropped = tuple(Dropped(split, *item) for item in header["dropped"])
        same = header["made_of"] == made_of
        return cls(path, split, header["num_cuts"], header["duration_s"], dropped) if same else None

    def lines(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yield the line of each cut, with its end, and its content."""
        with self.path.open("rb") as file:
            file.readline()
            for line in file:
                yield line, json.loads(line)

    def sibling(self, kind: str) -> Path:
        """Return the path of what is made of this chunk: of another kind, such as ``checked``, with the same number."""
        return self.path.with_name(f"{kind}-{self.path.name.partition('-')[2]}")


@dataclass
class CheckedSplit:
    """The chunks of a split.

    Attributes:
        name: of the split.
        chunks: in order.
        earlier: items that were dropped before the chunks were made.
        left_out: ids of cuts of the chunks that were found to be unreadable since, and why.
    """

    name: str
    chunks: list[CheckedChunk]
    earlier: list[Dropped] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(chunk.num_cuts for chunk in self.chunks) - len(self.left_out)

    @property
    def dropped(self) -> list[Dropped]:
        """Items that are not used, in the order in which that was found."""
        later = [unreadable(self.name, name, why) for name, why in self.left_out.items()]
        return [*self.earlier, *(item for chunk in self.chunks for item in chunk.dropped), *later]

    def lines(self, chunk: CheckedChunk | None = None) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yield line and content of each cut that is used, of one chunk or of all."""
        for chunk_read in self.chunks if chunk is None else [chunk]:
            yield from (line for line in chunk_read.lines() if line[1]["id"] not in self.left_out)

    def rebuilt(self, work: Callable[[CheckedChunk], CheckedChunk], num_jobs: int, title: str) -> CheckedSplit:
        """Return what work makes of the chunks, and show how far it is."""
        done = run_jobs(work, self.chunks, min(num_jobs, len(self.chunks)))
        total_s = sum(chunk.duration_s for chunk in self.chunks)
        return CheckedSplit(self.name, list(track_hours(done, total_s, title)), self.dropped)

    def texts(self) -> Iterator[str]:
        """Yield the transcripts."""
        return (_text(data) for _, data in self.lines())


def _text(data: Mapping[str, Any]) -> str:
    return str(data["supervisions"][0]["text"])


def unreadable(split: str, cut_id: str, why: str, kind: str = "audio") -> Dropped:
    """Return the entry of a cut whose audio, or features, seemed good when they were checked, but cannot be read."""
    return Dropped(split, cut_id, f"unreadable {kind}: {why}")


def check_corpus(
    corpus: SavedCorpus, folder: Path, text: Callable[[str], str], limits: Limits, features: Features, num_jobs: int
) -> dict[str, CheckedSplit]:
    """Check audio and text of all chunks of a corpus, or find which an earlier call has checked.

    Args:
        corpus: to check.
        folder: of the checked chunks.
        text: normalizer of transcripts.
        limits: which cuts are used.
        features: cut → features.
        num_jobs: processes.
    """

    def check(chunk: Chunk) -> CheckedChunk:
        path = folder / f"checked-{chunk.split}-{chunk.number:06d}.jsonl"
        made_of = digest([*chunk.sources, *chunk.segments])
        if stored := CheckedChunk.found(path, chunk.split, made_of):
            return stored
        manifests = chunk.manifests()
        find_former = functools.partial(corpus.former.find, chunk.split)
        used, dropped, bad = check_cuts(chunk.split, supervised_cuts(manifests), text, limits, features, find_former)
        duration_s = sum(segment.duration for segment in manifests.supervisions)
        return CheckedChunk.write(path, chunk.split, None if bad else made_of, used, dropped, duration_s)

    splits = {split: CheckedSplit(split, []) for split in corpus.splits}
    done = run_jobs(check, corpus.chunks(), min(num_jobs, sum(len(split.sizes) for split in corpus.splits.values())))
    total_s = sum(split.duration_s for split in corpus.splits.values())
    for chunk in track_hours(done, total_s, "checking data and text"):
        splits[chunk.split].chunks.append(chunk)
    return splits


def store_features(split: CheckedSplit, features: LogMel, num_jobs: int, former: FormerCuts) -> CheckedSplit:
    """Store the features of a split beside its chunks, computed or copied, or find which an earlier call has stored."""

    def store(chunk: CheckedChunk) -> CheckedChunk:
        path, lines = chunk.sibling("stored"), [line for line, _ in split.lines(chunk)]
        made_of = digest(lines)
        if stored := CheckedChunk.found(path, chunk.split, made_of):
            return stored
        done, dropped = [], []
        for line in lines:
            cut = parse_cut(line, path.parent)
            try:
                same = former.find(chunk.split, cut)
                with reading(cut.id):
                    cut = fastcopy(same, supervisions=cut.supervisions) if same else features.with_features(cut)
                matrix = read_features(features, cut)
            except ValueError as error:
                dropped.append(unreadable(chunk.split, cut.id, str(error)))
                continue
            # the same name in every preparation, which may be interrupted
            key = hashlib.sha256(f"{chunk.split}/{cut.id}".encode()).hexdigest()[:32]
            place = write_array(path.with_name(FEATURES), key, matrix)
            done.append(fastcopy(cut, features=fastcopy(cut.features, **place)))
        return CheckedChunk.write(path, chunk.split, None if dropped else made_of, done, dropped, chunk.duration_s)

    return split.rebuilt(store, num_jobs, f"storing features of {split.name}")


def ctc_lengths(split: CheckedSplit, tokenizer: Tokenizer, frame_shift_s: float, num_jobs: int) -> CtcLengths:
    """Return the lengths of the cuts of a split."""

    def of_chunk(chunk: CheckedChunk) -> CtcLengths:
        cuts = [data for _, data in split.lines(chunk)]
        return CtcLengths.of((data["duration"] for data in cuts), map(_text, cuts), tokenizer, frame_shift_s)

    lengths = run_jobs(of_chunk, split.chunks, min(num_jobs, len(split.chunks)))
    return CtcLengths.joined(list(track(lengths, f"counting tokens of {split.name}", len(split.chunks), True)))


def track_hours(done: Iterable[CheckedChunk], total_s: float, description: str) -> Iterator[CheckedChunk]:
    """Yield what is done, and show how many hours of audio that is, how fast, and the time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    begin, done_s = time.monotonic(), 0.0
    with PlainProgress(*columns) as progress:
        line = progress.add_task(bar_title(description), total=total_s, status="")
        for chunk in done:
            done_s += chunk.duration_s
            rate = done_s / max(time.monotonic() - begin, 1e-3)
            status = f"{done_s / 3600:.2f} of {total_s / 3600:.2f} h, {rate:,.0f} × real time"
            progress.update(line, completed=done_s, status=status)
            yield chunk
        # sums of rounded seconds need not be equal
        progress.update(line, completed=total_s)
