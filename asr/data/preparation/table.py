"""The table printed at the end of preparing data."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from rich.table import Table

from asr.console import PlainConsole
from asr.data.preparation.prepared import DROPPED, TOO_SHORT, PreparedData

NUM_NAMED = 5
MISSING = "missing audio: "  # before the name of a file
MOST_LOOKED_FOR = 1000  # such files


def print_table(prepared: PreparedData, console: PlainConsole) -> None:
    """Print the contents of each split, the vocabulary size, what was dropped and why, and the folder."""
    table = Table(title=None, show_edge=False, pad_edge=False)
    table.add_column("split")
    for column in ("utterances", "hours", "speakers", "dropped"):
        table.add_column(column, justify="right")
    for name, split in prepared.splits.items():
        counts = (f"{split[key]:.0f}" for key in ("num_utterances", "num_speakers", "num_dropped"))
        utterances, speakers, dropped = counts
        table.add_row(name, utterances, f"{split['hours']:.2f}", speakers if speakers != "0" else "?", dropped)
    console.print(table)
    console.print(f"vocabulary: {prepared.tokenizer.vocab_size} tokens, blank included")
    with (prepared.folder / DROPPED).open(newline="", encoding="utf-8") as file:
        dropped_before = [(row["split"], row["reason"]) for row in csv.DictReader(file, delimiter="\t")]
    reasons = [*dropped_before, *((item.split, item.reason) for item in prepared.too_short)]
    # after the colon of a reason come the numbers of one item
    for (name, kind), count in sorted(Counter((name, why.partition(":")[0]) for name, why in reasons).items()):
        console.print(f"dropped from {name}: {count} × {kind}")
    if dropped_before:
        console.print_line(f"each of them: {prepared.folder / DROPPED}")
    missing = [why.removeprefix(MISSING) for _, why in dropped_before if why.startswith(MISSING)]
    if back := sum(Path(name).is_file() for name in missing[:MOST_LOOKED_FOR]):
        console.print_line(
            f"note: {back} recordings that were missing when the data were prepared exist now; remove "
            f"{prepared.folder.parent} to have the data prepared again"
        )
    if prepared.too_short:
        named = ", ".join(item.item for item in prepared.too_short[:NUM_NAMED])
        more = f" and {len(prepared.too_short) - NUM_NAMED} more" if len(prepared.too_short) > NUM_NAMED else ""
        console.print_line(f"too short with this encoder: {named}{more}; a run lists each in {TOO_SHORT}")
    for note in prepared.notes:
        console.print(f"note: {note}")
    console.print_line(f"prepared data: {prepared.folder}")
