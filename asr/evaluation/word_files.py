"""Words with their times, in the formats of other programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any
from urllib.parse import quote

from asr.evaluation.wer import Word


def ctm_lines(name: str, words: Sequence[Word], channel: int = 1) -> str:
    """Return a line of NIST's CTM for each word: name, channel, start and duration in seconds, word, confidence.

    Fields are separated by spaces: those of the name are written as in an address, ``%20``, and so is ``%``.
    """
    field = re.sub(r"[\s%]", lambda match: quote(match[0]), name)
    return "".join(
        f"{field} {channel} {word.start_s:.3f} {word.end_s - word.start_s:.3f} {word.text} {word.confidence:.3f}\n"
        for word in words
    )


def word_row(word: Word, **more: Any) -> dict[str, Any]:
    """Return a word with its times as plain data."""
    times = {"word": word.text, "start": word.start_s, "end": word.end_s}
    return {**times, "confidence": round(word.confidence, 4), **more}


def json_line(name: str, text: str, words: Sequence[Word], **more: Any) -> str:
    """Return an utterance as a line of JSON: ``id``, ``text``, and ``words`` with times in seconds."""
    rows = [word_row(word) for word in words]
    return json.dumps({"id": name, "text": text, "words": rows, **more}, ensure_ascii=False) + "\n"


def textgrid(duration_s: float, tiers: Mapping[str, Sequence[Word]]) -> str:
    """Return a TextGrid, Praat's format of annotations, in which silence stands between words.

    Args:
        duration_s: of the utterance; words that end later make it longer.
        tiers: words in their order, by the name of their tier.
    """
    end_s = max([duration_s, *(word.end_s for words in tiers.values() for word in words)])
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {end_s:.3f}"]
    lines += ["tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, (name, words) in enumerate(tiers.items(), 1):
        intervals = list(_without_gaps(words, end_s))
        lines += [f"    item [{number}]:", '        class = "IntervalTier"', f"        name = {_quoted(name)}"]
        lines += ["        xmin = 0", f"        xmax = {end_s:.3f}", f"        intervals: size = {len(intervals)}"]
        for place, (start_s, stop_s, text) in enumerate(intervals, 1):
            lines += [f"        intervals [{place}]:", f"            xmin = {start_s:.3f}"]
            lines += [f"            xmax = {stop_s:.3f}", f"            text = {_quoted(text)}"]
    return "\n".join(lines) + "\n"


def _without_gaps(words: Sequence[Word], end_s: float) -> Iterator[tuple[float, float, str]]:
    """Yield start, end and text of intervals that cover everything."""
    silence = pairwise([0.0, *chain.from_iterable((word.start_s, word.end_s) for word in words), end_s])
    for number, (start_s, stop_s) in enumerate(silence):
        text = words[number // 2].text if number % 2 else ""
        if stop_s > start_s:
            yield start_s, stop_s, text


def _quoted(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"'
