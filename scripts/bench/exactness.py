"""Whether runs are repeated and resumed exactly, in what precision, and whether what find_batch_size proposes fits."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench import runs
from bench.measure import Row, Setting, holds, lacking, left_out, until_error

INTERVAL, CAPTURED_INTERVAL = 4, 20  # a third of a run; graphs are for shapes that come again
LEFT_BYTES = 4 * 2**30
DETERMINISTIC, CAPTURED = "trainer.deterministic=true", "trainer.cuda_graphs=true"
PROPOSED = re.compile(r"proposed: data\.batch\.max_duration_s=(\S+)")


def rows(setting: Setting, what: str) -> Iterator[Row]:
    """Yield the checks of a precision, ``bf16`` or ``fp32``, or of ``find_batch_size``."""
    if why := lacking("espeakng_loader"):
        yield left_out("everything: the corpus is spoken on the spot", why, runs.SAME)
        return
    words = (*(runs.TINY if setting.small else ()), setting.trainer, "data.batch.max_duration_s=10")
    if what == "find_batch_size":
        yield from until_error("find_batch_size", _batch_size(setting, (*words, *_length(INTERVAL))), setting)
        return
    precision = {"bf16": "bf16-mixed", "fp32": "32-true"}[what]
    # a GPU that is not told to be deterministic need not be exact
    kinds = {"": (), ", deterministic": (DETERMINISTIC,), ", deterministic, captured": (DETERMINISTIC, CAPTURED)}
    for kind, told in kinds.items() if setting.on_gpu else [("", ())]:
        interval = CAPTURED_INTERVAL if CAPTURED in told else INTERVAL
        options = (*words, *_length(interval), f"trainer.precision={precision}", *told)
        title, exact = f"{precision}{kind}", bool(told) or not setting.on_gpu
        yield from until_error(title, _repeated(setting, options, title, interval, exact), setting)


def _length(interval: int) -> tuple[str, ...]:
    return (
        f"trainer.max_steps={3 * interval}",
        f"trainer.val_check_interval={interval}",
        "trainer.log_every_n_steps=1",
    )


def _repeated(setting: Setting, words: tuple[str, ...], title: str, interval: int, exact: bool) -> Iterator[Row]:
    name = re.sub(r"\W+", "-", title)
    runs.train(setting.work, *words, f"run_dir={name}-whole")
    whole = runs.last_checkpoint(setting.work / f"{name}-whole")
    runs.train(setting.work, *words, f"run_dir={name}-again")
    yield _compared(f"{title}: the same seed twice", whole, runs.last_checkpoint(setting.work / f"{name}-again"), exact)
    _kill(setting.work, interval + 1, *words, f"run_dir={name}-killed")
    runs.train(setting.work, f"resume={name}-killed")
    killed = runs.last_checkpoint(setting.work / f"{name}-killed")
    yield _compared(f"{title}: SIGKILL, and resumed", whole, killed, exact)
    types = {str(value.dtype) for value in whole["state_dict"].values() if value.is_floating_point()}
    yield holds(f"{title}: weights in the checkpoint", types == {"torch.float32"}, ", ".join(types), "32 bits")


def _compared(check: str, first: dict[str, Any], second: dict[str, Any], exact: bool) -> Row:
    same = all(runs.equal(first[key], second[key]) for key in runs.COMPARED)
    floats = [{k: v for k, v in one["state_dict"].items() if v.is_floating_point()} for one in (first, second)]
    value = runs.SAME if same else f"weights differ by {runs.largest_difference(*floats):.1e} of the largest"
    return holds(check, same, value, runs.SAME) if exact else Row(check, value)


def _kill(folder: Path, update: int, *words: str) -> None:
    """Start a run, and kill all its processes after an update, which no checkpoint holds."""
    process = runs.start(folder, *words, "logger=csv")
    run_dir = folder / words[-1].partition("=")[2]
    while process.poll() is None and runs.num_logged(run_dir) < update:
        time.sleep(0.002)
    if process.poll() not in (None, 0):
        raise runs.RunEnded(runs.log_end(folder))
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _batch_size(setting: Setting, words: tuple[str, ...]) -> Iterator[Row]:
    """Yield the proposal, a run with it, and one with a tenth more."""
    if not setting.on_gpu:
        yield left_out("find_batch_size", "a CPU has no memory of its own", "")
        return
    # a corpus of an hour would not fill the memory: most of it is taken, and the model is large
    ballast, words = _most_of_memory(), (*words, "encoder=transformer_m")
    runs.train(setting.work, *words, "find_batch_size=true")
    match = PROPOSED.search((setting.work / "log.txt").read_text(encoding="utf-8", errors="replace"))
    if match is None:
        yield left_out("find_batch_size", "not one utterance fits", "fits")
        return
    proposed_s = float(match[1])
    yield Row("find_batch_size proposes", f"{proposed_s:g} s of audio in a micro-batch")
    for name, size in (("the proposal", proposed_s), ("a tenth more", 1.1 * proposed_s)):
        check, goal = f"two updates with {name}, {size:.0f} s", "fits" if size == proposed_s else "fits, or is named"
        run_dir = f"fits-{size:.0f}"
        options = (f"data.batch.max_duration_s={size:g}", "trainer.max_steps=2", "trainer.val_check_interval=2")
        try:
            runs.train(setting.work, *words, *options, f"run_dir={run_dir}")
        except runs.RunEnded as error:
            is_named = "utterances" in str(error) and "memory" in str(error)
            yield Row(check, str(error)[-200:], goal, met=is_named and size != proposed_s)
            continue
        summary = json.loads((setting.work / run_dir / "report" / "summary.json").read_text(encoding="utf-8"))
        spoken_s = 3600 * float(summary["data_splits"]["train"]["hours"])
        if size > spoken_s:
            yield left_out(check, f"the corpus has {spoken_s:.0f} s", goal)
        else:
            yield holds(check, True, "fits", goal)
    del ballast


def _most_of_memory() -> Tensor:
    """Take all memory of the GPU but ``LEFT_BYTES``."""
    free, _ = torch.cuda.mem_get_info()
    return torch.empty(max(0, free - LEFT_BYTES), dtype=torch.uint8, device="cuda")
