"""Words in seconds, from tokens in frames of 40 ms."""

from dataclasses import dataclass

import pytest
import torch

from asr.data.loading.batch import Batch
from asr.decoding.hypothesis import Hypothesis
from asr.evaluation.wer import Word
from asr.inference.word_times import Emissions, emissions_of, spelled, words_of
from asr.models.heads.ctc import CtcHead
from asr.models.heads.transducer.head import TransducerHead
from tests.text.cases import TEXTS, trainers

SURFACES = ("", "⁇", " one", " two", "s", " of the")


@dataclass
class Shape:
    """Features of 10 ms."""

    from_audio: bool
    frame_shift_s: float = 0.01


def batch_of(energies: list[float]) -> Batch:
    features = torch.tensor(energies).reshape(1, -1, 1)
    empty = torch.zeros(1, 0, dtype=torch.int64)
    return Batch(features, torch.tensor([len(energies)]), empty, torch.tensor([0]), ("a",), ("",), (None,), 1.0, 0)


def words(emissions: Emissions, energies: list[float], from_audio: bool = True, factor: int = 4) -> tuple[Word, ...]:
    (found,) = words_of([emissions], SURFACES, batch_of(energies), Shape(from_audio), factor)
    return found


def spans(found: tuple[Word, ...]) -> list[tuple[str, float, float]]:
    return [(word.text, word.start_s, word.end_s) for word in found]


STEADY = [0.0] * 100


def test_a_word_has_the_time_and_the_probability_of_all_its_tokens():
    tokens = Emissions([2, 3, 4], [1, 10, 12], [2, 10, 13], torch.tensor([0.5, 0.8, 0.25]).log().tolist())
    one, twos = words(tokens, STEADY)
    assert spans((one, twos)) == [("one", 0.055, 0.135), ("twos", 0.415, 0.575)]
    assert (one.confidence, twos.confidence) == (pytest.approx(0.5), pytest.approx(0.2))
    # at twice the rate an encoding stands for half the time
    tokens = Emissions([2, 3, 4], [2, 20, 24], [5, 21, 27], [-0.1] * 3)
    assert spans(words(tokens, STEADY, factor=2)) == [("one", 0.065, 0.145), ("twos", 0.425, 0.585)]
    assert words(Emissions([], [], [], []), STEADY) == ()


def test_a_word_reaches_to_the_longest_pause_between_its_tokens_and_those_of_its_neighbors():
    loud = [9.0] * 100
    for pause in (range(8), range(30, 33), range(40, 50), range(90, 100)):
        for frame in pause:
            loud[frame] = 0.0
    tokens = Emissions([2, 3], [4, 15], [4, 16], [-0.1, -0.1])
    expected = [("one", 0.08, 0.40), ("two", 0.50, 0.90)]
    assert [(text, pytest.approx(a, abs=0.011), pytest.approx(b, abs=0.011)) for text, a, b in expected] == spans(
        words(tokens, loud)
    )
    # what is no spectrum of audio has no energy
    assert spans(words(tokens, loud, from_audio=False)) == [("one", 0.175, 0.215), ("two", 0.615, 0.695)]


def test_words_of_one_frame_share_it():
    tokens = Emissions([5, 2], [3, 3], [3, 3], [-0.1, -0.1])
    found = words(tokens, STEADY)
    assert [word.text for word in found] == ["of", "the", "one"]
    assert [word.start_s for word in found[1:]] == [word.end_s for word in found[:-1]]
    assert (found[0].start_s, found[-1].end_s) == (0.135, 0.175)
    assert all(word.start_s < word.end_s for word in found)


def test_ctc_aligns_the_tokens_of_a_search_and_a_transducer_leaves_them_where_they_were_found():
    found = [Hypothesis([2, 3], [4, 9], [-0.5, -0.25], -1.0), Hypothesis([], [], [], 0.0)]
    encodings, num_frames = torch.zeros(2, 12, 6), torch.tensor([12, 5])
    transducer = emissions_of(TransducerHead(6, 6), encodings, num_frames, found)
    assert transducer == [Emissions([2, 3], [4, 9], [4, 9], [-0.5, -0.25]), Emissions([], [], [], [])]
    head = CtcHead(6, 6)
    with torch.no_grad():
        head.project.weight.copy_(torch.eye(6))
        head.project.bias.zero_()
        for frame, label in enumerate([0, 2, 2, 0, 3, 0, 0, 0, 0, 0, 0, 0]):
            encodings[0, frame, label] = 8.0
        ctc = emissions_of(head, encodings, num_frames, found)
    assert (ctc[0].first, ctc[0].last) == ([1, 4], [2, 4])
    assert ctc[1] == Emissions([], [], [], [])


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
