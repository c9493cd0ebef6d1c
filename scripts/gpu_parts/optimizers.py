"""How long a step of each optimizer takes on the parameters of Zipformers, beside torch's fused AdamW and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from bench_encoder import build_ours
from bench_rows import ROWS, UNIT
from bench_rows import Row as Contestant
from bench_steps import Candidate, Stage

from gpu_parts.capture import captured, make_capturable, median_ms, num_kernels
from gpu_parts.encoders import SECONDS, UTTERANCES, Measured
from gpu_parts.setting import Row, Setting, lacking, left_out, too_late

SIZES = ("zipformer_s", "zipformer_m", "zipformer_l")
OURS_WITH_GOAL = ("Eve", "ScaledAdam", "Adafactor", "MaxFactor", "Cain")
OURS = (*OURS_WITH_GOAL, "AdamW", "Muon", "T5XAdafactor_128")
PEERS = ("torch_adafactor", "torch_muon_adamw", "heavyball_adamw", "pytorch_optimizer_adafactor")
COMPILED = ("AdamW",)  # the first step takes minutes
MOST_RATIO = 3.0  # to fused AdamW, both captured
TRAINED, MOST_SHARE = "zipformer_m", 0.03  # of an update of it
FORMS = ("eager", "captured", "compiled")
TAKES_CAPTURABLE = (("torch.optim", "AdamW"), ("optim", "AdamW"))
BYTES_OF_ADAM = 28  # for each parameter: reads of it, its gradient and two moments, writes of all but the gradient


def rows(setting: Setting) -> Iterator[Row]:
    """Yield a row for each optimizer, size and form."""
    steps = 3 if setting.small else 30
    for size in SIZES[:1] if setting.small else SIZES:
        stage = Stage(_few(_shapes(size)) if setting.small else _shapes(size), setting.device, seed=0)
        units = {form: _measured(UNIT, stage, setting, form, steps) for form in FORMS[:2]}
        bound_ms = 1e3 * BYTES_OF_ADAM * stage.num_elements / _bandwidth(setting)
        title = f"{size}, {stage.num_elements / 1e6:.1f} M in {len(stage.params)} tensors"
        for form, found in units.items():
            yield Row(f"{title}: {UNIT.name}, {form}", f"{found[0]}; a copy of its bytes takes {bound_ms:.3g} ms")
        taken_ms: dict[str, float] = {}
        for contestant in [row for row in ROWS if row.name in (*OURS, *PEERS)]:
            if why := lacking(contestant.module):
                yield left_out(f"{title}: {contestant.name}", why)
                continue
            for form in FORMS:
                if form == "compiled" and (contestant.name not in COMPILED or size != SIZES[0] or setting.small):
                    continue
                row, milliseconds = _row(contestant, stage, setting, form, steps, title, units)
                yield row
                if form == "captured" and milliseconds is not None:
                    taken_ms[contestant.name] = milliseconds
        if size == TRAINED or setting.small:
            yield from _shares(setting, size, taken_ms)


def _row(
    contestant: Contestant,
    stage: Stage,
    setting: Setting,
    form: str,
    steps: int,
    title: str,
    units: Mapping[str, tuple[str, float]],
) -> tuple[Row, float | None]:
    """Return a row and the milliseconds of a step, or None where they were not measured."""
    check = f"{title}: {contestant.name}, {form}"
    asked = form == "captured" and contestant.name in OURS_WITH_GOAL and setting.on_gpu
    goal = f"at most {MOST_RATIO:g} × {UNIT.name}" if asked else ""
    if setting.is_late():
        return too_late(check, goal or "measured"), None
    try:
        text, milliseconds = _measured(contestant, stage, setting, form, steps)
    except (ValueError, RuntimeError, TypeError) as error:
        return left_out(check, f"{type(error).__name__}: {str(error).splitlines()[0][:160]}", goal), None
    ratio = milliseconds / units["captured" if form == "compiled" else form][1]
    return Row(check, f"{text}, {ratio:.2f} × {UNIT.name}", goal, ratio <= MOST_RATIO if goal else None), milliseconds


def _shares(setting: Setting, size: str, taken_ms: Mapping[str, float]) -> Iterator[Row]:
    """Yield what share of an update each optimizer takes: of forward, backward and step of the smallest usual batch."""
    goal = f"at most {MOST_SHARE:.0%}" if setting.on_gpu else ""
    num_utterances = 2 if setting.small else UTTERANCES
    batch = f"{size}, bf16, {num_utterances} × {2 if setting.small else SECONDS:g} s"
    if setting.is_late():
        yield too_late(f"{batch}: share of the optimizer", goal or "measured")
        return
    others_ms = Measured(build_ours(size).train(), setting, torch.bfloat16, num_utterances).ms
    for name in OURS_WITH_GOAL:
        check = f"{batch}: share of {name}"
        if name not in taken_ms:
            yield left_out(check, "its step was not measured", goal)
            continue
        share = taken_ms[name] / (taken_ms[name] + others_ms)
        yield Row(check, f"{share:.1%} of an update", goal, share <= MOST_SHARE if goal else None)


def _measured(contestant: Contestant, stage: Stage, setting: Setting, form: str, steps: int) -> tuple[str, float]:
    options: dict[str, Any] = dict(contestant.options)
    if form != "eager" and (contestant.module, contestant.optimizer) in TAKES_CAPTURABLE:
        options["capturable"] = True
    if form == "compiled":
        options["compile_mode"] = "default"
    stage.refresh()
    candidate = Candidate(replace(contestant, options=options), stage, compiled=False)
    if form == "captured" and contestant.module == "optim" and contestant.optimizer not in ("AdamW", "Muon"):
        try:
            make_capturable(candidate.optimizer)
        except ValueError:  # it decides by the count of steps: eager steps are held to the same goal
            text, milliseconds = _measured(contestant, stage, setting, "eager", steps)
            return f"{text}, eager as it cannot be captured", milliseconds
    step: Callable[[], Any] = candidate.optimizer.step
    step = captured(step, setting.device) if form == "captured" else step
    for _ in range(max(3, contestant.period)):
        step()
    milliseconds = median_ms(step, setting.device, steps * contestant.period)
    kernels = f", {num_kernels(step)[0]} kernels" if setting.on_gpu else ""
    return f"{milliseconds:.3g} ms{kernels}", milliseconds


def _shapes(size: str) -> list[tuple[str, Sequence[int]]]:
    """Return names and shapes of the parameters of an encoder."""
    with torch.device("meta"):
        return [(name, tuple(parameter.shape)) for name, parameter in build_ours(size).named_parameters()]


def _few(shapes: list[tuple[str, Sequence[int]]]) -> list[tuple[str, Sequence[int]]]:
    return shapes[:60]


def _bandwidth(setting: Setting) -> float:
    """Return bytes per second that a copy reads and writes."""
    source = torch.zeros(2**20 if setting.small else 2**28, device=setting.device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * 4 * source.numel() / (1e-3 * median_ms(lambda: target.copy_(source), setting.device, 10))
