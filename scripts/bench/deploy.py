"""What trained recognizers cost and give in use.

    python scripts/bench_deploy.py exports RUN [streaming=true] [model_type=ctc]

exports: seconds to export the run, with int8; sizes of the files; of 100 utterances of the run's test sets, the texts
of sherpa-onnx that are those of PyTorch, for 32 and 8 bits. In streams, PyTorch encodes the same chunks as a whole.

    python scripts/bench_deploy.py encoder [NAME …]

encoder: of encoders with random weights (zipformer_s), real-time factors of PyTorch and of their exports, on one
thread, the best of five; and the size of the int8 export as a share of that of 32 bits.

    python scripts/bench_deploy.py long RUN

long: utterances of the run's test sets joined with pauses of 0.1 to 0.8 s: the WER of asr-transcribe on the whole
recording, beside that of the utterances alone; then memory and CPU time of asr-transcribe on an hour of them.

    python scripts/bench_deploy.py stream RUN

stream: how many texts of a stream in packets of 0.1 s are those of the whole utterances; milliseconds of work for each
chunk, and for the last text.
"""

from __future__ import annotations

import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import sherpa_onnx
import soundfile
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from asr.commands.app import quieten
from asr.commands.export import run as export_run
from asr.config.build import build_decoder, part
from asr.config.help import CONFIGS
from asr.config.restore import TextSide, prepared_data, recognizer_of, restore_text
from asr.data.features import Features
from asr.data.resampling import at_rate
from asr.decoding.ctc_greedy import CtcGreedy
from asr.decoding.transducer_greedy import TransducerGreedy
from asr.export.kinds import export_of
from asr.export.onnx_files import onnx_session, write_int8, write_onnx
from asr.features.global_norm import GlobalNorm
from asr.inference.streaming import StreamingRecognizer
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.encoders.zipformer.streaming_encoder import StreamingZipformer
from asr.models.heads.ctc import CtcHead
from asr.models.recognizer import Recognizer

NUM_UTTERANCES = 100
TAIL_S = 0.8  # silence that brings the last words out of a stream
NUM_REPEATS = 5
NUM_JOINED = 150
PACKET = 1600  # samples
SECONDS = 3, 10  # of utterances whose encoding is timed


def exports(words: Sequence[str]) -> None:
    """Print what an export of a run costs and gives."""
    name, *overrides = words
    with tempfile.TemporaryDirectory() as folder, initialize_config_dir(str(CONFIGS), version_base="1.3"):
        output = Path(folder) / "out"
        options = compose("export", [f"run={name}", f"output={output}", "quantize=int8", *overrides])
        start = time.process_time()
        export_run(options)
        print(f"exported in {time.process_time() - start:.1f} CPU s")
        text = restore_text(name)
        recognizer, features = recognizer_of(text.checkpoint), part(text.checkpoint.config, "features")
        utterances = _utterances(text, features, options.streaming)
        transducer = (output / "joiner.onnx").exists()
        reference = [_by_torch(recognizer, features, audio, options, transducer, text) for audio in utterances]
        num_words = sum(len(one.split()) for one in reference)
        for ending in (".onnx", ".int8.onnx"):
            sherpa = _sherpa(output, ending, options.streaming, transducer, features)
            start = time.process_time()
            found = [sherpa(audio) for audio in utterances]
            rtf = (time.process_time() - start) / sum(len(audio) / features.sampling_rate_hz for audio in utterances)
            equal = sum(one == other for one, other in zip(found, reference, strict=True))
            print(
                f"{ending}: {equal} of {len(found)} texts ({num_words} words) are PyTorch's; real-time factor {rtf:.4f}"
            )


def _utterances(text: TextSide, features: Features, streaming: bool) -> list[np.ndarray]:
    prepared = prepared_data(text.checkpoint, "give another run")
    cuts = itertools.islice((cut for name in prepared.names("test") for cut in prepared.cuts(name)), NUM_UTTERANCES)
    tail = np.zeros(int(streaming * TAIL_S * features.sampling_rate_hz), dtype=np.float32)
    return [np.concatenate([at_rate(cut, features.sampling_rate_hz).load_audio()[0], tail]) for cut in cuts]


def _by_torch(
    recognizer: Recognizer, features: Any, audio: np.ndarray, options: DictConfig, transducer: bool, text: TextSide
) -> str:
    """Return the text of greedy search with at most one token in a frame, as sherpa-onnx searches."""
    frames = torch.from_numpy(features.extractor.extract(audio, features.sampling_rate_hz))[None]
    num_encodings = frames.shape[1]
    if options.streaming:
        assert isinstance(recognizer.encoder, ZipformerEncoder)
        streaming = StreamingZipformer(recognizer.encoder)
        # sherpa-onnx waits for one frame more than a chunk
        num_chunks = -(-(frames.shape[1] - streaming.num_features) // streaming.shift_features)
        frames = frames[:, : (num_chunks - 1) * streaming.shift_features + streaming.num_features]
        num_encodings = num_chunks * streaming.chunk_size // 2
    search: Any = TransducerGreedy(max_symbols=1) if transducer else CtcGreedy()
    with torch.inference_mode():
        encodings, lengths = recognizer(frames, torch.tensor([frames.shape[1]]))
        ((found,),) = search(recognizer.head, encodings, lengths.clamp(max=num_encodings))
    return text.tokenizer.decode(found.tokens)


def _sherpa(
    folder: Path, ending: str, streaming: bool, transducer: bool, features: Features
) -> Callable[[np.ndarray], str]:
    """Return what decodes audio with sherpa-onnx."""

    def file_of(name: str) -> str:
        path = folder / f"{name}{ending}"
        return str(path if path.exists() else folder / f"{name}.onnx")

    given = {name: file_of(name) for name in (("encoder", "decoder", "joiner") if transducer else ("model",))}
    shared: dict[str, Any] = {
        "tokens": str(folder / "tokens.txt"),
        "num_threads": 1,
        "sample_rate": features.sampling_rate_hz,
        "feature_dim": features.num_features,
    }
    if streaming:
        online = sherpa_onnx.OnlineRecognizer
        recognizer = (online.from_transducer if transducer else online.from_zipformer2_ctc)(**given, **shared)
    else:
        offline = sherpa_onnx.OfflineRecognizer
        recognizer = (offline.from_transducer if transducer else offline.from_zipformer_ctc)(**given, **shared)

    def decode(audio: np.ndarray) -> str:
        stream = recognizer.create_stream()
        stream.accept_waveform(features.sampling_rate_hz, audio)
        if not streaming:
            recognizer.decode_stream(stream)
            return " ".join(stream.result.text.split())
        stream.input_finished()
        while recognizer.is_ready(stream):
            recognizer.decode_stream(stream)
        return " ".join(recognizer.get_result(stream).split())

    return decode


def encoder(names: Sequence[str]) -> None:
    """Print real-time factors and sizes of encoders."""
    for name in names or ["zipformer_s"]:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            config = OmegaConf.to_container(compose(f"encoder/{name}").encoder)
        module = part({"encoder": config}, "encoder", num_features=80)
        norm = GlobalNorm([0.0] * 80, [1.0] * 80)
        head: Any = CtcHead(module.d_model, 500)
        recognizer = Recognizer(module, head, norm).eval()
        with tempfile.TemporaryDirectory() as folder:
            _encoder(name, recognizer, Path(folder))


def _encoder(name: str, recognizer: Recognizer, folder: Path) -> None:
    (graph,) = export_of(recognizer, "ctc", streaming=False).graphs
    large, small = folder / "model.onnx", folder / "model.int8.onnx"
    write_onnx(graph, large)
    write_int8(large, small)
    print(f"{name}: int8 has {small.stat().st_size / large.stat().st_size:.3f} of the size")

    def by_onnx(path: Path) -> Callable[[torch.Tensor, torch.Tensor], object]:
        session = onnx_session(path)
        return lambda x, lengths: session.run(None, {"x": x.numpy(), "x_lens": lengths.numpy()})

    ways: dict[str, Callable[..., object]] = {"PyTorch": graph.module, "onnx": by_onnx(large), "int8": by_onnx(small)}
    for seconds in SECONDS:
        x, lengths = torch.randn(1, 100 * seconds, 80), torch.tensor([100 * seconds])
        best = dict.fromkeys(ways, float("inf"))
        for _, (way, encode) in itertools.product(range(NUM_REPEATS), ways.items()):
            with torch.inference_mode():
                start = time.process_time()
                encode(x, lengths)
                best[way] = min(best[way], (time.process_time() - start) / seconds)
        said = ", ".join(f"{way} {rtf:.4f} ({rtf / best['PyTorch']:.2f})" for way, rtf in best.items())
        print(f"{name}, {seconds} s: real-time factor {said}")


def long(words: Sequence[str]) -> None:
    """Print what becomes of long recordings."""
    (name,) = words
    text = restore_text(name)
    rate_hz = part(text.checkpoint.config, "features").sampling_rate_hz
    prepared = prepared_data(text.checkpoint, "give another run")
    cuts = list(itertools.islice(prepared.cuts(prepared.names("test")[0]), NUM_JOINED))
    reference = " ".join(cut.supervisions[0].text for cut in cuts)
    drawn = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        joined = []
        for number, cut in enumerate(cuts):
            audio = at_rate(cut, rate_hz).load_audio()[0]
            soundfile.write(Path(folder) / f"{number:04}.flac", audio, rate_hz)
            joined += [audio, 1e-4 * drawn.standard_normal(int(rate_hz * drawn.uniform(0.1, 0.8)))]
        whole = np.concatenate(joined)
        minutes = len(whole) / rate_hz / 60
        soundfile.write(Path(folder) / "whole.flac", whole, rate_hz)
        alone = " ".join(_transcribed(name, f"{folder}/0*.flac", "max_segment_s=900"))
        joined_up = [_transcribed(name, f"{folder}/whole.flac", *given) for given in ((), ("max_segment_s=20",))]
        wers = [100 * jiwer.wer(reference, said) for said in (alone, *itertools.chain(*joined_up))]
        print(
            f"{len(cuts)} utterances: WER {wers[0]:.2f} %, joined to {minutes:.1f} minutes {wers[1]:.2f} %: "
            f"{wers[1] / wers[0]:.2f} ×; in parts of 20 s {wers[2]:.2f} %"
        )
        hour = Path(folder) / "hour.flac"
        with soundfile.SoundFile(hour, "w", rate_hz, 1) as file:
            for _ in range(round(60 / minutes)):
                file.write(whole)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _transcribed(name, str(hour))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        length_s = soundfile.info(hour).duration
        print(f"{length_s:.0f} s: {cpu_s:.1f} CPU s, start included, real-time factor {cpu_s / length_s:.4f}")
        print(f"at most {after.ru_maxrss / 1e6:.2f} GB of memory")


def _transcribed(run: str, audio: str, *words: str) -> list[str]:
    command = [sys.executable, "-m", "asr.commands", "transcribe", f"run={run}", f"audio='{audio}'", "torch_threads=1"]
    printed = subprocess.run([*command, "output_format=json", *words], check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line)["text"] for line in printed.stdout.splitlines()]


def stream(words: Sequence[str]) -> None:
    """Print what a stream costs and gives."""
    (name,) = words
    text = restore_text(name)
    recognizer, features = recognizer_of(text.checkpoint), part(text.checkpoint.config, "features")
    decoder = build_decoder(text.checkpoint.config)
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
    print(f"{equal} of {len(utterances)} texts are those of whole utterances; chunks of {heard.chunk_s:.2f} s")
    for what, times in (("a chunk", chunk_ms), ("the last text", last_ms)):
        middle, most = np.quantile(times, [0.5, 0.95])
        print(f"{what}: {middle:.0f} ms of work, 95 % {most:.0f}, most {max(times):.0f}")


if __name__ == "__main__":
    quieten()
    torch.set_num_threads(1)
    sections = {"exports": exports, "encoder": encoder, "long": long, "stream": stream}
    if len(sys.argv) < 2 or sys.argv[1] not in sections:
        sys.exit(__doc__)
    sections[sys.argv[1]](sys.argv[2:])
