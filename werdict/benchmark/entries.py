"""Entries of the benchmark: what an entrant gives, and what its runs on a task have measured, as they are stored.

``benchmark/v2/RULESET/NAME/`` holds ``entry.yaml`` and a source file, which an entrant commits. Runs add
``TASK.jsonl``, whose first line tells what all runs share and each other line is a run, and ``TASK.verdict.json``.
``benchmark/v2/TASK.yaml`` says what all entries on a task share, which harnesses gave the same numbers, and which
options have had other defaults, or been none, since the first entry; ``TASK.tsv`` lists the test utterances.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from werdict.benchmark.rules import fixed_part, free_part
from werdict.errors import ConfigError
from werdict.files import read_yaml, write_whole
from werdict.runs import Cost, Curve, Run, SetErrors
from werdict.scoring import SCORER
from werdict.statistics.times import DEV_WER

DEV_LOSS = "val/dev/loss"
CURVES = {DEV_LOSS: "dev_loss", DEV_WER: "dev_wer"}
TEST = "test"
ABOUT, ABOUT_KEYS = "entry.yaml", ("author", "about", "overrides", "reproduces")
DIGITS = 5  # of stored losses
SHARED = ("data", "references", "scorer", "fixed")  # what all runs on a task have in common, to the letter


@dataclass(frozen=True)
class Entry:
    """An optimizer with its settings, and its runs on one task.

    Attributes:
        folder: ``RULESET/NAME``.
        about: what ``entry.yaml`` says: author, overrides, and what it reproduces, if anything.
        shared: the first line of ``TASK.jsonl``: the commit that its seeds are drawn from, and what the rules fix.
        lines: of its runs, in the order of their seeds; that of a failed run has a seed and how it failed.
    """

    folder: Path
    task: str
    about: Mapping[str, Any]
    shared: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]

    @property
    def name(self) -> str:
        """Of the entry."""
        return self.folder.name

    @property
    def root(self) -> Path:
        """Folder of the version."""
        return self.folder.parent.parent

    @cached_property
    def runs(self) -> list[Run]:
        """The finished runs by number, not by seed: the n-th runs of two entries are compared, though seeds differ."""
        ids, speakers, words = zip(*read_utterances(self.root, self.task), strict=True)
        runs = []
        for number, line in enumerate(self.lines, 1):
            if "errors" in line:
                learned, updates = line["depends_on_audio"], tuple(line["updates"])
                errors = SetErrors(
                    ids, speakers, tuple(map(int, words)), tuple(line["errors"]), depends_on_audio=learned
                )
                curves = {name: Curve(updates, (), tuple(line[key])) for name, key in CURVES.items()}
                cost = Cost(**line["cost"])
                runs.append(Run(self.folder, self.name, number, {TEST: errors}, curves=curves, cost=cost))
        return runs

    @property
    def failed(self) -> list[tuple[str, int]]:
        """Name and number of each run that failed by itself: all words are errors, and no target is reached."""
        return [(self.name, number) for number, line in enumerate(self.lines, 1) if "failed" in line]

    @property
    def wers(self) -> list[float]:
        """Word error rate of each run, a fraction; 1 of one that failed."""
        return [run.sets[TEST].wer for run in self.runs] + [1.0] * len(self.failed)

    @property
    def is_of_gpu(self) -> bool:
        """Whether a GPU made its runs."""
        return any(line.get("on_gpu", False) for line in self.lines)

    @property
    def cost(self) -> float | None:
        """CPU seconds of a run, relative to one of the baseline at the same time on the same machine."""
        seconds = [(line["cost"]["cpu_seconds"], line["baseline_cpu_seconds"]) for line in self.lines if "cost" in line]
        measured = [own / usual for own, usual in seconds if own is not None]
        return statistics.median(measured) if measured else None


def read_about(folder: Path) -> dict[str, Any]:
    """Read what an entrant says of an entry.

    Raises:
        ConfigError: there is no such file, or it does not hold what it must.
        ValueError: it is no YAML.
    """
    path = folder / ABOUT
    if not path.is_file():
        raise ConfigError(f"{folder} is no folder with {ABOUT}; docs/benchmark/rules.md says what it holds")
    about = read_yaml(path)
    if not isinstance(about, dict) or about.keys() - ABOUT_KEYS:
        raise ConfigError(f"{path} may have the keys {', '.join(ABOUT_KEYS)}; given {about!r}")
    overrides = about.get("overrides")
    if not isinstance(overrides, list) or not all(isinstance(word, str) for word in overrides):
        raise ConfigError(f"{path}: overrides must be a list such as [optimizer=muon], given {overrides!r}")
    return about


def read_entry(folder: Path, task: str) -> Entry:
    """Read an entry and its runs on a task.

    Raises:
        ValueError: a file does not exist or is damaged.
    """
    shared, *lines = map(json.loads, (folder / f"{task}.jsonl").read_text(encoding="utf-8").splitlines())
    return Entry(folder, task, read_about(folder), shared, lines)


def entries_of(root: Path, task: str, ruleset: str) -> list[Entry]:
    """Return the entries that have runs on a task, by name."""
    return [read_entry(path.parent, task) for path in sorted((root / ruleset).glob(f"*/{task}.jsonl"))]


def read_utterances(root: Path, task: str) -> list[list[str]]:
    """Return id, speaker and number of words of each utterance of a test set."""
    text = (root / f"{task}.tsv").read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines()]


@dataclass(frozen=True)
class FinishedRun:
    """A run of an entry: what it measured, its ``summary.json``, and its config by dotted keys.

    Attributes:
        data: digest of all utterances, and not of the place and form of their source.
        batch: what it shares with the runs that were trained together: the harness, and the CPU seconds of a run of
            the baseline beside them.
    """

    run: Run
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    data: str
    batch: Mapping[str, Any]

    def shared(self) -> dict[str, Any]:
        """Return what it must have in common with all runs on its task."""
        values = self.data, self.run.sets[TEST].references, SCORER, fixed_part(self.summary["system"])
        return dict(zip(SHARED, values, strict=True))

    def line(self) -> dict[str, Any]:
        """Return what is stored."""
        loss, wer, errors = self.run.curves[DEV_LOSS], self.run.curves[DEV_WER], self.run.sets[TEST]
        return {
            "seed": self.run.seed,
            "settings": free_part(self.config),
            "updates": loss.updates,
            "dev_loss": [float(f"{value:.{DIGITS}g}") for value in loss.values],
            "dev_wer": [float(f"{value:.{DIGITS}g}") for value in wer.values],
            "errors": errors.errors,
            "depends_on_audio": errors.depends_on_audio,
            "cost": asdict(self.run.cost),
            "on_gpu": "peak_gpu_memory_mb" in self.summary,
            **{key: self.summary[key] for key in ("commit", "date", "machine", "python", "versions")},
            **self.batch,
        }


def collected(
    folder: Path,
    task: str,
    about: Mapping[str, Any],
    told: Mapping[str, Any],
    finished: Iterable[FinishedRun],
    failed: Mapping[int, str],
    before: Entry | None = None,
) -> Entry:
    """Return an entry with what its runs have measured; the first on a task tells what all others share with it.

    Args:
        folder: of the entry.
        task: of the runs.
        about: what ``entry.yaml`` says.
        told: what all runs share beside what they tell.
        finished: runs.
        failed: how each run failed that did, by seed.
        before: the entry as it is stored, whose runs it keeps.

    Raises:
        ConfigError: runs differ in what they share, or were tested on other utterances than those of other entries.
    """
    runs, root = sorted(finished, key=lambda each: each.run.seed), folder.parent.parent
    known = root / f"{task}.yaml"
    by_seed = {line["seed"]: line for line in (before.lines if before else ())}
    by_seed |= {seed: {"seed": seed, "failed": why} for seed, why in failed.items()}
    if not runs:  # none has told anything, and that all failed is a result, too
        shared = {key: value for key, value in read_yaml(known).items() if key in SHARED}
        return Entry(folder, task, about, {**told, **shared}, [by_seed[seed] for seed in told["seeds"]])
    shared = runs[0].shared()
    for each in runs:
        if each.shared() != shared:
            raise ConfigError(f"{each.run.folder}: what the rules fix differs from that of {runs[0].run.folder}")
    errors = runs[0].run.sets[TEST]
    utterances = zip(errors.ids, errors.speakers, errors.words, strict=True)
    rows = [[name, speaker or "", str(num_words)] for name, speaker, num_words in utterances]
    if not known.exists():
        write_whole(root / f"{task}.tsv", "".join("\t".join(row) + "\n" for row in rows))
        first = {**shared, "harness": {runs[0].batch["harness"]: "of the first entry"}}
        write_whole(known, yaml.safe_dump(first, sort_keys=False, allow_unicode=True, width=1000))
    elif read_utterances(root, task) != rows:
        raise ConfigError(f"the runs were tested on other utterances than {root / task}.tsv has: check data.source")
    by_seed |= {each.run.seed: each.line() for each in runs}
    return Entry(folder, task, about, {**told, **shared}, [by_seed[seed] for seed in told["seeds"] if seed in by_seed])


def store(entry: Entry) -> Path:
    """Write the runs of an entry beside its ``entry.yaml``, and return the file."""
    path = entry.folder / f"{entry.task}.jsonl"
    lines = (json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in (entry.shared, *entry.lines))
    write_whole(path, "".join(f"{line}\n" for line in lines))
    return path
