"""Transcripts in each format, read back by other programs."""

import json
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest

from asr.inference.transcripts import FORMATS, LINE, LONGEST_S, NUM_LINES, Segment, Transcript, cues_of
from werdict.scoring import Word

pysubs2 = pytest.importorskip("pysubs2")


def spoken(text: str, start_s: float, channel: int = 1, seconds: float = 0.3) -> Segment:
    """Words of equal length, one after the other."""
    times = [round(start_s + seconds * n, 3) for n in range(len(text.split()) + 1)]
    words = tuple(Word(word, a, b, 0.5) for word, a, b in zip(text.split(), times, times[1:], strict=False))
    return Segment(channel, start_s, times[-1], text, words)


TALK = Transcript.of(
    Path("talks/a.flac"),
    [
        spoken("he said <b>no</b> & left", 3661.5),
        spoken("one two three", 1.25),
        spoken(" ".join(["long"] * 60), 10.0),
    ],
)


@pytest.mark.parametrize("name", ["srt", "vtt"])
def test_subtitles_are_read_back(name):
    read = pysubs2.SSAFile.from_string(FORMATS[name](TALK), format_=name)
    cues = cues_of(TALK)
    assert [(line.start, line.end) for line in read] == [(round(1000 * c.start_s), round(1000 * c.end_s)) for c in cues]
    assert (read[0].start, read[0].end, read[0].plaintext) == (1250, 2150, "one two three")
    said = " ".join(line.plaintext.replace("\n", " ") for line in read)
    expected = TALK.text if name == "srt" else TALK.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # pysubs2 leaves out tags of SubRip, and reads no escapes of WebVTT
    assert said in (expected, expected.replace("<b>", "").replace("</b>", ""))


def test_subtitles_can_be_read_in_their_time():
    cues = cues_of(TALK)
    for cue, following in pairwise(cues):
        assert cue.start_s < cue.end_s <= following.start_s
        assert len(lines := cue.text.splitlines()) <= NUM_LINES
        assert max(map(len, lines)) <= LINE
        assert cue.end_s - cue.start_s <= LONGEST_S


def test_words_without_length_or_times_are_shown_too():
    at_once = Segment(1, 0.0, 2.0, "a b", (Word("a", 1.0, 1.0, 0.5), Word("b", 1.0, 1.0, 0.5)))
    without_times = Segment(1, 5.0, 7.0, "c d", ())
    first, second = cues_of(Transcript.of(Path("a"), [at_once, without_times]))
    assert first.end_s > first.start_s
    assert (second.start_s, second.end_s, second.text) == (5.0, 7.0, "c d")
    assert FORMATS["srt"](Transcript.of(Path("a"), [])) == ""
    assert FORMATS["vtt"](Transcript.of(Path("a"), [])) == "WEBVTT\n"


@pytest.mark.parametrize("is_timed", [True, False], ids=["characters", "one word"])
@pytest.mark.parametrize(
    "text",
    ["今天的天气非常好，我们一起去公园散步。" * 8, "用iPhone打电话给朋友" * 12, "สวัสดีครับวันนี้" * 9, "withoutspaces" * 12],
)
def test_a_text_without_spaces_is_cut_between_characters_at_stops_first(text, is_timed):
    units = [*text] if is_timed else [text]
    times = [round(0.2 * len(text) * n / len(units), 3) for n in range(len(units) + 1)]
    words = tuple(Word(unit, a, b, 0.5) for unit, (a, b) in zip(units, pairwise(times), strict=True))
    cues = cues_of(Transcript.of(Path("a"), [Segment(1, 0.0, times[-1], text, words)]))
    assert "".join(cue.text for cue in cues).replace("\n", "") == text
    for cue in cues:
        assert cue.end_s - cue.start_s <= LONGEST_S
        assert max(map(len, cue.text.splitlines())) <= LINE
        assert all(line[0] not in "，。" and not unicodedata.combining(line[0]) for line in cue.text.splitlines())
        assert "。" not in text or cue.text[-1] in "，。"
        assert "iPhone" not in text or cue.text.replace("\n", "|").count("iPhone") == cue.text.count("i")


@pytest.mark.parametrize("name", ["srt", "vtt"])
def test_channels_that_speak_at_a_time_are_shown_at_a_time(name):
    first, second = " ".join(["long"] * 30), "yes yes"
    call = Transcript.of(Path("a.wav"), [spoken(first, 0.5), spoken(second, 0.5, channel=2), spoken("no", 2.0, 2)])
    read = pysubs2.SSAFile.from_string(FORMATS[name](call), format_=name)
    shown = [(line.start, line.end, line.plaintext.replace("\n", " ")) for line in read]
    assert shown[1:3] == [(500, 1100, "2: yes yes"), (2000, 2300, "2: no")]
    assert shown[0][:2] == (500, 5300)
    assert all(text.startswith("1: long") for _, _, text in (shown[0], *shown[3:]))
    assert " ".join(text.removeprefix("1: ") for _, _, text in (shown[0], *shown[3:])) == first
    assert max(len(line) for cue in cues_of(call) for line in cue.text.splitlines()) <= LINE


def test_segments_stand_in_the_order_of_time_with_their_channels():
    assert FORMATS["txt"](TALK).splitlines()[::2] == ["one two three", "he said <b>no</b> & left"]
    assert FORMATS["tsv"](TALK) == f"talks/a.flac\t{TALK.text}\n"
    call = Transcript.of(Path("a.wav"), [spoken("hello", 0.0), spoken("yes", 0.5, channel=2), spoken("good", 1.0)])
    assert FORMATS["txt"](call) == "1: hello\n2: yes\n1: good\n"
    assert [line.split()[:3] for line in FORMATS["ctm"](call).splitlines()] == [
        ["a.wav", "1", "0.000"],
        ["a.wav", "2", "0.500"],
        ["a.wav", "1", "1.000"],
    ]
    read = json.loads(FORMATS["json"](call))
    assert [(word["word"], word["channel"], word["start"]) for word in read["words"]][1] == ("yes", 2, 0.5)
    assert read["segments"][1] == {"channel": 2, "start": 0.5, "end": 0.8, "text": "yes"}
