"""How well words are found in time, and how well their confidence tells right words from wrong ones.

Run:  python scripts/check_word_times.py RUN [RUN ...]

The dev sets of each run are decoded and aligned. Confidence: the probability that a right word has a higher one than a
wrong word (the area under the ROC curve). Times: of aligned words, against those in the manifest of the corpus, where
there are any: the recipe fsdd knows where it has put its digits.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table
from scipy.stats import mannwhitneyu

from asr.evaluation.wer import Score, score
from asr.inference.align import AlignedText, align_all
from asr.inference.decode import decode_all
from asr.run.restore import prepared_data, restore

TOLERANCE_S = 0.08
Span = tuple[float, float]


def confidences(scored: Score) -> tuple[list[float], list[float]]:
    """Return the confidences of right words, and of wrong ones."""
    right: list[float] = []
    wrong: list[float] = []
    for item in scored.utterances:
        heard = [(said, word) for said, word in item.alignment if word is not None]
        for (said, word), timed in zip(heard, item.utterance.words, strict=True):
            (right if said == word else wrong).append(timed.confidence)
    return right, wrong


def known_times(folder: Path, split: str) -> dict[str, list[Span]]:
    """Return start and end of the words of each supervision that has an alignment."""
    file = folder / f"supervisions_{split}.jsonl.gz"
    if not file.exists():
        return {}
    found = {}
    for line in gzip.decompress(file.read_bytes()).decode().splitlines():
        item = json.loads(line)
        words = item.get("alignment", {}).get("word", [])
        if words:
            found[item["id"]] = [(start, start + duration) for _, start, duration, *_ in words]
    return found


def errors(texts: Sequence[AlignedText], known: Mapping[str, Sequence[Span]]) -> np.ndarray:
    """Return how much later than known words start and end: (N, 2) in seconds."""
    rows = []
    for text in texts:
        for word, (start_s, end_s) in zip(text.words, known.get(text.id, ()), strict=True):
            rows.append((word.start_s - start_s, word.end_s - end_s))
    return np.array(rows)


def main() -> None:
    """Print a table with a row for each dev set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders of runs, or checkpoints")
    table = Table("run", "set", "words", "wrong", "AUC", "starts within 80 ms", "ends within 80 ms", "median start")
    for run in parser.parse_args().runs:
        options = {"run": run, "weights": "raw", "average_since": None, "batch_duration_s": 120.0}
        restored = restore(OmegaConf.create({**options, "num_workers": 0, "torch_threads": 1}))
        prepared = prepared_data(restored.checkpoint, "prepare them again")
        for name in prepared.names("dev"):
            cuts = prepared.cuts(name)
            found = decode_all(restored.recognizer, restored.decoder, restored.data_module, cuts, name)
            right, wrong = confidences(score(found.results, restored.data_module.unit))
            area = mannwhitneyu(right, wrong).statistic / (len(right) * len(wrong)) if right and wrong else np.nan
            row = [run, name, str(len(right) + len(wrong)), str(len(wrong)), f"{area:.3f}"]
            if known := known_times(prepared.folder.parent, name):
                late = errors(align_all(restored.recognizer, restored.data_module, cuts, name).results, known)
                near = (np.abs(late) <= TOLERANCE_S).mean(axis=0)
                row += [f"{100 * near[0]:.1f} %", f"{100 * near[1]:.1f} %", f"{1000 * np.median(late[:, 0]):+.0f} ms"]
            table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
