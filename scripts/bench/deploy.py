"""What trained recognizers cost and give in use.

    python scripts/bench deploy-exports RUN [streaming=true] [model_type=ctc]

exports: seconds to export the run, with int8; sizes of the files; of 100 utterances of the run's test sets, the texts
of sherpa-onnx that are those of PyTorch, for 32 and 8 bits. In streams, PyTorch encodes the same chunks as a whole.

    python scripts/bench deploy-encoder [NAME …]

encoder: of encoders with random weights (zipformer_s), real-time factors of PyTorch and of their exports, on one
thread, the best of the
repeats; and the size of the int8 export as a share of that of 32 bits.

    python scripts/bench deploy-long RUN

long: utterances of the run's test sets joined with pauses of 0.1 to 0.8 s: the WER of asr-transcribe on the whole
recording, beside that of the utterances alone; then memory and CPU time of asr-transcribe on an hour of them.

    python scripts/bench deploy-stream RUN

stream: how many texts of a stream in packets of 0.1 s are those of the whole utterances; milliseconds of work for each
chunk, and for the last text.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import sherpa_onnx
import soundfile
import torch

from asr.commands.export import run as export_run
from asr.data.features import Features, at_rate
from asr.decoding.greedy import CtcGreedy, TransducerGreedy
from asr.export.graphs import export_of
from asr.export.onnx_files import onnx_session, write_int8, write_onnx
from asr.inference.streaming import StreamingRecognizer
from asr.models.encoders.streaming import StreamingEncoder
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.heads.ctc import CtcHead
from asr.models.recognizer import Recognizer
from asr.run.instantiate import build_component
from asr.run.parts import build_decoder
from asr.run.restore import TextSide, model_options, prepared_data, recognizer_of, restore_text
from bench.configs import FRAMES_PER_S, NUM_FEATURES, build_encoder, options_from, with_head
from bench.measure import Row, Setting, cpu_seconds, in_turns, timed_ms

NUM_UTTERANCES = 100
TAIL_S = 0.8  # silence that brings the last words out of a stream
NUM_JOINED = 150
PACKET = 1600  # samples
SECONDS = 3, 10  # of utterances whose encoding is timed


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add a run or encoders, and what is said to asr-export."""
    parser.add_argument("words", nargs="*", metavar="RUN|ENCODER|OVERRIDE")


def rows(setting: Setting, section: str) -> Iterator[Row]:
    """Yield what a section of the above measures."""
    sections = {"exports": exports, "encoder": encoders, "long": long, "stream": stream}
    if section not in sections or not (setting.options.words or section == "encoder"):
        sys.exit(__doc__)
    yield from sections[section](setting, setting.options.words)


def exports(setting: Setting, words: Sequence[str]) -> Iterator[Row]:
    """Yield what an export of a run costs and gives."""
    name, *overrides = words
    output = setting.work / "out"
    options = options_from(f"run={name}", f"output={output}", "quantize=int8", *overrides, command="export")
    yield Row("exporting", f"{timed_ms(partial(export_run, options)) / 1e3:.1f} CPU s")
    text = restore_text(name)
    recognizer, saved = recognizer_of(text.checkpoint), model_options(text.checkpoint)
    features = build_component(saved.features, "features")
    utterances = _utterances(text, features, options.streaming)
    audio_s = sum(map(len, utterances)) / features.sampling_rate_hz
    transducer = (output / "joiner.onnx").exists()
    reference = [_by_torch(recognizer, features, audio, options.streaming, transducer, text) for audio in utterances]
    for ending in (".onnx", ".int8.onnx"):
        decode = sherpa(output, ending, options.streaming, transducer, features.sampling_rate_hz, features.num_features)
        start = cpu_seconds()
        texts = [decode(audio) for audio in utterances]
        rtf = (cpu_seconds() - start) / audio_s
        equal = sum(one == other for one, other in zip(texts, reference, strict=True))
        cells = {"texts equal to PyTorch's": f"{equal} of {len(texts)}", "real-time factor": f"{rtf:.4f}"}
        yield Row(ending, cells | {"words": str(sum(len(one.split()) for one in reference))})


def _utterances(text: TextSide, features: Features, streaming: bool) -> list[np.ndarray]:
    prepared = prepared_data(text.checkpoint, "give another run")
    cuts = itertools.islice((cut for name in prepared.names("test") for cut in prepared.cuts(name)), NUM_UTTERANCES)
    tail = np.zeros(int(streaming * TAIL_S * features.sampling_rate_hz), dtype=np.float32)
    return [np.concatenate([at_rate(cut, features.sampling_rate_hz).load_audio()[0], tail]) for cut in cuts]


def _by_torch(
    recognizer: Recognizer, features: Any, audio: np.ndarray, streaming: bool, transducer: bool, text: TextSide
) -> str:
    """Return the text of greedy search with at most one token in a frame, as sherpa-onnx searches."""
    frames = torch.from_numpy(features.extractor.extract(audio, features.sampling_rate_hz))[None]
    num_encodings = frames.shape[1]
    if streaming:
        assert isinstance(recognizer.encoder, ZipformerEncoder)
        encoder = StreamingEncoder(recognizer.encoder)
        # sherpa-onnx waits for one frame more than a chunk
        num_chunks = -(-(frames.shape[1] - encoder.num_features) // encoder.shift_features)
        frames = frames[:, : (num_chunks - 1) * encoder.shift_features + encoder.num_features]
        num_encodings = num_chunks * encoder.chunk_size // 2
    search: Any = TransducerGreedy(max_symbols=1) if transducer else CtcGreedy()
    with torch.inference_mode():
        encodings, lengths = recognizer(frames, torch.tensor([frames.shape[1]]))
        ((found,),) = search(recognizer.head, encodings, lengths.clamp(max=num_encodings))
    return text.tokenizer.decode(found.tokens)


def sherpa(
    folder: Path, ending: str, streaming: bool, transducer: bool, rate_hz: int, num_features: int
) -> Callable[[np.ndarray], str]:
    """Return what decodes audio with sherpa-onnx."""

    def file_of(name: str) -> str:
        path = folder / f"{name}{ending}"
        return str(path if path.exists() else folder / f"{name}.onnx")

    graphs = {name: file_of(name) for name in (("encoder", "decoder", "joiner") if transducer else ("model",))}
    shared: dict[str, Any] = {
        "tokens": str(folder / "tokens.txt"),
        "num_threads": 1,
        "sample_rate": rate_hz,
        "feature_dim": num_features,
    }
    if streaming:
        online = sherpa_onnx.OnlineRecognizer
        recognizer = (online.from_transducer if transducer else online.from_zipformer2_ctc)(**graphs, **shared)
    else:
        offline = sherpa_onnx.OfflineRecognizer
        recognizer = (offline.from_transducer if transducer else offline.from_zipformer_ctc)(**graphs, **shared)

    def decode(audio: np.ndarray) -> str:
        stream = recognizer.create_stream()
        stream.accept_waveform(rate_hz, audio)
        if not streaming:
            recognizer.decode_stream(stream)
            return " ".join(stream.result.text.split())
        stream.input_finished()
        while recognizer.is_ready(stream):
            recognizer.decode_stream(stream)
        return " ".join(recognizer.get_result(stream).split())

    return decode


def encoders(setting: Setting, names: Sequence[str]) -> Iterator[Row]:
    """Yield real-time factors and sizes of encoders."""
    for name in names or ["zipformer_s"]:
        module = build_encoder(name)
        recognizer = with_head(module, CtcHead(module.d_model, 500)).eval()
        (graph,) = export_of(recognizer, "ctc", streaming=False).graphs
        large, small = setting.work / f"{name}.onnx", setting.work / f"{name}.int8.onnx"
        write_onnx(graph, large)
        write_int8(large, small)
        yield Row(f"{name}: size of int8, a share", f"{small.stat().st_size / large.stat().st_size:.3f}")
        ways: dict[str, Any] = {"PyTorch": graph.module, "onnx": _by_onnx(large), "int8": _by_onnx(small)}
        for seconds in SECONDS:
            inputs = torch.randn(1, FRAMES_PER_S * seconds, NUM_FEATURES), torch.tensor([FRAMES_PER_S * seconds])
            with torch.inference_mode():
                steps = [partial(timed_ms, partial(encode, *inputs)) for encode in ways.values()]
                best = [min(times) / 1e3 / seconds for times in in_turns(steps, setting.options.repeats)]
            cells = {way: f"{rtf:.4f} ({rtf / best[0]:.2f})" for way, rtf in zip(ways, best, strict=True)}
            yield Row(f"{name}, {seconds} s: real-time factor", cells)


def _by_onnx(path: Path) -> Callable[[torch.Tensor, torch.Tensor], object]:
    session = onnx_session(path)
    return lambda x, lengths: session.run(None, {"x": x.numpy(), "x_lens": lengths.numpy()})


def long(setting: Setting, words: Sequence[str]) -> Iterator[Row]:
    """Yield what becomes of long recordings."""
    (name,), folder = words, setting.work
    text = restore_text(name)
    rate_hz = build_component(model_options(text.checkpoint).features, "features").sampling_rate_hz
    prepared = prepared_data(text.checkpoint, "give another run")
    cuts = list(itertools.islice(prepared.cuts(prepared.names("test")[0]), NUM_JOINED))
    drawn, joined = np.random.default_rng(0), []
    for number, cut in enumerate(cuts):
        audio = at_rate(cut, rate_hz).load_audio()[0]
        soundfile.write(folder / f"{number:04}.flac", audio, rate_hz)
        joined += [audio, 1e-4 * drawn.standard_normal(int(rate_hz * drawn.uniform(0.1, 0.8)))]
    whole = np.concatenate(joined)
    minutes = len(whole) / rate_hz / 60
    soundfile.write(folder / "whole.flac", whole, rate_hz)
    said = [
        _transcribed(name, f"{folder}/0*.flac", "max_segment_s=900"),
        _transcribed(name, f"{folder}/whole.flac"),
        _transcribed(name, f"{folder}/whole.flac", "max_segment_s=20"),
    ]
    reference = " ".join(cut.supervisions[0].text for cut in cuts)
    wers = [100 * jiwer.wer(reference, " ".join(texts)) for texts in said]
    yield Row(f"WER of {len(cuts)} utterances", f"{wers[0]:.2f} %")
    yield Row(f"WER of them, joined to {minutes:.1f} minutes", f"{wers[1]:.2f} %: {wers[1] / wers[0]:.2f} ×")
    yield Row("WER of them in parts of 20 s", f"{wers[2]:.2f} %")
    hour = folder / "hour.flac"
    with soundfile.SoundFile(hour, "w", rate_hz, 1) as file:
        for _ in range(round(60 / minutes)):
            file.write(whole)
    length_s, start_s = soundfile.info(hour).duration, cpu_seconds()
    _transcribed(name, str(hour))
    cpu_s, most_gb = cpu_seconds() - start_s, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    costs = f"{cpu_s:.1f} CPU s, start included, real-time factor {cpu_s / length_s:.4f}, at most {most_gb:.2f} GB"
    yield Row(f"transcribing {length_s:.0f} s", costs)


def _transcribed(run: str, audio: str, *words: str) -> list[str]:
    command = [sys.executable, "-m", "asr.commands", "transcribe", f"run={run}", f"audio='{audio}'", "torch_threads=1"]
    printed = subprocess.run([*command, "output_format=json", *words], check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line)["text"] for line in printed.stdout.splitlines()]


def stream(_: Setting, words: Sequence[str]) -> Iterator[Row]:
    """Yield what a stream costs and gives."""
    (name,) = words
    text = restore_text(name)
    recognizer, saved = recognizer_of(text.checkpoint), model_options(text.checkpoint)
    features, decoder = build_component(saved.features, "features"), build_decoder(saved.decoder)
    chunk_ms, last_ms, equal = [], [], 0
    utterances = _utterances(text, features, streaming=False)
    for audio in utterances:
        frames = torch.from_numpy(features.extractor.extract(audio, features.sampling_rate_hz))[None]
        with torch.inference_mode():
            encodings, lengths = recognizer(frames, torch.tensor([frames.shape[1]]))
            ((whole,),) = decoder(recognizer.head, encodings, lengths)
        heard = StreamingRecognizer(
            recognizer, text.tokenizer, features, decoder, features.sampling_rate_hz, endpoint_s=900
        )
        for packet in np.split(audio, range(PACKET, len(audio), PACKET)):
            state, start = heard.state, time.perf_counter()
            heard.accept(packet)
            if heard.state is not state:
                chunk_ms.append(1000 * (time.perf_counter() - start))
        start = time.perf_counter()
        equal += heard.finish().text == text.tokenizer.decode(whole.tokens)
        last_ms.append(1000 * (time.perf_counter() - start))
    chunks = f"{equal} of {len(utterances)}; chunks of {heard.chunk_s:.2f} s"
    yield Row("texts that are those of whole utterances", chunks)
    for what, times in (("a chunk", chunk_ms), ("the last text", last_ms)):
        middle, most = np.quantile(times, [0.5, 0.95])
        yield Row(f"work for {what}", f"{middle:.0f} ms, 95 % {most:.0f}, most {max(times):.0f}")
