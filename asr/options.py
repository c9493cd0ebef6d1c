"""Ranges of options as types, and the options of ``asr-train``: type, a line of help, and what each decides.

What an option decides says what may change when a run is resumed, which runs are of one system, which jobs of a sweep
differ, and what a report shows as a difference from the recipe. An option that is not listed here, such as one of an
optimizer, decides the updates.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, StringConstraints

Decides = Literal["updates", "result", "sample", "speed", "place", "this_start"]
"""What an option decides.

- updates: every update. Another value makes another system; at a resumption it has to be accepted.
- result: the result, but not how updates continue. Another value makes another system; at a resumption it is free.
- sample: which sample of a system a run is. Runs of one system differ in it; at a resumption it has to be accepted.
- speed, place: how fast, and where things are or how much is shown. Free at a resumption; runs are one system.
- this_start: only what this start of the program does; it is never taken from a run's folder.
"""

# ranges, of arguments of classes too: values of a config are checked against the signature of what they build
Text = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) in (int, float) else value)]
"""A text that may look like a number, such as 2024, which Hydra then makes of it."""
Tag = Annotated[Text, StringConstraints(min_length=1, max_length=64)]  # of wandb, by its own limit

Probability = Annotated[float, Field(ge=0, lt=1)]  # of dropout: 1 would leave nothing
Share = Annotated[float, Field(ge=0, le=1)]
PartialShare = Annotated[float, Field(gt=0, lt=1)]  # some of it, not all: of a weighted sum both terms count

Name = Annotated[str, Field(min_length=1, pattern=r"\S")]
Place = Name | int  # a folder may be called 2024, which Hydra reads as a number
Source = (
    Name | Annotated[list[Name], Field(min_length=1)] | Annotated[dict[str, Name | list[Name]], Field(min_length=1)]
)
Columns = dict[Literal["audio", "text", "speaker", "start", "end", "duration", "language", "split", "id"], Name]
CorpusName = Annotated[str, Field(pattern=r"^\w[\w.+-]*$")]  # names a folder below data.dir
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what torch takes
Group = dict[str, Any]  # a choice of a group, whose keys are those of what it builds
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


class MixedCorpus(BaseModel):
    """An entry of ``data.sources``."""

    model_config = ConfigDict(extra="forbid", strict=True)
    recipe: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")]
    name: CorpusName | None = None
    source: Source | None = None
    columns: Columns | None = None
    weight: Annotated[float, Field(ge=0.001, le=1000)] | None = None
    prepare: Group | None = None


class Init(TypedDict):
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


class Storage(TypedDict):
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


class Data(TypedDict):
    """``data``: a corpus, and how its cuts become batches."""

    corpus: Annotated[CorpusName, Option("set by the recipe")]
    prepare: Annotated[Group | None, Option("set by the recipe: a function that returns its manifests")]
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
        Share, Option("fraction of unreadable utterances in an epoch that ends the run; one alone never does", "place")
    ]
    transcripts_lm: Annotated[
        int,
        Field(ge=0),
        Option("order of an n-gram model of the training transcripts, used to decode the test sets; 0: none"),
    ]
    text: Annotated[Group, Option()]
    scoring_unit: Annotated[
        Literal["word", "character", "nonspace-character"],
        Option("character: error rates count characters (CER), for scripts without spaces; spaces that exist count"),
    ]
    limits: Annotated[Group, Option()]
    batch: Annotated[Group, Option()]
    workers: Annotated[Group, Option("", "speed")]


class Augment(TypedDict):
    """``augment``."""

    audio: Annotated[Group | None, Option()]
    features: Annotated[Group | None, Option()]


class Trainer(TypedDict, total=False):
    """``trainer``: options of Lightning's Trainer, whose others are its own to check, and some of ours.

    What Lightning would take, and a run could not keep its promises with, is left out.
    """

    accelerator: Annotated[Literal["cpu", "gpu", "cuda", "auto"], Option("cpu, gpu, cuda, or auto")]
    devices: Annotated[int | str | list[int] | None, Option("processes, one for each GPU", "result")]
    num_nodes: Annotated[PositiveInt, Option("machines, for example with trainer=slurm", "result")]
    # other strategies shard the weights, or start processes in which a run cannot be resumed
    strategy: Annotated[
        Group | Literal["auto", "ddp", "ddp_find_unused_parameters_false", "ddp_find_unused_parameters_true"] | None,
        Option("", "speed"),
    ]
    precision: Annotated[Literal["32-true", "16-mixed", "bf16-mixed"], Option("32-true, 16-mixed, or bf16-mixed")]
    max_steps: Annotated[PositiveInt, Option("updates")]
    max_epochs: Annotated[PositiveInt | Literal[-1] | None, Option("if given, converted to max_steps")]
    accumulate_grad_batches: Annotated[PositiveInt, Option("micro-batches per update")]
    gradient_clip_val: Annotated[
        Annotated[float, Field(ge=0)] | None, Option("limit of the gradient norm, in nats per token")
    ]
    step_in_backward: Annotated[
        bool | None,
        Option("true: each parameter steps as soon as it has a gradient, which is then freed; no clipping", "speed"),
    ]
    compile: Annotated[bool | None, Option("true: torch compiles the layers of the encoder before the first update")]
    # CUDA graphs pad batches, so that masks differ
    capture: Annotated[
        bool | Literal["updates"] | None,
        Option(
            "true: a GPU replays passes of the encoder from CUDA graphs; updates: also the optimizer's updates",
            "sample",
        ),
    ]
    val_check_interval: Annotated[PositiveInt, Option("updates between validations")]
    check_val_every_n_epoch: Annotated[None, Option()]  # validations are counted in updates
    deterministic: Annotated[
        bool | Literal["warn"] | None,
        Option("true on a GPU: the same bits every time; CTC is then computed on the CPU"),
    ]
    peer_timeout_s: Annotated[
        PositiveInt | None,
        Option("seconds to wait for another process that is silent; null: 30 min (gloo), 10 min (NCCL)", "speed"),
    ]
    log_every_n_steps: Annotated[PositiveInt, Option("", "place")]
    enable_progress_bar: Annotated[
        bool | None, Option("Lightning's bar; callbacks.progress prints lines instead", "place")
    ]


class Sweep(TypedDict, total=False):
    """``sweep``: how a multirun runs; it tells its jobs more."""

    name: Annotated[Any, Option("folder below runs/; the same name again resumes the sweep; null: date and time")]
    gpus_per_job: Annotated[
        PositiveInt | None, Option("for jobs that run at the same time on one machine; null: each job sees all GPUs")
    ]
    jobs_per_gpu: Annotated[PositiveInt | None, Option("jobs that share a GPU, for small models; null: 1")]
    target_wer: Annotated[
        PartialShare | None,
        Option("WER on dev as a fraction, set before the runs: asr-compare says when each system reached it"),
    ]
    looks: Annotated[
        list[PositiveInt],
        Option("of sweep=looks: numbers of seeds after which systems are compared, and only open ones are trained on"),
    ]


class Callbacks(TypedDict, total=False):
    """``callbacks``."""

    # averages of weights, which would be others from a resumption on
    averaging: Annotated[Group | None, Option("", "updates")]


class Encoder(TypedDict, total=False):
    """``encoder``: what differs from its class's other options."""

    gradient_checkpointing: Annotated[bool, Option("", "speed")]
    model_folder: Annotated[str | None, Option("", "place")]


class Train(TypedDict):
    """``asr-train``."""

    data: Annotated[Data, Option()]
    tokenizer: Annotated[Group, Option()]
    features: Annotated[Group, Option()]
    augment: Annotated[Augment, Option()]
    encoder: Annotated[Encoder, Option()]
    head: Annotated[Group, Option()]
    decoder: Annotated[Group | None, Option()]
    parameter_rules: Annotated[Group, Option()]
    optimizer: Annotated[Group, Option()]
    schedule: Annotated[Group, Option()]
    trainer: Annotated[Trainer, Option()]
    logger: Annotated[Group | None, Option("", "place")]
    sweep: Annotated[Sweep, Option("", "place")]
    callbacks: Annotated[Callbacks, Option("", "result")]
    seed: Annotated[Seed, Option("of initial weights, data order, augmentation and dropout", "sample")]
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


@functools.cache
def fields(options: Any) -> dict[str, tuple[Any, Option]]:
    """Return the type of each option, and what is said of it; no options if it is not a table of them."""
    if not is_typeddict(options):
        return {}
    table = {}
    for name, hint in get_type_hints(options, include_extras=True).items():
        annotation, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        option = next((item for item in metadata if isinstance(item, Option)), Option())
        table[name] = annotation if is_typeddict(annotation) else hint, option
    return table


def options_of(options: Any, prefix: str = "") -> Iterator[tuple[str, Any, Option]]:
    """Yield dotted key, type and `Option` of each option, those of nested ones after their parent."""
    for name, (kind, option) in fields(options).items():
        yield f"{prefix}{name}", kind, option
        yield from options_of(kind, f"{prefix}{name}.")


@functools.cache
def decides(key: str) -> Decides:
    """Return what an option of ``asr-train`` decides."""
    table: Any = Train
    decided: Decides = "updates"
    for name in key.split("."):
        if name not in fields(table):
            break
        table, option = fields(table)[name]
        decided = option.decides or decided
    return decided


def has_effect(key: str) -> bool:
    """Return whether an option has an effect on what is trained, or on its result."""
    return decides(key) in ("updates", "result", "sample")
