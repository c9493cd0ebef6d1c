"""The benchmark's rules, its stored entries, and whether an entry keeps the rules."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from scipy import stats

from werdict.comparison import compare
from werdict.errors import ConfigError
from werdict.files import is_within, read_json, read_yaml, write_whole
from werdict.formatting import shortlist
from werdict.former_names import PRESENT
from werdict.report.pages import json_text
from werdict.result import Comparison, SetComparison, TimesToTarget
from werdict.runs import Cost, Curve, Inputs, Run, SetErrors
from werdict.scoring import SCORER
from werdict.statistics.times import DEV_WER, times_to_target

VERSION = "v1"
TASKS = ("fsdd", "an4", "phrases")  # each is the recipe TASK/benchmark_v1
SEEDS = (1, 2, 3, 4, 5)
NEW_SEEDS = (11, 12, 13, 14, 15)  # of a reproduction
SEEN_SPEAKERS = ("fsdd",)  # tasks whose test speakers are in training, as the notes of their corpora say
BASELINE = "torch_adamw"
LEVEL = 0.975  # of each question on each of two outcomes: of both together, at most 5 of 100 answers are wrong
MAX_BYTES = 300_000  # of an entry
# overrides of asr-train -m, which runs the entry
RULESETS: Mapping[str, tuple[str, ...]] = {
    "as_shipped": (f"seed={','.join(map(str, SEEDS))}",),
    "tuned": (
        "sweep=optimizers",
        f"sweep.seeds=[{','.join(map(str, SEEDS))}]",
        f"sweep.studies={len(SEEDS)}",
        "sweep.trials=5",
        "sweep.max_extra_trials=0",
        "sweep.schedule_modes=[usual]",
        "sweep.with_defaults=false",
    ),
}
FREE = ("optimizer", "schedule", "parameter_rules", "trainer.gradient_clip_val", "callbacks.averaging", "weights")
MACHINE = (
    "hydra",
    "recipes_dir",
    "trust",
    "data.source",
    "trainer.accelerator",
    "trainer.cuda_graphs",
    "trainer.capture",
)
RANGES = ("sweep.optimizers", "sweep.schedules")


def check_override(word: str) -> None:
    """Refuse an override that changes what the rules fix.

    Raises:
        ConfigError: it does.
    """
    key = word.lstrip("+~").partition("=")[0].replace("/", ".")
    if not is_within(key, (*FREE, *RANGES)):
        raise ConfigError(
            f"{word}: {key} is the same for all entries; free are {', '.join(FREE)}, the ranges "
            f"{' and '.join(RANGES)} of the ruleset tuned, and what names places and machines"
        )


def free_part(system: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an entry chose itself, of the flat config of a run."""
    return {key: value for key, value in system.items() if is_within(key, FREE)}


def fixed_part(system: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the rules fix, of the flat config of a run."""
    return {key: value for key, value in system.items() if not is_within(key, (*FREE, *MACHINE))}


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


REPRODUCED_P = 0.05
COMPARISON = "comparison.json"
VERDICT_DIGITS = 9  # of its numbers


@dataclass(frozen=True)
class Verdicts:
    """Verdicts on the entries of one task and ruleset.

    Attributes:
        folder: ``TASK/RULESET``.
        entries: by name.
        target: loss on dev whose updates are counted.
        comparison: of the error rates on test, and of the updates to the target.
    """

    folder: Path
    entries: Sequence[Entry]
    target: float
    comparison: Comparison

    @property
    def errors(self) -> SetComparison:
        """Of the test set."""
        return self.comparison.sets[0]

    @property
    def times(self) -> TimesToTarget:
        """Updates to the target."""
        return self.comparison.times[0]


def verdicts(folder: Path, entries: Sequence[Entry], target: float) -> Verdicts:
    """Compare entries of one task and ruleset.

    Args:
        folder: ``TASK/RULESET``.
        entries: the baseline among them.
        target: loss on dev.
    """
    runs = [run for entry in entries for run in entry.runs]
    failed = [run_key for entry in entries for run_key in entry.failed]
    title = f"{folder.parent.name}, {folder.name}"
    comparison = compare(Inputs(runs, failed=failed), title=title, baseline=BASELINE, level=LEVEL)
    times = times_to_target(runs, target, "updates", 1 - LEVEL, BASELINE, failed, metric=DEV_LOSS)
    assert times is not None  # every run was validated
    return Verdicts(folder, entries, target, replace(comparison, times=[times]))


def target_loss(baseline: Entry) -> float:
    """Return the loss on dev that the baseline reaches with half of its seeds: the median of the lowest of each run."""
    return statistics.median(min(run.curves[DEV_LOSS].values) for run in baseline.runs)


def status(entry: Entry) -> str:
    """Return whether an entry was reproduced with other seeds, by Welch's test of the two mean error rates.

    A run that failed counts as 100 %.
    """
    folder = entry.folder / REPRODUCED
    if not folder.is_dir() or len((again := read_entry(folder)).lines) < len(NEW_SEEDS):
        return "submitted"
    first, second = ([run.sets[TEST].wer for run in one.runs] + [1.0] * len(one.failed) for one in (entry, again))
    # the test says nothing of equal rates without any spread
    is_reproduced = first == second or stats.ttest_ind(first, second, equal_var=False).pvalue >= REPRODUCED_P
    return "reproduced" if is_reproduced else "challenged"


def benchmark_verdicts(root: Path) -> Iterator[Verdicts]:
    """Yield the verdicts of each task and ruleset that has the baseline's entry and another.

    The target of a task is the loss of the tuned baseline, and that of the one as shipped until there is one.
    """
    for folder in sorted({path.parent.parent for path in root.glob(f"*/*/{BASELINE}/{ABOUT}")}):
        entries = entries_of(folder)
        if len(entries) < 2:
            continue
        tuned = folder.parent / "tuned" / BASELINE
        baseline = read_entry(tuned if tuned.is_dir() else folder.parent / "as_shipped" / BASELINE)
        yield verdicts(folder, entries, target_loss(baseline))


def comparison_text(verdicts: Verdicts) -> str:
    """Return what ``comparison.json`` says, with as many digits as do not depend on the processor."""
    data = {"target_loss": verdicts.target, **json.loads(json_text(verdicts.comparison))}
    plain = json.loads(json.dumps(data), parse_float=lambda digits: float(f"{float(digits):.{VERDICT_DIGITS}g}"))
    return json.dumps(plain, indent=1, ensure_ascii=False)


def problems(root: Path, folders: Sequence[Path] = ()) -> list[str]:
    """Return what breaks a rule, a sentence each.

    Args:
        root: of a version, ``benchmark/v1``.
        folders: of entries; none: all, and that the stored verdicts follow from them.
    """
    chosen = folders or sorted(path.parent for path in root.glob(f"*/*/*/**/{ABOUT}"))
    broken = [f"{folder}: {problem}" for folder in chosen for problem in _of_entry(root, folder)]
    if not folders and not broken:
        for verdicts in benchmark_verdicts(root):
            path = verdicts.folder / COMPARISON
            if not path.exists() or read_json(path) != json.loads(comparison_text(verdicts)):
                broken.append(f"{path} does not follow from the entries: run asr-benchmark page, and commit it")
    return broken


def _of_entry(root: Path, folder: Path) -> Iterator[str]:
    try:
        entry = read_entry(folder)
    except (ValueError, OSError) as error:
        yield f"cannot be read: {error}"
        return
    about = entry.about
    task, ruleset, name = about["task"], about["ruleset"], about["name"]
    is_reproduction = folder.name == REPRODUCED
    whole = folder.parent if is_reproduction else folder
    if whole.resolve() != (root / task / ruleset / name).resolve() or task not in TASKS or ruleset not in RULESETS:
        yield f"{ABOUT} names {task}/{ruleset}/{name}, which must be the folder"
    if is_reproduction and read_entry(whole).about["overrides"] != about["overrides"]:
        yield f"has other overrides than {whole}, which it reproduces"
    size = sum(path.stat().st_size for path in folder.glob("*") if path.is_file())
    if size > MAX_BYTES:
        yield f"has {size} bytes, of at most {MAX_BYTES}"
    for word in about["overrides"]:
        try:
            check_override(word)
        except ConfigError as error:
            yield str(error)
    seeds = NEW_SEEDS if is_reproduction else SEEDS
    if (found := [line["seed"] for line in entry.lines]) != [*seeds]:
        yield f"{RUNS} has the seeds {found}; the rules ask for {[*seeds]}"
    target = next((line["settings"]["optimizer._target_"] for line in entry.lines if "settings" in line), BASELINE)
    is_known = target.startswith(("optim.", "torch.optim.")) or "package" in about
    if not is_known and not any(whole.glob("*.py")):
        yield f"lacks the source of {target}, which is neither ours nor in a package"
    yield from _settings(root, entry, seeds)
    baseline = whole.parent / BASELINE
    if (baseline / ABOUT).exists():
        yield from _fixed(entry, read_entry(baseline))
    else:
        yield f"cannot be compared: {whole.parent} has no entry {BASELINE}"


def _settings(root: Path, entry: Entry, seeds: Sequence[int]) -> Iterator[str]:
    """Yield what is wrong with the settings that the entry chose."""
    finished = [line for line in entry.lines if "settings" in line]
    if entry.about["ruleset"] == "tuned":
        if [line["study"] for line in finished] != [seeds.index(line["seed"]) + 1 for line in finished]:
            yield "each seed must be of a study of its own"
        return
    for word in entry.about["overrides"]:
        key, _, text = word.lstrip("+").partition("=")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if differing := [line["seed"] for line in finished if line["settings"].get(key, value) != value]:
            yield f"{word}: runs of the seeds {differing} had another {key}"
    if any(line["settings"] != finished[0]["settings"] for line in finished):
        yield "its runs have different settings"
    for path in sorted(root.glob(f"*/as_shipped/{entry.about['name']}/{ABOUT}")):
        other = read_entry(path.parent)
        if sorted(other.about["overrides"]) != sorted(entry.about["overrides"]):
            yield f"{path.parent} has other overrides: as shipped, one config serves all tasks"


def _fixed(entry: Entry, baseline: Entry) -> Iterator[str]:
    """Yield what differs from the baseline's runs although the rules fix it."""
    num = len(read_utterances(baseline.folder.parents[1] / UTTERANCES))
    if any(len(line["errors"]) != num for line in entry.lines if "errors" in line):
        yield f"has runs with other numbers of utterances than {UTTERANCES}"
    for key in ("references", "scorer"):
        if entry.about.get(key) != baseline.about.get(key):
            yield f"{key}: differs from {BASELINE}'s, so that its error rates mean something else"
    fixed, expected = (_present(each.about.get("fixed", {})) for each in (entry, baseline))
    if differing := sorted(key for key in fixed.keys() & expected.keys() if fixed[key] != expected[key]):
        yield f"differs from {BASELINE} in what the rules fix: {shortlist(differing)}"


def _present(fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the rules fix, with each class under the name that it has now."""
    return {key: PRESENT.get(str(value), value) for key, value in fixed.items()}
