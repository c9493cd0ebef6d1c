"""Audio seconds per second, use of the arithmetic, and memory of encoders, forward and backward, beside their peers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from authors_zipformer import Reference, find_package, load
from bench_encoder import FRAMES_PER_S, LATE, NUM_FEATURES, build_ours, preset
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from asr.error_text import is_out_of_memory
from asr.models.encoders.layered import LayeredEncoder
from asr.training.compiled_encoder import check_compiler, compile_layers
from gpu_parts.capture import median_ms, num_kernels
from gpu_parts.setting import Row, Setting, lacking, left_out, until_error

NAMES = ("transformer_12x512", "conformer_12x512", "zipformer_s", "zipformer_m", "zipformer_l")
SMALL_NAMES = ("transformer_xxs", "conformer_xs", "zipformer_xs")
UTTERANCES, SECONDS = 8, 10.0
MOST_OF_AUTHORS = 0.7
PRECISIONS = {"fp32, TF32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def rows(setting: Setting) -> Iterator[Row]:
    """Yield a row for each encoder and precision."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    precisions = {"bf16": torch.bfloat16} if setting.small else PRECISIONS
    peaks = {name: _peak_flops(setting, dtype) for name, dtype in precisions.items()}
    for name, peak in peaks.items():
        yield Row(f"matrix products, {name}", f"{peak / 1e12:.3g} TFLOP/s")
    for name in SMALL_NAMES if setting.small else NAMES:
        for precision, dtype in precisions.items():
            measured = _ours(setting, name, precision, dtype, peaks[precision])
            yield from until_error(f"{name}, {precision}", measured, setting)
    if why := lacking("torchaudio"):
        yield left_out("torchaudio's Conformer", why)
    else:
        yield _torchaudio(setting, "bf16")


class Measured:
    """Time and memory of forward and backward of a batch without padding.

    Args:
        encoder: in training mode.
        setting: of the report.
        dtype: of autocast; float32: none.
        size: utterances of ``SECONDS``.
    """

    def __init__(self, encoder: nn.Module, setting: Setting, dtype: torch.dtype, size: int) -> None:
        seconds = 2.0 if setting.small else SECONDS
        frames, device = round(seconds * FRAMES_PER_S), setting.device
        features = torch.randn(size, frames, NUM_FEATURES, device=device)
        num_frames = torch.full((size,), frames, device=device)
        encoder.to(device)

        def step() -> None:
            encoder.zero_grad()
            with torch.autocast(device, dtype, enabled=dtype != torch.float32):
                encodings: Tensor = encoder(features, num_frames)[0]
            encodings.float().square().mean().backward()

        self.step: Callable[[], None] = step
        for _ in range(2):
            step()
        if setting.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self.ms = median_ms(step, device, 3 if setting.small else 10)
        self.gigabytes = torch.cuda.max_memory_allocated() / 1e9 if setting.on_gpu else 0.0
        self.audio_s_per_s = 1e3 * size * seconds / self.ms

    def text(self) -> str:
        """Return speed and memory."""
        memory = f", {self.gigabytes:.2f} GB" if self.gigabytes else ""
        return f"{self.audio_s_per_s:,.0f} audio s/s, {self.ms:.3g} ms{memory}"


def _ours(setting: Setting, name: str, precision: str, dtype: torch.dtype, peak: float) -> Iterator[Row]:
    size = 2 if setting.small else UTTERANCES
    encoder = build_ours(name).train()
    found = Measured(encoder, setting, dtype, size)
    with FlopCounterMode(display=False) as counter:
        found.step()
    use = counter.get_total_flops() / (1e-3 * found.ms) / peak
    launches = ""
    if setting.on_gpu:
        kernels, busy = num_kernels(found.step)
        launches = f", {kernels} kernels that fill {busy:.0%} of the time"
    yield Row(f"{name}, {precision}, {size} utterances", f"{found.text()}, {use:.1%} of matrix products{launches}")
    if setting.on_gpu and precision == "bf16":
        yield _largest(setting, name, dtype)
    if name.startswith("zipformer") and precision != "fp16":
        yield _beside_authors(setting, name, precision, dtype, size, found)
    elif isinstance(encoder, LayeredEncoder) and precision == "bf16":
        yield _compiled(setting, encoder, name, dtype, size)


def _compiled(setting: Setting, encoder: LayeredEncoder, name: str, dtype: torch.dtype, size: int) -> Row:
    check = f"{name}, bf16, {size} utterances, trainer.compile=true"
    if setting.small:
        return left_out(check, "the compiler takes minutes on a CPU")
    try:
        check_compiler(on_cpu=not setting.on_gpu)
        compile_layers(encoder)
        return Row(check, Measured(encoder, setting, dtype, size).text())
    except Exception as error:  # each of the compilers has errors of its own
        return left_out(check, f"{type(error).__name__}: {str(error).splitlines()[0][:160]}")


def _largest(setting: Setting, name: str, dtype: torch.dtype) -> Row:
    """Double the utterances until memory ends; return the speed of the largest batch that fits."""
    size, best = UTTERANCES, None
    while size <= 4096:
        gc.collect()
        torch.cuda.empty_cache()
        try:
            best = size, Measured(build_ours(name).train(), setting, dtype, size).text()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            break
        size *= 2
    gc.collect()
    torch.cuda.empty_cache()
    number, text = best or (0, "none fits")
    return Row(f"{name}, bf16, the largest power of two that fits: {number} utterances", text)


def _beside_authors(setting: Setting, name: str, precision: str, dtype: torch.dtype, size: int, ours: Measured) -> Row:
    check = f"{name}, {precision}, {size} utterances, authors' package"
    goal = f"at most {MOST_OF_AUTHORS:g} of time and memory" if setting.on_gpu else ""
    if why := lacking("zipformer"):
        return left_out(check, why, goal)
    theirs = Reference(load(find_package(Path(setting.work)), compiled=setting.on_gpu), preset(name), causal=False)
    theirs.train().set_time(LATE)
    found = Measured(theirs, setting, dtype, size)
    time, memory = ours.ms / found.ms, ours.gigabytes / found.gigabytes if found.gigabytes else 0.0
    value = f"{found.text()}; ours takes {time:.2f} of its time, {memory:.2f} of its memory"
    return Row(check, value, goal, max(time, memory) <= MOST_OF_AUTHORS if goal else None)


def _torchaudio(setting: Setting, precision: str) -> Row:
    from torchaudio.models import Conformer

    class Joined(nn.Module):
        """Their layers after the same reduction of frames, of the width of ours."""

        def __init__(self, options: dict[str, Any]) -> None:
            super().__init__()
            width = options["d_model"]
            sizes = options["num_heads"], options["d_feedforward"], options["num_layers"], options["kernel_width"]
            self.join, self.layers = nn.Linear(4 * NUM_FEATURES, width), Conformer(width, *sizes, dropout=0.1)

        def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
            few = features[:, : features.shape[1] // 4 * 4].reshape(len(features), -1, 4 * NUM_FEATURES)
            return self.layers(self.join(few), num_frames // 4)

    name = "conformer_xs" if setting.small else "conformer_12x512"
    options = {"kernel_width": 31, **preset(name)}
    found = Measured(Joined(options).train(), setting, PRECISIONS[precision], 2 if setting.small else UTTERANCES)
    return Row(f"torchaudio's Conformer of the size of {name}, {precision}", found.text())


def _peak_flops(setting: Setting, dtype: torch.dtype) -> float:
    """Return the measured rate of products of large matrices."""
    size = 256 if setting.small else 8192
    a, b = (torch.randn(size, size, device=setting.device, dtype=dtype) for _ in range(2))
    torch.mm(a, b)
    return 2 * size**3 / (1e-3 * median_ms(lambda: torch.mm(a, b), setting.device, 5))
