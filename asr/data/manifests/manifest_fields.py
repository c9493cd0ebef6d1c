"""The fields of lhotse's recordings, features, supervisions and cuts that are read, and their types."""

from __future__ import annotations

from typing import Any

from asr.text.normalize import is_one_line

Type = type | tuple[type, ...]

NUMBER = (int, float)
RECORDING: dict[str, Type] = {"id": str, "sources": list, "sampling_rate": int, "num_samples": int, "duration": NUMBER}
RECORDING_OPTIONAL: dict[str, Type] = {"channel_ids": list, "transforms": list}
FEATURES: dict[str, Type] = {
    **dict.fromkeys(("recording_id", "storage_type", "storage_path", "storage_key"), str),
    **dict.fromkeys(("start", "duration", "frame_shift"), NUMBER),
    **dict.fromkeys(("num_frames", "num_features", "sampling_rate"), int),
}
FEATURES_OPTIONAL: dict[str, Type] = {"type": str, "channels": int}
SUPERVISION: dict[str, Type] = {"id": str, "recording_id": str, "start": NUMBER, "duration": NUMBER}
SUPERVISION_OPTIONAL: dict[str, Type] = {
    "channel": (int, list),
    **dict.fromkeys(("text", "speaker", "language", "gender"), str),
}
CUT: dict[str, Type] = {"id": str, "start": NUMBER}
CUT_OPTIONAL: dict[str, Type] = {"recording": dict, "supervisions": list}
# outside of these lhotse's arithmetic fails, or rounds segments to nothing; zero and negative numbers contradict other
# fields, which manifest_checks reports
RANGES = {
    "sampling_rate": (1, 10**9),
    "num_samples": (1, 10**13),
    "duration": (1e-6, 1e9),
    "start": (0, 1e9),
    "num_frames": (1, 10**12),
    "num_features": (1, 10**6),
    "frame_shift": (1e-6, 1e6),
}


def check_fields(where: str, data: Any, required: dict[str, Type], optional: dict[str, Type]) -> dict[str, Any]:
    """Return the fields of an item that are read.

    Args:
        where: the place of the item, for messages.
        data: the item.
        required: types by field.
        optional: the same for fields that may be missing or null.

    Raises:
        ValueError: it is no object, or a field has another type or is an impossible number.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{where}: an object in braces is expected, given {str(data)[:60]!r}")
    found: dict[str, Any] = {}
    for fields, needed in ((required, True), (optional, False)):
        for name, kinds in fields.items():
            value = data.get(name)
            if value is None and not needed:
                continue
            if not isinstance(value, kinds) or isinstance(value, bool):
                names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
                raise ValueError(f"{where}: field {name!r} must be {names}, given {str(value)[:60]!r}")
            if name == "id" and not is_one_line(str(value)):
                raise ValueError(
                    f"{where}: field 'id' must be one line of text without tabs, given {str(value)[:60]!r}"
                )
            if name in RANGES and isinstance(value, int | float) and value != 0:
                least, most = RANGES[name]
                if not least <= abs(value) <= most:
                    given = str(value)[:60]
                    raise ValueError(f"{where}: field {name!r} must be from {least:g} to {most:g}, given {given}")
            found[name] = value
    return found
