"""How long a step of each optimizer takes on the parameters of a Zipformer, beside torch's fused AdamW and others."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from bench_encoder import build_ours
from bench_rows import ROWS, UNIT
from bench_rows import Row as Contestant
from bench_steps import Candidate, Stage

from gpu_parts.capture import captured, median_ms, num_kernels
from gpu_parts.setting import Row, Setting, at_most, error_text, lacking, left_out, until_error
from optim import Chain

# how many times fused AdamW an eager step may take, 0: nothing is asked; those of SOAP and PSGDKron are a fifth of what
# they took at 30d78e0; what has been measured least comes first
MOST_RATIOS = {
    **{"icefall_scaled_adam": 0, "ScaledAdam": 4, "icefall_eve": 0, "Eve": 2.5, "SOAP": 70, "PSGDKron": 80},
    **{"heavyball_adamw": 0, "AdamW": 2, "LaProp": 2, "ADOPT": 2, "Lion": 2, "RMSprop": 2, "ScheduleFreeAdamW": 2},
    **{"heavyball_muon_adamw": 0, "torch_muon_adamw": 0, "Muon": 12, "Cain": 5, "LearnedGradient": 0},
    **{"Adafactor": 5, "T5XAdafactor_128": 5, "MaxFactor": 5, "torch_adafactor": 0, "pytorch_optimizer_adafactor": 0},
    **{"SOAP_10": 0, "pytorch_optimizer_soap": 0, "heavyball_psgd_kron": 0, "pytorch_optimizer_kron": 0},
}
OURS, THEIRS, MOST_OF_THEIRS = "ScaledAdam", "icefall_scaled_adam", 1 / 3
NUM_PERIODS, SECONDS = (3, 30), 3.0  # that are timed: at least and at most, and for how long if there may be more


def rows(setting: Setting, size: str) -> Iterator[Row]:
    """Yield a row for each optimizer on the shapes of an encoder of configs/encoder, and how ours is to icefall's."""
    with torch.device("meta"):
        shapes = [(name, tuple(parameter.shape)) for name, parameter in build_ours(size).named_parameters()]
    if setting.small:
        shapes = [(name, tuple(min(dim, 8) for dim in shape)) for name, shape in shapes[:60]]
    stage, by_name = Stage(shapes, setting.device, seed=0), {row.name: row for row in ROWS}
    title, taken_ms = f"{size}, {stage.num_elements / 1e6:.1f} M in {len(stage.params)} tensors", dict[str, float]()
    for contestant in [by_name[chosen] for chosen in (UNIT.name, *MOST_RATIOS)]:
        check, most = f"{title}: {contestant.name}", MOST_RATIOS.get(contestant.name, 0) * setting.on_gpu
        if why := lacking(contestant.module):
            yield left_out(check, why)
            continue
        goal = f"at most {most:g} × {UNIT.name}" if most else "no error" if contestant.module == "optim" else ""
        yield from until_error(check, _timed(contestant, stage, setting, check, most, taken_ms), setting, goal)
    if setting.on_gpu:
        check = f"{title}: time of {OURS}, of {THEIRS}"
        if OURS in taken_ms and THEIRS in taken_ms:
            yield at_most(check, taken_ms[OURS] / taken_ms[THEIRS], MOST_OF_THEIRS)
        else:
            yield left_out(check, "one of them was not measured", f"at most {MOST_OF_THEIRS:.3g}")


def _timed(
    contestant: Contestant, stage: Stage, setting: Setting, check: str, most: float, taken_ms: dict[str, float]
) -> Iterator[Row]:
    """Yield a row of means over the period, and add the milliseconds of an eager step to ``taken_ms``."""
    candidate = Candidate(contestant, stage)
    candidate.warm_up()
    times, begun = list[float](), time.monotonic()
    least, largest = NUM_PERIODS
    while len(times) < least or (len(times) < largest and time.monotonic() < begun + SECONDS):
        times.append(candidate.period_ms())
    taken_ms[contestant.name] = milliseconds = statistics.median(times)
    found = f"{milliseconds:.3g} ms"
    if setting.on_gpu:
        num = 0
        for _ in range(contestant.period):
            stage.refresh()
            num += num_kernels(candidate.step)[0]
        found += f", {num / contestant.period:,.0f} kernels"
    ratio = milliseconds / taken_ms[UNIT.name]
    found += f", {ratio:.2f} × {UNIT.name}"
    if contestant.module == "optim" or contestant is UNIT:
        del candidate
        try:
            found += f"; captured {_captured_ms(contestant, stage, setting):.3g} ms"
        except Exception as error:  # of rules that decide by the count of steps, or of a kernel that cannot be captured
            found += f"; not captured: {error_text(error)}"
    yield Row(check, found, f"at most {most:g} × {UNIT.name}" if most else "", ratio <= most if most else None)


def _captured_ms(contestant: Contestant, stage: Stage, setting: Setting) -> float:
    """Return the milliseconds of a step that a CUDA graph replays, with gradients that stay."""
    takes = {"capturable": True} if contestant is UNIT else {}
    stage.refresh()
    optimizer = Candidate(replace(contestant, options={**contestant.options, **takes}), stage).optimizer
    for member in getattr(optimizer, "optimizers", [optimizer]):
        if isinstance(member, Chain):
            member.make_capturable()
    return median_ms(captured(optimizer.step, setting.device), setting.device, NUM_PERIODS[1])
