"""What scoring forgives, and what it does not."""

import pytest

from werdict.scoring import CHOICES, Normalization, Utterance, score

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
