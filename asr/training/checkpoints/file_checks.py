"""Checks the bytes of a checkpoint before it is read: it may be damaged, or come from a stranger.

A zip file of uncompressed parts, each with its checksum, and a pickle that makes only tensors and plain data.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import sys
import zipfile
from pathlib import Path

from asr.error_text import first_line, is_out_of_memory
from asr.safe_io import check_regular_file

MAX_READ = 2**23  # bytes read at once: the list of parts; our files have some hundred
MAX_PICKLE = 2**24  # bytes of data.pkl, which describes the tensors, and holds the config and the tokenizer
MAX_STEPS = 1_000_000  # opcodes of the pickle; our files have some ten thousand
STEPS_PER_PART, BYTES_PER_PART = 200, 1000  # allowed in addition for each tensor
# bytes at the end of a zip file: the record for large files and its locator, both optional, then the end itself
RECORD, LOCATOR, END = 56, 20, 22
DTYPES = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
GLOBALS = {
    "collections OrderedDict",
    "torch Size",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"torch {dtype}Storage" for dtype in DTYPES),
}


class _BoundedReader(io.BufferedReader):
    """A file that refuses reads too large for memory: zipfile would trust a size that the file claims."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most ``MAX_READ`` bytes."""
        if size is not None and size > MAX_READ:
            raise ValueError(f"{size} bytes of it would have to be read at once")
        return super().read(size)


def damage(path: Path) -> str:
    """Return what is wrong with the bytes of a checkpoint; empty if every part matches its checksum.

    Also wrong is what could take more memory than the file has bytes: parts that are compressed or overlap, and pickle
    steps that call anything except constructors of tensors.

    Raises:
        PermissionError: the file may not be read.
    """
    try:
        check_regular_file(path, sys.maxsize)
        with _BoundedReader(io.FileIO(path)) as file, zipfile.ZipFile(file) as archive:
            _check_directory(file, path.stat().st_size)
            _check_parts_of_file(archive, path.stat().st_size)
            bad = archive.testzip()
            if bad is None:
                _check_pickle(archive)
    # a flipped bit can raise anything: it may claim encryption, an unknown compression, or a position after the end
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, PermissionError):
            raise
        size = f"{path.stat().st_size} bytes" if path.exists() else "no file"
        return f"{why_unreadable(error)} ({size})"
    return f"the checksum of {bad} does not fit" if bad else ""


def why_unreadable(error: Exception) -> str:
    """Return in one line why a checkpoint could not be read."""
    if isinstance(error, pickle.UnpicklingError):
        # torch's own first line advises to let the file run code
        reason = str(error).partition("WeightsUnpickler error:")[2].strip() or "it is not a pickle of plain data"
        return f"its data.pkl cannot be read: {reason.splitlines()[0][:200]}"
    return first_line(error)


def _check_directory(file: io.BufferedReader, num_bytes: int) -> None:
    """Refuse a file in which PyTorch would find other parts than zipfile, which they are checked with.

    PyTorch reads the list of parts from the place that the end of the file states, zipfile from just before that end;
    and where there is a record for large files, PyTorch looks where its locator says, zipfile just before that.
    """
    file.seek(max(0, num_bytes - RECORD - LOCATOR - END))
    tail = file.read()
    end_of_list = num_bytes - END
    record, locator, end = tail[:RECORD], tail[-LOCATOR - END : -END], tail[-END:]
    num_comment_bytes = int.from_bytes(end[20:], "little")
    size, place = struct.unpack("<II", end[12:20])
    if locator.startswith(b"PK\x06\x07"):
        end_of_list = num_bytes - RECORD - LOCATOR - END
        if not record.startswith(b"PK\x06\x06") or struct.unpack("<Q", locator[8:16])[0] != end_of_list:
            raise ValueError("it states two places of its list of parts")
        size, place = struct.unpack("<QQ", record[40:])
    if not end.startswith(b"PK\x05\x06") or num_comment_bytes or place + size != end_of_list:
        raise ValueError("its list of parts is not where the end of the file says")


def _check_parts_of_file(archive: zipfile.ZipFile, num_bytes: int) -> None:
    parts = archive.infolist()
    for part in parts:
        # torch.save never compresses; a few compressed bytes could unpack to more than the memory
        if part.compress_type != zipfile.ZIP_STORED or part.compress_size != part.file_size:
            raise ValueError(f"its part {part.filename[:80]!r} is compressed, which checkpoints are not")
    if sum(part.file_size for part in parts) > num_bytes:
        raise ValueError("its parts overlap")
    if len({part.filename.lower() for part in parts}) < len(parts):
        raise ValueError("two of its parts have one name")


def _check_pickle(archive: zipfile.ZipFile) -> None:
    """Check the opcodes of the pickle without executing any."""
    found = [part for part in archive.infolist() if part.filename.lower().endswith("data.pkl")]
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} parts data.pkl, not one")
    num_parts = len(archive.infolist())
    if found[0].file_size > MAX_PICKLE + BYTES_PER_PART * num_parts:
        raise ValueError(f"its data.pkl has {found[0].file_size} bytes, too many for {num_parts} parts")
    most = MAX_STEPS + STEPS_PER_PART * num_parts
    with archive.open(found[0]) as file:
        content = b"".join(iter(lambda: file.read(2**20), b""))
    for number, (step, argument, _) in enumerate(pickletools.genops(content)):
        if number > most:
            raise ValueError(f"its data.pkl has more than {most} steps, too many for {num_parts} parts")
        if step.name == "GLOBAL" and argument not in GLOBALS:
            raise ValueError(f"it calls {str(argument).replace(' ', '.')[:80]}, which no checkpoint needs")
        if step.name == "LONG4":
            raise ValueError("it holds a number of more than 255 bytes, which no checkpoint needs")
        if step.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"):
            raise ValueError(f"it has the step {step.name}, which no checkpoint needs")
