import torch

from asr.decoding.greedy import CtcGreedy, Hypothesis
from tests.decoding.test_ctc_beam import Scores


def log_probs_of(*paths: list[int]) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(paths), 4).float().log_softmax(-1)


def found_in(log_probs: torch.Tensor, *num_frames: int) -> list[Hypothesis]:
    return [best for (best,) in CtcGreedy()(Scores(), log_probs, torch.tensor(num_frames))]


def test_repetitions_merge_and_blanks_separate_them():
    first, second = found_in(log_probs_of([1, 1, 0, 1, 2, 2, 3], [0, 0, 3, 3, 3, 0, 0]), 7, 7)
    assert (first.tokens, second.tokens) == ([1, 1, 2, 3], [3])


def test_frames_after_the_end_are_not_decoded():
    first, second = found_in(log_probs_of([1, 2, 3, 3], [2, 2, 2, 2]), 2, 0)
    assert first.tokens == [1, 2]
    assert second == Hypothesis([], [], [], 0)


def test_a_token_stands_where_it_is_most_probable_and_the_score_is_that_of_the_path():
    log_probs = torch.tensor([[[0.3, 0.7], [0.1, 0.9], [0.2, 0.8], [0.6, 0.4], [0.45, 0.55]]]).log()
    (found,) = found_in(log_probs, 5)
    assert (found.tokens, found.frames) == ([1, 1], [1, 4])
    torch.testing.assert_close(torch.tensor(found.log_probs).exp(), torch.tensor([0.9, 0.55]))
    torch.testing.assert_close(torch.tensor(found.score).exp(), torch.tensor(0.7 * 0.9 * 0.8 * 0.6 * 0.55))
