"""The options of each command, and the check of its composed config against them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from asr.errors import ConfigError, did_you_mean
from asr.options import (
    Augment,
    Data,
    Group,
    Name,
    Option,
    PartialShare,
    Place,
    Positive,
    Seed,
    Text,
    Train,
    Weights,
    fields,
    options_of,
)

CHOOSABLE = ("decoder", "logger")  # groups of which a config may choose nothing
MAX_NAME_BYTES = 100  # of a set, whose files have longer names; file systems allow 255

Places = Place | Annotated[list[Place], Field(min_length=1)]
FileName = Annotated[Text, Field(pattern=r"^\w[\w.+-]*$", max_length=MAX_NAME_BYTES)]
Format = Literal["tsv", "txt", "json", "ctm", "srt", "vtt"]
AlignFormat = Literal["ctm", "json", "textgrid"]
Trust = Annotated[
    list[Name], Option("packages whose classes the run may name: [mypkg]; WERDICT_TRUST=mypkg does the same")
]
MaxSegment = Annotated[
    Positive | None, Option("longer audio is cut at pauses; null: the 95th percentile of the training durations")
]


class Base(TypedDict):
    """``encoder`` of a run that holds only a part of its pretrained model."""

    model: Annotated[Place | None, Option("folder of the run's pretrained model, if it is elsewhere now")]


class OfRun(TypedDict):
    """What is done with a run."""

    run: Annotated[Place, Option("a run's folder, or a checkpoint")]
    trust: Trust
    encoder: Annotated[Base, Option()]
    weights: Annotated[
        Weights,
        Option("raw; average: their mean over about the last third of training; ema: their exponential moving average"),
    ]
    average_since: Annotated[
        int | None, Option("start the average after this update, which must have a checkpoint; 0: from the beginning")
    ]


class Reading(OfRun):
    """Audio is read in batches."""

    batch_duration_s: Annotated[Positive, Option("seconds of audio in a batch")]
    num_workers: Annotated[NonNegativeInt, Option("processes that read audio; 0: this one")]
    torch_threads: Annotated[PositiveInt | None, Option("null: cores minus loader workers")]


class Sets(TypedDict):
    """Which utterances are read."""

    manifest: Annotated[
        Places | None,
        Option("a TSV (audio, text), a cuts manifest, a folder of manifests, or a list; null: the run's test sets"),
    ]
    name: Annotated[FileName | None, Option("name of the set in file names; null: the manifest's name")]


class Scoring(TypedDict):
    """``scoring``."""

    normalize: Annotated[
        Literal["none", "basic", "english"],
        Option("texts before they are scored: none; basic: lower case, no punctuation; english: Whisper's rules"),
    ]


class Evaluate(Reading, Sets):
    """``asr-evaluate``."""

    output_dir: Annotated[Place | None, Option("null: <run>/decode/<date_time>")]
    decoder: Group | None
    tune: Annotated[
        bool | Place,
        Option("true: first choose the decoder's weights on the run's dev sets; or a manifest to choose them on"),
    ]
    scoring: Scoring


class Transcribe(Reading):
    """``asr-transcribe``."""

    decoder: Group | None
    audio: Annotated[
        Places, Option("a file, a folder with its subfolders, a pattern like 'calls/*.wav', or a list of them")
    ]
    channels: Annotated[Literal["first", "each"], Option("first: the first channel of each file; each: all channels")]
    max_segment_s: MaxSegment
    output: Annotated[Place | None, Option("a file to write; null: the terminal")]
    output_dir: Annotated[
        Place | None,
        Option("or a folder, with files for each recording; finished recordings are skipped"),
    ]
    output_format: Annotated[
        Format | Annotated[list[Format], Field(min_length=1)],
        Option("tsv (path and text), txt, json (times and confidence of words), ctm, srt, vtt; or a list of these"),
    ]


class Align(Reading, Sets):
    """``asr-align``."""

    output_dir: Annotated[Place | None, Option("null: <run>/align/<date_time>")]
    output_format: Annotated[
        AlignFormat | Annotated[list[AlignFormat], Field(min_length=1)],
        Option("ctm, json (a line for each utterance), textgrid (a file for each utterance), or a list of these"),
    ]


class Export(OfRun):
    """``asr-export``."""

    output: Annotated[Place, Option("a folder to write")]
    format: Annotated[
        Literal["onnx", "torch", "safetensors", "huggingface"],
        Option(
            "onnx: for onnxruntime and sherpa-onnx; torch: TorchScript; safetensors: the weights alone; huggingface: a "
            "fine-tuned CTC model for transformers"
        ),
    ]
    quantize: Annotated[Literal["int8"] | None, Option("int8: also write a file with 8-bit weights (format=onnx)")]
    streaming: Annotated[bool, Option("true: takes chunks of a causal Zipformer, instead of whole utterances")]
    test_wav: Annotated[
        bool,
        Option("true: add a recording of the run's test set and its transcript, to try the export"),
    ]
    model_type: Annotated[
        Literal["ctc", "transducer"] | None,
        Option("ctc or transducer, if the run has both; null: what its decoder searches"),
    ]


class LM(TypedDict):
    """``asr-lm``."""

    run: Annotated[Place, Option("a run's folder, or a checkpoint: text is normalized and tokenized as there")]
    trust: Trust
    text: Annotated[
        Places | None, Option("a file with a sentence in each line, plain or .gz, a pattern, or a list of them")
    ]
    transcripts: Annotated[bool, Option("true: also use the transcripts that the run was trained on")]
    units: Annotated[Literal["tokens", "words"], Option("tokens of the run's tokenizer, or words")]
    order: Annotated[PositiveInt, Option("of the longest n-grams")]
    output: Annotated[Place, Option("an ARPA file to write; compressed if its name ends with .gz")]


class Stream(OfRun):
    """``asr-stream``."""

    torch_threads: Annotated[PositiveInt | None, Option("more threads rarely help with so little audio at a time")]
    audio: Annotated[
        Place,
        Option("a file; -: samples on standard input, 16-bit little-endian, one channel (arecord -f S16_LE -t raw)"),
    ]
    sampling_rate_hz: Annotated[int, Option("of the samples on standard input")]
    packet_s: Annotated[float, Field(ge=0.01, le=10), Option("seconds of audio that are read at a time")]
    at_own_pace: Annotated[bool, Option("true: read a file as fast as it was spoken")]
    endpoint_s: Annotated[float, Field(ge=0.01, le=3600), Option("seconds without a word after which a line ends")]


class Demo(OfRun):
    """``asr-demo``."""

    torch_threads: Annotated[PositiveInt | None, Option("null: all cores")]
    decoder: Group | None
    port: Annotated[
        Annotated[int, Field(ge=0, le=65535)] | None, Option("of 127.0.0.1; null: the first free port from 7860 on")
    ]
    max_upload_mb: Annotated[Positive, Option("of a recording")]
    max_segment_s: MaxSegment
    endpoint_s: Annotated[Positive, Option("seconds without a word after which a line of live text ends")]


class Convert(TypedDict):
    """``asr-convert``."""

    model: Annotated[Place | None, Option("exp/pretrained.pt, as icefall's export.py makes it")]
    bpe_model: Annotated[Place | None, Option("data/lang_bpe_500/bpe.model: its tokenizer")]
    run: Annotated[
        Place | None, Option("or a run on a part of a pretrained model, such as adapters: both in one checkpoint")
    ]
    trust: Trust
    output: Annotated[Place, Option("a checkpoint to write, *.ckpt")]
    seed: Annotated[Seed, Option("of the weights that are replaced")]
    data: Data
    features: Group
    augment: Augment
    encoder: Group
    head: Group
    decoder: Group


class Compare(TypedDict):
    """``asr-compare``."""

    sweep: Annotated[Place | None, Option("name of a sweep: all finished runs in runs/<name>")]
    runs: Annotated[Places | None, Option("or folders of runs: 'runs/fsdd/*/*', [runs/a,runs/b]")]
    results: Annotated[
        Places | None,
        Option("or files of results of any toolkit: 'results/*.json', [a.trn,b.trn]; see docs/any_toolkit.md"),
    ]
    pattern: Annotated[
        Name | None, Option("what the parts of their paths are: 'exp/{system}/seed{seed}/{set}/hyp.trn'")
    ]
    format: Annotated[
        Name | None,
        Option(
            "of the results: table, icefall, nemo, trn, speechbrain, wenet, whisper, meeteval, kaldi; null: detected"
        ),
    ]
    references: Annotated[
        Place | None,
        Option(
            "file of the reference texts, if the results have none; its name may contain {system}, {seed} and {set}"
        ),
    ]
    columns: Annotated[
        dict[
            Literal["id", "reference", "hypothesis", "system", "seed", "set", "speaker", "words", "errors"], Name | None
        ],
        Option("names of columns or keys in the results, if they differ: columns.hypothesis=pred_text_canary"),
    ]
    id_pattern: Annotated[
        re.Pattern[str] | None,
        Option("a regular expression that finds in each id what is compared, if the ids of systems differ"),
    ]
    allow: Annotated[
        list[Literal["missing", "duplicates", "references", "empty"]],
        Option(
            "problems that are accepted and counted, not refused: missing, duplicates, references (that differ), empty"
        ),
    ]
    unit: Annotated[
        Literal["word", "character", "nonspace-character"],
        Option("what is counted in texts of results; spaces between words are characters, but not nonspace ones"),
    ]
    scoring: Scoring
    by: Annotated[
        list[Name],
        Option(
            "columns of the results, for example [accent]: the utterances of each value are also compared separately"
        ),
    ]
    training_texts: Annotated[
        Place | None, Option("a text file; utterances whose references occur in it are compared separately")
    ]
    baseline: Annotated[
        Name, Option("system that all others are compared with; auto: adamw, if it exists, else the first system")
    ]
    pairs: Annotated[
        Literal["baseline", "all"],
        Option("pairs that are tested; all: each pair too, as a further question that needs larger differences"),
    ]
    scale: Annotated[
        Literal["ratio", "points"],
        Option("of differences: ratios of geometric means, or points; choose it before you see the results"),
    ]
    looks: Annotated[
        list[PositiveInt],
        Option("numbers of seeds after which you planned to compare: [5,10]; each look has its part of the level"),
    ]
    target_wer: Annotated[
        PartialShare | None,
        Option(
            "WER on dev as a fraction (0.2 is 20 %): show when each system reached it; null: sweep.target_wer of "
            "the runs"
        ),
    ]
    minutes: Annotated[
        Positive | None,
        Option("minutes of training after which WERs on dev are compared; null: the time of the fastest run"),
    ]
    speakers: Annotated[
        Place | None,
        Option("a file that names the speaker of each utterance, like Kaldi's utt2spk; null: from the data"),
    ]
    speaker_pattern: Annotated[
        re.Pattern[str] | None,
        Option("or a regular expression that finds the speaker in an utterance's id: '^[^-]+'"),
    ]
    level: Annotated[PartialShare, Option("of each question: which may be best, and which differ from the baseline")]
    out: Annotated[Place | None, Option("null: runs/<sweep>/comparison, or runs/comparison/<date_time>")]
    logger: dict[str, Group | None] | None


class Runs(TypedDict):
    """``asr-runs``."""

    folder: Annotated[Places, Option("folder that is searched for runs, at any depth; or a list")]
    sort: Annotated[
        Literal["started", "run", "recipe", "system", "seed", "updates", "wer_dev", "wer_test", "status", "size_mb"],
        Option(
            "started, recipe, system, seed, updates, wer_dev, wer_test, status, size_mb or run; runs without it come "
            "last"
        ),
    ]
    output_format: Annotated[Literal["table", "json"], Option("table, or json: a list for programs")]


COMMANDS: dict[str, Any] = {
    "train": Train,
    "prepare": Train,
    "evaluate": Evaluate,
    "transcribe": Transcribe,
    "align": Align,
    "export": Export,
    "lm": LM,
    "stream": Stream,
    "demo": Demo,
    "convert": Convert,
    "compare": Compare,
    "runs": Runs,
}


def check_options(command: str, config: DictConfig) -> None:
    """Refuse a key that nothing would read, and a value that is not of the type that its key takes.

    Args:
        command: whose config it is.
        config: composed.

    Raises:
        ConfigError: names the key, what was given and what is allowed.
        OmegaConfBaseException: a key refers to something that is not there.
    """
    options = COMMANDS[command]
    _check_known(OmegaConf.to_container(config, resolve=False), options, "", OmegaConf.to_yaml(config))
    for key, _, _ in options_of(options):
        if OmegaConf.is_missing(config, key):
            raise ConfigError(f"{key} must be given: {key}=…")
    _check_values(OmegaConf.to_container(config, resolve=True), options, "")


def _check_known(config: Any, options: Any, place: str, text: str) -> None:
    """Refuse a key, of a recipe or added by ``+``, that nothing reads and no other value refers to."""
    keys = fields(options)
    # a table that is not total describes a part of what is taken
    for key in map(str, config) if options.__total__ else ():
        if key not in keys and not re.search(rf"\$\{{[^}}]*\b{re.escape(key)}\b", text):
            where = f"in {place.rstrip('.')}" if place else "at the top level"
            raise ConfigError(
                f"{place}{key}: there is no key {key!r} {where}.{did_you_mean(key, keys)} Allowed: {', '.join(keys)}."
            )
    for key, (kind, _) in keys.items():
        if fields(kind) and isinstance(config.get(key), Mapping):
            _check_known(config[key], kind, f"{place}{key}.", text)


def _check_values(config: Any, options: Any, place: str) -> None:
    for name, (kind, _) in fields(options).items():
        key = f"{place}{name}"
        if name not in config:
            if options.__total__ and key not in CHOOSABLE:
                raise ConfigError(f"{key} is missing in the config: it cannot be removed")
        elif fields(kind) and isinstance(config[name], Mapping):
            _check_values(config[name], kind, f"{key}.")
        else:
            _check_value(config[name], dict if fields(kind) else kind, key)


def _check_value(value: Any, kind: Any, key: str) -> None:
    try:
        TypeAdapter(kind, config=ConfigDict(strict=True)).validate_python(value)
    except ValidationError as error:
        first, *others = error.errors()
        # several types may be allowed, each of which says why the value is not of it
        why = [first["msg"], *(other["msg"] for other in others if _place(other) == _place(first))]
        raise ConfigError(f"{key}{_place(first)}: {'; or '.join(dict.fromkeys(why))}; given {value!r}") from None


def _place(error: Any) -> str:
    """Return where in a list an error is, with a dot before it; empty if it is not in one."""
    index = next((number for number, name in enumerate(error["loc"]) if isinstance(name, int)), None)
    return "" if index is None else f".{'.'.join(map(str, error['loc'][index:]))}"
