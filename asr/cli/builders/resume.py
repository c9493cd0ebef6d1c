"""A checkpoint and the config of now → the module that continues, tried before the run's folder records anything."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from asr.cli.builders.build import DataParts, build_module, build_update_parts
from asr.cli.builders.own_code import check_restored
from asr.cli.config.changes import ABSENT, changes, refuse_changes, unaccepted
from asr.cli.config.resuming import saved_config
from asr.cli.errors import ConfigError
from asr.console import PlainConsole
from asr.data.loading.acoustics import Acoustics
from asr.data.preparation.prepared import INDEX, PreparedData
from asr.errors import PeerLost, RunFailed
from asr.nested import flatten, is_within, leaves
from asr.quoting import resume_command
from asr.signals import Terminated
from asr.subprocesses import is_first_process
from asr.training.checkpoints.files import how_to_resume
from asr.training.checkpoints.loading import LoadedCheckpoint, newest_good_checkpoint
from asr.training.module import TrainingModule
from asr.training.resuming.changed_updates import ChangedUpdates
from asr.training.resuming.restorable import Misfit, check_restorable

UPDATES = ("optimizer", "parameter_rules", "schedule")  # groups of the config that make updates of gradients
# groups of the config that decide whether a part of a checkpoint fits
DECIDING = {
    "weights": ("encoder", "head", "tokenizer", "features", "data"),
    "optimizer": ("optimizer", "parameter_rules"),
    "schedule": ("schedule", "optimizer", "parameter_rules"),
}
MOST_NAMED = 4  # changes
LAST_RECORDED = "overrides.yaml"  # of the start of a run, which can be resumed from then on
# keys that act when all updates are done
LATE = ("decoder", "data.transcripts_lm", "trainer.max_steps", "trainer.max_epochs", "schedule.max_steps")

console = PlainConsole(quiet=not is_first_process())


def build_resumed_module(
    config: Mapping[str, Any], parts: DataParts, prepared: PreparedData, checkpoint: LoadedCheckpoint | None
) -> TrainingModule:
    """Build what Lightning trains, to continue from a checkpoint with the options of now.

    Raises:
        ConfigError: the optimizer of the checkpoint is another one.
    """
    module = build_module(config, parts, prepared)
    if checkpoint is not None:
        module.changed_updates = _changed_updates(checkpoint, config)
    return module


def _changed_updates(checkpoint: LoadedCheckpoint, config: Mapping[str, Any]) -> ChangedUpdates | None:
    """Return how updates were made and are made now; None if the config says the same about them."""
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
    """Refuse changes of a resumed run where they are why something fails, such as data that were never prepared.

    Args:
        folder: of the run; None: a new run.
        config: of now.
        anyway: the user accepts changes, so that the error itself is what counts.
    """
    try:
        yield
    except ValueError:
        if folder is not None:
            refuse_changes(unaccepted(changes(saved_config(folder), config), folder), anyway)
        raise


def accepted_changes(
    config: Mapping[str, Any], parts: DataParts, prepared: PreparedData, folder: Path, typed: Collection[str]
) -> list[str]:
    """Return what has changed since a run's last checkpoint, if the user accepts it and the checkpoint fits it.

    Args:
        config: of now.
        parts: of its data side.
        prepared: the data.
        folder: of the run.
        typed: keys that the command line names.

    Raises:
        ConfigError: something has changed without the user's word, or does not fit.
    """
    checkpoint = newest_good_checkpoint(folder)
    _refuse_foreign_recordings(parts, None if checkpoint is None else checkpoint.data.get("noise"), typed)
    found = new = changes(saved_config(folder), config)
    if checkpoint is not None:
        found = _changes_since(checkpoint, config, parts, prepared)
        new = unaccepted(found, folder)
    refuse_changes(new, bool(config["allow_changes"]))
    if checkpoint is not None:
        _check_resume(config, parts, prepared, checkpoint)
        if checkpoint.update == config["trainer"]["max_steps"]:
            _refuse_late(found, checkpoint.update)
        before, now = checkpoint.config.get("torch_threads"), config["torch_threads"]
        if before != now:
            console.print_line(
                f"note: torch_threads: {before} in the run, {now} now: sums are rounded in another order, so that last "
                "digits will differ"
            )
    for change in found:
        console.print_line(f"changed since the run was started: {change}")
    return found


def _refuse_late(found: Collection[str], num_updates: int) -> None:
    """Refuse changes that no update could follow: the run would be named after what it was never trained with."""
    # a key that the run lacks is of a later version of this program
    known = [change for change in found if f": {ABSENT!r} in the run" not in change]
    if late := [change for change in known if not is_within(change.partition(":")[0], LATE)]:
        raise ConfigError(
            f"resume: the run has made all its {num_updates} updates, so that nothing would follow {late[0]}; "
            "give more updates by trainer.max_steps, leave the change out, or start a new run"
        )


def _refuse_foreign_recordings(parts: DataParts, recorded: object, typed: Collection[str]) -> None:
    """Refuse folders of noise and rooms that the run's folder names, unless they hold what the run has used.

    A run of a stranger could name any folder: its recordings would be searched, read, and become a part of the model.
    """
    if not isinstance(parts.perturb, Acoustics):
        return
    folders = [one for one in parts.perturb.folders() if one.folder is not None and not is_within(one.key, typed)]
    if folders and parts.perturb.digest() != recorded:
        keys = " ".join(f"{one.key}={one.folder}" for one in folders)
        raise ConfigError(
            "resume: the files in folders that the run names are not those that its newest checkpoint was made with, "
            f"or it has no checkpoint; restore them, or type {keys} if these are right"
        )


def _changes_since(
    checkpoint: LoadedCheckpoint, config: Mapping[str, Any], parts: DataParts, prepared: PreparedData
) -> list[str]:
    """Return what has changed since a checkpoint was saved: keys of the config, the data, and files of noise."""
    found = changes(checkpoint.config, config)
    if checkpoint.data["fingerprint"] != prepared.fingerprint:
        found.append(f"data: {checkpoint.data['fingerprint']} in the run, {prepared.fingerprint} now")
    files, noise = (
        parts.perturb.digest() if isinstance(parts.perturb, Acoustics) else "",
        checkpoint.data.get("noise"),
    )
    if noise != files and noise is not None:
        found.append(f"files of augment.audio: {noise or 'none'} in the run, {files or 'none'} now")
    return found


def _check_resume(
    config: Mapping[str, Any], parts: DataParts, prepared: PreparedData, checkpoint: LoadedCheckpoint
) -> None:
    """Refuse to continue from a checkpoint that does not fit; names the changes that are to blame, if there are any.

    Args:
        config: of now.
        parts: of its data side.
        prepared: the data.
        checkpoint: that the run would continue from.

    Raises:
        ConfigError: a part of the checkpoint does not fit the config, or fits no run.
    """
    budget = config["trainer"]["max_steps"]
    if budget < checkpoint.update:
        raise ConfigError(
            f"resume: trainer.max_steps={budget}, but the run has made {checkpoint.update} updates; give at least as "
            "many, or start a new run"
        )
    problem = _misfit(config, parts, prepared, checkpoint)
    if problem is None:
        return
    found = _changes_since(checkpoint, config, parts, prepared)
    deciding = [
        change for change in found if change.partition(":")[0].partition(".")[0] in DECIDING.get(problem.part, ())
    ]
    if not deciding:
        raise ConfigError(
            f"resume: {checkpoint.path} does not fit the run that it is in: {problem}; "
            "move it away to resume from the one before"
        )
    if problem.part == "optimizer" and len(deciding) > 1:
        alone = (change for change in deciding if _misfit_alone(change, config, parts, prepared, checkpoint))
        deciding = [*alone] or deciding
    named = "; ".join(deciding[:MOST_NAMED])
    more = f"; and {len(deciding) - MOST_NAMED} more" if len(deciding) > MOST_NAMED else ""
    raise ConfigError(
        f"resume: {checkpoint.path}: {problem}, because of what has changed since it was saved: {named}{more}; "
        "leave that out, or start a new run"
    )


def _misfit(
    config: Mapping[str, Any], parts: DataParts, prepared: PreparedData, checkpoint: LoadedCheckpoint
) -> Misfit | None:
    try:
        check_restorable(build_resumed_module(config, parts, prepared, checkpoint), checkpoint.path)
    except Misfit as misfit:
        return misfit
    return None


def _misfit_alone(
    change: str,
    config: Mapping[str, Any],
    parts: DataParts,
    prepared: PreparedData,
    checkpoint: LoadedCheckpoint,
) -> bool:
    """Return whether the checkpoint does not fit because of a single change."""
    *parents, name = change.partition(":")[0].split(".")
    tried, now = copy.deepcopy({**config, **{key: checkpoint.config[key] for key in UPDATES}}), config
    node = tried
    try:
        for parent in parents:
            node, now = node[parent], now[parent]
        if name in now:
            node[name] = now[name]
        else:
            del node[name]
        return _misfit(tried, parts, prepared, checkpoint) is not None
    except (ValueError, KeyError):  # some options are possible, or exist, only with others
        return False


@contextlib.contextmanager
def saying_how_to_resume(run_dir: Path, prepared: PreparedData) -> Iterator[None]:
    """Add the command that resumes the run to a Ctrl-C, a signal, a lost peer, and an error of data that are gone."""
    try:
        yield
    except KeyboardInterrupt:
        if not (run_dir / LAST_RECORDED).is_file():
            raise
        raise KeyboardInterrupt(f"to resume from its last checkpoint: {resume_command(run_dir)}") from None
    except PeerLost as error:
        raise PeerLost(f"{error}; {how_to_resume(run_dir)}") from error
    except (OSError, ValueError, RunFailed) as error:
        if (prepared.folder / INDEX).is_file() or not run_dir.is_dir():
            raise
        again = f"{resume_command(run_dir)} data.dir={prepared.folder.parent.parent}"
        raise RunFailed(
            f"the prepared data in {prepared.folder} were removed while the run read them; {again} prepares them "
            "again and continues after the last checkpoint"
        ) from error
    except Terminated as ended:
        if not (run_dir / LAST_RECORDED).is_file():
            raise  # nothing to resume yet
        raise Terminated(ended.signal, lambda: f"; to resume: {resume_command(run_dir)}") from None
