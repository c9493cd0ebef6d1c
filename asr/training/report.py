"""From a trained recognizer to its error rates, and to the files of ``report/``."""

from __future__ import annotations

import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asr.data.preparation.prepared import PreparedData
from asr.decoding.greedy import Decoder
from asr.decoding.scorers import ShallowFusion
from asr.inference.evaluate import Evaluated, evaluate_sets
from asr.run.options import RunOptions
from asr.runs.files import run_settings
from asr.training.callbacks.measurements import log_samples
from asr.training.checkpoints import (
    LoadedCheckpoint,
    checkpoint_file,
    choose_weights,
    explaining_failed_writes,
    load_checkpoint,
    load_weights,
    why_missing,
)
from asr.training.module import TrainingModule
from asr.training.run_page import RunPage, augmented_features, run_facts, token_alignments, write_run_page
from asr.training.speech_data_module import SpeechDataModule
from werdict.console import console
from werdict.error_files import headline, summary
from werdict.errors import RunFailed
from werdict.files import at, write_whole
from werdict.formatting import percent
from werdict.scoring import RATE_NAMES, UNIT_NOTES

# names of the results in wandb, by those of summary.json
TRACKED = {
    **{"wer": "wer", "wer_low": "wer_lo", "wer_high": "wer_hi", "cer": "cer"},
    **{name: name for name in ("substitutions", "deletions", "insertions")},
}

PACKAGES = (
    *("werdict", "torch", "lightning", "lhotse", "hydra-core", "sentencepiece", "jiwer", "wandb"),
    *("transformers", "peft"),  # of the extra pretrained
)


def report_run(
    module: TrainingModule,
    data: SpeechDataModule,
    run_dir: Path,
    loggers: Sequence[Any],
    training: Mapping[str, float],
    cost: Mapping[str, float | int | None],
    options: RunOptions,
    recipe: str,
    notes: Sequence[str] = (),
    difference: Mapping[str, tuple[str, str]] | None = None,
    search: Callable[[], tuple[Decoder, str]] | None = None,
) -> None:
    """Decode the test sets, and write ``decode/`` and ``report/``.

    The first of ``decode`` in the config gives the result. What the others give goes to ``decode/<name>/``, and to
    ``other_weights`` of the summary.

    Args:
        module: the trained module.
        data: of the run.
        run_dir: folder of the run.
        loggers: get final numbers and sample texts.
        training: wall-clock and CPU seconds of this process; ``resumed_after``, an update, if the run was resumed.
        cost: what `TrainingCost` has measured since the start of the run.
        options: of the run.
        recipe: its name.
        notes: about the run, such as an early stop.
        difference: of the config from its recipe, by key, for the page of the run.
        search: returns the decoder of the result, and a note on it; called with the weights of the result. What the
            decoder of validation gives goes to ``decode/without_lm/``. None: the decoder of validation alone.

    Raises:
        RunFailed: a file cannot be written, or, after all is written, no utterance of a test set could be read.
    """
    watch, prepared = Stopwatch(), data.prepared
    with explaining_failed_writes(run_dir):
        first, *others = options.decode
        best, missing = _checkpoint(run_dir, first, options.weights)
        notes = [*prepared.notes, *notes]
        if missing:
            notes.append(_warned(f"{missing}. Decoded with its raw weights instead"))
        notes += UNIT_NOTES[module.unit]
        tested = prepared.names("test") if options.decode_test else ()
        cuts = {name: prepared.cuts(name) for name in (*tested, *module.scores)}
        decoding = _Decoding(module, data, {name: cuts[name] for name in tested}, notes, run_dir)
        outcome = run_settings(options.plain())
        if search is not None and tested:
            outcome["without_lm"] = decoding.without_lm(best, search)
        results = decoding(best)
        for name, result in results.items():
            log_samples(loggers, f"test/{name}", result.score, best.update, cuts[name])
        for name, score in module.scores.items():  # of the last validation, this time with audio
            log_samples(loggers, f"val/{name}", score, module.trainer.global_step, cuts[name])
        examples = augmented_features(module.recognizer, data), token_alignments(module.recognizer, data)
        # since the start of the run, as far as they were measured
        minutes = round((cost.get("training_seconds") or training["seconds"]) / 60, 2)
        test = _numbers(results)
        _log_summary(loggers, {**_tracked(test), "num_parameters": _size(module), "minutes": minutes})
        for logger in loggers:
            if hasattr(logger, "log_checkpoint"):
                logger.log_checkpoint(best.path, best.update)
        outcome |= {"test": test, "notes": notes, **_origin(best), "weights_asked_for": options.weights}
        if other := decoding.others(others if tested else (), options.weights, loggers):
            outcome["other_weights"] = other
        outcome |= {"training": dict(training), "cost": dict(cost), "evaluation": watch.read()}
        _write(run_dir, module, prepared, outcome)
        scores = {name: result.score for name, result in results.items()} or module.scores
        lines = _headlines(module, results, best, options, outcome.get("without_lm", {}))
        facts = run_facts(run_dir, options, recipe, module, prepared.splits, minutes, provenance())
        write_run_page(RunPage(run_dir, lines, facts, notes, scores, cuts, *examples, difference or {}))
        _print_places(run_dir, best.path, training, minutes, decoded=bool(results))
    if decoding.failures:
        raise RunFailed(decoding.failures[0])


class _Decoding:
    """Decodes the test sets with the weights of a checkpoint; collects what failed.

    Notes that were shown with the table of the data are only written.
    """

    def __init__(
        self, module: TrainingModule, data: SpeechDataModule, sets: Mapping[str, Any], notes: list[str], run_dir: Path
    ) -> None:
        self.module, self.data, self.sets, self.notes, self.run_dir = module, data, sets, notes, run_dir
        self.decoder = module.decoder
        self.failures: list[str] = []

    def __call__(self, checkpoint: LoadedCheckpoint, name: str = "") -> dict[str, Evaluated]:
        """Decode to a folder below ``decode/``."""
        recognizer = self.module.recognizer
        load_weights(recognizer, checkpoint.weights)  # instead of the weights of the last update
        read = self.decoder.notes if isinstance(self.decoder, ShallowFusion) else []
        notes = [*self.notes, *read, checkpoint.decoding_note()]
        parts = recognizer, self.decoder, self.data.loaders, self.sets, notes, self.run_dir / "decode" / name
        results, failures = evaluate_sets(*parts, shown=self.data.prepared.notes)
        self.failures += failures
        return results

    def without_lm(self, checkpoint: LoadedCheckpoint, search: Callable[[], tuple[Decoder, str]]) -> dict[str, Any]:
        """Decode with the decoder of validation, and replace it by that of the result."""
        console.print("without a language model:")
        numbers = _numbers(self(checkpoint, "without_lm"))
        self.decoder, note = search()
        self.notes.append(note)
        console.print("with the language model of the transcripts:")
        return numbers

    def others(self, names: Sequence[str], weights: str, loggers: Sequence[Any]) -> dict[str, dict[str, Any]]:
        """Decode with other checkpoints, and log their numbers."""
        decoded = {}
        for name in names:
            checkpoint, missing = _checkpoint(self.run_dir, name, weights)
            if missing:
                self.notes.append(_warned(f"{missing}. Left out: decode={name}"))
                continue
            console.print(f"with decode={name}:")
            numbers = _numbers(self(checkpoint, name))
            _log_summary(loggers, _tracked(numbers, f"{name}/"))
            decoded[name] = {"test": numbers, **_origin(checkpoint)}
        return decoded


def _write(run_dir: Path, module: TrainingModule, prepared: PreparedData, outcome: Mapping[str, Any]) -> None:
    """Write ``report/summary.json``."""
    data = {"num_parameters": _size(module), "data": prepared.fingerprint, "data_splits": prepared.splits}
    if origin := getattr(module.recognizer.encoder, "origin", None):
        data["pretrained"] = origin
    data["noise"] = at(module.extra_state, "data", "noise")
    text = json.dumps({**outcome, **data, **peak_memory_mb(), **provenance()}, indent=1, ensure_ascii=False)
    (run_dir / "report").mkdir(exist_ok=True)
    write_whole(run_dir / "report" / "summary.json", text)


def _size(module: TrainingModule) -> int:
    return sum(p.numel() for p in module.recognizer.parameters())


def _headlines(
    module: TrainingModule,
    results: Mapping[str, Evaluated],
    best: LoadedCheckpoint,
    options: RunOptions,
    without_lm: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """Return lines about the test sets, else about the development sets, and about the weights."""
    with_lm = ", with a language model" if without_lm or at(options.plain(), "decoder", "lm") is not None else ""
    tested = []
    for name, result in results.items():
        tested.append(f"{name}{with_lm}: {headline(result.score, result.interval)}")
        if name in without_lm:
            rate = f"{RATE_NAMES[module.unit]} {percent(without_lm[name]['wer'])} %"
            tested.append(f"{name}, without it: {rate} ({type(module.decoder).__name__})")
    scores = module.scores.items()
    on_dev = [f"{name}: {score.rate_name} {percent(score.wer)} % in the last validation" for name, score in scores]
    return [
        *(tested or on_dev),
        f"weights: {best.described}, of {best.path.name} after update {best.update}",
    ]


def _checkpoint(run_dir: Path, which: str, weights: str) -> tuple[LoadedCheckpoint, str]:
    """Return a checkpoint with the weights asked for, else with raw weights and the reason.

    The best checkpoint of a run may be older than the resumption that added averaging.
    """
    name = "" if which == "best" else "checkpoints/last.ckpt"
    checkpoint = load_checkpoint(checkpoint_file(str(run_dir / name)))
    kind = "average" if which == "average" else weights
    missing = why_missing(checkpoint, kind)
    if not missing:
        return choose_weights(checkpoint, kind), ""
    option = "decode=[average]" if which == "average" else f"weights={kind}"
    description = f"{checkpoint.path.name} of update {checkpoint.update}"
    return checkpoint, f"{option} was asked for, but {description} has none: {missing}"


def _warned(note: str) -> str:
    console.print(f"WARNING: {note}", soft_wrap=True, style="bold red")
    return note


def _numbers(results: Mapping[str, Evaluated]) -> dict[str, dict[str, Any]]:
    return {
        name: {**summary(result.score, result.interval), "real_time_factor": result.real_time_factor}
        for name, result in results.items()
    }


def _origin(checkpoint: LoadedCheckpoint) -> dict[str, Any]:
    """Return where weights come from."""
    return {
        "checkpoint": checkpoint.path.name,
        "checkpoint_update": checkpoint.update,
        "weights": checkpoint.described,
    }


def _tracked(test: Mapping[str, Mapping[str, Any]], prefix: str = "") -> dict[str, float]:
    return {
        f"{prefix}test/{name}/{short}": result[key]
        for name, result in test.items()
        for key, short in TRACKED.items()
        if result[key] is not None
    }


def _log_summary(loggers: Sequence[Any], numbers: Mapping[str, float]) -> None:
    """Send final numbers to those loggers that take them."""
    for logger in loggers:
        if hasattr(logger, "log_summary"):
            logger.log_summary(numbers)


def _print_places(
    run_dir: Path, checkpoint: Path, training: Mapping[str, float], minutes: float, decoded: bool
) -> None:
    cpu_minutes = training["cpu_seconds"] / 60
    since = f" since it was resumed after update {training['resumed_after']}" if "resumed_after" in training else ""
    for line in (
        f"trained in {minutes:g} minutes ({cpu_minutes:.1f} CPU minutes{since})",
        f"report:      {run_dir / 'report' / 'report.html'}",
        f"hypotheses:  {run_dir / 'decode' if decoded else 'none, no test set was decoded'}",
        f"checkpoint:  {checkpoint}",
    ):
        console.print_line(line)


class Stopwatch:
    """Wall-clock and CPU seconds since its construction, of this process and its finished children."""

    def __init__(self) -> None:
        self.start = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.monotonic(), sum(os.times()[:4])

    def read(self) -> dict[str, float]:
        """Return ``seconds`` and ``cpu_seconds``."""
        passed = (value - start for value, start in zip(self._now(), self.start, strict=True))
        return {name: round(seconds, 1) for name, seconds in zip(("seconds", "cpu_seconds"), passed, strict=True)}


def peak_memory_mb() -> dict[str, float]:
    """Return the largest resident memory so far, and on a GPU the largest allocation."""
    memory = {"peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}  # KiB on Linux
    if torch.cuda.is_available():
        memory["peak_gpu_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return memory


def provenance() -> dict[str, Any]:
    """Return what produced a result: versions, machine, command line, git commit."""
    # a run whose logger is not wandb does not need it installed; the first that Python finds is the one that it imports
    installed = {name: [distribution.version for distribution in distributions(name=name)] for name in PACKAGES}
    return {
        "python": platform.python_version(),
        "versions": {name: versions[0] for name, versions in installed.items() if versions},
        "machine": platform.processor() or platform.machine(),
        "command": sys.argv,
        "commit": _commit(),
        "date": datetime.datetime.now().astimezone().isoformat(" ", "seconds"),
    }


def _commit() -> str | None:
    """Return the commit of this source tree, with ``-dirty`` if files were changed; None outside a checkout."""
    folder = Path(__file__).resolve().parent
    # --exclude=*: the commit, even if it has a tag
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def start_lines(
    recognizer: nn.Module, options: RunOptions, run_dir: Path, checkpoint: LoadedCheckpoint | None
) -> list[str]:
    """Return the lines printed when training starts: model size, budget, run folder and checkpoint."""
    num_parameters = sum(p.numel() for p in recognizer.parameters())
    num_frozen = sum(p.numel() for p in recognizer.parameters() if not p.requires_grad)
    frozen = f", {num_frozen:,} of them frozen" if num_frozen else ""
    lines = [f"{num_parameters:,} parameters{frozen}, {options.trainer.max_steps} updates, run folder {run_dir}"]
    if checkpoint is not None:
        lines += [f"left out: {problem}" for problem in checkpoint.rejected]
        lines.append(f"resuming from update {checkpoint.update}: {checkpoint.path}")
    elif options.resume is not None:
        lines.append("the run has no checkpoint yet: it starts again")
    return lines
