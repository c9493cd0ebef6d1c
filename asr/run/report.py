"""Report of a run: decodes the test sets, writes ``report/``, and says what produced a result."""

from __future__ import annotations

import datetime
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from torch import nn

from asr.commit import source_commit
from asr.decoding.beam import ShallowFusion
from asr.decoding.greedy import Decoder
from asr.inference.evaluate import AFTER_TRAINING, Evaluated, evaluate_sets
from asr.run.build import Run
from asr.run.compose import difference_from_recipe, recipe_of
from asr.run.folder import backup_existing
from asr.run.options import RunOptions
from asr.runs.files import SUMMARY, run_settings
from asr.training import checkpoints
from asr.training.callbacks.measurements import cpu_seconds, log_samples, measured_cost, peak_memory_mb
from asr.training.checkpoints import LoadedCheckpoint
from asr.training.run_page import RunPage, augmented_features, run_facts, token_alignments, write_run_page
from werdict.console import console
from werdict.error_files import headline
from werdict.errors import RunFailed
from werdict.files import get_nested, write_whole
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
    run: Run,
    run_dir: Path,
    loggers: Sequence[Any],
    watch: Stopwatch,
    notes: Sequence[str],
    search: Callable[[], tuple[Decoder, str]] | None,
) -> None:
    """Decode the test sets, and write ``decode/`` and ``report/``.

    The first of ``decode`` in the config gives the result. What the others give goes to ``decode/<name>/``, and to
    ``other_weights`` of the summary.

    Args:
        run: whose module has been trained.
        run_dir: its folder.
        loggers: get final numbers and sample texts.
        watch: started with this process's training.
        notes: about the run, such as an early stop.
        search: returns the decoder of the result, and a note on it; called with the weights of the result. What the
            decoder of validation gives goes to ``decode/without_lm/``. None: the decoder of validation alone.

    Raises:
        RunFailed: a file cannot be written, or, after all is written, no utterance of a test set could be read.
    """
    options, module, prepared, cost = run.options, run.module, run.prepared, measured_cost(run.module.trainer)
    training = watch.read()
    if run.checkpoint is not None:
        training["resumed_after"] = run.checkpoint.update
    if unreadable := module.unreadable.num_utterances:
        training["num_unreadable"] = unreadable
    for before, backup in backup_existing(run_dir, ("decode", "report", *AFTER_TRAINING)):
        console.print_line(f"the earlier {before} is kept as {backup}")
    recipe, difference, watch = recipe_of(run_dir), difference_from_recipe(options, run_dir), Stopwatch()
    with checkpoints.explaining_failed_writes(run_dir):
        evaluation = _Evaluation(run, run_dir, loggers, notes)
        cuts, best = evaluation.cuts, evaluation.best
        outcome = run_settings(options)
        if search is not None and evaluation.tested:
            outcome["without_lm"] = evaluation.without_lm(search)
        results = evaluation.result()
        examples = augmented_features(module.recognizer, run.data), token_alignments(module.recognizer, run.data)
        # since the start of the run, as far as they were measured
        minutes = round((cost.get("training_seconds") or training["seconds"]) / 60, 2)
        test, num_parameters = _numbers(results), sum(p.numel() for p in module.recognizer.parameters())
        evaluation.log(test, num_parameters=num_parameters, minutes=minutes)
        outcome |= {"test": test, "notes": evaluation.notes, **_origin(best), "weights_asked_for": options.weights}
        if other := evaluation.others():
            outcome["other_weights"] = other
        outcome |= {"training": training, "cost": cost, "evaluation": watch.read()}
        outcome |= {"num_parameters": num_parameters, "data": prepared.fingerprint, "data_splits": prepared.splits}
        if origin := getattr(module.recognizer.encoder, "origin", None):
            outcome["pretrained"] = origin
        outcome |= {"noise": get_nested(module.extra_state, "data", "noise"), **peak_memory_mb(), **provenance()}
        (run_dir / "report").mkdir(exist_ok=True)
        write_whole(run_dir / SUMMARY, json.dumps(outcome, indent=1, ensure_ascii=False))
        scores = {name: result.score for name, result in results.items()} or module.scores
        lines = evaluation.headlines(results, outcome.get("without_lm", {}))
        facts = run_facts(run_dir, options, recipe, module, prepared.splits, minutes, outcome)
        write_run_page(RunPage(run_dir, lines, facts, evaluation.notes, scores, cuts, *examples, difference))
        _print_places(run_dir, best.path, training, minutes, decoded=bool(results))
    if evaluation.failures:
        raise RunFailed(evaluation.failures[0])


class _Evaluation:
    """Decodes the test sets with weights of the run's checkpoints; collects notes and what failed."""

    def __init__(self, run: Run, run_dir: Path, loggers: Sequence[Any], notes: Sequence[str]) -> None:
        self.run, self.run_dir, self.loggers, self.options, module = run, run_dir, loggers, run.options, run.module
        self.module, self.decoder, self.failures = module, module.decoder, list[str]()
        self.notes = [*run.prepared.notes, *notes]
        self.best, missing = self._checkpoint(self.options.decode[0])
        if missing:
            self._warn(f"{missing}. Decoded with its raw weights instead")
        self.notes += UNIT_NOTES[module.unit]
        self.tested = run.prepared.names("test") if self.options.decode_test else ()
        self.cuts = {name: run.prepared.cuts(name) for name in (*self.tested, *module.scores)}

    def _checkpoint(self, which: str) -> tuple[LoadedCheckpoint, str]:
        """Return a checkpoint with the weights asked for, else with raw weights and the reason.

        The best checkpoint of a run may be older than the resumption that added averaging.
        """
        name = "" if which == "best" else "checkpoints/last.ckpt"
        checkpoint = checkpoints.load_checkpoint(checkpoints.checkpoint_file(str(self.run_dir / name)))
        kind = "average" if which == "average" else self.options.weights
        missing = checkpoints.why_missing(checkpoint, kind)
        if not missing:
            return checkpoints.choose_weights(checkpoint, kind), ""
        option = "decode=[average]" if which == "average" else f"weights={kind}"
        description = f"{checkpoint.path.name} of update {checkpoint.update}"
        return checkpoint, f"{option} was asked for, but {description} has none: {missing}"

    def _warn(self, note: str) -> None:
        console.print(f"WARNING: {note}", soft_wrap=True, style="bold red")
        self.notes.append(note)

    def decode(self, checkpoint: LoadedCheckpoint, name: str = "") -> dict[str, Evaluated]:
        """Decode to a folder below ``decode/``; notes that were shown with the table of the data are only written."""
        recognizer = self.module.recognizer
        checkpoints.load_weights(recognizer, checkpoint.weights)  # instead of the weights of the last update
        read = self.decoder.notes if isinstance(self.decoder, ShallowFusion) else []
        notes = [*self.notes, *read, checkpoint.decoding_note()]
        sets = {tested: self.cuts[tested] for tested in self.tested}
        parts = recognizer, self.decoder, self.run.loaders, sets, notes, self.run_dir / "decode" / name
        results, failures = evaluate_sets(*parts, shown=self.run.prepared.notes)
        self.failures += failures
        return results

    def result(self) -> dict[str, Evaluated]:
        """Decode with the weights of the result; log samples, also of the last validation, and the checkpoint."""
        results, best = self.decode(self.best), self.best
        for name, result in results.items():
            log_samples(self.loggers, f"test/{name}", result.score, best.update, self.cuts[name])
        for name, score in self.module.scores.items():  # this time with audio
            log_samples(self.loggers, f"val/{name}", score, self.module.trainer.global_step, self.cuts[name])
        for logger in self.loggers:
            if hasattr(logger, "log_checkpoint"):
                logger.log_checkpoint(best.path, best.update)
        return results

    def without_lm(self, search: Callable[[], tuple[Decoder, str]]) -> dict[str, Any]:
        """Decode with the decoder of validation, and replace it by that of the result."""
        console.print("without a language model:")
        numbers = _numbers(self.decode(self.best, "without_lm"))
        self.decoder, note = search()
        self.notes.append(note)
        console.print("with the language model of the transcripts:")
        return numbers

    def others(self) -> dict[str, dict[str, Any]]:
        """Decode with the other checkpoints that are asked for, and log their numbers."""
        decoded: dict[str, dict[str, Any]] = {}
        for name in self.options.decode[1:] if self.tested else ():
            checkpoint, missing = self._checkpoint(name)
            if missing:
                self._warn(f"{missing}. Left out: decode={name}")
                continue
            console.print(f"with decode={name}:")
            numbers = _numbers(self.decode(checkpoint, name))
            self.log(numbers, f"{name}/")
            decoded[name] = {"test": numbers, **_origin(checkpoint)}
        return decoded

    def log(self, test: Mapping[str, Mapping[str, Any]], prefix: str = "", **more: float) -> None:
        """Send final numbers to those loggers that take them."""
        names = [(name, key, short) for name in test for key, short in TRACKED.items() if test[name][key] is not None]
        numbers = {f"{prefix}test/{name}/{short}": test[name][key] for name, key, short in names}
        for logger in self.loggers:
            if hasattr(logger, "log_summary"):
                logger.log_summary({**numbers, **more})

    def headlines(self, results: Mapping[str, Evaluated], without_lm: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return lines about the test sets, else about the development sets, and about the weights."""
        has_lm = without_lm or get_nested(self.options.plain(), "decoder", "lm") is not None
        lines = []
        for name, result in results.items():
            lines.append(f"{name}{', with a language model' * bool(has_lm)}: {headline(result.score, result.interval)}")
            if name in without_lm:
                rate = f"{RATE_NAMES[self.module.unit]} {percent(without_lm[name]['wer'])} %"
                lines.append(f"{name}, without it: {rate} ({type(self.module.decoder).__name__})")
        for name, score in () if lines else self.module.scores.items():
            lines.append(f"{name}: {score.rate_name} {percent(score.wer)} % in the last validation")
        return [*lines, f"weights: {self.best.described}, of {self.best.path.name} after update {self.best.update}"]


def _numbers(results: Mapping[str, Evaluated]) -> dict[str, dict[str, Any]]:
    return {name: result.plain() for name, result in results.items()}


def _origin(checkpoint: LoadedCheckpoint) -> dict[str, Any]:
    """Return where weights come from."""
    return {
        "checkpoint": checkpoint.path.name,
        "checkpoint_update": checkpoint.update,
        "weights": checkpoint.described,
    }


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
        return time.monotonic(), cpu_seconds()

    def read(self) -> dict[str, float]:
        """Return ``seconds`` and ``cpu_seconds``."""
        passed = (value - start for value, start in zip(self._now(), self.start, strict=True))
        return {name: round(seconds, 1) for name, seconds in zip(("seconds", "cpu_seconds"), passed, strict=True)}


def provenance() -> dict[str, Any]:
    """Return what produced a result: versions, machine, command line, git commit."""
    # a run whose logger is not wandb does not need it installed; the first that Python finds is the one that it imports
    installed = {name: [distribution.version for distribution in distributions(name=name)] for name in PACKAGES}
    return {
        "python": platform.python_version(),
        "versions": {name: versions[0] for name, versions in installed.items() if versions},
        "machine": platform.processor() or platform.machine(),
        "command": sys.argv,
        "commit": source_commit(),
        "date": datetime.datetime.now().astimezone().isoformat(" ", "seconds"),
    }


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
