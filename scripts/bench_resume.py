"""How long a training that is resumed in the middle of an epoch searches for its place.

    python scripts/bench_resume.py [--num-cuts 1000000] [--skip 100000]

Writes a manifest of generated cuts (metadata, no audio), opens it as a resumed training does, and measures the time
until the first micro-batch after those that were already processed.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from lhotse import MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioSource
from rich.console import Console
from rich.progress import track

from asr.data.loading.sampling import BucketingConfig, DurationBucketSampler
from asr.data.manifests.plain_items import to_line
from asr.data.preparation.indexed_cut_set import IndexedCutSet

MAX_DURATION_S = 120.0


def generated_cuts(num_cuts: int) -> Iterator[MonoCut]:
    """Yield cuts of 1 to 20 seconds with a transcript, as a prepared corpus has them."""
    durations = np.random.default_rng(0).uniform(1.0, 20.0, num_cuts).round(2).tolist()
    for i, duration in enumerate(track(durations, "writing cuts", console=Console(stderr=True), transient=True)):
        source = AudioSource("file", [0], f"audio/{i:07}.flac")
        recording = Recording(f"r{i}", [source], 16_000, int(duration * 16_000), duration)
        words = SupervisionSegment(
            f"s{i}", f"r{i}", 0.0, duration, text="twelve words of a transcript " * 2, speaker="x"
        )
        yield MonoCut(f"c{i}", 0.0, duration, 0, [words], recording=recording)


def main() -> int:
    """Measure and print; return 1 if the place is not found within a minute."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-cuts", type=int, default=1_000_000)
    parser.add_argument("--skip", type=int, default=100_000, help="micro-batches processed before the interruption")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-resume-") as folder:
        path = Path(folder) / "cuts_train"
        IndexedCutSet.write(path, ((to_line(cut).encode(), cut.duration) for cut in generated_cuts(options.num_cuts)))
        before_mb, begin = peak_mb(), time.monotonic()
        order = DurationBucketSampler(IndexedCutSet(path), BucketingConfig(MAX_DURATION_S), seed=1)
        num_batches = order.count_updates(0, 1)
        if options.skip >= num_batches:
            parser.error(f"--skip: an epoch has {num_batches} micro-batches, given {options.skip}")
        counted = time.monotonic() - begin
        begin = time.monotonic()
        _, cuts = next(iter(order.updates(0, options.skip, rank=0, world_size=1, accumulate=1)))
        found = time.monotonic() - begin
    print(
        f"{options.num_cuts:,} cuts, {num_batches:,} micro-batches of {MAX_DURATION_S:g} s; opened in {counted:.1f} s"
    )
    print(
        f"the next {len(cuts)} cuts found in {found:.2f} s after {options.skip:,} micro-batches, "
        f"peak memory +{peak_mb() - before_mb:.0f} MB"
    )
    return 0 if found < 60 else 1


def peak_mb() -> float:
    """Return the largest resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
