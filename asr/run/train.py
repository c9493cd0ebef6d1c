"""A built run → its folder, its training, and its report."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, Timer
from omegaconf import OmegaConf

from asr.data.loading.loader import Batch, explaining_lost_workers
from asr.inference.evaluate import search_with_transcripts
from asr.models import devices
from asr.processes import INTERRUPTED, TRY_AGAIN, is_first_process
from asr.run.build import Run
from asr.run.compose import differences, record_accepted, recorded_overrides, refuse_changes, saved_config, unaccepted
from asr.run.folder import FAILED, backup_path, lock_run_dir, new_run_folder
from asr.run.instantiate import locate
from asr.run.options import RunOptions, decides
from asr.run.parts import build_all, num_threads
from asr.run.report import Stopwatch, report_run, start_lines
from asr.run.start import LAST_RECORDED, UPDATES, record_source, saved_options, saying_how_to_resume, start_from
from asr.run.trainer import build_trainer
from asr.training.callbacks.checkpoints import checkpoint_io
from asr.training.checkpoints import LoadedCheckpoint, explaining_failed_writes, join_parts
from asr.training.cuda_graphs import CudaGraphs
from asr.training.module import TrainingModule
from asr.training.processes import broadcast_object, console, explaining_lost_peers, launch
from werdict.errors import explaining_out_of_memory
from werdict.files import is_within, write_whole

LENGTH = ("trainer.max_steps", "trainer.max_epochs")


def train(run: Run) -> Path:
    """Train, decode the test sets and return the run's folder; with several devices, start a process for each."""
    with _open_run_folder(run) as run_dir:
        if run.needs_launcher:
            overrides = [*run.composed.folders, *run.composed.words]
            if code := launch("train", overrides, run.outline.trainer.num_devices, run_dir):
                if code not in (TRY_AGAIN, INTERRUPTED):
                    _record_failure(run_dir, f"exit code {code}")
                sys.exit(code)
        else:
            _fit_and_report(run, run_dir)
        return run_dir


@contextlib.contextmanager
def _open_run_folder(run: Run) -> Iterator[Path]:
    """Create or reopen the run's folder; the first process, or the launcher, locks it and records the start."""

    def open_folder() -> Path:
        return run.resumed or new_run_folder(run.options.run_dir, run.composed.groups["recipe"])

    if run.launched is not None or run.needs_launcher:
        run_dir = run.launched or open_folder()
    else:
        run_dir = broadcast_object(run.outline.trainer, open_folder)
    owner = run.launched is None and is_first_process()
    with (
        lock_run_dir(run_dir) if owner else contextlib.nullcontext(),
        saying_how_to_resume(run_dir),
    ):
        if owner:
            _record_start(run, run_dir)
            (run_dir / FAILED).unlink(missing_ok=True)
        try:
            yield run_dir
        except Exception as error:
            if owner:
                _record_failure(run_dir, f"{type(error).__name__}: {error}")
            raise


def _record_start(run: Run, folder: Path) -> None:
    """Write the overrides and the composed config to the run's folder, which is locked.

    Raises:
        ConfigError: the config or the data of a resumed run have changed, and user or checkpoint do not accept it.
    """
    overrides, config = list(run.composed.words), run.options.plain()
    if run.resumed is not None:
        _accept_changes(run, run.resumed)
        differing = differences(saved_config(run.resumed), config)  # free keys, such as weights, too
        if not run.changes and all(decides(difference.key) == "this_start" for difference in differing):
            return
        if run.changes:
            record_accepted(folder, run.changes)
        overrides = recorded_overrides(run.resumed, overrides)
    run.prepared.record(folder)
    if run.outline.source is not None and run.resumed is None:
        record_source(run.outline.source, folder)
    for name, content in (("config.yaml", config), (LAST_RECORDED, overrides)):
        if (folder / name).exists():
            # copied, not renamed: a full disk must not leave the folder without the file
            write_whole(backup_path(folder / name), (folder / name).read_bytes())
        write_whole(folder / name, OmegaConf.to_yaml(OmegaConf.create(content)))


def _accept_changes(run: Run, folder: Path) -> None:
    """Refuse what has changed in a run unless the user accepts it; say the changes, and what they do to the rate.

    Raises:
        ConfigError: a change is not accepted, or the checkpoint does not fit the present config.
    """
    checkpoint, changed, anyway = run.checkpoint, run.changes, run.options.allow_changes
    new = changed if checkpoint is None else unaccepted(changed, folder)
    only_rate = all(is_within(change.key, ("schedule", *LENGTH)) for change in changed)
    if checkpoint is None or not only_rate:
        refuse_changes(new, anyway)
    if checkpoint is not None and changed:
        lr, rates = _learning_rate(checkpoint), list[str]()
        _ = run.module  # building it applies the changes to the checkpoint
        if only_rate and any(is_within(change.key, UPDATES) for change in changed):
            new_lr = _learning_rate(checkpoint)
            rates = [f"learning rate after update {checkpoint.update}: {lr:.3g} in the run, {new_lr:.3g} now"]
        refuse_changes([*new, *rates] if new else [], anyway)
        for line in rates:
            console.print_line(line)
    if checkpoint is not None:
        threads, threads_now = saved_options(checkpoint, RunOptions).torch_threads, run.options.torch_threads
        if threads != threads_now:
            console.print_line(
                f"note: torch_threads: {threads} in the run, {threads_now} now: sums are rounded in another order, so "
                "that last digits will differ"
            )
    for change in changed:
        console.print_line(f"changed since the run was started: {change}")


def _learning_rate(checkpoint: LoadedCheckpoint) -> float:
    state: Any = checkpoint.state
    return float(state["optimizer_states"][0]["param_groups"][0]["lr"])


def list_matrices(trainer: Trainer, module: Any) -> None:
    """Write ``matrices.txt`` to a run's folder, if its optimizer updates parameters in blocks."""
    if trainer.is_global_zero and any(group.get("blocks") for group in trainer.optimizers[0].param_groups):
        table = Path(trainer.default_root_dir) / "matrices.txt"
        with table.open("w", encoding="utf-8") as file:
            locate("optim.explain", "optimizer")(trainer.optimizers[0], module.recognizer, file)
        console.print_line(f"which parameter is treated as which matrices: {table}")


def _record_failure(run_dir: Path, why: str) -> None:
    """Let ``asr-runs`` know that the run has ended by itself."""
    with contextlib.suppress(OSError):  # a full disk, which may be the reason
        write_whole(run_dir / FAILED, f"{why}\n")


def _fit_and_report(run: Run, run_dir: Path) -> None:
    """Train in this process, which may be one of several; the first one decodes and reports."""
    watch, options, checkpoint, module = Stopwatch(), run.options, run.checkpoint, run.module
    if checkpoint is None and run.outline.source is not None:
        console.print_line(start_from(run.outline.source, module, options, run_dir))
    for line in start_lines(module.recognizer, options, run_dir, checkpoint):
        console.print_line(line)
    loggers = build_all(run.outline.loggers, run_dir, options) if is_first_process() else []
    with _open_loggers(loggers, 0 if checkpoint is None else checkpoint.update):
        callbacks = build_all(run.outline.callbacks, run_dir, options)
        callbacks.append(LambdaCallback(on_train_start=list_matrices))
        trainer = build_trainer(options.trainer, loggers, callbacks, default_root_dir=str(run_dir))
        num_workers = run.loaders.workers.count
        torch.set_num_threads(num_threads(options.torch_threads, num_workers, trainer.num_devices))
        with explaining_failed_writes(run_dir):
            parts = module.recognizer, run.loaders, run.prepared, run.outline.data.text
            lm_order = options.data.transcripts_lm if is_first_process() else 0
            search = search_with_transcripts(*parts, run_dir, lm_order)
        fit(trainer, module, run.data, checkpoint)
        early = _early_stop_reason(trainer)
        if is_first_process():
            if module.is_divided:
                join_parts(run_dir / "checkpoints")
                module.recognizer = run.new_module().recognizer  # whole, for the weights of a checkpoint
            report_run(run, run_dir, loggers, watch, [early] if early else [], search)
    if early:
        console.print_line(early)


def fit(
    trainer: Trainer,
    module: TrainingModule,
    data: LightningDataModule,
    checkpoint: LoadedCheckpoint | None = None,
) -> None:
    """Train until ``trainer.max_steps`` updates, from the start or from a checkpoint.

    Raises:
        RunFailed: training cannot continue.
    """
    if checkpoint is not None:
        assert checkpoint.state, "the checkpoint was read to decode with"
        checkpoint_io(trainer).content = {**checkpoint.state}
        checkpoint.state.clear()  # twice the memory, otherwise, for the whole training
    captures = any(isinstance(callback, CudaGraphs) for callback in trainer.callbacks)  # type: ignore[attr-defined]
    with (
        explaining_out_of_memory(lambda: _when_training(module.current_batch, captures)),
        explaining_lost_workers(),
        explaining_lost_peers(),
    ):
        try:
            trainer.fit(module, data, ckpt_path=None if checkpoint is None else checkpoint.path, weights_only=True)
        except SystemExit as left:
            # after a Ctrl-C Lightning (2.6) exits with code 1 and tells only a log that is silenced here
            if trainer.interrupted and left.code == 1:
                raise KeyboardInterrupt(*getattr(left.__context__, "args", ())) from None
            raise


def _when_training(batch: Batch | None, captures: bool) -> str:
    """Return what did not fit into memory in a training step (ids, seconds, seconds with padding), and what to do.

    Args:
        batch: of the step.
        captures: whether CUDA graphs, which have memory of their own, may have been captured.
    """
    if batch is None:
        return "before the first micro-batch: lower data.workers.num_workers, or choose a smaller encoder."
    frames = devices.to_host(batch.num_frames)
    # a batch knows only the sum of its seconds
    seconds = [batch.audio_s * num / max(1, sum(frames)) for num in frames]
    each = ", ".join(f"{cut} ({s:.1f} s)" for cut, s in zip(batch.ids, seconds, strict=True))
    padded = len(seconds) * max(seconds, default=0.0)
    advice = (
        "lower data.batch.max_duration_s (on a GPU, asr-train find_batch_size=true measures what fits); if only "
        "batches of long utterances fail, set data.batch.quadratic_duration_s=20, or lower data.limits.max_duration_s"
    )
    if captures:
        advice = f"give trainer.cuda_graphs=false to train without CUDA graphs, which keep memory, or {advice}"
    return (
        f"at a micro-batch of {len(batch)} utterances, {batch.audio_s:.1f} s of audio, {padded:.1f} s with padding: "
        f"{each}; {advice}"
    )


def _early_stop_reason(trainer: Trainer) -> str:
    """Return which callback stopped the run, and at which update; empty if all updates are done."""
    if trainer.global_step >= trainer.max_steps:
        return ""
    reasons = []
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        # None without a duration
        if isinstance(callback, Timer) and (remaining := callback.time_remaining()) is not None and remaining <= 0:
            reasons.append("the duration of the callback Timer is over")
        elif isinstance(callback, EarlyStopping) and callback.stopping_reason_message:
            reasons.append(f"by the callback EarlyStopping: {callback.stopping_reason_message}")
    reason = "; ".join(reasons) or "a callback requested it"
    return f"stopped at update {trainer.global_step} of {trainer.max_steps}: {reason}"


@contextlib.contextmanager
def _open_loggers(loggers: Sequence[Any], update: int) -> Iterator[None]:
    """Let loggers continue after an update, 0 for a new run; close them at the end, as failed after an exception."""
    for logger in loggers:
        if hasattr(logger, "resume"):
            logger.resume(update)
    exit_code = 1
    try:
        yield
        exit_code = 0
    finally:
        for logger in loggers:
            upload = logger.close(exit_code) if hasattr(logger, "close") else None
            if upload:
                console.print_line(f"upload this run: {upload}")
