"""Counts which passes of an encoder CUDA graphs replay, and the memory of what they read and write.

    PYTHONPATH=scripts python docs/studies/simulate_captures.py [--passes 10000]

Micro-batches are the sampler's, for as many utterances as LibriSpeech has, with lengths like theirs, at three speeds.
What an encoder draws is drawn as in training. Nothing is encoded: a minute on a CPU.
"""

from __future__ import annotations

import argparse
import math
from collections import OrderedDict
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from bench.configs import FRAMES_PER_S, NUM_FEATURES, build_encoder

from asr.data.loading.sampling import BucketingConfig, DurationBucketSampler
from asr.models import devices
from asr.training.cuda_graphs import MAX_GRAPHS, rounded

NUM_UTTERANCES, NUM_BUCKETS, SPEEDS = 281_000, 30, (0.9, 1.0, 1.1)
FIRST = 500  # passes that are not counted: most shapes are new
ENCODERS = {"transformer_12x512": {}, "zipformer_m": {"causal": False}, "zipformer_m, causal": {"causal": True}}
BYTES = 4  # of a number outside of a graph


class _Durations(list[None]):
    """Cuts of which nothing but their durations is known."""

    def __init__(self, durations: np.ndarray) -> None:
        super().__init__()
        self.durations = durations


def lengths_s(generator: np.random.Generator) -> np.ndarray:
    """Return durations between 1 and 20 s: most near 14 s, as chapters were cut, others shorter."""
    long = generator.normal(14.3, 1.5, NUM_UTTERANCES)
    short = generator.uniform(1.0, 14.0, NUM_UTTERANCES)
    return np.where(generator.random(NUM_UTTERANCES) < 0.72, long, short).clip(1.0, 20.0)


def shapes(max_duration_s: float, num: int) -> list[tuple[int, int]]:
    """Return (B, T) of micro-batches in the order of training."""
    generator = np.random.default_rng(0)
    durations, found = lengths_s(generator), list[tuple[int, int]]()
    cuts: Any = _Durations(durations)
    sampler = DurationBucketSampler(cuts, BucketingConfig(max_duration_s, NUM_BUCKETS))
    for epoch in range(math.ceil(num * max_duration_s / durations.sum()) + 1):
        for numbers in sampler.plan(epoch):
            longest = (durations[numbers] / generator.choice(SPEEDS, len(numbers))).max()
            found.append((len(numbers), round(longest * FRAMES_PER_S)))
    return found[:num]


def replayed(encoder: Any, batches: list[tuple[int, int]], max_duration_s: float) -> tuple[float, int, float, float]:
    """Return the share of passes that are replayed, the number of graphs, and megabytes outside of them.

    Returns:
        Share, number, and megabytes of features, encodings and gradients: as they are shared, and if each graph had
        its own.
    """
    passes, num_replays = OrderedDict[Any, str](), 0
    sizes: list[int] = []
    torch.manual_seed(0)
    for number, (size, num_frames) in enumerate(batches):
        if hasattr(encoder, "set_trained_seconds"):
            encoder.set_trained_seconds(number * max_duration_s)
        drawn = encoder.begin_pass(torch.device("cpu")) if hasattr(encoder, "begin_pass") else ()
        shape = rounded(size), rounded(num_frames)
        known = passes.pop((drawn, *shape), None)
        passes[drawn, *shape] = "seen" if known is None else "captured"
        num_replays += known == "captured" and number >= FIRST
        if len(passes) > MAX_GRAPHS:
            passes.popitem(last=False)
        sizes.append(shape[0] * shape[1])
    # numbers of each frame: features, encodings and their gradients
    per_frame = NUM_FEATURES, *2 * [encoder.d_model / encoder.subsampling_factor]
    graphs = [size * num_frames for (_, size, num_frames), state in passes.items() if state == "captured"]
    kept = sum(1 << (math.ceil(numbers * max(sizes)) - 1).bit_length() for numbers in per_frame)
    megabytes = (BYTES * numbers / 1e6 for numbers in (kept, sum(graphs) * sum(per_frame)))
    return num_replays / (len(batches) - FIRST), len(graphs), *megabytes


def main() -> None:
    """Print a row for each encoder and size of batches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=10_000)
    num = parser.parse_args().passes
    print("| encoder | s of audio | shapes | passes replayed | graphs | MB beside them | if each had its own |")
    print("|---|---|---|---|---|---|---|")
    for max_duration_s in (600.0, 1000.0):
        batches = shapes(max_duration_s, num)
        num_shapes = len({(rounded(size), rounded(frames)) for size, frames in batches})
        for name, options in ENCODERS.items():
            encoder: Any = build_encoder(name.partition(",")[0])
            for option, value in options.items():
                setattr(encoder, option, value)
            with patch.object(devices, "on_accelerator", lambda x: True):
                share, graphs, shared, own = replayed(encoder, batches, max_duration_s)
            row = f"{share:.1%} | {graphs} | {shared:,.0f} | {own:,.0f}"
            print(f"| {name} | {max_duration_s:g} | {num_shapes} | {row} |", flush=True)


if __name__ == "__main__":
    main()
