"""Time and memory of losses, searches and alignment, as tables.

Run:  python scripts/bench_heads.py

One torch thread, CPU seconds, medians of five; memory is the growth of the process's largest size over one that has
built everything. A full joiner, whose logits of all frames and tokens exist at once, is measured beside the losses.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir

from asr.config.build import part, plain
from asr.config.help import CONFIGS
from asr.data.features import LogMel
from asr.data.loading.batch import Batch
from asr.decoding.ctc_beam import CtcBeam
from asr.decoding.ctc_greedy import CtcGreedy
from asr.decoding.forced_alignment import align
from asr.decoding.hypothesis import Decoder
from asr.decoding.scorers.ngram import NGramScorer
from asr.decoding.scorers.scorer import WeightedSum
from asr.decoding.transducer_beam import TransducerBeam
from asr.decoding.transducer_greedy import TransducerGreedy
from asr.features.global_norm import GlobalNorm
from asr.inference.word_times import aligned, words_of
from asr.language_models.kneser_ney import estimate, laid_out
from asr.language_models.ngrams import SPECIAL
from asr.models.heads.ctc import CtcHead
from asr.models.heads.protocols import FrameScores
from asr.models.heads.transducer.head import TransducerHead
from asr.models.heads.transducer.lattice import PathLosses
from asr.models.recognizer import Recognizer

D_MODEL, VOCAB_SIZE = 512, 500
SUBSAMPLING_FACTOR = 4
FRAME_S = SUBSAMPLING_FACTOR * 0.01
DECODERS: dict[str, Callable[[], Decoder]] = {
    "ctc_greedy": CtcGreedy,
    "transducer_greedy": TransducerGreedy,
    "transducer_beam": TransducerBeam,
}
REPEATS = 5
SHAPES = ((8, 250, 40), (8, 500, 100))  # utterances, frames, tokens


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
    tokens, num_frames_of_features = torch.randint(2, VOCAB_SIZE, (size, num_tokens)), SUBSAMPLING_FACTOR * lengths
    features = torch.randn(size, SUBSAMPLING_FACTOR * num_frames, 80)
    num_tokens_of_all = torch.full((size,), num_tokens)
    names = ("",) * size
    batch = Batch(features, num_frames_of_features, tokens, num_tokens_of_all, names, names, names, 0.0, seed=0)
    surfaces = [f" {number}" for number in range(VOCAB_SIZE)]

    def compute() -> None:
        with torch.inference_mode():
            alignment = align(Posteriors(), log_probs, lengths, tokens, num_tokens_of_all)
            words_of(aligned(alignment, tokens, num_tokens_of_all), surfaces, batch, LogMel(), SUBSAMPLING_FACTOR)

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
        beam.scorer = WeightedSum([(NGramScorer(estimate(laid_out(sentences), words, order).model, pieces), 0.3)])

    def compute() -> None:
        with torch.inference_mode():
            beam(Posteriors(), log_probs, lengths)

    return compute


def update_of(kind: str, size: int, num_frames: int, num_tokens: int) -> Callable[[], None]:
    """Return an update of ``zipformer_s`` on random features with a head."""
    torch.manual_seed(0)
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        encoder = part(plain(compose("encoder/zipformer_s")), "encoder", num_features=80)
    encoder.set_batch_count(1e9)  # after the warm-up, in which more is regularized
    head: Any = CtcHead if kind == "CTC" else TransducerHead
    recognizer = Recognizer(encoder, head(encoder.d_model, VOCAB_SIZE), GlobalNorm([0.0] * 80, [1.0] * 80)).train()
    optimizer = torch.optim.AdamW(recognizer.parameters(), lr=1e-4)
    features, tokens = torch.randn(size, num_frames, 80), torch.randint(1, VOCAB_SIZE, (size, num_tokens))
    lengths = torch.full((size,), num_frames), tokens, torch.full((size,), num_tokens)

    def compute() -> None:
        recognizer.losses(features, *lengths).total.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return compute


def updates_in_turns() -> tuple[float, float]:
    """Return CPU seconds of an update with CTC and with a transducer, in turns: others may use the machine."""
    torch.set_num_threads(1)
    updates = [update_of(kind, 4, 1000, 40) for kind in ("CTC", "transducer")]
    times = [[cpu_seconds(update) for update in updates] for _ in range(REPEATS + 1)]
    ctc, transducer = (statistics.median(column) for column in zip(*times[1:], strict=True))  # the first one allocates
    return ctc, transducer


def cpu_seconds(compute: Callable[[], None]) -> float:
    """Return CPU seconds of a computation."""
    start = time.process_time()
    compute()
    return time.process_time() - start


def measure(make: Callable[..., Callable[[], None]], *arguments: object) -> tuple[float, float]:
    """Return CPU seconds and MB of a computation, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (make, arguments))


def _measure(make: Callable[..., Callable[[], None]], arguments: tuple[object, ...]) -> tuple[float, float]:
    torch.set_num_threads(1)
    compute = make(*arguments)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = [cpu_seconds(compute) for _ in range(REPEATS)]
    return statistics.median(times), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield what was measured, its size, the time, and the memory."""
    for size, num_frames, num_tokens in SHAPES:
        shape = f"B{size} T{num_frames} U{num_tokens} V{VOCAB_SIZE}"
        # all logits of the long ones would take minutes
        for kind in ("CTC", "pruned", *(("exact", "full joiner") if num_frames == SHAPES[0][1] else ())):
            seconds, megabytes = measure(loss_of, kind, size, num_frames, num_tokens)
            yield f"loss and gradients: {kind}", shape, f"{1000 * seconds:.0f} ms", f"{megabytes:.0f}"
    ctc, transducer = updates_in_turns()
    name, shape = "update of zipformer_s with a transducer against CTC", f"B4 of 10 s, U40 V{VOCAB_SIZE}"
    yield name, shape, f"{transducer:.2f} against {ctc:.2f} s: {transducer / ctc:.2f} times", ""
    for kind in DECODERS:
        seconds, megabytes = measure(search_of, kind, 16, 250)
        factor = seconds / (16 * 250 * FRAME_S)
        yield f"search: {kind}", "B16 T250", f"real-time factor {factor:.5f}", f"{megabytes:.0f}"
    for order in (0, 4):
        seconds, megabytes = measure(beam_of, order, 16, 250)
        factor = seconds / (16 * 250 * FRAME_S)
        name = "search: ctc_beam" + (f" with a {order}-gram" if order else "")
        yield name, f"B16 T250 V{VOCAB_SIZE} K8", f"real-time factor {factor:.5f}", f"{megabytes:.0f}"
    seconds, megabytes = measure(alignment_of, 16, 250, 40)
    factor = seconds / (16 * 250 * FRAME_S)
    yield "alignment, with times of words", "B16 T250 U40", f"real-time factor {factor:.5f}", f"{megabytes:.0f}"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("| what | size | CPU time | MB |\n|---|---|---|---|")
    for row in rows():
        print(f"| {' | '.join(row)} |", flush=True)
