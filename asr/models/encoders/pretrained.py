"""Pretrained encoders of transformers: wav2vec 2.0, HuBERT, WavLM, data2vec, w2v-BERT 2.0, Whisper's, and their like.

B batch, N samples, T frames, F samples of a frame or mel bins, D width.
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
from asr.models.kernels import is_padding, is_tracing
from asr.models.pretrained import describe, find_snapshot, without_code
from asr.ranges import Fraction, Positive, Probability
from werdict.errors import did_you_mean, first_line

FRAMES_HZ = 100  # of features=waveform
HOP = 160  # samples between frames, of the models below
FBANK, WHISPER = "wav2vec2-bert", "whisper"
# whose layers, given a mask, encode a padded utterance as they do without padding; others see equal lengths alone
TAKE_PADDING = ("wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", FBANK)
WITH_MASKS = (*TAKE_PADDING, "data2vec-audio")  # between a projection and the layers; of others masks are refused


class Lora(BaseModel):
    """``encoder.lora``: options of peft's LoraConfig, in its names."""

    model_config = ConfigDict(extra="forbid", strict=True)
    r: PositiveInt = 8
    alpha: Positive = 16.0
    dropout: Probability = 0.0
    target_modules: str | list[str] = ["q_proj", "v_proj"]


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
        self.trained, self.freeze_updates = train, freeze_updates
        self.masks, self.normalizes = masks or Masks(), inputs.get("do_normalize", True)
        self.is_frozen = False  # during the first updates
        is_read = reads_weights and torch.get_default_device().type != "meta"
        place = model_folder if model_folder and Path(model_folder).is_dir() else model
        self.model = build_model(options, self.masks.time_share > 0, place if is_read else None, self.source)
        config, self.frame = self.model.config, num_features
        self.family = config.model_type
        self.mels = self._front_end(model, inputs.get("feature_size", 80))
        if self.masks != Masks() and self.family not in (*WITH_MASKS, WHISPER):
            raise ValueError(f"masks: nothing of a {self.family} can be masked; leave them out")
        self.subsampling_factor = 2 if self.mels is not None else math.prod(config.conv_stride) // num_features
        self.num_layers, self.d_model = len(encoder_of(self.model).layers), int(config.hidden_size)
        self.layer_logits = nn.Parameter(torch.zeros(self.num_layers + 1)) if layers == "weighted" else None
        self._choose_trained(last_n, freeze_convolutions, lora or Lora(), gradient_checkpointing)
        self.batch_norms = [module for module in self.modules() if isinstance(module, nn.BatchNorm1d)]
        self.train()  # transformers builds models for evaluation

    def _front_end(self, model: str, num_mels: int) -> nn.Module | None:
        """Return what makes mel bins of samples; None if convolutions of the model read samples."""
        config = self.model.config
        if self.family == WHISPER:
            return WhisperMel(config.num_mel_bins)
        if self.family == FBANK:
            return StackedFbank(num_mels)
        if getattr(encoder_of(self.model), "layers", None) is None or not hasattr(config, "conv_stride"):
            raise ValueError(f"{model}: a {self.family} does not encode samples by layers, and cannot be used here")
        return None

    def _choose_trained(self, last_n: int | None, freeze_convolutions: bool, lora: Lora, checkpointing: bool) -> None:
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
        if checkpointing:
            # its former name warns in transformers 5.24
            enable = getattr(self.model, "activation_checkpointing_enable", self.model.gradient_checkpointing_enable)
            enable({"use_reentrant": False})
        self.unsaved = frozenset(
            f"model.{name}"
            for name, parameter in self.model.named_parameters()
            if self.trained != "all" and not parameter.requires_grad
        )

    def merge_adapters(self) -> None:
        """Add what adapters have learned to the weights that they belong to, for decoding."""
        if self.trained == "adapters":
            from peft.tuners.tuners_utils import BaseTunerLayer

            for module in self.model.modules():
                if isinstance(module, BaseTunerLayer) and not module.merged:
                    module.merge()

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
    def layers_to_shard(self) -> list[nn.Module]:
        """What ``trainer=fsdp`` gathers one by one: layers that every forward pass calls once, on all processes."""
        return [*encoder_of(self.model).layers] if self.family in (*TAKE_PADDING, WHISPER) else []

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
        frames = torch.arange(int(num_frames.max()), device="cpu")
        if not self.masks.time_share:
            return torch.zeros(len(num_frames), len(frames), dtype=torch.bool)
        counts = self.output_frames(num_frames.cpu()).clamp(min=1).tolist()
        size = max(counts)
        if self.family == WHISPER:  # windows are masked, with the silence after an utterance
            size = max(2 * self.model.config.max_source_positions, len(frames))
            counts = [size] * len(counts)
        masks = span_masks(counts, size, self.masks.time_share, self.masks.time_width)
        return masks[:, frames if self.family == WHISPER else frames * size // len(frames)]

    def _run(self, module: nn.Module, inner: bool, *args: Tensor, **kwargs: Any) -> list[Tensor]:
        """Return the output of a module alone, or after what enters its layers, and what each but the last returns."""
        if not inner:
            return [module(*args, **kwargs).last_hidden_state]
        states: list[Tensor] = []
        layers = encoder_of(self.model).layers
        hooks = [
            layer.register_forward_hook(lambda _, __, out: states.append(out[0] if isinstance(out, tuple) else out))
            for layer in layers
        ]
        hooks.append(layers[0].register_forward_pre_hook(lambda _, inputs: states.append(inputs[0])))
        try:
            output = module(*args, **kwargs).last_hidden_state
        finally:
            for hook in hooks:
                hook.remove()
        if any(state.shape != output.shape for state in states):
            raise ValueError(f"the layers of a {self.family} have another rate than its encodings: give layers=last")
        return [*states[:-1], output]


def build_model(options: Mapping[str, Any], uses_masks: bool, model: str | None, source: Mapping[str, str]) -> Any:
    """Return the encoder that a config describes.

    Args:
        options: of the model's config, with its ``model_type``.
        uses_masks: whether there is a vector for masked frames.
        model: whose weights it gets; None: it gets random ones, or none on the meta device.
        source: what `describe` has said of that model.

    Raises:
        ValueError: transformers knows no such model, or the weights are others.
        ImportError: transformers is not installed.
    """
    config, model_class = _audio_model(options, uses_masks)
    attention = "sdpa" if model_class._supports_sdpa else "eager"
    if model is None:
        built: Any = model_class._from_config(config, attn_implementation=attention)
        lacking = []
    else:
        snapshot = find_snapshot(model, source["revision"] or None)
        if (digest := snapshot.digest()) != source["sha256"]:
            raise ValueError(
                f"{snapshot.folder} holds other weights than the run was trained with: their SHA-256 is {digest}, and "
                f"was {source['sha256']}; give the model as it was"
            )
        built, loading = model_class.from_pretrained(
            None, config=config, state_dict=snapshot.weights(), attn_implementation=attention, output_loading_info=True
        )
        lacking = [*loading["missing_keys"], *(mismatch[0] for mismatch in loading["mismatched_keys"])]
    if config.is_encoder_decoder:
        built, lacking = built.get_encoder(), [name for name in lacking if name.startswith("encoder.")]
    if others := sorted({*lacking} - {"masked_spec_embed"}):
        raise ValueError(f"the weights of {model} lack {len(others)} of its encoder's, such as {others[0]}")
    # transformers (5.24) and peft (0.21) make some tensors on the CPU, wherever the others are
    return built.float().to(torch.get_default_device())


def _audio_model(options: Mapping[str, Any], uses_masks: bool) -> tuple[Any, Any]:
    """Return the config of a model that reads audio, as it is trained here, and its class."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    transformers.logging.set_verbosity_error()  # it would report the heads that are not read
    transformers.logging.disable_progress_bar()
    # LayerDrop leaves parameters without gradients, which several processes wait for
    fixed = {"layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
    fixed |= {"mask_time_prob": float(uses_masks), "mask_feature_prob": 0.0}
    try:
        config = transformers.AutoConfig.for_model(
            **without_code(options) | {key: fixed[key] for key in fixed if key in options}
        )
        model_class: Any = MODEL_MAPPING[type(config)]
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"transformers {transformers.__version__} has no model of the type {options['model_type']!r}: {error}"
        ) from error
    if model_class.main_input_name not in ("input_values", "input_features"):
        raise ValueError(f"a model of the type {config.model_type!r} does not read audio")
    if getattr(config, "add_adapter", False):
        raise ValueError("add_adapter=true in the model's config: its convolutions would count padding")
    return config, model_class


def encoder_of(model: Any) -> Any:
    """Return the part of a model that has its layers."""
    return getattr(model, "encoder", model)


def add_adapters(model: nn.Module, lora: Lora) -> None:
    """Put low-rank adapters into a model; nothing else of it is trained then.

    Raises:
        ValueError: no layer that can be adapted has one of the names.
        ImportError: peft is not installed.
    """
    from peft import LoraConfig, inject_adapter_in_model

    linear = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    for target in [] if isinstance(lora.target_modules, str) else lora.target_modules:
        targets = [module for name, module in model.named_modules() if f".{name}".endswith(f".{target}")]
        # peft (0.21) ignores a name if it finds another, and cannot merge into convolutions with groups
        if not targets or any(getattr(module, "groups", 1) > 1 for module in targets):
            raise ValueError(
                f"lora.target_modules: {target!r} names no layer that can be adapted."
                f"{did_you_mean(target, linear)} Allowed: {', '.join(sorted(linear))}"
            )
    options: Any = {"r": lora.r, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
    try:
        inject_adapter_in_model(LoraConfig(**options, target_modules=lora.target_modules), model)
    except ValueError as error:
        raise ValueError(
            f"lora.target_modules={lora.target_modules}: {first_line(error)} It has {', '.join(sorted(linear))}"
        ) from error
    model.to(torch.get_default_device())


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

    def __init__(self, num_mels: int) -> None:
        from transformers import SeamlessM4TFeatureExtractor

        super().__init__()
        extractor = SeamlessM4TFeatureExtractor(feature_size=num_mels, num_mel_bins=num_mels)
        self.window, self.filters = (
            nn.Buffer(torch.tensor(values, dtype=torch.float64), persistent=False)
            for values in (extractor.window, extractor.mel_filters)
        )

    @staticmethod
    def output_frames(num_samples: Tensor) -> Tensor:
        """Return the number of pairs of frames in ``num_samples`` samples; any integer shape."""
        return ((num_samples - 400).div(HOP, rounding_mode="floor") + 1).clamp(min=0) // 2

    def forward(self, samples: Tensor, num_samples: Tensor) -> Tensor:
        """Return features (B, T, 2F) of samples (B, N), of which ``num_samples`` (B,) are valid."""
        samples = nn.functional.pad(samples, (0, max(0, 400 + HOP - samples.shape[1])))
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

    def __init__(self, num_mels: int) -> None:
        from transformers import WhisperFeatureExtractor

        super().__init__()
        filters = torch.tensor(WhisperFeatureExtractor(feature_size=num_mels).mel_filters, dtype=torch.float64)
        self.filters = nn.Buffer(filters, persistent=False)
        self.window = nn.Buffer(torch.hann_window(400), persistent=False)

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
