"""What it takes to read and compare 100,000 utterances of 10 systems.

    python scripts/bench compare [--utterances 100000] [--systems 10]

Writes a table of words that are wrong at random, then runs ``werdict.compare`` on it in a process of its own. It should
take at most 60 CPU seconds and 1 GB.
"""

from __future__ import annotations

import argparse
import csv
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.measure import Row, Setting, at_most, cpu_seconds
from bench.output import positive

NUM_SPEAKERS, NUM_WORDS, RATE = 500, 10, 0.06
MAX_CPU_S, MAX_GB = 60, 1


def write_table(path: Path, num_utterances: int, num_systems: int) -> None:
    """Write hypotheses with substitutions and deletions."""
    rng = np.random.default_rng(0)
    lexicon = [
        f"{first}{second}{third}" for first in "bdfgklmn" for second in "aeiou" for third in ("", "ck", "st", "ring")
    ]
    said = [list(map(lexicon.__getitem__, row)) for row in rng.integers(len(lexicon), size=(num_utterances, NUM_WORDS))]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("system", "id", "speaker", "reference", "hypothesis"))
        for system in range(num_systems):
            wrong = rng.random((num_utterances, NUM_WORDS)) < RATE * (1 + system / 50)
            for number, (words, errors) in enumerate(zip(said, wrong, strict=True)):
                recognized = [f"{word}x" if bad else word for word, bad in zip(words, errors, strict=True)]
                speaker = f"speaker{number % NUM_SPEAKERS}"
                writer.writerow(
                    (f"system{system}", f"utterance{number}", speaker, " ".join(words), " ".join(recognized))
                )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the size of the table."""
    parser.add_argument("--utterances", type=positive, default=100_000)
    parser.add_argument("--systems", type=positive, default=10)


def rows(setting: Setting, _: str) -> Iterator[Row]:
    """Yield CPU time and memory of reading and comparing, and the size of the page."""
    size = setting.options.utterances, setting.options.systems
    table, page = setting.work / "table.csv", setting.work / "page.html"
    write_table(table, *size)
    code = f"import werdict; werdict.compare({str(table)!r}).to_html({str(page)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    title, usage = "{:,} utterances x {} systems".format(*size), resource.RUSAGE_CHILDREN
    yield at_most(f"{title}: CPU", cpu_seconds(usage), MAX_CPU_S, " s")
    yield at_most(f"{title}: memory", 1.024e-6 * resource.getrusage(usage).ru_maxrss, MAX_GB, " GB")
    yield Row(f"{title}: page", f"{page.stat().st_size / 1e6:.1f} MB")
