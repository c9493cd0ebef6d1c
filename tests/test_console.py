"""Progress for those who look, and for those who read a log."""

import time

from werdict import console


def test_without_a_terminal_a_long_step_says_from_time_to_time_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(console, "LINE_EVERY_S", 0.1)
    for _ in console.track(range(2), "reading [a].tsv", transient=True):
        time.sleep(0.3)
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[0].startswith("reading [a].tsv: 0 %")
    assert any(line.startswith("reading [a].tsv: 50 %") for line in lines)
