"""Tables of the documentation that follow from the code are up to date."""

from __future__ import annotations

import sys


def test_generated_tables_are_up_to_date(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["docs_tables.py", "--check"])
    assert script("docs_tables").main() == 0, capsys.readouterr().out
