"""Applies changes of a resumed run to its checkpoint, and checks that it fits before the run's folder records any."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from asr.config.build import DataParts
from asr.config.own_code import targets
from asr.config.resumed_config import ABSENT, Change, changes, refuse_changes, saved_config, unaccepted
from asr.console import PlainConsole
from asr.data.loading.augmentation import Acoustics
from asr.data.preparation.prepared import PreparedData
from asr.errors import ConfigError, PeerLost, first_line, is_out_of_memory
from asr.plain_data import at, flatten, is_within
from asr.processes import Terminated, is_first_process
from asr.run_folder import resume_command
from asr.training.checkpoints import LoadedCheckpoint, how_to_resume, load_weights
from asr.training.module import TrainingModule
from asr.training.optimizer_protocols import apply_to_checkpoint, calls_closure

LAST_RECORDED = "overrides.yaml"  # of the start of a run, which can be resumed from then on
UPDATES = ("optimizer", "parameter_rules", "schedule")  # groups of the config that make updates of gradients
LENGTH = ("trainer.max_steps", "trainer.max_epochs")

console = PlainConsole(quiet=not is_first_process())


def _refuse_other_targets(former: Any, current: Any, key: str) -> None:
    """Refuse another optimizer or transform: the names of its options and statistics may be the same by chance."""
    names = ([str(part["_target_"]) for _, part in targets(node)] for node in (former, current))
    for had, have in zip_longest(*names, fillvalue="none"):
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


def changes_since(
    checkpoint: LoadedCheckpoint, config: Mapping[str, Any], parts: DataParts, prepared: PreparedData
) -> list[Change]:
    """Return what has changed since a checkpoint was saved: keys of the config, the data, and files of noise."""
    changed = changes(checkpoint.config, config)
    if checkpoint.data["fingerprint"] != prepared.fingerprint:
        changed.append(Change("data", checkpoint.data["fingerprint"], prepared.fingerprint))
    files = parts.perturb.digest() if isinstance(parts.perturb, Acoustics) else ""
    if checkpoint.data["noise"] != files:
        changed.append(Change("files of augment.audio", checkpoint.data["noise"] or ABSENT, files or ABSENT))
    return changed


def accept_changes(
    config: Mapping[str, Any],
    folder: Path,
    checkpoint: LoadedCheckpoint | None,
    changed: Sequence[Change],
    adapt: Callable[[], object],
) -> None:
    """Refuse what has changed in a run unless the user accepts it; say the changes, and what they do to the rate.

    Args:
        config: the new one.
        folder: of the run.
        checkpoint: from which it is resumed.
        changed: changes since then.
        adapt: applies them to the checkpoint.

    Raises:
        ConfigError: a change is not accepted, or the checkpoint does not fit the present config.
    """
    anyway = bool(config["allow_changes"])
    if checkpoint is None:
        refuse_changes(changed, anyway)
    else:
        new = unaccepted(changed, folder)
        only_rate = all(is_within(change.key, ("schedule", *LENGTH)) for change in changed)
        if not only_rate:
            refuse_changes(new, anyway)
        if changed:
            lr = _learning_rate(checkpoint)
            adapt()
            if only_rate and not _same_updates(checkpoint.config, config):
                new_lr = _learning_rate(checkpoint)
                line = f"learning rate after update {checkpoint.update}: {lr:.3g} in the run, {new_lr:.3g} now"
                refuse_changes([*new, line] if new else [], anyway)
                console.print_line(line)
            refuse_changes(new, anyway)
        threads, threads_now = checkpoint.config.get("torch_threads"), config["torch_threads"]
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


def _same_updates(former: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    return all(flatten(former.get(key)) == flatten(current.get(key)) for key in UPDATES)


def fit_checkpoint(
    checkpoint: LoadedCheckpoint, config: Mapping[str, Any], changed: Sequence[Change], module: TrainingModule
) -> None:
    """Apply changes to the content of a checkpoint, load it into a module, and try an update if its options changed.

    Training restores the weights, which the trial moves, once more.

    Raises:
        ConfigError: a part of the checkpoint does not fit, or the budget is below its updates; names ``changed``, the
            changes since it was saved.
    """
    if (budget := config["trainer"]["max_steps"]) < checkpoint.update:
        raise ConfigError(
            f"resume: trainer.max_steps={budget}, but the run has made {checkpoint.update} updates; give at least as "
            "many, or start a new run"
        )
    is_changed = not _same_updates(checkpoint.config, config)
    if is_changed:
        for key in ("optimizer", "parameter_rules"):
            _refuse_other_targets(checkpoint.config.get(key), config[key], key)
    state: Any = checkpoint.state
    try:
        load_weights(module.recognizer, checkpoint.weights)
        if checkpoint.tokenizer != module.tokenizer.state():
            raise ValueError("its tokenizer has other tokens")
        # steps in the backward pass would hook the parameters that are trained
        make = getattr(module.optimizer_factory, "keywords", {}).get("factory", module.optimizer_factory)
        optimizer = make(module.recognizer.named_parameters())
        if is_changed:
            options = _changed_options(checkpoint.config, config)
            schedule = apply_to_checkpoint(state, options, optimizer, module.schedule_factory)
        else:
            schedule = module.schedule_factory(optimizer)
        optimizer.load_state_dict(copy.deepcopy(state["optimizer_states"][0]))
        schedule.load_state_dict(state["lr_schedulers"][0])
        if is_changed:  # torch's optimizers notice at a step that they lack statistics
            _try_update(optimizer)
    except Exception as error:  # optimizers refuse the states of others by errors of any kind
        if is_out_of_memory(error):
            raise
        reason = first_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {first_line(error)}"
        raise ConfigError(
            f"resume: {checkpoint.path} does not fit: {reason}; changed since it was saved: "
            f"{'; '.join(map(str, changed))}. Undo the change, or start a new run"
        ) from error


def _try_update(optimizer: Optimizer) -> None:
    """Make an update with gradients of ones."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = False  # only a GPU can do it, and these parameters are on none
    calls_closure(optimizer)
    optimizer.zero_grad()


def _changed_options(former: Mapping[str, Any], current: Mapping[str, Any]) -> set[str]:
    """Return the names of the options of optimizer and parameter rules that have changed."""
    changed = changes({key: former.get(key) for key in UPDATES}, {key: current.get(key) for key in UPDATES})
    names = {change.key.split(".")[1] for change in changed if change.key.startswith("optimizer.")}
    if any(is_within(change.key, ["parameter_rules"]) for change in changed):
        for config in (former, current):
            for rule in at(config, "parameter_rules", "rules") or ():
                names |= {*rule} | {*(rule.get("optimizer") or ())}
    return names


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
