"""Reads folders whose transcripts are files beside the audio: x.wav with x.txt, and trees of *.trans.txt."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from asr.console import PlainConsole, track
from asr.data.manifests.audio_files import ENDINGS
from asr.data.manifests.rows import Row
from asr.data.manifests.source_files import visible_files
from asr.data.manifests.splits import split_in_name
from asr.text_files import composed, read_lines

LISTS = (".trans.txt", "PROMPTS")  # LibriSpeech, VoxForge: an id and its transcript per line
BESIDE = ("", "../wav", "../flac")  # where the audio of a list lies, from its folder
BESIDE_AUDIO = (".normalized.txt", ".txt", ".lab", ".TextGrid")
TIERS = ("utterances", "utterance", "sentences", "sentence", "transcript", "text", "words", "word")  # best first
TOKENS = re.compile(r'"((?:[^"]|"")*)"|(?<!\S)(-?\d+(?:\.\d+)?(?:[eE]-?\d+)?)(?!\S)')
HTK_LABEL = re.compile(r"\d+\s+\d+\s+(\S+).*")

console = PlainConsole()


def transcript_files(folder: Path) -> list[Path]:
    """Return the files of transcripts below a folder: lists, or else those that lie beside their audio."""
    files = list(visible_files(folder))
    if lists := [file for file in files if file.name.endswith(LISTS)]:
        return lists
    stems = {str(file)[: -len(file.suffix)] for file in files if file.suffix.lower() in ENDINGS}
    texts = [(file, _stem(file)) for file in files if file.name.endswith(BESIDE_AUDIO)]
    return [file for file, stem in texts if stem in stems]


def read_transcripts(folder: Path, files: Sequence[Path]) -> list[Row]:
    """Read the transcripts of a tree, and print how they were read.

    A folder below ``folder`` whose name holds that of a split is that split. Of several transcripts of one file the
    first kind of ``BESIDE_AUDIO`` counts.

    Raises:
        ValueError: a file is malformed.
    """
    rows = list(_of_lists(folder, files) if files[0].name.endswith(LISTS) else _beside(folder, files))
    kinds = sorted({next(kind for kind in (*LISTS, *BESIDE_AUDIO) if file.name.endswith(kind)) for file in files})
    named = "speakers from folders" if any(row.speaker for row in rows) else "speakers unknown"
    console.print_line(f"{folder}: {len(rows)} utterances, text from *{', *'.join(kinds)} beside the audio, {named}")
    return rows


def _of_lists(folder: Path, files: Iterable[Path]) -> Iterator[Row]:
    for file in track(list(files), f"reading {folder.name}", transient=True):
        places = [os.path.normpath(file.parent / place) for place in BESIDE]
        paths = [Path(place, name) for place in places if os.path.isdir(place) for name in _audio(place)]
        audio = {composed(path.stem): path for path in paths}
        for number, line in enumerate(read_lines(file), start=1):
            if line.strip():
                name, _, text = line.strip().partition(" ")
                name = name.rpartition("/")[2]
                # LibriSpeech begins ids with the speaker, VoxForge has a folder for each
                parents = [parent.name for parent in file.relative_to(folder).parents]
                first = name.partition("-")[0]
                speaker = first if first in parents else file.parents[1].name if file.name == "PROMPTS" else None
                where, place = f"{file}, line {number}", audio.get(name, file.with_name(f"{name}.wav"))
                yield _row(folder, place, text.strip(), where, speaker)


def _audio(folder: str) -> list[str]:
    return [name for name in sorted(os.listdir(folder)) if Path(name).suffix.lower() in ENDINGS]


def _beside(folder: Path, files: Iterable[Path]) -> Iterator[Row]:
    best: dict[str, Path] = {}
    for file in sorted(
        files, key=lambda file: next(i for i, kind in enumerate(BESIDE_AUDIO) if file.name.endswith(kind))
    ):
        best.setdefault(_stem(file), file)
    audio: dict[str, Path] = {}
    for place in {file.parent for file in best.values()}:
        # x.flac before x.wav, and x.wav before x.WAV
        paths = map(place.joinpath, _audio(str(place)))
        for path in sorted(paths, key=lambda path: (ENDINGS.index(path.suffix.lower()), path.suffix.swapcase())):
            audio.setdefault(str(path.with_suffix("")), path)
    for stem, file in track(sorted(best.items()), f"reading {folder.name}", transient=True):
        yield _row(folder, audio[stem], _transcript(file), str(file), None)


def _stem(file: Path) -> str:
    kind = next(kind for kind in BESIDE_AUDIO if file.name.endswith(kind))
    return str(file)[: -len(kind)]


def _row(folder: Path, audio: Path, text: str, where: str, speaker: str | None) -> Row:
    inside = audio.relative_to(folder)
    split = next((split for part in inside.parts[:-1] if (split := split_in_name(Path(part)))), None)
    return Row(str(inside.with_suffix("")), audio, text, where, speaker, split)


def _transcript(file: Path) -> str:
    """Return the words of a file of one transcript."""
    lines = [line.strip() for line in read_lines(file) if not line.isspace()]
    if file.name.endswith(".TextGrid"):
        return _words_of_grid(file, "\n".join(lines))
    labels = [HTK_LABEL.fullmatch(line) for line in lines] if file.suffix == ".lab" else []
    words = [label[1] for label in labels if label] if labels and all(labels) else " ".join(lines).split()
    return " ".join(words)


def _words_of_grid(file: Path, text: str) -> str:
    """Return the labels of the tier of utterances or words of a TextGrid of Praat, long or short."""
    # what is no free-standing number or quoted string is a comment, so that both forms have the same tokens
    tokens = iter([number or label.replace('""', '"') for label, number in TOKENS.findall(text)])
    tiers: dict[str, list[str]] = {}
    try:
        for kind in tokens:
            if kind in ("IntervalTier", "TextTier"):
                name, _, _, size = next(tokens), next(tokens), next(tokens), int(next(tokens))
                step = 3 if kind == "IntervalTier" else 2
                labels = [[next(tokens) for _ in range(step)][-1] for _ in range(size)]
                if kind == "IntervalTier":
                    tiers.setdefault(name.lower(), labels)
    except (StopIteration, ValueError) as error:
        raise ValueError(f"{file}: this is not a Praat TextGrid") from error
    if not tiers:
        raise ValueError(f"{file}: there is no tier of intervals")
    best = next((name for name in TIERS if name in tiers), next(iter(tiers)))
    return " ".join(" ".join(tiers[best]).split())
