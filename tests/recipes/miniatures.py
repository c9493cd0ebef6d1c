"""Real speech in exactly the layouts of large corpora, with their quirks."""

from __future__ import annotations

import http.server
import io
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile

RATE_HZ = 16_000
LIBRISPEECH_PARTS = ("train-clean-100", "dev-clean", "dev-other", "test-clean", "test-other")
MINI_PARTS = ("train-clean-5", "dev-clean-2")
CV_COLUMNS = ("client_id", "path", "sentence", "up_votes", "down_votes", "age", "gender", "accents", "locale")
CV = "cv-corpus-13.0-2023-03-09"
WORDS_IN_CHINESE = {"yes": "是 的", "no": "不", "up": "上 面", "down": "下 面", "left": "左 边", "right": "右 边"}

Spoken = tuple[str, np.ndarray]
"""A word, and how it sounds."""


def spoken_words(shared_data: Path) -> dict[str, list[Spoken]]:
    """Return the single words of each speaker who says at least five, most first."""
    words: dict[str, list[Spoken]] = defaultdict(list)
    with tarfile.open(shared_data / "speech_commands300.tar") as tar:
        contents = {Path(m.name).as_posix(): tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()}
    table = next(name for name in contents if name.endswith("transcripts.tsv"))
    for line in contents[table].decode().splitlines():
        path, speaker, text, _ = line.split("\t")
        audio, rate_hz = soundfile.read(io.BytesIO(contents[f"{Path(table).parent.as_posix()}/{path}"]), dtype="int16")
        assert rate_hz == RATE_HZ
        words[speaker].append((text, audio))
    return {speaker: said for speaker, said in sorted(words.items(), key=lambda one: -len(one[1])) if len(said) >= 5}


def joined(said: Sequence[Spoken]) -> Spoken:
    """Return words of one speaker as one utterance."""
    return " ".join(word for word, _ in said), np.concatenate([audio for _, audio in said])


def groups_of_speakers(words: dict[str, list[Spoken]], num_groups: int) -> list[list[list[Spoken]]]:
    """Return three speakers' words for each group; with few speakers one is in several groups under other names."""
    voices = list(words.values())
    return [[voices[(3 * group + i) % len(voices)] for i in range(3)] for group in range(num_groups)]


def write_librispeech(folder: Path, words: dict[str, list[Spoken]], parts: Sequence[str]) -> Path:
    """Write parts of LibriSpeech; the first speaker of each has a missing, an empty and an untranscribed utterance."""
    top = folder / "LibriSpeech"
    top.mkdir(parents=True)
    (top / "SPEAKERS.TXT").write_text("; made for a test\n")
    for number, (part, voices) in enumerate(zip(parts, groups_of_speakers(words, len(parts)), strict=True)):
        for index, said in enumerate(voices):
            speaker, chapter = 100 * (number + 1) + index, 5000 + index
            place = top / part / str(speaker) / str(chapter)
            place.mkdir(parents=True)
            name = f"{speaker}-{chapter}"
            lines = []
            for utterance in range(2):
                text, audio = joined(said[2 * utterance : 2 * utterance + 2])
                lines.append(f"{name}-{utterance:04d} {text.upper()}{' DON' + chr(39) + 'T' if utterance else ''}")
                soundfile.write(place / f"{name}-{utterance:04d}.flac", audio, RATE_HZ)
            if index == 0:
                lines += [f"{name}-0002 NOBODY HEARS THIS", f"{name}-0003", f"{name}-0005 CUT SHORT"]
                for extra in (3, 4, 5):
                    soundfile.write(place / f"{name}-{extra:04d}.flac", said[0][1], RATE_HZ)
                short = place / f"{name}-0005.flac"
                short.write_bytes(short.read_bytes()[:2000])
            (place / f"{name}.trans.txt").write_text("\n".join(lines) + "\n")
    return folder


def write_aishell(folder: Path, words: dict[str, list[Spoken]], speaker_archives: bool = False) -> Path:
    """Write AISHELL-1, with speakers as folders, or each as an archive in ``wav`` as it is distributed."""
    top = folder / "data_aishell"
    (top / "transcript").mkdir(parents=True)
    texts = list(WORDS_IN_CHINESE.values())
    lines = ["BAC009S0002W0999 没 有 录音"]
    for number, (split, voices) in enumerate(zip(("train", "dev", "test"), groups_of_speakers(words, 3), strict=True)):
        for index, said in enumerate(voices):
            speaker = f"S{100 * number + index + 2:04d}"
            (top / "wav" / split / speaker).mkdir(parents=True)
            for utterance in range(3):
                name = f"BAC009{speaker}W{122 + utterance:04d}"
                _, audio = joined(said[utterance : utterance + 2])
                soundfile.write(top / "wav" / split / speaker / f"{name}.wav", audio, RATE_HZ)
                if not (index == 0 and utterance == 2):  # some recordings have no transcript
                    both = f"{texts[utterance]} {texts[index + 3]}"
                    lines.append(f"{name} {both if utterance else 'Ａ 级 ' + both}")
    (top / "transcript" / "aishell_transcript_v0.8.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return archive_speakers(top / "wav", folder) if speaker_archives else folder


def archive_speakers(wav: Path, folder: Path) -> Path:
    """Pack the folders of speakers as AISHELL-1 does; return its archive."""
    for speaker in sorted(wav.glob("*/S*")):
        with tarfile.open(wav / f"{speaker.name}.tar.gz", "w:gz") as tar:
            tar.add(speaker, f"./{speaker.parent.name}/{speaker.name}")
        for file in speaker.iterdir():
            file.unlink()
        speaker.rmdir()
    for split in ("train", "dev", "test"):
        (wav / split).rmdir()
    with tarfile.open(folder / "data_aishell.tgz", "w:gz") as tar:
        tar.add(folder / "data_aishell", "data_aishell")
    return folder / "data_aishell.tgz"


def write_commonvoice(folder: Path, words: dict[str, list[Spoken]], language: str = "xx") -> Path:
    """Write a language of Common Voice; return the folder above its release.

    Tables: ``dev``, ``test`` and ``train`` have three speakers each. ``validated`` has all of these, another clip by a
    speaker of dev, and one by a new speaker; ``other`` has two clips by another new one.
    """
    place = folder / CV / language
    (place / "clips").mkdir(parents=True)
    number = iter(range(1, 1000))

    def clip(speaker: str, said: Sequence[Spoken], sentence: str, up: int = 2, down: int = 0, write: bool = True):
        text, audio = joined(said)
        name = f"common_voice_{language}_{next(number)}.mp3"
        if write:
            soundfile.write(place / "clips" / name, audio, RATE_HZ, format="MP3")
        return (speaker, name, sentence or text, str(up), str(down), "", "", "", language)

    tables: dict[str, list[tuple[str, ...]]] = {}
    groups = groups_of_speakers(words, 4)
    for split, voices in zip(("train", "dev", "test"), groups, strict=False):
        tables[split] = [
            clip(f"{split}{index}" * 16, said[2 * i : 2 * i + 2], ("", "L’été d'Anna: \"Oui!")[i])
            for index, said in enumerate(voices)
            for i in range(2)
        ]
    extra = groups[3][0]
    everyone = [row for rows in tables.values() for row in rows]
    tables["validated"] = [*everyone, clip("dev0" * 16, extra[:1], "another one"), clip("new" * 16, extra[1:3], "")]
    tables["other"] = [clip("more" * 16, extra[:2], "", 0, 0), clip("more" * 16, extra[2:4], "", 0, 2)]
    missing, m4a = clip("train0" * 16, extra, "gone", write=False), clip("train1" * 16, extra, "tiny", write=False)
    (place / "clips" / m4a[1]).write_bytes(b"\0\0\0\x20ftypM4A \0\0\0\0M4A mp42isom" + bytes(500))
    empty = clip("train2" * 16, extra[:1], "x")
    tables["train"] += [missing, m4a, (*empty[:2], " ", *empty[3:]), tables["train"][0]]
    for name, rows in {**tables, "invalidated": [], "reported": []}.items():
        lines = ["\t".join(CV_COLUMNS), *("\t".join(row) for row in rows)]
        if name == "train":
            lines.append("broken\tline")
        (place / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (place / "clip_durations.tsv").write_text("clip\tduration[ms]\n")
    return folder


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    def log_message(self, *args):
        """Say nothing."""


def archived(folder: Path, name: str, into: Path) -> Path:
    """Return a tar.gz of what a folder holds."""
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(into / name, "w:gz") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
    return into / name


def texts_of(corpus) -> dict[str, dict[str, str]]:
    """Return the transcripts by id, by split."""
    return {split: {s.id: s.text for s in manifests.supervisions} for split, manifests in corpus.splits.items()}


def speakers_of(corpus) -> dict[str, set[str]]:
    """Return the speakers by split."""
    return {split: {s.speaker for s in manifests.supervisions} for split, manifests in corpus.splits.items()}


def reasons(corpus) -> Iterator[tuple[str, str, str]]:
    """Yield split, item and kind of reason of what was dropped."""
    for item in corpus.dropped:
        yield item.split, item.item, item.reason.partition(":")[0]


def write_table(folder: Path, words: dict[str, list[Spoken]]) -> Path:
    """Write a table of four utterances of each speaker, none of them in a split; return it."""
    folder.mkdir()
    rows = ["audio\ttext\tspeaker"]
    for speaker, said in words.items():
        for number in range(4):
            text, audio = joined(said[number : number + 2])
            soundfile.write(folder / f"{speaker}-{number}.flac", audio, RATE_HZ)
            rows.append(f"{speaker}-{number}.flac\t{text}\t{speaker}")
    (folder / "table.tsv").write_text("\n".join(rows) + "\n")
    return folder / "table.tsv"
