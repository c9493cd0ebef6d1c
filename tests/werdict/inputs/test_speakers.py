"""Speakers that the user names, by a table or by a part of the ids."""

import re

import pytest

from tests.werdict.made_runs import errors_of, run_of
from werdict.formats import part_of_id
from werdict.results import read_speakers, with_speakers


def test_a_table_names_the_speakers_of_every_set(tmp_path):
    # with the mark that Windows begins text with, and lines without anything
    table = "\ufeffu0\tann\nu1 bo\n\n  u2  ann \nlong id 7 bo\n \nu\u0308 bo\n"
    (tmp_path / "utt2spk").write_text(table, encoding="utf-8")
    speaker_of = read_speakers(tmp_path / "utt2spk")
    assert speaker_of("long id 7") == speaker_of("ü") == speaker_of("u\u0308") == "bo"
    (tmp_path / "named").write_text("u0\tAnna B\nlong id 7\tJos\u00e9 de la Cruz \n", encoding="utf-8")
    assert [read_speakers(tmp_path / "named")(id) for id in ("u0", "long id 7")] == ["Anna B", "José de la Cruz"]
    run = run_of("adamw", 1, sets={"a": errors_of((1, 2, 3)), "b": errors_of((0, 1), speakers=None)})
    (changed,) = with_speakers([run], speaker_of)
    assert {name: errors.speakers for name, errors in changed.sets.items()} == {
        "a": ("ann", "bo", "ann"),
        "b": ("ann", "bo"),
    }
    assert changed.sets["a"].errors == (1, 2, 3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"u0 ann\nu1\n", "line 2: "),
        (b"u0 ann\nu0 bo\n", "line 2: "),
        (b"u0\tann\tbo\n", "line 1: "),
        (b"u0 ann\n", "'u1'"),
    ],
)
def test_a_table_that_does_not_name_all_is_refused(tmp_path, content, said):
    (tmp_path / "utt2spk").write_bytes(content)
    with pytest.raises(ValueError, match=f"^speakers: .*{re.escape(said)}"):
        with_speakers([run_of("adamw", 1, (1, 2))], read_speakers(tmp_path / "utt2spk"))


@pytest.mark.parametrize(
    ("pattern", "speaker"), [(r"^[^-]+", "1089"), (r"-(\d+)-", "134"), (r"(?:x|-)(\d+)-", "134"), ("9-1", "9-1")]
)
def test_the_first_group_or_all_that_is_found_is_the_speaker(pattern, speaker):
    assert part_of_id("speaker_pattern", pattern)("1089-134-0007") == speaker


@pytest.mark.parametrize("pattern", ["x", "u0(-)?"])
def test_a_pattern_that_finds_nothing_is_refused(pattern):
    with pytest.raises(ValueError, match=r"^speaker_pattern="):
        with_speakers([run_of("adamw", 1, (1, 2))], part_of_id("speaker_pattern", pattern))
