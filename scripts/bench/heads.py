"""Time and memory of losses, searches and alignment, as tables.

    python scripts/bench heads

Medians of CPU seconds; memory is the growth of the process's largest size over one that has
built everything. A full joiner, whose logits of all frames and tokens exist at once, is measured beside the losses.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from asr.data.features import LogMel
from asr.decoding.beam import CtcBeam, TransducerBeam
from asr.decoding.forced_alignment import align
from asr.decoding.greedy import CtcGreedy, Decoder, TransducerGreedy
from asr.decoding.scorers import NGramScorer, WeightedSum
from asr.inference.decode import aligned, words_of
from asr.language_models import SPECIAL, estimate, laid_out
from asr.models.heads.ctc import CtcHead
from asr.models.heads.protocols import FrameScores
from asr.models.heads.transducer import PathLosses, TransducerHead
from bench.configs import NUM_FEATURES, batch_of, build_encoder, with_head
from bench.measure import Row, Setting, alone, in_turns, peak_mb, ratio, timed_ms

D_MODEL, VOCAB_SIZE = 512, 500
SUBSAMPLING_FACTOR = 4
FRAME_S = SUBSAMPLING_FACTOR * 0.01
DECODERS: dict[str, Callable[[], Decoder]] = {
    "ctc_greedy": CtcGreedy,
    "transducer_greedy": TransducerGreedy,
    "transducer_beam": TransducerBeam,
}
SHAPES = ((8, 250, 40), (8, 500, 100))  # utterances, frames, tokens
SMALL_SHAPES = ((2, 20, 5),)


def full_joiner(head: TransducerHead, encodings: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the exact loss through the logits of all frames and tokens."""
    history = F.pad(F.pad(tokens, (1, 0)), (head.context_size - 1, 0), value=-1)
    places = head.joiner.decoder_proj(head.predictor(history))
    log_probs = head.join(head.project(encodings)[:, :, None], places[:, None])
    labels = F.pad(tokens, (0, 1))[:, None, :, None].expand(-1, encodings.shape[1], -1, -1)
    lengths = (torch.full((len(tokens),), length) for length in (encodings.shape[1], tokens.shape[1]))
    return PathLosses.apply(log_probs[..., 0], log_probs.gather(3, labels).squeeze(3), *lengths)[0]


def loss_of(kind: str, size: int, num_frames: int, num_tokens: int) -> Callable[[], None]:
    """Return what computes a loss of random encodings and its gradients."""
    torch.manual_seed(0)
    kept = 5 if kind == "pruned" else None
    head = CtcHead(D_MODEL, VOCAB_SIZE) if kind == "CTC" else TransducerHead(D_MODEL, VOCAB_SIZE, prune_range=kept)
    encodings = torch.randn(size, num_frames, D_MODEL, requires_grad=True)
    tokens = torch.randint(1, VOCAB_SIZE, (size, num_tokens))
    lengths = torch.full((size,), num_frames), tokens, torch.full((size,), num_tokens)

    def compute() -> None:
        if kind == "full joiner":
            assert isinstance(head, TransducerHead)
            losses = full_joiner(head, encodings, tokens)
        else:
            losses = head.loss(encodings, *lengths).total
        losses.sum().backward()

    return compute


def search_of(kind: str, size: int, num_frames: int) -> Callable[[], None]:
    """Return what decodes random encodings; a bias makes most labels blanks, as in speech."""
    torch.manual_seed(0)
    encodings, lengths = torch.randn(size, num_frames, D_MODEL), torch.full((size,), num_frames)
    decoder = DECODERS[kind]()
    head = CtcHead(D_MODEL, VOCAB_SIZE) if decoder.needs is FrameScores else TransducerHead(D_MODEL, VOCAB_SIZE)
    output = head.project if isinstance(head, CtcHead) else head.joiner.output_linear
    with torch.no_grad():
        output.weight.mul_(4)
        output.bias[0] += 5

    def compute() -> None:
        with torch.inference_mode():
            decoder(head, encodings, lengths)

    return compute


def alignment_of(size: int, num_frames: int, num_tokens: int) -> Callable[[], None]:
    """Return what aligns random texts by CTC, and finds their words in seconds beside pauses."""
    torch.manual_seed(0)
    log_probs, lengths = peaky_posteriors(size, num_frames), torch.full((size,), num_frames)
    tokens = torch.randint(2, VOCAB_SIZE, (size, num_tokens))
    batch = batch_of(torch.randn(size, SUBSAMPLING_FACTOR * num_frames, NUM_FEATURES), tokens, FRAME_S * num_frames)
    surfaces = [f" {number}" for number in range(VOCAB_SIZE)]

    def compute() -> None:
        with torch.inference_mode():
            alignment = align(Posteriors(), log_probs, lengths, tokens, batch.num_tokens)
            words_of(aligned(alignment, tokens, batch.num_tokens), surfaces, batch, LogMel(), SUBSAMPLING_FACTOR)

    return compute


class Posteriors:
    """Takes log-probabilities for encodings."""

    def frame_log_probs(self, encodings: torch.Tensor) -> torch.Tensor:
        """Return what is given."""
        return encodings


def peaky_posteriors(size: int, num_frames: int) -> torch.Tensor:
    """Return log-probabilities as of a trained model: about 70 % of the frames are surely blank."""
    logits = torch.randn(size, num_frames, VOCAB_SIZE)
    logits[..., 0] += 16.5
    sure = torch.rand(size, num_frames) < 0.7
    rows = (~sure).nonzero(as_tuple=True)
    logits[..., 0] -= 8 * ~sure
    for height in (14, 11, 11, 11):
        logits[*rows, torch.randint(2, VOCAB_SIZE, (len(rows[0]),))] += height
    return logits.log_softmax(dim=2)


def beam_of(order: int, size: int, num_frames: int) -> Callable[[], None]:
    """Return what searches with a beam of eight, and an n-gram of 600,000 random tokens unless its order is 0."""
    torch.manual_seed(0)
    beam, log_probs, lengths = CtcBeam(), peaky_posteriors(size, num_frames), torch.full((size,), num_frames)
    if order:
        pieces = [str(number) for number in range(VOCAB_SIZE)]
        words = [*SPECIAL, *pieces[2:]]
        # squared, so that some tokens are frequent
        sentences = torch.rand(20_000, 30).square().mul(VOCAB_SIZE - 2).long().add(3).tolist()
        beam.scorer = WeightedSum([(NGramScorer(estimate(laid_out(sentences), words, order)[0], pieces), 0.3)])

    def compute() -> None:
        with torch.inference_mode():
            beam(Posteriors(), log_probs, lengths)

    return compute


def update_of(kind: str, size: int, num_frames: int, num_tokens: int) -> Callable[[], None]:
    """Return an update of ``zipformer_s`` on random features with a head."""
    encoder = build_encoder("zipformer_s")
    encoder.set_trained_seconds(1e9)  # after the warm-up, in which more is regularized
    head: Any = CtcHead if kind == "CTC" else TransducerHead
    recognizer = with_head(encoder, head(encoder.d_model, VOCAB_SIZE)).train()
    optimizer = torch.optim.AdamW(recognizer.parameters(), lr=1e-4)
    features, tokens = torch.randn(size, num_frames, NUM_FEATURES), torch.randint(1, VOCAB_SIZE, (size, num_tokens))
    lengths = torch.full((size,), num_frames), tokens, torch.full((size,), num_tokens)

    def compute() -> None:
        recognizer.losses(features, *lengths).total.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return compute


def growth(make: Callable[..., Callable[[], None]], num_repeats: int, *arguments: object) -> tuple[float, float]:
    """Return the median CPU milliseconds of a computation, and by how many MB the process grows in it."""
    compute = make(*arguments)
    before = peak_mb()
    return statistics.median(timed_ms(compute) for _ in range(num_repeats)), peak_mb() - before


def rows(setting: Setting, _: str) -> Iterator[Row]:
    """Yield the time, and the memory, of losses, updates, searches and the alignment."""
    num, small = setting.options.repeats, setting.small
    for shape in SMALL_SHAPES if small else SHAPES:
        # all logits of the long ones would take minutes
        for kind in ("CTC", "pruned", *(("exact", "full joiner") if shape[1] <= SHAPES[0][1] else ())):
            milliseconds, megabytes = alone(growth, loss_of, num, kind, *shape)
            size = "B{} T{} U{} V{}".format(*shape, VOCAB_SIZE)
            cells = {"size": size, "CPU time": f"{milliseconds:.0f} ms", "MB": f"{megabytes:.0f}"}
            yield Row(f"loss and gradients: {kind}", cells)
    updated = (1, 100, 5) if small else (4, 1000, 40)
    updates = [update_of(kind, *updated) for kind in ("transducer", "CTC")]
    for update in updates:  # allocates
        update()
    timings = in_turns([partial(timed_ms, update) for update in updates], num)
    seconds = " against ".join(f"{statistics.median(times) / 1e3:.2f}" for times in timings)
    title = "update of zipformer_s with a transducer against CTC, B{} of {} frames, U{}".format(*updated)
    yield Row(title, f"{seconds} s: {ratio(*timings)} times")
    searched, num_tokens = (2, 20) if small else (16, 250), 5 if small else 40
    computations: dict[str, tuple[Any, ...]] = {
        **{f"search: {kind}": (search_of, kind, *searched) for kind in DECODERS},
        "search: ctc_beam": (beam_of, 0, *searched),
        "search: ctc_beam with a 4-gram": (beam_of, 4, *searched),
        f"alignment of {num_tokens} tokens, with times of words": (alignment_of, *searched, num_tokens),
    }
    for name, (make, *arguments) in computations.items():
        milliseconds, megabytes = alone(growth, make, num, *arguments)
        factor = milliseconds / 1e3 / (searched[0] * searched[1] * FRAME_S)
        cells = {"size": "B{} T{}".format(*searched), "real-time factor": f"{factor:.5f}", "MB": f"{megabytes:.0f}"}
        yield Row(name, cells)
