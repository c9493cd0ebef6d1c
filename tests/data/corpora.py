"""Small corpora of noise, what `prepare` makes of them, and what it says."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import soundfile
from lhotse import Features, Recording, SupervisionSegment
from lhotse.cut import Cut

from asr.data.features import LogMel
from asr.data.manifests.corpus import Corpus, Dropped, Manifests
from asr.data.preparation.cuts import Limits
from asr.data.preparation.prepare import PrepareSpec, prepare
from asr.data.preparation.prepared import OutputFrames, PreparedData
from asr.text.tokenizer import CharacterTokenizerTrainer, Tokenizer
from werdict.console import PlainConsole
from werdict.normalization import TextNormalizer

RATE_HZ = 8000
NUM_MELS = 20
LIMITS = Limits(min_duration_s=0.1, max_duration_s=3.0)
SPEC = PrepareSpec(TextNormalizer(), LIMITS, LogMel(NUM_MELS, RATE_HZ), CharacterTokenizerTrainer())
PRECOMPUTED = replace(SPEC, features=LogMel(NUM_MELS, RATE_HZ, precomputed=True))


class Killed:
    """A trainer of tokenizers that a Ctrl-C interrupts."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        raise KeyboardInterrupt


Pair = tuple[Recording | Features, SupervisionSegment]


def noise(duration_s: float, seed: int = 0, rate_hz: int = RATE_HZ) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=round(duration_s * rate_hz)) * 0.1


def utterance(
    folder: Path, name: str, duration_s: float = 1.0, text: str = "ab", rate_hz: int = RATE_HZ, suffix: str = "wav"
) -> Pair:
    path = folder / f"{name}.{suffix}"
    soundfile.write(path, noise(duration_s, seed=len(name), rate_hz=rate_hz), rate_hz)
    recording = Recording.from_file(path, recording_id=name)
    return recording, SupervisionSegment(name, name, 0, recording.duration, text=text)


def manifests(*pairs: Pair) -> Manifests:
    sources = {source.recording_id if isinstance(source, Features) else source.id: source for source, _ in pairs}
    return Manifests.of(sources.values(), [segment for _, segment in pairs])


@dataclass
class Recipe:
    """Makes a small corpus and counts how often it was asked to."""

    change: Callable[[Path, dict[str, list[Pair]]], None] = lambda folder, splits: None
    more: Mapping[str, Sequence[dict]] = field(default_factory=dict)  # what is said of utterances beside the usual
    dropped: Sequence[Dropped] = ()
    notes: tuple[str, ...] = ()
    folders: list[Path] = field(default_factory=list)
    make: Callable[..., Pair] = utterance

    def __call__(self, folder: Path) -> Corpus:
        self.folders.append(folder)
        splits = {
            name: [self.make(folder, f"{name}-{index}") for index in range(size)]
            for name, size in {"train": 3, "dev": 2, "test-x": 1}.items()
        }
        for split, items in self.more.items():
            splits[split] += [self.make(folder, **about) for about in items]
        self.change(folder, splits)
        made = {name: manifests(*pairs) for name, pairs in splits.items()}
        return Corpus(made, list(self.dropped), self.notes)


def run(
    root: Path,
    recipe: Callable[[Path], Corpus],
    spec: PrepareSpec = SPEC,
    spec_name: str = "spec",
    output_frames: OutputFrames = lambda num_frames: num_frames // 4,
) -> PreparedData:
    return prepare(root, "corpus", recipe, spec, spec_name).for_encoder(output_frames)


def ids(prepared: PreparedData, split: str) -> list[str]:
    return [cut.id for cut in prepared.cuts(split)]


def dropped(prepared: PreparedData) -> dict[tuple[str, str], str]:
    with (prepared.folder / "dropped.tsv").open(newline="", encoding="utf-8") as file:
        found = {(row["split"], row["item"]): row["reason"] for row in csv.DictReader(file, delimiter="\t")}
    return found | {(item.split, item.item): item.reason for item in prepared.too_short}


def printed(prepared: PreparedData) -> str:
    console = PlainConsole(file=io.StringIO(), width=300)
    prepared.print_table(console)
    return console.file.getvalue()


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def json_lines(path: Path, *rows: dict | Recording | SupervisionSegment | Cut) -> Path:
    path.write_text("".join(json.dumps(row if isinstance(row, dict) else row.to_dict()) + "\n" for row in rows))
    return path


def kaldi(folder: Path, *wavs: str, **files: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "wav.scp").write_text("".join(f"{line}\n" for line in wavs))
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder
