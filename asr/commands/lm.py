"""``asr-lm``: text → an n-gram language model to decode with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from asr import language_models
from asr.commands.results import new_file
from asr.run.options import LM, texts
from asr.run.restore import TextSide, prepared_data, restore_text
from asr.text.tokenizer import SPACE_PIECE
from werdict.console import PlainConsole
from werdict.errors import ConfigError, naming_place
from werdict.files import write_new
from werdict.text_files import matching_files, read_lines

console = PlainConsole()


def run(options: LM) -> None:
    """Estimate the model, write it, and print what is in it."""
    if options.text is None and not options.transcripts:
        raise ConfigError("no text is given: give text=FILE, or transcripts=true for the run's training transcripts")
    output = new_file(options.output)
    patterns = [] if options.text is None else texts(options.text)
    allowed = "a file, a pattern like 'corpus/*.txt.gz', or a list of them"
    files = dict.fromkeys(file for pattern in patterns for file in matching_files("text", pattern, allowed))
    text = restore_text(options.run)
    if options.units == "words" and not any(SPACE_PIECE in piece for piece in text.tokenizer.pieces):
        raise ConfigError(
            "units=words: no token of this run marks where a word begins, so it could not decode with a model of "
            "words; leave units out"
        )
    units = language_models.TokenNumbers(text.tokenizer) if options.units == "tokens" else language_models.WordNumbers()
    numbers = language_models.laid_out(map(units.numbers, _sentences(files, text, options.transcripts)))
    if not len(numbers):
        raise ConfigError("text: no line contains a word; give a file with one sentence per line")
    model, assumed = language_models.estimate(numbers, units.words, options.order)
    content = (line.encode() for line in language_models.arpa_lines(model))
    write_new(output, language_models.gzipped(content) if output.name.endswith(".gz") else content)
    # with their marks, in the order of `SPECIAL`
    num_sentences, _, unknown, *_ = np.bincount(numbers, minlength=len(language_models.SPECIAL))
    num_words = len(numbers) - 2 * num_sentences
    console.print(f"text: {num_sentences} sentences, {num_words} {options.units}, {unknown} of them unknown")
    if model.order < options.order:
        console.print(f"order: {model.order}, because no sentence is long enough for {options.order}")
    if assumed:
        console.print(
            f"discounts of {', '.join(map(str, assumed))}-grams: "
            f"{', '.join(map(str, language_models.FALLBACK))}, because too few n-grams occur "
            "once, twice or three times to estimate them",
            soft_wrap=True,
        )
    console.print("n-grams: " + ", ".join(f"{count} of {n}" for n, count in enumerate(model.counts, 1)))
    console.print_line(f"language model: {output}")


def _sentences(files: Iterable[Path], text: TextSide, transcripts: bool) -> Iterator[str]:
    """Yield the lines of files and the transcripts of the run, normalized, if they hold words."""
    for file in files:
        with naming_place("text"):
            yield from filter(None, map(text.normalize, read_lines(file)))
    if transcripts:
        prepared = prepared_data(text.checkpoint, "give their text as text=FILE, and transcripts=false")
        for name in prepared.names("train"):
            yield from filter(None, (cut.supervisions[0].text for cut in prepared.cuts(name)))
