"""Forward and backward of encoders beside their peers: audio seconds per second, memory, use of the arithmetic.

    python scripts/bench encoders [--encoder zipformer_s] [--utterances 8] [--seconds 10] [--eager]
    python scripts/bench encoders --encoder zapformer_s --checkout PATH      beside icefall's pull request 2082
    python scripts/bench encoders-zipformer_s --device cuda     8, 32 and 96 utterances, also replayed by CUDA graphs
    python scripts/bench encoders-zipformer_s-compiled --device cuda

The first compare an encoder with its authors', in turns: medians over the repeats; memory is the peak of a process that
does nothing else, and what is kept for the backward pass without the parameters. The package of the Zipformer is used
where it is installed, else its wheel is downloaded, without its dependencies.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from asr.models import devices
from asr.models.encoders.zapformer.encoder import ZapformerEncoder
from asr.training.cuda_graphs import GraphedEncoder, compile_layers
from bench import authors_zapformer
from bench.authors_zipformer import Reference, find_package, load
from bench.configs import FRAMES_PER_S, LATE, NUM_FEATURES, build_encoder, options_from
from bench.measure import (
    Row,
    Setting,
    alone,
    at_most,
    in_turns,
    lacking,
    left_out,
    median_ms,
    num_kernels,
    peak_mb,
    ratio,
    timed_ms,
    until_error,
)
from bench.output import positive
from werdict.errors import is_out_of_memory

SMALL_NAMES = {
    "zipformer_s": "zipformer_xs",
    "zipformer_m": "zipformer_xs",
    "zapformer_s": "zapformer_xs",
    "zapformer_m": "zapformer_xs",
    "transformer_12x512": "transformer_xxs",
    "conformer_12x512": "conformer_xs",
}
UTTERANCES, SMALL_UTTERANCES, SECONDS = (8, 32, 96), (1, 2), 10.0
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32, TF32": torch.float32}
# shares of what the authors' package takes: of its time as trainer=gpu trains, with CUDA graphs; of its memory without
MOST_TIME = {("zipformer_s", 8): 0.4, ("zipformer_m", 8): 0.6, ("zipformer_s", 96): 0.6}
MOST_MEMORY = {("zipformer_s", 32): 0.75, ("zipformer_m", 32): 0.75}
# audio seconds per second: captured, 8 x 10 s; the largest batch that fits into 139 GB
LEAST_SPEED = {"transformer_12x512": 6000, "conformer_12x512": 4000}
LEAST_OF_LARGEST = {"transformer_12x512": 25_000, "conformer_12x512": 15_000}
MOST_COMPILED_KERNELS = {"zipformer_m": 2500}
OURS = {True: "ours", False: "theirs"}
MOST_OF_ZAPFORMER = 0.8  # of its authors' CPU time, and of the memory that they keep for the backward pass


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is compared with the authors' package."""
    parser.add_argument("--encoder", default="zipformer_s", help="a Zipformer or Zapformer of configs/encoder")
    parser.add_argument("--checkout", type=Path, help="folder with icefall's pull request 2082, for a Zapformer")
    parser.add_argument("--utterances", type=positive, default=8)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each utterance")
    parser.add_argument("--eager", action="store_true", help="do not compile activations")


def rows(setting: Setting, what: str) -> Iterator[Row]:
    """Yield the rows of an encoder, as it is and captured, beside the authors', or of ``<encoder>-compiled``."""
    if not what:
        yield from _in_turns(setting)
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    name, _, is_compiled = what.partition("-")
    if is_compiled:
        yield from until_error(f"{name}, compiled", _compiled(setting, name), setting)
        return
    yield from until_error(name, _as_it_is(setting, name), setting)
    if setting.on_gpu:
        yield _largest(setting, name)


class Measured:
    """Time and memory of forward and backward of a batch without padding, over the draws of a few seeds.

    Args:
        encoder: in training mode.
        setting: of the report.
        size: utterances of ``SECONDS``.
        precision: of ``PRECISIONS``.
        encode: computes the passes of the encoder, as `GraphedEncoder` does; None: the encoder.
    """

    def __init__(
        self, encoder: nn.Module, setting: Setting, size: int, precision: str = "bf16", encode: Any = None
    ) -> None:
        encode = encode or encoder
        self.setting, seconds = setting, 2.0 if setting.small else SECONDS
        frames, device, dtype = round(seconds * FRAMES_PER_S), setting.device, PRECISIONS[precision]
        encoder.to(device).zero_grad()
        own = sum(tensor.nbytes for tensor in (*encoder.parameters(), *encoder.buffers()))
        others = torch.cuda.memory_allocated() - own if setting.on_gpu else 0  # other encoders are on the GPU, too
        features = torch.randn(size, frames, NUM_FEATURES, device=device)
        num_frames = torch.full((size,), frames, device=device)
        num_seeds = 1 if setting.small else 5
        seeds = itertools.cycle(range(num_seeds))

        def step() -> None:
            devices.seed(next(seeds), features.device)
            encoder.zero_grad()
            with torch.autocast(device, dtype, enabled=setting.on_gpu and dtype != torch.float32):
                encodings: Tensor = encode(features, num_frames)[0]
            encodings.float().square().mean().backward()

        self.step: Callable[[], None] = step
        for _ in range(2 * num_seeds):  # what each seed draws is computed once, and captured the second time
            step()
        if setting.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self.ms = statistics.fmean(timed_ms(step, setting.on_gpu) for _ in range(2 * num_seeds))
        self.gigabytes = (torch.cuda.max_memory_allocated() - others) / 1e9 if setting.on_gpu else 0.0
        self.audio_s_per_s = 1e3 * size * seconds / self.ms
        self.num_kernels = num_kernels(step) if setting.on_gpu else 0

    def text(self) -> str:
        """Return speed, memory and kernels."""
        text = f"{self.audio_s_per_s:,.0f} audio s/s, {self.ms:.3g} ms"
        return f"{text}, {self.gigabytes:.2f} GB, {self.num_kernels} kernels" if self.gigabytes else text


def _in_turns(setting: Setting) -> Iterator[Row]:
    """Yield times and memory of a step of ours and of the authors'."""
    options = setting.options
    is_zapformer = options.encoder.startswith("zapformer")
    if is_zapformer and not options.checkout:
        yield left_out(options.encoder, "give --checkout, a folder with icefall's pull request 2082", "measured")
        return
    package = options.checkout if is_zapformer else find_package(setting.work)
    # first, because a process counts the memory of the one that started it, too
    memory = [alone(_memory, options, package, is_ours) for is_ours in OURS]
    steps = [_stepper(options, package, is_ours)[1] for is_ours in OURS]
    for step in steps:  # compiles, and warms up
        step()
    timings = in_turns(steps, options.repeats)
    audio_s = options.utterances * options.seconds
    title = f"{options.encoder}, {options.utterances} x {options.seconds:g} s"
    for is_ours, times, (peak, kept) in zip(OURS, timings, memory, strict=True):
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        cells = {"s": f"{wall:.3f}", "CPU s": f"{cpu:.2f}", "audio s/s": f"{audio_s / wall:.1f}"}
        yield Row(f"{title}: {OURS[is_ours]}", cells | {"peak GB": f"{peak / 1e9:.2f}", "kept GB": f"{kept / 1e9:.3f}"})
    ratios = [mine / other for (_, mine), (_, other) in zip(*timings, strict=True)]
    goal = f"at most {MOST_OF_ZAPFORMER}" if is_zapformer else ""
    shares = (
        ("CPU time", ratio(*([cpu for _, cpu in times] for times in timings)), statistics.median(ratios)),
        ("kept memory", f"{memory[0][1] / memory[1][1]:.3f}", memory[0][1] / memory[1][1]),
    )
    for what, text, share in shares:
        yield Row(f"{what}, ours / theirs", text, goal, share <= MOST_OF_ZAPFORMER if goal else None)


def _stepper(
    options: argparse.Namespace, package: Path, is_ours: bool
) -> tuple[Callable[[], Tensor], Callable[[], tuple[float, float]]]:
    """Return what encodes a batch without padding, and what makes a step on it, and returns seconds and CPU seconds."""
    torch.manual_seed(0)
    encoder = build_encoder(options.encoder) if is_ours else _reference(options.encoder, package, not options.eager)
    encoder.train().to(options.device)
    if isinstance(encoder, ZapformerEncoder) and not options.eager:
        compile_layers(encoder)  # of a Zapformer the activations alone
    frames = round(options.seconds * FRAMES_PER_S)
    features = torch.randn(options.utterances, frames, NUM_FEATURES, device=options.device)
    num_frames = torch.full((options.utterances,), frames, device=options.device)

    def encode() -> Tensor:
        encodings: Tensor = encoder(features, num_frames)[0]
        return encodings

    def step() -> tuple[float, float]:
        encoder.zero_grad()
        cpu, start = time.process_time(), time.perf_counter()
        encode().square().mean().backward()
        if features.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start, time.process_time() - cpu

    return encode, step


def _memory(options: argparse.Namespace, package: Path, is_ours: bool) -> tuple[float, float]:
    """Return the peak of a process in bytes, and what a forward pass keeps."""
    encode, step = _stepper(options, package, is_ours)
    for _ in range(3):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        encodings = encode()
    device = "device" if encodings.is_cuda else "cpu"
    kept = sum(getattr(event, f"self_{device}_memory_usage") for event in profile.key_averages())
    return peak_mb() * 2**20, kept


def _reference(name: str, package: Path, compiled: bool) -> nn.Module:
    """Return the authors' encoder with the sizes of one of configs/encoder, late in training."""
    sizes = options_from(f"encoder={name}").encoder.model_dump(exclude={"target"}, exclude_unset=True)
    if name.startswith("zapformer"):
        return authors_zapformer.Reference(authors_zapformer.load(package, compiled), sizes).train()
    theirs = Reference(load(package, compiled=compiled), sizes, causal=False)
    theirs.set_time(LATE)
    return theirs.train()


def _sizes(setting: Setting) -> tuple[int, ...]:
    return SMALL_UTTERANCES if setting.small else UTTERANCES


def _size_of(setting: Setting, name: str) -> str:
    return SMALL_NAMES[name] if setting.small else name


def _row(setting: Setting, check: str, value: str, number: float, least: float | None) -> Row:
    if least is None or setting.small:
        return Row(check, value)
    return Row(check, value, f"at least {least:,} audio s/s", number >= least)


def _as_it_is(setting: Setting, name: str) -> Iterator[Row]:
    """Yield ours with each number of utterances, captured, in other precisions, and the authors' package."""
    encoder, peak = build_encoder(_size_of(setting, name)).train(), _peak_flops(setting)
    plain, captured = dict[int, Measured](), dict[int, Measured]()
    for size in _sizes(setting):
        plain[size] = Measured(encoder, setting, size)
        with FlopCounterMode(display=False) as counter:
            plain[size].step()
        use = counter.get_total_flops() / (1e-3 * plain[size].ms) / peak
        value = f"{plain[size].text()}, {use:.1%} of the {peak / 1e12:.3g} TFLOP/s of large matrix products"
        yield Row(f"{name}, {size} utterances", value)
    for precision in () if setting.small else ("fp16", "fp32, TF32"):
        yield Row(f"{name}, {precision}, 8 utterances", Measured(encoder, setting, 8, precision).text())
    encode = GraphedEncoder(encoder) if setting.on_gpu else None
    for size in _sizes(setting):
        captured[size] = measured = Measured(encoder, setting, size, encode=encode)
        least = LEAST_SPEED.get(name) if size == 8 else None
        yield _row(setting, f"{name}, captured, {size} utterances", measured.text(), measured.audio_s_per_s, least)
    del encoder, encode
    if name.startswith("zipformer"):
        check = f"{name}, the authors' package"
        yield from until_error(check, _authors(setting, name, plain, captured, check), setting)


def _authors(
    setting: Setting, name: str, plain: Mapping[int, Measured], captured: Mapping[int, Measured], check: str
) -> Iterator[Row]:
    if why := lacking("zipformer"):
        yield left_out(check, why, "measured" if setting.on_gpu else "")
        return
    theirs = _reference(_size_of(setting, name), find_package(setting.work), setting.on_gpu)
    for size in plain:
        measured = Measured(theirs, setting, size)
        yield Row(f"{check}, {size} utterances", measured.text())
        if setting.on_gpu:
            time, memory = captured[size].ms / measured.ms, plain[size].gigabytes / measured.gigabytes
            for what, share, goals in (("time", time, MOST_TIME), ("memory", memory, MOST_MEMORY)):
                most = goals.get((name, size))
                goal, met = (f"at most {most:g}", share <= most) if most else ("", None)
                yield Row(f"{name}, {size} utterances, share of their {what}", f"{share:.2f}", goal, met)


def _compiled(setting: Setting, name: str) -> Iterator[Row]:
    encoder = build_encoder(_size_of(setting, name)).train()
    if not setting.small:  # the compiler takes minutes on a CPU
        compile_layers(encoder)
    for how in ("compiled", "compiled and captured"):
        encode = GraphedEncoder(encoder) if how != "compiled" and setting.on_gpu else None
        for size in _sizes(setting):
            measured = Measured(encoder, setting, size, encode=encode)
            yield Row(f"{name}, {how}, {size} utterances", measured.text())
            most = MOST_COMPILED_KERNELS.get(name)
            if most and (size, how) == (8, "compiled") and setting.on_gpu:
                yield at_most(f"{name}, compiled, kernels", measured.num_kernels, most)


def _largest(setting: Setting, name: str) -> Row:
    """Double the utterances until memory ends; return the speed of the largest batch that fits."""
    size, best, speed = UTTERANCES[-1], (0, "none fits"), 0.0
    while size <= 4096:
        gc.collect()
        torch.cuda.empty_cache()
        try:
            measured = Measured(build_encoder(_size_of(setting, name)).train(), setting, size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            break
        best, speed, size = (size, measured.text()), measured.audio_s_per_s, 2 * size
    check = f"{name}, the largest batch that fits, doubled from {UTTERANCES[-1]}: {best[0]} utterances"
    return _row(setting, check, best[1], speed, LEAST_OF_LARGEST.get(name))


def _peak_flops(setting: Setting) -> float:
    """Return the measured rate of products of large matrices, on a GPU in bf16."""
    size, dtype = (8192, torch.bfloat16) if setting.on_gpu else (256, torch.float32)
    a, b = (torch.randn(size, size, device=setting.device, dtype=dtype) for _ in range(2))
    torch.mm(a, b)
    return 2 * size**3 / (1e-3 * median_ms(lambda: torch.mm(a, b), setting.device, 5))
