"""Errors of words and characters, and what scoring forgives."""

import pytest

from werdict.scoring import CHOICES, ErrorCounts, Normalization, Utterance, cer, score, wer

# reference, hypothesis, (hits, substitutions, deletions, insertions) of words, the same of characters; all by hand
COUNTED = [
    ("nothing wrong", "one two", "one two", (2, 0, 0, 0), (7, 0, 0, 0)),
    ("a substitution", "one two", "one ten", (1, 1, 0, 0), (5, 2, 0, 0)),
    ("a deletion", "one two", "one", (1, 0, 1, 0), (3, 0, 4, 0)),
    ("an insertion", "one", "one two", (1, 0, 0, 1), (3, 0, 0, 4)),
    ("all of them", "a b c d", "a x c y e", (2, 2, 0, 1), (5, 2, 0, 2)),
    ("nothing recognized", "one two", "", (0, 0, 2, 0), (0, 0, 7, 0)),
    ("words where nobody spoke", "", "one two", (0, 0, 0, 2), (0, 0, 0, 7)),
    ("silence", "", "", (0, 0, 0, 0), (0, 0, 0, 0)),
    ("spaces of any kind part words", "one\ttwo\u3000three", " one  two\nthree ", (3, 0, 0, 0), (13, 0, 0, 0)),
    ("a space in the wrong place", "ab c", "a bc", (0, 2, 0, 0), (3, 0, 1, 1)),
    ("characters are code points, a lost accent is one", "cafe\u0301", "cafe", (0, 1, 0, 0), (4, 0, 1, 0)),
    ("characters are code points, a composed accent is one", "caf\u00e9", "cafe", (0, 1, 0, 0), (3, 1, 0, 0)),
    ("a Devanagari vowel sign counts by itself", "कि", "की", (0, 1, 0, 0), (1, 1, 0, 0)),
    ("Chinese without spaces is one word", "今天好", "今天不好", (0, 1, 0, 0), (3, 0, 0, 1)),
    ("an emoji of three code points", "👩\u200d🚀", "👩", (0, 1, 0, 0), (1, 0, 2, 0)),
]
SPEECH = Utterance("speech", "one two three four", "one two three four")


@pytest.mark.parametrize(
    ("reference", "hypothesis", "words", "characters"), [row[1:] for row in COUNTED], ids=[row[0] for row in COUNTED]
)
def test_errors_are_counted_as_by_hand(reference, hypothesis, words, characters):
    result = score([Utterance("x", reference, hypothesis), SPEECH])
    assert result.utterances[0].words == ErrorCounts(*words)
    assert result.utterances[0].characters == ErrorCounts(*characters)
    assert result.words == ErrorCounts(*words) + ErrorCounts(hits=4)
    assert result.characters == ErrorCounts(*characters) + ErrorCounts(hits=18)


def test_a_text_is_one_utterance_and_not_its_letters():
    assert wer("the cat", "the hat") == wer(["the cat"], ["the hat"]) == 0.5
    assert cer("ab", "ac") == 0.5
    with pytest.raises(ValueError, match="2"):
        wer("a b", ["a", "b"])


def test_rates_are_errors_by_reference_length_over_all_utterances():
    result = score([Utterance("a", "one two three", "one too three uh"), Utterance("b", "four", "")])
    assert result.words == ErrorCounts(hits=2, substitutions=1, deletions=1, insertions=1)
    assert (result.words.errors, result.words.num_reference) == (3, 4)
    assert result.wer == 3 / 4
    assert result.cer == (1 + 3 + 4) / (13 + 4)
    assert result.num_utterances == 2


def test_a_repeated_id_counts_once_and_the_first_one_stays():
    first, second = Utterance("a", "one two", "one"), Utterance("a", "one two", "one two")
    result = score([first, SPEECH, second, first])
    assert [item.utterance for item in result.utterances] == [first, SPEECH]
    assert result.words == ErrorCounts(hits=5, deletions=1)
    assert (result.num_utterances, result.num_duplicates) == (2, 2)


def test_the_same_text_under_two_ids_counts_twice():
    result = score([Utterance("a", "one", ""), Utterance("a_dup1", "one", "")])
    assert (result.words.deletions, result.num_duplicates) == (2, 0)


def test_the_alignment_pairs_what_was_said_with_what_was_heard():
    result = score([Utterance("a", "the cat sat", "uh the bat"), Utterance("b", "a b c", "a x y")])
    assert result.utterances[0].alignment == ((None, "uh"), ("the", "the"), ("cat", "bat"), ("sat", None))
    assert result.utterances[1].alignment == (("a", "a"), ("b", "x"), ("c", "y"))


@pytest.mark.parametrize("utterances", [[], [Utterance("a", "", "uh"), Utterance("b", " \n", "")]])
def test_no_reference_word_at_all_has_no_rate(utterances):
    with pytest.raises(ValueError, match=rf"{len(utterances)} utterances contain no words.*check the transcripts"):
        score(utterances)


@pytest.mark.parametrize("name", ["", "a\tb", "a\nb", "a\u2028", "a\r"])
def test_an_id_that_would_break_the_lines_of_a_report_is_refused(name):
    with pytest.raises(ValueError, match="not one line without tabs"):
        Utterance(name, "one", "one")


def test_scripts_without_spaces_are_scored_by_character():
    said = [Utterance("a", "今天 天气很好", "今天气很 号"), Utterance("b", "好", "好")]
    words, characters, nonspace = score(said), score(said, unit="character"), score(said, unit="nonspace-character")
    assert (words.words.num_reference, words.words.errors, words.rate_name) == (3, 2, "WER")
    assert characters.words == characters.characters == nonspace.characters  # there is one CER, in which spaces count
    assert characters.wer == characters.cer == words.cer == 4 / 8
    assert (nonspace.words.num_reference, nonspace.words.errors, nonspace.rate_name) == (7, 2, "CER")
    assert characters.utterances[0].alignment[:2] == (("今", "今"), ("天", "天"))


UTTERANCES = [Utterance("a", "Hello, Dr. Smith!", "hello doctor smith"), Utterance("b", "the colour", "the color")]
EXPECTED = {"none": [3, 1], "basic": [1, 1], "english": [0, 0]}


@pytest.mark.parametrize("name", CHOICES)
def test_each_choice_forgives_more(name):
    if name == "english":
        pytest.importorskip("whisper_normalizer")
    scored = score(Normalization(name)(UTTERANCES))
    assert [item.words.errors for item in scored.utterances] == EXPECTED[name]
    assert (f"scoring.normalize={name}" in Normalization(name).note) == (name != "none")


@pytest.mark.parametrize("name", ["basic", "english"])
def test_every_apostrophe_is_one_and_quotation_marks_are_none(name):
    if name == "english":
        pytest.importorskip("whisper_normalizer")
    plain = "don't say yes or no the dogs food"
    for written in "'`´ʻʼ‘’‛′＇":
        quoted = f"“Don{written}t say {written}yes{written}, ‘or’ ``no''”: the dogs{written} food."
        pair = Utterance("a", quoted, plain)
        assert score(Normalization(name)([pair])).utterances[0].words.errors == 0, written
    pair = Utterance("a", "п’ять, l’eau d'or", "пʼять l'eau dor")
    assert score(Normalization("basic")([pair])).utterances[0].words.errors == 1


def test_another_choice_is_refused():
    with pytest.raises(ValueError, match="must be one of none, basic, english, given 'Basic'"):
        Normalization("Basic")
