import torch

from asr.decoding.ctc_greedy import CtcGreedy


def log_probs_of(*paths: list[int]) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(paths), 4).float().log_softmax(-1)


def test_repetitions_merge_and_blanks_separate_them():
    log_probs = log_probs_of([1, 1, 0, 1, 2, 2, 3], [0, 0, 3, 3, 3, 0, 0])
    assert CtcGreedy()(log_probs, torch.tensor([7, 7])) == [[1, 1, 2, 3], [3]]


def test_frames_behind_the_end_are_not_decoded():
    assert CtcGreedy()(log_probs_of([1, 2, 3, 3], [2, 2, 2, 2]), torch.tensor([2, 0])) == [[1, 2], []]
