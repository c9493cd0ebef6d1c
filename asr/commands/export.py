"""``asr-export``: a checkpoint → a folder of files that other programs decode with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from asr.commands.results import new_file
from asr.data.features import Features, at_rate, cause, read_features
from asr.decoding.greedy import CtcGreedy, TransducerGreedy
from asr.export import write
from asr.export.graphs import export_of
from asr.models.heads.protocols import Transduces
from asr.models.recognizer import Recognizer
from asr.run.instantiate import build_component
from asr.run.options import Export as ExportOptions
from asr.run.parts import build_decoder
from asr.run.restore import TextSide, model_options, prepared_data, recognizer_of, restore_text
from asr.training.checkpoints import choose_weights
from werdict.console import PlainConsole
from werdict.errors import ConfigError, raise_if_out_of_resources
from werdict.files import new_folder, write_new

console = PlainConsole()


def run(options: ExportOptions) -> None:
    """Write the folder, and print what is in it."""
    if options.quantize and options.format != "onnx":
        raise ConfigError(f"quantize={options.quantize} is for format=onnx, given format={options.format}")
    if options.format in ("safetensors", "huggingface") and (options.streaming or options.model_type):
        raise ConfigError(f"format={options.format} exports all weights of the run; leave streaming and model_type out")
    output = new_file(options.output, kind="folder")
    write.check_packages(options.format)
    text = restore_text(options.run)
    checkpoint = choose_weights(text.checkpoint, options.weights, options.average_since)
    saved = model_options(checkpoint)
    recognizer, features = recognizer_of(checkpoint, options.encoder.model), build_component(saved.features, "features")
    console.print_line(f"checkpoint {checkpoint.path}, update {checkpoint.update}, {checkpoint.described}")
    with new_folder(output) as folder:
        pieces = text.tokenizer.pieces
        if options.format != "huggingface":
            write_new(folder / "tokens.txt", "".join(f"{piece} {number}\n" for number, piece in enumerate(pieces)))
        numbers = features.sampling_rate_hz, features.num_features, features.frame_shift_s * 1e3
        if options.format == "safetensors":
            line = write.write_safetensors(checkpoint.weights, folder / "model.safetensors")
            console.print_line(line)
            parts = {"encoder": saved.encoder.plain(), "head": saved.head.plain(), "features": saved.features.plain()}
            write_new(folder / "config.json", json.dumps(parts, indent=2) + "\n")
            page = write.weights_page(write.Described(checkpoint.title, *numbers, None), line)
        elif options.format == "huggingface":
            line = write.write_huggingface(recognizer, pieces, folder)
            console.print_line(line)
            page = write.pipeline_page(checkpoint.title, features.sampling_rate_hz, saved.encoder, line)
        else:
            model_type = options.model_type or (
                "transducer" if build_decoder(saved.decoder).needs is Transduces else "ctc"
            )
            export = export_of(recognizer, model_type, options.streaming)
            if options.format == "torch":
                written = write.write_torchscript(export, recognizer.normalize, folder)
            else:
                written = write.write_onnx_files(export, recognizer.normalize, folder, options.quantize is not None)
            lines = []
            for line in written:
                console.print_line(line)
                lines.append(line)
            example = _example(text, features, recognizer, model_type, folder) if options.test_wav else None
            described = write.Described(checkpoint.title, *numbers, example)
            page = write.readme(described, export, options.format, bool(options.quantize), lines)
        write_new(folder / "README.md", page)
    console.print_line(f"exported: {output}")


def _example(text: TextSide, features: Features, recognizer: Recognizer, model_type: str, folder: Path) -> str | None:
    """Write a recording of the run's test set with its transcript; return what the recognizer makes of it."""
    if not features.from_audio:
        return None
    try:
        prepared = prepared_data(text.checkpoint, "no recording is exported")
        cut = next((cut for name in prepared.names("test") for cut in prepared.cuts(name)), None)
        if cut is None:
            raise ValueError("the data of this run have no test set: no recording is exported")
        if not cut.has_recording:
            raise ValueError(
                f"the shards of {prepared.folder} hold features, no audio: no recording is exported "
                "(test_wav=false asks for none)"
            )
        audio = at_rate(cut, features.sampling_rate_hz).load_audio()[0]
    except Exception as error:  # a decoder may raise anything on a file that has changed
        raise_if_out_of_resources(error, "a recording of the test set")
        console.print_line(f"note: {error if isinstance(error, ValueError) else cause(error)}")
        return None
    write.write_test_wav(folder / "test_wavs", audio, features.sampling_rate_hz, str(cut.supervisions[0].text))
    # a checkpoint names its data itself, and an export is made to be given away
    console.print_line(f"test_wavs/0.wav: {cut.id} of {prepared.folder}, with its transcript (test_wav=false: none)")
    frames = torch.from_numpy(read_features(features, cut))
    # as sherpa-onnx searches: at most one token in a frame
    search: Any = TransducerGreedy(max_symbols=1) if model_type == "transducer" else CtcGreedy()
    with torch.inference_mode():
        encodings, lengths = recognizer(frames[None], torch.tensor([len(frames)]))
        ((hypothesis,),) = search(recognizer.head, encodings, lengths)
    return text.tokenizer.decode(hypothesis.tokens)
