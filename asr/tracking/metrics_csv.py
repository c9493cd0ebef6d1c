"""metrics.csv: one row for each number that a run logs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from asr.runs.files import HEADER, rows_before
from asr.training.checkpoints import explaining_failed_writes
from werdict.files import naming, replace_by, sync


class MetricsCsv(Logger):
    """Appends rows (step, name, value): a killed run keeps its numbers, and a resumed run adds to them.

    Args:
        run_dir: the run's folder.
    """

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self.path = run_dir / "metrics.csv"

    def resume(self, update: int) -> None:
        """Remove the rows after the checkpoint of an update: the resumed run logs them again."""
        if not self.path.exists():
            return
        # a line at a time: tables of long runs may be larger than the memory
        with open(self.path, encoding="utf-8", newline="") as file, explaining_failed_writes(self.path.parent):

            def write(temporary: Path) -> None:
                with open(temporary, "x", encoding="utf-8", newline="") as output:
                    csv.writer(output).writerows(rows_before(file, update))
                sync(temporary)

            replace_by(self.path, write)

    @property
    def name(self) -> str:
        """The name of the logger."""
        return "csv"

    @property
    def version(self) -> str:
        """The name of the run's folder."""
        return self.path.parent.name

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: config.yaml holds them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one row per metric.

        Raises:
            RunFailed: it cannot be written.
        """
        new = not self.path.exists()
        rows = [(step, name, repr(float(value))) for name, value in metrics.items() if name != "epoch"]
        with explaining_failed_writes(self.path.parent), naming(self.path), open(self.path, "a", newline="") as file:
            csv.writer(file).writerows([HEADER, *rows] if new else rows)
