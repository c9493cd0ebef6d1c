"""``asr-runs``: the runs under a folder, how they stand, and how much room they take."""

from __future__ import annotations

import json
from dataclasses import asdict

from asr.run.compose import default_recipe
from asr.run.folder import FILES
from asr.run.options import Runs, texts
from asr.runs.folders import BEST, lines_of, list_runs, sort_key
from werdict.console import PlainConsole
from werdict.errors import ConfigError
from werdict.files import named_path
from werdict.formatting import count, shortlist

console = PlainConsole()


def run(options: Runs) -> None:
    """Print the runs, and how to delete checkpoints that nobody needs."""
    folders = [named_path(folder) for folder in texts(options.folder)]
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"folder: there is no folder {str(folder)!r}")
    rows, problems = list_runs(folders, default_recipe())
    if not rows and not problems:
        raise ConfigError(f"folder: no run in {shortlist(folders)}; a run's folder contains {' and '.join(FILES)}")
    rows.sort(key=lambda row: sort_key(row, options.sort))
    if options.output_format == "json":
        print(json.dumps([asdict(row) for row in rows], indent=1))
        for problem in problems:
            PlainConsole(stderr=True).print_line(f"problem: {problem}")
        return
    for text in lines_of(rows):
        console.print_line(text)
    for problem in problems:
        console.print_line(f"problem: {problem}")
    finished = [row for row in rows if row.status == "finished" and row.other_checkpoints_mb > 0]
    line = f"{count(len(rows), 'run')}, {sum(row.size_mb for row in rows):,.0f} MB"
    if finished:
        line += (
            f"; {BEST} of a finished run is enough to decode: rm RUN/checkpoints/update-*.ckpt "
            f"RUN/checkpoints/last.ckpt frees {sum(row.other_checkpoints_mb for row in finished):,.0f} MB in "
            f"{count(len(finished), 'run')}, which cannot be trained further afterwards"
        )
    console.print_line(line)
