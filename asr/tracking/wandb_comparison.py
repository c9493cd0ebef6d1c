"""Logs a comparison to Weights & Biases, as a separate run next to those that were compared."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import wandb

from asr.compare.result import Comparison, Contrast, SetComparison
from asr.errors import first_line
from asr.options import Tag, Text
from asr.tracking.wandb_access import Mode, chosen_mode, default_project

COLUMNS = (
    *("system", "seeds", "learned", "wer_mean", "wer_geomean", "wer_sd", "low", "high", "over", "may_be_best"),
    *("vs_baseline", "vs_baseline_low", "vs_baseline_high", "vs_baseline_p", "vs_baseline_verdict"),
)


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
        of_system = (row.system, *counts, *means, row.low, row.high, row.scope, row.may_be_best)
        values = (*of_system, *_cells(row.to_baseline))
        # JSON has no NaN or infinity
        rows.append([None if isinstance(value, float) and not math.isfinite(value) else value for value in values])
    return wandb.Table(columns=list(COLUMNS), data=rows, allow_mixed_types=True)


def _cells(contrast: Contrast | None) -> tuple[Any, ...]:
    if contrast is None:
        return (None,) * 5
    return contrast.value, contrast.low, contrast.high, contrast.p_adjusted, contrast.verdict
