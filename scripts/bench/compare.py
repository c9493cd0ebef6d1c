"""Measure what it takes to read and compare 100,000 utterances of 10 systems.

    python scripts/bench_compare.py [UTTERANCES [SYSTEMS]]

Writes a table of words that are wrong at random, then runs ``asr.compare`` on it in a process of its own; prints CPU
seconds and the largest memory. Exits with 1 if it takes more than 60 s or 1 GB.
"""

from __future__ import annotations

import csv
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

NUM_SPEAKERS, NUM_WORDS, RATE = 500, 10, 0.06
MAX_CPU_S, MAX_BYTES = 60, 10**9


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


def main(num_utterances: int = 100_000, num_systems: int = 10) -> int:
    """Print CPU time and memory; return 1 if either is too much."""
    with tempfile.TemporaryDirectory() as folder:
        write_table(Path(folder, "table.csv"), num_utterances, num_systems)
        code = f"import asr; asr.compare({folder + '/table.csv'!r}).to_html({folder + '/page.html'!r})"
        subprocess.run([sys.executable, "-c", code], check=True)
        size = Path(folder, "page.html").stat().st_size
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s, memory = usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss
    print(
        f"{num_utterances} utterances x {num_systems} systems: {cpu_s:.1f} CPU s, {memory / 1e6:.0f} MB, "
        f"page {size / 1e6:.1f} MB"
    )
    return int(cpu_s > MAX_CPU_S or memory > MAX_BYTES)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
