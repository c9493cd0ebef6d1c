"""Names of any kind on the command line: read as they are given, and shown so that they can be pasted."""

import shlex
import shutil

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from asr.run.command_line import expand_home, fill_keys, quote_non_ascii
from asr.run.folder import resume_command
from werdict.errors import ConfigError


@pytest.mark.parametrize(
    "name",
    ["runs/2026-11-25", "a b,c=d", "$(touch pwned)", "it's\\", "größe", "[x]", "{y: 1}", '"z"'],
)
def test_a_shell_and_hydra_read_the_command_that_resumes_a_run(name):
    program, word = shlex.split(resume_command(name))
    (override,) = OverridesParser.create().parse_overrides([word])
    assert (program, override.key_or_group, override.value()) == ("asr-train", "resume", name)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("audio=größe.flac", "audio='größe.flac'"),
        ("audio=[größe.flac,b.flac]", "audio=['größe.flac',b.flac]"),
        ("+data.source=日本.tsv,b", "+data.source='日本.tsv',b"),
        ("audio='ä, b'", "audio='ä, b'"),
        ("data.sources=[{name: ä}]", "data.sources=[{name: ä}]"),
        ("--config-dir=größe", "--config-dir=größe"),
    ],
)
def test_letters_that_the_grammar_lacks_are_quoted(given, read):
    assert quote_non_ascii(given) == read


@pytest.mark.parametrize(
    ("command", "given", "read"),
    [
        ("evaluate", ["r"], {"run": "r"}),
        ("evaluate", ["name=x", "r", "a.tsv", "b.tsv"], {"name": "x", "run": "r", "manifest": ["a.tsv", "b.tsv"]}),
        ("transcribe", ["run=r", "a b.wav"], {"run": "r", "audio": "a b.wav"}),
        ("transcribe", ["r", "lr=3,[1].wav", "it's.wav"], {"run": "r", "audio": ["lr=3,[1].wav", "it's.wav"]}),
        ("compare", ["runs/a", "runs/b", "level=0.9"], {"runs": ["runs/a", "runs/b"], "level": 0.9}),
        ("stream", ["r", "-"], {"run": "r", "audio": "-"}),
        ("align", ["--cfg", "job", "r", "a.tsv", "~name"], {"run": "r", "manifest": "a.tsv", "name": None}),
    ],
)
def test_words_without_a_key_are_what_the_command_is_about(command, given, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=3,[1].wav").touch()
    words = [word for word in fill_keys(command, given) if word not in ("--cfg", "job")]
    overrides = OverridesParser.create().parse_overrides(words)
    assert {override.key_or_group: override.value() for override in overrides} == read


def test_a_word_for_which_no_key_is_left_is_refused():
    with pytest.raises(ConfigError, match=r"b\.wav"):
        fill_keys("transcribe", ["run=r", "audio=a.wav", "b.wav"])


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("data.dir=~/x", "data.dir=/home/me/x"),
        ("audio=[~/a.wav,b~/c.wav]", "audio=[/home/me/a.wav,b~/c.wav]"),
        ("data.source={train: ~/a.tsv, dev: ~}", "data.source={train: /home/me/a.tsv, dev: /home/me}"),
        ("run='~/x'", "run='~/x'"),
        ("~optimizer", "~optimizer"),
    ],
)
def test_a_value_may_begin_with_the_home_folder(given, read, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert expand_home(given) == read


def test_a_recording_of_any_name_is_transcribed(small_run, tmp_path):
    shutil.copy(small_run.audio, tmp_path / "größe 語.flac")
    ended = small_run.run("transcribe", f"run={small_run.run_dir}", f"audio={tmp_path}/größe 語.flac")
    assert "größe 語.flac" in ended.printed
