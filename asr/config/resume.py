"""Builds the module of a resumed run, and checks that its checkpoint fits before the run's folder records anything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from asr.config.build import DataParts, build_module, build_update_parts
from asr.config.own_code import check_restored
from asr.config.resumed_config import changes, refuse_changes, saved_config, unaccepted
from asr.console import PlainConsole
from asr.data.loading.acoustics import Acoustics
from asr.data.preparation.prepared import PreparedData
from asr.error_text import first_line, is_out_of_memory
from asr.errors import ConfigError, PeerLost
from asr.nested import flatten, leaves
from asr.quoting import resume_command
from asr.signals import Terminated
from asr.subprocesses import is_first_process
from asr.training.changed_updates import ChangedUpdates
from asr.training.checkpoints.files import how_to_resume
from asr.training.checkpoints.loading import LoadedCheckpoint, newest_good_checkpoint, read_saved
from asr.training.closures import calls_closure
from asr.training.module import TrainingModule
from asr.training.weights import load_weights

LAST_RECORDED = "overrides.yaml"  # of the start of a run, which can be resumed from then on
UPDATES = ("optimizer", "parameter_rules", "schedule")  # groups of the config that make updates of gradients

console = PlainConsole(quiet=not is_first_process())


def build_resumed_module(
    config: Mapping[str, Any], parts: DataParts, prepared: PreparedData, checkpoint: LoadedCheckpoint | None
) -> TrainingModule:
    """Build the LightningModule that continues from a checkpoint with the present options.

    Raises:
        ConfigError: the optimizer of the checkpoint is another one.
    """
    module = build_module(config, parts, prepared)
    if checkpoint is not None:
        module.changed_updates = _changed_updates(checkpoint, config)
    return module


def _changed_updates(checkpoint: LoadedCheckpoint, config: Mapping[str, Any]) -> ChangedUpdates | None:
    """Return the former and the present optimizer and schedule; None if nothing has changed."""
    former, now = ({key: one.get(key) for key in UPDATES} for one in (checkpoint.config, config))
    if flatten(former) == flatten(now):
        return None
    check_restored(former, checkpoint.path)
    for key in ("optimizer", "parameter_rules"):
        _refuse_other_targets(former[key], now[key], key)
    # steps in the backward pass would hook the parameters of this trial
    base = {**config, "trainer": {**config["trainer"], "step_in_backward": False}}
    before, after = build_update_parts({**base, **former}), build_update_parts(base)
    return ChangedUpdates(before.optimizer_factory, after.optimizer_factory, after.schedule_factory)


def _refuse_other_targets(former: Any, now: Any, key: str) -> None:
    """Refuse another optimizer or transform: the names of its options and statistics may be the same by chance."""
    targets = ([str(value) for place, value in leaves(node) if place.endswith("_target_")] for node in (former, now))
    for had, have in zip_longest(*targets, fillvalue="none"):
        if had != have:
            raise ConfigError(
                f"resume: {key}: {had} in the run, {have} now: an optimizer cannot continue from the statistics of "
                "another one; leave out this change, or start a new run"
            )


@contextlib.contextmanager
def changes_explain_errors(folder: Path | None, config: Mapping[str, Any], anyway: bool) -> Iterator[None]:
    """Report changes of a resumed run instead of errors that they cause, such as data that were never prepared.

    Args:
        folder: folder of the resumed run; None for a new run.
        config: the present config.
        anyway: the user accepts changes: errors are reported as they are.
    """
    try:
        yield
    except ValueError:
        if folder is not None:
            refuse_changes(unaccepted(changes(saved_config(folder), config), folder), anyway)
        raise


def accepted_changes(config: Mapping[str, Any], parts: DataParts, prepared: PreparedData, folder: Path) -> list[str]:
    """Return what has changed since the last checkpoint of the run in ``folder``.

    Raises:
        ConfigError: a change is not accepted, or the checkpoint does not fit the present config.
    """
    checkpoint = newest_good_checkpoint(folder)
    if checkpoint is None:
        found = new = changes(saved_config(folder), config)
    else:
        found = _changes_since(checkpoint, config, parts, prepared)
        new = unaccepted(found, folder)
    rate = None if checkpoint is None else _rate_change(config, parts, prepared, checkpoint, found)
    refuse_changes([*new, rate] if new and rate else new, bool(config["allow_changes"]))
    if rate:
        console.print_line(rate)
    if checkpoint is not None and found:
        _refuse_misfit(config, parts, prepared, checkpoint, found)
    if checkpoint is not None:
        before, now = checkpoint.config.get("torch_threads"), config["torch_threads"]
        if before != now:
            console.print_line(
                f"note: torch_threads: {before} in the run, {now} now: sums are rounded in another order, so that last "
                "digits will differ"
            )
    for change in found:
        console.print_line(f"changed since the run was started: {change}")
    return found


def _changes_since(
    checkpoint: LoadedCheckpoint, config: Mapping[str, Any], parts: DataParts, prepared: PreparedData
) -> list[str]:
    """Return what has changed since a checkpoint was saved: keys of the config, the data, and files of noise."""
    found = changes(checkpoint.config, config)
    if checkpoint.data["fingerprint"] != prepared.fingerprint:
        found.append(f"data: {checkpoint.data['fingerprint']} in the run, {prepared.fingerprint} now")
    files, noise = parts.perturb.digest() if isinstance(parts.perturb, Acoustics) else "", checkpoint.data["noise"]
    if noise != files:
        found.append(f"files of augment.audio: {noise or 'none'} in the run, {files or 'none'} now")
    return found


def _rate_change(
    config: Mapping[str, Any],
    parts: DataParts,
    prepared: PreparedData,
    checkpoint: LoadedCheckpoint,
    found: Sequence[str],
) -> str | None:
    """Return what another schedule or budget does to the learning rate; None if more has changed, or nothing."""
    if not found or not all(change.startswith(("schedule.", "trainer.max_")) for change in found):
        return None
    module = build_resumed_module(config, parts, prepared, checkpoint)
    if module.changed_updates is None:
        return None
    state = read_saved(checkpoint.path)
    groups = state["optimizer_states"][0]["param_groups"]
    before = groups[0]["lr"]
    module.changed_updates.apply_to_checkpoint(state, module.recognizer.named_parameters())
    return f"learning rate after update {checkpoint.update}: {before:.3g} in the run, {groups[0]['lr']:.3g} now"


def _refuse_misfit(
    config: Mapping[str, Any],
    parts: DataParts,
    prepared: PreparedData,
    checkpoint: LoadedCheckpoint,
    found: Sequence[str],
) -> None:
    """Load a checkpoint into a module that is built for this alone.

    Raises:
        ConfigError: a part of the checkpoint does not fit, or the budget is below its updates; names ``found``, the
            changes since it was saved.
    """
    if (budget := config["trainer"]["max_steps"]) < checkpoint.update:
        raise ConfigError(
            f"resume: trainer.max_steps={budget}, but the run has made {checkpoint.update} updates; give at least as "
            "many, or start a new run"
        )
    module = build_resumed_module(config, parts, prepared, checkpoint)
    try:
        load_weights(module.recognizer, checkpoint.weights)
        if checkpoint.tokenizer != module.tokenizer.state():
            raise ValueError("its tokenizer has other tokens")
        _load_updates(module, read_saved(checkpoint.path))
    except Exception as error:  # optimizers refuse the states of others by errors of any kind
        if is_out_of_memory(error):
            raise
        said = first_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {first_line(error)}"
        why = f"; changed since it was saved: {'; '.join(found)}" if found else ""
        raise ConfigError(
            f"resume: {checkpoint.path} does not fit: {said}{why}. Undo the change, or start a new run"
        ) from error


def _load_updates(module: TrainingModule, state: dict[str, Any]) -> None:
    """Restore optimizer and schedule, and try an update if their options have changed: the weights move."""
    changed = module.changed_updates
    if changed is None:
        optimizer, schedule = module.build_updates()
    else:
        changed.apply_to_checkpoint(state, module.recognizer.named_parameters())
        optimizer = changed.after(module.recognizer.named_parameters())
        schedule = changed.schedule(optimizer)
    optimizer.load_state_dict(state["optimizer_states"][0])
    schedule.load_state_dict(state["lr_schedulers"][0])
    if changed is None:
        return
    # torch's optimizers notice at a step that they lack statistics
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = False  # only a GPU can do it, and these parameters are on none
    calls_closure(optimizer)


@contextlib.contextmanager
def saying_how_to_resume(run_dir: Path) -> Iterator[None]:
    """Add the command that resumes the run to a Ctrl-C, a signal, and a lost peer."""
    try:
        yield
    except PeerLost as error:
        raise PeerLost(f"{error}; {how_to_resume(run_dir)}") from error
    except (KeyboardInterrupt, Terminated) as ended:
        if ended.args and isinstance(ended, KeyboardInterrupt):
            raise  # it says so already
        if not (run_dir / LAST_RECORDED).is_file():
            raise  # nothing to resume yet
        if isinstance(ended, Terminated):
            raise Terminated(ended.signal, lambda: f"; to resume: {resume_command(run_dir)}") from None
        raise KeyboardInterrupt(f"; {how_to_resume(run_dir)}") from None
