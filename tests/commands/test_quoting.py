"""Names of any kind on the command line: read as they are typed, and shown so that they can be pasted."""

import shlex
import shutil

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from asr.config.command_line import quote_non_ascii
from asr.quoting import resume_command


@pytest.mark.parametrize(
    "name",
    ["runs/2026-11-25", "a b,c=d", "$(touch pwned)", "it's", "it's\\", "größe", "[x]", "{y: 1}", "-m", '"z"', "a\tb"],
)
def test_a_shell_and_hydra_read_the_command_that_resumes_a_run(name):
    program, word = shlex.split(resume_command(name))
    (override,) = OverridesParser.create().parse_overrides([word])
    assert (program, override.key_or_group, override.value()) == ("asr-train", "resume", name)


def test_a_plain_name_is_shown_plainly():
    assert resume_command("runs/digits/2026-11-25_10-00-00") == "asr-train resume=runs/digits/2026-11-25_10-00-00"


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("audio=größe.flac", "audio='größe.flac'"),
        ("audio=/tmp/ä b/x.tsv", "audio='/tmp/ä b/x.tsv'"),
        ("audio=[größe.flac,b.flac]", "audio=['größe.flac',b.flac]"),
        ("+data.source=日本.tsv", "+data.source='日本.tsv'"),
        ("seed=é,2", "seed='é',2"),
        ("audio='ä, b'", "audio='ä, b'"),
        ('audio="ä"', 'audio="ä"'),
        ("audio=plain.flac", "audio=plain.flac"),
        ("data.sources=[{name: ä}]", "data.sources=[{name: ä}]"),
        ("a=x\u00a0y", "a=x\u00a0y"),
        ("--config-dir=größe", "--config-dir=größe"),
    ],
)
def test_letters_that_the_grammar_lacks_are_quoted(typed, read):
    assert quote_non_ascii(typed) == read


def test_a_recording_of_any_name_is_transcribed(small_run, tmp_path):
    shutil.copy(small_run.audio(), tmp_path / "größe 語.flac")
    ended = small_run.run("transcribe", f"run={small_run.run_dir}", f"audio={tmp_path}/größe 語.flac")
    assert ended.code == 0, ended.printed
    assert "größe 語.flac" in ended.printed


def test_a_character_that_is_not_allowed_is_told_without_names_of_classes(small_run):
    ended = small_run.run("transcribe", "run=a", "größe=b")
    assert ended.code == 2
    assert "größe=b: this cannot be read as KEY=VALUE" in ended.printed
    assert "Exception" not in ended.printed
