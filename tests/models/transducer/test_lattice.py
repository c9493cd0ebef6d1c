"""Transducer losses against the sum over all paths, one by one."""

import itertools

import pytest
import torch
from torch import Tensor

from asr.models.heads.transducer import PathLosses


def all_paths(num_frames: int, num_tokens: int) -> list[tuple[int, ...]]:
    """Return the place at which each blank is taken: it never falls, and the last blank is at the last place."""
    inner = itertools.combinations_with_replacement(range(num_tokens + 1), num_frames - 1)
    return [(*places, num_tokens) for places in inner]


def brute_force(blank: Tensor, label: Tensor, num_frames: int, num_tokens: int) -> Tensor:
    """Return the negative log of the sum of the probabilities of all paths of one utterance."""
    scores = []
    for path in all_paths(num_frames, num_tokens):
        score, place = blank.new_zeros(()), 0
        for frame, stop in enumerate(path):
            score = score + label[frame, place:stop].sum() + blank[frame, stop]
            place = stop
        scores.append(score)
    return -torch.stack(scores).logsumexp(0)


def lattice(size: int, num_frames: int, num_places: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    scores = torch.randn(2, size, num_frames, num_places, generator=torch.Generator().manual_seed(seed)).double() * 2
    blank, label = scores - 3
    return blank.requires_grad_(), label.requires_grad_()


@pytest.mark.parametrize(("num_frames", "num_tokens"), [(1, 0), (1, 3), (4, 0), (4, 1), (2, 5), (5, 4)])
def test_losses_and_gradients_are_those_of_all_paths(num_frames, num_tokens):
    blank, label = lattice(1, num_frames, num_tokens + 1)
    lengths = torch.tensor([num_frames]), torch.tensor([num_tokens])
    found, *_ = PathLosses.apply(blank, label, *lengths)
    expected = brute_force(blank[0], label[0], num_frames, num_tokens)
    torch.testing.assert_close(found[0], expected)
    gradients = torch.autograd.grad(found.sum() * 3, (blank, label))
    wanted = torch.autograd.grad(expected * 3, (blank, label), allow_unused=True)
    for gradient, want in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient) if want is None else want)


def test_padding_changes_nothing_and_has_no_gradient():
    blank, label = lattice(3, 7, 5)
    lengths = torch.tensor([7, 4, 1]), torch.tensor([4, 2, 0])
    found, *_ = PathLosses.apply(blank, label, *lengths)
    found.sum().backward()
    for row, (num_frames, num_tokens) in enumerate(zip(*(length.tolist() for length in lengths), strict=True)):
        expected = brute_force(blank[row], label[row], num_frames, num_tokens)
        torch.testing.assert_close(found[row], expected)
        inside = torch.zeros(7, 5, dtype=torch.bool)
        inside[:num_frames, : num_tokens + 1] = True
        assert not blank.grad[row][~inside].any()
        assert not label.grad[row][~inside].any()


def test_a_thousand_improbable_frames_lose_no_precision():
    blank, label = (torch.full((1, 1000, 3), score, dtype=torch.float32) for score in (-30.0, -40.0))
    found, *_ = PathLosses.apply(blank, label, torch.tensor([1000]), torch.tensor([2]))
    num_paths = 1000 * 1001 / 2
    expected = 1000 * 30 + 2 * 40 - torch.tensor(num_paths).log()
    assert found.item() == pytest.approx(expected.item(), rel=1e-7)


def test_scores_of_the_caller_are_left_as_they_are():
    """In double precision nothing is converted, so that what is computed in place could be theirs."""
    scores = [one.detach() for one in lattice(2, 4, 3)]
    before = [one.clone() for one in scores]
    PathLosses.apply(*scores, torch.tensor([4, 2]), torch.tensor([2, 1]))
    assert all(map(torch.equal, scores, before))
