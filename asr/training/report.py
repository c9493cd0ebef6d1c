"""From a trained recognizer to its error rates, and to the files of ``report/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.console import PlainConsole
from asr.data.loading.data_module import DataModule
from asr.data.preparation.prepared import PreparedData
from asr.errors import RunFailed
from asr.evaluation.curves import plot_curves
from asr.evaluation.report import summary
from asr.inference.evaluate import evaluate_sets
from asr.training.callbacks.sample_tables import log_samples
from asr.training.checkpoint_files import explaining_failed_writes
from asr.training.checkpoints import LoadedCheckpoint, checkpoint_file, load_checkpoint
from asr.training.module import TrainingModule
from asr.training.run_summary import Stopwatch, peak_memory_mb, provenance, write_summary
from asr.training.weights import choose_weights, why_missing

# names of the results in wandb, by those of summary.json
TRACKED = {"wer": "wer", "wer_low": "wer_lo", "wer_high": "wer_hi", "cer": "cer"}

console = PlainConsole()


def report_run(
    module: TrainingModule,
    data_module: DataModule,
    prepared: PreparedData,
    run_dir: Path,
    loggers: Sequence[Any],
    training: Mapping[str, float],
    cost: Mapping[str, float | int | None],
    test_names: Sequence[str],
    weights: str = "raw",
    notes: Sequence[str] = (),
) -> None:
    """Decode the test sets with the checkpoint whose raw weights were best on dev; write ``decode/`` and ``report/``.

    Args:
        module: what was trained.
        data_module: reads the cuts.
        prepared: the data.
        run_dir: the run's folder.
        loggers: of the run.
        training: wall-clock and CPU seconds of this process; ``resumed_after``, an update, if the run was resumed.
        cost: what `TrainingCost` has measured since the start of the run.
        test_names: of the test sets to decode.
        weights: kind of weights to decode with, as for `choose_weights`; raw if the checkpoint has none of that kind.
        notes: on the course of the run.

    Raises:
        RunFailed: a file cannot be written, or, after all is written, no utterance of a test set could be read.
    """
    watch = Stopwatch()
    with explaining_failed_writes(run_dir):
        best, fallback = _best(run_dir, weights)
        module.recognizer.load_state_dict(best.weights)  # instead of the weights of the last update
        notes = [*prepared.notes, *notes, *fallback]
        sets = {name: prepared.cuts(name) for name in test_names}
        decoded_notes = [*notes, best.decoding_note()]
        results, failures = evaluate_sets(
            module.recognizer, module.decoder, data_module, sets, decoded_notes, run_dir / "decode"
        )
        test = {
            name: {**summary(found.score, found.interval), "real_time_factor": found.real_time_factor}
            for name, found in results.items()
        }
        for name, found in results.items():
            log_samples(loggers, f"test/{name}", found.score, best.update)
        _log_summary(loggers, test)
        effort = {"training": dict(training), "cost": dict(cost), "evaluation": watch.read()}
        size = sum(p.numel() for p in module.recognizer.parameters())
        data = {"num_parameters": size, "data": prepared.fingerprint, "data_splits": prepared.splits}
        outcome = {"test": test, "notes": notes, "checkpoint": best.path.name, "checkpoint_update": best.update}
        outcome |= {"weights": best.described, "weights_asked_for": weights}
        write_summary(run_dir, {**outcome, **effort, **data, **peak_memory_mb(), **provenance()})
        if (run_dir / "metrics.csv").exists():  # logger=none writes none
            plot_curves(run_dir / "metrics.csv", run_dir / "report")
        _print_places(run_dir, best.path, training, decoded=bool(results))
    if failures:
        raise RunFailed(failures[0])


def _best(run_dir: Path, weights: str) -> tuple[LoadedCheckpoint, list[str]]:
    """Return the best checkpoint with the weights asked for, else with raw weights and a note that says so.

    A run that was resumed with averaging may have its best checkpoint from before; it still deserves a result.
    """
    best = load_checkpoint(checkpoint_file(str(run_dir)))
    missing = why_missing(best, weights)
    if not missing:
        return choose_weights(best, weights), []
    note = (
        f"weights={weights} was asked for, but {best.path.name} of update {best.update} has none: {missing}. Decoded "
        "with its raw weights instead"
    )
    console.print(f"WARNING: {note}", soft_wrap=True, style="bold red")
    return best, [note]


def _log_summary(loggers: Sequence[Any], test: Mapping[str, Mapping[str, Any]]) -> None:
    """Send the final numbers to those loggers that take them."""
    numbers = {
        f"test/{name}/{short}": result[key]
        for name, result in test.items()
        for key, short in TRACKED.items()
        if result[key] is not None
    }
    for logger in loggers:
        if hasattr(logger, "log_summary"):
            logger.log_summary(numbers)


def _print_places(run_dir: Path, checkpoint: Path, training: Mapping[str, float], decoded: bool) -> None:
    minutes, cpu_minutes = training["seconds"] / 60, training["cpu_seconds"] / 60
    since = f" since it was resumed after update {training['resumed_after']}" if "resumed_after" in training else ""
    for line in (
        f"trained in {minutes:.1f} minutes ({cpu_minutes:.1f} CPU minutes){since}",
        f"report:      {run_dir / 'report'}",
        f"hypotheses:  {run_dir / 'decode' if decoded else 'none, no test set was decoded'}",
        f"checkpoint:  {checkpoint}",
    ):
        console.print(line, soft_wrap=True)
