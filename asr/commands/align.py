"""``asr-align``: a checkpoint and a set with transcripts → when each word was spoken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr.commands.results import check_name, evaluation_sets, results_folder
from asr.inference.decode import align_all, units_with_times, write_alignments
from asr.models.heads.protocols import FrameScores, ScoresPaths
from asr.run.options import Align, texts
from asr.run.restore import Restored, restore
from werdict.console import PlainConsole
from werdict.errors import ConfigError, RunFailed
from werdict.formatting import shortlist

NUM_NAMED = 20  # utterances that could not be aligned

console = PlainConsole()


def run(options: Align) -> None:
    """Align the sets, and write the times of their words. Exits with 1 if an utterance could not be aligned."""
    check_name(options)
    restored = restore(options, None, options.torch_threads)
    head = restored.recognizer.head
    if not isinstance(head, FrameScores | ScoresPaths):
        raise ConfigError(f"run: {type(head).__name__} has neither CTC nor a transducer to align with")
    sets, notes = evaluation_sets(options.manifest, options.name, restored)
    formats = texts(options.output_format)
    checkpoint = restored.checkpoint
    with results_folder(options.output_dir, checkpoint, "align") as output:
        console.print_line(f"checkpoint {checkpoint.path}, update {checkpoint.update}, {checkpoint.described}")
        num_failed = sum(_align(restored, name, cuts, output, formats) for name, cuts in sets.items())
    for note in notes:
        console.print_line(f"note: {note}")
    console.print_line(f"times of words: {output}")
    if num_failed:
        raise RunFailed(f"{num_failed} utterances could not be aligned; the others are in {output}")


def _align(restored: Restored, name: str, cuts: Any, output: Path, formats: Sequence[str]) -> int:
    """Align a set, write and print what was found; return how many utterances could not be aligned."""
    alignments = align_all(restored.recognizer, restored.loaders, cuts, name)
    aligned = sorted((result for result in alignments.results if result.fits), key=lambda result: result.id)
    failed = [*alignments.unread, *((result.id, result.why_not) for result in alignments.results if not result.fits)]
    for cut, reason in failed[:NUM_NAMED]:
        console.print_line(f"{name}: could not align {cut}: {reason}")
    write_alignments(output, name, aligned, formats)
    num_words, audio_s = sum(len(result.words) for result in aligned), sum(result.duration_s for result in aligned)
    console.print_line(f"{name}: {num_words} words of {len(aligned)} utterances, {audio_s:.0f} s of audio")
    if unknown := [word for result in aligned for word in result.unknown]:
        which = shortlist(sorted(set(unknown)))
        console.print_line(f"{name}: {len(unknown)} words have characters that the run does not know: {which}")
    unit = restored.loaders.unit
    if joined := sum(len(result.words) < len(units_with_times(result.text, unit)) for result in aligned):
        console.print_line(
            f"{name}: in {joined} of {len(aligned)} utterances several words are aligned as one, because the run has "
            "no token for the space between them: its training transcripts had no spaces"
        )
    if alignments.real_time_factor is not None:
        console.print_line(f"{name}: real-time factor {alignments.real_time_factor:.2g}")
    return len(failed)
