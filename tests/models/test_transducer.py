"""Transducer losses against the sum over all paths, and against the joiner's logits of all frames and places."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asr.models.heads.ctc import CrCtcHead, CtcHead
from asr.models.heads.transducer import PathLosses, TransducerCtcHead, TransducerHead, band_starts, simple_scores


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


D_MODEL, VOCAB_SIZE = 6, 7
NUM_FRAMES, NUM_TOKENS = torch.tensor([9, 5, 6]), torch.tensor([5, 3, 0])
TOKENS = torch.tensor([[3, 3, 1, 6, 2, 5], [4, 2, 4, 9, 9, 9], [9, 9, 9, 9, 9, 9]]).clamp(max=VOCAB_SIZE - 1)


def make(**options) -> TransducerHead:
    torch.manual_seed(0)
    return TransducerHead(D_MODEL, VOCAB_SIZE, predictor_dim=8, joiner_dim=5, **options).double()


def encodings(seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 9, D_MODEL, generator=generator, dtype=torch.float64, requires_grad=True)


def scores_of_all(head: TransducerHead, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (B, T, S) of blanks and labels from all logits, with contexts made token by token."""
    rows = [[-1] * (head.context_size - 1) + [0, *row] for row in TOKENS[:, :5].tolist()]
    contexts = torch.tensor([[row[u : u + head.context_size] for u in range(6)] for row in rows])
    places = head.predict(contexts.flatten(0, 1)).view(3, 6, -1)
    logits = head.joiner.output_linear((head.project(frames)[:, :, None] + places[:, None]).tanh())
    log_probs, labels = logits.log_softmax(-1), F.pad(TOKENS[:, :5], (0, 1))
    return log_probs[..., 0], log_probs.gather(3, labels[:, None, :, None].expand(-1, 9, -1, -1)).squeeze(3)


def gradients(loss: Tensor, head: TransducerHead, frames: Tensor) -> list[Tensor]:
    used = [frames, *(value for name, value in head.named_parameters() if not name.startswith("simple"))]
    return list(torch.autograd.grad(loss.sum(), used, retain_graph=True))


@pytest.mark.parametrize("context_size", [1, 2, 3])
def test_the_exact_loss_and_its_gradients_are_those_of_all_logits(context_size, monkeypatch):
    monkeypatch.setattr("asr.models.heads.transducer.MOST_LOGITS", 3 * 6 * VOCAB_SIZE * 2)  # two frames at a time
    head, frames = make(prune_range=None, context_size=context_size), encodings()
    found = head.loss(frames, NUM_FRAMES, TOKENS, NUM_TOKENS)
    expected = PathLosses.apply(*scores_of_all(head, frames), NUM_FRAMES, NUM_TOKENS)[0]
    assert head.loss_names == tuple(found.parts)
    torch.testing.assert_close(found.total, expected)
    for one, other in zip(gradients(found.total, head, frames), gradients(expected, head, frames), strict=True):
        torch.testing.assert_close(one, other)


def test_logits_that_are_kept_and_those_that_are_computed_again_have_the_same_gradients(monkeypatch):
    head, frames = make(prune_range=3), encodings()
    kept = head.loss(frames, NUM_FRAMES, TOKENS, NUM_TOKENS).parts["pruned"]
    monkeypatch.setattr("asr.models.heads.transducer.MOST_KEPT", 0)
    again = head.loss(frames, NUM_FRAMES, TOKENS, NUM_TOKENS).parts["pruned"]
    first, second, other = (gradients(loss, head, frames) for loss in (kept, kept, again))
    for one, two, three in zip(first, second, other, strict=True):
        torch.testing.assert_close(one, three, rtol=0, atol=0)
        torch.testing.assert_close(two, three, rtol=0, atol=0)


def test_torchaudios_loss_and_its_gradients_are_the_same():
    pytest.importorskip("torchaudio", reason="torchaudio is not installed", exc_type=(ImportError, OSError))
    ours, theirs = make(prune_range=None).float(), make(prune_range=None, backend="torchaudio").float()
    frames = encodings().detach().float().requires_grad_()
    expected, found = (head.loss(frames, NUM_FRAMES, TOKENS, NUM_TOKENS).total for head in (ours, theirs))
    torch.testing.assert_close(found, expected)
    pairs = zip(gradients(found, theirs, frames), gradients(expected, ours, frames), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_pruning_that_keeps_every_place_is_exact():
    exact, pruned, frames = make(prune_range=None), make(prune_range=6), encodings()
    pruned.load_state_dict(exact.state_dict(), strict=False)
    found = pruned.loss(frames, NUM_FRAMES, TOKENS, NUM_TOKENS)
    expected = exact.loss(frames, NUM_FRAMES, TOKENS, NUM_TOKENS).total
    torch.testing.assert_close(found.parts["pruned"], expected)
    for one, other in zip(
        gradients(found.parts["pruned"], pruned, frames), gradients(expected, exact, frames), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("prune_range", [2, 3, 4])
def test_the_pruned_loss_is_that_of_the_paths_within_the_band(prune_range):
    head, frames = make(prune_range=prune_range), encodings()
    found = head.loss(frames, NUM_FRAMES, TOKENS, NUM_TOKENS)
    acoustic, language = _simple_logits(head, frames)
    labels = F.pad(TOKENS[:, :5], (0, 1))
    _, *taken = PathLosses.apply(*simple_scores(acoustic, language, labels, 0.25), NUM_FRAMES, NUM_TOKENS)
    starts = band_starts(sum(taken), NUM_FRAMES, NUM_TOKENS, prune_range)
    blank, label = scores_of_all(head, frames)
    above = torch.arange(6) - starts[..., None]
    inside, has_next = (above >= 0) & (above < prune_range), above < prune_range - 1
    blank, label = blank.masked_fill(~inside, -1e4), label.masked_fill(~(inside & has_next), -1e4)
    expected = PathLosses.apply(blank, label, NUM_FRAMES, NUM_TOKENS)[0]
    torch.testing.assert_close(found.parts["pruned"], expected)
    exact = PathLosses.apply(*scores_of_all(head, frames), NUM_FRAMES, NUM_TOKENS)[0]
    assert (found.parts["pruned"] >= exact - 1e-4).all()


def _simple_logits(head: TransducerHead, frames: Tensor) -> tuple[Tensor, Tensor]:
    history = F.pad(F.pad(TOKENS[:, :5], (1, 0)), (head.context_size - 1, 0), value=-1)
    return head.simple_am_proj(frames), head.simple_lm_proj(head.predictor(history))


def test_a_joiner_that_adds_needs_no_table_of_all_logits():
    acoustic, language = torch.randn(2, 4, 7).double(), torch.randn(2, 3, 7).double()
    labels = torch.tensor([[2, 6, 0], [1, 1, 0]])
    joined = (acoustic[:, :, None] + language[:, None]).log_softmax(-1)
    alone = language.log_softmax(-1)[:, None].expand(-1, 4, -1, -1)
    mixed = 0.6 * joined + 0.4 * alone
    blank, label = simple_scores(acoustic, language, labels, 0.4)
    torch.testing.assert_close(blank, mixed[..., 0])
    torch.testing.assert_close(label, mixed.gather(3, labels[:, None, :, None].expand(-1, 4, -1, -1)).squeeze(3))


@pytest.mark.parametrize("seed", range(20))
def test_a_band_starts_and_ends_where_paths_do_and_is_never_left(seed):
    generator = torch.Generator().manual_seed(seed)
    num_kept = int(torch.randint(2, 6, (), generator=generator))
    num_frames = torch.randint(1, 12, (6,), generator=generator)
    num_tokens = (torch.rand(6, generator=generator) * ((num_kept - 1) * num_frames + 1)).long()
    num_places = int(num_tokens.max()) + 1
    passing = torch.rand(6, int(num_frames.max()), num_places, generator=generator)
    kept = min(num_kept, num_places)
    for row, starts in enumerate(band_starts(passing, num_frames, num_tokens, kept)):
        valid = starts[: num_frames[row]]
        last = max(0, int(num_tokens[row]) + 1 - kept)
        assert valid[0] == 0 or num_frames[row] == 1
        assert valid[-1] == last
        steps = valid.diff()
        assert ((steps >= 0) & (steps <= kept - 1)).all()


def test_more_tokens_than_a_band_can_hold_are_not_feasible_and_have_no_gradient():
    head, frames = make(prune_range=2), encodings()
    lengths = torch.tensor([5, 4, 1]), torch.tensor([5, 5, 2])
    found = head.loss(frames, lengths[0], TOKENS.clamp(max=6), lengths[1])
    assert found.feasible.tolist() == [True, False, False]
    assert (found.total > 0).tolist() == [True, False, False]
    found.total.sum().backward()
    assert not frames.grad[1:].any()
    assert frames.grad.isfinite().all()


def test_the_pruned_loss_gains_and_the_simple_one_loses_weight_as_training_warms_up():
    head, frames = make(warmup_batches=10, ref_duration_s=60), encodings()
    for audio_s, scales in ((0, (1.0, 0.1)), (300, (0.75, 0.55)), (600, (0.5, 1.0)), (6000, (0.5, 1.0))):
        head.set_trained_seconds(audio_s)
        found = head.loss(frames, NUM_FRAMES, TOKENS, NUM_TOKENS)
        expected = scales[0] * found.parts["simple"] + scales[1] * found.parts["pruned"]
        torch.testing.assert_close(found.total, expected)


TEXTS = torch.tensor([[1, 2, 1], [3, 0, 0]]), torch.tensor([3, 1])
SIZES = {"d_model": 5, "vocab_size": 4}


def make_with_ctc(**options) -> TransducerCtcHead:
    torch.manual_seed(0)
    return TransducerCtcHead(**SIZES, predictor_dim=8, joiner_dim=6, ctc_dropout=0.0, **options)


@pytest.mark.parametrize("consistency_weight", [0.0, 0.3])
def test_the_loss_is_the_transducers_of_each_view_and_a_share_of_ctcs(consistency_weight):
    head = make_with_ctc(ctc_weight=0.7, consistency_weight=consistency_weight)
    plain = TransducerHead(**SIZES, predictor_dim=8, joiner_dim=6)
    plain.load_state_dict({name: value for name, value in head.state_dict().items() if not name.startswith("ctc.")})
    ctc = CrCtcHead(**SIZES, consistency_weight=0.3) if consistency_weight else CtcHead(**SIZES)
    ctc.load_state_dict(head.ctc.state_dict())
    encodings, lengths = torch.randn(2 * head.num_views, 7, 5), torch.tensor([7, 5]).repeat(head.num_views)
    found = head.loss(encodings, lengths, *TEXTS)
    views = [plain.loss(view, torch.tensor([7, 5]), *TEXTS).total for view in encodings.chunk(head.num_views)]
    expected = sum(views) / len(views) + 0.7 * ctc.loss(encodings, lengths, *TEXTS).total
    torch.testing.assert_close(found.total, expected)
    assert tuple(found.parts) == head.loss_names == ("simple", "pruned", *ctc.loss_names)
