"""What trained recognizers recognize under noise, with hotwords, and when words were spoken.

    python scripts/bench decoding-noise RUN … --noise FOLDER

noise: the WER of runs with a CTC head on their first test set, clean and with noise at falling levels. Each utterance
gets a part of one recording of the folder, the same for all runs and levels. For a fair comparison the recordings must
not be those that a run was trained with.

    python scripts/bench decoding-hotwords RUN … [--decoder transducer_beam]

hotwords: what they gain on the words that are listed, and cost on all others. Lists are drawn from the words that dev
has missed at least once, but for the most frequent ones, which nobody lists. Test is decoded without and with each: how
many of its listed words are missed, and the word error rate of the rest, for which a listed word in the place of
another is an error.

    python scripts/bench decoding-words RUN …

words: how well words of the dev sets are found in time, and how well their confidence tells right words from wrong
ones. AUC: the probability that a right word has a higher confidence than a wrong word (the area under the ROC curve).
Times: of aligned words, against those in the manifest of the corpus, where there are any: the recipe fsdd knows where
it has put its digits.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import soundfile
from lhotse import Recording, SupervisionSet
from lhotse.cut import Cut
from lhotse.utils import fastcopy
from scipy.stats import mannwhitneyu

from asr.data.loading.augmentation import AddNoise, AudioAugmentation
from asr.inference.decode import AlignedText, align_all, decode_all
from asr.run.restore import prepared_data, restore
from bench.configs import options_from
from bench.measure import Row, Setting
from werdict.error_files import bootstrap_interval
from werdict.scoring import Score, score

SNRS_DB = (20.0, 10.0, 5.0, 0.0)
NUM_LISTS, NUM_WORDS, FREQUENT = 3, 30, 0.01  # FREQUENT: of all words
BOOSTS = (0.5, 1.0, 1.5, 2.0, 3.0)
TOLERANCE_S = 0.08
Span = tuple[float, float]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is decoded, and how."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or a checkpoint")
    parser.add_argument("--noise", metavar="FOLDER", help="recordings of noise")
    parser.add_argument("--decoder", default="ctc_beam", help="a beam of configs/decoder (default: %(default)s)")


def rows(setting: Setting, section: str) -> Iterator[Row]:
    """Yield what a section of the above finds."""
    options = setting.options
    sections = {"noise": under_noise, "hotwords": with_hotwords, "words": words_of}
    if section not in sections or (section == "noise" and not options.noise):
        sys.exit(__doc__)
    for run in options.runs:
        yield from sections[section](run, options, setting.work)


class Restored:
    """A run, and the prepared data that it decodes.

    Args:
        run: its folder, or a checkpoint.
        words: of asr-evaluate, such as a decoder in the place of the run's own.
    """

    def __init__(self, run: str, *words: str) -> None:
        options = options_from(f"run='{run}'", *words, command="evaluate")
        self.parts = restore(options, decoder=options.decoder, torch_threads=1)
        self.prepared = prepared_data(self.parts.checkpoint, "prepare them again")

    def score(self, cuts: Collection[Cut], title: str) -> Score:
        """Decode and score."""
        parts = self.parts
        decoded = decode_all(parts.recognizer, parts.decoder, parts.loaders, cuts, title)
        return score(decoded.results, parts.loaders.unit)

    def score_first(self, kind: str) -> Score:
        """Decode and score the first set of a kind."""
        name = self.prepared.names(kind)[0]
        return self.score(self.prepared.cuts(name), name)


def noisy(cuts: Iterable[Cut], folder: str, snr_db: float, written: Path) -> list[Cut]:
    """Return cuts of files with noise that depends on their ids alone, ``snr_db`` below the speech.

    Args:
        cuts: clean ones.
        folder: recordings of noise.
        snr_db: signal-to-noise ratio.
        written: folder for the files.
    """
    acoustics = AudioAugmentation(noise=AddNoise(probability=1.0, folder=folder, snr_db=(snr_db, snr_db)))
    acoustics.check_files()
    noisy_cuts = []
    for number, cut in enumerate(cuts):
        path = written / f"{snr_db:g}-{number}.wav"
        samples = acoustics(cut, random.Random(cut.id)).load_audio()[0]
        soundfile.write(path, samples, cut.sampling_rate, "FLOAT")
        recording = Recording.from_file(path, recording_id=cut.recording_id)
        # what is known of the clean file does not hold
        noisy_cuts.append(fastcopy(cut, start=0.0, channel=0, recording=recording, custom=None))
    return noisy_cuts


def under_noise(run: str, options: argparse.Namespace, work: Path) -> Iterator[Row]:
    """Yield WER % with its interval for clean speech and each level of noise."""
    restored = Restored(run, "decoder=ctc_greedy")
    name, *_ = restored.prepared.names("test")
    clean, cells = list(restored.prepared.cuts(name)), {}
    for snr_db in (None, *SNRS_DB):
        level = "clean" if snr_db is None else f"{snr_db:g} dB"
        cuts = clean if snr_db is None else noisy(clean, options.noise, snr_db, work)
        scored = restored.score(cuts, f"{name}, {level}")
        around = bootstrap_interval(scored)
        cells[level] = f"{100 * scored.wer:.2f} [{100 * around.low:.2f}, {100 * around.high:.2f}]"
    yield Row(f"{Path(run).name}: WER % on {name} with 95 % intervals", cells)


def errors_of(scored: Score, words: Collection[str]) -> tuple[int, int, int, int]:
    """Return the number of listed words of the references, of those missed, of others, and of the errors of those."""
    pairs = [pair for item in scored.utterances for pair in item.alignment]
    listed = [heard == said for said, heard in pairs if said in words]
    others = [heard == said for said, heard in pairs if said not in words]
    num_others = sum(said is not None and said not in words for said, _ in pairs)
    return len(listed), listed.count(False), num_others, others.count(False)


def with_hotwords(run: str, options: argparse.Namespace, work: Path) -> Iterator[Row]:
    """Yield a row for each boost, over all lists."""
    decoder = f"decoder={options.decoder}"
    plain = Restored(run, decoder)
    dev = [pair for item in plain.score_first("dev").utterances for pair in item.alignment]
    counts = Counter(said for said, _ in dev)
    missed = {said for said, heard in dev if said is not None and said != heard}
    candidates = sorted(word for word in missed if counts[word] <= FREQUENT * len(dev))
    rng = np.random.default_rng(0)
    lists = [set(rng.choice(candidates, min(NUM_WORDS, len(candidates)), replace=False)) for _ in range(NUM_LISTS)]
    without, file = plain.score_first("test"), work / "words.txt"
    for boost in (None, *BOOSTS):
        counted = []
        for words in lists:
            file.write_text("\n".join(words))
            hotwords = f"decoder.hotwords='{file}'", f"decoder.hotword_boost={boost}"
            scored = Restored(run, decoder, *hotwords).score_first("test") if boost else without
            counted.append(errors_of(scored, words))
        listed, missing, others, wrong = map(sum, zip(*counted, strict=True))
        cells = {
            "listed words": str(listed),
            "missed": str(missing),
            "WER % of the rest": f"{100 * wrong / others:.2f}",
        }
        yield Row("no hotwords" if boost is None else f"boost {boost:g}", cells)


def confidences(scored: Score) -> tuple[list[float], list[float]]:
    """Return the confidences of right words, and of wrong ones."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for item in scored.utterances:
        heard = [(said, word) for said, word in item.alignment if word is not None]
        for (said, word), timed in zip(heard, item.utterance.words, strict=True):
            found[said == word].append(timed.confidence)
    return found[True], found[False]


def known_times(folder: Path, split: str) -> dict[str, list[Span]]:
    """Return start and end of the words of each supervision that has an alignment."""
    file = folder / f"supervisions_{split}.jsonl.gz"
    supervisions = SupervisionSet.from_file(file) if file.exists() else ()
    words = {segment.id: (segment.alignment or {}).get("word") for segment in supervisions}
    return {name: [(word.start, word.end) for word in spans] for name, spans in words.items() if spans}


def lateness(texts: Sequence[AlignedText], known: Mapping[str, Sequence[Span]]) -> np.ndarray:
    """Return how much later than known words start and end: (N, 2) in seconds."""
    pairs = [pair for text in texts for pair in zip(text.words, known.get(text.id, ()), strict=True)]
    return np.array([(word.start_s - start_s, word.end_s - end_s) for word, (start_s, end_s) in pairs])


def words_of(run: str, options: argparse.Namespace, work: Path) -> Iterator[Row]:
    """Yield a row for each dev set."""
    restored = Restored(run)
    for name in restored.prepared.names("dev"):
        cuts = restored.prepared.cuts(name)
        right, wrong = confidences(restored.score(cuts, name))
        area = mannwhitneyu(right, wrong).statistic / (len(right) * len(wrong)) if right and wrong else np.nan
        cells = {"words": str(len(right) + len(wrong)), "wrong": str(len(wrong)), "AUC": f"{area:.3f}"}
        times = dict.fromkeys(("starts within 80 ms", "ends within 80 ms", "median start"), "")
        if known := known_times(restored.prepared.folder.parent, name):
            aligned = align_all(restored.parts.recognizer, restored.parts.loaders, cuts, name).results
            late = lateness(aligned, known)
            near = (np.abs(late) <= TOLERANCE_S).mean(axis=0)
            shown = (*(f"{100 * share:.1f} %" for share in near), f"{1000 * np.median(late[:, 0]):+.0f} ms")
            times = dict(zip(times, shown, strict=True))
        yield Row(f"{Path(run).name}: {name}", cells | times)
