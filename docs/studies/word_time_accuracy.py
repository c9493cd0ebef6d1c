"""How far the times of words are from the truth, for each kind of model.

Run:  python docs/studies/word_time_accuracy.py FOLDER [--only ctc,zipformer]

Words of eSpeak NG (the extra ``tts``) are spoken one by one, trimmed to where they sound, and joined with pauses, so
that it is known where each begins and ends. A small model of each kind is trained on such speech, for 3 to 10 CPU
minutes, and decodes voices that it has not heard. Printed is how far the borders of words are from the truth, in
utterances without errors. What is trained stays in FOLDER, and is used again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from asr.data.synthesis.speak_corpus import SAMPLING_RATE_HZ, SHARD_UTTERANCES, VOICES, speak

ENGLISH = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
CHINESE = tuple("零一二三四五六七八九")
NUM_VOICES = {"train": 30, "dev": 5, "test": 10}
NUM_UTTERANCES = {"train": 1000, "dev": 40, "test": 150}
SOUNDS_DB = -35.0  # below its loudest 10 ms a word has ended
NOISE_DBFS = -60.0
SHARE_JOINED = 0.3  # of the words that follow without a pause
PAUSES_S = 0.1, 0.8
LEVELS_DBFS = -26.0, -12.0  # of peaks

COMMON = (
    *("recipe=custom/transformer_ctc", "data.by_corpus=false", "data.transcripts_lm=0", "data.workers.num_workers=0"),
    *("tokenizer=char", "logger=csv", "torch_threads=1", "trainer.val_check_interval=200"),
)
TRANSFORMER = ("encoder.subsampling_factor=4", "data.batch.max_duration_s=20")
# by kind of model: the language, and options of asr-train
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ctc": ("english", (*TRANSFORMER, "trainer.max_steps=600")),
    "transducer": (
        "english",
        (
            *(*TRANSFORMER, "trainer.max_steps=250", "init={runs}/ctc/checkpoints/best.ckpt", "head=transducer"),
            *("decoder=transducer_greedy", "head.predictor_dim=128", "head.joiner_dim=128", "head.ref_duration_s=1.0"),
            "trainer.val_check_interval=100",
        ),
    ),
    "zipformer": (
        "english",
        (
            *("encoder=zipformer_xs", "optimizer=scaled_adam", "optimizer.lr=0.135"),
            *("data.batch.max_duration_s=15", "trainer.max_steps=600"),
        ),
    ),
    "wav2vec2": (
        "english",
        (
            *("encoder=pretrained", "encoder.model={wav2vec2}", "init={wav2vec2}", "features=waveform", "augment=none"),
            *("encoder.freeze_convolutions=false", "encoder.masks.time_share=0", "optimizer=muon"),
            *("data.batch.max_duration_s=12", "trainer.max_steps=400", "trainer.val_check_interval=100"),
        ),
    ),
    "chinese": ("chinese", (*TRANSFORMER, "trainer.max_steps=600", "data.scoring_unit=character")),
}
Samples = NDArray[np.float32]
Words = dict[str, list[tuple[str, float, float]]]  # by utterance: word, start and end in seconds


def spoken_words(folder: Path, language: str, split: str) -> dict[tuple[str, str], Samples]:
    """Return the samples of each word by each voice of a split, trimmed, with a peak of 1."""
    vocabulary, accent = (ENGLISH, "en-us") if language == "english" else (CHINESE, "cmn")
    manner = {"words_per_minute": 150, "pitch": 50, "pitch_range": 50, "word_gap": 0, "peak_dbfs": -1.0}
    manner |= {"lead_s": 0.0, "tail_s": 0.0, "noise_dbfs": -90.0, "noise_seed": 1}
    pairs = list(product(VOICES[split][: NUM_VOICES[split]], vocabulary))
    found = {}
    for start in range(0, len(pairs), SHARD_UTTERANCES):
        items: list[dict[str, Any]] = [
            {
                **manner,
                "id": str(number),
                "shard": f"{language}-{split}-{start}",
                "text": word,
                "voice": f"{accent}+{name}",
            }
            for number, (name, word) in enumerate(pairs[start : start + SHARD_UTTERANCES])
        ]
        speak(items, folder / "spoken", seed=1, num_jobs=1)
        for pair, item in zip(pairs[start:], items, strict=False):
            samples, _ = soundfile.read(folder / "spoken" / item["shard"] / f"{item['id']}.flac", dtype="float32")
            size = SAMPLING_RATE_HZ // 100
            power = np.square(samples[: len(samples) // size * size]).reshape(-1, size).mean(axis=1)
            sounding = np.flatnonzero(10 * np.log10(power / power.max() + 1e-12) > SOUNDS_DB)
            trimmed = samples[sounding[0] * size : (sounding[-1] + 1) * size]
            found[pair] = trimmed / np.abs(trimmed).max()
    return found


def joined(
    words: dict[tuple[str, str], Samples], rng: np.random.Generator
) -> tuple[Samples, list[tuple[str, float, float]]]:
    """Return an utterance of one voice, and its words with start and end in seconds."""
    voices, vocabulary = (sorted({key[place] for key in words}) for place in (0, 1))
    voice, level = rng.choice(voices), 10 ** (rng.uniform(*LEVELS_DBFS) / 20)
    parts = [np.zeros(round(rng.uniform(*PAUSES_S) * SAMPLING_RATE_HZ), np.float32)]
    truth = []
    for text in rng.choice(vocabulary, rng.integers(3, 7)):
        begin = sum(map(len, parts))
        parts.append(level * words[voice, text])
        truth.append((str(text), begin / SAMPLING_RATE_HZ, (begin + len(parts[-1])) / SAMPLING_RATE_HZ))
        pause_s = 0.0 if rng.random() < SHARE_JOINED else rng.uniform(*PAUSES_S)
        parts.append(np.zeros(round(pause_s * SAMPLING_RATE_HZ), np.float32))
    parts.append(np.zeros(round(0.2 * SAMPLING_RATE_HZ), np.float32))
    audio = np.concatenate(parts)
    return (audio + rng.normal(0, 10 ** (NOISE_DBFS / 20), len(audio))).astype(np.float32), truth


def corpus(folder: Path, language: str) -> tuple[Path, Words]:
    """Return a table of the joined words of a language, and the truth about its test set."""
    table, truth_file = folder / f"{language}.tsv", folder / f"{language}.json"
    if not truth_file.exists():
        (folder / language).mkdir(exist_ok=True)
        rows, truth = ["audio\ttext\tsplit"], {}
        for split, size in NUM_UTTERANCES.items():
            words, rng = spoken_words(folder, language, split), np.random.default_rng(len(split))
            for number in range(size):
                audio, spans = joined(words, rng)
                name = f"{split}-{number:04d}"
                soundfile.write(folder / language / f"{name}.flac", audio, SAMPLING_RATE_HZ)
                text = (" " if language == "english" else "").join(word for word, *_ in spans)
                rows.append(f"{language}/{name}.flac\t{text}\t{split}")
                if split == "test":
                    truth[name] = spans
        table.write_text("\n".join(rows) + "\n")
        truth_file.write_text(json.dumps(truth))
    return table, json.loads(truth_file.read_text())


def run(command: str, *words: str) -> None:
    """Run a command of this project."""
    subprocess.run([str(Path(sys.executable).with_name(command)), *words], check=True)


def train(folder: Path, kind: str, table: Path, options: tuple[str, ...]) -> Path:
    """Return the folder of a run, which is made if it is missing."""
    run_dir = folder / "runs" / kind
    if not (run_dir / "decode").exists():
        wav2vec2 = folder / "wav2vec2"
        if kind == "wav2vec2" and not wav2vec2.exists():
            script = Path(__file__).with_name("pretrain_wav2vec2.py")
            words = [str(script), str(wav2vec2), "--audio", str(folder / "pretraining")]
            subprocess.run([sys.executable, *words], check=True)
        words = [word.format(wav2vec2=wav2vec2, runs=folder / "runs") for word in (*COMMON, *options)]
        run("asr-train", *words, f"data.source={table}", f"data.dir={folder / 'data'}", f"run_dir={run_dir}")
    return run_dir


def timed_words(ctm: Path) -> Words:
    """Return the words of each utterance of a CTM."""
    found: Words = {}
    for line in ctm.read_text().splitlines():
        name, _, start, duration, word, _ = line.split()
        found.setdefault(name, []).append((word, float(start), float(start) + float(duration)))
    return found


def measure(folder: Path, kind: str) -> Iterator[str]:
    """Yield the cells of a row."""
    language, options = KINDS[kind]
    table, truth = corpus(folder, language)
    run_dir = train(folder, kind, table, options)
    with tempfile.TemporaryDirectory() as made:
        run("asr-evaluate", str(run_dir), f"output_dir={made}/decode")
        found = timed_words(Path(made) / "decode" / "test.ctm")
    right = [name for name in found if [word for word, *_ in found[name]] == [word for word, *_ in truth[key(name)]]]
    distances: Any = [
        (a - begin, b - end)
        for name in right
        for (_, a, b), (_, begin, end) in zip(found[name], truth[key(name)], strict=True)
    ]
    late_ms = 1000 * np.array(distances)
    yield from (kind, f"{len(right)} of {len(truth)}", str(len(late_ms)))
    for late in (late_ms[:, 0], late_ms[:, 1]):
        yield f"{np.median(late):+.0f}"
        yield from (f"{value:.0f}" for value in np.quantile(np.abs(late), [0.5, 0.95]))


def key(name: str) -> str:
    """Return the id of an utterance in the truth."""
    return Path(name).stem


def main() -> None:
    """Print a table with a row for each kind of model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(KINDS))
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    rows = [list(measure(folder, kind)) for kind in options.only.split(",")]
    borders = [
        f"{border}: {what}" for border in ("start", "end") for what in ("late, median", "off, median", "off, 95 %")
    ]
    header = ["model", "utterances without errors", "words", *borders]
    for row in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
