"""Pretrained encoders of transformers: wav2vec 2.0, HuBERT, WavLM, data2vec, w2v-BERT 2.0, Whisper's, and their like.

B batch, N samples, T frames, F samples of a frame, D width.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from asr.models import devices
from asr.models.kernels import is_tracing
from asr.models.pretrained import (
    HOP,
    Lora,
    StackedFbank,
    WhisperMel,
    add_adapters,
    build_model,
    describe,
    encoder_of,
    is_padding,
    merge_adapters,
    normalized,
    span_masks,
)
from asr.ranges import Fraction

FRAMES_HZ = 100  # of features=waveform
FBANK, WHISPER = "wav2vec2-bert", "whisper"
# whose layers, given a mask, encode a padded utterance as they do without padding; others see equal lengths alone
TAKE_PADDING = ("wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", FBANK)
WITH_MASKS = (*TAKE_PADDING, "data2vec-audio")  # between a projection and the layers; of others masks are refused


class Masks(BaseModel):
    """``encoder.masks``: spans of time and channels that are masked in training."""

    model_config = ConfigDict(extra="forbid", strict=True)
    time_share: Fraction = 0.0
    time_width: PositiveInt = 10
    channel_share: Fraction = 0.0
    channel_width: PositiveInt = 10


class PretrainedEncoder(nn.Module):
    """An encoder that others have trained, on frames of audio (``features=waveform``).

    Each utterance is encoded as transformers encodes it alone: convolutions over a whole utterance, whose norm would
    count padding, see utterances of equal length; later layers a mask, where they obey it. LayerDrop is off: parameters
    without gradients would break training in several processes. Masks are drawn from torch's generator.

    Whisper's encoder takes windows of 30 s alone. Shorter audio is filled with silence, and costs as much as 30 s;
    longer audio is cut, and what is said at a cut is seen by neither window whole.

    Args:
        num_features: samples of a frame of 10 ms.
        model: a folder, or the name of a model of the Hugging Face hub.
        model_folder: where the folder is, whatever the current one; None: `model` says it.
        source: what `describe` says of it; None: it is asked now. Weights with another digest are refused.
        layers: ``last``, or ``weighted``: a learned mean of what enters the first layer, and what each returns.
        train: ``all``; ``head``, which leaves this encoder as it is; ``adapters``; or ``last_n`` layers.
        last_n: how many layers; None unless train=last_n.
        freeze_updates: in this many first updates, only what is new is trained: the head, and the weights of layers.
        freeze_convolutions: never train the convolutions over samples, if there are any.
        lora: of train=adapters.
        masks: in training.
        gradient_checkpointing: compute activations of layers again in the backward pass, instead of keeping them.
        reads_weights: False: they are going to be replaced by those of a checkpoint that holds all.

    Raises:
        ValueError: the model cannot be read, is none of speech, or an option does not fit it.
        ImportError: transformers is not installed.

    Reference:
        Yang et al. 2021, "SUPERB", arXiv:2105.01051: the weighted sum of layers.
        Hu et al. 2021, "LoRA", arXiv:2106.09685, as the package peft has it.
        Baevski et al. 2020, "wav2vec 2.0", arXiv:2006.11477: masks, and the first updates without the encoder.
    """

    is_pretrained = True  # neither are biases initialized, nor features normalized by statistics of the corpus

    def __init__(
        self,
        num_features: int,
        model: str,
        model_folder: str | None = None,
        source: Mapping[str, str] | None = None,
        layers: Literal["last", "weighted"] = "last",
        train: Literal["all", "head", "adapters", "last_n"] = "all",
        last_n: PositiveInt | None = None,
        freeze_updates: NonNegativeInt = 0,
        freeze_convolutions: bool = True,
        lora: Lora | None = None,
        masks: Masks | None = None,
        gradient_checkpointing: bool = False,
        reads_weights: bool = True,
    ) -> None:
        super().__init__()
        self.source = dict(source) if source is not None else describe(model)
        # what reports and exports say of it
        self.origin = {"model": model} | {key: self.source[key] for key in ("license", "revision", "sha256")}
        options, inputs = (json.loads(self.source[name]) for name in ("config", "inputs"))
        rate_hz = inputs.get("sampling_rate", 16_000)
        if num_features * FRAMES_HZ != rate_hz:
            raise ValueError(
                f"{model} takes audio of {rate_hz} Hz in frames of 10 ms: give features=waveform augment=none "
                f"data.sampling_rate_hz={rate_hz}"
            )
        self.family, self.trained, self.freeze_updates = options["model_type"], train, freeze_updates
        self.masks, self.normalizes = masks or Masks(), inputs.get("do_normalize", True)
        self.is_frozen = False  # during the first updates
        is_read = reads_weights and torch.get_default_device().type != "meta"
        place = model_folder if model_folder and Path(model_folder).is_dir() else model
        self.model = build_model(options, self.masks.time_share > 0, place if is_read else None, self.source)
        config, self.frame = self.model.config, num_features
        layers_found = getattr(encoder_of(self.model), "layers", None)
        self.mels: nn.Module | None = None
        if self.family == WHISPER:
            self.mels = WhisperMel(config.num_mel_bins)
        elif self.family == FBANK:
            self.mels = StackedFbank(inputs.get("feature_size", 80))
        elif layers_found is None or not hasattr(config, "conv_stride"):
            raise ValueError(f"{model}: a {self.family} does not encode samples by layers, and cannot be used here")
        if self.masks != Masks() and self.family not in (*WITH_MASKS, WHISPER):
            raise ValueError(f"masks: nothing of a {self.family} can be masked; leave them out")
        self.subsampling_factor = 2 if self.mels is not None else math.prod(config.conv_stride) // num_features
        self.num_layers, self.d_model = len(encoder_of(self.model).layers), int(config.hidden_size)
        self.layer_logits = nn.Parameter(torch.zeros(self.num_layers + 1)) if layers == "weighted" else None
        self._choose_trained(last_n, freeze_convolutions, lora or Lora())
        if gradient_checkpointing:
            # its former name warns in transformers 5.24
            enable = getattr(self.model, "activation_checkpointing_enable", self.model.gradient_checkpointing_enable)
            enable({"use_reentrant": False})
        self.batch_norms = [module for module in self.modules() if isinstance(module, nn.BatchNorm1d)]
        self.train()  # transformers builds models for evaluation

    def _choose_trained(self, last_n: int | None, freeze_convolutions: bool, lora: Lora) -> None:
        if (self.trained == "last_n") != (last_n is not None):
            raise ValueError(f"train={self.trained} last_n={last_n}: give both, train=last_n last_n=2, or neither")
        if last_n is not None and last_n > self.num_layers:
            raise ValueError(f"last_n={last_n}: the model has {self.num_layers} layers")
        if self.trained != "all":
            self.model.requires_grad_(False)
        if self.family == WHISPER:  # sinusoids, which from_pretrained (5.24) forgets to leave as they are
            self.model.embed_positions.requires_grad_(False)
        for layer in encoder_of(self.model).layers[-last_n:] if last_n else ():
            layer.requires_grad_(True)
        if self.trained == "adapters":
            add_adapters(self.model, lora)
        convolutions = getattr(self.model, "feature_extractor", None)
        if convolutions is not None and (self.trained != "all" or freeze_convolutions):
            convolutions._freeze_parameters()  # else they would ask for a gradient of the samples
        self.unsaved = frozenset(
            f"model.{name}"
            for name, parameter in self.model.named_parameters()
            if self.trained != "all" and not parameter.requires_grad
        )

    def merge_adapters(self) -> None:
        """Add what adapters have learned to the weights that they belong to, for decoding."""
        if self.trained == "adapters":
            merge_adapters(self.model)

    def merged_weights(self) -> dict[str, Tensor]:
        """Return parameters and buffers by the model's own names, with adapters merged into them."""
        self.merge_adapters()
        state = {name.replace(".base_layer.", "."): tensor for name, tensor in self.model.state_dict().items()}
        return {name: tensor for name, tensor in state.items() if ".lora_" not in name}

    def output_frames(self, num_frames: Tensor) -> Tensor:
        """Return the numbers of encodings (B,) of utterances of ``num_frames`` (B,) frames of 10 ms."""
        if self.family == WHISPER:
            return (num_frames + 1) // 2
        num_samples = num_frames * self.frame
        if self.family == FBANK:
            return StackedFbank.output_frames(num_samples)
        lengths: Tensor = self.model._get_feat_extract_output_lengths(num_samples)
        return lengths.clamp(min=0)

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Encode audio.

        Args:
            features: (B, T, F) samples, F of each frame; padding may hold any finite value.
            num_frames: (B,) int64 valid frames.

        Returns:
            Encodings (B, T', D), unspecified where padded, and their valid lengths (B,).
        """
        (encodings,), lengths = self.encode_layers(features, num_frames, ())
        return encodings, lengths

    def encode_layers(
        self, features: Tensor, num_frames: Tensor, numbers: Collection[int]
    ) -> tuple[list[Tensor], Tensor]:
        """Encode audio, and return what inner layers return too, before a norm that may follow the last.

        Args:
            features: (B, T, F), as in `forward`.
            num_frames: (B,), as in `forward`.
            numbers: of inner layers, from 1 to ``num_layers - 1``.

        Returns:
            Encodings (B, T', D) of each of those layers, in ascending order, then of the last; and their lengths (B,).
        """
        if self.trained == "head":
            self.model.eval()  # what is not trained needs no dropout
        for norm in self.batch_norms if self.training else ():
            norm.train(norm.weight.requires_grad and not self.is_frozen)  # statistics belong to the weights
        # on the meta device, which has no lengths, and in a trace, which would keep them, all are as long as the batch
        is_whole = features.is_meta or is_tracing()
        frames = [features.shape[1]] * len(features) if is_whole else devices.to_host(num_frames)
        samples = features.flatten(1)
        samples = samples.masked_fill(is_padding(num_frames * self.frame, samples.shape[1]), 0.0)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.is_frozen):
            encode = self._encode_windows if self.family == WHISPER else self._encode_whole
            states = encode(samples, num_frames, frames, self.layer_logits is not None or bool(numbers))
        last = states[-1]
        if self.layer_logits is not None:
            shares = self.layer_logits.softmax(dim=0)
            last = torch.stack([share * state for share, state in zip(shares, states, strict=True)]).sum(dim=0)
        return [*(states[number] for number in sorted(numbers)), last], self.output_frames(num_frames)

    def _encode_whole(self, samples: Tensor, num_frames: Tensor, frames: list[int], inner: bool) -> list[Tensor]:
        lengths = self.output_frames(num_frames)
        # an utterance without encodings is encoded as if it had one, which is not read
        counts = self.output_frames(torch.tensor(frames, device="cpu")).clamp(min=1).tolist()
        if self.mels is not None:
            hidden = self.mels(samples, num_frames * self.frame)
        else:
            samples = normalized(samples, num_frames * self.frame) if self.normalizes else samples
            sizes = [max(num * self.frame, self._shortest()) for num in frames]
            samples = nn.functional.pad(samples, (0, max(0, max(sizes) - samples.shape[1])))
            if self.family not in WITH_MASKS:
                return self._by_length(self.model, inner, samples, sizes)
            hidden = by_length(lambda x: self.model.feature_extractor(x).transpose(1, 2), samples, sizes)
        projected = self.model.feature_projection(hidden)
        hidden = self._masked(projected[0] if isinstance(projected, tuple) else projected, counts)
        encoder = encoder_of(self.model)
        if self.family not in TAKE_PADDING:
            return self._by_length(encoder, inner, hidden, counts)
        valid = None if min(counts) == hidden.shape[1] else ~is_padding(lengths.clamp(min=1), hidden.shape[1])
        return self._run(encoder, inner, hidden, attention_mask=valid)

    @property
    def center_frames(self) -> float:
        """Where the first encoding has its middle, in frames of 10 ms."""
        if self.family == WHISPER:
            return 0.0  # the windows of its spectrum begin half a window before the audio, and its convolutions too
        return (400 + HOP if self.family == FBANK else self._shortest()) / 2 / self.frame

    def _shortest(self) -> int:
        """Return the number of samples of one encoding."""
        samples = 1
        config = self.model.config
        for kernel, stride in reversed([*zip(config.conv_kernel, config.conv_stride, strict=True)]):
            samples = (samples - 1) * stride + kernel
        return samples

    def _by_length(self, module: nn.Module, inner: bool, x: Tensor, counts: Sequence[int]) -> list[Tensor]:
        return [*by_length(lambda part: torch.stack(self._run(module, inner, part), 2), x, counts).unbind(2)]

    def _encode_windows(self, samples: Tensor, num_frames: Tensor, frames: list[int], inner: bool) -> list[Tensor]:
        size, longest = 2 * self.model.config.max_source_positions, (max(frames) + 1) // 2
        num_windows = [max(1, -(-num // size)) for num in frames]
        missing = max(num_windows) * size * self.frame - samples.shape[1]
        windows = nn.functional.pad(samples, (0, missing)).unflatten(1, (max(num_windows), -1))
        places = [(row, window) for row, num in enumerate(num_windows) for window in range(num)]
        rows, columns = (torch.tensor(numbers, device=samples.device) for numbers in zip(*places, strict=True))
        mels = self.mels(windows[rows, columns])  # type: ignore[misc]
        mels = self._masked(mels.transpose(1, 2), [size] * len(mels)).transpose(1, 2)
        joined = []
        for state in self._run(self.model, inner, mels):
            empty = state.new_zeros(len(windows), max(num_windows), *state.shape[1:])
            joined.append(empty.index_put((rows, columns), state).flatten(1, 2)[:, :longest])
        return joined

    def _masked(self, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        size, width = hidden.shape[1:]
        masks = self.masks
        if self.training and masks.time_share:
            in_time = span_masks(counts, size, masks.time_share, masks.time_width).to(hidden.device)
            learned = getattr(self.model, "masked_spec_embed", torch.zeros((), device=hidden.device))
            hidden = torch.where(in_time.unsqueeze(2), learned.to(hidden.dtype), hidden)
        if self.training and masks.channel_share:
            all_channels = [width] * len(counts)
            channels = span_masks(all_channels, width, masks.channel_share, masks.channel_width).to(hidden.device)
            hidden = hidden.masked_fill(channels.unsqueeze(1), 0.0)
        return hidden

    def example_masks(self, num_frames: Tensor) -> Tensor:
        """Return which frames (B, T) of utterances of ``num_frames`` (B,) spans of time mask, as drawn in training."""
        counts = self.output_frames(num_frames.cpu()).clamp(min=1).tolist()
        size = max(counts)
        if self.family == WHISPER:  # windows are masked, with the silence after an utterance
            size = max(2 * self.model.config.max_source_positions, int(num_frames.max()))
            counts = [size] * len(counts)
        share = self.masks.time_share * (self.family in (*WITH_MASKS, WHISPER))
        masks = (
            span_masks(counts, size, share, self.masks.time_width) if share else torch.zeros(len(counts), size).bool()
        )
        frames = torch.arange(int(num_frames.max()), device="cpu")
        return masks[:, frames if self.family == WHISPER else frames * size // len(frames)]

    def _run(self, module: nn.Module, inner: bool, *args: Tensor, **kwargs: Any) -> list[Tensor]:
        """Return the output of a module alone, or after what enters its layers, and what each but the last returns."""
        if not inner:
            return [module(*args, **kwargs).last_hidden_state]
        states: list[Tensor] = []
        layers = encoder_of(self.model).layers
        hooks = [layer.register_forward_hook(lambda _, __, out: states.append(_first(out))) for layer in layers]
        hooks.append(layers[0].register_forward_pre_hook(lambda _, inputs: states.append(inputs[0])))
        try:
            output = module(*args, **kwargs).last_hidden_state
        finally:
            for hook in hooks:
                hook.remove()
        if any(state.shape != output.shape for state in states):
            raise ValueError(f"the layers of a {self.family} have another rate than its encodings: give layers=last")
        return [*states[:-1], output]


def _first(output: Any) -> Tensor:
    state: Tensor = output[0] if isinstance(output, tuple) else output
    return state


def by_length(function: Callable[[Tensor], Tensor], x: Tensor, counts: Sequence[int]) -> Tensor:
    """Return a function's results of x (B, N, …) for utterances of equal length at a time, padded by zeros.

    Args:
        function: (b, n, …) → (b, m, …).
        x: padded.
        counts: B lengths.
    """
    if min(counts) == x.shape[1]:
        return function(x)
    results: dict[int, Tensor] = {}
    for count in sorted({*counts}):
        places = [place for place, other in enumerate(counts) if other == count]
        results |= zip(places, function(x[places, :count]), strict=True)
    return pad_sequence([results[place] for place in range(len(counts))], batch_first=True)
