"""Weights & Biases: whether and how it may be used, the logger of a run, and the run of a comparison."""

from __future__ import annotations

import inspect
import math
import netrc
import os
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack
from urllib.parse import urlparse

import numpy as np
import wandb
from lightning.pytorch.loggers import WandbLogger
from wandb.env import CACHE_DIR, DATA_DIR, get_cache_dir, get_data_dir
from wandb.sdk.wandb_setup import singleton

from asr.ranges import Tag, Text
from asr.runs.files import best_dev_wer
from asr.training.lightning_internals import leave_to_wandb
from werdict.console import PlainConsole
from werdict.errors import first_line
from werdict.files import get_nested, write_whole
from werdict.result import Comparison, SetComparison
from werdict.scoring import ScoredUtterance

FORMER_HOST = "api.wandb.ai"  # keys saved by earlier versions of wandb are filed under it

Mode = Literal["auto", "online", "offline"]
# values of WANDB_MODE; dryrun and run are their former names
MODES: dict[str, Mode] = {"online": "online", "run": "online", "offline": "offline", "dryrun": "offline"}

RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
# arguments that follow from the run, and Lightning's "anonymous", about which wandb warns
FOLLOWING = ("self", "dir", "save_dir", "config", "resume", "experiment", "anonymous", "kwargs")
OWN = ("project", "tags", "mode", "log_model")  # of ``WandbTracking``
TEXTS = ("name", "notes", "job_type", "group", "entity")
# of wandb.init and of Lightning's logger, as keys that are checked before a run begins
Options = TypedDict(  # type: ignore[misc]
    "Options",
    {
        name: Text | None if name in TEXTS else Any
        for target in (wandb.init, WandbLogger.__init__)
        for name in inspect.signature(target).parameters
        if name not in FOLLOWING + OWN
    },
    total=False,
)

console = PlainConsole()


def settings() -> wandb.Settings:
    """Return wandb's own settings: of ``wandb init`` and ``wandb offline`` in this folder, and of its variables."""
    return singleton().settings


def default_project() -> str:
    """Return the project of runs for which none is given: of wandb's settings or variables, else ``werdict``."""
    return settings().project or "werdict"


def has_api_key() -> bool:
    """Return whether wandb would find an API key without a prompt."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    hosts = (urlparse(settings().base_url).hostname, FORMER_HOST)
    try:
        saved = netrc.netrc(os.environ.get("NETRC"))
    except (OSError, netrc.NetrcParseError):
        return False
    return any(host in saved.hosts for host in hosts)


def is_switched_off() -> bool:
    """Return whether a variable of wandb, or its settings, ask for no runs at all."""
    disabled = os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "t", "yes", "y", "on")
    return disabled or (os.environ.get("WANDB_MODE") or settings().mode) == "disabled"


def chosen_mode(mode: Mode) -> Mode:
    """Return the mode that ``auto`` stands for: of WANDB_MODE or ``wandb offline``, else online if there is a key.

    Raises:
        ValueError: WANDB_MODE is not a mode of wandb's, wandb is switched off, or it cannot write.
    """
    if mode == "auto":
        if is_switched_off():
            raise ValueError(
                "wandb is switched off by WANDB_MODE, WANDB_DISABLED or its settings; choose logger=csv, or unset that"
            )
        named = os.environ.get("WANDB_MODE") or (
            "online" if settings().mode != "offline" and has_api_key() else "offline"
        )
        if named not in MODES:
            raise ValueError(f"WANDB_MODE must be online, offline or disabled, given {named[:40]!r}")
        mode = MODES[named]
    refuse_unwritable_folders()
    return mode


def refuse_unwritable_folders() -> None:
    """Refuse folders of wandb's own, mostly in the user's home, that cannot be written.

    wandb (0.31) would fail at the first table, in the middle of training, and log to the terminal.

    Raises:
        ValueError: names the folder and the variable that moves it.
    """
    # its service, which is written in Go, knows the home by the variable alone
    os.environ.setdefault("HOME", os.path.expanduser("~"))
    for variable, folder in ((DATA_DIR, get_data_dir()), (CACHE_DIR, get_cache_dir())):
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            is_writable = os.access(folder, os.W_OK | os.X_OK)
        except OSError:
            is_writable = False
        if not is_writable:
            raise ValueError(
                f"wandb cannot write to {folder}; set {variable}, or HOME, to a folder of yours, or choose logger=csv"
            )


def _run_id(run_dir: Path, initial_id: str | None = None) -> str:
    """Return the id of the wandb run of this folder; the first call chooses it.

    Args:
        run_dir: the run's folder.
        initial_id: an id to begin with; None: that of WANDB_RUN_ID, which agents of wandb's sweeps set, else a new one.

    Raises:
        ValueError: the id is not valid; wandb names folders by it.
    """
    path = run_dir / "wandb_id"
    if not path.exists():
        write_whole(path, initial_id or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4))
    run_id = path.read_text(encoding="utf-8")
    if not RUN_ID.fullmatch(run_id):
        raise ValueError(f"{path} holds {run_id[:40]!r}, not the id of a wandb run; remove it to begin another")
    return run_id


class WandbTracking(WandbLogger):
    """A wandb run in the run's folder.

    Args:
        run_dir: the run's folder; wandb's files go below it.
        config: the composed config as plain data.
        project: wandb project; None: see ``default_project``.
        tags: labels of the run.
        mode: ``auto`` follows wandb's variables and settings, else it is online if there is an API key.
        log_model: whether the best checkpoint is uploaded as an artifact.
        options: of ``wandb.init`` and Lightning's ``WandbLogger``. Where one is None, wandb's variable holds.

    Raises:
        ValueError: wandb refuses the key, or cannot be reached.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Mapping[str, Any],
        project: str | None = None,
        tags: Sequence[Tag] = (),
        mode: Mode = "auto",
        log_model: bool = False,
        **options: Unpack[Options],
    ) -> None:
        kwargs: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        mode = chosen_mode("offline" if kwargs.pop("offline", False) else mode)
        self.run_dir, self.log_model, self.minimized = run_dir, log_model, set[str]()
        self.best_wer, self.checkpoint_name = best_dev_wer(run_dir), kwargs.pop("checkpoint_name", None)
        # jobs of a sweep are grouped by its name
        name = run_dir.name if get_nested(config, "sweep", "name") else "/".join(run_dir.parts[-2:])
        usual = {"WANDB_NAME": ("name", name), "WANDB_JOB_TYPE": ("job_type", "train")}
        kwargs = dict(default for variable, default in usual.items() if not os.environ.get(variable)) | kwargs
        settings = wandb.Settings(silent=True, console="off")
        settings.update_from_settings(wandb.Settings(**dict(kwargs.pop("settings", {}))))
        run_id = _run_id(run_dir, kwargs.pop("id", None) or kwargs.pop("version", None))
        super().__init__(
            # a resumed run continues its wandb run
            id=run_id,
            resume="allow",
            save_dir=run_dir,
            project=project or default_project(),
            tags=list(tags) or None,
            mode=mode,
            config=dict(config),
            settings=settings,
            **kwargs,
        )
        # nobody gives the first, and a sweep has the others
        leave_to_wandb(self, ("anonymous", *(("project", "entity", "id") if "WANDB_SWEEP_ID" in os.environ else ())))
        try:
            # starts the run now: a server that cannot be reached should end the command before training, not after
            address = self.experiment.url
        except (wandb.errors.Error, ValueError) as error:
            raise ValueError(
                f"wandb could not start a run: {first_line(error)}; logger.wandb.mode=offline uploads it later, "
                "logger=csv needs no wandb"
            ) from error
        if address:
            console.print_line(f"wandb: {address}")

    check_machine = staticmethod(refuse_unwritable_folders)  # called before anything is built

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log numbers of an update; the run's summary keeps the minimum of each that is measured on dev.

        Sweeps of wandb do not know the minima of a summary: for them the best WER so far is logged too.
        """
        if "val/wer" in metrics:
            self.best_wer = min(self.best_wer, metrics["val/wer"])
            metrics = {**metrics, "best_wer": self.best_wer}
        for name in metrics:
            if name.startswith("val/") and name not in self.minimized:
                self.minimized.add(name)
                self.experiment.define_metric(name, step_metric="trainer/global_step", step_sync=True, summary="min")
        # Lightning adds its epoch to every call; train/epoch is logged once per update
        super().log_metrics({name: value for name, value in metrics.items() if name != "epoch"}, step)

    def log_samples(
        self, name: str, samples: Sequence[ScoredUtterance], step: int, audio: Mapping[str, np.ndarray], rate_hz: int
    ) -> None:
        """Log a table of references, hypotheses and numbers of word errors, with audio as far as it is given.

        Args:
            name: of the set.
            samples: of the set.
            step: number of updates.
            audio: (N,) float32 by id.
            rate_hz: of the audio.
        """
        columns: list[str | int] = ["update", "id", "reference", "hypothesis", "errors", *(["audio"] if audio else [])]
        table = wandb.Table(columns=columns)
        for sample in samples:
            utterance = sample.utterance
            row = [step, utterance.id, utterance.reference, utterance.hypothesis, sample.words.errors]
            heard = audio.get(utterance.id)
            sound = None if heard is None else wandb.Audio(heard, sample_rate=rate_hz)
            table.add_data(*row, *([sound] if audio else []))
        self.experiment.log({f"{name}/samples": table})

    def log_checkpoint(self, path: Path, update: int) -> None:
        """Upload the best checkpoint as an artifact, if asked for."""
        if self.log_model:
            artifact = wandb.Artifact(self.checkpoint_name or f"model-{self.experiment.id}", "model")
            artifact.add_file(str(path))
            self.experiment.log_artifact(artifact, aliases=["best", f"update-{update}"])

    def log_summary(self, numbers: Mapping[str, float]) -> None:
        """Put final numbers into the run's summary."""
        self.experiment.summary.update(dict(numbers))

    def close(self, exit_code: int) -> str | None:
        """End the run, as failed if the code is not 0; return the command that uploads what was logged offline."""
        self.experiment.finish(exit_code=exit_code)
        # each start of the run has left a part
        parts = sorted((self.run_dir / "wandb").glob(f"offline-run-*-{self.experiment.id}"))
        return f"wandb sync {shlex.join(map(str, parts))}" if parts else None


COLUMNS = (
    *("system", "seeds", "learned", "wer_mean", "wer_geomean", "wer_sd", "low", "high", "over", "may_be_best"),
    *("vs_baseline", "vs_baseline_low", "vs_baseline_high", "vs_baseline_p", "vs_baseline_verdict"),
)
CONTRAST = ("value", "low", "high", "p_adjusted", "verdict")  # in the last of them


def log_comparison(
    comparison: Comparison,
    files: Sequence[Path],
    folder: Path,
    *,
    project: str | None = None,
    entity: str | None = None,
    group: Text | None = None,
    tags: Sequence[Tag] = (),
    mode: Mode = "auto",
) -> str | None:
    """Log a run of type ``comparison`` with a table per test set, plots and pages.

    Args:
        files: of the comparison; those that wandb can show are uploaded.
        folder: of the comparison; wandb's files go below it.
        project: of wandb; None: as for runs.
        entity: wandb user or team.
        group: of the runs that are compared, if they have one.
        mode: ``auto`` is online if there is an API key.

    Returns:
        The command that uploads an offline run; None if it is online.

    Raises:
        ValueError: wandb refuses the key, or cannot be reached.
    """
    online = chosen_mode(mode) == "online"
    try:
        run = wandb.init(
            id=secrets.token_hex(4),  # not that of WANDB_RUN_ID, which is the id of a training run
            project=project or default_project(),
            entity=entity,
            group=group,
            tags=list(tags) or None,
            job_type="comparison",
            name=f"comparison of {comparison.title}",
            dir=folder,
            mode="online" if online else "offline",
            config={
                "title": comparison.title,
                "unit": comparison.unit,  # that "wer" counts in
                "level": comparison.level,
                "scale": comparison.scale,
                "problems": list(comparison.problems),
            },
            settings=wandb.Settings(silent=True, console="off"),
        )
    except wandb.errors.Error as error:
        raise ValueError(
            f"wandb could not start a run: {first_line(error)}. The comparison is in {folder}; say logger=none to "
            "keep it there"
        ) from error
    media = {".png": lambda path: wandb.Image(str(path)), ".html": lambda path: wandb.Html(str(path))}
    shown = {path.stem: media[path.suffix](path) for path in files if path.suffix in media}
    run.log({**{f"{test_set.name}/table": _table(test_set) for test_set in comparison.sets}, **shown})
    run.summary.update({f"{s.name}/{row.system}/wer": row.wer_mean for s in comparison.sets for row in s.rows})
    run_folder = Path(run.dir).parent
    run.finish()
    return None if online else f"wandb sync {run_folder}"


def _table(test_set: SetComparison) -> wandb.Table:
    rows = []
    for row in test_set.rows:
        means = row.wer_mean, row.wer_geomean, row.wer_sd
        counts = len(row.seeds), row.reliability.num_learned
        of_contrast = [getattr(row.to_baseline, name, None) for name in CONTRAST]
        of_system = (row.system, *counts, *means, row.low, row.high, row.scope, row.may_be_best)
        values = (*of_system, *of_contrast)
        # JSON has no NaN or infinity
        rows.append([None if isinstance(value, float) and not math.isfinite(value) else value for value in values])
    return wandb.Table(columns=list(COLUMNS), data=rows, allow_mixed_types=True)
