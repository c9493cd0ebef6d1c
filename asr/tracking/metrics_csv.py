"""metrics.csv: one row for each number that a run logs."""

from __future__ import annotations

import csv
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from asr.safe_io import check_regular_file, naming, open_inside, replace_by
from asr.table_files import bounded_lines
from asr.training.checkpoint_files import explaining_failed_writes

HEADER = ("step", "name", "value")


class MetricsCsv(Logger):
    """Appends rows (step, name, value): a killed run keeps its numbers, and a resumed run adds to them.

    Args:
        run_dir: the run's folder.
    """

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self.path = run_dir / "metrics.csv"

    def resume(self, update: int) -> None:
        """Remove the rows after the checkpoint of an update: the resumed run logs them again.

        Raises:
            ValueError: the file is not such a table.
        """
        if not os.path.lexists(self.path):
            return
        check_regular_file(self.path)
        try:
            with open_inside(self.path, "r") as file:
                # one line at a time: the table of a long run, or of a stranger, may be larger than the memory
                rows = csv.reader(bounded_lines(file))
                header = next(rows, [])
                if tuple(header) != HEADER:
                    raise ValueError(f"it begins {header[:3]!s:.80}")
                # a kill may have left an incomplete row at the end
                kept = itertools.chain([HEADER], (row for row in rows if _is_before(row, update)))
                with explaining_failed_writes(self.path.parent):
                    replace_by(self.path, lambda temporary: _write_rows(temporary, kept))
        except (csv.Error, ValueError) as error:
            raise ValueError(f"{self.path} is not a table of metrics: {error}; move it away to resume") from None

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
        with explaining_failed_writes(self.path.parent), naming(self.path), open_inside(self.path, "a") as file:
            csv.writer(file).writerows([HEADER, *rows] if new else rows)


def _write_rows(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with open(path, "x", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
        file.flush()
        os.fsync(file.fileno())


def _is_before(row: Sequence[str], update: int) -> bool:
    try:
        return len(row) == 3 and int(row[0]) < update
    except ValueError:
        return False
