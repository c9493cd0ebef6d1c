"""What hotwords gain on the words that are listed, and cost on all others.

Run:  python scripts/check_hotwords.py RUN [decoder=transducer_beam]

Lists are drawn from the words that dev has missed at least once, but for the most frequent ones, which nobody lists.
Test is decoded without and with each: how many of its listed words are missed, and the word error rate of the rest, for
which a listed word in the place of another is an error.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from asr.evaluation.wer import Score, score
from asr.inference.decode import decode_all
from asr.run.command_line import CONFIGS
from asr.run.restore import prepared_data, restore

NUM_LISTS, NUM_WORDS = 3, 30
FREQUENT = 0.01  # of all words
BOOSTS = (0.5, 1.0, 1.5, 2.0, 3.0)


class Errors(NamedTuple):
    """Listed words of the references, how many of them are missed, all others, and the errors of those."""

    listed: int
    missed: int
    others: int
    errors: int


def decoded(run: str, decoder: str, kind: str, **options: Any) -> Score:
    """Return the score of the first set of a kind."""
    config = {**OmegaConf.load(CONFIGS / "decoder" / f"{decoder}.yaml"), **options}
    fixed = {"weights": "raw", "average_since": None, "batch_duration_s": 120.0, "num_workers": 0, "torch_threads": 1}
    restored = restore(OmegaConf.create({"run": run, "decoder": config, **fixed}))
    prepared = prepared_data(restored.checkpoint, "prepare them again")
    name = prepared.names(kind)[0]
    found = decode_all(restored.recognizer, restored.decoder, restored.data_module, prepared.cuts(name), name)
    return score(found.results)


def errors(scored: Score, words: Collection[str]) -> Errors:
    """Count the errors of listed words and of the others."""
    pairs = [pair for item in scored.utterances for pair in item.alignment]
    listed = [heard == said for said, heard in pairs if said in words]
    others = [heard == said for said, heard in pairs if said not in words]
    num_others = sum(said is not None and said not in words for said, _ in pairs)
    return Errors(len(listed), listed.count(False), num_others, others.count(False))


def main() -> None:
    """Print a table with a row for each boost, over all lists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run's folder, or a checkpoint")
    parser.add_argument("decoder", nargs="?", default="decoder=ctc_beam", help="a beam, as in asr-evaluate")
    given = parser.parse_args()
    run, decoder = given.run, given.decoder.removeprefix("decoder=")
    dev = [pair for item in decoded(run, decoder, "dev").utterances for pair in item.alignment]
    rng = np.random.default_rng(0)
    counts = Counter(said for said, _ in dev)
    missed = {said for said, heard in dev if said is not None and said != heard}
    candidates = sorted(word for word in missed if counts[word] <= FREQUENT * len(dev))
    lists = [set(rng.choice(candidates, min(NUM_WORDS, len(candidates)), replace=False)) for _ in range(NUM_LISTS)]
    without = decoded(run, decoder, "test")
    table = Table("boost", "listed words", "missed", "WER % of the rest")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "words.txt"
        for boost in (None, *BOOSTS):
            found = []
            for words in lists:
                file.write_text("\n".join(words))
                options = {"hotwords": str(file), "hotword_boost": boost}
                found.append(errors(decoded(run, decoder, "test", **options) if boost else without, words))
            listed, missing, others, wrong = map(sum, zip(*found, strict=True))
            said = "none" if boost is None else f"{boost:g}"
            table.add_row(said, str(listed), str(missing), f"{100 * wrong / others:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
