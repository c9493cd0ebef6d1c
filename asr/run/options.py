"""The options of all commands: type and range, a line of help, and what each decides; and the check of a config."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from asr.ranges import Fraction, PartialFraction, Positive, Seed, Text
from werdict.console import OutputFormat
from werdict.errors import ConfigError, did_you_mean
from werdict.files import get_nested, is_within

Decides = Literal["updates", "result", "sample", "speed", "place", "this_start"]
"""What an option decides.

- updates: every update. Another value makes another system; at a resumption it has to be accepted.
- result: the result, but not how updates continue. Another value makes another system; at a resumption it is free.
- sample: which sample of a system a run is. Runs of one system differ in it; at a resumption it has to be accepted.
- speed, place: how fast, and where things are or how much is shown. Free at a resumption; runs are one system.
- this_start: only what this start of the program does; it is never taken from a run's folder.
"""

Name = Annotated[str, Field(min_length=1, pattern=r"\S")]
Place = Name | int  # a folder may be called 2024, which Hydra reads as a number
Source = (
    Name | Annotated[list[Name], Field(min_length=1)] | Annotated[dict[str, Name | list[Name]], Field(min_length=1)]
)
Columns = dict[Literal["audio", "text", "speaker", "start", "end", "duration", "language", "split", "id"], Name]
CorpusName = Annotated[str, Field(pattern=r"^\w[\w.+-]*$")]  # names a folder below data.dir
Options = TypeVar("Options", bound="Section")
Weights = Literal["raw", "average", "ema"]
Checkpoint = Literal["best", "last", "average"]


@dataclass(frozen=True)
class Option:
    """What is said of an option beside its type.

    Attributes:
        help: a line; empty if the group's yaml files say it.
        decides: None: what the options around it decide.
    """

    help: str = ""
    decides: Decides | None = None


class Section(BaseModel):
    """Options under one key; nothing changes them, and no other key is taken."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the section with values as plain data.

        Raises:
            ConfigError: names the key, what was given and what is allowed.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(_refusal(error, values)) from None

    @classmethod
    def known(cls, values: Mapping[str, Any], place: str, text: str) -> dict[str, Any]:
        """Return values without keys that only interpolations in a text read; refuse those that nothing reads."""
        keys, known = fields(cls), {}
        for key, value in values.items():
            if key in keys or issubclass(cls, OpenSection):
                is_section = key in keys and fields(keys[key][0]) and isinstance(value, Mapping)
                known[key] = keys[key][0].known(value, f"{place}{key}.", text) if is_section else value
            elif not re.search(rf"\$\{{[^}}]*\b{re.escape(key)}\b", text):
                where = f"in {place.rstrip('.')}" if place else "at the top level"
                allowed = f"{did_you_mean(key, keys)} Allowed: {', '.join(keys)}."
                raise ConfigError(f"{place}{key}: there is no key {key!r} {where}.{allowed}")
        return known

    def updated(self, **values: Any) -> Self:
        """Return the section with other values, checked as the first ones were."""
        return type(self).model_validate({**self.plain(), **values})

    def plain(self) -> dict[str, Any]:
        """Return the section as plain data, with the options that were given alone."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class OpenSection(Section):
    """A section that takes further keys."""

    model_config = ConfigDict(extra="allow")


class Target(OpenSection):
    """The choice of a group: a class or function, and its arguments, which are checked against its signature."""

    target: Annotated[str, Field(alias="_target_")]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an argument, whose type is that of the signature."""


class MixedCorpus(Section):
    """An entry of ``data.sources``."""

    recipe: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")]
    name: CorpusName | None = None
    source: Source | None = None
    columns: Columns | None = None
    weight: Annotated[float, Field(ge=0.001, le=1000)] | None = None
    prepare: dict[str, Any] | None = None


class Init(Section):
    """``init``: the model to start from."""

    path: Annotated[
        Name | None,
        Option(
            "weights to start from: a run, a checkpoint, the pretrained.pt of an icefall Zipformer, or a folder of "
            "transformers, whose CTC head and tokenizer are used"
        ),
    ]
    weights: Annotated[Weights, Option("weights of the run to start from: raw, average, or ema")]
    keep_tokenizer: Annotated[
        bool | None,
        Option(
            "true: use the source's tokenizer; false: make one from the recipe's transcripts; null: the source's, if "
            "it can spell them"
        ),
    ]
    freeze: Annotated[list[str], Option("regular expressions: a parameter whose name contains a match is not trained")]


class Storage(Section):
    """``data.storage``: how prepared audio or features are stored."""

    kind: Annotated[
        Literal["files", "shar"],
        Option("files: read from their place in the corpus; shar: write tar shards, which lhotse can read too"),
    ]
    dir: Annotated[
        Place | None,
        Option("folder of the shards (may be on a network disk): a new one, or that of an interrupted call"),
    ]
    audio: Annotated[
        Literal["flac", "original", "opus"],
        Option("audio in shards: flac, original (copies whole files, such as mp3), or opus (lossy)"),
    ]


class Data(Section):
    """``data``: a corpus, and how its cuts become batches."""

    corpus: Annotated[CorpusName, Option("set by the recipe")]
    prepare: Annotated[Target | None, Option("set by the recipe: a function that returns its manifests")]
    sampling_rate_hz: Annotated[int, Option("of the audio; audio with other rates is resampled")]
    num_features: Annotated[int, Option("features per frame of a corpus without audio (features=precomputed)")]
    by_corpus: Annotated[
        bool, Option("true: choose sampling rate, batches and updates by the corpus, unless they are given")
    ]
    vocab_size: Annotated[int, Option("of subword tokenizers, including blank and unknown")]
    source: Annotated[
        Source | None,
        Option(
            "a copy of the corpus, [train.tsv, dev.tsv] or {train: a.tsv, test: [b.tsv, c.tsv]}; "
            "null: the recipe makes it"
        ),
    ]
    columns: Annotated[
        Columns | None,
        Option("column names of tables, if docs/data.md does not list them: {audio: my_path, text: my_text}"),
    ]
    sources: Annotated[
        Annotated[list[MixedCorpus], Field(min_length=1)] | None,
        Option(
            "several corpora: [{recipe: fsdd/transformer_ctc, source: PATH, weight: 0.7}, …]; without weights: by size"
        ),
    ]
    dir: Annotated[Place, Option("folder of prepared data", "place")]
    storage: Annotated[Storage, Option("of prepared audio or features; data.storage=shar is data.storage.kind=shar")]
    num_jobs: Annotated[
        PositiveInt | None,
        Option("processes that prepare data; null: all available cores; does not change the data", "speed"),
    ]
    max_unreadable: Annotated[
        Fraction,
        Option("fraction of unreadable utterances in an epoch that ends the run; one alone never does", "place"),
    ]
    transcripts_lm: Annotated[
        int,
        Field(ge=0),
        Option("order of an n-gram model of the training transcripts, used to decode the test sets; 0: none"),
    ]
    text: Annotated[Target, Option()]
    scoring_unit: Annotated[
        Literal["word", "character", "nonspace-character"],
        Option("character: error rates count characters (CER), for scripts without spaces; spaces that exist count"),
    ]
    limits: Annotated[Target, Option()]
    batch: Annotated[Target, Option()]
    workers: Annotated[Target, Option("", "speed")]


class Augment(Section):
    """``augment``."""

    audio: Annotated[Target | None, Option()]
    features: Annotated[Target | None, Option()]
    copies: Annotated[
        PositiveInt | Annotated[list[PositiveInt], Field(min_length=2, max_length=2)],
        Option(
            "differently augmented copies of an utterance in a micro-batch, which has as many times fewer utterances; "
            "[1, 8]: rising over the run from 1 to 8"
        ),
    ] = 1


class Trainer(Target):
    """``trainer``: options of Lightning's Trainer, whose others are its own to check, and some of ours.

    What Lightning would take, and a run could not keep its promises with, is left out.
    """

    accelerator: Annotated[Literal["cpu", "gpu", "cuda", "auto"], Option("cpu, gpu, cuda, or auto")] = "auto"
    devices: Annotated[int | str | list[int] | None, Option("processes, one for each GPU", "result")] = None
    num_nodes: Annotated[PositiveInt, Option("machines, for example with trainer=slurm", "result")] = 1
    # others start processes in which a run cannot be resumed
    strategy: Annotated[
        Target
        | Literal["auto", "ddp", "fsdp", "ddp_find_unused_parameters_false", "ddp_find_unused_parameters_true"]
        | None,
        Option("fsdp: weights and statistics are divided over processes", "speed"),
    ] = None
    replicate: Annotated[
        PositiveInt, Option("of fsdp: groups of processes that each hold the whole model, such as machines", "speed")
    ] = 1
    shard: Annotated[PositiveInt | None, Option("of fsdp: processes of a group; null: all of them", "speed")] = None
    precision: Annotated[
        Literal["32-true", "16-mixed", "bf16-mixed"] | None, Option("32-true, 16-mixed, or bf16-mixed")
    ] = "32-true"
    max_steps: Annotated[PositiveInt, Option("updates")]
    max_epochs: Annotated[PositiveInt | Literal[-1] | None, Option("if given, converted to max_steps")] = None
    accumulate_grad_batches: Annotated[PositiveInt, Option("micro-batches per update")] = 1
    gradient_clip_val: Annotated[
        Annotated[float, Field(ge=0)] | None, Option("limit of the gradient norm, in nats per token")
    ] = None
    step_in_backward: Annotated[
        bool | None,
        Option("true: each parameter steps as soon as it has a gradient, which is then freed; no clipping", "speed"),
    ] = False
    compile: Annotated[
        bool | None, Option("true: torch compiles the layers of the encoder before the first update")
    ] = False
    # CUDA graphs pad batches, so that masks differ
    cuda_graphs: Annotated[
        bool | Literal["updates"] | None,
        Option(
            "true: a GPU replays passes of the encoder from CUDA graphs; updates: also the optimizer's updates",
            "sample",
        ),
    ] = False
    val_check_interval: Annotated[PositiveInt, Option("updates between validations")]
    check_val_every_n_epoch: Annotated[None, Option()] = None  # validations are counted in updates
    deterministic: Annotated[
        bool | Literal["warn"] | None,
        Option("true on a GPU: the same bits every time; CTC is then computed on the CPU"),
    ] = False
    peer_timeout_s: Annotated[
        PositiveInt | None,
        Option("seconds to wait for another process that is silent; null: 30 min (gloo), 10 min (NCCL)", "speed"),
    ] = None
    async_checkpoints: Annotated[bool | None, Option("true: training continues while one is written", "speed")] = False
    log_every_n_steps: Annotated[PositiveInt, Option("", "place")] = 1
    enable_progress_bar: Annotated[
        bool | None, Option("Lightning's bar; callbacks.progress prints lines instead", "place")
    ] = False


class Tuned(OpenSection):
    """``sweep.tuned``: what a sweep that tunes systems tells its jobs.

    Attributes:
        system: its name.
        study: in which its settings were found, of so many ``studies``.
        keys: that were tuned.
    """

    system: Annotated[str | None, Option()] = None
    study: Annotated[int | None, Option()] = None
    studies: Annotated[int, Option()] = 1
    keys: Annotated[list[str], Option()] = []


class Sweep(OpenSection):
    """``sweep``: how a multirun runs; its kinds have further options."""

    name: Annotated[Any, Option("folder below runs/; the same name again resumes the sweep; null: date and time")] = (
        None
    )
    gpus_per_job: Annotated[
        PositiveInt | None, Option("for jobs that run at the same time on one machine; null: each job sees all GPUs")
    ] = None
    jobs_per_gpu: Annotated[PositiveInt | None, Option("jobs that share a GPU, for small models; null: 1")] = None
    target_wer: Annotated[
        PartialFraction | None,
        Option("WER on dev as a fraction, set before the runs: asr-compare says when each system reached it"),
    ] = None
    looks: Annotated[
        list[PositiveInt],
        Option("of sweep=looks: numbers of seeds after which systems are compared, and only open ones are trained on"),
    ] = []
    swept: Annotated[list[str], Option()] = []  # keys, told to each job
    tuned: Annotated[Tuned | None, Option()] = None


class Encoder(Target):
    """``encoder``: what differs from its class's other options."""

    gradient_checkpointing: Annotated[bool, Option("", "speed")] = False
    model_folder: Annotated[str | None, Option("", "place")] = None


class SourceOptions(Section):
    """What a run that starts from the weights of another one asks of the other's options."""

    features: Annotated[Target, Option()]
    encoder: Annotated[Encoder | None, Option()] = None


class ModelOptions(Section):
    """What decodes: the part of a run's options that a checkpoint is decoded by."""

    data: Annotated[Data, Option()]
    features: Annotated[Target, Option()]
    augment: Annotated[Augment, Option()]
    encoder: Annotated[Encoder, Option()]
    head: Annotated[Target, Option()]
    decoder: Annotated[Target | None, Option()] = None
    seed: Annotated[Seed, Option("of initial weights, data order, augmentation and dropout", "sample")]


class ParameterRules(Target):
    """``parameter_rules``."""

    rules: Annotated[list[dict[str, Any]] | None, Option()] = None


class SavedTrainer(OpenSection):
    """``trainer`` of a `SavedRun`."""

    max_steps: Annotated[int | None, Option()] = None
    max_epochs: Annotated[int | None, Option()] = None


class SavedOptimizer(OpenSection):
    """``optimizer`` of a `SavedRun`."""

    target: Annotated[str | None, Field(alias="_target_")] = None
    lr: Annotated[Any, Option()] = None


class SavedData(OpenSection):
    """``data`` of a `SavedRun`."""

    scoring_unit: Annotated[Literal["word", "character", "nonspace-character"], Option()] = "word"


class SavedRun(OpenSection):
    """What is asked of the config of a run that may be of another version; all else is kept as it is."""

    seed: Annotated[int, Option()]
    weights: Annotated[str, Option()]
    decode: Annotated[list[str], Field(min_length=1)]
    decode_test: Annotated[bool, Option()]
    callbacks: Annotated[dict[str, Target | None] | None, Option()]
    data: Annotated[SavedData, Option()] = SavedData()
    optimizer: Annotated[SavedOptimizer, Option()] = SavedOptimizer()
    trainer: Annotated[SavedTrainer, Option()] = SavedTrainer()
    sweep: Annotated[Sweep, Option()] = Sweep()


class RunOptions(ModelOptions):
    """``asr-train``."""

    tokenizer: Annotated[Target, Option()]
    parameter_rules: Annotated[ParameterRules, Option()]
    optimizer: Annotated[Target, Option()]
    schedule: Annotated[Target, Option()]
    trainer: Annotated[Trainer, Option()]
    logger: Annotated[dict[str, Target | None] | None, Option("", "place")] = None
    sweep: Annotated[Sweep, Option("", "place")]
    callbacks: Annotated[dict[str, Target | None], Option("", "result")]
    init: Annotated[Init, Option("init=PATH is init.path=PATH", "result")]
    run_dir: Annotated[Place | None, Option("where the run is written; null: runs/<recipe>/<date_time>", "this_start")]
    resume: Annotated[Place | None, Option("folder of an interrupted run; its own config is used", "this_start")]
    allow_changes: Annotated[bool, Option("resume although the config or the data have changed", "this_start")]
    resume_logger: Annotated[
        bool, Option("resume: send metrics to the project and entity that are named in the run's folder", "this_start")
    ]
    trust: Annotated[
        list[Name], Option("resume: trusted packages, whose classes the run's folder may name", "this_start")
    ]
    recipes_dir: Annotated[
        Place | None,
        Option("a folder with your own recipes, <corpus>/*.yaml; Python code in it is run", "this_start"),
    ]
    torch_threads: Annotated[PositiveInt | None, Option("null: cores minus loader workers", "speed")]
    decode_test: Annotated[bool, Option("false: do not decode the test sets, as when tuning", "speed")]
    best_lr: Annotated[
        dict[str, Positive],
        Option("of each optimizer, if a recipe has a better one than the usual; optimizer.lr=… overrides it"),
    ]
    weights: Annotated[Weights, Option("weights that decode the test sets: raw, average, or ema", "result")]
    decode: Annotated[
        list[Checkpoint],
        Field(min_length=1),
        Option(
            "checkpoints to decode: best, last, average (of the last third of training); the first is the result",
            "result",
        ),
    ]
    find_batch_size: Annotated[
        bool,
        Option("true: measure how many seconds of audio fit into a GPU, propose data.batch, and exit", "this_start"),
    ]


MAX_NAME_BYTES = 100  # of a set, whose files have longer names; file systems allow 255


def _compiles(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


Regex = Annotated[str, AfterValidator(_compiles)]
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


Printed = Annotated[OutputFormat, Option("table, or json (also --json): one document on standard output, for programs")]


class Base(Section):
    """``encoder`` of a run that holds only a part of its pretrained model."""

    model: Annotated[Place | None, Option("folder of the run's pretrained model, if it is elsewhere now")]


class OfRun(Section):
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


class Sets(Section):
    """Which utterances are read."""

    manifest: Annotated[
        Places | None,
        Option("a TSV (audio, text), a cuts manifest, a folder of manifests, or a list; null: the run's test sets"),
    ]
    name: Annotated[FileName | None, Option("name of the set in file names; null: the manifest's name")]


class Scoring(Section):
    """``scoring``."""

    normalize: Annotated[
        Literal["none", "basic", "english"],
        Option("texts before they are scored: none; basic: lower case, no punctuation; english: Whisper's rules"),
    ]


class Evaluate(Reading, Sets):
    """``asr-evaluate``."""

    output_dir: Annotated[Place | None, Option("null: <run>/decode/<date_time>")]
    decoder: Target | None = None
    tune: Annotated[
        bool | Place,
        Option("true: first choose the decoder's weights on the run's dev sets; or a manifest to choose them on"),
    ]
    scoring: Scoring
    output_format: Printed


class Transcribe(Reading):
    """``asr-transcribe``."""

    decoder: Target | None = None
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


class LM(Section):
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
    decoder: Target | None = None
    port: Annotated[
        Annotated[int, Field(ge=0, le=65535)] | None, Option("of 127.0.0.1; null: the first free port from 7860 on")
    ]
    max_upload_mb: Annotated[Positive, Option("of a recording")]
    max_segment_s: MaxSegment
    endpoint_s: Annotated[Positive, Option("seconds without a word after which a line of live text ends")]


class Convert(ModelOptions):
    """``asr-convert``."""

    model: Annotated[Place | None, Option("exp/pretrained.pt, as icefall's export.py makes it")]
    bpe_model: Annotated[Place | None, Option("data/lang_bpe_500/bpe.model: its tokenizer")]
    run: Annotated[
        Place | None, Option("or a run: pretrained model and adapters, or the parts of trainer=fsdp, in one file")
    ]
    trust: Trust
    output: Annotated[Place, Option("a checkpoint to write, *.ckpt")]
    seed: Annotated[Seed, Option("of the weights that are replaced")]


class Compare(Section):
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
        Regex | None,
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
        PartialFraction | None,
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
        Regex | None,
        Option("or a regular expression that finds the speaker in an utterance's id: '^[^-]+'"),
    ]
    level: Annotated[PartialFraction, Option("of each question: which may be best, and which differ from the baseline")]
    out: Annotated[Place | None, Option("null: runs/<sweep>/comparison, or runs/comparison/<date_time>")]
    output_format: Printed
    logger: dict[str, dict[str, Any] | None] | None = None


class Runs(Section):
    """``asr-runs``."""

    folder: Annotated[Places, Option("folder that is searched for runs, at any depth; or a list")]
    sort: Annotated[
        Literal["started", "run", "recipe", "system", "seed", "updates", "wer_dev", "wer_test", "status", "size_mb"],
        Option(
            "started, recipe, system, seed, updates, wer_dev, wer_test, status, size_mb or run; runs without it come "
            "last"
        ),
    ]
    output_format: Printed


COMMANDS: dict[str, type[Section]] = {
    "train": RunOptions,
    "prepare": RunOptions,
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


@functools.cache
def fields(options: Any) -> dict[str, tuple[Any, Option]]:
    """Return type and `Option` of each option of a section by its key; nothing for another type."""
    if not (isinstance(options, type) and issubclass(options, Section)):
        return {}
    table = {}
    for name, field in options.model_fields.items():
        option = next((item for item in field.metadata if isinstance(item, Option)), Option())
        metadata = tuple(item for item in field.metadata if not isinstance(item, Option))
        table[field.alias or name] = Annotated[field.annotation, *metadata] if metadata else field.annotation, option
    return table


def options_of(options: Any, prefix: str = "") -> Iterator[tuple[str, Any, Option]]:
    """Yield dotted key, type and `Option` of each option, those of nested ones after their parent."""
    for name, (kind, option) in fields(options).items():
        if name != "_target_":
            yield f"{prefix}{name}", kind, option
            yield from options_of(kind, f"{prefix}{name}.")


@functools.cache
def decides(key: str) -> Decides:
    """Return what an option of ``asr-train`` decides."""
    table: Any = RunOptions
    decided: Decides = "updates"
    if is_within(key, ["callbacks.averaging"]):
        return decided  # averages of weights, which would be others from a resumption on
    for name in key.split("."):
        if name not in fields(table):
            break
        table, option = fields(table)[name]
        decided = option.decides or decided
    return decided


def has_effect(key: str) -> bool:
    """Return whether an option has an effect on what is trained, or on its result."""
    return decides(key) in ("updates", "result", "sample")


def checked_options(command: str, unresolved: Mapping[str, Any], resolved: Mapping[str, Any]) -> Any:
    """Return the options of a command; refuse keys that nothing reads, and values that an option does not take.

    Args:
        command: whose they are.
        unresolved: the config with interpolations: a key that one of them names is read.
        resolved: the same without.

    Raises:
        ConfigError: names the key, what was given and what is allowed.
    """
    options = COMMANDS[command]
    known = options.known(resolved, "", str(unresolved))
    for key, _, _ in options_of(options):
        if get_nested(known, *key.split(".")) == "???":
            raise ConfigError(f"{key} must be given: {key}=…")
    return options.of(known)


def _refusal(error: ValidationError, values: Any) -> str:
    """Return what is wrong with the first option that is refused."""
    problems: dict[str, list[Any]] = {}
    for problem in error.errors():
        keys: list[str] = []
        value = values
        for name in problem["loc"]:  # beside keys, types of a union
            if name in (range(len(value)) if isinstance(value, list) else value if isinstance(value, Mapping) else ()):
                value, keys = value[name], [*keys, str(name)]
        keys += map(str, problem["loc"][-1:] if problem["type"] == "missing" else ())
        problems.setdefault(".".join(keys), []).append(problem)
    key, same = next(iter(problems.items()))
    if same[0]["type"] == "missing":
        is_class = key.endswith("._target_")
        why = "it must be the name of a class" if is_class else "in the config: it cannot be removed"
        return f"{key} is missing{':' if is_class else ''} {why}"
    # several types may be allowed, each of which says why the value is not of it
    return f"{key}: {'; or '.join(dict.fromkeys(problem['msg'] for problem in same))}; given {same[0]['input']!r}"


def texts(value: object) -> list[str]:
    """Return a list that may be given as one of its items."""
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
