import pytest

from asr.text.words import spelled

from .cases import TEXTS, trainers


@pytest.mark.parametrize("script", TEXTS)
@pytest.mark.parametrize("kind", ["character", "bpe", "unigram"])
def test_the_words_of_tokens_are_those_of_their_text(kind, script):
    tokenizer = trainers(TEXTS[script])[kind].train(TEXTS[script])
    for text in TEXTS[script]:
        tokens = tokenizer.encode(text)
        found = spelled(tokenizer.surfaces[token] for token in tokens)
        assert [word for word, _ in found] == tokenizer.decode(tokens).split(" ")
        for word, numbers in found:
            assert tokenizer.decode([tokens[number] for number in numbers]).replace(" ", "") == word


@pytest.mark.parametrize(
    ("surfaces", "expected"),
    [
        ([" th", "e", " cat"], [("the", [0, 1]), ("cat", [2])]),
        (["a", " ", "b"], [("a", [0]), ("b", [2])]),
        ([" of the", "m"], [("of", [0]), ("them", [0, 1])]),
        ([" ", "  ", ""], []),
        ([], []),
    ],
)
def test_a_token_may_hold_two_words_and_spaces_hold_none(surfaces, expected):
    assert spelled(surfaces) == expected
