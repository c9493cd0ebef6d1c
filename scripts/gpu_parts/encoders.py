"""Audio seconds per second, use of the arithmetic, and memory of encoders, forward and backward, beside their peers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping

import torch
from authors_zipformer import Reference, find_package, load
from bench_encoder import FRAMES_PER_S, LATE, NUM_FEATURES, build_ours, preset
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from asr.error_text import is_out_of_memory
from asr.training.compiled_encoder import compile_layers
from asr.training.cuda_graphs import CapturedForward
from gpu_parts.capture import NUM_WARM_UPS, median_ms, num_kernels
from gpu_parts.setting import Row, Setting, lacking, left_out, until_error

NAMES = {
    "zipformer": ("zipformer_s", "zipformer_m", "zipformer_l"),
    "layered": ("transformer_12x512", "conformer_12x512"),
}
SMALL_NAMES = {"zipformer": ("zipformer_xs",), "layered": ("transformer_xxs", "conformer_xs")}
UTTERANCES, SMALL_UTTERANCES, SECONDS = (8, 32, 96), (1, 2), 10.0
MOST_OF_AUTHORS = 0.7
# Zipformers have been measured least in 16 bits
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32, TF32": torch.float32}


def rows(setting: Setting, family: str) -> Iterator[Row]:
    """Yield a row for each encoder of ``NAMES``, precision and number of utterances."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for precision in ("bf16",) if setting.small else PRECISIONS:
        peak = _peak_flops(setting, PRECISIONS[precision])
        yield Row(f"matrix products, {precision}", f"{peak / 1e12:.3g} TFLOP/s")
        for name in (SMALL_NAMES if setting.small else NAMES)[family]:
            yield from until_error(f"{name}, {precision}", _encoder(setting, name, precision, peak), setting)


class Measured:
    """Time and memory of forward and backward of a batch without padding.

    Args:
        encoder: in training mode.
        setting: of the report.
        precision: of ``PRECISIONS``.
        size: utterances of ``SECONDS``.
    """

    def __init__(self, encoder: nn.Module, setting: Setting, precision: str, size: int) -> None:
        seconds = 2.0 if setting.small else SECONDS
        frames, device, dtype = round(seconds * FRAMES_PER_S), setting.device, PRECISIONS[precision]
        encoder.to(device).zero_grad()
        own = sum(tensor.nbytes for tensor in (*encoder.parameters(), *encoder.buffers()))
        others = torch.cuda.memory_allocated() - own if setting.on_gpu else 0  # other encoders are on the GPU, too
        features = torch.randn(size, frames, NUM_FEATURES, device=device)
        num_frames = torch.full((size,), frames, device=device)

        def step() -> None:
            encoder.zero_grad()
            with torch.autocast(device, dtype, enabled=dtype != torch.float32):
                encodings: Tensor = encoder(features, num_frames)[0]
            encodings.float().square().mean().backward()

        self.step: Callable[[], None] = step
        for _ in range(NUM_WARM_UPS):
            step()
        if setting.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self.ms = median_ms(step, device, 3 if setting.small else 10)
        self.gigabytes = (torch.cuda.max_memory_allocated() - others) / 1e9 if setting.on_gpu else 0.0
        self.audio_s_per_s = 1e3 * size * seconds / self.ms

    def text(self) -> str:
        """Return speed and memory."""
        memory = f", {self.gigabytes:.2f} GB" if self.gigabytes else ""
        return f"{self.audio_s_per_s:,.0f} audio s/s, {self.ms:.3g} ms{memory}"


def _encoder(setting: Setting, name: str, precision: str, peak: float) -> Iterator[Row]:
    """Yield ours with each number of utterances, the authors' package with them, and what ours can do beyond that."""
    encoder, found = build_ours(name).train(), dict[int, Measured]()
    for size in SMALL_UTTERANCES if setting.small else UTTERANCES:
        ours = found[size] = Measured(encoder, setting, precision, size)
        with FlopCounterMode(display=False) as counter:
            ours.step()
        use = counter.get_total_flops() / (1e-3 * ours.ms) / peak
        launches = ""
        if setting.on_gpu:
            kernels, busy = num_kernels(ours.step)
            launches = f", {kernels} kernels that fill {busy:.0%} of the time"
        yield Row(f"{name}, {precision}, {size} utterances", f"{ours.text()}, {use:.1%} of matrix products{launches}")
    if name.startswith("zipformer") and precision != "fp16":
        goal = f"at most {MOST_OF_AUTHORS:g} of time and memory" if setting.on_gpu else ""
        check = f"{name}, {precision}, authors' package"
        yield from until_error(check, _authors(setting, name, precision, found, check, goal), setting, goal)
    if precision == "bf16" and not setting.small:  # the compiler takes minutes on a CPU
        for what in ("trainer.capture=true", "trainer.compile=true", "both"):
            if what == "trainer.compile=true":
                compile_layers(encoder)
            check = f"{name}, bf16, {what}"
            yield from until_error(check, _sped_up(setting, encoder, check), setting, "")
    if precision == "bf16" and setting.on_gpu:
        yield _largest(setting, name)


def _sped_up(setting: Setting, encoder: nn.Module, check: str) -> Iterator[Row]:
    if "compile" not in check:
        vars(encoder)["forward"] = CapturedForward(encoder)
    for size in UTTERANCES:
        yield Row(f"{check}, {size} utterances", Measured(encoder, setting, "bf16", size).text())
    vars(encoder).pop("forward", None)


def _largest(setting: Setting, name: str) -> Row:
    """Double the utterances until memory ends; return the speed of the largest batch that fits."""
    size, best = UTTERANCES[-1], (0, "none fits")
    while size <= 4096:
        gc.collect()
        torch.cuda.empty_cache()
        try:
            best = size, Measured(build_ours(name).train(), setting, "bf16", size).text()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            break
        size *= 2
    gc.collect()
    torch.cuda.empty_cache()
    return Row(
        f"{name}, bf16, the largest batch that fits, doubled from {UTTERANCES[-1]}: {best[0]} utterances", best[1]
    )


def _authors(
    setting: Setting, name: str, precision: str, ours: Mapping[int, Measured], check: str, goal: str
) -> Iterator[Row]:
    if why := lacking("zipformer"):
        yield left_out(check, why, goal)
        return
    theirs = Reference(load(find_package(setting.work), compiled=setting.on_gpu), preset(name), causal=False)
    theirs.train().set_time(LATE)
    for size, our in ours.items():
        found = Measured(theirs, setting, precision, size)
        time, memory = our.ms / found.ms, our.gigabytes / found.gigabytes if found.gigabytes else 0.0
        value = f"{found.text()}; ours takes {time:.2f} of its time, {memory:.2f} of its memory"
        met = max(time, memory) <= MOST_OF_AUTHORS if goal else None
        yield Row(f"{check}, {size} utterances", value, goal, met)


def _peak_flops(setting: Setting, dtype: torch.dtype) -> float:
    """Return the measured rate of products of large matrices."""
    size = 256 if setting.small else 8192
    a, b = (torch.randn(size, size, device=setting.device, dtype=dtype) for _ in range(2))
    torch.mm(a, b)
    return 2 * size**3 / (1e-3 * median_ms(lambda: torch.mm(a, b), setting.device, 5))
