"""Error rates with their intervals and what reports write of them: alignments, errors, words with times."""

import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from lhotse import SupervisionSegment, SupervisionSet

from werdict import error_files
from werdict.error_files import (
    LEVEL,
    Interval,
    aligned_view,
    bootstrap_interval,
    ctm_lines,
    dependence_p,
    depends_on_audio,
    headline,
    json_line,
    summary,
    textgrid,
    write_report,
)
from werdict.scoring import ErrorCounts, Score, ScoredUtterance, Utterance, Word, score
from werdict.scoring import score as evaluate

UTTERANCES = [
    Utterance("utt-2", "the cat sat", "the bat  sat uh", "b"),
    Utterance("utt-1", "the cat", "the bat", "a"),
    Utterance("utt-3", "今天 好", "今天", "a"),
    Utterance("utt-4", "", "", "b"),
    Utterance("utt-1", "again", "", "a"),
]
SCORE = score(UTTERANCES)
INTERVAL = Interval(0.025, 0.5, "speaker", 15)


def test_the_headline_says_rate_interval_edits_and_size():
    assert headline(SCORE, INTERVAL) == (
        "WER 57.14 % [2.50, 50.00] (95 % bootstrap over 15 speakers) | CER 31.82 % | "
        "S 2 D 1 I 1 | 7 words, 4 utterances"
    )


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("one a b", "one a b", r"WER 0.00 % \[0.00, 63.16\] \(95 % upper bound, no error in 3 words\) \| CER 0.00 %"),
        ("one", "two", r"WER 100.00 % \(no interval from a single utterance\) .* \| 1 word, 1 utterance$"),
        ("one", "one two", r"WER 100.00 % .* S 0 D 0 I 1"),
        (" ".join(["a"] * 20_000), " ".join(["a"] * 19_999), r"WER 0.01 % .* S 0 D 1 I 0 \| 20000 words"),
    ],
)  # fmt: skip
def test_a_headline_of_one_utterance(reference, hypothesis, expected):
    result = score([Utterance("a", reference, hypothesis)])
    assert re.match(expected, headline(result, bootstrap_interval(result)))


def test_the_summary_is_plain_json():
    numbers = summary(SCORE, INTERVAL)
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert len(numbers.pop("references")) == 16
    assert numbers == {
        "unit": "word", "wer": 4 / 7, "wer_low": 0.025, "wer_high": 0.5, "cer": 7 / 22,
        "interval_level": 0.95, "interval_method": "bootstrap", "interval_unit": "speaker", "interval_num_units": 15,
        "substitutions": 2, "deletions": 1, "insertions": 1,
        "num_words": 7, "num_characters": 22, "num_utterances": 4, "num_duplicates": 1,
        "dependence_p": None,
    }  # fmt: skip


def test_the_summary_tells_whether_the_references_are_the_same_texts():
    def digest(*pairs):
        result = score([Utterance(id, reference, hypothesis) for id, reference, hypothesis in pairs])
        return summary(result, bootstrap_interval(result))["references"]

    known = digest(("a", "one two", "x"), ("b", "three", "y"))
    assert digest(("b", " three", "u v"), ("a", "one  two", "")) == known
    for other in ("One two", "one", "one three"):
        assert digest(("a", other, "x"), ("b", "three", "y")) != known
    assert digest(("a", "three", "x"), ("b", "one two", "y")) != known


def test_the_summary_of_a_single_utterance_claims_no_interval():
    result = score([Utterance("a", "one", "two")])
    numbers = summary(result, bootstrap_interval(result))
    assert (numbers["wer_low"], numbers["wer_high"], numbers["interval_method"]) == (None, None, "none")
    json.dumps(numbers, allow_nan=False)


def test_hypotheses_are_sorted_by_id_behind_a_tab(tmp_path):
    write_report(tmp_path, "test", SCORE, INTERVAL)
    assert (tmp_path / "test.hyp.txt").read_bytes().decode("utf-8") == (
        "utt-1\tthe bat\nutt-2\tthe bat sat uh\nutt-3\t今天\nutt-4\t\n"
    )


def test_alignments_show_every_utterance_with_its_id(tmp_path):
    write_report(tmp_path, "test", SCORE, INTERVAL)
    blocks = (tmp_path / "test.alignments.txt").read_text(encoding="utf-8").split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == [
        "utt-1: 1 error in 2 words",
        "utt-2: 2 errors in 3 words",
        "utt-3: 1 error in 2 words",
        "utt-4: 0 errors in 0 words",
    ]
    assert blocks[1].splitlines()[1:] == ["REF  the  cat  sat  **", "HYP  the  bat  sat  uh", "          S         I"]


def test_errors_are_counted_per_utterance_for_programs(tmp_path):
    named = [Utterance("b", "one two", "two two uh", "a\tspeaker"), Utterance("a", "", "", None)]
    write_report(tmp_path, "test", score(named), INTERVAL)
    assert (tmp_path / "test.errors.tsv").read_text(encoding="utf-8").split("\n") == [
        "id\tspeaker\twords\tsubstitutions\tdeletions\tinsertions",
        "a\t\t0\t0\t0\t0",
        "b\ta speaker\t2\t1\t0\t1",
        "",
    ]


def test_the_wer_file_tells_result_notes_worst_utterances_and_confusions_in_this_order(tmp_path):
    write_report(tmp_path, "test", SCORE, INTERVAL, notes=["synthetic speech", "two\nlines"])
    lines = (tmp_path / "test.wer.txt").read_text(encoding="utf-8").splitlines()
    assert lines[:4] == [
        headline(SCORE, INTERVAL),
        "note: synthetic speech",
        "note: two lines",
        "note: 1 utterance left out: an earlier one has the same id",
    ]
    named = [line.split(":")[0] for line in lines if line.startswith("utt-")]
    assert named == ["utt-2", "utt-1", "utt-3"]
    assert lines[lines.index("Most frequent errors") + 2 :] == [
        "     2  substitution  cat -> bat",
        "     1  deletion      好",
        "     1  insertion     uh",
    ]


def test_long_lists_are_cut(tmp_path):
    result = score([Utterance(f"utt{i:03d}", f"word{i}", "x") for i in range(100)])
    write_report(tmp_path, "test", result, bootstrap_interval(result))
    text = (tmp_path / "test.wer.txt").read_text(encoding="utf-8")
    assert text.count(": 1 error in 1 word") == 20
    assert text.count(" -> x") == 20


@pytest.mark.parametrize("ending", ["hyp.txt", "wer.txt"])
def test_an_existing_file_is_never_overwritten(tmp_path, ending):
    (tmp_path / f"test.{ending}").write_text("precious")
    with pytest.raises(FileExistsError, match=rf"test.{ending}"):
        write_report(tmp_path, "test", SCORE, INTERVAL)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


def test_a_full_disk_leaves_no_half_report(tmp_path, monkeypatch):
    def full(temporary, path):
        assert temporary.read_text(encoding="utf-8")
        assert not path.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(KeyboardInterrupt):
        write_report(tmp_path, "test", SCORE, INTERVAL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b"])
def test_a_set_name_that_could_leave_the_folder_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="set name"):
        write_report(tmp_path, name, SCORE, INTERVAL)
    assert list(tmp_path.iterdir()) == []


def test_of_characters_the_headline_is_the_cer():
    said = [Utterance("a", "今天天气", "今天天汽"), Utterance("b", "好的", "好的"), Utterance("c", "是", "是")]
    result = score(said, unit="character")
    line = headline(result, bootstrap_interval(result))
    assert line.startswith("CER 14.29 % [")
    assert line.endswith(" | S 1 D 0 I 0 | 7 characters, 3 utterances")
    assert "WER" not in line
    right = score([Utterance("a", "今天", "今天")], unit="character")
    assert "no error in 2 characters" in headline(right, bootstrap_interval(right))
    spoken = score(said)
    assert summary(result, INTERVAL)["unit"] == "character"
    assert summary(result, INTERVAL)["references"] != summary(spoken, INTERVAL)["references"]


def test_words_stand_below_each_other_with_a_mark_below_every_error():
    pairs = [("the", "the"), ("cat", "that"), ("sat", None), (None, "uh")]
    assert aligned_view(pairs).splitlines() == [
        "REF  the  cat   sat  **",
        "HYP  the  that  ***  uh",
        "          S     D    I",
    ]


def test_wide_characters_and_combining_marks_keep_the_columns():
    assert aligned_view([("今天", "a"), ("e\u0301e", "ee"), ("x", "y")]).splitlines() == [
        "REF  今天  e\u0301e  x",
        "HYP  a     ee  y",
        "     S     S   S",
    ]


def test_silence_is_shown_as_two_empty_lines():
    assert aligned_view([]) == "REF\nHYP"


def scored(errors, words, speakers=None):
    """A score with these deletions and reference words per utterance."""
    speakers = speakers or [None] * len(errors)
    items = tuple(
        ScoredUtterance(
            Utterance(f"utt{number}", "", "", speaker), ErrorCounts(int(n - e), 0, int(e), 0), ErrorCounts(hits=1), ()
        )
        for number, (e, n, speaker) in enumerate(zip(errors, words, speakers, strict=True))
    )
    return Score(items, sum((item.words for item in items), ErrorCounts()), ErrorCounts(hits=1))


def random_score(rng, num_speakers, utterances_each=10, spread=0.1):
    """Utterances of 5 to 15 words; each speaker has an error rate of his own around 0.3."""
    rates = np.clip(rng.normal(0.3, spread, num_speakers), 0, 1).repeat(utterances_each)
    words = rng.integers(5, 16, len(rates))
    return scored(rng.binomial(words, rates), words, [f"s{i // utterances_each}" for i in range(len(rates))])


def without_speakers(score):
    counts = [item.words for item in score.utterances]
    return scored([c.errors for c in counts], [c.num_reference for c in counts])


def test_the_interval_holds_the_measured_rate_and_names_its_unit():
    score = random_score(np.random.default_rng(0), num_speakers=15)
    interval = bootstrap_interval(score)
    assert interval.low < score.wer < interval.high
    assert (interval.unit, interval.num_units, interval.level, interval.method) == ("speaker", 15, 0.95, "bootstrap")


def test_two_units_give_the_ends_that_counting_gives():
    # draws of two: both first (1/4), one each (1/2), both second (1/4)
    score = scored([1, 3], [10, 10])
    assert bootstrap_interval(score) == Interval(0.1, 0.3, "utterance", 2)
    assert bootstrap_interval(score, level=0.4) == Interval(0.2, 0.2, "utterance", 2, level=0.4)


def test_rates_are_sums_by_sums_not_means_of_rates():
    interval = bootstrap_interval(scored([1, 0], [1, 99]), level=0.4)
    assert (interval.low, interval.high) == (0.01, 0.01)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another_one():
    score = random_score(np.random.default_rng(1), num_speakers=12)
    assert bootstrap_interval(score, seed=3) == bootstrap_interval(score, seed=3)
    assert bootstrap_interval(score, seed=3) != bootstrap_interval(score, seed=4)


def test_a_large_set_is_drawn_as_often_as_its_size_allows(monkeypatch):
    score = random_score(np.random.default_rng(2), num_speakers=30)
    monkeypatch.setattr(error_files, "MAX_DRAWS", 30 * 500)
    assert bootstrap_interval(score) == bootstrap_interval(score, num_resamples=500)
    assert bootstrap_interval(score, num_resamples=200) != bootstrap_interval(score)
    monkeypatch.setattr(error_files, "MAX_DRAWS", 1)
    assert bootstrap_interval(score) == bootstrap_interval(score, num_resamples=error_files.MIN_RESAMPLES)


@pytest.mark.parametrize("speakers", [["a", "a", "a"], ["a", "b", None], ["a", "b", ""], [None, None, None]])
def test_without_two_speakers_or_with_a_nameless_one_utterances_are_drawn(speakers):
    interval = bootstrap_interval(scored([1, 2, 0], [5, 5, 5], speakers))
    assert (interval.unit, interval.num_units) == ("utterance", 3)


def test_the_utterances_of_a_speaker_go_together_wherever_they_stand():
    mixed = scored([1, 3, 0, 0], [5, 5, 5, 5], ["a", "b", "a", "b"])
    assert bootstrap_interval(mixed) == Interval(0.1, 0.3, "speaker", 2)


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("num_words", [1, 81, 50_000])
def test_without_errors_the_upper_end_is_clopper_and_pearsons(num_words, level):
    interval = bootstrap_interval(scored([0, 0], [num_words, 0], ["a", "b"]), level=level)
    exact = scipy.stats.binomtest(0, num_words, alternative="less").proportion_ci(level, method="exact")
    assert (interval.low, interval.unit, interval.num_units) == (0.0, "word", num_words)
    assert interval.high == pytest.approx(exact.high, rel=1e-9)
    assert (interval.method, interval.level) == ("exact upper bound", level)


def test_a_single_utterance_with_errors_gives_no_interval():
    assert bootstrap_interval(scored([1], [4])) == Interval(0.0, math.inf, "utterance", 1, method="none")


def test_draws_without_a_reference_word_do_not_count():
    # the second utterance is an insertion where nobody spoke; drawn twice it has no rate
    said, noise = Utterance("said", "one", "two"), Utterance("noise", "", "uh")
    interval = bootstrap_interval(evaluate([said, noise]), num_resamples=100)
    assert (interval.low, interval.high, interval.num_units) == (1.0, 2.0, 2)


def test_the_interval_agrees_with_kaldialign_on_utterances():
    kaldialign = pytest.importorskip("kaldialign", reason="kaldialign, the independent bootstrap, is not installed")
    rng = np.random.default_rng(7)
    words = rng.integers(5, 16, 400)
    errors = rng.binomial(words, 0.2)
    references = [["a"] * n for n in words]
    hypotheses = [["a"] * (n - e) + ["b"] * e for n, e in zip(words, errors, strict=True)]
    theirs = kaldialign.bootstrap_wer_ci(references, hypotheses, replications=10_000)
    ours = bootstrap_interval(scored(errors, words))
    # theirs is 1.96 standard deviations to both sides, ours percentiles: the width agrees to the Monte-Carlo error
    width = theirs["ci95max"] - theirs["ci95min"]
    assert ours.low == pytest.approx(theirs["ci95min"], abs=0.05 * width)
    assert ours.high == pytest.approx(theirs["ci95max"], abs=0.05 * width)


WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
RNG = np.random.default_rng(0)
REFERENCES = [" ".join(RNG.choice(WORDS, RNG.integers(2, 7))) for _ in range(300)]


def p_of(hypotheses, references=REFERENCES):
    pairs = zip(references, hypotheses, strict=True)
    return dependence_p([Utterance(f"u{place:03d}", *texts) for place, texts in enumerate(pairs)])


def perhaps(rng, text, share):
    return text if rng.random() < share else ""


@pytest.mark.parametrize(
    ("hypothesis", "depends"),
    [
        (lambda rng, text: text, True),
        (lambda rng, text: "".join(f"{word}x " for word in text.split()), True),  # not a word is right
        (lambda rng, text: perhaps(rng, "six", 0.6 if "six" in text else 0), True),  # 95 % are deleted
        (lambda rng, text: f"{text} {' '.join(rng.choice(WORDS, 20))}", True),  # a WER of 500 %
        (lambda rng, text: "", False),
        (lambda rng, text: "six", False),
        (lambda rng, text: perhaps(rng, "six", 0.3), False),
        (lambda rng, text: " ".join(rng.choice(WORDS, len(text) // 5)), False),
        (lambda rng, text: "the" if len(text) > 15 else "", False),  # more for longer audio
    ],
)
def test_a_run_depends_on_the_audio_whatever_its_wer(hypothesis, depends):
    rng = np.random.default_rng(1)
    assert depends_on_audio(p_of([hypothesis(rng, text) for text in REFERENCES])) is depends


def test_of_runs_that_understand_nothing_at_most_one_of_100_seems_to():
    p_values = []
    for seed in range(600):
        rng = np.random.default_rng(seed)
        references, hypotheses = ([" ".join(rng.choice(WORDS, 2)) for _ in range(12)] for _ in range(2))
        p_values.append(p_of(hypotheses, references))
    assert np.mean([p <= LEVEL for p in p_values]) < 0.02
    assert 0.02 < np.mean([p <= 0.05 for p in p_values]) < 0.08


@pytest.mark.parametrize(("references", "is_known"), [(WORDS[:4], False), (WORDS[:5], True), (("yes",) * 50, False)])
def test_too_few_utterances_or_the_same_reference_for_all_tell_nothing(references, is_known):
    assert (p_of(references, references) is not None) == is_known
    assert p_of([""] * len(references), references) == (1 if is_known else None)


SPOKEN = (Word("the", 0.1, 0.25, 0.91234), Word('"cat"', 0.25, 0.6, 1.0))


def test_ctm_is_read_by_lhotse(tmp_path):
    (tmp_path / "a.ctm").write_text(ctm_lines("utt-1", SPOKEN))
    whole = SupervisionSet.from_segments([SupervisionSegment("utt-1", "utt-1", 0.0, 1.0, text='the "cat"')])
    (read,) = whole.with_alignment_from_ctm(tmp_path / "a.ctm")
    assert [(one.symbol, one.start, one.duration, one.score) for one in read.alignment["word"]] == [
        ("the", 0.1, 0.15, 0.912),
        ('"cat"', 0.25, 0.35, 1.0),
    ]


def test_the_name_in_a_ctm_is_one_field():
    assert ctm_lines("my calls/50%.wav", SPOKEN[:1]) == "my%20calls/50%25.wav 1 0.100 0.150 the 0.912\n"
    assert ctm_lines("a", ()) == ""


def test_json_has_a_line_for_each_utterance():
    line = json_line("a", "the cät", SPOKEN[:1], log_prob=-3.5)
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
        (1.0, SPOKEN, [(0, 0.1, ""), (0.1, 0.25, "the"), (0.25, 0.6, '"cat"'), (0.6, 1, "")]),
        (0.5, SPOKEN, [(0, 0.1, ""), (0.1, 0.25, "the"), (0.25, 0.6, '"cat"')]),
        (0.5, (), [(0, 0.5, "")]),
    ],
)
def test_a_textgrid_is_covered_by_words_and_silence(duration, words, expected):
    text = textgrid(duration, {"words": words})
    assert intervals(text) == expected
    assert f"intervals: size = {len(expected)}" in text
    assert text.count(f"xmax = {max(duration, expected[-1][1]):.3f}") == 3
