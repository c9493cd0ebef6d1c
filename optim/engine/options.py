"""Checks of hyper-parameters whose messages say what is allowed."""

from __future__ import annotations

import difflib
import math
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

Choices = list[str | None]
SWITCH = "True or False"
FLOAT_DTYPE = "float16, bfloat16, float32, float64 or None"
OR_NONE = " or None"
WHOLE = " of whole numbers"
Domain = str | tuple[str, ...] | Choices
"""What an option may be: `SWITCH`, `FLOAT_DTYPE`, an interval as in `check_range`, a tuple of intervals, or choices."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x', 'y'?)" for the known words close to ``word``, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=3)
    return f" (did you mean {', '.join(map(repr, near))}?)" if near else ""


def check_names(names: Iterable[str], allowed: Iterable[str], where: str) -> None:
    """Refuse unknown option names.

    Raises:
        ValueError: a given name is not among the allowed ones.
    """
    known = sorted(allowed)
    for name in names:
        if name not in known:
            raise ValueError(
                f"{where}: unknown option {name!r}{did_you_mean(str(name), known)}; "
                f"allowed are {', '.join(known)}. Correct or remove it."
            )


def compiled(pattern: str) -> re.Pattern[str]:
    """Return a regular expression that a config gives.

    Raises:
        ValueError: it is none.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error


def plain(value: Any) -> Any:
    """Return an option as Python's own numbers, lists and tuples, which checkpoints can hold; a tensor stays."""
    if hasattr(value, "tolist") and not isinstance(value, Tensor):  # numpy's numbers and arrays
        value = value.tolist()
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, int | float) else value


def check_range(option: str, value: object, interval: str, *, may_be_tensor: bool = False) -> None:
    """Refuse a value that is not a number, or lies outside an interval.

    Args:
        option: name for the message.
        value: the value given.
        interval: in mathematical notation, such as ``[0, 1)`` or ``(0, inf)``; infinity is never allowed. Ends with
            ``of whole numbers`` to refuse 4.0, and with ``or None`` to allow None.
        may_be_tensor: also accept a tensor of one element, which is read once.

    Raises:
        ValueError: the value is not allowed.
    """
    number = value.item() if may_be_tensor and isinstance(value, Tensor) and value.numel() == 1 else value
    is_number = isinstance(number, numbers.Real) and not isinstance(number, bool)  # Python's bool is an int
    if interval.endswith(OR_NONE) and value is None:
        return
    if interval.endswith(WHOLE):
        is_number = is_number and isinstance(number, numbers.Integral)
    bounds = interval.removesuffix(OR_NONE).removesuffix(WHOLE)
    low, high = map(float, bounds[1:-1].split(","))
    x = float(number) if is_number else math.nan  # type: ignore[arg-type]
    # both are false for NaN
    if not ((low <= x if bounds[0] == "[" else low < x) and (x <= high if bounds[-1] == "]" else x < high)):
        expected = "a number or a tensor of one element" if may_be_tensor else "a number"
        raise ValueError(f"{option} must be {expected} in {interval}, given {value!r}")


def check_order(group: Mapping[str, Any], least: str, most: str) -> None:
    """Refuse a range of two options that is empty.

    Raises:
        ValueError: names both.
    """
    if group[most] < group[least]:
        raise ValueError(f"{most} must be at least {least}, given {group[most]!r} and {group[least]!r}")


def check_options(options: dict[str, Any], allowed: Mapping[str, Domain]) -> None:
    """Check hyper-parameters; make them plain, lists tuples, dtypes names, and an lr of one element a scalar.

    Args:
        options: values by name, changed in place; names beyond ``allowed`` are left alone.
        allowed: by name; ``lr`` may also be a tensor.

    Raises:
        ValueError: a value is not allowed.
    """
    for option, domain in allowed.items():
        value = options[option] = plain(options[option])
        if domain == SWITCH:
            # 1 and "no" are truthy: a config's typing error would switch the option on
            if not isinstance(value, bool):
                raise ValueError(f"{option} must be {SWITCH}, given {value!r}")
        elif domain == FLOAT_DTYPE:
            options[option] = _dtype_name(option, value)
        elif isinstance(domain, list):
            if value not in domain:
                raise ValueError(f"{option} must be one of {', '.join(map(str, domain))}, given {value!r}")
        elif isinstance(domain, str):
            check_range(option, value, domain, may_be_tensor=option == "lr")
            if isinstance(value, Tensor) and value.dim():
                options[option] = value.detach().view(())  # which shares its memory: who fills one fills both
        else:
            options[option] = _check_tuple(option, value, domain)


def _dtype_name(option: str, value: Any) -> str | None:
    """Return the name of a dtype: a group then holds plain values, and a config can write it."""
    name = str(value).removeprefix("torch.")
    if value is not None and name not in FLOAT_DTYPE.removesuffix(OR_NONE).split(", "):
        raise ValueError(f"{option} must be {FLOAT_DTYPE}, given {value!r}")
    return None if value is None else name


def _check_tuple(option: str, value: object, intervals: tuple[str, ...]) -> tuple[Any, ...]:
    if not isinstance(value, Sequence) or len(value) != len(intervals):
        raise ValueError(f"{option} must be {len(intervals)} numbers, given {value!r}")
    for i, interval in enumerate(intervals):
        check_range(f"{option}[{i}]", value[i], interval)
    # a config gives lists; checkpoints and comparisons with defaults need one type
    return tuple(value)
