"""Numbers and names as people read them in reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from asr.console import one_line

UNKNOWN = "–"
NUM_LISTED = 5  # ids or runs that a sentence names
MAX_LISTED = 300  # characters of each


def percent(fraction: float | None) -> str:
    """Return a rate in percent, without the sign: ``3.10``."""
    return UNKNOWN if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.2f}"


def detectable(difference: float | None) -> str:
    """Return a detectable difference in percentage points; ``> 100`` if no possible difference is large enough."""
    return "> 100" if difference is not None and difference > 1 else percent(difference)


def points(difference: float) -> str:
    """Return a difference of rates in percentage points with its sign; zero is ``+0.00``."""
    rounded = round(100 * difference, 2) + 0.0  # makes -0.0 positive
    return f"{rounded:+.2f}".replace("-", "−") if math.isfinite(rounded) else UNKNOWN


def interval(low: float, high: float, shown: Callable[[float], str] = percent) -> str:
    """Return the ends of an interval, by default of a rate in percent; unknown ends are infinite."""
    return f"[{shown(low) if math.isfinite(low) else '−∞'}, {shown(high) if math.isfinite(high) else '∞'}]"


def rate_interval(low: float, high: float) -> str:
    """Return the ends of an interval of a rate in percent; ``–`` if every rate is inside."""
    return UNKNOWN if low <= 0 and math.isinf(high) else interval(low, high)


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


def p_equation(value: float) -> str:
    """Return ``p = 0.042`` or ``p < 0.001``."""
    return f"p {p_value(value)}" if value < 0.001 else f"p = {p_value(value)}"


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
    kept = length - 1
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"
