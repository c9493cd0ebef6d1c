"""Weights & Biases as a logger: online if there is an API key, else offline; never a prompt."""

from __future__ import annotations

import inspect
import os
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import wandb
from lightning.pytorch.loggers import WandbLogger

from asr.console import PlainConsole
from asr.errors import first_line
from asr.evaluation.metrics_csv import best_dev_wer
from asr.evaluation.wer import ScoredUtterance
from asr.options import Tag, Text
from asr.plain_data import at
from asr.safe_io import write_whole
from asr.tracking.wandb_access import Mode, chosen_mode, default_project, refuse_unwritable_folders

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
        self.best_wer = best_dev_wer(run_dir)
        # jobs of a sweep are grouped by its name
        name = run_dir.name if at(config, "sweep", "name") else "/".join(run_dir.parts[-2:])
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
        # Lightning (2.6) always passes the first, and a sweep has the others: wandb would warn about them
        for name in ("anonymous", *(("project", "entity", "id") if "WANDB_SWEEP_ID" in os.environ else ())):
            self._wandb_init.pop(name, None)
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
            artifact = wandb.Artifact(self._checkpoint_name or f"model-{self.experiment.id}", "model")
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
