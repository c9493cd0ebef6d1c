"""Text of strangers on the terminal: nothing reorders it or hides in it, and no language is harmed."""

from __future__ import annotations

import io

import pytest
from hydra.errors import HydraException
from rich.console import Group
from rich.panel import Panel
from rich.text import Text
from yaml import YAMLError

from asr.commands import transcribe
from asr.commands.app import run_app
from asr.console import PlainConsole, one_line, printable
from asr.errors import ConfigError, RunFailed

# what is given, what is shown
SHOWN = {
    "an override of the direction": ("gpj.\u202eexe", r"gpj.\u202eexe"),
    "an embedding": ("\u202aa\u202c", r"\u202aa\u202c"),
    "an isolate": ("\u2067a\u2069", r"\u2067a\u2069"),
    "marks of direction": ("a\u200e\u200f\u061c", r"a\u200e\u200f\u061c"),
    "a space of no width": ("a\u200bb", r"a\u200bb"),
    "a word joiner": ("a\u2060b\ufeff", r"a\u2060b\ufeff"),
    "a soft hyphen": ("a\u00adb", r"a\xadb"),
    "ends of lines": ("a\u2028b\u2029c\x85", r"a\u2028b\u2029c\x85"),
    "letters of tags": ("a\U000e0061", r"a\U000e0061"),
    "an escape sequence": ("\x1b[31m", r"\x1b[31m"),
    "half of a surrogate pair": ("\ud800", r"\ud800"),
    "Arabic": ("مرحبا بالعالم، ١٢٣", "مرحبا بالعالم، ١٢٣"),
    "Persian": ("می\u200cخواهم", "می\u200cخواهم"),
    "Hebrew with points": ("שָׁלוֹם עוֹלָם", "שָׁלוֹם עוֹלָם"),
    "Hindi with joiners": ("क्\u200dष और क्\u200cष", "क्\u200dष और क्\u200cष"),
    "a family": ("👩\u200d👧\ufe0f", "👩\u200d👧\ufe0f"),
    "lines and tabs": ("a\tb\nc", "a\tb\nc"),
}


@pytest.mark.parametrize(("given", "shown"), SHOWN.values(), ids=SHOWN.keys())
def test_what_reorders_or_hides_is_shown_as_an_escape(given, shown):
    assert printable(given) == shown
    in_a_line = shown.replace("\n", "\\n")
    assert one_line(given) == in_a_line
    file = io.StringIO()
    PlainConsole(file=file, width=200).print(given, soft_wrap=True)
    assert file.getvalue().expandtabs() == f"{in_a_line}\n".expandtabs()


@pytest.mark.parametrize("wrap", [Text, lambda text: Group(Text(text)), lambda text: Panel(Text(text))])
def test_what_rich_draws_has_no_controls_either(wrap):
    file = io.StringIO()
    PlainConsole(file=file, width=80).print(wrap("a\x1b[2J\x1b]0;title\x07b"))
    assert "a\\x1b[2J" in file.getvalue()
    assert "\x1b" not in file.getvalue()


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, "\\x1b]0;a.wav\tone\n"), (False, "\x1b]0;a.wav\tone\n")])
def test_transcripts_are_what_files_are_called_but_on_a_terminal(monkeypatch, is_terminal, shown):
    file = io.StringIO()
    monkeypatch.setattr(file, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stdout", file)
    transcribe._print("\x1b]0;a.wav\tone\n")
    assert file.getvalue() == shown


def test_a_strangers_end_of_line_begins_no_line(capsys):
    PlainConsole(width=20).print_line("note: evil\nproblem: fake \x1b[31m")
    assert capsys.readouterr().out == "note: evil\\nproblem: fake \\x1b[31m\n"


@pytest.mark.parametrize("error", [ConfigError, RunFailed, OSError, HydraException, YAMLError])
def test_a_strangers_end_of_line_begins_no_line_of_an_error(monkeypatch, capsys, error):
    def fails(config):
        failed = error("evil\nasr-train: fake")
        failed.add_note("  a line of our own, of evil\nfake")
        raise failed

    monkeypatch.setattr("sys.argv", ["asr-train"])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with pytest.raises(SystemExit):
        run_app("train", fails)
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("asr-train: evil")
    assert second == "  a line of our own, of evil\\nfake"
    assert third == "(HYDRA_FULL_ERROR=1 shows where this comes from.)"


def test_a_terminal_without_columns_shows_everything(monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    shown = io.StringIO()
    PlainConsole(file=shown).print("all", "of it")
    assert shown.getvalue() == "all of it\n"
