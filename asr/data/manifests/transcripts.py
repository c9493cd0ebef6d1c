"""Kaldi's data folders, and transcripts beside audio: STM, CTM, TextGrid, SRT and their like."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from asr.data.manifests.audio import ELSEWHERE
from asr.data.manifests.audio_files import ENDINGS
from asr.data.manifests.corpus import Row
from asr.data.manifests.tables import split_in_name
from werdict.console import PlainConsole, track
from werdict.text_files import composed, numbered_lines, visible_files

KALDI_FILES = ("wav.scp", "segments", "text", "utt2spk")
IN_ARCHIVE = re.compile(r".*:\d+(\[.*\])?")  # file.ark:123
# run in a Kaldi folder: saves what the commands of wav.scp print
CONVERT = (
    'mkdir -p wav && while read -r id command; do bash -c "${command%|}" </dev/null >"wav/$id.wav" && '
    'echo "$id $PWD/wav/$id.wav"; done <wav.scp >wav.new && mv wav.new wav.scp'
)


def is_kaldi(folder: Path) -> bool:
    """Return whether a folder is one of Kaldi."""
    return (folder / "wav.scp").is_file()


def read_kaldi(folder: Path) -> tuple[list[Row], list[tuple[str, str]]]:
    """Read a folder of Kaldi; relative paths in ``wav.scp`` start, as in Kaldi, at the current folder.

    Without ``segments`` each recording is an utterance; its fifth field may be a channel, else the first is used.

    Returns:
        The utterances, and (id, reason) of those that lack something.

    Raises:
        ValueError: a line is malformed, or repeats a name, or names no file; the message names file and line.
    """
    files = {name: (where, _file(where, place)) for name, (where, place) in _table(folder / "wav.scp").items()}
    if not (folder / "text").is_file():
        raise ValueError(f"{folder} has no file text beside wav.scp, with a name and a transcript on each line")
    texts, speakers, segments = (_table(folder / name) for name in ("text", "utt2spk", "segments"))
    rows, dropped = [], []
    for id, (where, place) in (segments or {name: (where, name) for name, (where, _) in files.items()}).items():
        recording, start_s, end_s, channel = _part(where, place) if segments else (place, 0.0, None, None)
        if id not in texts:
            dropped.append((id, f"missing transcript: {folder / 'text'} has no line for it"))
        elif recording not in files:
            dropped.append((id, f"missing recording: {recording}, in {where}"))
        else:
            speaker = speakers[id][1] or None if id in speakers else None
            audio = Path(files[recording][1])
            rows.append(Row(recording, audio, texts[id][1], where, speaker, None, id, start_s, end_s, channel=channel))
    ids = {row.id for row in rows} | {id for id, _ in dropped}
    dropped += [(id, f"missing recording: only {where} has it") for id, (where, _) in texts.items() if id not in ids]
    return rows, dropped


def _table(path: Path) -> dict[str, tuple[str, str]]:
    """Return the rest of each line, and where it stands, by the name at its start; nothing if there is no such file."""
    entries: dict[str, tuple[str, str]] = {}
    for where, line in numbered_lines(path) if path.is_file() else ():
        name, *rest = line.split(maxsplit=1)
        if entries.setdefault(name, entry := (where, "".join(rest).strip())) != entry:
            raise ValueError(f"{where}: {name!r} is in {entries[name][0]} too; keep one")
    return entries


def _file(where: str, place: str) -> str:
    if "|" in place:
        raise ValueError(
            f"{where}: {place!r} is a command, and commands are not run. If you trust all of them, save their output "
            f"to files: run this line in that folder:\n{CONVERT}"
        )
    if not place or IN_ARCHIVE.fullmatch(place) or ELSEWHERE.match(place):
        raise ValueError(
            f"{where}: {place!r} is not an audio file here; copy it to this machine, or write archives to files, for "
            "example with Kaldi's wav-copy"
        )
    return os.path.abspath(os.path.expanduser(place))


def _part(where: str, place: str) -> tuple[str, float, float | None, int | None]:
    """Return recording, start, end and channel of a line of ``segments``; an end below 0 is that of the recording."""
    try:
        recording, *times = place.split()
        start_s, end_s, *channel = map(float, times)
        (number,) = map(int, channel) if channel else (None,)
    except ValueError:
        raise ValueError(f"{where}: expected a recording, start and end in seconds, and optionally a channel") from None
    return recording, start_s, None if end_s < 0 else end_s, number


LISTS = (".trans.txt", "PROMPTS")  # LibriSpeech, VoxForge: an id and its transcript per line
BESIDE = ("", "../wav", "../flac")  # where the audio of a list lies, from its folder
BESIDE_AUDIO = (".normalized.txt", ".txt", ".lab", ".TextGrid")
# of TextGrids, best first, and what is no transcript; beside either may stand a speaker, as in "anna - words"
TIERS = (
    *("utterances", "utterance", "sentences", "sentence", "transcription", "transcript", "text", "trn"),
    *("words", "word", "ort-mau", "ort"),
)
OTHER_TIERS = (
    *("phones", "phone", "phonemes", "phoneme", "kan-mau", "kan", "mau", "syllables", "syllable", "ipa"),
    *("comments", "comment", "notes", "note", "noise", "gloss", "translation", "tones", "breaks", "pos"),
)
KIND = "|".join(sorted((*TIERS, *OTHER_TIERS), key=len, reverse=True))
TIER_NAME = re.compile(rf"(?:(.+?) *[-_:./@ ] *)??({KIND})(?: *[-_:./@ ] *(.+))?", re.IGNORECASE)
PAUSES = {"", "sp", "sil", "spn", "pau", "<p:>", "<p>", "<sp>", "<sil>", "<spn>", "<eps>", "<usb>", "<nib>"}  # labels
TOKENS = re.compile(r'"((?:[^"]|"")*)"|(?<!\S)(-?\d+(?:\.\d+)?(?:[eE]-?\d+)?)(?!\S)')
# times and a label: of HTK, whose scores may follow, and of Audacity
LABELS = {
    ".lab": re.compile(r"\d+\s+\d+\s+(\S+).*"),
    ".txt": re.compile(r"\d+\.\d+\t\d+\.\d+(?:\t(.*))?"),
}
NUM_TIERS = 5  # that are named

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
    tiers: dict[str, None] = {}
    rows = list(_of_lists(folder, files) if files[0].name.endswith(LISTS) else _beside(folder, files, tiers))
    kinds = sorted({next(kind for kind in (*LISTS, *BESIDE_AUDIO) if file.name.endswith(kind)) for file in files})
    named = "speakers from folders" if any(row.speaker for row in rows) else "speakers unknown"
    named += f", tiers {', '.join(map(repr, [*tiers][:NUM_TIERS]))}" if tiers else ""
    console.print_line(f"{folder}: {len(rows)} utterances, text from *{', *'.join(kinds)} beside the audio, {named}")
    return rows


def _of_lists(folder: Path, files: Iterable[Path]) -> Iterator[Row]:
    for file in track(list(files), f"reading {folder.name}", transient=True):
        places = [os.path.normpath(file.parent / place) for place in BESIDE]
        paths = [Path(place, name) for place in places if os.path.isdir(place) for name in _audio(place)]
        audio = {composed(path.stem): path for path in paths}
        parents = [parent.name for parent in file.relative_to(folder).parents]
        other = next(iter(audio.values()), file.with_name("x.wav"))  # one that is missing lies beside others
        for where, line in numbered_lines(file):
            name, _, text = line.strip().partition(" ")
            name = name.rpartition("/")[2]
            # LibriSpeech begins ids with the speaker, VoxForge has a folder for each
            first = name.partition("-")[0]
            speaker = first if first in parents else file.parents[1].name if file.name == "PROMPTS" else None
            place = audio.get(name, other.with_name(f"{name}{other.suffix}"))
            yield _row(folder, place, text.strip(), where, speaker)


def _audio(folder: str) -> list[str]:
    return [name for name in sorted(os.listdir(folder)) if Path(name).suffix.lower() in ENDINGS]


def _beside(folder: Path, files: Iterable[Path], tiers: dict[str, None]) -> Iterator[Row]:
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
        yield _row(folder, audio[stem], _transcript(file, tiers), str(file), None)


def _stem(file: Path) -> str:
    kind = next(kind for kind in BESIDE_AUDIO if file.name.endswith(kind))
    return str(file)[: -len(kind)]


def _row(folder: Path, audio: Path, text: str, where: str, speaker: str | None) -> Row:
    inside = audio.relative_to(folder)
    split = next((split for part in inside.parts[:-1] if (split := split_in_name(Path(part)))), None)
    return Row(str(inside.with_suffix("")), audio, text, where, speaker, split)


def _transcript(file: Path, tiers: dict[str, None]) -> str:
    """Return the words of a file of one transcript; add the names of its tiers."""
    lines = [line.strip() for _, line in numbered_lines(file)]
    if file.name.endswith(".TextGrid"):
        return _words_of_grid(file, "\n".join(lines), tiers)
    labels = [LABELS[file.suffix].fullmatch(line) for line in lines]
    are_labels = labels and all(labels)
    return _words(label[1] or "" for label in labels if label) if are_labels else " ".join(" ".join(lines).split())


def _words(labels: Iterable[str]) -> str:
    """Return the words of labels, without pauses."""
    return " ".join(" ".join(label for label in labels if label.strip().lower() not in PAUSES).split())


def _words_of_grid(file: Path, text: str, read: dict[str, None]) -> str:
    """Return the labels of the tier of utterances or words of a TextGrid of Praat, long or short."""
    # what is no free-standing number or quoted string is a comment, so that both forms have the same tokens
    tokens = iter([number or label.replace('""', '"') for label, number in TOKENS.findall(text)])
    tiers: list[tuple[str, list[str]]] = []
    try:
        for kind in tokens:
            if kind in ("IntervalTier", "TextTier"):
                name, _, _, size = next(tokens), next(tokens), next(tokens), int(next(tokens))
                step = 3 if kind == "IntervalTier" else 2
                labels = [[next(tokens) for _ in range(step)][-1] for _ in range(size)]
                if kind == "IntervalTier":
                    tiers.append((name.strip(), labels))
    except (StopIteration, ValueError) as error:
        raise ValueError(f"{file}: this is not a Praat TextGrid") from error
    name, labels = _tier_of_words(file, tiers)
    read[name] = None
    return _words(labels)


def _tier_of_words(file: Path, tiers: list[tuple[str, list[str]]]) -> tuple[str, list[str]]:
    """Return the best tier of the one speaker of a TextGrid.

    Raises:
        ValueError: there is none; or there are several speakers, or several tiers of a kind, or of none that is known.
    """
    found = [(TIER_NAME.fullmatch(tier[0]), tier) for tier in tiers]
    usable = [(name, tier) for name, tier in found if name is None or name[2].lower() in TIERS]
    usable = [(name, tier) for name, tier in usable if _words(tier[1])] or usable[:1]
    by_rank: dict[int, list[tuple[str, list[str]]]] = defaultdict(list)
    for name, tier in usable:
        by_rank[len(TIERS) if name is None else TIERS.index(name[2].lower())].append(tier)
    best = by_rank[min(by_rank)] if by_rank else []
    speakers = {(name[1] or name[3] or "").lower() for name, _ in usable if name is not None}
    if len(best) != 1 or len(speakers) > 1:
        names = ", ".join(repr(name) for name, _ in ([tier for _, tier in usable] or tiers)) or "none"
        raise ValueError(
            f"{file}: one tier of words, of one speaker, is needed, and there are {names}; leave one and call it "
            "'words', or write a table with columns audio, start, end, text and speaker"
        )
    return best[0]
