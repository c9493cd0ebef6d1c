"""Results of any toolkit → rows: one reader per format, and how a format is recognized."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from werdict.errors import first_line, naming_place
from werdict.text_files import (
    as_integer,
    as_number,
    check_header,
    composed,
    json_objects,
    numbered_lines,
    optional_text,
    read_lines,
    table_rows,
)

WITHOUT_FOLDER_AND_SUFFIX = r"([^/\\]+?)(\.\w+)?$"


@dataclass(slots=True)
class Row:
    """What one system recognized in one utterance, or how many errors it made.

    Attributes:
        id: of the utterance.
        reference: None if the file has none.
        hypothesis: None if only the numbers of errors and words are known, or nothing: the utterance is missing.
        system: None if the file does not name it.
        seed: None for a single run.
        set: name of the test set; None if the file does not name it.
        words: in the reference, if there is no hypothesis.
        errors: the same.
        columns: further ones of a table, by name.
    """

    id: str
    reference: str | None = None
    hypothesis: str | None = None
    system: str | None = None
    seed: int | None = None
    set: str | None = None
    speaker: str | None = None
    words: int | None = None
    errors: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Compose letters, so that the same words, ids and names are equal wherever they come from."""
        for name in ("id", "reference", "hypothesis", "system", "set", "speaker", "columns"):
            setattr(self, name, composed(getattr(self, name)))


def part_of_id(option: str, pattern: str) -> Callable[[str], str]:
    """Return a function that finds a part of an utterance's id.

    Args:
        option: that names the pattern, for messages.
        pattern: a regular expression; the part is its first group, or without groups all that it finds.

    Raises:
        re.error: it is no regular expression.
        ValueError: the function is given an id in which it finds nothing.
    """
    compiled = re.compile(pattern)

    def part_of(id: str) -> str:
        match = compiled.search(id)
        part: str | None = match and (match[1] if compiled.groups else match[0])
        if not part:
            raise ValueError(f"{option}={pattern!r} finds nothing in the utterance {id!r}")
        return part

    return part_of


def advice_on_ids(groups: Sequence[Collection[str]]) -> str:
    """Return which ``id_pattern`` makes more ids of several files agree, if folders and suffixes differ."""
    part_of = part_of_id("id_pattern", WITHOUT_FOLDER_AND_SUFFIX)
    parts = [{part_of(id) for id in ids if not id.endswith(("/", "\\"))} for ids in groups]
    are_unique = [*map(len, parts)] == [*map(len, groups)]
    if not are_unique or len(set.intersection(*parts)) <= len(set.intersection(*map(set, groups))):
        return ""
    return f". More ids agree without folders and suffixes: give 'id_pattern=\"{WITHOUT_FOLDER_AND_SUFFIX}\"'"


TEXTS = ("id", "reference", "hypothesis", "system", "set", "speaker")
NUMBERS = ("seed", "words", "errors")
SEPARATORS = "\t,;"
PARQUET = b"PAR1"  # how its files begin
Record = tuple[str, Mapping[str, Any]]  # file and line, and values by column
Columns = Mapping[str, str]  # names of columns or keys, if they are others than usual

ICEFALL = re.compile(r"(.*?):\t(ref|hyp|timestamp_ref|timestamp_hyp)=(.*)")
ICEFALL_ERRORS = "\nPER-UTT DETAILS:"  # in errs-SET-SUFFIX.txt
TRN = re.compile(r"(.*?)\s*\(([^()\s]+)\)\s*")
OF_SCLITE = re.compile(r"(?<!\S)(?:[{}@]|\(\S+\)|<ALT\w*>|(?i:IGNORE_TIME_SEGMENT_IN_SCORING))(?!\S)")
TIME = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
CHANNEL = r"\s*(?P<session_id>\S+)\s+(?P<channel>\S+)"
LABEL = r"<(?:[oO]|[^\s<>]*,[^\s<>]*)>"  # of subsets; <unk> is a word
STM = re.compile(
    rf"{CHANNEL}\s+(?P<speaker>\S+)\s+(?P<start_time>{TIME})\s+{TIME}(?:\s+{LABEL}(?!\S))?(?P<words>(?:\s.*)?)"
)
CTM = re.compile(
    rf"{CHANNEL}\s+(?P<start_time>{TIME}|\*)\s+(?:{TIME}|\*)\s+(?P<words>\S+)"
    r"(?:\s+(?:NA|[-+.\deE]+)(?:\s+lex(?:\s+NA)?)?)?\s*"
)
SPEECHBRAIN = re.compile(r"(.+), %WER [\d.]+ \[ (\d+) / (\d+), \d+ ins, \d+ del, \d+ sub \]")
ABSENT = re.compile(r"Scored \d+ sentences, (\d+) not present in hyp\.")
TIMED = (".stm", ".ctm")
EMPTY = "<eps>"
WENET = re.compile(r"WER: [\d.]+ % N=(\d+) C=(\d+) S=(\d+) D=(\d+) I=(\d+)")
LAB_OR_REC = re.compile(r"(lab|rec)(?:\(.*?\))?: (.*)")
PREDICTED = "pred_text"
NEMO_KEYS = ("audio_filepath", "text", "duration", "offset", "time", "parent_id", "chunk_index")


class Format(NamedTuple):
    """How results of a toolkit are recognized and read.

    Attributes:
        suffixes: usual endings of the files' names.
        matches: whether the first lines of a file, and the keys of its first JSON object, are of this format.
        read: yields the utterances of a file; raises a ValueError that names the file, and the line, if it is damaged.
    """

    suffixes: tuple[str, ...]
    matches: Callable[[str, Collection[str]], bool]
    read: Callable[[Path, Columns], Iterator[Row]]


def is_table(head: str, keys: Collection[str]) -> bool:
    """Return whether a file's first line, or the keys of its first JSON object, name the columns."""
    first = re.split(f"[{SEPARATORS}]", head.partition("\n")[0])
    names = {name.strip(' "').lower() for name in keys or first}
    return bool(names & {"hypothesis", "errors"}) or (
        "audio_filepath" not in names and ("reference" in names or {"id", "text"} <= names)
    )


def is_parquet(path: Path) -> bool:
    """Return whether a file is a table of Parquet."""
    with path.open("rb") as file:
        return file.read(len(PARQUET)) == PARQUET


def read_table(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Read CSV, TSV, JSON lines, or Parquet if pandas reads it; a row is an utterance.

    The columns are ``system``, ``seed``, ``set``, ``id``, ``speaker``, ``reference`` and ``hypothesis``, or in place of
    the texts ``errors`` and ``words``; further ones can be named by ``by``. A table of ``id`` and ``reference`` (or
    ``text``) is one of references. Case does not count in names.
    """
    if is_parquet(path):
        try:
            import pandas as pd

            frame = pd.read_parquet(path)
        except (ValueError, OSError, ImportError) as error:
            raise ValueError(f"{path} cannot be read as Parquet: {first_line(error)}") from error
        yield from rows_of(records_of(frame, str(path)), columns)
        return
    first = next(read_lines(path), "")
    records: Iterable[Record] = ((f"{path}, line {number}", line) for number, line in json_objects(path))
    if not first.startswith(("{", "[")):
        rows = table_rows(path, delimiter=max(SEPARATORS, key=first.count), strict=True)
        header = check_header(*next(rows, ("", [])))
        records = ((where, dict(zip(header, fields, strict=True))) for where, fields in rows)
    yield from rows_of(records, columns)


def records_of(table: Any, place: str) -> Iterator[Record]:
    """Yield the rows of a pandas frame, or dictionaries; None for each kind of missing value that pandas has.

    Args:
        table: of utterances.
        place: names it in messages.

    Raises:
        ValueError: two columns have one name.
    """
    lines = table
    if hasattr(table, "itertuples"):
        names = check_header(place, [*map(str, table.columns)])
        values = table.astype(object).where(table.notna(), None).itertuples(index=False)
        lines = (dict(zip(names, row, strict=True)) for row in values)
    for number, line in enumerate(lines, 1):
        yield f"{place}, row {number}", line


def rows_of(records: Iterable[Record], columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield rows with these fields.

    Args:
        records: each with where it stands, for messages.
        columns: names of the columns, if they are others.

    Raises:
        ValueError: a column is missing, or does not hold a text or number.
    """
    names: dict[str, str] = {}
    known: Collection[str] = ()
    places: Counter[object] = Counter()
    for where, line in records:
        if line.keys() != known:
            known = line.keys()
            names = _names(where, [*known], columns)
        try:
            texts = {field: optional_text(line[name], name) for field, name in names.items()}
            numbers = {field: _whole(text, names[field]) for field in NUMBERS if (text := texts.pop(field, None))}
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if numbers.keys() >= {"errors", "words"}:
            texts["hypothesis"] = texts.get("hypothesis") or None
        texts |= {field: texts.get(field) or None for field in ("id", "system", "set", "speaker")}
        if texts["id"] is None:  # then the place among those of the same run is its name
            run = (texts["system"], numbers.get("seed"), texts["set"])
            places[run] += 1
            texts["id"] = f"#{places[run]}"
        # NaN, as pandas writes what it does not have, is not equal to itself
        others = {name: line[name] for name in line.keys() - names.values() if isinstance(line[name], Hashable)}
        others = {name: sys.intern(str(v)) for name, v in others.items() if v not in (None, "") and v == v}
        # the same few systems and speakers, and the same references of each system, take memory once
        texts = {field: text and sys.intern(text) for field, text in texts.items()}
        yield Row(**texts, **numbers, columns=others)  # type: ignore[arg-type]


def _names(where: str, header: Collection[str], columns: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the columns by what they are.

    Raises:
        ValueError: there is nothing to score, or no column that the user names as the id.
    """
    folded = {name.lower(): name for name in header}
    names = {}
    for kind in (*TEXTS, *NUMBERS):
        wanted = [columns.get(kind, kind), kind]
        if kind == "reference" and "text" not in columns.values():
            wanted.append("text")
        there = (name if name in header else folded.get(name.lower()) for name in wanted)
        if name := next(filter(None, there), None):
            names[kind] = name
    if not names.keys() & {"hypothesis", "reference"} and not names.keys() >= {"errors", "words"}:
        expected = f"{columns.get('hypothesis', 'hypothesis')!r}, or 'errors' and 'words'"
        raise ValueError(f"{where}: expected the columns {expected}; found {', '.join(header)}")
    if "id" in columns and "id" not in names:
        raise ValueError(f"{where}: columns.id: there is no column {columns['id']!r}; found {', '.join(header)}")
    return names


def _whole(value: str, name: str) -> int:
    if (number := as_integer(value, name)) < 0:
        raise ValueError(f"{name} must be at least 0, given {value!r}")
    return number


def read_icefall(path: Path, columns: Columns) -> Iterator[Row]:
    """Read icefall's ``recogs-SET-SUFFIX.txt``: ``ID:<tab>ref=['A', "DON'T"]``, then ``ID:<tab>hyp=[…]``.

    Written by ``store_transcripts`` and ``store_transcripts_and_timestamps`` in icefall/utils.py, which print Python
    lists, or the whole text if a recipe did not split it. Where a recipe counts characters, the list holds characters.
    """
    texts: dict[str, str] = {}
    id, begun = "", ""
    for where, line in numbered_lines(path):
        match = ICEFALL.fullmatch(line)
        # a doubled utterance has a second reference
        if match is None or (match[2] not in ("ref", "timestamp_ref", "timestamp_hyp") and match[1] != id):
            expected = f"ID:<tab>ref=… or the hyp=… of {id!r}" if id else "ID:<tab>ref=…"
            errors = "" if id else "; errs-… only lists errors: give recogs-…, which icefall writes beside it"
            raise ValueError(f"{where}: expected {expected}, given {line[:200]!r}{errors}")
        if match[2] == "ref":
            if texts:
                break
            id, begun, texts = match[1], where, {"ref": _icefall_text(match[3], where)}
        elif match[2] == "hyp":
            yield Row(id, texts["ref"], _icefall_text(match[3], where))
            texts = {}
    if texts:
        raise ValueError(f"{begun}: the utterance {id!r} has no hyp=…")


def _icefall_text(value: str, where: str) -> str:
    if not value.startswith("["):
        return value
    try:
        return " ".join(word for word in ast.literal_eval(value) if word)
    except (ValueError, SyntaxError, TypeError) as error:
        raise ValueError(f"{where}: expected a list of words, given {value[:200]!r}") from error


def read_kaldi(path: Path, columns: Columns) -> Iterator[Row]:
    """Read Kaldi's ``text``: an utterance's id, a space, and its words; also ESPnet's ``hyp/text`` and ``hyp.scp``."""
    for _, line in numbered_lines(path):
        id, *words = line.split()
        yield Row(id, hypothesis=" ".join(words))


def is_kaldi(head: str, keys: Collection[str], most: int = 2) -> bool:
    """Return whether the first words of lines are different; ``most``: how often each may occur on average."""
    ids = [line.split(maxsplit=1)[0] for line in head.split("\n") if line.strip()]
    return not keys and not head.startswith(("=", "%")) and 0 < len(ids) <= most * len({*ids})


def read_trn(path: Path, columns: Columns) -> Iterator[Row]:
    """Read NIST's ``hyp.trn``: words, then the utterance's id in parentheses; of sclite and ESPnet2.

    The id is ``SPEAKER-UTTERANCE``, and both may have hyphens. Kaldi and ESPnet begin the utterance with its speaker;
    then, or if there is a single hyphen, it is clear where the speaker ends. Otherwise, or if all have one, the speaker
    is unknown.

    Reference:
        "trn", in the documentation of NIST's SCTK, doc/infmts.htm.
        Differs: alternatives, ``{a / b}``, and words that may be left out, ``(uh)``, are refused.
    """
    rows = []
    for where, line in numbered_lines(path):
        if line.startswith(";;"):
            continue
        match = TRN.fullmatch(line)
        if match is None:
            raise ValueError(f"{where}: expected words, then (ID); given {line[:200]!r}")
        _check_marks(match[1], where)
        rows.append(Row(match[2], hypothesis=" ".join(match[1].split()), speaker=_speaker(match[2])))
    # one name for all, as in utt-001, is no speaker
    known = len({row.speaker for row in rows}) > 1
    yield from (row if known else replace(row, speaker=None) for row in rows)


def _check_marks(text: str, where: str) -> None:
    if mark := OF_SCLITE.search(text):
        raise ValueError(
            f"{where}: {mark[0]!r} marks alternatives, words that may be left out, or a time that is not scored, which "
            "only sclite knows; write one text, or leave that time out, or compare the counts of sclite in a table"
        )


def _speaker(id: str) -> str | None:
    places = [place for place, character in enumerate(id) if character == "-"]
    if len(places) > 1:
        places = [place for place in places if id[place + 1 :].startswith(id[:place])]
    return id[: places[0]] if len(places) == 1 else None


def _lines_match(head: str, pattern: re.Pattern[str]) -> bool:
    lines = [line.rstrip() for line in head.split("\n") if line.strip() and not line.lstrip().startswith(";;")]
    return bool(lines) and all(map(pattern.fullmatch, lines))


def read_meeteval(path: Path, columns: Columns) -> Iterator[Row]:
    """Read STM, CTM and SegLST of NIST and MeetEval; what a speaker says in a recording is one utterance.

    Words are joined in the order of their times. CTM names no speakers; each recording is an utterance. Where one has
    several channels, each is an utterance of its own.

    Reference:
        "stm" and "ctm", in the documentation of NIST's SCTK, doc/infmts.htm; MeetEval's meeteval/io.
        Differs: what ``OF_SCLITE`` finds is refused.
    """
    is_json = next(read_lines(path), "").lstrip().startswith(("[", "{"))
    by_json = ((f"{path}, line {number}", segment) for number, segment in json_objects(path))
    spoken = defaultdict[tuple[str, str | None], dict[str, list[tuple[float, str | None]]]](lambda: defaultdict(list))
    for where, segment in by_json if is_json else _timed_lines(path):
        recording, words = (_text(segment, key, where) for key in ("session_id", "words"))
        if not recording:
            raise ValueError(f"{where}: 'session_id' is null; it names the recording")
        with naming_place(where):
            speaker = optional_text(segment.get("speaker"), "speaker")
            start_s = as_number(segment.get("start_time", 0), "start_time")
        spoken[recording, speaker][str(segment.get("channel"))].append((start_s, words))
    for (recording, speaker), by_channel in spoken.items():
        for channel, parts in by_channel.items():
            texts = [words for _, words in sorted(parts, key=lambda part: part[0])]
            names = [recording, channel if len(by_channel) > 1 else None, speaker]
            hypothesis = None if None in texts else " ".join(" ".join(map(str, texts)).split())
            yield Row("-".join(filter(None, names)), hypothesis=hypothesis, speaker=speaker)


def _timed_lines(path: Path) -> Iterator[Record]:
    """Yield what a line of STM or CTM says, by the keys of SegLST."""
    # a CTM of numbers looks like an STM too
    is_ctm = path.suffix == ".ctm" or (path.suffix != ".stm" and not _lines_match("".join(read_lines(path)), STM))
    for where, line in numbered_lines(path):
        if line.lstrip().startswith(";;"):
            continue
        match = (CTM if is_ctm else STM).fullmatch(line)
        if match is None:
            expected = "START DURATION WORD" if is_ctm else "SPEAKER START END WORDS"
            raise ValueError(f"{where}: expected RECORDING CHANNEL {expected}, given {line[:200]!r}")
        _check_marks(match["words"], where)
        yield where, match.groupdict()


def read_speechbrain(path: Path, columns: Columns) -> Iterator[Row]:
    """Read SpeechBrain's ``wer_*.txt``: ``ID, %WER …``, then reference, edits and hypothesis, words joined by `` ; ``.

    Written by ``print_wer_summary`` and ``print_alignments`` in speechbrain/dataio/wer.py: a header, an example of the
    alignments, then every utterance that was scored. Of others the header has the number alone: they have no ids.
    """
    lines = [line.rstrip("\r\n") for line in read_lines(path)]
    for number, line in enumerate(lines, 1):
        if absent := ABSENT.fullmatch(line):
            for place in range(1, int(absent[1]) + 1):
                yield Row(f"not scored in {path.name}: {place} of {absent[1]}", "")
        elif match := SPEECHBRAIN.fullmatch(line):
            reference, _, hypothesis = map(_speechbrain_words, (*lines[number:], "", "", "")[:3])
            if len(lines) < number + 3 or len(reference) != int(match[3]):
                raise ValueError(
                    f"{path}, line {number}: expected {match[3]} words, edits and a hypothesis, found "
                    f"{len(reference)}: {reference}"
                )
            yield Row(match[1], " ".join(reference), " ".join(hypothesis))


def _speechbrain_words(line: str) -> list[str]:
    return [word for part in line.split(" ; ") if (word := part.strip()) != EMPTY and word]


def read_wenet(path: Path, columns: Columns) -> Iterator[Row]:
    """Read blocks of WeNet's ``compute-wer.py``: ``utt:``, ``WER: … N= C= S= D= I=``, ``lab:`` and ``rec:``.

    Words are padded to stand below each other, by spaces, or with ``--padding-symbol=underline`` by ``_``, so that they
    are not as many as counted. Letters are upper case unless ``--cs=1`` was given. A long utterance may have several
    lines of each, and with ``--v=2`` lines repeat its id.
    """
    body = "".join(read_lines(path)).replace("\r\n", "\n").partition("\n=======")[0]
    starts = [match.start() for match in re.finditer(r"^utt: ", body, flags=re.MULTILINE)]
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        id, _, rest = body[start:end].removeprefix("utt: ").partition("\n")
        where = f"{path}, line {body.count(chr(10), 0, start) + 1}: the utterance {id!r}"
        counts = WENET.match(rest)
        words: dict[str, list[str]] = {"lab": [], "rec": []}
        for name, text in LAB_OR_REC.findall(rest):
            words[name] += text.split()
        if counts is None:
            raise ValueError(f"{where} has no line of counts, WER: … N= C= S= D= I=")
        num, hits, substituted, _, inserted = map(int, counts.groups())
        if (len(words["lab"]), len(words["rec"])) != (num, hits + substituted + inserted):
            raise ValueError(
                f"{where} has {num} words by its counts, {len(words['lab'])} in its text; run compute-wer.py with "
                "--padding-symbol=space"
            )
        yield Row(id, " ".join(words["lab"]), " ".join(words["rec"]))


def read_whisper(path: Path, columns: Columns) -> Iterator[Row]:
    """Read the JSON that Whisper, faster-whisper and whisperX leave for each audio file: ``text`` or ``segments``.

    Written by ``WriteJSON`` in whisper/utils.py, named after the audio file, which is the utterance's id. whisperX has
    no ``text``, and faster-whisper returns segments that its users dump.
    """
    for number, result in json_objects(path):
        parts: Any = [result] if "text" in result else result.get("segments")
        try:
            texts = [optional_text(part["text"], "text") for part in parts]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: expected a text, or segments with texts: {error}") from error
        words = None if None in texts else " ".join(" ".join(map(str, texts)).split())
        yield Row(path.stem, hypothesis=words)


def read_nemo(path: Path, columns: Columns) -> Iterator[Row]:
    """Read JSON lines of NeMo's ``transcribe_speech.py`` and of the Open ASR leaderboard, once for each model's text.

    Written by ``write_transcription`` in NeMo's transcribe_utils.py: the manifest's own keys, and ``pred_text``, or one
    ``pred_text_MODEL`` for each model that was appended. The leaderboard's ``write_manifest`` names an utterance whose
    file is not known by its place, ``sample_0``. A manifest that cuts recordings repeats their paths, with an
    ``offset``. Chunks of the leaderboard's recordings have a ``parent_id`` and a ``chunk_index``, and each has the
    reference of the whole.
    """
    lines: Sequence[Record] = [(f"{path}, line {number}", line) for number, line in json_objects(path)]
    column = columns.get("hypothesis")
    predicted = [column] if column else sorted({key for _, line in lines for key in line if key.startswith(PREDICTED)})
    if lines and "parent_id" in lines[0][1]:
        lines = _whole_recordings(lines, predicted)
    id, reference = columns.get("id", "audio_filepath"), columns.get("reference", "text")
    speaker = columns.get("speaker", "speaker")
    counts = Counter(_text(line, id, where) for where, line in lines)
    for where, line in lines:
        name = _text(line, id, where)
        if not name:
            raise ValueError(f"{where}: {id!r} is null; it names the utterance")
        if counts[name] > 1 and line.get("offset") is not None:
            name = f"{name}@{line['offset']}"
        others = {key: value for key, value in line.items() if key not in NEMO_KEYS}
        more = {key: str(value) for key, value in others.items() if not isinstance(value, list | dict)}
        said, who = (_text({key: line.get(key)}, key, where) for key in (reference, speaker))
        if reference in predicted:
            said = None
        for key in predicted:
            system = key.removeprefix(PREDICTED).removeprefix("_") if len(predicted) > 1 else None
            yield Row(name, said, _text(line, key, where), system, speaker=who, columns=more)
        if not predicted:
            yield Row(name, said, speaker=who)


def _text(line: Mapping[str, Any], key: str, where: str) -> str | None:
    """Return the text of a key of a line, None for null.

    Raises:
        ValueError: there is none.
    """
    if key not in line:
        raise ValueError(f"{where}: there is no {key!r}; found {', '.join(line)}")
    with naming_place(where):
        return optional_text(line[key], key)


def _whole_recordings(lines: Sequence[Record], predicted: Sequence[str]) -> Sequence[Record]:
    """Join what was recognized in the chunks of each recording, as ``merge_chunked_manifest`` does."""
    recordings = defaultdict[str | None, list[Record]](list)
    for where, line in lines:
        recordings[_text(line, "parent_id", where)].append((where, line))
    joined: list[Record] = []
    for name, chunks in recordings.items():
        chunks.sort(key=lambda chunk: str(chunk[1].get("chunk_index")).zfill(9))
        where, first = chunks[0]
        if [chunk.get("chunk_index") for _, chunk in chunks] != [*range(len(chunks))]:
            raise ValueError(f"{where}: chunks of {name!r} are missing, or occur twice")
        texts = {key: [_text(chunk, key, where) for where, chunk in chunks] for key in predicted}
        whole = {key: None if None in parts else " ".join(map(str, parts)) for key, parts in texts.items()}
        joined.append((where, {**first, **whole, "audio_filepath": name}))
    return joined


def _is_nemo(head: str, keys: Collection[str]) -> bool:
    # of a manifest too, for references
    is_predicted = any(key.startswith(PREDICTED) for key in keys)
    return "audio_filepath" in keys and (is_predicted or ("text" in keys and "hypothesis" not in keys))


def _is_icefall(head: str, keys: Collection[str]) -> bool:
    match = ICEFALL.match(head)
    return (match is not None and match[2] == "ref") or ICEFALL_ERRORS in head


FORMATS: Mapping[str, Format] = {
    "table": Format((".csv", ".tsv", ".jsonl", ".parquet"), is_table, read_table),
    "icefall": Format((".txt",), _is_icefall, read_icefall),
    "nemo": Format((".json", ".jsonl"), _is_nemo, read_nemo),
    "trn": Format((".trn",), lambda head, keys: _lines_match(head, TRN), read_trn),
    "speechbrain": Format(
        (".txt",), lambda head, keys: head.startswith("%WER ") and "\nScored " in head, read_speechbrain
    ),
    "wenet": Format(
        (".txt",), lambda head, keys: head.lstrip().startswith("utt: ") and bool(WENET.search(head)), read_wenet
    ),
    "whisper": Format((".json",), lambda head, keys: "segments" in keys, read_whisper),
    "meeteval": Format(
        (*TIMED, ".json"),
        lambda head, keys: "session_id" in keys or any(_lines_match(head, kind) for kind in (STM, CTM)),
        read_meeteval,
    ),
    "kaldi": Format((".scp",), is_kaldi, read_kaldi),
}
