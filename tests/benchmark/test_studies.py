"""Tables of studies that were judged again follow from what is stored."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_the_study_on_phrases_follows_from_its_stored_rates(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "recipes" / "phrases" / "RESULTS.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(block, {})
    best, *lines = printed.getvalue().splitlines()
    assert len(lines) == 7
    for line in lines:
        name, numbers, verdict = re.match(r"(\w+) (.*\]) (.*)", line).groups()
        row = next(row for row in text.splitlines() if row.startswith(f"| `{name}` |"))
        assert f"| {numbers} |" in row
        assert verdict in row
        assert row.endswith("| yes |") == (name in best.split("'"))
