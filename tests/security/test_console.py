"""Text of strangers on the terminal: nothing reorders it or hides in it, and no language is harmed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.panel import Panel

from asr.commands import transcribe
from asr.commands.app import run_app
from asr.inference.transcripts import Segment, Transcript
from tests.configs import composed
from tests.faults.spoken_corpus import write_audio
from werdict.console import PlainConsole, one_line, printable
from werdict.errors import ConfigError

# what is given, what is shown
SHOWN = {
    "an override of the direction": ("gpj.\u202eexe", r"gpj.\u202eexe"),
    "a space of no width": ("a\u200bb", r"a\u200bb"),
    "ends of lines": ("a\u2028b\x85", r"a\u2028b\x85"),
    "letters of tags": ("a\U000e0061", r"a\U000e0061"),
    "an escape sequence": ("\x1b[31m", r"\x1b[31m"),
    "half of a surrogate pair": ("\ud800", r"\ud800"),
    "markup of rich": ("[/bold]:boom:", "[/bold]:boom:"),
    "Persian": ("می\u200cخواهم", "می\u200cخواهم"),
    "Hindi with joiners": ("क्\u200dष और क्\u200cष", "क्\u200dष और क्\u200cष"),
    "a family": ("👩\u200d👧\ufe0f", "👩\u200d👧\ufe0f"),
    "lines and tabs": ("a\tb\nc", "a\tb\nc"),
}


@pytest.mark.parametrize(("given", "shown"), SHOWN.values(), ids=SHOWN)
def test_what_reorders_or_hides_is_shown_as_an_escape(given, shown):
    assert printable(given) == shown
    in_a_line = shown.replace("\n", "\\n")
    assert one_line(given) == in_a_line
    file = io.StringIO()
    PlainConsole(file=file, width=200).print(given, soft_wrap=True)
    assert file.getvalue().expandtabs() == f"{in_a_line}\n".expandtabs()


def test_what_rich_draws_has_no_controls_either():
    file = io.StringIO()
    PlainConsole(file=file, width=80).print(Panel("a\x1b[2J\x1b]0;title\x07b"))
    assert "a\\x1b[2J" in file.getvalue()
    assert "\x1b" not in file.getvalue()


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, "\\x1b]0;a.wav\tone\n"), (False, "\x1b]0;a.wav\tone\n")])
def test_transcripts_are_what_files_are_called_but_on_a_terminal(monkeypatch, is_terminal, shown):
    file, audio = io.StringIO(), Path("a.wav")
    transcript = Transcript(Path("\x1b]0;a.wav"), (Segment(1, 0.0, 1.0, "one"),))
    monkeypatch.setattr(file, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stdout", file)
    monkeypatch.setattr(transcribe, "find_audio", lambda patterns, endings: {audio: audio})
    monkeypatch.setattr(transcribe, "_transcriber", lambda options: lambda files: ([transcript], []))
    transcribe.run(composed("run=x", "audio=a.wav", command="transcribe").options)
    assert file.getvalue() == shown


@pytest.mark.parametrize("error", [ConfigError, OSError])
def test_a_strangers_end_of_line_begins_no_line_of_an_error(monkeypatch, capsys, error):
    def fails(config):
        failed = error("evil\nasr-train: fake")
        failed.add_note("  a line of our own, of evil\nfake")
        raise failed

    monkeypatch.setattr("sys.argv", ["asr-train"])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with pytest.raises(SystemExit):
        run_app("train", fails)
    first, second, _ = capsys.readouterr().err.splitlines()
    assert first.startswith("asr-train: evil")
    assert second == "  a line of our own, of evil\\nfake"


@pytest.mark.parametrize("name", ["a\tb.wav", "a\nb\x1b[31m.wav", "b\udcff.wav"])
def test_a_name_that_is_not_a_line_of_utf_8_is_left_out_of_the_transcripts(small_run, tmp_path, name):
    for file in ("good.wav", name):
        write_audio(tmp_path / "written.wav")
        (tmp_path / "written.wav").rename(tmp_path / file)
    ended = small_run.run("transcribe", f"run={small_run.run_dir}", f"audio={tmp_path}/*.wav", code=1)
    assert f"could not read {str(tmp_path / name)!r}: " in ended.last_line
    assert f"\n{tmp_path}/good.wav\t" in f"\n{ended.printed}"
