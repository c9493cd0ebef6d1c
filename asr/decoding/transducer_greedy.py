"""Greedy transducer search: the best label of every frame and history.

B batch, T frames, D width of encodings.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from asr.decoding.hypothesis import Hypothesis
from asr.models.heads.protocols import Transduces
from asr.text.vocabulary import BLANK_ID

MAX_SYMBOLS = 100  # a frame of 40 ms holds a few tokens; without a bound, weights without blanks would never end


class TransducerGreedy:
    """Takes the most probable label, and with a blank the next frame; all utterances of a batch at once.

    Args:
        max_symbols: tokens that a frame may have; the search then goes to the next frame, as with a blank.

    Raises:
        ValueError: ``max_symbols`` is out of its range.

    Reference:
        Graves 2012, "Sequence transduction with recurrent neural networks", arXiv:1211.3711, section 2.6, with a beam
        of one. Differs: a limit of tokens per frame.
    """

    needs = Transduces

    def __init__(self, max_symbols: int = 3) -> None:
        if not 1 <= max_symbols <= MAX_SYMBOLS:
            raise ValueError(f"max_symbols must be at least 1 and at most {MAX_SYMBOLS}, given {max_symbols}")
        self.max_symbols = max_symbols

    def __call__(self, head: Transduces, encodings: Tensor, num_frames: Tensor) -> list[list[Hypothesis]]:
        """Return the path of each utterance; see ``Decoder``. Its score is the log-probability of all labels."""
        frames, size = head.project(encodings), len(encodings)
        context = torch.full((size, head.context_size), -1, device=encodings.device)
        context[:, -1] = BLANK_ID
        predictions, scores = head.predict(context), encodings.new_zeros(size, dtype=torch.float32)
        found = [Hypothesis([], [], [], 0.0) for _ in range(size)]
        for frame in range(int(num_frames.max())):
            rows = (frame < num_frames).nonzero().squeeze(1)  # that are still in this frame
            for _ in range(self.max_symbols):
                log_probs, labels = head.join(frames[rows, frame], predictions[rows]).max(dim=-1)
                scores[rows] += log_probs
                speak = labels != BLANK_ID
                rows, labels, log_probs = rows[speak], labels[speak], log_probs[speak]
                if not len(rows):
                    break
                context[rows] = torch.cat((context[rows, 1:], labels[:, None]), dim=1)
                predictions[rows] = head.predict(context[rows])
                for row, label, log_prob in zip(rows.tolist(), labels.tolist(), log_probs.tolist(), strict=True):
                    found[row].tokens.append(label)
                    found[row].frames.append(frame)
                    found[row].log_probs.append(log_prob)
        return [[replace(one, score=score)] for one, score in zip(found, scores.tolist(), strict=True)]
