"""Weights & Biases: online where there is an API key, offline otherwise; never a prompt."""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import wandb
from lightning.pytorch.loggers import WandbLogger

from asr.evaluation.wer import ScoredUtterance

HOST = "api.wandb.ai"
INIT_TIMEOUT_S = 30


def has_api_key() -> bool:
    """Return whether wandb would find a key without asking."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class WandbTracking(WandbLogger):
    """A wandb run in the run's folder.

    Args:
        run_dir: the run's folder; wandb's files go below it.
        config: the composed config as plain data.
        project: wandb project.
        entity: wandb user or team; None for the default one.
        group: runs that belong together.
        tags: labels of the run.
        mode: ``auto`` is online where there is an API key; the variable WANDB_MODE wins over it.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Mapping[str, Any],
        project: str = "werdict",
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        mode: Literal["auto", "online", "offline"] = "auto",
    ) -> None:
        if mode == "auto":
            mode = os.environ.get("WANDB_MODE") or ("online" if has_api_key() else "offline")  # type: ignore[assignment]
        self.offline_dir = None if mode == "online" else run_dir
        super().__init__(
            name="/".join(run_dir.parts[-2:]),
            save_dir=run_dir,
            project=project,
            entity=entity,
            group=group,
            tags=list(tags),
            offline=mode != "online",
            config=dict(config),
            settings=wandb.Settings(init_timeout=INIT_TIMEOUT_S, silent=True, console="off"),
        )
        # wandb warns of an option that Lightning always passes on
        self._wandb_init.pop("anonymous", None)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log numbers of an update."""
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
        """End the run, as failed where the code is not 0; return the command that uploads an offline run."""
        folder = Path(self.experiment.dir).parent
        self.experiment.finish(exit_code=exit_code)
        return f"wandb sync {folder}" if self.offline_dir else None
