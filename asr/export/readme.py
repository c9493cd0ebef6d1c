"""The page beside an export that says how to decode with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asr.export.graph import Export

SUFFIX = {"onnx": ".onnx", "torch": ".pt"}


@dataclass(frozen=True)
class Described:
    """What the page says of a recognizer.

    Attributes:
        run: that it comes from.
        sampling_rate_hz: of audio; 0: features are not made from audio.
        num_features: of a frame.
        frame_shift_ms: between frames.
        text: of the recording in ``test_wavs``, as the recognizer writes it; None: there is no recording.
    """

    run: str
    sampling_rate_hz: int
    num_features: int
    frame_shift_ms: float
    text: str | None

    @property
    def as_kaldi(self) -> bool:
        """Whether sherpa-onnx makes the same features."""
        return bool(self.sampling_rate_hz) and self.frame_shift_ms == 10.0


def readme(described: Described, export: Export, format: str, quantized: bool, checked: Sequence[str]) -> str:
    """Return the page.

    Args:
        described: the recognizer.
        export: its kind.
        format: ``onnx`` or ``torch``.
        quantized: whether there are files of eight bits.
        checked: what was found when it was written.
    """
    parts = [
        f"# Exported from {described.run}\n\n"
        + "".join(f"- {line}\n" for line in checked)
        + "- `tokens.txt`: a token and its number in each line; 0 is the blank"
    ]
    if format == "onnx" and described.as_kaldi:
        parts.append(_sherpa(described, export, quantized))
    elif format == "onnx":
        parts.append("## Decode\n\nsherpa-onnx does not make these features; run the graphs with onnxruntime.")
    else:
        parts.append('## Decode\n\nThe graphs are TorchScript: `torch.jit.load("NAME.pt")` needs PyTorch alone.')
    parts += [_features(described), _graphs(export, SUFFIX[format])]
    return "\n\n".join(parts) + "\n"


def weights_page(described: Described, line: str) -> str:
    """Return the page beside weights alone; ``line`` says what is in their file."""
    parts = [
        f"# Weights of {described.run}\n\n- {line}\n"
        "- `config.json`: the classes of encoder, head and features, with their options\n"
        "- `tokens.txt`: a token and its number in each line; 0 is the blank",
        "## Load\n\n```python\nfrom safetensors.torch import load_file\n\n"
        'weights = load_file("model.safetensors")  # by the names of a recognizer of werdict\n```',
        _features(described).replace("in the graph", "by `normalize.mean` and `normalize.inverse_std`"),
    ]
    return "\n\n".join(parts) + "\n"


def _sherpa(described: Described, export: Export, quantized: bool) -> str:
    names = [graph.name for graph in export.graphs]
    files = {name: f"{name}.onnx" for name in names}
    python_names, binary_names = (
        ({"model": "model"}, {"model": "zipformer2-ctc-model" if export.streams else "zipformer-ctc-model"})
        if names == ["model"]
        else ({name: name for name in names}, {name: name for name in names})
    )
    method = "from_transducer"
    if names == ["model"]:
        method = "from_zipformer2_ctc" if export.streams else "from_zipformer_ctc"
    given = [f'{python_names[name]}="{file}"' for name, file in files.items()]
    given += ['tokens="tokens.txt"', f"sample_rate={described.sampling_rate_hz}, feature_dim={described.num_features}"]
    options = [f"--{binary_names[name]}={file}" for name, file in files.items()]
    options += [
        "--tokens=tokens.txt",
        f"--sample-rate={described.sampling_rate_hz} --feat-dim={described.num_features}",
    ]
    wav = "test_wavs/0.wav" if described.text is not None else "FILE.wav"
    if export.streams:
        program, recognizer, use = "sherpa-onnx", "OnlineRecognizer", _STREAMING
    else:
        program, recognizer, use = "sherpa-onnx-offline", "OfflineRecognizer", _OFFLINE
    expected = "" if described.text is None else f"\nThe text is `{described.text}`.\n"
    small = (
        "\nThe files `*.int8.onnx` take the places of the files with the same name before them.\n" if quantized else ""
    )
    return (
        "## Decode\n\nIn Python, after `pip install sherpa-onnx soundfile`:\n\n```python\n"
        f"import sherpa_onnx\nimport soundfile\n\nrecognizer = sherpa_onnx.{recognizer}.{method}(\n"
        + "".join(f"    {line},\n" for line in given)
        + f')\naudio, rate = soundfile.read("{wav}", dtype="float32")\n{use}```\n\n'
        + f"Or with the program of [sherpa-onnx](https://k2-fsa.github.io/sherpa/onnx/):\n\n```sh\n{program} "
        + " \\\n  ".join([*options, wav])
        + f"\n```\n{expected}{small}"
    ).rstrip("\n")


_OFFLINE = """\
stream = recognizer.create_stream()
stream.accept_waveform(rate, audio)
recognizer.decode_stream(stream)
print(stream.result.text)
"""
_STREAMING = """\
stream = recognizer.create_stream()
stream.accept_waveform(rate, audio)  # or piece by piece, as it comes
# only whole chunks are decoded: silence brings out the last words
stream.accept_waveform(rate, [0.0] * rate)
stream.input_finished()
while recognizer.is_ready(stream):
    recognizer.decode_stream(stream)
print(recognizer.get_result(stream))
"""


def _features(described: Described) -> str:
    title = "## Features\n\n"
    if not described.sampling_rate_hz:
        return (
            f"{title}{described.num_features} numbers in each frame, made elsewhere; they are normalized in the graph."
        )
    return (
        f"{title}{described.num_features} log-mel bins as Kaldi makes them (lhotse's `Fbank`, kaldi-native-fbank), of "
        f"audio at {described.sampling_rate_hz} Hz with samples in [-1, 1]: windows of 25 ms every "
        f"{described.frame_shift_ms:g} ms (`snip_edges=False`, Povey's window, no dither), bins from 20 Hz to 400 Hz "
        "below half of the rate. They are normalized in the graph."
    )


def _graphs(export: Export, suffix: str) -> str:
    lines = []
    for graph in export.graphs:
        # of a graph with states the first name says enough
        shown = 1 if len(graph.inputs) > 3 else 2
        inputs, outputs = (", ".join(f"`{name}`" for name in names[:shown]) for names in (graph.inputs, graph.outputs))
        more = " and states" if shown == 1 else ""
        lines.append(f"- `{graph.name}{suffix}`: {inputs}{more} → {outputs}{more}")
    return "## Graphs\n\n" + "\n".join(lines)
