"""Files in folders that others may have made: read within limits, as plain data; written whole, never elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from asr.error_text import first_line

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where PyYAML was built with libyaml
MAX_BYTES = 2**20  # of a config or a summary; ours have some ten thousand
MAX_TABLE_BYTES = 2**30  # of metrics and errors per utterance
MAX_NODES = 100_000  # of nested data; a config has some hundred
MAX_DEPTH = 50
MAX_DIGITS = 100  # characters of a number in YAML: those of base 60 take quadratic time
TEMPORARY = ".tmp"  # after the name of a file that is being written


def named_path(given: object) -> Path:
    """Return the path that a user names, ``~`` and ``~user`` expanded.

    Raises:
        ValueError: there is no such user.
    """
    try:
        return Path(str(given)).expanduser()
    except RuntimeError:
        user = str(given).partition("/")[0]
        raise ValueError(f"{str(given)!r}: no user is called {user[1:]!r}; write ./{user} for a file") from None


def check_regular_file(path: Path, max_bytes: int = MAX_TABLE_BYTES) -> None:
    """Refuse what is no regular file, or too large a one; a pipe or a device would be read without end.

    Raises:
        ValueError: it is.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"there is no file {path}") from None
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is not a regular file")
    if status.st_size > max_bytes:
        raise ValueError(f"{path} has {status.st_size} bytes, more than the {max_bytes} that are read")


def read_yaml(path: Path) -> Any:
    """Return the plain data of a YAML file without tags, and without aliases, with which a short file grows endless.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    check_regular_file(path, MAX_BYTES)
    try:
        text = path.read_text(encoding="utf-8")
        for event in _bounded_events(text):
            _refuse_event(event)
        return yaml.load(text, LOADER)
    except MemoryError:
        raise
    # PyYAML's constructors raise whatever Python does with values that only look right, such as a 99th month
    except Exception as error:
        raise ValueError(f"{path} is not plain YAML: {_where_and_why(error, path)}") from None


def checked_scalars(path: Path) -> list[str]:
    """Return the keys and values of a YAML file; refuse one that is too large, nested too deeply, or has aliases.

    Raises:
        ValueError: it is.
    """
    check_regular_file(path, MAX_BYTES)
    try:
        events = _bounded_events(path.read_text(encoding="utf-8"))
        return [event.value for event in events if isinstance(event, yaml.ScalarEvent)]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not plain YAML: {_where_and_why(error, path)}") from None


def _where_and_why(error: Exception, path: Path) -> str:
    """Return in one line what a YAML text breaks, with the number of its line as far as it is known."""
    line = None
    if isinstance(error, UnicodeDecodeError):
        line, reason = path.read_bytes()[: error.start].count(b"\n"), f"it is not UTF-8 ({error.reason})"
    elif isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        line, reason = error.problem_mark.line, error.problem or str(error.context)
    elif isinstance(error, yaml.reader.ReaderError):
        line, reason = path.read_bytes()[: error.position].count(b"\n"), error.reason
    else:
        reason = first_line(error, 200)
    return reason if line is None else f"line {line + 1}: {reason}"


def _refuse_event(event: yaml.Event) -> None:
    """Refuse what no config that is written by a program has."""
    tag = getattr(event, "tag", None)
    if tag is not None:
        raise yaml.YAMLError(f"it has the tag {tag!r:.80}; only untagged values are allowed")


def _bounded_events(text: str) -> Iterator[yaml.Event]:
    """Yield the events of a YAML text without aliases, deep nesting and endless numbers."""
    depth = 0
    for event in yaml.parse(text, LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise _refusal(event, "it has aliases")
        if depth > MAX_DEPTH:
            raise _refusal(event, f"it is nested deeper than {MAX_DEPTH}")
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and len(event.value) > MAX_DIGITS:
            kind = yaml.resolver.Resolver().resolve(yaml.ScalarNode, event.value, (True, False))
            if kind != yaml.resolver.Resolver.DEFAULT_SCALAR_TAG:
                problem = f"it has a number of {len(event.value)} characters; {MAX_DIGITS} are allowed"
                raise _refusal(event, problem)
        yield event


def _refusal(event: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def read_json(path: Path, max_bytes: int = MAX_BYTES, max_values: int = 2 * MAX_NODES) -> Any:
    """Return the data of a JSON file, of which an empty mapping takes three bytes, and in memory sixty times as much.

    Args:
        path: of the file.
        max_bytes: that it may have.
        max_values: brackets and commas that it may have, those in texts included.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    check_regular_file(path, max_bytes)
    try:
        data = path.read_bytes()
        if sum(data.count(mark) for mark in b"[{,") > max_values:
            raise ValueError(f"it has more than {max_values} brackets and commas")
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def check_plain(node: Any, where: str) -> None:
    """Refuse nested data that is more than mappings with text keys, lists and plain values, or too much of it.

    Args:
        node: the data.
        where: it is from, for messages.

    Raises:
        ValueError: a key or a value is of another type, or there are too many, or nested too deeply.
    """
    todo, num_nodes = [("", node, 0)], 0
    while todo:
        key, value, depth = todo.pop()
        num_nodes += 1
        # shared parts count each time: walking them takes as long
        if num_nodes > MAX_NODES or depth > MAX_DEPTH:
            raise ValueError(f"{where} holds more than {MAX_NODES} values, or nests them deeper than {MAX_DEPTH}")
        if isinstance(value, Mapping):
            for name, item in value.items():
                if not isinstance(name, str):
                    raise ValueError(f"{where}: {key or 'the top level'} has the key {name!r}; only text is allowed")
                todo.append((f"{key}.{name}" if key else name, item, depth + 1))
        elif isinstance(value, list | tuple):
            todo += [(f"{key}.{number}", item, depth + 1) for number, item in enumerate(value)]
        elif not isinstance(value, bool | int | float | str | None):
            raise ValueError(f"{where}: {key} is a {type(value).__name__}; only plain values are allowed")


def open_inside(path: Path, mode: str) -> IO[str]:
    """Open a text file of a run's folder for reading or writing, unless the name is a symbolic link.

    Args:
        path: of the file.
        mode: ``r``, ``w`` or ``a``.

    Raises:
        ValueError: the name is a link, which could lead to any file of the user's.
        OSError: it cannot be opened.
    """

    def without_following(name: str, flags: int) -> int:
        # a pipe without a reader would be waited for; files do not know the flag
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)

    if path.is_symlink():
        raise ValueError(f"{path} is a symbolic link, which is not followed here; remove it")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file; remove it")
    return open(path, mode, encoding="utf-8", newline="", opener=without_following)


def refuse_links_outside(folder: Path, except_for: str = "") -> None:
    """Refuse a folder in which a symbolic link leads out of it: writing there would change files elsewhere.

    Args:
        folder: with all that is below it.
        except_for: pattern of links, seen from the folder, that nothing is written through.

    Raises:
        ValueError: names the link and where it leads.
    """
    root = folder.resolve()
    for link in _links(root):
        if except_for and link.relative_to(root).match(except_for):
            continue
        check_inside(link, root)


def check_inside(path: Path, folder: Path) -> None:
    """Refuse a path that links lead out of the folder in which it stands.

    Raises:
        ValueError: they do; or they lead to each other without end.
    """
    target = Path(os.path.realpath(path))
    if not target.is_relative_to(folder.resolve()):
        raise ValueError(f"{path} is a symbolic link that leads out of its folder, to {target}; remove it")


def _links(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        yield from (path for name in (*folders, *files) if (path := Path(parent, name)).is_symlink())


def replace_by(path: Path, make: Callable[[Path], object]) -> None:
    """Put at ``path`` what ``make`` leaves at a temporary name beside it, in one step that survives a power cut.

    Raises:
        OSError: it cannot be written; what was there before is as it was.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    temporary.unlink(missing_ok=True)
    try:
        with naming(path):
            make(temporary)
        temporary.replace(path)
    finally:
        # left where writing failed, and where both names were links to one file already
        temporary.unlink(missing_ok=True)
    sync(path.parent)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the disk that name no file, as a full one does while writing, name this one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, or replace it, in one step: other processes and later ones see all of it or none."""
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content

    def make(temporary: Path) -> None:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    replace_by(path, make)


def refuse_existing(path: Path) -> None:
    """Say so if there is anything at ``path``, be it a link that leads nowhere.

    Raises:
        FileExistsError: there is.
    """
    if os.path.lexists(path):
        raise FileExistsError(
            f"{path} exists and reports are never overwritten; remove the old report or give another output folder"
        )


def write_new(path: Path, content: str | bytes) -> None:
    """Write a file in a folder that exists; text as UTF-8.

    Raises:
        FileExistsError: there is one already; it stays as it is.
    """
    data = content if isinstance(content, bytes) else content.encode()
    # not named after the file, whose name may be as long as names can be
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with naming(path):
            temporary.write_bytes(data)
        _move_to_new(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _move_to_new(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # unlike a rename it never replaces a file that another process has just written
    except FileExistsError:
        refuse_existing(path)
        raise
    except OSError:  # a file system without hard links
        refuse_existing(path)
        temporary.rename(path)
