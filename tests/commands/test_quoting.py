"""Names of any kind on the command line: read as they are given, and shown so that they can be pasted."""

import shlex
import shutil

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from asr.config.command_line import quote_non_ascii
from asr.quoting import resume_command


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


def test_a_recording_of_any_name_is_transcribed(small_run, tmp_path):
    shutil.copy(small_run.audio(), tmp_path / "größe 語.flac")
    ended = small_run.run("transcribe", f"run={small_run.run_dir}", f"audio={tmp_path}/größe 語.flac")
    assert ended.code == 0, ended.printed
    assert "größe 語.flac" in ended.printed
