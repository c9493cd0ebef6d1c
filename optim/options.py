"""Checks of hyper-parameters whose messages say what is allowed."""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

SWITCH = "True or False"
OR_NONE = " or None"
WHOLE = " of whole numbers"
Domain = str | tuple[str, ...]
"""What an option may be: `SWITCH`, an interval as in `check_range`, or a tuple of intervals for a tuple of numbers."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x', 'y'?)" for the known words close to ``word``, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=3)
    return f" (did you mean {', '.join(map(repr, near))}?)" if near else ""


def check_names(given: Iterable[str], allowed: Iterable[str], where: str) -> None:
    """Refuse option names that nobody reads.

    Raises:
        ValueError: a given name is not among the allowed ones.
    """
    known = sorted(allowed)
    for name in given:
        if name not in known:
            raise ValueError(
                f"{where}: unknown option {name!r}{did_you_mean(str(name), known)}; "
                f"allowed are {', '.join(known)}. Correct or remove it."
            )


def check_range(option: str, value: object, interval: str, *, may_be_tensor: bool = False) -> None:
    """Refuse a value that is no number, or lies outside an interval.

    Args:
        option: name for the message.
        value: the value given.
        interval: in mathematical notation, such as ``[0, 1)`` or ``(0, inf)``; infinity is never allowed. None is,
            where ``or None`` follows. Where ``of whole numbers`` follows, 4.0 is not allowed either.
        may_be_tensor: also accept a 0-dimensional tensor, which is read once.

    Raises:
        ValueError: the value is not allowed.
    """
    number = value.item() if may_be_tensor and isinstance(value, Tensor) and value.dim() == 0 else value
    is_number = isinstance(number, numbers.Real) and not isinstance(number, bool)
    if interval.endswith(OR_NONE) and value is None:
        return
    if interval.endswith(WHOLE):
        is_number = is_number and isinstance(number, numbers.Integral)
    bounds = interval.removesuffix(OR_NONE).removesuffix(WHOLE)
    if not is_number or not _lies_in(bounds, float(number)):  # type: ignore[arg-type]
        kind = "a number or a 0-dimensional tensor" if may_be_tensor else "a number"
        raise ValueError(f"{option} must be {kind} in {interval}, given {value!r}")


def _lies_in(interval: str, number: float) -> bool:
    low, high = (float(bound) for bound in interval[1:-1].split(","))
    above = low <= number if interval[0] == "[" else low < number
    below = number <= high if interval[-1] == "]" else number < high
    return above and below  # NaN is neither


def check_options(options: dict[str, Any], allowed: Mapping[str, Domain]) -> None:
    """Check hyper-parameters, and turn lists into tuples.

    Args:
        options: values by name; changed in place where a list stands for a tuple. Names beyond ``allowed`` are
            left alone.
        allowed: by name; ``lr`` may also be a tensor.

    Raises:
        ValueError: a value is not allowed.
    """
    for option, domain in allowed.items():
        value = options[option]
        if domain == SWITCH:
            if not isinstance(value, bool):
                raise ValueError(f"{option} must be {SWITCH}, given {value!r}")
        elif isinstance(domain, str):
            check_range(option, value, domain, may_be_tensor=option == "lr")
        else:
            options[option] = _check_tuple(option, value, domain)


def _check_tuple(option: str, value: object, intervals: tuple[str, ...]) -> tuple[Any, ...]:
    if not isinstance(value, Sequence) or len(value) != len(intervals):
        raise ValueError(f"{option} must be {len(intervals)} numbers, given {value!r}")
    for i, interval in enumerate(intervals):
        check_range(f"{option}[{i}]", value[i], interval)
    return tuple(value)
