"""The options of all commands: type and range, a line of help, and what each decides; and the check of a config."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError
from pydantic.fields import FieldInfo

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
WeightKind = Literal["raw", "average", "ema"]
Checkpoint = Literal["best", "last", "average"]
Strategy = Literal["auto", "ddp", "fsdp", "ddp_find_unused_parameters_false", "ddp_find_unused_parameters_true"]


def option(help: str | None = None, decides: Decides | None = None, **further: Any) -> Any:
    """Return what is said of an option beside its type, as pydantic's ``Field``.

    Args:
        help: a line; None if the group's yaml files say it.
        decides: None: what the options around it decide.
        further: its default, its range, and what else ``Field`` takes.
    """
    return Field(description=help, json_schema_extra={"decides": decides}, **further)


class Section(BaseModel):
    """Options under one key; nothing changes them, and no other key is taken."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    @classmethod
    def of(cls, values: Mapping[str, Any], place: str = "") -> Self:
        """Return the section with values as plain data.

        Args:
            values: by key.
            place: of the section, with a dot at its end, for messages.

        Raises:
            ConfigError: names the key, what was given and what is allowed.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(f"{place}{_refusal(error, values)}") from None

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

    target: str = option(alias="_target_")

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an argument, whose type is that of the signature."""


class MixedCorpus(Section):
    """An entry of ``data.sources``."""

    recipe: str = option(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")
    name: CorpusName | None = None
    source: Source | None = None
    columns: Columns | None = None
    weight: Annotated[float, Field(ge=0.001, le=1000)] | None = None
    prepare: dict[str, Any] | None = None


class Init(Section):
    """``init``: the model to start from."""

    path: Name | None = option(
        "weights to start from: a run, a checkpoint, the pretrained.pt of an icefall Zipformer, or a folder of "
        "transformers, whose CTC head and tokenizer are used"
    )
    weights: WeightKind = option("weights of the run to start from: raw, average, or ema")
    keep_tokenizer: bool | None = option(
        "true: use the source's tokenizer; false: make one from the recipe's transcripts; null: the source's, if "
        "it can spell them"
    )
    freeze: list[str] = option("regular expressions: a parameter whose name contains a match is not trained")


class Storage(Section):
    """``data.storage``: how prepared audio or features are stored."""

    kind: Literal["files", "shar"] = option(
        "files: read from their place in the corpus; shar: write tar shards, which lhotse can read too"
    )
    dir: Place | None = option(
        "folder of the shards (may be on a network disk): a new one, or that of an interrupted call"
    )
    audio: Literal["flac", "original", "opus"] = option(
        "audio in shards: flac, original (copies whole files, such as mp3), or opus (lossy)"
    )


class Data(Section):
    """``data``: a corpus, and how its cuts become batches."""

    corpus: CorpusName = option("set by the recipe")
    prepare: Target | None = option("set by the recipe: a function that returns its manifests")
    sampling_rate_hz: int = option("of the audio; audio with other rates is resampled")
    num_features: int = option("features per frame of a corpus without audio (features=precomputed)")
    by_corpus: bool = option("true: choose sampling rate, batches and updates by the corpus, unless they are given")
    vocab_size: int = option("of subword tokenizers, including blank and unknown")
    source: Source | None = option(
        "a copy of the corpus, [train.tsv, dev.tsv] or {train: a.tsv, test: [b.tsv, c.tsv]}; null: the recipe makes it"
    )
    columns: Columns | None = option(
        "column names of tables, if the documentation does not list them: {audio: my_path, text: my_text}"
    )
    sources: Annotated[list[MixedCorpus], Field(min_length=1)] | None = option(
        "several corpora: [{recipe: fsdd/transformer_ctc, source: PATH, weight: 0.7}, …]; without weights: by size"
    )
    dir: Place = option("folder of prepared data", "place")
    storage: Storage = option("of prepared audio or features; data.storage=shar is data.storage.kind=shar")
    num_jobs: PositiveInt | None = option(
        "processes that prepare data; null: all available cores; does not change the data", "speed"
    )
    max_unreadable: Fraction = option(
        "fraction of unreadable utterances in an epoch that ends the run; one alone never does", "place"
    )
    transcripts_lm: int = option(
        "order of an n-gram model of the training transcripts, used to decode the test sets; 0: none", ge=0
    )
    text: Target
    scoring_unit: Literal["word", "character", "nonspace-character"] = option(
        "character: error rates count characters (CER), for scripts without spaces; spaces that exist count"
    )
    limits: Target
    batch: Target
    workers: Target = option(decides="speed")


class Augment(Section):
    """``augment``."""

    audio: Target | None
    features: Target | None
    copies: PositiveInt | Annotated[list[PositiveInt], Field(min_length=2, max_length=2)] = option(
        "differently augmented copies of an utterance in a micro-batch, which has as many times fewer utterances; "
        "[1, 8]: rising over the run from 1 to 8",
        default=1,
    )


class Trainer(Target):
    """``trainer``: options of Lightning's Trainer, whose others are its own to check, and some of ours.

    What Lightning would take, and a run could not keep its promises with, is left out.
    """

    accelerator: Literal["cpu", "gpu", "cuda", "auto"] = option("cpu, gpu, cuda, or auto", default="auto")
    devices: int | str | list[int] | None = option("processes, one for each GPU", "result", default=None)
    num_nodes: PositiveInt = option("machines, for example with trainer=slurm", "result", default=1)
    # others start processes in which a run cannot be resumed
    strategy: Target | Strategy | None = option(
        "fsdp: weights and statistics are divided over processes", "speed", default=None
    )
    replicate: PositiveInt = option(
        "of fsdp: groups of processes that each hold the whole model, such as machines", "speed", default=1
    )
    shard: PositiveInt | None = option("of fsdp: processes of a group; null: all of them", "speed", default=None)
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] | None = option(
        "32-true, 16-mixed, or bf16-mixed", default="32-true"
    )
    max_steps: PositiveInt = option("updates")
    max_epochs: PositiveInt | Literal[-1] | None = option("if given, converted to max_steps", default=None)
    accumulate_grad_batches: PositiveInt = option("micro-batches per update", default=1)
    gradient_clip_val: Annotated[float, Field(ge=0)] | None = option(
        "limit of the gradient norm, in nats per token", default=None
    )
    step_in_backward: bool | None = option(
        "true: each parameter steps as soon as it has a gradient, which is then freed; no clipping",
        "speed",
        default=False,
    )
    compile: bool | None = option(
        "true: torch compiles the layers of the encoder before the first update", default=False
    )
    # CUDA graphs pad batches, so that masks differ
    cuda_graphs: bool | Literal["updates"] | None = option(
        "true: a GPU replays passes of the encoder from CUDA graphs; updates: also the optimizer's updates",
        "sample",
        default=False,
    )
    val_check_interval: PositiveInt = option("updates between validations")
    check_val_every_n_epoch: None = None
    deterministic: bool | Literal["warn"] | None = option(
        "true on a GPU: the same bits every time; CTC is then computed on the CPU", default=False
    )
    peer_timeout_s: PositiveInt | None = option(
        "seconds to wait for another process that is silent; null: 30 min (gloo), 10 min (NCCL)", "speed", default=None
    )
    async_checkpoints: bool | None = option("true: training continues while one is written", "speed", default=False)
    log_every_n_steps: PositiveInt = option(decides="place", default=1)
    enable_progress_bar: bool | None = option(
        "Lightning's bar; callbacks.progress prints lines instead", "place", default=False
    )


class Tuned(OpenSection):
    """``sweep.tuned``: what a sweep that tunes systems tells its jobs.

    Attributes:
        system: its name.
        study: in which its settings were found, of so many ``studies``.
        keys: that were tuned.
    """

    system: str | None = None
    study: int | None = None
    studies: int = 1
    keys: list[str] = []


class Sweep(OpenSection):
    """``sweep``: how a multirun runs; its kinds have further options."""

    name: Any = option("folder below runs/; the same name again resumes the sweep; null: date and time", default=None)
    gpus_per_job: PositiveInt | None = option(
        "for jobs that run at the same time on one machine; null: each job sees all GPUs", default=None
    )
    jobs_per_gpu: PositiveInt | None = option("jobs that share a GPU, for small models; null: 1", default=None)
    target_wer: PartialFraction | None = option(
        "WER on dev as a fraction, set before the runs: asr-compare says when each system reached it", default=None
    )
    looks: list[PositiveInt] = option(
        "of sweep=looks: numbers of seeds after which systems are compared, and only open ones are trained on",
        default=[],
    )
    swept: list[str] = []
    tuned: Tuned | None = None


class Encoder(Target):
    """``encoder``: what differs from its class's other options."""

    gradient_checkpointing: bool = option(decides="speed", default=False)
    model_folder: str | None = option(decides="place", default=None)


class SourceOptions(Section):
    """What a run that starts from the weights of another one asks of the other's options."""

    features: Target
    encoder: Encoder | None = None


class ModelOptions(Section):
    """What decodes: the part of a run's options that a checkpoint is decoded by."""

    data: Data
    features: Target
    augment: Augment
    encoder: Encoder
    head: Target
    decoder: Target | None = None
    seed: Seed = option("of initial weights, data order, augmentation and dropout", "sample")


class ParameterRules(Target):
    """``parameter_rules``."""

    rules: list[dict[str, Any]] | None = None


class SavedTrainer(OpenSection):
    """``trainer`` of a `SavedRun`."""

    max_steps: int | None = None
    max_epochs: int | None = None


class SavedOptimizer(OpenSection):
    """``optimizer`` of a `SavedRun`."""

    target: str | None = option(default=None, alias="_target_")
    lr: Any = None


class SavedData(OpenSection):
    """``data`` of a `SavedRun`."""

    scoring_unit: Literal["word", "character", "nonspace-character"] = "word"


class SavedRun(OpenSection):
    """What is asked of the config of a run that may be of another version; all else is kept as it is."""

    seed: int
    weights: str
    decode: list[str] = option(min_length=1)
    decode_test: bool
    callbacks: dict[str, Target | None] | None
    data: SavedData = SavedData()
    optimizer: SavedOptimizer = SavedOptimizer()
    trainer: SavedTrainer = SavedTrainer()
    sweep: Sweep = Sweep()


class RunOptions(ModelOptions):
    """``asr-train``."""

    tokenizer: Target
    parameter_rules: ParameterRules
    optimizer: Target
    schedule: Target
    trainer: Trainer
    logger: dict[str, Target | None] | None = option(decides="place", default=None)
    sweep: Sweep = option(decides="place")
    callbacks: dict[str, Target | None] = option(decides="result")
    init: Init = option("init=PATH is init.path=PATH", "result")
    run_dir: Place | None = option("where the run is written; null: runs/<recipe>/<date_time>", "this_start")
    resume: Place | None = option("folder of an interrupted run; its own config is used", "this_start")
    allow_changes: bool = option("resume although the config or the data have changed", "this_start")
    resume_logger: bool = option(
        "resume: send metrics to the project and entity that are named in the run's folder", "this_start"
    )
    trust: list[Name] = option("resume: trusted packages, whose classes the run's folder may name", "this_start")
    recipes_dir: Place | None = option(
        "a folder with your own recipes, <corpus>/*.yaml; Python code in it is run", "this_start"
    )
    torch_threads: PositiveInt | None = option("null: cores minus loader workers", "speed")
    decode_test: bool = option("false: do not decode the test sets, as when tuning", "speed")
    best_lr: dict[str, Positive] = option(
        "of each optimizer, if a recipe has a better one than the usual; optimizer.lr=… overrides it"
    )
    weights: WeightKind = option("weights that decode the test sets: raw, average, or ema", "result")
    decode: list[Checkpoint] = option(
        "checkpoints to decode: best, last, average (of the last third of training); the first is the result",
        "result",
        min_length=1,
    )
    find_batch_size: bool = option(
        "true: measure how many seconds of audio fit into a GPU, propose data.batch, and exit", "this_start"
    )


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
    list[Name], option("packages whose classes the run may name: [mypkg]; WERDICT_TRUST=mypkg does the same")
]
MaxSegment = Annotated[
    Positive | None, option("longer audio is cut at pauses; null: the 95th percentile of the training durations")
]


Printed = Annotated[OutputFormat, option("table, or json (also --json): one document on standard output, for programs")]


class Base(Section):
    """``encoder`` of a run that holds only a part of its pretrained model."""

    model: Place | None = option("folder of the run's pretrained model, if it is elsewhere now")


class OfRun(Section):
    """What is done with a run."""

    run: Place = option("a run's folder, or a checkpoint")
    trust: Trust
    encoder: Base
    weights: WeightKind = option(
        "raw; average: their mean over about the last third of training; ema: their exponential moving average"
    )
    average_since: int | None = option(
        "start the average after this update, which must have a checkpoint; 0: from the beginning"
    )


class Reading(OfRun):
    """Audio is read in batches."""

    batch_duration_s: Positive = option("seconds of audio in a batch")
    num_workers: NonNegativeInt = option("processes that read audio; 0: this one")
    torch_threads: PositiveInt | None = option("null: cores minus loader workers")


class Sets(Section):
    """Which utterances are read."""

    manifest: Places | None = option(
        "a TSV (audio, text), a cuts manifest, a folder of manifests, or a list; null: the run's test sets"
    )
    name: FileName | None = option("name of the set in file names; null: the manifest's name")


class Scoring(Section):
    """``scoring``."""

    normalize: Literal["none", "basic", "english"] = option(
        "texts before they are scored: none; basic: lower case, no punctuation; english: Whisper's rules"
    )


class Evaluate(Reading, Sets):
    """``asr-evaluate``."""

    output_dir: Place | None = option("null: <run>/decode/<date_time>")
    decoder: Target | None = None
    tune: bool | Place = option(
        "true: first choose the decoder's weights on the run's dev sets; or a manifest to choose them on"
    )
    scoring: Scoring
    output_format: Printed


class Transcribe(Reading):
    """``asr-transcribe``."""

    decoder: Target | None = None
    audio: Places = option("a file, a folder with its subfolders, a pattern like 'calls/*.wav', or a list of them")
    channels: Literal["first", "each"] = option("first: the first channel of each file; each: all channels")
    max_segment_s: MaxSegment
    output: Place | None = option("a file to write; null: the terminal")
    output_dir: Place | None = option("or a folder, with files for each recording; finished recordings are skipped")
    output_format: Format | Annotated[list[Format], Field(min_length=1)] = option(
        "tsv (path and text), txt, json (times and confidence of words), ctm, srt, vtt; or a list of these"
    )


class Align(Reading, Sets):
    """``asr-align``."""

    output_dir: Place | None = option("null: <run>/align/<date_time>")
    output_format: AlignFormat | Annotated[list[AlignFormat], Field(min_length=1)] = option(
        "ctm, json (a line for each utterance), textgrid (a file for each utterance), or a list of these"
    )


class Export(OfRun):
    """``asr-export``."""

    output: Place = option("a folder to write")
    format: Literal["onnx", "torch", "safetensors", "huggingface"] = option(
        "onnx: for onnxruntime and sherpa-onnx; torch: TorchScript; safetensors: the weights alone; huggingface: a "
        "fine-tuned CTC model for transformers"
    )
    quantize: Literal["int8"] | None = option("int8: also write a file with 8-bit weights (format=onnx)")
    streaming: bool = option("true: takes chunks of a causal Zipformer, instead of whole utterances")
    test_wav: bool = option("true: add a recording of the run's test set and its transcript, to try the export")
    model_type: Literal["ctc", "transducer"] | None = option(
        "ctc or transducer, if the run has both; null: what its decoder searches"
    )


class LM(Section):
    """``asr-lm``."""

    run: Place = option("a run's folder, or a checkpoint: text is normalized and tokenized as there")
    trust: Trust
    text: Places | None = option("a file with a sentence in each line, plain or .gz, a pattern, or a list of them")
    transcripts: bool = option("true: also use the transcripts that the run was trained on")
    units: Literal["tokens", "words"] = option("tokens of the run's tokenizer, or words")
    order: PositiveInt = option("of the longest n-grams")
    output: Place = option("an ARPA file to write; compressed if its name ends with .gz")


class Stream(OfRun):
    """``asr-stream``."""

    torch_threads: PositiveInt | None = option("more threads rarely help with so little audio at a time")
    audio: Place = option(
        "a file; -: samples on standard input, 16-bit little-endian, one channel (arecord -f S16_LE -t raw)"
    )
    sampling_rate_hz: int = option("of the samples on standard input")
    packet_s: float = option("seconds of audio that are read at a time", ge=0.01, le=10)
    at_own_pace: bool = option("true: read a file as fast as it was spoken")
    endpoint_s: float = option("seconds without a word after which a line ends", ge=0.01, le=3600)


class Demo(OfRun):
    """``asr-demo``."""

    torch_threads: PositiveInt | None = option("null: all cores")
    decoder: Target | None = None
    port: Annotated[int, Field(ge=0, le=65535)] | None = option("of 127.0.0.1; null: the first free port from 7860 on")
    max_upload_mb: Positive = option("of a recording")
    max_segment_s: MaxSegment
    endpoint_s: Positive = option("seconds without a word after which a line of live text ends")


class Convert(ModelOptions):
    """``asr-convert``."""

    model: Place | None = option("exp/pretrained.pt, as icefall's export.py makes it")
    bpe_model: Place | None = option("data/lang_bpe_500/bpe.model: its tokenizer")
    run: Place | None = option("or a run: pretrained model and adapters, or the parts of trainer=fsdp, in one file")
    trust: Trust
    output: Place = option("a checkpoint to write, *.ckpt")
    seed: Seed = option("of the weights that are replaced")


class Compare(Section):
    """``asr-compare``."""

    sweep: Place | None = option("name of a sweep: all finished runs in runs/<name>")
    runs: Places | None = option("or folders of runs: 'runs/fsdd/*/*', [runs/a,runs/b]")
    results: Places | None = option(
        "or files of results of any toolkit: 'results/*.json', [a.trn,b.trn]; the documentation has a page on them"
    )
    pattern: Name | None = option("what the parts of their paths are: 'exp/{system}/seed{seed}/{set}/hyp.trn'")
    format: Name | None = option(
        "of the results: table, icefall, nemo, trn, speechbrain, wenet, whisper, meeteval, kaldi; null: detected"
    )
    references: Place | None = option(
        "file of the reference texts, if the results have none; its name may contain {system}, {seed} and {set}"
    )
    columns: dict[
        Literal["id", "reference", "hypothesis", "system", "seed", "set", "speaker", "words", "errors"], Name | None
    ] = option("names of columns or keys in the results, if they differ: columns.hypothesis=pred_text_canary")
    id_pattern: Regex | None = option(
        "a regular expression that finds in each id what is compared, if the ids of systems differ"
    )
    allow: list[Literal["missing", "duplicates", "references", "empty"]] = option(
        "problems that are accepted and counted, not refused: missing, duplicates, references (that differ), empty"
    )
    unit: Literal["word", "character", "nonspace-character"] = option(
        "what is counted in texts of results; spaces between words are characters, but not nonspace ones"
    )
    scoring: Scoring
    by: list[Name] = option(
        "columns of the results, for example [accent]: the utterances of each value are also compared separately"
    )
    training_texts: Place | None = option(
        "a text file; utterances whose references occur in it are compared separately"
    )
    baseline: Name = option(
        "system that all others are compared with; auto: adamw, if it exists, else the first system"
    )
    pairs: Literal["baseline", "all"] = option(
        "pairs that are tested; all: each pair too, as a further question that needs larger differences"
    )
    scale: Literal["ratio", "points"] = option(
        "of differences: ratios of geometric means, or points; choose it before you see the results"
    )
    looks: list[PositiveInt] = option(
        "numbers of seeds after which you planned to compare: [5,10]; each look has its part of the level"
    )
    target_wer: PartialFraction | None = option(
        "WER on dev as a fraction (0.2 is 20 %): show when each system reached it; null: sweep.target_wer of the runs"
    )
    minutes: Positive | None = option(
        "minutes of training after which WERs on dev are compared; null: the time of the fastest run"
    )
    speakers: Place | None = option(
        "a file that names the speaker of each utterance, like Kaldi's utt2spk; null: from the data"
    )
    speaker_pattern: Regex | None = option(
        "or a regular expression that finds the speaker in an utterance's id: '^[^-]+'"
    )
    level: PartialFraction = option("of each question: which may be best, and which differ from the baseline")
    out: Place | None = option("null: runs/<sweep>/comparison, or runs/comparison/<date_time>")
    output_format: Printed
    logger: dict[str, dict[str, Any] | None] | None = None


class Runs(Section):
    """``asr-runs``."""

    folder: Places = option("folder that is searched for runs, at any depth; or a list")
    sort: Literal[
        "started", "run", "recipe", "system", "seed", "updates", "wer_dev", "wer_test", "status", "size_mb"
    ] = option(
        "started, recipe, system, seed, updates, wer_dev, wer_test, status, size_mb or run; runs without it come last"
    )
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
def fields(options: Any) -> dict[str, tuple[Any, FieldInfo]]:
    """Return type and `option` of each option of a section by its key; nothing for another type."""
    if not (isinstance(options, type) and issubclass(options, Section)):
        return {}
    return {
        field.alias or name: (
            Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation,
            field,
        )
        for name, field in options.model_fields.items()
    }


def options_of(options: Any, prefix: str = "") -> Iterator[tuple[str, Any, str | None]]:
    """Yield dotted key, type and help of each option, those of nested ones after their parent."""
    for name, (kind, field) in fields(options).items():
        if name != "_target_":
            yield f"{prefix}{name}", kind, field.description
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
        table, field = fields(table)[name]
        extra: Any = field.json_schema_extra or {}
        decided = extra.get("decides") or decided
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
        return f"{key} is missing{': it must be the name of a class' if is_class else ', and has no default'}"
    # several types may be allowed, each of which says why the value is not of it
    return f"{key}: {'; or '.join(dict.fromkeys(problem['msg'] for problem in same))}; given {same[0]['input']!r}"


def texts(value: object) -> list[str]:
    """Return a list that may be given as one of its items."""
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
