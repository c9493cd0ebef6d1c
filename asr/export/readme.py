"""The page beside an export that says how to decode with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asr.export.graphs import Export
from asr.features.log_mel import whole_frames

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


def pipeline_page(run: str, rate_hz: int, encoder: Mapping[str, Any], line: str) -> str:
    """Return the page of a folder for transformers, of the options of the encoder; ``line`` says what is in it."""
    named = {"model": encoder["model"], "license": encoder["source"]["license"]}
    return PIPELINE.format(run=run, rate_hz=rate_hz, line=line, **named)


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
