"""Greedy transducer search, of whole utterances and piece by piece: the best label of every frame and history.

B batch, T frames, D width of encodings, N utterances that are not at their end, W frames that are joined at once.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from asr.decoding.hypothesis import Hypothesis
from asr.models import devices
from asr.models.heads.protocols import Transduces
from asr.text.vocabulary import BLANK_ID

NUM_AHEAD = 5  # W: speech has a token every few frames, and what is joined after it is joined again


class TransducerGreedy:
    """Takes the most probable label, and with a blank the next frame; all utterances of a batch at once.

    Several frames are joined at once: until a token is found, all of them have the same prediction.

    Args:
        max_symbols: tokens that a frame may have; the search then goes to the next frame, as with a blank.

    Reference:
        Graves 2012, "Sequence transduction with recurrent neural networks", arXiv:1211.3711, section 2.6, with a beam
        of one. Differs: a limit of tokens per frame.
    """

    needs = Transduces

    def __init__(self, max_symbols: PositiveInt = 3) -> None:
        self.max_symbols = max_symbols

    def __call__(self, head: Transduces, encodings: Tensor, num_frames: Tensor) -> list[list[Hypothesis]]:
        """Return the path of each utterance, of encodings (B, T, D) and valid lengths (B,); see ``Decoder``.

        Its score is the log-probability of all labels.
        """
        # the last frames are joined together with others too; what follows the end counts as blank below
        frames, size = F.pad(head.project(encodings), (0, 0, 0, NUM_AHEAD)), len(encodings)
        context = torch.full((size, head.context_size), -1, device=encodings.device)
        context[:, -1] = BLANK_ID
        predictions, scores = head.predict(context), encodings.new_zeros(size, dtype=torch.float32)
        hypotheses = [Hypothesis([], [], [], 0.0) for _ in range(size)]
        ahead = torch.arange(NUM_AHEAD, device=encodings.device)
        at, in_a_row = torch.zeros_like(num_frames), torch.zeros_like(num_frames)  # the frame; tokens since a blank
        while len(rows := (at < num_frames).nonzero().squeeze(1)):
            joined = at[rows, None] + ahead
            log_probs, labels = head.join(frames[rows[:, None], joined], predictions[rows, None]).max(dim=-1)
            is_blank = (labels == BLANK_ID) | (joined >= num_frames[rows, None])
            num_blanks = is_blank.cumprod(dim=1).sum(dim=1)  # before the first token; W without one
            taken = (ahead <= num_blanks[:, None]) & (joined < num_frames[rows, None])
            scores[rows] += log_probs.where(taken, 0).sum(dim=1)
            at[rows] += num_blanks
            speak = num_blanks < NUM_AHEAD
            in_a_row[rows] = in_a_row[rows].where(num_blanks == 0, 0) + speak
            rows, first = rows[speak], (speak, num_blanks[speak])
            if not len(rows):
                continue
            context[rows] = torch.cat((context[rows, 1:], labels[first][:, None]), dim=1)
            predictions[rows] = head.predict(context[rows])
            values = map(devices.to_host, (rows, labels[first], at[rows], log_probs[first]))
            for row, label, frame, log_prob in zip(*values, strict=True):
                hypotheses[row].tokens.append(label)
                hypotheses[row].frames.append(frame)
                hypotheses[row].log_probs.append(log_prob)
            # without a limit a head that never predicts a blank would not leave the frame
            at[rows] += in_a_row[rows] % self.max_symbols == 0
        return [
            [replace(hypothesis, score=score)]
            for hypothesis, score in zip(hypotheses, devices.to_host(scores), strict=True)
        ]


class TransducerStream:
    """The tokens that ``TransducerGreedy`` with the same ``max_symbols`` finds in the whole; see ``CtcStream``."""

    def __init__(self, head: Transduces, max_symbols: int) -> None:
        self.head, self.max_symbols = head, max_symbols
        self.context = torch.tensor([[-1] * (head.context_size - 1) + [BLANK_ID]])
        self.prediction: Tensor | None = None
        self.tokens: list[int] = []
        self.num_silent = 0

    def accept(self, encodings: Tensor) -> None:
        """Search in encodings (1, T, D)."""
        if self.prediction is None:
            self.context = self.context.to(encodings.device)
            self.prediction = self.head.predict(self.context)
        for frame in self.head.project(encodings)[0]:
            self.num_silent += 1
            for _ in range(self.max_symbols):
                label = self.head.join(frame[None], self.prediction).argmax(dim=-1)
                (token,) = devices.to_host(label)
                if token == BLANK_ID:
                    break
                self.tokens.append(token)
                self.num_silent = 0
                self.context = torch.cat((self.context[:, 1:], label[None]), dim=1)
                self.prediction = self.head.predict(self.context)
