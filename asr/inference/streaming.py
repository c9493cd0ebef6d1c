"""Text of speech while it is spoken."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from asr.data.features import Features, FeatureStream, LogMel
from asr.data.manifests.audio_files import Samples, mono_samples
from asr.data.parallel import one_thread
from asr.decoding.greedy import CtcStream, Decoder, TransducerGreedy, TransducerStream
from asr.models import devices
from asr.models.encoders.streaming import ChunkedEncoder, StreamingEncoder
from asr.models.heads.protocols import FrameScores, Transduces
from asr.models.recognizer import Recognizer
from asr.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Partial:
    """What was recognized since the last endpoint.

    Attributes:
        text: so far; what stands there stays, and more may follow.
        is_final: whether the speaker has paused, or the stream has ended; the next text is a new one.
    """

    text: str
    is_final: bool


class StreamingRecognizer:
    """Recognizes one stream, chunk by chunk, greedily.

    The text is that of the whole recording decoded at once with the same chunks, whatever the size of the pieces.

    Args:
        recognizer: with a causal Zipformer or Zapformer, and a head with CTC or a transducer; the transducer is used
            if it has both.
        tokenizer: tokens → text.
        features: that the recognizer was trained with.
        decoder: a greedy one of transducers says how many tokens a frame may have; others are not used.
        rate_hz: of the samples.
        endpoint_s: seconds without a token after which a text is final.

    Raises:
        ValueError: the recognizer cannot stream, or the rate cannot be resampled.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        tokenizer: Tokenizer,
        features: Features,
        decoder: Decoder | None = None,
        rate_hz: int = 16_000,
        endpoint_s: float = 0.8,
    ) -> None:
        if not isinstance(recognizer.encoder, ChunkedEncoder) or not isinstance(features, LogMel):
            raise ValueError(
                "only a causal Zipformer or Zapformer with log-mel features can stream, not "
                f"{type(recognizer.encoder).__name__} with {type(features).__name__}; train one with "
                "encoder=zipformer_s encoder.causal=true"
            )
        self.recognizer, self.tokenizer = recognizer.eval(), tokenizer
        self.encoder = StreamingEncoder(recognizer.encoder)
        self.search = _search(recognizer, decoder)
        self.features = FeatureStream(features, rate_hz)
        self.state = self.encoder.initial_state(1)
        self.waiting = np.zeros((0, features.num_features), dtype=np.float32)
        self.endpoint = round(endpoint_s / (recognizer.subsampling_factor * features.frame_shift_s))
        self.num_final = 0  # tokens

    @property
    def chunk_s(self) -> float:
        """Seconds of audio between two chunks."""
        return self.encoder.shift_features * self.features.shift / self.features.rate_hz

    def accept(self, samples: Samples) -> Partial:
        """Recognize more samples, of any number.

        Args:
            samples: an array or a tensor (N,), floating-point numbers in [-1, 1] or integers of 16 or 32 bits; of
                several channels (C, N) or (N, C) the first is used.

        Returns:
            The text since the last endpoint; final if enough silence has followed it.

        Raises:
            ValueError: a sample is not finite, or their type is another; none of these is used, and the stream can
                continue.
        """
        return self._recognized(self.features.accept(mono_samples(samples)), ended=False)

    def finish(self) -> Partial:
        """Return the rest of the text, at the end of the stream."""
        return self._recognized(self.features.finish(), ended=True)

    def _recognized(self, features: NDArray[np.float32], ended: bool) -> Partial:
        self.waiting = np.concatenate((self.waiting, features))
        while len(self.waiting) >= (1 if ended else self.encoder.num_features):
            self._encode(self.waiting[: self.encoder.num_features])
        text = self.tokenizer.decode(self.search.tokens[self.num_final :])
        is_final = ended or (bool(text) and self.search.num_silent >= self.endpoint)
        if is_final:
            self.num_final = len(self.search.tokens)
        return Partial(text, is_final)

    def _encode(self, chunk: NDArray[np.float32]) -> None:
        """Encode and search a chunk, which is shorter only at the end of the stream."""
        device = self.state.num_processed.device
        padded = np.pad(chunk, ((0, self.encoder.num_features - len(chunk)), (0, 0)))
        with torch.inference_mode(), one_thread():  # several would wait for each other in products of a chunk
            normalized = self.recognizer.normalize(torch.from_numpy(padded)[None].to(device))
            num_frames = torch.tensor([len(chunk)], device=device)
            encodings, lengths, self.state = self.encoder(normalized, num_frames, self.state)
            (length,) = devices.to_host(lengths)
            self.search.accept(encodings[:, :length])
        self.waiting = self.waiting[self.encoder.shift_features :]


def _search(recognizer: Recognizer, decoder: Decoder | None) -> CtcStream | TransducerStream:
    head = recognizer.head
    if isinstance(head, Transduces):
        greedy = decoder if isinstance(decoder, TransducerGreedy) else TransducerGreedy()
        return TransducerStream(head, greedy.max_symbols)
    if isinstance(head, FrameScores):
        return CtcStream(head)
    raise ValueError(f"{type(head).__name__} cannot stream: it has neither CTC nor a transducer")
