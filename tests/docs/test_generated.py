"""Tables of the documentation that follow from the code are up to date."""

from __future__ import annotations

import sys


def test_generated_tables_are_up_to_date(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["docs_tables.py", "--check"])
    assert script("docs_tables").main() == 0, capsys.readouterr().out


def test_a_table_is_made_anew_and_the_rest_of_a_page_stays(script):
    page = script("docs_tables").renewed("before\n<!-- generated: schedules -->\nold\n<!-- end -->\nafter\n")
    assert page.startswith("before\n<!-- generated: schedules -->\n\n| schedule |")
    assert page.endswith("|\n\n<!-- end -->\nafter\n")
    assert "old" not in page
    assert "| `WarmupCosine(max_steps, warmup_steps, min_lr_ratio)` |" in page
