"""Numbers and names as people read them in reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from werdict.console import one_line

UNKNOWN = "–"
NOTHING = 1e-9  # what rounding leaves of a difference of equal numbers
NUM_LISTED = 5  # ids or runs that a sentence names
MAX_LISTED = 300  # characters of each


def percent(fraction: float | None) -> str:
    """Return a rate in percent, without the sign: ``3.10``; only zero is ``0.00``."""
    return UNKNOWN if fraction is None or not math.isfinite(fraction) else _apart(100 * fraction)


def points(difference: float) -> str:
    """Return a difference of rates in percentage points with its sign; only zero is ``0.00``, without one."""
    if not math.isfinite(difference):
        return UNKNOWN
    text = _apart(100 * difference)
    return text if float(text) == 0 else f"{'+' if difference > 0 else '−'}{text.removeprefix('-')}"


def ratio(value: float) -> str:
    """Return a ratio: ``0.95``; only that of equals is ``1.00``."""
    return _apart(value, 1.0)


def _apart(value: float, reference: float = 0.0) -> str:
    """Return a number with two digits after the point, or as many as show on which side of the reference it lies."""
    distance = abs(value - reference)
    if distance < NOTHING:
        return f"{reference:.2f}"
    return f"{value:.{max(2, math.ceil(-math.log10(2 * distance)))}f}"


def interval(low: float, high: float, shown: Callable[[float], str] = percent) -> str:
    """Return the ends of an interval, by default of a rate in percent; unknown ends are infinite.

    ``–`` if both are unknown.
    """
    if math.isinf(low) and math.isinf(high):
        return UNKNOWN
    return f"[{shown(low) if math.isfinite(low) else '−∞'}, {shown(high) if math.isfinite(high) else '∞'}]"


def number(value: float | None, unit: str = "") -> str:
    """Return a number with three digits, or with all its digits before the point, and its unit."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    text = f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}") if abs(value) >= 100 else f"{value:.3g}"
    return f"{text}\N{NO-BREAK SPACE}{unit}" if unit else text


def p_value(value: float | None) -> str:
    """Return a p-value; tiny ones as a bound."""
    if value is None:
        return UNKNOWN
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def duration(seconds: float | None) -> str:
    """Return a time in s, min or h."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    scale, unit = time_unit(seconds)
    return number(seconds / scale, unit)


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return seconds per unit and name of the unit that suits times up to ``longest_s``."""
    if longest_s < 300:
        return 1.0, "s"
    return (60.0, "min") if longest_s < 3 * 3600 else (3600.0, "h")


def count(amount: int, noun: str) -> str:
    """Return ``1 seed`` or ``3 seeds``."""
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


def shortlist(things: Iterable[object]) -> str:
    """Return the first few things, separated by commas, and the number of the others."""
    listed = list(things)
    texts = [shortened(str(thing), MAX_LISTED) for thing in listed[:NUM_LISTED]]
    more = len(listed) - NUM_LISTED
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")


def shortened(text: str, length: int) -> str:
    """Return a name of at most ``length`` characters; its middle is left out, because the ends tell names apart."""
    text = one_line(text)
    if len(text) <= length:
        return text
    num_kept = length - 1
    return f"{text[: num_kept - num_kept // 2]}…{text[len(text) - num_kept // 2 :]}"


def explanations(level: float, rate_name: str) -> Mapping[str, str]:
    """Return what the terms in the tables mean."""
    false_alarms = f"{100 * (1 - level):.3g}"
    return {
        "May be best": f"The systems that no other one is significantly better than. In at most {false_alarms} of 100 "
        "such comparisons the truly best system is not among them.",
        "Ratio of errors": f"Of the geometric mean {rate_name}s over seeds: how a typical run compares with a typical "
        "run of the baseline, on the seeds that both systems have and on the same speakers, so that what is hard for "
        "both cancels out. 0.60 means 40 % fewer errors. Rates above 100 %, and runs that failed, count as 100 %.",
        "p (adjusted), verdict, interval of a ratio": "Corrected for the number of systems that are compared with the "
        f"baseline: at most {false_alarms} of 100 such test sets have any false verdict, and as many an interval that "
        "misses the true ratio. An interval that ends at 1.00 belongs to a significant difference.",
        "Cannot distinguish": "This does not mean that two systems are equal: with more seeds their difference may be "
        "significant.",
        "Interval of a mean": f"Another seed would give another {rate_name}, and so would other speakers. It "
        "covers both: the spread between seeds, and the spread among speakers that all seeds share (among utterances "
        "if speakers are unknown). With one seed it comes from resampling speakers or utterances (bootstrap) and "
        "covers this run only; another seed may be far outside.",
        "Learned": "A run has learned if its hypotheses depend on the audio: they fit their own references better than "
        "those of other utterances.",
        "80 of 100": "From the noise of the two systems, at the level of the first verdict. Larger differences are "
        "found more often, smaller ones less often; with more seeds all are.",
    }
