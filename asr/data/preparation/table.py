"""The table that preparing data ends with."""

from __future__ import annotations

import csv
from collections import Counter

from rich.table import Table

from asr.console import PlainConsole
from asr.data.preparation.prepared import DROPPED, PreparedData


def print_table(prepared: PreparedData, console: PlainConsole) -> None:
    """Print what each split holds, the vocabulary, what was dropped and why, and where it all lies."""
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
    for (name, reason), count in sorted(_reasons(prepared).items()):
        console.print(f"dropped from {name}: {count} × {reason}")
    if _reasons(prepared):
        console.print(f"each of them: {prepared.folder / DROPPED}", soft_wrap=True)
    for note in prepared.notes:
        console.print(f"note: {note}")
    console.print(f"prepared data: {prepared.folder}", soft_wrap=True)


def _reasons(prepared: PreparedData) -> Counter[tuple[str, str]]:
    with (prepared.folder / DROPPED).open(newline="", encoding="utf-8") as file:
        # the part before a colon is the kind of reason; behind it come the numbers of one item
        return Counter((row["split"], row["reason"].partition(":")[0]) for row in csv.DictReader(file, delimiter="\t"))
