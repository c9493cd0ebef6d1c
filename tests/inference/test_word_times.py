"""Words in seconds, from tokens in frames of 40 ms."""

from dataclasses import dataclass
from itertools import chain, product

import numpy as np
import pytest
import torch
from lhotse import Fbank

from asr.data.features import Waveform
from asr.data.loading.loader import Batch
from asr.decoding.beam import AttentionRescoring, CtcBeam, TransducerBeam
from asr.decoding.greedy import CtcGreedy, Hypothesis, TransducerGreedy
from asr.inference.decode import Emissions, emissions_of, spelled, words_of
from asr.models.heads.ctc import CtcHead
from asr.models.heads.transducer import TransducerHead
from tests.models import heads
from tests.text.cases import TEXTS, trainers
from werdict.scoring import Word
from werdict.scoring import words_of as units_of

SPOKEN = {"word": "word", "character": "nonspace-character"}  # a space has no time
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


def ordered(found: tuple[Word, ...], end_s: float) -> bool:
    """Whether words last some time each, in turn and within the audio."""
    times_s = [0.0, *chain.from_iterable((word.start_s, word.end_s) for word in found), end_s]
    return times_s == sorted(times_s) and all(word.start_s < word.end_s for word in found)


def test_a_frame_that_ends_one_word_and_begins_the_next_is_divided():
    found = words(Emissions([2, 4, 3, 2], [3, 5, 5, 5], [3, 5, 5, 8], [-0.1] * 4), STEADY)
    assert spans(found) == [("ones", 0.135, 0.228), ("two", 0.228, 0.242), ("one", 0.242, 0.375)]
    # an own decoder may go back in time
    assert ordered(words(Emissions([2, 3, 4], [5, 3, 1], [5, 3, 1], [-0.1] * 3), STEADY), 1.0)


@pytest.mark.parametrize(("frames", "factor"), product([[0, 0], [0, 11], [11, 11]], [2, 4, 8, 16]))
def test_words_are_within_the_audio(frames, factor):
    found = words(Emissions([2, 3], frames, frames, [-0.1] * 2), [0.0] * 12 * factor, factor=factor)
    assert ordered(found, 12 * factor / 100)


FITTING = [
    pytest.param(case, decoder, id=f"{case.name}-{type(decoder).__name__}")
    for case in heads.CASES
    for decoder in (CtcGreedy(), CtcBeam(), AttentionRescoring(), TransducerGreedy(), TransducerBeam())
    if isinstance(case.make(8), decoder.needs)
]


@pytest.mark.parametrize("unit", ["word", "character"])
@pytest.mark.parametrize(("case", "decoder"), FITTING)
def test_words_follow_each_other_with_every_head_and_decoder(case, decoder, unit):
    torch.manual_seed(0)
    head = case.make(8).eval()
    surfaces = ("", "⁇", " a", " b", "c", " of the", "d e")
    encodings, num_frames = 20 * torch.randn(4, 25, 8), torch.tensor([25, 25, 12, 1])
    batch = Batch(torch.randn(4, 103, 1), 4 * num_frames + 3, *[torch.zeros(4, 0)] * 2, (), (), (), 1.0, 0)
    with torch.inference_mode():
        texts = [best for best, *_ in decoder(head, encodings, num_frames)]
        found = words_of(emissions_of(head, encodings, num_frames, texts), surfaces, batch, Shape(True), 4, unit=unit)
    for text, timed, length in zip(texts, found, batch.num_frames.tolist(), strict=True):
        said = "".join(surfaces[token] for token in text.tokens)
        assert [word.text for word in timed] == units_of(said, SPOKEN[unit])
        assert ordered(timed, length / 100)
    assert sum(map(len, found)) > 20


def test_where_ctc_cannot_align_a_text_its_words_are_where_the_search_found_them():
    found = [Hypothesis([2, 3, 2, 3], [0, 0, 1, 1], [-0.5] * 4, -2.0), Hypothesis([2], [1], [-0.5], -0.5)]
    by_search, by_ctc = emissions_of(CtcHead(6, 6), torch.randn(2, 3, 6), torch.tensor([3, 3]), found)
    assert by_search == Emissions([2, 3, 2, 3], [0, 0, 1, 1], [0, 0, 1, 1], [-0.5] * 4)
    assert by_ctc.log_probs != [-0.5]


def test_pauses_of_raw_audio_are_those_of_its_spectrum():
    rng, tone = np.random.default_rng(0), np.sin(2 * np.pi * 110 * np.outer(np.arange(1, 20), np.arange(8000)) / 16_000)
    quiet, sound = np.zeros(8000), tone.sum(axis=0) * np.hanning(8000) * 0.02
    audio = np.concatenate([quiet, sound, quiet, sound, quiet]) + rng.normal(0, 1e-3, 40_000) + 0.05  # with an offset
    frames = [round((100 * middle_s - 3.5) / 4) for middle_s in (0.75, 1.75)]
    emitted = Emissions([2, 3], frames, frames, [-0.1] * 2)
    samples = audio.astype(np.float32)
    matrices = {Shape: torch.from_numpy(Fbank().extract(samples, 16_000)), Waveform: torch.from_numpy(samples)}
    for features, matrix in ((Shape(True), matrices[Shape]), (Waveform(), matrices[Waveform].reshape(-1, 160))):
        batch = Batch(matrix[None], torch.tensor([250]), *[torch.zeros(1, 0)] * 2, (), (), (), 1.0, 0)
        ((first, second),) = words_of([emitted], SURFACES, batch, features, 4)
        assert [first.start_s, first.end_s] == pytest.approx([0.5, 1.0], abs=0.04)
        assert [second.start_s, second.end_s] == pytest.approx([1.5, 2.0], abs=0.04)


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
        found = spelled((tokenizer.surfaces[token] for token in tokens), "character")
        assert [character for character, _ in found] == units_of(tokenizer.decode(tokens), SPOKEN["character"])


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


def test_a_character_has_the_tokens_of_its_bytes():
    surfaces = ["ab", " 天".encode()[:2].decode("utf-8", "surrogateescape"), "\udca4\udca9", "\udcff"]
    assert spelled(surfaces, "character") == [("a", [0]), ("b", [0]), ("天", [1, 2]), ("\ufffd", [3])]
