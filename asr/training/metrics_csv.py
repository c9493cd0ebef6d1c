"""metrics.csv: every number of a run, one row each, appended as it comes."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only


class MetricsCsv(Logger):
    """Appends (step, name, value) rows, so that a killed run keeps its numbers and a resumed one goes on.

    Args:
        run_dir: the run's folder.
    """

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self.path = run_dir / "metrics.csv"

    def go_on(self, update: int) -> None:
        """Forget what was logged behind the checkpoint of an update: a resumed run logs it again."""
        if not self.path.exists():
            return
        with self.path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        kept = self.path.with_suffix(".partial")
        with kept.open("w", newline="", encoding="utf-8") as file:
            # a kill may have left half a row at the end
            csv.writer(file).writerows([header, *(row for row in rows if len(row) == 3 and int(row[0]) < update)])
        kept.replace(self.path)

    @property
    def name(self) -> str:
        """The kind of logger."""
        return "csv"

    @property
    def version(self) -> str:
        """The run's folder."""
        return self.path.parent.name

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: config.yaml holds them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one row per metric."""
        new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(("step", "name", "value"))
            writer.writerows((step, name, repr(float(value))) for name, value in metrics.items() if name != "epoch")
