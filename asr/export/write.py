"""Writes exports and the page beside them, and compares what they give with what the recognizer gives.

B batch, T frames, F mel bins, V vocabulary, N samples, or valid frames of a batch.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.export.graphs import Call, Export, Graph, export_of, torchscript_call, traced
from asr.features.log_mel import GlobalNorm, whole_frames
from asr.models.encoders.pretrained import FRAMES_HZ, PretrainedEncoder
from asr.models.heads.ctc import CtcHead
from asr.models.kernels import is_padding
from asr.models.recognizer import Recognizer
from asr.run.options import Encoder
from asr.text.tokenizer import SPACE_PIECE, SPECIAL_PIECES
from werdict.errors import RunFailed
from werdict.files import write_new

SIZES = ((1, 3), (1, 7), (2, 9), (1, 16), (3, 64), (2, 157), (1, 333), (3, 1000))  # utterances, frames of the longest
LARGEST_DIFFERENCE = 1e-5  # relative to the largest log-probability of a frame: both are rounded to 32 bits
LARGEST_CHANGE = 0.1  # of probabilities in eight bits, on average
PACKAGES = {
    "onnx": ("onnx", "onnxruntime"),
    "torch": (),
    "safetensors": ("safetensors",),
    "huggingface": ("transformers",),
}
DIFFERS = "log-probabilities differ from PyTorch's by at most"
BLANK, UNKNOWN, SPACE = "<pad>", "<unk>", "|"  # as transformers writes them
NAMES = {SPECIAL_PIECES[0]: BLANK, SPECIAL_PIECES[1]: UNKNOWN, SPACE_PIECE: SPACE}


def check_equal(export: Export, call: Call, norm: GlobalNorm) -> float:
    """Return the largest difference in log-probabilities between a recognizer and its graphs.

    Args:
        norm: of the recognizer, from whose statistics features are drawn.

    Raises:
        RunFailed: it is more than rounding explains, or another number of frames comes out.
    """
    largest = []
    for exported, expected in _trials(export, call, norm):
        difference = (exported - expected).abs().amax(dim=-1)
        scale = expected.abs().amax(dim=-1).clamp(min=1.0)
        largest.append(torch.stack([difference.max(), (difference / scale).max()]))
    absolute, relative = torch.stack(largest).amax(dim=0).tolist()  # NaN if any is
    if not relative <= LARGEST_DIFFERENCE:
        raise RunFailed(
            f"log-probabilities of the export differ from the recognizer's by {absolute:.1e}, {relative:.1e} of the "
            f"largest in a frame, where {LARGEST_DIFFERENCE} are allowed; nothing was left of it. If it is nan, the "
            "recognizer's own are not finite: choose another checkpoint. Else please report this, with config.yaml"
        )
    return absolute


def check_close(export: Export, call: Call, norm: GlobalNorm) -> float:
    """Return by how much probabilities change in a graph of eight bits: half the L1 distance, the mean of all frames.

    Raises:
        RunFailed: it is more than 0.1.
    """
    changes = [(f.exp() - e.exp()).abs().sum(dim=-1) / 2 for f, e in _trials(export, call, norm)]
    change = float(torch.cat(changes).mean())
    if not change <= LARGEST_CHANGE:
        raise RunFailed(
            f"in eight bits the probabilities of tokens change by {change:.0%} on average, more than "
            f"{LARGEST_CHANGE:.0%}; nothing was left of the export. Leave quantize out"
        )
    return change


def _trials(export: Export, call: Call, norm: GlobalNorm) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield log-probabilities (N, V) of valid frames, of the graphs and of the recognizer."""
    generator = torch.Generator().manual_seed(0)
    encoder: Any = export.encoder.recognizer.encoder
    for size, longest in SIZES:
        if not encoder.output_frames(torch.tensor(longest)):
            continue  # an encoder may refuse what is too short
        noise = torch.randn(size, longest, len(norm.mean), generator=generator)
        num_frames = torch.randint(max(1, longest // 2), longest + 1, (size,), generator=generator)
        num_frames[0] = longest
        features = norm.mean + noise / norm.inverse_std
        with torch.no_grad():
            expected, expected_lengths = export.expected(features, num_frames)
        exported, lengths = export.log_probs(call, features, num_frames)
        if not torch.equal(lengths, expected_lengths):
            raise RunFailed(
                f"utterances of {num_frames.tolist()} frames become {lengths.tolist()} in the export, "
                f"{expected_lengths.tolist()} in the recognizer; nothing was left of it"
            )
        valid = ~is_padding(lengths, expected.shape[1])
        if valid.any():
            yield exported[:, : valid.shape[1]][valid], expected[valid]


def check_packages(format: str) -> None:
    """Refuse a format whose packages are not installed.

    Raises:
        RunFailed: they are not.
    """
    if missing := [name for name in PACKAGES[format] if find_spec(name) is None]:
        extra = "pretrained" if "transformers" in missing else "export"
        raise RunFailed(
            f"format={format} needs {' and '.join(missing)}: pip install 'werdict[{extra}]', or in a checkout python3 "
            f"scripts/setup.py {extra}"
        )


def write_torchscript(export: Export, norm: GlobalNorm, folder: Path) -> Iterator[str]:
    """Write TorchScript files, and yield a line about them.

    Raises:
        RunFailed: they do not give what the recognizer gives.
        OSError: a file cannot be written; names it.
    """
    for graph in export.graphs:
        content = io.BytesIO()  # torch would write the file itself, and abort the program if the disk is full
        torch.jit.save(traced(graph), content)
        write_new(folder / f"{graph.name}.pt", content.getvalue())
    difference = check_equal(export, torchscript_call(folder, export.graphs), norm)
    yield _line([folder / f"{graph.name}.pt" for graph in export.graphs], f"{DIFFERS} {difference:.1e}")


def write_onnx_files(export: Export, norm: GlobalNorm, folder: Path, quantize: bool) -> Iterator[str]:
    """Write ONNX files, and a second set of eight bits if ``quantize``; yield a line about each set.

    Raises:
        RunFailed: they do not give what the recognizer gives.
        OSError: a file cannot be written; names it.
    """
    # here, because the packages are an extra
    from asr.export.onnx_files import onnx_call, write_int8, write_onnx

    def file_of(graph: Graph, ending: str = ".onnx") -> Path:
        return folder / f"{graph.name}{ending}"

    def small(graph: Graph) -> Path:
        return file_of(graph, ".int8.onnx" if graph.quantized else ".onnx")

    for graph in export.graphs:
        write_onnx(graph, file_of(graph))
    difference = check_equal(export, onnx_call(export.graphs, file_of), norm)
    yield _line([*map(file_of, export.graphs)], f"{DIFFERS} {difference:.1e}")
    if quantize:
        for graph in export.graphs:
            if graph.quantized:
                write_int8(file_of(graph), small(graph))
        change = check_close(export, onnx_call(export.graphs, small), norm)
        yield _line([*map(small, export.graphs)], f"changes probabilities by {change:.1%} on average")


def write_safetensors(weights: Mapping[str, Tensor], path: Path) -> str:
    """Write weights of any shape by their names, with the statistics of features; return a line about the file.

    Raises:
        OSError: the file cannot be written; names it.
    """
    # here, because the package is an extra
    from safetensors.torch import save

    # tied weights would be refused: the format has no two names for one tensor
    alone = {name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}
    write_new(path, save(alone, {"format": "pt"}))  # its own writer has errors of another kind
    count = sum(tensor.numel() for tensor in weights.values())
    return f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, {len(weights)} tensors, {count:,} numbers, as in the run"


def _line(files: Sequence[Path], result: str) -> str:
    size = sum(file.stat().st_size for file in files) / 1e6
    return f"{', '.join(file.name for file in files)}: {size:.1f} MB, {result}"


def write_test_wav(folder: Path, audio: NDArray[np.float32], rate_hz: int, text: str) -> None:
    """Write samples, (N,), as a new folder's ``0.wav``, with their transcript."""
    content = io.BytesIO()
    soundfile.write(content, np.clip(audio, -1, 1), rate_hz, "PCM_16", format="WAV")
    write_new(folder / "0.wav", content.getvalue())
    write_new(folder / "trans.txt", f"0.wav {text}\n")


def write_huggingface(recognizer: Recognizer, pieces: Sequence[str], folder: Path) -> str:
    """Write a model, what it takes, and its vocabulary; return a line about them.

    Args:
        recognizer: in evaluation mode; adapters are merged into its weights.
        pieces: of its tokenizer.
        folder: to write into.

    Raises:
        ValueError: transformers has no place for a part of the recognizer.
        RunFailed: the model in the folder does not give what the recognizer gives.
    """
    from transformers import AutoModelForCTC, Wav2Vec2FeatureExtractor

    encoder, head = _checked(recognizer, pieces)
    config = encoder.model.config
    of_ctc = config.to_dict() | {"vocab_size": len(pieces), "pad_token_id": 0}
    model = AutoModelForCTC.from_config(type(config).from_dict(of_ctc))
    model.base_model.load_state_dict(encoder.merged_weights())
    model.lm_head.load_state_dict(head.project.state_dict())
    model.save_pretrained(folder)
    layer_norm = getattr(config, "feat_extract_norm", None) == "layer"  # others were trained without a mask
    options = {"sampling_rate": encoder.frame * FRAMES_HZ, "do_normalize": encoder.normalizes}
    extractor = Wav2Vec2FeatureExtractor(**options, return_attention_mask=layer_norm)
    extractor.save_pretrained(folder)
    vocabulary = {NAMES.get(piece, piece): number for number, piece in enumerate(pieces)}
    write_new(folder / "vocab.json", json.dumps(vocabulary, ensure_ascii=False) + "\n")
    options = {"tokenizer_class": "Wav2Vec2CTCTokenizer", "bos_token": None, "eos_token": None}
    options |= {"pad_token": BLANK, "unk_token": UNKNOWN, "word_delimiter_token": SPACE}
    write_new(folder / "tokenizer_config.json", json.dumps(options | {"clean_up_tokenization_spaces": False}) + "\n")
    export = export_of(recognizer, "ctc", streaming=False)
    difference = check_equal(export, _transformers_call(folder), recognizer.normalize)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6
    return (
        f"{size:.1f} MB of {type(model).__name__}, log-probabilities differ from werdict's by at most {difference:.1e}"
    )


def _checked(recognizer: Recognizer, pieces: Sequence[str]) -> tuple[PretrainedEncoder, CtcHead]:
    encoder = recognizer.encoder
    if not isinstance(encoder, PretrainedEncoder) or encoder.mels is not None:
        raise ValueError("format=huggingface is for encoder=pretrained with a model that takes samples, as wav2vec2")
    if encoder.layer_logits is not None:
        raise ValueError("format=huggingface: transformers has no CTC of layers=weighted; train with layers=last")
    if not isinstance(recognizer.head, CtcHead):
        raise ValueError(f"format=huggingface is for head=ctc, given {type(recognizer.head).__name__}")
    if SPACE in pieces or any(len(piece) > 1 for piece in pieces[len(SPECIAL_PIECES) :]):
        raise ValueError(f"format=huggingface is for tokenizer=char of texts without {SPACE!r}")
    return encoder, recognizer.head


def _transformers_call(folder: Path) -> Call:
    """Return what runs the model of a folder on each utterance alone."""
    from transformers import AutoFeatureExtractor, AutoModelForCTC

    model: Any = AutoModelForCTC.from_pretrained(folder).eval()
    extractor: Any = AutoFeatureExtractor.from_pretrained(folder)

    def call(name: str, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        features, num_frames = inputs
        rows = []
        for frames, num in zip(features, num_frames, strict=True):
            samples = frames[:num].flatten().numpy()
            extracted = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="pt")
            with torch.no_grad():
                rows.append(model(**extracted).logits[0].log_softmax(dim=-1))
        return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])

    return call


SHERPA = """\
## Decode

In Python, after `pip install sherpa-onnx soundfile` ([other languages](https://k2-fsa.github.io/sherpa/onnx/)):

```python
import sherpa_onnx
import soundfile

recognizer = sherpa_onnx.{recognizer}.{method}(
    {files},
    tokens="tokens.txt",
    sample_rate={rate_hz},
    feature_dim={num_features},
)
audio, rate = soundfile.read("{wav}", dtype="float32")
stream = recognizer.create_stream()
stream.accept_waveform(rate, audio){use}
```
"""
OFFLINE = """
recognizer.decode_stream(stream)
print(stream.result.text)"""
STREAMING = """  # or piece by piece, as it comes
# only whole chunks are decoded: silence brings out the last words
stream.accept_waveform(rate, [0.0] * rate)
stream.input_finished()
while recognizer.is_ready(stream):
    recognizer.decode_stream(stream)
print(recognizer.get_result(stream))"""
OTHERS = {
    "onnx": "## Decode\n\nsherpa-onnx does not make these features, or has no such states, which are zeros before the "
    "first chunk; run the graphs with onnxruntime.\n",
    "torch": '## Decode\n\nThe graphs are TorchScript: `torch.jit.load("NAME.pt")` needs PyTorch alone.\n',
}
SUFFIX = {"onnx": ".onnx", "torch": ".pt"}
WEIGHTS = """\
# Weights of {run}

- {line}
- `config.json`: the classes of encoder, head and features, with their options
- `tokens.txt`: a token and its number in each line; 0 is the blank

`safetensors.torch.load_file("model.safetensors")` has the names of a recognizer of werdict.

"""
PIPELINE = """\
---
library_name: transformers
pipeline_tag: automatic-speech-recognition
---
# {run}

Fine-tuned by werdict from `{model}`, whose licence is: {license}.

- {line}

```python
import soundfile
from transformers import pipeline

recognize = pipeline("automatic-speech-recognition", model="FOLDER")
samples, rate_hz = soundfile.read("FILE.wav", dtype="float32")
print(recognize({{"raw": samples, "sampling_rate": rate_hz}})["text"])
```

Audio at another rate than {rate_hz} Hz needs the package torchaudio.
"""


@dataclass(frozen=True)
class Described:
    """Facts about a recognizer that the page states.

    Attributes:
        run: the name of the run that it comes from.
        sampling_rate_hz: of audio; 0: features are not made from audio.
        frame_shift_ms: between frames.
        text: of the recording in ``test_wavs``, as the recognizer writes it; None: there is no recording.
    """

    run: str
    sampling_rate_hz: int
    num_features: int
    frame_shift_ms: float
    text: str | None

    def features(self, normalized: str) -> str:
        """Return the part of the page about features, and what they are normalized by."""
        description = (
            f"{self.num_features} log-mel bins as Kaldi makes them (lhotse's `Fbank`, kaldi-native-fbank), of audio at "
            f"{self.sampling_rate_hz} Hz with samples in [-1, 1]: windows of 25 ms every {self.frame_shift_ms:g} ms "
            "(`snip_edges=False`, Povey's window, no dither), bins from 20 Hz to 400 Hz below half of the rate"
            if self.sampling_rate_hz
            else f"{self.num_features} numbers in each frame, made elsewhere"
        )
        return f"## Features\n\n{description}. They are normalized {normalized}.\n"


def readme(described: Described, export: Export, format: str, quantized: bool, checked: Sequence[str]) -> str:
    """Return the page.

    Args:
        format: ``onnx`` or ``torch``.
        quantized: whether there are files of eight bits.
        checked: what was found when it was written.
    """
    notes = [*checked, "`tokens.txt`: a token and its number in each line; 0 is the blank"]
    # sherpa-onnx makes the same features
    rate_hz = described.sampling_rate_hz
    as_kaldi = rate_hz and described.frame_shift_ms == whole_frames(0.01, rate_hz)[1] * 1e3
    in_sherpa = format == "onnx" and as_kaldi and export.encoder.in_sherpa
    decode = _sherpa(described, export, quantized) if in_sherpa else OTHERS[format]
    graphs = []
    for graph in export.graphs:
        # of a graph with states the first name says enough
        shown, more = (1, " and states") if len(graph.inputs) > 3 else (2, "")
        inputs, outputs = (", ".join(f"`{name}`" for name in names[:shown]) for names in (graph.inputs, graph.outputs))
        graphs.append(f"- `{graph.name}{SUFFIX[format]}`: {inputs}{more} → {outputs}{more}\n")
    title = f"# Exported from {described.run}\n\n" + "".join(f"- {line}\n" for line in notes)
    return "\n".join((title, decode, described.features("in the graph"), "## Graphs\n\n" + "".join(graphs)))


def weights_page(described: Described, line: str) -> str:
    """Return the page beside weights alone; ``line`` says what is in their file."""
    normalized = "by `normalize.mean` and `normalize.inverse_std`"
    return WEIGHTS.format(run=described.run, line=line) + described.features(normalized)


def pipeline_page(run: str, rate_hz: int, encoder: Encoder, line: str) -> str:
    """Return the page of a folder for transformers, of the options of the encoder; ``line`` says what is in it."""
    license = encoder.source["license"]
    return PIPELINE.format(run=run, rate_hz=rate_hz, line=line, model=encoder.model, license=license)


def _sherpa(described: Described, export: Export, quantized: bool) -> str:
    names = [graph.name for graph in export.graphs]
    ctc = "from_zipformer2_ctc" if export.streams else "from_zipformer_ctc"
    text = SHERPA.format(
        recognizer="OnlineRecognizer" if export.streams else "OfflineRecognizer",
        method=ctc if names == ["model"] else "from_transducer",
        files=",\n    ".join(f'{name}="{name}.onnx"' for name in names),
        rate_hz=described.sampling_rate_hz,
        num_features=described.num_features,
        wav="FILE.wav" if described.text is None else "test_wavs/0.wav",
        use=STREAMING if export.streams else OFFLINE,
    )
    if described.text is not None:
        text += f"\nThe text is `{described.text}`.\n"
    if quantized:
        text += "\nThe files `*.int8.onnx` take the places of the files with the same name before them.\n"
    return text
