"""The files of pretrained models: found on the hub or in a folder, read without running code, and described."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from asr.text.tokenizer import SPACE_PIECE, SPECIAL_PIECES
from werdict.errors import first_line, is_out_of_memory
from werdict.files import LOADER, get_nested, named_path, read_json, refuse_pointer

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
        license = card.get("license") if isinstance(card, Mapping) else None
        return license if isinstance(license, str) and HUB_NAME.fullmatch(license) else "not named"

    def weight_files(self) -> list[Path]:
        """Return the files of weights, safetensors before those of torch.

        Raises:
            ValueError: there are none, or the list of their parts is damaged.
        """
        for name in (SAFE, PICKLED):
            index = self.folder / f"{name}.index.json"
            parts = get_nested(read_json(index), "weight_map") if index.is_file() else {"": name}
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
