"""Compare the Zipformer with its authors' package: times of forward and backward of a batch, in turns, and memory.

    python scripts/bench_encoder.py [--encoder zipformer_s] [--utterances 8] [--seconds 10] [--eager]

Medians over the repeats; memory is the peak of a process that does nothing else. The package is used where it is
installed, else its wheel is downloaded, without its dependencies. On a GPU: scripts/gpu_report.py --parts encoders.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from authors_zipformer import Reference, find_package, load
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import Tensor, nn

from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.run.parts import locate

CONFIGS = Path(__file__).parents[1] / "configs" / "encoder"
NUM_FEATURES, FRAMES_PER_S = 80, 100
LATE = 20_000.0  # batches: nearly all that is scheduled has its last value
NAMES = ("ours", "theirs")


@dataclass(frozen=True)
class Seconds:
    """What a step took."""

    forward: float
    backward: float
    cpu: float

    @property
    def total(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


def preset(name: str) -> dict[str, Any]:
    """Return the options of an encoder of configs/encoder."""
    return {key: value for key, value in _composed(name).items() if key != "_target_"}


def _composed(name: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        options = OmegaConf.to_container(compose(name))
    assert isinstance(options, dict)
    return {str(key): value for key, value in options.items()}


def build_ours(encoder: str) -> nn.Module:
    """Return an encoder of configs/encoder; a Zipformer is late in training."""
    torch.manual_seed(0)
    ours: nn.Module = locate(_composed(encoder)["_target_"], "encoder")(NUM_FEATURES, **preset(encoder))
    if isinstance(ours, ZipformerEncoder):
        ours.set_batch_count(LATE * ours.ref_duration_s)
    return ours


def build(name: str, encoder: str, package: Path, eager: bool) -> nn.Module:
    """Return ours or theirs, in training mode, late in training."""
    if name == "ours":
        return build_ours(encoder).train()
    torch.manual_seed(0)
    theirs = Reference(load(package, compiled=not eager), preset(encoder), causal=False).train()
    theirs.set_time(LATE)
    return theirs


def stepper(encoder: nn.Module, options: argparse.Namespace) -> Callable[[], Seconds]:
    """Return what makes and times one step on a batch without padding."""
    frames = round(options.seconds * FRAMES_PER_S)
    features = torch.randn(options.utterances, frames, NUM_FEATURES)
    num_frames = torch.full((options.utterances,), frames)

    def step() -> Seconds:
        encoder.zero_grad()
        cpu, start = time.process_time(), time.perf_counter()
        loss: Tensor = encoder(features, num_frames)[0].square().mean()
        middle = time.perf_counter()
        loss.backward()
        return Seconds(middle - start, time.perf_counter() - middle, time.process_time() - cpu)

    return step


def peak_gigabytes(name: str) -> float:
    """Return the peak memory of a process that makes steps with one of the two alone."""
    command = [sys.executable, __file__, *sys.argv[1:], "--alone", name]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(json.loads(printed.splitlines()[-1])) / 1e9


def measure_memory(options: argparse.Namespace, package: Path) -> int:
    """Make three steps, and return the peak memory in bytes."""
    step = stepper(build(options.alone, options.encoder, package, options.eager), options)
    for _ in range(3):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--encoder", choices=sorted(p.stem for p in CONFIGS.glob("zipformer_?.yaml")), default="zipformer_s"
    )
    parser.add_argument("--utterances", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each utterance")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--eager", action="store_true", help="do not compile the activations of the package")
    parser.add_argument("--alone", choices=NAMES, help="print the peak memory of one of the two, in bytes, and leave")
    options = parser.parse_args(arguments)
    for name in ("utterances", "seconds", "repeats", "threads"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name} must be positive, given {getattr(options, name)}")
    return options


def main() -> int:
    """Measure and print."""
    options = parsed()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="bench-encoder-") as folder:
        package = find_package(Path(folder))
        if options.alone:
            print(measure_memory(options, package))
            return 0
        # first, because a process counts the memory of the one that started it, too
        memory = {name: peak_gigabytes(name) for name in NAMES}
        steps = {name: stepper(build(name, options.encoder, package, options.eager), options) for name in NAMES}
        seen: dict[str, list[Seconds]] = {name: [] for name in NAMES}
        for turn in range(options.repeats + 1):
            for name, step in steps.items():
                seconds = step()
                if turn:  # the first compiles, and warms up
                    seen[name].append(seconds)
    print(f"{options.encoder}, {options.utterances} x {options.seconds} s")
    print("        forward s  backward s  total s  CPU s  audio s/s  peak GB")
    for name in NAMES:
        columns = [[getattr(s, kind) for s in seen[name]] for kind in ("forward", "backward", "total", "cpu")]
        forward, backward, total, cpu = (statistics.median(column) for column in columns)
        speed = options.utterances * options.seconds / total
        print(f"{name:7} {forward:10.3f} {backward:11.3f} {total:8.3f} {cpu:6.2f} {speed:10.1f} {memory[name]:8.2f}")
    ratios = [ours.cpu / theirs.cpu for ours, theirs in zip(seen["ours"], seen["theirs"], strict=True)]
    print(f"CPU time, ours / theirs: {statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
