"""The page of a run: what was trained, its curves, examples of features and alignments, its errors."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from matplotlib.axes import Axes
from torch import Tensor

from asr.data.features import PLAYED_HZ, read_audio
from asr.data.loading.loader import Batch, SpeechDataset
from asr.data.loading.sampling import seed_for
from asr.models.heads.protocols import FrameScores, ScoresPaths
from asr.models.recognizer import Recognizer
from asr.run.options import RunOptions, Target
from asr.runs.files import Points, read_metrics
from asr.training.module import TrainingModule
from asr.training.speech_data_module import SpeechDataModule
from werdict.error_files import aligned_view, confusions, error_name
from werdict.files import write_whole
from werdict.formatting import UNKNOWN, count, duration, shortened
from werdict.plots import Legend, Plot, draw, is_wide, label_log_axis, line_styles
from werdict.report.pages import render
from werdict.report.sections import Cell, Column, Table
from werdict.scoring import Score, ScoredUtterance, Unit

NUM_EXAMPLES, NUM_WORST, NUM_CONFUSIONS = 2, 5, 20
MAX_POINTS = 400  # of a curve, more than a page of this width can show
MAX_LABELS = 40  # tokens that can be read below each other
TITLE_LENGTH = 44
RATE = "train/lr"
COMPARED = ("key", "recipe", "this run")  # columns
OF_TRAINING = ("train/loss", RATE, "train/gradient_norm")


@dataclass(frozen=True)
class Example:
    """An utterance with what is drawn of it.

    Attributes:
        id: of the cut.
        text: its transcript.
        matrix: (R, T) a row for each feature or token.
        shift_s: seconds from a column to the next.
        rows: names of the rows; empty for features.
        start_s: where the first column begins.
    """

    id: str
    text: str
    matrix: np.ndarray
    shift_s: float
    rows: tuple[str, ...] = ()
    start_s: float = 0.0


def augmented_features(recognizer: Recognizer, data: SpeechDataModule) -> list[Example]:
    """Return normalized features of training utterances, with the augmentation of audio and features; NaN: masked."""
    cuts = data.prepared.cuts("train")
    dataset, _ = data.loaders.training_data(cuts, data.seed, data.augmentation)
    batch = _batch(dataset, cuts, recognizer, seed_for("report", data.seed))
    if not len(batch):
        return []
    features = recognizer.normalize(batch.features)
    if recognizer.augment is not None:
        generator = torch.Generator().manual_seed(batch.seed)
        features = recognizer.augment(features, batch.num_frames, generator)
    if (draw := getattr(recognizer.encoder, "example_masks", None)) is not None:
        masked = draw(batch.num_frames)
        features = features.masked_fill(masked.to(features.device).unsqueeze(2), torch.nan)
    matrices = [row[:length].mT for row, length in zip(features, batch.num_frames, strict=True)]
    return _examples(batch, matrices, data.loaders.features.frame_shift_s)


def token_alignments(recognizer: Recognizer, data: SpeechDataModule) -> list[Example]:
    """Return ``token_probs`` of utterances of the first development set."""
    dataset = SpeechDataset(data.loaders.features, data.loaders.tokenizer)
    batch = _batch(dataset, data.prepared.cuts(data.prepared.names("dev")[0]), recognizer, 0)
    matrices = token_probs(recognizer, batch) if len(batch) else []
    pieces = data.loaders.tokenizer.pieces
    rows = [tuple(pieces[token] for token in tokens.tolist()) for tokens in batch.tokens]
    factor, frame_s = recognizer.subsampling_factor, data.loaders.features.frame_shift_s
    start_s = (recognizer.center_frames - factor / 2) * frame_s
    examples = _examples(batch, matrices, factor * frame_s, rows) if matrices else []
    return [replace(example, start_s=start_s) for example in examples]


@torch.inference_mode()
def token_probs(recognizer: Recognizer, batch: Batch) -> list[Tensor]:
    """Return how probable each token of a transcript is in each frame, (U, T') of each utterance.

    Tokens of CTC have their posterior; those of a transducer their probability after the tokens before them. Empty if
    the head scores neither.
    """
    head, tokens = recognizer.head, batch.tokens
    if not isinstance(head, FrameScores | ScoresPaths):
        return []
    encodings, num_frames = recognizer(batch.features, batch.num_frames)
    if isinstance(head, FrameScores):
        scores = head.frame_log_probs(encodings).gather(2, tokens[:, None].expand(-1, encodings.shape[1], -1))
    else:
        scores = head.path_scores(encodings, tokens, batch.num_tokens)[1]  # (B, T', U + 1)
    sizes = zip(scores.exp(), num_frames, batch.num_tokens, strict=True)
    return [row[:frames, :tokens].mT for row, frames, tokens in sizes]


def _batch(dataset: SpeechDataset, cuts: Sequence[Any], recognizer: Recognizer, seed: int) -> Batch:
    """Return the first and the middle cut, as far as they can be read, on the device of the recognizer."""
    recognizer.eval()
    numbers = dict.fromkeys(len(cuts) * place // NUM_EXAMPLES for place in range(NUM_EXAMPLES))
    chosen: Any = [cuts[number] for number in numbers]  # a list, where lhotse has sets
    return dataset[(seed, chosen)].to(next(recognizer.parameters()).device)


def _examples(
    batch: Batch, matrices: list[Tensor], shift_s: float, rows: list[tuple[str, ...]] | None = None
) -> list[Example]:
    return [
        Example(id, text, matrix.float().cpu().numpy(), shift_s, names[: len(matrix)])
        for id, text, matrix, names in zip(batch.ids, batch.texts, matrices, rows or [()] * len(batch), strict=True)
        if matrix.numel()  # a transcript may be empty
    ]


def plot_run_curves(metrics: Path, rate_name: str) -> list[Plot]:
    """Draw loss, error rates, learning rate and gradient norm against updates, as far as they were logged."""
    curves = read_metrics(metrics, lambda name: name in OF_TRAINING or name.startswith("val/"))
    loss, lr, gradient_norm = ({"train": curves[name]} if name in curves else {} for name in OF_TRAINING)
    plots = (
        ("loss", "Loss", "nats per token", loss | on_dev(curves, "loss")),
        ("wer", f"{rate_name} on dev", f"{rate_name} (%)", on_dev(curves, "wer")),
        ("lr", "Learning rate", "", lr),
        ("gradient_norm", "Gradient norm before clipping", "", gradient_norm),
    )
    return [_plot_curves(name, title, label, drawn) for name, title, label, drawn in plots if drawn]


def on_dev(curves: Mapping[str, Points], metric: str) -> dict[str, Points]:
    """Return curves by the name of their development set; ``val/wer`` is the mean of all."""
    parts = {name: name.split("/") for name in curves}
    return {part[1]: curves[name] for name, part in parts.items() if part[0] == "val" and part[2:] == [metric]}


def _plot_curves(name: str, title: str, label: str, curves: Mapping[str, Points]) -> Plot:
    styles = line_styles(list(curves), None)
    scale = 100 if name == "wer" else 1
    thinned = {curve: _thinned(steps, values, scale) for curve, (steps, values) in curves.items()}

    def fill(axes: Axes) -> Legend:
        axes.set(xlabel="updates", ylabel=label)
        legend = []
        for curve, (steps, values) in thinned.items():
            marker = styles[curve].marker if len(steps) < 30 else ""
            (line,) = axes.plot(steps, values, marker=marker, markersize=4, **styles[curve].line_options)
            legend.append((line, curve))
        finite = np.concatenate([values[np.isfinite(values)] for _, values in thinned.values()])
        # a schedule may end at almost 0
        is_log = len(finite) and finite.min() > 0 and name != "lr" and (name == "loss" or is_wide(finite.tolist()))
        if is_log:
            axes.set_yscale("log")
            label_log_axis(axes.yaxis, finite.min(), finite.max())
        return legend if len(legend) > 1 else []

    rows = [(curve, *point) for curve, values in thinned.items() for point in zip(*values, strict=True)]
    return draw(name, title, "", fill, (("curve", "updates", label or title), rows))


def _thinned(steps: Sequence[float], values: Sequence[float], scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return scaled means of as many neighbors as leave ``MAX_POINTS``."""
    pairs = np.array([steps, scale * np.asarray(values)])
    size = -(-pairs.shape[1] // MAX_POINTS)
    means = np.stack([pairs[:, start : start + size].mean(axis=1) for start in range(0, pairs.shape[1], size)], axis=1)
    return means[0], means[1]


def plot_example(example: Example, number: int) -> Plot:
    """Draw features as a spectrogram, or the probabilities of tokens over time."""
    num_rows, num_columns = example.matrix.shape
    is_tokens = bool(example.rows)

    def fill(axes: Axes) -> Legend:
        options = {"vmin": 0, "vmax": 1, "cmap": "Blues"} if is_tokens else {"cmap": "magma"}
        extent = (example.start_s, example.start_s + num_columns * example.shift_s, -0.5, num_rows - 0.5)
        axes.imshow(example.matrix, aspect="auto", origin="lower", interpolation="nearest", extent=extent, **options)
        axes.set(xlabel="seconds", ylabel="" if is_tokens else "feature")
        axes.grid(visible=False)
        if is_tokens:
            shown = range(0, num_rows, -(-num_rows // MAX_LABELS))
            axes.set_yticks(list(shown), [example.rows[row] for row in shown], fontsize=7.5)
        return []

    height = min(6.0, max(2.0, 0.16 * num_rows)) if is_tokens else 2.2
    name = f"{'tokens' if is_tokens else 'features'}_{number}"
    starts = [f"{example.start_s + column * example.shift_s:.6g}" for column in range(num_columns)]
    names = example.rows or [f"feature {row}" for row in range(num_rows)]
    values = [[f"{value:.3g}" for value in row] for row in example.matrix]
    numbers = ["starts at s", *starts], [(name, *row) for name, row in zip(names, values, strict=True)]
    return draw(name, shortened(example.id, TITLE_LENGTH), example.text, fill, numbers, height, with_png=False)


def run_facts(
    run_dir: Path,
    options: RunOptions,
    recipe: str,
    module: TrainingModule,
    splits: Mapping[str, Mapping[str, float]],
    minutes: float,
    provenance: Mapping[str, Any],
) -> dict[str, str]:
    """Return the rows of the table: name → text.

    Args:
        run_dir: folder of the run.
        options: of the run.
        recipe: its name.
        module: trained.
        splits: of the data: ``num_utterances`` and ``hours`` by name.
        minutes: of training.
        provenance: as `asr.run.report.provenance` returns it, with ``date``.
    """
    parts, trainer, encoder = module.recognizer, options.trainer, options.encoder
    sizes = [
        f"{name} {duration(3600 * of['hours'])}, {of['num_utterances']:,} utterances" for name, of in splits.items()
    ]
    batch_s = options.data.batch.max_duration_s
    device = torch.cuda.get_device_name(module.device) if module.device.type == "cuda" else module.device.type.upper()
    versions = {"Python": provenance["python"], **provenance["versions"]}
    origin = getattr(parts.encoder, "origin", None)
    started = {}
    if origin:
        started["pretrained"] = f"{origin['model']} {origin['revision']}, licence {origin['license']}"
        adapters = f", {_choice(encoder.lora)}" * (encoder.train == "adapters")
        started["trained of it"] = f"{encoder.train}{adapters}"
    if options.init.path:
        started["starts from"] = f"{options.init.path}, frozen: {', '.join(options.init.freeze) or 'nothing'}"
    return {
        "recipe": recipe,
        "corpus": f"{options.data.corpus}: {'; '.join(sizes)}",
        "encoder": f"{type(parts.encoder).__name__}, {_parameters(parts.encoder)} parameters",
        **started,
        "head": f"{type(parts.head).__name__}, {_parameters(parts.head)} parameters",
        "parameters": _parameters(parts),
        "optimizer": _choice(options.optimizer.plain()),
        "peak learning rate": _peak_rate(run_dir, options.optimizer),
        "schedule": _choice(options.schedule.plain()),
        "seed": str(options.seed),
        "updates": f"{module.trainer.global_step:,} of {trainer.max_steps:,}, each of {module.trainer.world_size} × "
        f"{trainer.accumulate_grad_batches} × {batch_s:g} s of audio at most",
        "precision and device": f"{trainer.precision}, {module.trainer.world_size} × {device}",
        "time": f"{minutes:g} minutes, ended on {provenance['date']}",
        "commit": provenance["commit"] or "–",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _parameters(module: Any) -> str:
    """Return the number of parameters and, if they are fewer, of those that were trained."""
    total = sum(p.numel() for p in module.parameters())
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return f"{total:,}" if trained == total else f"{trained:,} trained of {total:,}"


def _choice(node: Mapping[str, Any] | None) -> str:
    """Return the class of a config, and its options that are set."""
    if not node:
        return "none"
    options = [
        f"{key} {value}" for key, value in node.items() if key[0] != "_" and not (value is None or value is False)
    ]
    return ", ".join([*filter(None, [str(node.get("_target_", "")).rpartition(".")[2]]), *options])


def _peak_rate(run_dir: Path, optimizer: Target) -> str:
    """Return the largest learning rate that was logged, or else the optimizer's option."""
    metrics = run_dir / "metrics.csv"
    curves = read_metrics(metrics, lambda name: name == RATE) if metrics.exists() else {}
    rate = max(curves[RATE][1]) if RATE in curves else optimizer.plain().get("lr")
    return "the optimizer's own" if rate is None else f"{rate:.3g}"


@dataclass(frozen=True)
class RunPage:
    """What a page shows.

    Attributes:
        run_dir: folder of the run.
        headlines: the results.
        facts: by name, what the run was.
        notes: that must be shown with the results.
        scores: by set.
        cuts: by set, for their audio.
        features: augmented, of training utterances.
        alignments: of tokens, on dev.
        difference: by key what the recipe says and what the run has.
    """

    run_dir: Path
    headlines: Sequence[str]
    facts: Mapping[str, str]
    notes: Sequence[str]
    scores: Mapping[str, Score]
    cuts: Mapping[str, Iterable[Any]]
    features: Sequence[Example]
    alignments: Sequence[Example]
    difference: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Worst:
    """An utterance with many errors; ``audio`` is an address of the data themselves, or empty."""

    id: str
    size: str
    alignment: str
    audio: str


def worst_utterances(score: Score) -> list[ScoredUtterance]:
    """Return the utterances with the most errors, most first."""
    wrong = [scored for scored in score.utterances if scored.words.errors]
    return sorted(wrong, key=lambda scored: (-scored.words.errors, scored.utterance.id))[:NUM_WORST]


def write_run_page(page: RunPage) -> None:
    """Write ``report/report.html``, a page that loads nothing, and its curves as PNG files."""
    metrics = page.run_dir / "metrics.csv"  # logger=none writes none
    (rate_name, *_) = {score.rate_name for score in page.scores.values()} or {"WER"}
    curves = plot_run_curves(metrics, rate_name) if metrics.exists() else []
    for plot in curves:
        write_whole(page.run_dir / "report" / f"{plot.name}.png", plot.png)
    worst = {name: worst_utterances(score) for name, score in page.scores.items()}
    audio = {
        name: read_audio(page.cuts.get(name, ()), {scored.utterance.id for scored in utterances})
        for name, utterances in worst.items()
    }
    facts = [[Cell(name), Cell(text)] for name, text in page.facts.items()]
    differing = [[Cell(key), Cell(in_recipe), Cell(in_run)] for key, (in_recipe, in_run) in page.difference.items()]
    text = render(
        "run_page.html.jinja",
        "asr.training",
        page=page,
        title="/".join(page.run_dir.parts[-2:]),
        curves=curves,
        features=[plot_example(example, number) for number, example in enumerate(page.features)],
        alignments=[plot_example(example, number) for number, example in enumerate(page.alignments)],
        confusions=[_confusion_table(name, score) for name, score in page.scores.items()],
        worst={
            name: [_shown(scored, page.scores[name].unit, audio[name]) for scored in utterances]
            for name, utterances in worst.items()
        },
        facts=Table("This run", [Column("", True)] * 2, facts),
        difference=Table("Differs from its recipe", [Column(name, True) for name in COMPARED], differing),
        config=(page.run_dir / "config.yaml").read_text(encoding="utf-8"),
        styles={},
    )
    write_whole(page.run_dir / "report" / "report.html", text)


def _shown(scored: ScoredUtterance, unit: Unit, audio: Mapping[str, np.ndarray]) -> Worst:
    size = f"{count(scored.words.errors, 'error')} in {count(scored.words.num_reference, unit)}"
    address = ""
    if (samples := audio.get(scored.utterance.id)) is not None:
        content = io.BytesIO()
        soundfile.write(content, samples, PLAYED_HZ, format="FLAC", subtype="PCM_16")
        address = f"data:audio/flac;base64,{base64.b64encode(content.getvalue()).decode()}"
    return Worst(scored.utterance.id, size, aligned_view(scored.alignment), address)


def _confusion_table(name: str, score: Score) -> Table:
    counted = confusions(scored.alignment for scored in score.utterances).items()
    frequent = sorted(counted, key=lambda item: (-item[1], error_name(item[0]), str(item[0])))[:NUM_CONFUSIONS]
    rows = [
        [Cell(pair[0] or UNKNOWN), Cell(pair[1] or UNKNOWN), Cell(str(times)), Cell(error_name(pair))]
        for pair, times in frequent
    ]
    columns = [Column("said", True), Column("recognized", True), Column("times"), Column("error", True)]
    return Table(f"Most frequent errors on {name}", columns, rows)
