"""Greedy transducer search: the best label of every frame and history.

B batch, T frames, D width of encodings.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asr.decoding.hypothesis import Hypothesis
from asr.models.heads.protocols import Transduces
from asr.text.vocabulary import BLANK_ID


class TransducerGreedy:
    """Takes the most probable label, and with a blank the next frame; all utterances of a batch at once.

    Args:
        max_symbols: tokens that a frame may have; the search then goes to the next frame, as with a blank.

    Raises:
        ValueError: ``max_symbols`` is below 1.

    Reference:
        Graves 2012, "Sequence transduction with recurrent neural networks", arXiv:1211.3711, section 2.6, with a beam
        of one. Differs: a limit of tokens per frame.
    """

    needs = Transduces

    def __init__(self, max_symbols: int = 3) -> None:
        if max_symbols < 1:
            raise ValueError(f"max_symbols must be at least 1, given {max_symbols}")
        self.max_symbols = max_symbols

    def __call__(self, head: Transduces, encodings: Tensor, num_frames: Tensor) -> list[list[Hypothesis]]:
        """Return the path of each utterance; see ``Decoder``. Its score is the log-probability of all labels."""
        frames, size = head.project(encodings), len(encodings)
        context = torch.full((size, head.context_size), -1, device=encodings.device)
        context[:, -1] = BLANK_ID
        predictions, scores = head.predict(context), encodings.new_zeros(size, dtype=torch.float32)
        emitted: list[tuple[int, Tensor, Tensor]] = []  # frame, label and log-probability of each utterance
        for frame in range(int(num_frames.max())):
            searching = frame < num_frames
            for _ in range(self.max_symbols):
                log_probs, labels = head.join(frames[:, frame], predictions).max(dim=-1)
                scores = scores + log_probs.where(searching, 0.0)
                searching = searching & (labels != BLANK_ID)
                if not searching.any():
                    break
                emitted.append((frame, labels.where(searching, BLANK_ID), log_probs))
                longer = torch.cat((context[:, 1:], labels[:, None]), dim=1)
                context = torch.where(searching[:, None], longer, context)
                predictions = torch.where(searching[:, None], head.predict(context), predictions)
        return _hypotheses(emitted, scores)


def _hypotheses(emitted: list[tuple[int, Tensor, Tensor]], scores: Tensor) -> list[list[Hypothesis]]:
    if not emitted:
        return [[Hypothesis([], [], [], score)] for score in scores.tolist()]
    frames, labels, log_probs = zip(*emitted, strict=True)
    rows = zip(torch.stack(labels, 1).tolist(), torch.stack(log_probs, 1).tolist(), scores.tolist(), strict=True)
    found = []
    for tokens, values, score in rows:
        taken = [step for step, token in enumerate(tokens) if token != BLANK_ID]
        found.append(
            [Hypothesis([tokens[i] for i in taken], [frames[i] for i in taken], [values[i] for i in taken], score)]
        )
    return found
