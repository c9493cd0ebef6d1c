"""A checkpoint → everything that decodes with it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asr.data.loading.loader import LoaderFactory, Workers
from asr.data.loading.sampling import BucketingConfig
from asr.data.preparation.prepared import INDEX, PreparedData, describe_file
from asr.decoding.beam import FILE_OPTIONS, ShallowFusion
from asr.decoding.greedy import Decoder
from asr.inference.evaluate import LM_FOLDER, saved_search
from asr.inference.streaming import StreamingRecognizer
from asr.inference.transcripts import Transcriber
from asr.models.recognizer import Recognizer, is_pretrained
from asr.run.folder import usable_folder
from asr.run.instantiate import build_component
from asr.run.options import ModelOptions, OfRun, Reading, Target, Transcribe
from asr.run.parts import build_decoder, build_recognizer, build_text, check_decoder, num_threads
from asr.run.start import PRETRAINED, base_folder, saved_options
from asr.run.trust import check_restored
from asr.text.tokenizer import Tokenizer, tokenizer_from_state
from asr.training import checkpoints
from werdict.errors import ConfigError, naming_place
from werdict.files import named_path
from werdict.formatting import shortlist

OF_TRANSCRIPTS = ("weights", "average_since", "decoder", "max_segment_s", "channels")  # options of asr-transcribe
DEFAULT_SEGMENT_S = 15.0  # for checkpoints that do not say how long utterances of training were
SHORTEST_SEGMENT_S = 1.0
BATCH_S = 120.0  # of audio that is read at a time, unless a command has an option for it
LACKING = "decoded without the language model of the run's transcripts, which only a finished run's folder has (lm/)"
OTHER_DECODER = "decoder= replaces the run's search and its language model; decoder.lm=FILE gives a model"


@dataclass(frozen=True)
class Restored:
    """A recognizer with the text side, the features and the decoder that it was trained with, or a given decoder."""

    checkpoint: checkpoints.LoadedCheckpoint
    options: ModelOptions
    recognizer: Recognizer
    decoder: Decoder
    text: Callable[[str], str]
    loaders: LoaderFactory
    lacking: str = ""

    @property
    def notes(self) -> list[str]:
        """What the decoder has read, or lacks, to be shown with results."""
        read = self.decoder.notes if isinstance(self.decoder, ShallowFusion) else []
        return [*read, *([self.lacking] if self.lacking else [])]


def prepared_data(checkpoint: checkpoints.LoadedCheckpoint, instead: str) -> PreparedData:
    """Return the data that a checkpoint's run was trained on.

    Args:
        checkpoint: of the run.
        instead: what to do without the data.

    Raises:
        ConfigError: they are no longer there, or damaged.
    """
    data = checkpoint.data
    # those of the folder that the run was moved or copied to, before those that it has read
    data_dir = usable_folder(model_options(checkpoint).data.dir, "data.dir")
    places = data_dir / str(data.get("fingerprint")), Path(str(data.get("folder")))
    folder = next((place for place in places if os.path.isfile(place / INDEX)), None)
    if folder is None:
        raise ConfigError(f"the data of this run is no longer at {shortlist([places[1]])}; {instead}")
    try:
        prepared = PreparedData.load(folder)
        prepared.check_shards()
    except ValueError as error:
        raise ConfigError(f"{error}; {instead}") from error
    return prepared


@dataclass(frozen=True)
class TextSide:
    """How a run writes text.

    Attributes:
        checkpoint: of the run.
        normalize: text of any kind → text as in the transcripts of the run.
        tokenizer: of the run.
    """

    checkpoint: checkpoints.LoadedCheckpoint
    normalize: Callable[[str], str]
    tokenizer: Tokenizer


def restore_text(run: object) -> TextSide:
    """Rebuild the text side of what ``run=`` names."""
    checkpoint = checkpoints.load_checkpoint(checkpoints.checkpoint_file(str(run)))
    options = model_options(checkpoint)
    with naming_place(checkpoint.path):
        tokenizer = tokenizer_from_state(checkpoint.tokenizer)
        return TextSide(checkpoint, build_text(options.data.text, tokenizer), tokenizer)


def model_options(checkpoint: checkpoints.LoadedCheckpoint) -> ModelOptions:
    """Return what decodes by the options of a checkpoint's run.

    Raises:
        ConfigError: they are refused, or name code that the user does not trust in the parts that decode; nothing else
            of a config is built, or even imported.
    """
    with naming_place(checkpoint.path):
        options = saved_options(checkpoint, ModelOptions)
    built = {"encoder": options.encoder, "head": options.head, "features": options.features, "decoder": options.decoder}
    built |= {"augment.features": options.augment.features, "data.text": options.data.text}
    check_restored(built, checkpoint.path)
    return options


def recognizer_of(checkpoint: checkpoints.LoadedCheckpoint, base: object = None) -> Recognizer:
    """Return the recognizer of a checkpoint, in evaluation mode.

    Args:
        checkpoint: of the run.
        base: folder of its pretrained model, if it is elsewhere now.

    Raises:
        ConfigError: its parts do not fit each other.
    """
    options, weights = model_options(checkpoint), checkpoint.weights
    with naming_place(checkpoint.path):
        vocab_size = tokenizer_from_state(checkpoint.tokenizer).vocab_size
        mean = weights.get("normalize.mean")
        if mean is None or mean.dim() != 1:
            shape = "" if mean is None else f" of one dimension, but of the shape {tuple(mean.shape)}"
            raise ConfigError(f"it has no statistics of features, normalize.mean{shape}")
        encoder = options.encoder
        if base is not None:
            encoder = encoder.updated(model_folder=base_folder(encoder, base))
        if encoder.target == PRETRAINED and encoder.train == "all":  # it holds all weights
            encoder = encoder.updated(reads_weights=False)
        options = options.updated(encoder=encoder.plain())
        recognizer = build_recognizer(options, vocab_size, [0.0] * len(mean), [1.0] * len(mean))
        checkpoints.load_weights(recognizer, weights)
    if is_pretrained(recognizer.encoder):
        recognizer.encoder.merge_adapters()  # type: ignore[operator]
    return recognizer.eval()


def restore(
    options: OfRun, decoder: Target | None = None, torch_threads: int | None = None, with_lm: bool = True
) -> Restored:
    """Rebuild what ``run=`` names, for decoding with the options of the command.

    Args:
        options: of the command.
        decoder: in the place of the run's own.
        torch_threads: of this process; None: all cores that no worker needs.
        with_lm: decode with the language model in the run's folder, unless a decoder is given.
    """
    batch, workers = BucketingConfig(BATCH_S), Workers(0)
    if isinstance(options, Reading):
        batch, workers = BucketingConfig(options.batch_duration_s), Workers(options.num_workers)
    torch.set_num_threads(num_threads(torch_threads, workers.count))
    given = None if decoder is None else build_component(decoder, "decoder")
    checkpoint = checkpoints.load_checkpoint(checkpoints.checkpoint_file(str(options.run)))
    checkpoint = checkpoints.choose_weights(checkpoint, options.weights, options.average_since)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    saved, recognizer = model_options(checkpoint), recognizer_of(checkpoint, options.encoder.model).to(device)
    with naming_place(checkpoint.path):
        tokenizer = tokenizer_from_state(checkpoint.tokenizer)
        features = build_component(saved.features, "features")
        text = build_text(saved.data.text, tokenizer)
        num_features = len(recognizer.normalize.mean)
        if features.num_features != num_features:
            raise ConfigError(f"features have {features.num_features} numbers per frame, its weights {num_features}")
        loaders = LoaderFactory(features, tokenizer, batch, workers, unit=saved.data.scoring_unit)
        chosen = given or build_decoder(saved.decoder)
        check_decoder(chosen, recognizer.head)
        lacking = ""
        order, run_dir = saved.data.transcripts_lm, checkpoint.run_dir
        if with_lm and order and decoder is not None and decoder.plain().get("lm") is None:
            lacking = OTHER_DECODER
        # the model may have been asked for when the run was resumed, after the best checkpoint was saved
        if given is None and with_lm and (order or run_dir):
            saved_decoder = saved_search(run_dir, recognizer.head) if run_dir else None
            chosen = saved_decoder or chosen
            lacking = LACKING if order and saved_decoder is None else ""
    if isinstance(chosen, ShallowFusion):
        with naming_place("decoder"):
            chosen.load_scorers(tokenizer, text)
    return Restored(checkpoint, saved, recognizer, chosen, text, loaders, lacking)


def transcriber_of(restored: Restored, max_segment_s: float | None, each_channel: bool = False) -> Transcriber:
    """Return a transcriber.

    Args:
        restored: what decodes.
        max_segment_s: longer recordings are cut; None: the longest utterances of training, but for 5 %.
        each_channel: decode all channels; False: the first.

    Raises:
        ConfigError: the recognizer was trained on features without audio.
    """
    features = restored.loaders.features
    if not features.from_audio:
        raise ConfigError(
            f"run: it was trained on features without audio, {features.num_features} per frame, and cannot read audio; "
            "give features of the same kind to asr-evaluate manifest=PATH"
        )
    longest_s = max_segment_s or restored.checkpoint.data.get("utterance_s", DEFAULT_SEGMENT_S)
    parts = restored.recognizer, restored.decoder, restored.loaders
    return Transcriber(*parts, max(SHORTEST_SEGMENT_S, longest_s), each_channel)


def stream_of(restored: Restored, rate_hz: int, endpoint_s: float) -> StreamingRecognizer:
    """Return what recognizes one stream of samples at a rate.

    Raises:
        ValueError: the encoder is not a causal Zipformer.
    """
    loaders = restored.loaders
    parts = restored.recognizer, loaders.tokenizer, loaders.features, restored.decoder
    return StreamingRecognizer(*parts, rate_hz, endpoint_s)


def maker_of(options: Transcribe) -> dict[str, Any]:
    """Return all that decides on transcripts, as plain data: options, and digests of files.

    Raises:
        ConfigError: there is no such run.
    """
    decoder = None if options.decoder is None else options.decoder.plain()
    made_by = options.model_dump(include={*OF_TRANSCRIPTS}) | {"decoder": decoder}
    checkpoint = checkpoints.checkpoint_file(str(options.run))
    files = {"checkpoint": checkpoint}
    if decoder:
        files |= {key: named_path(decoder[key]) for key in FILE_OPTIONS if decoder.get(key) is not None}
    elif run_dir := checkpoints.run_folder_of(checkpoint):
        # what the run itself decodes with
        files |= {f"{LM_FOLDER}/{path.name}": path for path in (run_dir / LM_FOLDER).glob("*")}
    return made_by | {key: describe_file(path)["sha256"] for key, path in files.items() if path.is_file()}
