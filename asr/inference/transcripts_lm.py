"""A language model of a run's own training transcripts, and the beam search that decodes with it.

The model is estimated before training, and the weights of the search are chosen on dev after it; both lie in the run's
folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from asr.data.loading.loader import DataModule
from asr.data.preparation.fingerprint import describe_file, refuse_changed
from asr.data.preparation.prepared import PreparedData
from asr.decoding.ctc_beam import CtcBeam
from asr.decoding.greedy import Decoder
from asr.decoding.transducer_beam import TransducerBeam
from asr.inference.evaluate import TRIALS_FILE, best_of, report_trials, tune
from asr.language_models.arpa import arpa_lines
from asr.language_models.kneser_ney import TokenNumbers, estimate, laid_out
from asr.models.heads.protocols import FrameScores
from asr.models.recognizer import Recognizer
from asr.text.tokenizer import Tokenizer
from werdict.console import PlainConsole
from werdict.files import read_json, write_new, write_whole

FOLDER, WEIGHTS = "lm", "weights.json"  # in the folder of a run
AFTER_TRAINING = (f"{FOLDER}/{WEIGHTS}", f"{FOLDER}/{TRIALS_FILE}")  # files that a resumed run writes again
TUNING_BEAM_SIZE = 16  # of seventy searches
BEAM_SIZE = 32

console = PlainConsole()


def search_with_transcripts(
    recognizer: Recognizer,
    data_module: DataModule,
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
    if _model(run_dir, order).exists():
        _checked_model(run_dir, order)
    else:
        cuts = (cut for name in prepared.names("train") for cut in prepared.cuts(name))
        _write_model((cut.supervisions[0].text for cut in cuts), data_module.tokenizer, order, _model(run_dir, order))

    def search() -> tuple[Decoder, str]:
        model = _model(run_dir, order)
        tuned = _beam(recognizer.head, model, TUNING_BEAM_SIZE)
        tuned.load_scorers(data_module.tokenizer, normalize)
        dev = {name: prepared.cuts(name) for name in prepared.names("dev")}
        console.print_line(
            f"trying {math.prod(map(len, tuned.tunable.values()))} weights of the language model on {', '.join(dev)}, "
            "which may take longer than a short training; data.transcripts_lm=0 trains without the model"
        )
        trials = tune(recognizer, tuned, data_module, dev)
        note = report_trials(trials, list(dev), run_dir / FOLDER)
        weights: dict[str, Any] = dict(best_of(trials).weights)
        write_new(run_dir / FOLDER / WEIGHTS, json.dumps({"order": order, **weights}, indent=1) + "\n")
        decoder = _beam(recognizer.head, model, **weights)
        decoder.load_scorers(data_module.tokenizer, normalize)
        return decoder, note

    return search


def _write_model(transcripts: Iterable[str], tokenizer: Tokenizer, order: int, path: Path) -> None:
    tokens = TokenNumbers(tokenizer)
    model, _ = estimate(laid_out(map(tokens.numbers, filter(None, transcripts))), tokens.words, order)
    path.parent.mkdir(exist_ok=True)
    write_new(path, (line.encode() for line in arpa_lines(model)))
    write_whole(path.with_suffix(".json"), json.dumps(describe_file(path)) + "\n")
    console.print_line(f"language model of the transcripts: order {model.order}, {len(model.keys)} n-grams, {path}")


def saved_search(run_dir: Path, head: object) -> Decoder | None:
    """Return the search that a run's test sets were decoded with, without its model; None if there is none.

    Raises:
        ValueError: the model is missing or has changed, or a weight is out of its range.
    """
    path = run_dir / FOLDER / WEIGHTS
    if not path.is_file():
        return None
    # the model itself is checked: with another one these weights mean nothing
    weights = read_json(path)
    model = _checked_model(run_dir, weights["order"])
    return _beam(head, model, lm_weight=weights["lm_weight"], token_bonus=weights["token_bonus"])


def _model(run_dir: Path, order: int) -> Path:
    return run_dir / FOLDER / f"transcripts-{order}.arpa"


def _checked_model(run_dir: Path, order: int) -> Path:
    """Return the path of a model, which must be as it was estimated."""
    path = _model(run_dir, order)
    index = path.with_suffix(".json")
    refuse_changed(path, read_json(index), index.name)
    return path


def _beam(head: object, model: Path, beam_size: int = BEAM_SIZE, **weights: Any) -> CtcBeam | TransducerBeam:
    search: type[CtcBeam | TransducerBeam] = CtcBeam if isinstance(head, FrameScores) else TransducerBeam
    return search(beam_size=beam_size, lm=str(model), **weights)
