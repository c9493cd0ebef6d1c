"""Entries of the benchmark: folders with what was run, each run's curve, cost and errors per utterance.

``benchmark/v1/TASK/utterances.tsv`` has id, speaker and words of the utterances of the test set, which all entries
share; ``benchmark/v1/TASK/RULESET/NAME/`` has ``entry.yaml`` and ``runs.jsonl``, and the source of the optimizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from asr.benchmark.rules import SEEN_SPEAKERS, fixed_part, free_part
from asr.compare.inputs.runs import Cost, Curve, Run, SetErrors
from asr.compare.statistics.curves import DEV_WER
from asr.errors import ConfigError
from asr.evaluation.wer import SCORER
from asr.plain_data import read_yaml
from asr.safe_io import write_whole

DEV_LOSS = "val/dev/loss"
TEST = "test"
ABOUT, RUNS, UTTERANCES = "entry.yaml", "runs.jsonl", "utterances.tsv"
REPRODUCED = "reproduced"  # folder in that of an entry
DIGITS = 5  # of stored losses


@dataclass(frozen=True)
class Entry:
    """An optimizer with its settings on one task.

    Attributes:
        folder: ``TASK/RULESET/NAME``, or ``…/NAME/reproduced``.
        about: what ``entry.yaml`` says.
        lines: of ``runs.jsonl``, by seed; those of failed runs have only a seed and how it failed.
    """

    folder: Path
    about: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]

    @property
    def runs(self) -> list[Run]:
        """The finished runs, as a comparison takes them."""
        ids, speakers, words = zip(*read_utterances(task_dir(self.folder, self.about) / UTTERANCES), strict=True)
        seen = self.about["task"] in SEEN_SPEAKERS
        shared = {"ids": ids, "speakers": speakers, "words": tuple(map(int, words)), "seen_speakers": seen}
        return [self._run(line, shared) for line in self.lines if "errors" in line]

    def _run(self, line: Mapping[str, Any], shared: Mapping[str, Any]) -> Run:
        learned = line["depends_on_audio"]
        errors = SetErrors(**shared, errors=tuple(line["errors"]), depends_on_audio=learned)
        updates = tuple(line["updates"])
        return Run(
            folder=self.folder,
            system=self.about["name"],
            seed=line["seed"],
            sets={TEST: errors},
            curves={name: Curve(updates, (), tuple(line[key])) for name, key in CURVES.items()},
            cost=Cost(**line["cost"]),
        )

    @property
    def failed(self) -> list[tuple[str, int]]:
        """Name and seed of each run that failed by itself."""
        return [(self.about["name"], line["seed"]) for line in self.lines if "failed" in line]


CURVES = {DEV_LOSS: "dev_loss", DEV_WER: "dev_wer"}


def task_dir(folder: Path, about: Mapping[str, Any]) -> Path:
    """Return the folder of the task of an entry, or of its reproduction."""
    return next(parent for parent in folder.parents if parent.name == about["task"])


def read_entry(folder: Path) -> Entry:
    """Read an entry.

    Raises:
        ValueError: a file does not exist or is damaged.
    """
    text = (folder / RUNS).read_text(encoding="utf-8") if (folder / RUNS).exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    return Entry(folder, read_yaml(folder / ABOUT), sorted(lines, key=lambda line: line["seed"]))


def read_utterances(path: Path) -> list[list[str]]:
    """Return id, speaker and number of words of each utterance of a test set."""
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def entries_of(folder: Path) -> list[Entry]:
    """Return the entries of ``TASK/RULESET``, by name."""
    return [read_entry(path.parent) for path in sorted(folder.glob(f"*/{ABOUT}"))]


@dataclass(frozen=True)
class FinishedRun:
    """A run of an entry: what it measured, its ``summary.json``, and its config by dotted keys."""

    run: Run
    summary: Mapping[str, Any]
    config: Mapping[str, Any]


def write_runs(
    folder: Path, about: Mapping[str, Any], finished: Iterable[FinishedRun], failed: Mapping[int, str]
) -> Entry:
    """Write what the runs of an entry have measured.

    Args:
        folder: of the entry.
        about: what ``entry.yaml`` is to say beside what the runs tell.
        finished: runs.
        failed: how each run failed that did, by seed.

    Raises:
        ConfigError: the runs were tested on other utterances than the entries before.
    """
    lines: list[dict[str, Any]] = []
    told: dict[str, Any] = {}
    for each in finished:
        run, summary = each.run, each.summary
        _settle_utterances(task_dir(folder, about) / UTTERANCES, run.sets[TEST])
        curve = run.curves[DEV_LOSS]
        told = {
            "data": summary["data"],
            "references": run.sets[TEST].references,
            "scorer": SCORER,
            "fixed": fixed_part(summary["system"]),
        }
        lines.append(
            {
                "seed": run.seed,
                "study": run.study,
                "settings": free_part(each.config),
                "updates": curve.updates,
                "dev_loss": [float(f"{value:.{DIGITS}g}") for value in curve.values],
                "dev_wer": [float(f"{value:.{DIGITS}g}") for value in run.curves[DEV_WER].values],
                "errors": run.sets[TEST].errors,
                "depends_on_audio": run.sets[TEST].depends_on_audio,
                "cost": asdict(run.cost),
                **{key: summary[key] for key in ("commit", "date", "machine", "python", "versions")},
            }
        )
    lines += [{"seed": seed, "failed": why} for seed, why in failed.items()]
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / ABOUT, yaml.safe_dump({**about, **told}, sort_keys=False, allow_unicode=True, width=1000))
    ordered = sorted(lines, key=lambda line: line["seed"])
    write_whole(folder / RUNS, "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in ordered))
    return read_entry(folder)


def _settle_utterances(path: Path, errors: SetErrors) -> None:
    utterances = zip(errors.ids, errors.speakers, errors.words, strict=True)
    rows = [[name, speaker or "", str(num_words)] for name, speaker, num_words in utterances]
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join("\t".join(row) + "\n" for row in rows))
    elif read_utterances(path) != rows:
        raise ConfigError(f"the runs were tested on other utterances than {path} has: check data.source")
