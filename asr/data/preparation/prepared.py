"""Prepared data: fingerprints that name them, paths that move with them, and cuts that are read by index."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from lhotse.cut import Cut
from lhotse.serialization import deserialize_item
from numpy.typing import NDArray
from rich.table import Column, Table

from asr.data.manifests.corpus import Dropped, nothing_left, place_of, write_dropped
from asr.data.manifests.layouts import SourceOption, parts_of
from asr.data.manifests.lhotse_manifests import TARS
from asr.run.folder import DATA_RECORD, TOO_SHORT
from asr.text.tokenizer import Tokenizer, tokenizer_from_state
from werdict.console import PlainConsole, track
from werdict.files import named_path, write_whole
from werdict.text_files import SourceFiles, visible_files

Lengths = NDArray[np.int64]
OutputFrames = Callable[[Lengths], Lengths]
INDEX = "prepared.json"
DROPPED = "dropped.tsv"
FILES = ("cuts_{}.jsonl", "cuts_{}.npz", "ctc_lengths_{}.npz")  # of each split
KEPT = ("mean", "std", "splits", "notes", "corpora", "shards")  # attributes that the index holds
NUM_NAMED = 5  # utterances that are too short
Plain = dict[str, Any]
MAX_HASHED_BYTES = 2**28  # of a source; larger files are known by size and time


def fingerprint(value: Any) -> str:
    """Return ten hexadecimal digits that depend on a JSON-able value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    # file names need not be UTF-8; Python decodes other bytes to lone surrogates
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:10]


def describe_source(source: SourceOption | None, source_files: SourceFiles = visible_files) -> Any:
    """Return hashes of the files of a source that are read.

    Args:
        source: a file or a folder, or several with their splits.
        source_files: folder → its files that are read.

    Raises:
        ValueError: a path does not exist.
    """
    if source is None:
        return None
    if isinstance(source, str):
        return _describe_path(named_path(source), source_files)
    return [[part.split, _describe_path(part.path, source_files)] for part in parts_of(source)]


def _describe_path(path: Path, source_files: SourceFiles) -> dict[str, Any]:
    if not path.exists():
        raise ValueError(f"data.source: there is no file or folder {str(path)!r}; give an existing path")
    if not path.is_dir():
        return {"name": path.name, **_content(path)}
    files = sorted({file for file in source_files(path) if file.is_file()})
    tracked = track(files, f"reading {path}", transient=True)
    return {"folder": fingerprint([(str(file.relative_to(path)), _content(file)) for file in tracked])}


def _content(path: Path) -> dict[str, Any]:
    status = path.stat()
    # hashing large archives, or thousands of shards, would delay every start of a run
    if status.st_size > MAX_HASHED_BYTES or any(tar.fullmatch(path.name) for tar in TARS.values()):
        return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
    return {"sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_file(path: Path) -> dict[str, Any]:
    """Return size and SHA-256 of a file."""
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def refuse_changed(path: Path, written: Mapping[str, Any], index: str) -> None:
    """Refuse a file that is not as it was described.

    Args:
        path: of the file.
        written: what `describe_file` returned then.
        index: the file that says so, for messages.

    Raises:
        ValueError: it is missing or has changed.
    """
    # the size first, because the digest takes reading the whole file
    whole = path.is_file() and path.stat().st_size == written["bytes"] and _sha256(path) == written["sha256"]
    if not whole:
        raise ValueError(f"{path} is missing, or differs from what {index} recorded")


def portable_path(path: str, folder: Path, data_dir: Path) -> str:
    """Return how a file in ``folder`` names a path, which starts from the current folder if it is relative."""
    parent, name = os.path.split(path)
    return os.path.join(portable_folder(parent, folder, data_dir), name)


def portable_folder(path: str, folder: Path, data_dir: Path) -> str:
    """Return how a file in ``folder`` names the path of another folder."""
    return _portable_folder(path, folder, data_dir, os.getcwd())


# audio lies in few folders, and a corpus has millions of files
@lru_cache(maxsize=1000)
def _portable_folder(path: str, folder: Path, data_dir: Path, current: str) -> str:
    path = os.path.join(current, path)  # Shar folders may be given by a relative path
    moved = Path(current) if current != os.sep and data_dir.is_relative_to(current) else data_dir
    return os.path.relpath(path, folder) if Path(path).is_relative_to(moved) else path


def absolute_path(path: str, folder: Path) -> str:
    """Return what a file in ``folder`` means by a path."""
    parent, name = os.path.split(path)
    return os.path.join(os.path.normpath(os.path.join(folder, parent)), name)


def with_absolute_paths(item: Plain, folder: Path) -> Plain:
    """Return what is read from a file in ``folder`` with absolute paths; changes what it is given."""
    for named, key in paths_in(item):
        named[key] = absolute_path(named[key], folder)
    return item


def paths_in(item: Plain) -> Iterator[tuple[Plain, str]]:
    """Yield each mapping that names a file, and the key of its path."""
    for part in (item, item.get("recording"), item.get("features")):
        if part:
            yield from ((source, "source") for source in part.get("sources", ()))
            if "storage_path" in part:
                yield part, "storage_path"
            for transform in part.get("transforms") or ():
                if impulse_response := transform["kwargs"].get("rir"):
                    yield from paths_in(impulse_response)


class CtcLengths(NamedTuple):
    """Lengths of the cuts of a split, in their order; they depend on tokenizer and features, but on no encoder.

    Attributes:
        num_frames: (N,) frames of features.
        num_ctc_frames: (N,) frames that CTC needs: one for each token, and a blank between equal neighbors.
    """

    num_frames: Lengths
    num_ctc_frames: Lengths

    @classmethod
    def of(
        cls, durations_s: Iterable[float], texts: Iterable[str], tokenizer: Tokenizer, frame_shift_s: float
    ) -> CtcLengths:
        """Return the lengths of cuts with these durations and transcripts."""
        tokens = map(tokenizer.encode, texts)
        needed = [len(ids) + sum(a == b for a, b in pairwise(ids)) for ids in tokens]
        # from durations, because features that are computed while training do not exist yet
        num_frames = [round(duration_s / frame_shift_s) for duration_s in durations_s]
        return cls(np.array(num_frames, np.int64), np.array(needed, np.int64))

    def too_short(self, output_frames: OutputFrames) -> dict[int, str]:
        """Return the numbers of the cuts without a CTC alignment, and why.

        Args:
            output_frames: (N,) frames of features → (N,) frames of encodings.
        """
        num_output_frames = output_frames(self.num_frames)
        return {
            int(i): f"too short for its transcript: {num_output_frames[i]} frames, {self.num_ctc_frames[i]} needed"
            for i in np.flatnonzero(num_output_frames < self.num_ctc_frames)
        }


class IndexedCutSet(Sequence[Cut]):
    """The cuts of ``<path>.jsonl``, one per line, with their offsets and durations in ``<path>.npz``.

    lhotse's lazy CutSet reads from the beginning, so that shuffling holds all cuts in memory and resuming skips one by
    one. Here a million cuts take 16 MB, and any of them is read in microseconds.

    Args:
        path: without suffix.
        without: numbers of cuts that are left out.
    """

    def __init__(self, path: Path, without: Sequence[int] = ()) -> None:
        self.lines = path.with_name(f"{path.name}.jsonl")
        with np.load(path.with_name(f"{path.name}.npz")) as index:
            self.offsets, self.durations = (np.delete(index[name], without) for name in ("offsets", "durations"))
        self._file: BinaryIO | None = None
        self._opened_by = 0  # process id

    @staticmethod
    def write(path: Path, lines: Iterable[tuple[bytes, float]]) -> None:
        """Write the two files from lines of cuts, with their ends, and durations in seconds."""
        # eight bytes for each of what may be millions
        offsets, durations = array("q"), array("d")
        with path.with_name(f"{path.name}.jsonl").open("wb") as file:
            for line, duration_s in lines:
                offsets.append(file.tell())
                durations.append(duration_s)
                file.write(line)
        np.savez(path.with_name(f"{path.name}.npz"), offsets=np.array(offsets, np.int64), durations=np.array(durations))

    def __getstate__(self) -> dict[str, Any]:
        # copies would share the position of the file
        return {**vars(self), "_file": None}

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> Cut:  # type: ignore[override]  # no slices
        return self.select([index])[0]

    def select(self, numbers: Iterable[int]) -> CutLines:
        """Return the cuts of some numbers, in their order."""
        # a forked worker would share the position of a file that its parent has opened
        if self._file is None or self._opened_by != os.getpid():
            self._file, self._opened_by = self.lines.open("rb"), os.getpid()
        lines = []
        for number in numbers:
            self._file.seek(self.offsets[number])
            lines.append(self._file.readline())
        return CutLines(lines, self.lines.parent)


class CutLines(Sequence[Cut]):
    """Cuts as lines of a file in ``folder``, parsed when they are used: by a worker, not by the process that trains."""

    def __init__(self, lines: list[bytes], folder: Path) -> None:
        self.lines, self.folder = lines, folder

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: Any) -> Any:
        lines = self.lines[index]
        return CutLines(lines, self.folder) if isinstance(index, slice) else parse_cut(lines, self.folder)


def parse_cut(line: bytes, folder: Path) -> Cut:
    """Return the cut of a line of a file in ``folder``."""
    cut: Cut = deserialize_item(with_absolute_paths(json.loads(line), folder))
    return cut


class FormerCuts:
    """Prepared cuts of an earlier state of a corpus, found by id if their audio, or their features, are unchanged.

    Args:
        folder: of the prepared data.
        splits: of the corpus.
        unchanged: paths of files that are as they were.
    """

    def __init__(self, folder: Path = Path(), splits: Iterable[str] = (), unchanged: Collection[str] = ()) -> None:
        self.cuts = {split: IndexedCutSet(folder / f"cuts_{split}") for split in splits}
        self.unchanged = frozenset(unchanged)
        self.numbers: dict[tuple[str, str], int] = {}
        for split, cuts in self.cuts.items():
            with cuts.lines.open("rb") as lines:
                self.numbers |= {(split, json.loads(line)["id"]): number for number, line in enumerate(lines)}

    def find(self, split: str, cut: Cut) -> Cut | None:
        """Return the prepared cut of the same part of the same files."""
        number = self.numbers.get((split, cut.id))
        if number is None or not self.unchanged.issuperset(_files(cut)):
            return None
        former = self.cuts[split][number]
        is_same = (former.start, former.duration, _files(former)) == (cut.start, cut.duration, _files(cut))
        is_whole = not former.has_features or os.path.isfile(place_of(former.features))
        return former if is_same and is_whole else None


def _files(cut: Cut) -> list[str]:
    return [source.source for source in cut.recording.sources] if cut.has_recording else [place_of(cut.features)]


@dataclass(frozen=True)
class PreparedData:
    """The contents of one folder of prepared data, possibly without the cuts that are too short for an encoder.

    Attributes:
        folder: where the data lie.
        tokenizer: trained on the training transcripts.
        mean: of each feature over the training data.
        std: standard deviation of each feature.
        splits: by name: num_utterances, hours, num_speakers, num_dropped, and num_silent if silence was kept.
        notes: sentences to show with all results.
        corpora: number of training cuts of each corpus of a mixture, in the order of the cuts; empty for one corpus.
        shards: size in bytes of each tar that holds audio or features, by its path from the folder.
        masked: numbers of the cuts that are not used, by split.
        too_short: the same cuts, with reasons.
    """

    folder: Path
    tokenizer: Tokenizer
    mean: tuple[float, ...]
    std: tuple[float, ...]
    splits: dict[str, dict[str, float]]
    notes: tuple[str, ...]
    corpora: dict[str, int] = field(default_factory=dict)
    shards: dict[str, int] = field(default_factory=dict)
    masked: dict[str, list[int]] = field(default_factory=dict)
    too_short: tuple[Dropped, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Name that changes with the source, the options or the text of the data."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    def names(self, kind: str) -> list[str]:
        """Return the splits whose name starts with ``train``, ``dev`` or ``test``, in order."""
        return sorted(name for name in self.splits if name.startswith(kind))

    def cuts(self, split: str) -> IndexedCutSet:
        """Return the cuts of a split, which are read on access."""
        return IndexedCutSet(self.folder / f"cuts_{split}", self.masked.get(split, ()))

    def ctc_lengths(self, split: str) -> CtcLengths:
        """Return the lengths of the cuts of a split."""
        with np.load(self.folder / f"ctc_lengths_{split}.npz") as arrays:
            return CtcLengths(**{name: np.delete(x, self.masked.get(split, ())) for name, x in arrays.items()})

    def for_encoder(self, output_frames: OutputFrames) -> PreparedData:
        """Return the data without the training and dev cuts that have no CTC alignment; test sets stay whole.

        Args:
            output_frames: (N,) frames of features → (N,) frames of encodings.

        Raises:
            ValueError: a split is left without cuts.
        """
        assert not self.masked, "the data were masked for another encoder"
        splits, masked, items = dict(self.splits), {}, []
        # not test: a system has to answer for every utterance of a test set
        for name in (*self.names("train"), *self.names("dev")):
            reasons = self.ctc_lengths(name).too_short(output_frames)
            if not reasons:
                continue
            cuts, masked[name] = self.cuts(name), list(reasons)
            items += [Dropped(name, cuts[number].id, reason) for number, reason in reasons.items()]
            durations = np.delete(cuts.durations, masked[name])
            if not len(durations):
                advice = "Choose an encoder that leaves more frames, or a tokenizer with longer tokens."
                raise nothing_left(name, items, advice)
            changed = {"num_utterances": len(durations), "hours": round(float(durations.sum()) / 3600, 4)}
            splits[name] = {**splits[name], **changed, "num_dropped": splits[name]["num_dropped"] + len(reasons)}
        ends = np.cumsum(list(self.corpora.values()))  # of corpora that stand one after the other
        gone = np.bincount(np.searchsorted(ends, masked.get("train", []), side="right"), minlength=len(ends)).tolist()
        corpora = {name: size - gone[i] for i, (name, size) in enumerate(self.corpora.items())}
        return replace(self, splits=splits, corpora=corpora, masked=masked, too_short=tuple(items))

    def check_shards(self) -> None:
        """Compare the sizes of shards with those when the data were prepared; their content is checked when it is read.

        Raises:
            ValueError: one is missing, or has another size.
        """
        for name, num_bytes in self.shards.items():
            path = Path(absolute_path(name, self.folder))
            if not path.is_file() or path.stat().st_size != num_bytes:
                raise ValueError(
                    f"the shard {path} is missing or has changed; it had {num_bytes} bytes when the data were "
                    f"prepared. Restore it; or remove {self.folder}, and the shard, and prepare the data again"
                )

    def record(self, run_dir: Path) -> None:
        """Write to a run's folder which data it reads, and which cuts are too short for its encoder."""
        write_whole(run_dir / DATA_RECORD, self.fingerprint)
        if self.too_short:
            write_dropped(run_dir / TOO_SHORT, self.too_short)

    def save(self) -> None:
        """Write all but the cuts and their lengths; the index comes last and marks the folder complete."""
        index: dict[str, Any] = {name: getattr(self, name) for name in KEPT}
        index["tokenizer"] = self.tokenizer.state()
        names = [kind.format(split) for split in self.splits for kind in FILES]
        index["files"] = {name: describe_file(self.folder / name) for name in (*names, DROPPED)}
        write_whole(self.folder / INDEX, json.dumps(index, ensure_ascii=False, indent=1))

    @classmethod
    def load(cls, folder: Path) -> PreparedData:
        """Read a complete folder, and compare its files with their digests.

        Raises:
            ValueError: one is missing or has changed.
        """
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        files, tokenizer = index.pop("files"), tokenizer_from_state(index.pop("tokenizer"))
        for name, written in files.items():
            refuse_changed(folder / name, written, INDEX)
        mean, std, notes = (tuple(index.pop(key)) for key in ("mean", "std", "notes"))
        return cls(folder, tokenizer, mean, std, notes=notes, **index)

    def print_table(self, console: PlainConsole) -> None:
        """Print the contents of each split, the vocabulary size, what was dropped and why, and the folder."""
        columns = (Column(name, justify="right") for name in ("utterances", "hours", "speakers", "dropped"))
        table = Table("split", *columns, show_edge=False, pad_edge=False)
        for name, split in self.splits.items():
            num, speakers, dropped = (f"{split[f'num_{key}']:.0f}" for key in ("utterances", "speakers", "dropped"))
            table.add_row(name, num, f"{split['hours']:.2f}", speakers if speakers != "0" else "?", dropped)
        console.print(table)
        console.print(f"vocabulary: {self.tokenizer.vocab_size} tokens, blank included")
        with (self.folder / DROPPED).open(newline="", encoding="utf-8") as file:
            dropped_before = [(row["split"], row["reason"]) for row in csv.DictReader(file, delimiter="\t")]
        reasons = [*dropped_before, *((item.split, item.reason) for item in self.too_short)]
        # after the colon of a reason come the numbers of one item
        for (name, kind), count in sorted(Counter((name, why.partition(":")[0]) for name, why in reasons).items()):
            console.print(f"dropped from {name}: {count} × {kind}")
        for name, split in self.splits.items():
            if "num_silent" in split:
                console.print(f"kept in {name}: {split['num_silent']:.0f} × silent")
        if dropped_before:
            console.print_line(f"each of them: {self.folder / DROPPED}")
        if self.too_short:
            named = ", ".join(item.item for item in self.too_short[:NUM_NAMED])
            more = f" and {len(self.too_short) - NUM_NAMED} more" if len(self.too_short) > NUM_NAMED else ""
            console.print_line(f"too short with this encoder: {named}{more}; a run lists each in {TOO_SHORT}")
        for note in self.notes:
            console.print_line(f"note: {note}")
        console.print_line(f"prepared data: {self.folder}")
