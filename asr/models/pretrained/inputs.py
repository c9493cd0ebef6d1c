"""What pretrained models see of audio: normalized samples, or log-mel features as their authors computed them.

B batch, N samples, T frames, F mel bins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HOP = 160  # samples between frames, of the models below


def is_padding(lengths: Tensor, size: int) -> Tensor:
    """Return (B, size), true after the valid ``lengths`` (B,)."""
    return torch.arange(size, device=lengths.device) >= lengths.unsqueeze(1)


def normalized(x: Tensor, lengths: Tensor, correction: int = 0) -> Tensor:
    """Return x (B, N, …) with zero mean and unit variance over the valid part of each utterance, zero after it.

    Reference:
        ``zero_mean_unit_var_norm`` of transformers' Wav2Vec2FeatureExtractor, and SeamlessM4TFeatureExtractor, whose
        variance is that of a sample (``correction`` = 1).
    """
    padding = is_padding(lengths, x.shape[1]).view(*x.shape[:2], *[1] * (x.dim() - 2))
    count = lengths.clamp(min=1 + correction).view(-1, *[1] * (x.dim() - 1))
    centered = (x - x.masked_fill(padding, 0.0).sum(dim=1, keepdim=True) / count).masked_fill(padding, 0.0)
    variance = centered.square().sum(dim=1, keepdim=True) / (count - correction)
    return centered / (variance + 1e-7).sqrt()


class StackedFbank(nn.Module):
    """Kaldi's log-mel features, normalized per utterance, two frames at a time: the input of w2v-BERT 2.0.

    Args:
        num_mels: mel bins F.

    Reference:
        ``SeamlessM4TFeatureExtractor`` of transformers.
        Differs: a last frame without a second is left out; there it is encoded, and masked.
    """

    window: Tensor
    filters: Tensor

    def __init__(self, num_mels: int) -> None:
        from transformers import SeamlessM4TFeatureExtractor

        super().__init__()
        extractor = SeamlessM4TFeatureExtractor(feature_size=num_mels, num_mel_bins=num_mels)
        for name, values in (("window", extractor.window), ("filters", extractor.mel_filters)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64), persistent=False)

    @staticmethod
    def output_frames(num_samples: Tensor) -> Tensor:
        """Return the number of pairs of frames in ``num_samples`` samples; any integer shape."""
        return ((num_samples - 400).div(HOP, rounding_mode="floor") + 1).clamp(min=0) // 2

    def forward(self, samples: Tensor, num_samples: Tensor) -> Tensor:
        """Return features (B, T, 2F) of samples (B, N), of which ``num_samples`` (B,) are valid."""
        samples = F.pad(samples, (0, max(0, 400 + HOP - samples.shape[1])))
        # in 64 bits as there, and as integers of 16 bits, which the floor below belongs to
        frames = samples.double().unfold(1, 400, HOP) * 2.0**15
        frames = frames - frames.mean(dim=2, keepdim=True)
        first = frames[:, :, :1] * (1 - 0.97)
        frames = torch.cat((first, frames[:, :, 1:] - 0.97 * frames[:, :, :-1]), dim=2)
        energies = torch.fft.rfft(frames * self.window, n=512).abs().square() @ self.filters
        mels = energies.clamp(min=1.192092955078125e-07).log().float()
        lengths = (num_samples - 400).div(HOP, rounding_mode="floor") + 1
        mels = normalized(mels, lengths.clamp(min=0), correction=1)
        return mels[:, : mels.shape[1] // 2 * 2].unflatten(1, (-1, 2)).flatten(2)


class WhisperMel(nn.Module):
    """Whisper's log-mel features of windows of audio.

    Args:
        num_mels: mel bins F, 80 or 128.

    Reference:
        ``WhisperFeatureExtractor`` of transformers.
    """

    window: Tensor
    filters: Tensor

    def __init__(self, num_mels: int) -> None:
        from transformers import WhisperFeatureExtractor

        super().__init__()
        filters = torch.tensor(WhisperFeatureExtractor(feature_size=num_mels).mel_filters, dtype=torch.float64)
        self.register_buffer("filters", filters, persistent=False)
        self.register_buffer("window", torch.hann_window(400), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        """Return features (B, F, T) of windows of samples (B, N), zero where padded."""
        spectrum = torch.stft(samples, 400, HOP, window=self.window, return_complex=True)
        energies = self.filters.T @ spectrum[..., :-1].abs().square().double()  # which autocast leaves alone
        mels = energies.clamp(min=1e-10).log10().float()
        return (torch.maximum(mels, mels.amax(dim=(1, 2), keepdim=True) - 8.0) + 4.0) / 4.0


def span_masks(lengths: Sequence[int], size: int, share: float, width: int) -> Tensor:
    """Draw spans that are masked, from torch's generator of the CPU; return (B, size), true where masked.

    Args:
        lengths: of utterances.
        size: of the mask.
        share: of an utterance, if no spans met.
        width: of a span.

    Reference:
        Baevski et al. 2020, arXiv:2006.11477, section 3.1: spans start anywhere, and may overlap.
    """
    masks = torch.zeros(len(lengths), size, dtype=torch.bool, device="cpu")
    for mask, length in zip(masks, lengths, strict=True):
        num_spans = int(share * length / width + float(torch.rand((), device="cpu")))
        starts = torch.randperm(max(1, length - width + 1), device="cpu")[:num_spans]
        mask[(starts.unsqueeze(1) + torch.arange(width, device="cpu")).clamp(max=size - 1).flatten()] = True
    return masks
