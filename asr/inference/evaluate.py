"""Test sets → error rates; weights of the search tuned on dev, with a language model of the run's own transcripts.

That model is estimated before training, and its weights are chosen after it; both lie in the run's folder.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text
from torch import Tensor

from asr.data.loading.loader import Batch, LoaderFactory
from asr.data.preparation.prepared import PreparedData, describe_file, refuse_changed
from asr.decoding.beam import CtcBeam, ShallowFusion, TransducerBeam
from asr.decoding.greedy import Decoder
from asr.inference.decode import Processed, decode_all, process
from asr.language_models import TokenNumbers, arpa_lines, estimate, laid_out
from asr.models.heads.protocols import FrameScores
from asr.models.recognizer import Recognizer
from asr.text.tokenizer import UNKNOWN_ID, Tokenizer
from werdict.console import PlainConsole, one_line
from werdict.error_files import Interval, bootstrap_interval, headline, summary, write_report
from werdict.errors import RunFailed
from werdict.files import read_json, write_new, write_whole
from werdict.formatting import percent, shortlist
from werdict.normalization import TextNormalizer
from werdict.scoring import RATE_NAMES, Normalization, Score, Unit, Utterance, lacks_spaces, score

TRIALS_FILE = "tuning.tsv"  # all trials
LM_FOLDER, WEIGHTS = "lm", "weights.json"  # in the folder of a run
AFTER_TRAINING = (f"{LM_FOLDER}/{WEIGHTS}", f"{LM_FOLDER}/{TRIALS_FILE}")  # files that a resumed run writes again
TUNING_BEAM_SIZE = 16  # of seventy searches
BEAM_SIZE = 32

console = PlainConsole()


@dataclass(frozen=True)
class Trial:
    """Weights of a decoder by the names of their options, and the errors with them."""

    weights: Mapping[str, float]
    score: Score


def tune(recognizer: Recognizer, decoder: Decoder, loaders: LoaderFactory, sets: Mapping[str, Any]) -> list[Trial]:
    """Decode sets with all combinations of weights, and leave the decoder with the best, those of the lowest WER.

    Audio is encoded once for all of them. Between equal ones the lower CER decides, then the smaller weights.

    Args:
        decoder: whose weights are tunable.
        sets: cuts by the name of their set.

    Returns:
        All combinations, in the order of their weights.

    Raises:
        OutOfMemory: a batch does not fit into memory.
        RunFailed: a worker that reads data was lost, or no utterance could be read.
        ValueError: the sets have no words.
    """
    assert isinstance(decoder, ShallowFusion)
    tried = decoder.tunable
    grid = [dict(zip(tried, values, strict=True)) for values in itertools.product(*tried.values())]
    decoded: list[list[Utterance]] = [[] for _ in grid]

    def work(name: str, batch: Batch, encodings: Tensor, num_frames: Tensor) -> list[None]:
        ids = [f"{name}/{cut}" for cut in batch.ids]
        for weights, utterances in zip(grid, decoded, strict=True):
            decoder.weigh(**weights)
            hypotheses = decoder(recognizer.head, encodings, num_frames)
            texts = [loaders.tokenizer.decode(best.tokens) for best, *_ in hypotheses]
            utterances.extend(map(Utterance, ids, batch.texts, texts))
        return []

    unread: list[tuple[str, str]] = []
    for name, cuts in sets.items():
        found_unread = process(recognizer, loaders, cuts, f"tuning on {name}", partial(work, name)).unread
        unread += [(f"{name}: {cut}", reason) for cut, reason in found_unread]
    for cut, reason in unread:
        console.print_line(f"could not read {cut}: {reason}")
    if not decoded[0]:
        raise RunFailed(f"none of the {len(unread)} utterances of {', '.join(sets)} could be read to choose weights on")
    scores = (score(utterances, loaders.unit) for utterances in decoded)
    trials = [Trial(*pair) for pair in zip(grid, scores, strict=True)]
    decoder.weigh(**best_of(trials).weights)
    return trials


def best_of(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the fewest errors."""
    return min(trials, key=lambda trial: (trial.score.words.errors, trial.score.characters.errors))


def report_trials(trials: Sequence[Trial], sets: Sequence[str], folder: Path) -> str:
    """Print all that were tried, write them to a file, and return a note on the choice."""
    best, names = best_of(trials), list(trials[0].weights)
    *rows, columns = names
    table = Table(*rows, *(f"{value:g}" for value in dict.fromkeys(trial.weights[columns] for trial in trials)))
    for values, group in itertools.groupby(trials, key=lambda trial: [trial.weights[name] for name in rows]):
        cells = (Text(percent(trial.score.wer), style="bold" if trial is best else "") for trial in group)
        table.add_row(*(f"{value:g}" for value in values), *cells)
    console.print(f"{best.score.rate_name} % on {', '.join(sets)}, by {', '.join(names)} (the last in columns):")
    console.print(table)
    lines = [[*(f"{x:g}" for x in t.weights.values()), percent(t.score.wer), percent(t.score.cer)] for t in trials]
    text = "".join("\t".join(line) + "\n" for line in ([*names, "wer", "cer"], *lines))
    write_new(folder / TRIALS_FILE, text)
    chosen = " ".join(f"decoder.{name}={value:g}" for name, value in best.weights.items())
    console.print_line(f"chosen: {chosen}")
    for name, value in best.weights.items():
        if value == max(trial.weights[name] for trial in trials):
            console.print_line(f"{name}={value:g} is the largest that was tried: larger ones may be better")
    reached = f"the {best.score.rate_name} was {percent(best.score.wer)} %"
    return f"search chosen on {', '.join(sets)}, where {reached}: {chosen}"


class Evaluated(NamedTuple):
    """The error rate of a set, and the seconds of work per second of audio."""

    score: Score
    interval: Interval
    real_time_factor: float | None

    def plain(self) -> dict[str, float | int | str | None]:
        """Return the numbers for JSON; rates are fractions."""
        return {**summary(self.score, self.interval), "real_time_factor": self.real_time_factor}


def evaluate_sets(
    recognizer: Recognizer,
    decoder: Decoder,
    loaders: LoaderFactory,
    sets: Mapping[str, Any],
    notes: Sequence[str],
    folder: Path,
    normalization: Normalization | None = None,
    shown: Collection[str] = (),
) -> tuple[dict[str, Evaluated], list[str]]:
    """Decode sets, write their files, and print error rates and speed.

    Args:
        sets: cuts by the name of their set.
        notes: on the conditions, for the files and the terminal.
        normalization: of the texts that are scored; None: they are scored as they are.
        shown: notes that the terminal has shown before.

    Returns:
        The results by set, and a message for each set of which nothing could be read; such a set has no files.
    """
    results: dict[str, Evaluated] = {}
    unit = loaders.unit
    failures: list[str] = []
    for name, cuts in sets.items():
        decoded = decode_all(recognizer, decoder, loaders, cuts, name)
        for cut, reason in decoded.unread:
            console.print_line(f"{name}: could not read {cut}: {reason}")
        if decoded.unread and not decoded.results:
            failures.append(
                f"none of the {len(decoded.unread)} utterances of {name} could be read, so that it has no error rate; "
                "put their audio back, or prepare the data again, and decode it with asr-evaluate"
            )
        else:
            all_notes = [*notes, *_on_unknown_words(decoded.results, loaders.tokenizer, normalization)]
            if unit == "word" and lacks_spaces([utterance.reference for utterance in decoded.results]):
                all_notes.append(
                    "words have no spaces between them: data.scoring_unit=character trains a run with a CER"
                )
            results[name] = _report(name, decoded, all_notes, folder, normalization or Normalization(), unit, shown)
    if len(sets) > 1:
        console.print(_table(results, unit))
    return results, failures


def _on_unknown_words(
    utterances: Sequence[Utterance], tokenizer: Tokenizer, normalization: Normalization | None
) -> list[str]:
    """Return a note if references have words that cannot be written, such as those in other letters or case."""
    counts = Counter(word for utterance in utterances for word in utterance.reference.split())
    exactly, plain = normalization is None or not normalization.note, TextNormalizer("lower", "strip")

    def is_unknown(word: str) -> bool:
        forms = [word] if exactly else [plain(word), plain(word).upper()]
        return all(UNKNOWN_ID in tokenizer.encode(form) for form in forms)

    if not (unknown := list(filter(is_unknown, counts))):
        return []
    hint = " (asr-evaluate scoring.normalize=basic compares without case and punctuation)" if exactly else ""
    return [
        f"{sum(counts[word] for word in unknown)} of {counts.total()} words of the references have characters that the "
        f"run does not know, and count as errors: {shortlist(unknown)}{hint}"
    ]


def _table(results: Mapping[str, Evaluated], unit: Unit) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    is_word = unit == "word"
    cer = ["CER %"] if is_word else []  # else it is the first rate
    for column in ("set", f"{RATE_NAMES[unit]} %", "95 %", *cer, f"{unit}s", "utterances"):
        table.add_column(column, justify="left" if column == "set" else "right")
    for name, (scored, interval, _) in results.items():
        ends = "" if interval.method == "none" else f"[{percent(interval.low)}, {percent(interval.high)}]"
        rates: list[str | Text] = [percent(scored.wer), Text(ends), *([percent(scored.cer)] if is_word else [])]
        table.add_row(Text(one_line(name)), *rates, str(scored.words.num_reference), str(scored.num_utterances))
    return table


def _report(
    name: str,
    decoded: Processed[Utterance],
    notes: Sequence[str],
    folder: Path,
    normalization: Normalization,
    unit: Unit,
    shown: Collection[str],
) -> Evaluated:
    notes = [*notes, normalization.note] if normalization.note else notes
    if decoded.unread:
        notes = [*notes, f"{len(decoded.unread)} utterances could not be read and are not counted"]
    result = score(normalization(decoded.results), unit)
    interval, factor = bootstrap_interval(result), decoded.real_time_factor
    write_report(folder, name, result, interval, notes)
    console.print_line(Text.assemble((one_line(name), "bold"), "  ", headline(result, interval)))
    speed = [] if factor is None else [f"decoded {decoded.audio_s:.0f} s of audio, real-time factor {factor:.2g}"]
    for note in (note for note in (*notes, *speed) if note not in shown):
        console.print_line(f"{name}  note: {note}")
    return Evaluated(result, interval, factor)


@dataclass(frozen=True)
class TranscriptsModel:
    """The language model of a run's transcripts, a file in the run's folder with one that holds its checksum."""

    run_dir: Path
    order: int

    @property
    def path(self) -> Path:
        """The ARPA file."""
        return self.run_dir / LM_FOLDER / f"transcripts-{self.order}.arpa"

    def write(self, transcripts: Iterable[str], tokenizer: Tokenizer) -> None:
        """Estimate the model, and write it."""
        tokens = TokenNumbers(tokenizer)
        model, _ = estimate(laid_out(map(tokens.numbers, filter(None, transcripts))), tokens.words, self.order)
        self.path.parent.mkdir(exist_ok=True)
        write_new(self.path, (line.encode() for line in arpa_lines(model)))
        write_whole(self.path.with_suffix(".json"), json.dumps(describe_file(self.path)) + "\n")
        size = f"order {model.order}, {len(model.keys)} n-grams"
        console.print_line(f"language model of the transcripts: {size}, {self.path}")

    def check(self) -> None:
        """Refuse a file that is not as it was estimated.

        Raises:
            ValueError: it is missing, or has changed.
        """
        index = self.path.with_suffix(".json")
        refuse_changed(self.path, read_json(index), index.name)

    def beam(self, head: object, beam_size: int = BEAM_SIZE, **weights: Any) -> CtcBeam | TransducerBeam:
        """Return a search with the model, which is not loaded yet."""
        search: type[CtcBeam | TransducerBeam] = CtcBeam if isinstance(head, FrameScores) else TransducerBeam
        return search(beam_size=beam_size, lm=str(self.path), **weights)


def search_with_transcripts(
    recognizer: Recognizer,
    loaders: LoaderFactory,
    prepared: PreparedData,
    normalize: Callable[[str], str],
    run_dir: Path,
    order: int,
) -> Callable[[], tuple[Decoder, str]] | None:
    """Estimate the model of a new run, and return what finds the best search with it after training.

    Args:
        recognizer: to be trained; when the search is looked for, it has the weights to decode with.
        normalize: text → text as in the transcripts of the run.
        run_dir: the run's folder; a resumed run has the model there already.
        order: of the longest n-grams; 0: no model, and no search.

    Raises:
        ValueError: the model of a resumed run has changed.
    """
    if not order:
        return None
    model = TranscriptsModel(run_dir, order)
    if model.path.exists():
        model.check()
    else:
        cuts = (cut for name in prepared.names("train") for cut in prepared.cuts(name))
        model.write((cut.supervisions[0].text for cut in cuts), loaders.tokenizer)

    def search() -> tuple[Decoder, str]:
        tuned = model.beam(recognizer.head, TUNING_BEAM_SIZE)
        tuned.load_scorers(loaders.tokenizer, normalize)
        dev = {name: prepared.cuts(name) for name in prepared.names("dev")}
        console.print_line(
            f"trying {math.prod(map(len, tuned.tunable.values()))} weights of the language model on {', '.join(dev)}, "
            "which may take longer than a short training; data.transcripts_lm=0 trains without the model"
        )
        trials = tune(recognizer, tuned, loaders, dev)
        note = report_trials(trials, list(dev), run_dir / LM_FOLDER)
        weights: dict[str, Any] = dict(best_of(trials).weights)
        write_new(run_dir / LM_FOLDER / WEIGHTS, json.dumps({"order": order, **weights}, indent=1) + "\n")
        decoder = model.beam(recognizer.head, **weights)
        decoder.load_scorers(loaders.tokenizer, normalize)
        return decoder, note

    return search


def saved_search(run_dir: Path, head: object) -> Decoder | None:
    """Return the search that a run's test sets were decoded with, without its model; None if there is none.

    Raises:
        ValueError: the model is missing or has changed, or a weight is out of its range.
    """
    path = run_dir / LM_FOLDER / WEIGHTS
    if not path.is_file():
        return None
    # the model itself is checked: with another one these weights mean nothing
    weights = read_json(path)
    model = TranscriptsModel(run_dir, weights["order"])
    model.check()
    return model.beam(head, lm_weight=weights["lm_weight"], token_bonus=weights["token_bonus"])
