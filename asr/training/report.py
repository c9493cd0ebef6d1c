"""From a trained recogniser to its error rates, and to files that people look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
from rich.text import Text

from asr.console import PlainConsole, printable
from asr.data.loading.data_module import DataModule
from asr.data.preparation.prepared import PreparedData
from asr.evaluation.confidence import Interval, bootstrap_interval
from asr.evaluation.curves import plot_curves
from asr.evaluation.report import headline, summary, write_report
from asr.evaluation.wer import Score, ScoredUtterance, score
from asr.models.recogniser import Recogniser
from asr.training.checkpoints import LoadedCheckpoint, checkpoint_file, load_checkpoint
from asr.training.errors import TrainingFailed, explaining_failed_writes
from asr.training.module import Decoder, TrainingModule
from asr.training.run_folder import Stopwatch, peak_memory_mb, provenance, write_summary
from asr.training.session import Decoded, decode_all
from asr.training.weights import choose_weights, why_lacking

NUM_FIXED_SAMPLES = 10
NUM_WORST_SAMPLES = 10

console = PlainConsole()


class Evaluated(NamedTuple):
    """A set's error rate, and the seconds of work per second of audio that decoding took."""

    score: Score
    interval: Interval
    real_time_factor: float | None


class NothingRead(TrainingFailed):
    """A set of which no utterance could be read."""


def samples(result: Score) -> list[ScoredUtterance]:
    """Return utterances to look at: always the same ones, then the worst."""
    ordered = sorted(result.utterances, key=lambda item: item.utterance.id)
    fixed = ordered[:: max(1, len(ordered) // NUM_FIXED_SAMPLES)][:NUM_FIXED_SAMPLES]
    worst = sorted(ordered, key=lambda item: -item.words.errors)[:NUM_WORST_SAMPLES]
    return list({item.utterance.id: item for item in (*fixed, *worst)}.values())


class SampleTables(pl.Callback):
    """Sends references, hypotheses and numbers of errors to the tracker at every validation."""

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log one table per development set."""
        assert isinstance(pl_module, TrainingModule)
        for name, result in pl_module.scores.items():
            log_samples(trainer.loggers, f"val/{name}", result, trainer.global_step)


def log_samples(loggers: Sequence[Any], name: str, result: Score, step: int) -> None:
    """Hand samples to the loggers that show tables."""
    for logger in loggers:
        if hasattr(logger, "log_samples"):
            logger.log_samples(name, samples(result), step)


def evaluate_set(
    recogniser: Recogniser,
    decoder: Decoder,
    reading: DataModule,
    cuts: Any,
    name: str,
    notes: Sequence[str],
    folder: Path,
    num_utterances: int | None = None,
) -> Evaluated:
    """Decode a set, write its files below ``folder``, and print its error rate and how fast it went.

    Raises:
        NothingRead: none of its utterances could be read; nothing is written.
    """
    loader = reading.evaluation_loader(cuts)
    decoded = decode_all(recogniser, decoder, reading.tokenizer, loader, name, num_utterances)
    for cut, reason in decoded.unread:
        console.print(f"{name}: could not read {cut}: {reason}", soft_wrap=True)
    if decoded.unread and not decoded.utterances:
        raise NothingRead(
            f"none of the {len(decoded.unread)} utterances of {name} could be read, so that it has no error rate; put "
            "their audio back, or prepare the data again, and decode it with asr-evaluate"
        )
    if decoded.unread:
        notes = [*notes, f"{len(decoded.unread)} utterances could not be read and are not counted"]
    result = score(decoded.utterances)
    interval = bootstrap_interval(result)
    write_report(folder, name, result, interval, notes)
    _say_result(name, headline(result, interval), notes, decoded)
    return Evaluated(result, interval, decoded.real_time_factor)


def _say_result(name: str, line: str, notes: Sequence[str], decoded: Decoded) -> None:
    console.print(Text.assemble((printable(name), "bold"), "  ", line), soft_wrap=True)
    factor = decoded.real_time_factor
    speed = [] if factor is None else [f"decoded {decoded.audio_s:.0f} s of audio, real-time factor {factor:.2g}"]
    for note in (*notes, *speed):
        console.print(f"{name}  note: {note}", soft_wrap=True)


def decoded_with(checkpoint: LoadedCheckpoint) -> str:
    """Return the note that leads from hypotheses to the weights that they were decoded with."""
    return f"decoded with {checkpoint.path.name} of update {checkpoint.update}, weights: {checkpoint.described}"


def report_training(
    module: TrainingModule,
    reading: DataModule,
    prepared: PreparedData,
    run_dir: Path,
    loggers: Sequence[Any],
    training: Mapping[str, float],
    cost: Mapping[str, float | int | None],
    test_names: Sequence[str],
    weights: str = "raw",
    notes: Sequence[str] = (),
) -> None:
    """Decode the test sets with the checkpoint that did best on dev (its raw weights did), and write what a run leaves.

    Args:
        module: what was trained.
        reading: how cuts are read.
        prepared: the data.
        run_dir: the run's folder.
        loggers: of the run.
        training: wall-clock and CPU seconds of this process, and the update behind which it was resumed, if it was.
        cost: what `TrainingCost` has measured, since the beginning.
        test_names: of the test sets to decode.
        weights: of the checkpoint that decode, as `choose_weights` takes it; its own if it has none of that kind.
        notes: on how the run went.

    Raises:
        TrainingFailed: something cannot be written.
        NothingRead: after all else is written, where nothing of a test set could be read.
    """
    watch = Stopwatch()
    with explaining_failed_writes(run_dir):
        best, missing = _best(run_dir, weights)
        module.recogniser.load_state_dict(best.weights)
        notes = [*prepared.notes, *notes, *missing]
        decoded_by = [*notes, decoded_with(best)]
        results, failed = _decode_test_sets(module, reading, prepared, test_names, decoded_by, run_dir / "decode")
        sets = {
            name: {**summary(found.score, found.interval), "real_time_factor": found.real_time_factor}
            for name, found in results.items()
        }
        _track(loggers, results, sets, best.update)
        outcome = {"test": sets, "notes": notes, **_weights_used(best, weights)}
        effort = {"training": dict(training), "cost": dict(cost), "evaluation": watch.read()}
        size = sum(p.numel() for p in module.recogniser.parameters())
        data = {"num_parameters": size, "data": prepared.fingerprint, "data_splits": prepared.splits}
        write_summary(run_dir, {**outcome, **effort, **data, **peak_memory_mb(), **provenance()})
        _say_where(run_dir, best.path, training, decoded=bool(results))
    if failed:
        raise failed[0]


def _best(run_dir: Path, weights: str) -> tuple[LoadedCheckpoint, list[str]]:
    """Return the best checkpoint with the weights asked for, else with its own, and a note that says so.

    A checkpoint may be older than the averages: from before the run was resumed with them. That is no reason to leave
    a finished training without a result.
    """
    best = load_checkpoint(checkpoint_file(str(run_dir)))
    lacking = why_lacking(best, weights)
    if not lacking:
        return choose_weights(best, weights), []
    note = (
        f"weights={weights} was asked for, but {best.path.name} of update {best.update} has none: {lacking}. Decoded "
        "with its raw weights instead"
    )
    console.print(f"WARNING: {note}", soft_wrap=True, style="bold red")
    return best, [note]


def _weights_used(best: LoadedCheckpoint, asked_for: str) -> dict[str, Any]:
    return {
        "checkpoint": best.path.name,
        "checkpoint_update": best.update,
        "weights": best.described,
        "weights_asked_for": asked_for,
    }


def _track(
    loggers: Sequence[Any], results: Mapping[str, Evaluated], sets: Mapping[str, Mapping[str, Any]], update: int
) -> None:
    """Send samples and final numbers to the loggers that take them."""
    for name, found in results.items():
        log_samples(loggers, f"test/{name}", found.score, update)
    for logger in loggers:
        if hasattr(logger, "log_summary"):
            logger.log_summary(_flat(sets))


def _decode_test_sets(
    module: TrainingModule,
    reading: DataModule,
    prepared: PreparedData,
    names: Sequence[str],
    notes: Sequence[str],
    folder: Path,
) -> tuple[dict[str, Evaluated], list[NothingRead]]:
    """Return the results of the sets that could be read, and what is wrong with the others."""
    results: dict[str, Evaluated] = {}
    failed: list[NothingRead] = []
    for name in names:
        cuts, num_utterances = prepared.cuts(name), int(prepared.splits[name]["num_utterances"])
        try:
            results[name] = evaluate_set(
                module.recogniser, module.decoder, reading, cuts, name, notes, folder, num_utterances
            )
        except NothingRead as error:
            failed.append(error)
    return results, failed


def _flat(sets: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    names = {"wer": "wer", "wer_low": "wer_lo", "wer_high": "wer_hi", "cer": "cer"}
    return {
        f"test/{name}/{short}": result[key]
        for name, result in sets.items()
        for key, short in names.items()
        if result[key] is not None
    }


def _say_where(run_dir: Path, checkpoint: Path, training: Mapping[str, float], decoded: bool) -> None:
    metrics = run_dir / "metrics.csv"
    if metrics.exists():
        plot_curves(metrics, run_dir / "report")
    minutes, cpu_minutes = training["seconds"] / 60, training["cpu_seconds"] / 60
    resumed = "resumed_behind" in training
    since = f" since it was resumed behind update {training['resumed_behind']}" if resumed else ""
    for line in (
        f"trained in {minutes:.1f} minutes ({cpu_minutes:.1f} CPU minutes){since}",
        f"report:      {run_dir / 'report'}",
        f"hypotheses:  {run_dir / 'decode' if decoded else 'none, no test set was decoded'}",
        f"checkpoint:  {checkpoint}",
    ):
        console.print(line, soft_wrap=True)
