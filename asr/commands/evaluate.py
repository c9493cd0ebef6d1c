"""``asr-evaluate``: a checkpoint and a set → WER."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from asr.commands.results import check_name, evaluation_sets, results_folder
from asr.data.manifests.corpus import files_of
from asr.decoding.beam import ShallowFusion
from asr.inference.evaluate import evaluate_sets, report_trials, tune
from asr.run.options import Evaluate
from asr.run.restore import Restored, prepared_data, restore
from werdict.console import PlainConsole, json_result
from werdict.errors import ConfigError, RunFailed
from werdict.files import named_path
from werdict.scoring import UNIT_NOTES, Normalization

CHECKSUM = re.compile(r"(\.tar[:/]\d+\+\d+)#[0-9a-f]{8}$")  # of a member of a shard, which may be named without it

console = PlainConsole()


def run(options: Evaluate) -> None:
    """Decode the sets, write hypotheses and error rates, and print them."""
    with json_result(options.output_format) as result:
        failures = _evaluate(options, result)
    if failures:
        raise RunFailed(failures[0])


def _evaluate(options: Evaluate, result: dict[str, Any]) -> list[str]:
    """Fill in the result; return a message for each set of which nothing could be read."""
    check_name(options)
    normalization = Normalization(options.scoring.normalize)
    restored = restore(options, options.decoder, options.torch_threads)
    tuned_on = _tuning_sets(options, restored)
    if tuned_on and not any(cut.supervisions[0].text for cuts in tuned_on.values() for cut in cuts):
        raise ConfigError(
            f"tune={options.tune}: its transcripts contain no words to choose weights by; give other data"
        )
    sets, notes = evaluation_sets(options.manifest, options.name, restored)
    if both := _audio(tuned_on) & _audio(sets):
        raise ConfigError(
            f"tune={options.tune}: {len(both)} of its utterances are also decoded, such as {min(both)[0]}: weights "
            "chosen on them would make their error rate too low; give other data"
        )
    checkpoint = restored.checkpoint
    parts = restored.recognizer, restored.decoder, restored.loaders
    with results_folder(options.output_dir, checkpoint, "decode") as output:
        console.print_line(f"checkpoint {checkpoint.path}, update {checkpoint.update}, {checkpoint.described}")
        if tuned_on:
            trials = tune(*parts, tuned_on)
            notes.append(report_trials(trials, list(tuned_on), output))
        notes += [checkpoint.decoding_note(), *restored.notes, *UNIT_NOTES[restored.loaders.unit]]
        results, failures = evaluate_sets(*parts, sets, notes, output, normalization)
    result |= {"folder": str(output), "checkpoint": str(checkpoint.path), "update": checkpoint.update}
    result |= {"weights": checkpoint.described, "failures": failures}
    result["sets"] = {name: evaluated.plain() for name, evaluated in results.items()}
    console.print_line(f"hypotheses and error rates: {output}")
    return failures


def _tuning_sets(options: Evaluate, restored: Restored) -> dict[str, Any]:
    """Return the sets to choose weights on; none if they are not to be chosen.

    Raises:
        ConfigError: the decoder has nothing to choose.
    """
    if options.tune is False:
        return {}
    if options.tune is not True and not os.path.exists(named_path(options.tune)):
        raise ConfigError(f"tune must be true, false, or a manifest that exists, given {options.tune!r}")
    if not isinstance(restored.decoder, ShallowFusion) or not restored.decoder.tunable:
        raise ConfigError(
            f"tune={options.tune}: {type(restored.decoder).__name__} has no weights to choose; give it a language "
            "model, as in decoder=ctc_beam decoder.lm=FILE, or leave tune out"
        )
    if options.tune is True:
        prepared = prepared_data(restored.checkpoint, "give the data to choose weights on: tune=PATH")
        return {name: prepared.cuts(name) for name in prepared.names("dev")}
    return evaluation_sets(options.tune, None, restored, "tune")[0]


def _audio(sets: Mapping[str, Any]) -> set[tuple[str, float]]:
    """Return the files of all utterances, and where in them these begin."""
    cuts = [cut for of_set in sets.values() for cut in of_set]
    sources = [(cut.recording if cut.has_recording else cut.features, cut.start) for cut in cuts]
    return {(CHECKSUM.sub(r"\1", file), start) for source, start in sources for file in files_of(source)}
