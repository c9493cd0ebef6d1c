import io
import json

import pytest
from lhotse import SupervisionSegment, SupervisionSet

from werdict.error_files import ctm_lines, json_line, textgrid
from werdict.scoring import Word

WORDS = (Word("the", 0.1, 0.25, 0.91234), Word('"cat"', 0.25, 0.6, 1.0))


def test_ctm_is_read_by_lhotse(tmp_path):
    (tmp_path / "a.ctm").write_text(ctm_lines("utt-1", WORDS))
    whole = SupervisionSet.from_segments([SupervisionSegment("utt-1", "utt-1", 0.0, 1.0, text='the "cat"')])
    (read,) = whole.with_alignment_from_ctm(tmp_path / "a.ctm")
    assert [(one.symbol, one.start, one.duration, one.score) for one in read.alignment["word"]] == [
        ("the", 0.1, 0.15, 0.912),
        ('"cat"', 0.25, 0.35, 1.0),
    ]


def test_the_name_in_a_ctm_is_one_field():
    assert ctm_lines("my calls/50%.wav", WORDS[:1]) == "my%20calls/50%25.wav 1 0.100 0.150 the 0.912\n"
    assert ctm_lines("a", ()) == ""


def test_json_has_a_line_for_each_utterance():
    line = json_line("a", "the cät", WORDS[:1], log_prob=-3.5)
    assert line.endswith("\n")
    assert json.loads(line) == {
        "id": "a",
        "text": "the cät",
        "words": [{"word": "the", "start": 0.1, "end": 0.25, "confidence": 0.9123}],
        "log_prob": -3.5,
    }
    assert "cät" in line


def intervals(text: str) -> list[tuple[float, float, str]]:
    """Read the intervals of a TextGrid with one tier."""
    lines = [line.strip() for line in io.StringIO(text)]
    begin = lines.index("intervals [1]:")
    fields = [line.partition(" = ")[2] for line in lines[begin:] if " = " in line]
    return [(float(a), float(b), c[1:-1].replace('""', '"')) for a, b, c in zip(*[iter(fields)] * 3, strict=True)]


@pytest.mark.parametrize(
    ("duration", "words", "expected"),
    [
        (1.0, WORDS, [(0, 0.1, ""), (0.1, 0.25, "the"), (0.25, 0.6, '"cat"'), (0.6, 1, "")]),
        (0.5, WORDS, [(0, 0.1, ""), (0.1, 0.25, "the"), (0.25, 0.6, '"cat"')]),
        (0.5, (), [(0, 0.5, "")]),
    ],
)
def test_a_textgrid_is_covered_by_words_and_silence(duration, words, expected):
    text = textgrid(duration, {"words": words})
    assert intervals(text) == expected
    assert f"intervals: size = {len(expected)}" in text
    assert text.count(f"xmax = {max(duration, expected[-1][1]):.3f}") == 3
