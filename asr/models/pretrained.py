"""Pretrained models of transformers: their files, what is built of them, and how they take audio."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from pydantic import BaseModel, ConfigDict, PositiveInt
from torch import Tensor, nn

from asr.ranges import Positive, Probability
from asr.text.tokenizer import SPACE_PIECE, SPECIAL_PIECES
from werdict.errors import did_you_mean, first_line, is_out_of_memory
from werdict.files import LOADER, at, named_path, read_json, refuse_pointer

CONFIG, INPUTS, VOCABULARY, CARD = "config.json", "preprocessor_config.json", "vocab.json", "README.md"
SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
READ = (CONFIG, INPUTS, VOCABULARY, "tokenizer_config.json", CARD, SAFE, "model-*.safetensors", f"{SAFE}.index.json")
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
# of a config: names of code, kernels that would be fetched, formats of weights, and texts for other tasks
LEFT_OUT = re.compile(
    r"_?attn_implementation.*|auto_map|quantization_config|.*dtype|id2label|label2id|.*suppress_tokens"
)
# tokens of CTC heads that are no characters
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>", "[PAD]", "[UNK]")


@dataclass(frozen=True)
class Snapshot:
    """The files of a model.

    Attributes:
        name: on the hub, or the folder, as it was given.
        folder: that holds them.
        revision: commit of the hub; empty for a folder.
    """

    name: str
    folder: Path
    revision: str = ""

    def options(self) -> dict[str, Any]:
        """Return the model's config as plain data, without what would run code.

        Raises:
            ValueError: there is none, or it holds what is not plain.
        """
        config = read_json(self.folder / CONFIG)
        if not isinstance(config, dict) or not isinstance(config.get("model_type"), str) or "${" in json.dumps(config):
            raise ValueError(
                f"{self.folder / CONFIG} does not describe a model: it needs a model_type, and plain values"
            )
        return without_code(config)

    def inputs(self) -> dict[str, Any]:
        """Return the options of the model's features; empty if there is no file of them."""
        path = self.folder / INPUTS
        options = read_json(path) if path.is_file() else {}
        keys = ("sampling_rate", "do_normalize", "feature_size")
        return {key: options[key] for key in keys if key in options}

    def license(self) -> str:
        """Return the licence that the model's card names, or that none is named."""
        path = self.folder / CARD
        parts = path.read_text(encoding="utf-8", errors="replace").split("---", 2) if path.is_file() else []
        card = _plain_yaml(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
        named = card.get("license") if isinstance(card, Mapping) else None
        return named if isinstance(named, str) and HUB_NAME.fullmatch(named) else "not named"

    def weight_files(self) -> list[Path]:
        """Return the files of weights, safetensors before those of torch.

        Raises:
            ValueError: there are none, or the list of their parts is damaged.
        """
        for name in (SAFE, PICKLED):
            index = self.folder / f"{name}.index.json"
            parts = at(read_json(index), "weight_map") if index.is_file() else {"": name}
            if not isinstance(parts, Mapping) or not parts:
                raise ValueError(f"{index} names no files: it needs a weight_map; fetch it again, as by hf download")
            files = [self.folder / Path(str(file)).name for file in sorted({*parts.values()})]
            if all(file.is_file() for file in files):
                return files
        raise ValueError(f"{self.folder} holds no weights: neither {SAFE} nor {PICKLED}, or not all of their parts")

    def digest(self) -> str:
        """Return the SHA-256 of the weights; of several files, that of their digests."""
        digests = []
        for path in self.weight_files():
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def weights(self) -> dict[str, Tensor]:
        """Return the tensors by the model's own names; a pickled file may hold tensors and plain data alone.

        Raises:
            ValueError: a file cannot be read, or a number in it is not finite.
        """
        state: dict[str, Tensor] = {}
        for path in self.weight_files():
            part = read_tensors(path, "; fetch it again, as by hf download")
            if not isinstance(part, Mapping):
                raise ValueError(f"{path} holds no weights by name, but a {type(part).__name__}")
            check_finite(part, path)
            state |= {name: value for name, value in part.items() if isinstance(value, Tensor)}
        return state


def read_tensors(path: Path, remedy: str = "") -> Any:
    """Return the tensors and plain data of a file of safetensors or ``torch.save``; no code in it runs.

    Args:
        path: of the file.
        remedy: what to do if it is damaged, after a semicolon.

    Raises:
        ValueError: there is no such file, it is a pointer of Git LFS, damaged, or holds more than tensors and plain
            data.
        PermissionError: it may not be read.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    with path.open("rb") as file:
        refuse_pointer(start := file.read(100), path)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # of an extra, which checkpoints do not need

            return load_file(path)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                # torch.load (2.13) does not compare checksums: it would return weights with a flipped bit
                bad = archive.testzip()
            if bad is not None:
                raise ValueError(f"the checksum of {bad} does not match")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a pickle that torch has not written, which is refused
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a flipped bit in the list of parts makes zipfile and torch raise anything
        if is_out_of_memory(error) or isinstance(error, PermissionError):
            raise
        why = first_line(error)
        if isinstance(error, pickle.UnpicklingError):
            # torch's own text proposes to run the code in the file
            if start.startswith((b"PK", b"\x80")):
                raise ValueError(
                    f"{path} holds more than tensors and plain data; such files are not opened; use weights in {SAFE}"
                ) from None
            why = "torch has not written it"
        raise ValueError(
            f"{path} is damaged, or holds no weights: {why} ({path.stat().st_size} bytes){remedy}"
        ) from error


def check_finite(weights: Mapping[str, Any], path: Path) -> None:
    """Refuse weights with which every loss would be NaN.

    Raises:
        ValueError: names the file, and the first tensor that holds NaN or infinity.
    """
    for name, tensor in weights.items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(f"{path}: {name} holds NaN or infinity; use other weights, or fetch them again")


def find_snapshot(model: str, revision: str | None = None) -> Snapshot:
    """Return the files of a model, downloaded now unless they are a folder's, or in the hub's cache.

    Args:
        model: a folder, or the name of a model of the Hugging Face hub.
        revision: commit, branch or tag of the hub; None: the newest, or that of the cache if there is no network.

    Raises:
        ValueError: there is no such model, or it cannot be fetched.
    """
    if (folder := named_path(model)).is_dir():
        return Snapshot(model, folder)
    if not HUB_NAME.fullmatch(model):
        raise ValueError(
            f"there is no folder {model!r}, and names of the Hugging Face hub are like facebook/hubert-base; "
            "give encoder.model=PATH, where it is now"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        path = Path(snapshot_download(model, revision=revision, allow_patterns=list(READ)))
        if not list(path.glob("*.safetensors")):
            path = Path(snapshot_download(model, revision=revision, allow_patterns=[*READ, "pytorch_model*"]))
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"the Hugging Face hub has no model {model!r} that may be read without a login (hf auth login)"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ValueError(
            f"{model!r} is neither a folder nor in the cache of the Hugging Face hub, which cannot be reached; fetch "
            f"it where there is a network, as by hf download {model}, and give encoder.model=PATH, where it is now"
        ) from error
    return Snapshot(model, path, path.name)


def without_code(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a model's config without those that name code, or are of no use here."""
    return {key: value for key, value in options.items() if not LEFT_OUT.fullmatch(key)}


def _plain_yaml(text: str) -> Any:
    try:
        return yaml.load(text, LOADER)
    except yaml.YAMLError:
        return None


def ctc_head(snapshot: Snapshot) -> tuple[list[str], dict[str, Tensor]]:
    """Return the pieces of a character tokenizer of ours, and weights by the names of a recognizer's CTC head.

    Raises:
        ValueError: the model has no such head, or its tokens are not characters.
    """
    state, options = snapshot.weights(), snapshot.options()
    path = snapshot.folder / VOCABULARY
    if "lm_head.weight" not in state or not path.is_file():
        raise ValueError(f"{snapshot.name} has no CTC head, which would be lm_head.weight and {VOCABULARY}")
    vocabulary = {str(token): int(number) for token, number in read_json(path).items()}
    tokens = {number: token for token, number in vocabulary.items() if token not in SPECIAL}
    if longer := [token for token in tokens.values() if len(token) > 1]:
        raise ValueError(f"{path} has tokens that are not characters, such as {longer[0]!r}")
    blank = int(options.get("pad_token_id", 0))  # as transformers trains it
    unknown = vocabulary.get("<unk>", vocabulary.get("[UNK]", blank))
    order = sorted(tokens)
    rows = [blank, unknown, *order]
    pieces = [*SPECIAL_PIECES, *(SPACE_PIECE if tokens[number] == "|" else tokens[number] for number in order)]
    return pieces, {f"head.project.{kind}": state[f"lm_head.{kind}"][rows].float() for kind in ("weight", "bias")}


class Lora(BaseModel):
    """``encoder.lora``: options of peft's LoraConfig, in its names."""

    model_config = ConfigDict(extra="forbid", strict=True)
    r: PositiveInt = 8
    alpha: Positive = 16.0
    dropout: Probability = 0.0
    target_modules: str | list[str] = ["q_proj", "v_proj"]


def describe(model: str) -> dict[str, str]:
    """Return what a run records of a model, as texts: ``config`` and ``inputs`` are JSON.

    Raises:
        ValueError: the model cannot be read, or its weights.
    """
    snapshot = find_snapshot(model)
    snapshot.weights()  # refused now, and not after data were prepared
    return {
        "config": json.dumps(snapshot.options()),
        "inputs": json.dumps(snapshot.inputs()),
        "license": snapshot.license(),
        "revision": snapshot.revision,
        "sha256": snapshot.digest(),
    }


def build_model(
    options: Mapping[str, Any], uses_masks: bool, model: str | None = None, source: Mapping[str, str] | None = None
) -> Any:
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
        raise ValueError(f"a model of the type {options['model_type']!r} does not read audio")
    if getattr(config, "add_adapter", False):
        raise ValueError("add_adapter=true in the model's config: its convolutions would count padding")
    attention = "sdpa" if model_class._supports_sdpa else "eager"
    if model is None or source is None:
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
        found = [module for name, module in model.named_modules() if f".{name}".endswith(f".{target}")]
        # peft (0.21) ignores a name if it finds another, and cannot merge into convolutions with groups
        if not found or any(getattr(module, "groups", 1) > 1 for module in found):
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


def merge_adapters(model: nn.Module) -> None:
    """Add what adapters have learned to the weights that they belong to."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in model.modules():
        if isinstance(module, BaseTunerLayer) and not module.merged:
            module.merge()


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
