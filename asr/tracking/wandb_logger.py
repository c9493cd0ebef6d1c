"""Weights & Biases as a logger: online if there is an API key, else offline; never a prompt."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb
from lightning.pytorch.loggers import WandbLogger

from asr.error_text import first_line
from asr.evaluation.wer import ScoredUtterance
from asr.option_types import Tag, Text
from asr.safe_io import write_whole
from asr.tracking.wandb_access import Mode, chosen_mode, refuse_unwritable_folders

RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _run_id(run_dir: Path) -> str:
    """Return the id of the wandb run of this folder; the first call chooses it.

    Raises:
        ValueError: the file holds no id; wandb names folders by it.
    """
    path = run_dir / "wandb_id"
    if not path.exists():
        write_whole(path, secrets.token_hex(4))
    found = path.read_text(encoding="utf-8")
    if not RUN_ID.fullmatch(found):
        raise ValueError(f"{path} holds {found[:40]!r}, not the id of a wandb run; remove it to begin another")
    return found


class WandbTracking(WandbLogger):
    """A wandb run in the run's folder.

    Args:
        run_dir: the run's folder; wandb's files go below it.
        config: the composed config as plain data.
        project: wandb project.
        entity: wandb user or team; None: the default one.
        group: wandb group, shared by the runs of a sweep.
        tags: labels of the run.
        mode: ``auto`` follows the variable WANDB_MODE, else it is online if there is an API key.

    Raises:
        ValueError: wandb refuses the key, or cannot be reached.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Mapping[str, Any],
        project: str = "werdict",
        entity: str | None = None,
        group: Text | None = None,
        tags: Sequence[Tag] = (),
        mode: Mode = "auto",
    ) -> None:
        mode = chosen_mode(mode)
        self.offline_dir = None if mode == "online" else run_dir
        super().__init__(
            # a resumed run continues its wandb run
            id=_run_id(run_dir),
            resume="allow",
            name="/".join(run_dir.parts[-2:]),
            save_dir=run_dir,
            project=project,
            entity=entity,
            group=group,
            job_type="train",
            tags=list(tags),
            offline=mode != "online",
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off"),
        )
        # Lightning (2.6) always passes this option, and wandb warns about it
        self._wandb_init.pop("anonymous", None)
        try:
            # starts the run now: a server that cannot be reached should end the command before training, not after
            self.experiment  # noqa: B018
        except (wandb.errors.Error, ValueError) as error:
            raise ValueError(
                f"wandb could not start a run: {first_line(error)}; logger.wandb.mode=offline uploads it later, "
                "logger=csv needs no wandb"
            ) from error

    check_machine = staticmethod(refuse_unwritable_folders)  # called before anything is built

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log numbers of an update."""
        # Lightning adds its epoch to every call; train/epoch is logged once per update
        super().log_metrics({name: value for name, value in metrics.items() if name != "epoch"}, step)

    def log_samples(self, name: str, samples: Sequence[ScoredUtterance], step: int) -> None:
        """Log a table of references, hypotheses and numbers of word errors."""
        columns: list[str | int] = ["update", "id", "reference", "hypothesis", "errors"]
        rows = [[step, s.utterance.id, s.utterance.reference, s.utterance.hypothesis, s.words.errors] for s in samples]
        self.experiment.log({f"{name}/samples": wandb.Table(columns=columns, data=rows)})

    def log_summary(self, numbers: Mapping[str, float]) -> None:
        """Put final numbers into the run's summary."""
        self.experiment.summary.update(dict(numbers))

    def close(self, exit_code: int) -> str | None:
        """End the run, as failed if the code is not 0; return the command that uploads an offline run."""
        folder = Path(self.experiment.dir).parent
        self.experiment.finish(exit_code=exit_code)
        return f"wandb sync {folder}" if self.offline_dir else None
