"""What breaks a rule of the benchmark, as far as files can show it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from werdict.benchmark.entries import ABOUT, SHARED, Entry, read_about, read_entry, read_utterances
from werdict.benchmark.rules import (
    BASELINE,
    LOOKS,
    MAX_BYTES,
    NUM_TRIALS,
    RULESETS,
    TASKS,
    check_override,
    drawn_seeds,
)
from werdict.benchmark.verdicts import new_verdict, read_verdict
from werdict.errors import ConfigError
from werdict.files import flatten, read_yaml
from werdict.formatting import shortlist

FAR = math.log(2)  # by which test and dev may differ: their logarithms, 5 points added to each
ALL_WRONG = 0.95  # a WER on dev at which no useful loss is reached
# entry, task, overrides and, of a tuned entry, the settings of its best trial → a run's free options
SettingsOf = Callable[[Path, str, Sequence[str], Mapping[str, Any]], Mapping[str, Any]]


def problems(root: Path, settings_of: SettingsOf, folders: Sequence[Path] = ()) -> list[str]:
    """Return what breaks a rule, a sentence each.

    Args:
        root: of a version, ``benchmark/v2``.
        settings_of: composes overrides, as a run does.
        folders: of entries; none: all.
    """
    entries = folders or sorted(path.parent for path in root.glob(f"*/*/{ABOUT}"))
    return [f"{folder}: {problem}" for folder in entries for problem in _of_entry(root, folder, settings_of)]


def _of_entry(root: Path, folder: Path, settings_of: SettingsOf) -> Iterator[str]:
    try:
        about = read_about(folder)
        entries = [read_entry(folder, task) for task in TASKS if (folder / f"{task}.jsonl").exists()]
    except ValueError as error:
        yield f"cannot be read: {error}"
        return
    overrides = about["overrides"]
    if folder.parent.name not in RULESETS or folder.parent.parent.resolve() != root.resolve():
        yield f"is not in {root} / {' or '.join(RULESETS)}"
        return
    for word in overrides:
        try:
            check_override(word)
        except ConfigError as error:
            yield str(error)
    if again := about.get("reproduces"):
        first = folder.parent / str(again) / ABOUT
        if not first.exists() or sorted(read_yaml(first)["overrides"]) != sorted(overrides):
            yield f"reproduces {again}, which is no entry with the same overrides"
    if not entries:  # of one that has not been trained, what would end its runs before they begin
        try:
            settings_of(folder, TASKS[0], overrides, {})
        except ConfigError as error:
            yield str(error)
    for entry in entries:
        try:
            yield from (f"{entry.task}: {problem}" for problem in _of_task(entry, overrides, settings_of))
        except (KeyError, TypeError, ValueError) as error:
            yield f"{entry.task}: cannot be read: {error!r}"


def _of_task(entry: Entry, overrides: Sequence[str], settings_of: SettingsOf) -> Iterator[str]:
    size = (entry.folder / f"{entry.task}.jsonl").stat().st_size
    if size > MAX_BYTES:
        yield f"{size} bytes, of at most {MAX_BYTES}"
    seeds = drawn_seeds(entry.shared["commit"], entry.task)
    trained = [line["seed"] for line in entry.lines]
    if trained not in [[*seeds[:look]] for look in LOOKS]:
        yield f"the seeds {trained} are not those that its commit draws, {[*seeds]}, of one of the looks {[*LOOKS]}"
    yield from _unlike_others(entry)
    finished = [line for line in entry.lines if "failed" not in line]
    words = [int(num) for *_, num in read_utterances(entry.root, entry.task)]
    for line in finished:
        yield from (f"seed {line['seed']}: {problem}" for problem in _of_run(entry, line, words))
    yield from _settings(entry, finished, overrides, settings_of)
    yield from _verdict(entry)


def _unlike_others(entry: Entry) -> Iterator[str]:
    """Yield what differs from all runs on the task although the rules fix it; what is absent differs too."""
    known = read_yaml(entry.root / f"{entry.task}.yaml")
    for key in SHARED[:-1]:
        if entry.shared.get(key) != known[key]:
            yield f"{key} is {entry.shared.get(key)!r}, and {known[key]!r} of all other entries"
    fixed, expected, former = entry.shared.get("fixed", {}), known["fixed"], known.get("former", {})
    missing = object()
    keys = sorted(fixed.keys() | expected.keys())
    differing = [key for key in keys if fixed.get(key, missing) != expected.get(key, missing)]
    if differing := [key for key in differing if fixed.get(key) not in former.get(key, ())]:
        yield f"differs in what the rules fix: {shortlist(differing)}"
    for harness in sorted({str(line.get("harness")) for line in entry.lines if "failed" not in line}):
        if harness not in known["harness"]:
            yield (
                f"was trained by another harness, {harness}, than those in {entry.task}.yaml: train it with one of "
                "these commits, or show there that a run of the baseline has the same losses with both"
            )


def _of_run(entry: Entry, line: Mapping[str, Any], words: Sequence[int]) -> Iterator[str]:
    budget, cost = entry.shared["fixed"]["trainer.max_steps"], line["cost"]
    accumulated = entry.shared["fixed"]["trainer.accumulate_grad_batches"]
    if not line["updates"] or line["updates"][-1] != budget or cost["num_updates"] != budget:
        yield f"{cost['num_updates']} updates, the last validation after {line['updates'][-1:]}; the budget is {budget}"
    if cost["num_passes"] != accumulated * budget:
        yield f"{cost['num_passes']} forward and backward passes in {budget} updates"
    if len(line["errors"]) != len(words) or any(errors < 0 for errors in line["errors"]):
        yield f"errors of {len(line['errors'])} utterances; the test has {len(words)}"
        return
    if not len(line["updates"]) == len(line["dev_loss"]) == len(line["dev_wer"]):
        yield "its curves have different numbers of points"
        return
    test, dev = sum(line["errors"]) / sum(words), min(line["dev_wer"])
    if abs(math.log((test + 0.05) / (dev + 0.05))) > FAR:
        yield f"WER {100 * test:.1f} % on test, and {100 * dev:.1f} % on dev at best: one of them is not of this run"
    if dev > ALL_WRONG and min(line["dev_loss"]) < float((read_verdict(entry) or {}).get("target_loss", 0)):
        yield f"a loss of {min(line['dev_loss'])} on dev, where {100 * dev:.1f} % of the words are wrong"


def _settings(
    entry: Entry, finished: Sequence[Mapping[str, Any]], overrides: Sequence[str], settings_of: SettingsOf
) -> Iterator[str]:
    """Yield what is wrong with the settings that the entry chose."""
    if not finished:
        return
    settings = finished[0]["settings"]
    if any(line["settings"] != settings for line in finished):
        yield "its runs have different settings"
    best: Mapping[str, Any] = {}
    if entry.folder.parent.name == "tuned":
        trials = [trial for study in entry.shared["tuning"] for one in study.values() for trial in one["trials"]]
        if len(trials) != NUM_TRIALS:
            yield f"was tuned with {len(trials)} trials; {NUM_TRIALS} are equal for all"
        best = min(trials, key=lambda trial: trial["wer"])["settings"]
    composed, used = (_leaves(each) for each in (settings_of(entry.folder, entry.task, overrides, best), settings))
    former = read_yaml(entry.root / f"{entry.task}.yaml").get("former", {})
    overridden = {word.lstrip("+").partition("=")[0] for word in overrides}
    differing = [
        key
        for key in sorted(used.keys() | composed.keys())
        if used.get(key) != composed.get(key) and (key in overridden or used.get(key) not in former.get(key, ()))
    ]
    if differing:
        yield (
            f"its runs had other settings than its overrides and its best trial give: {shortlist(differing)}; a "
            f"default that was another one then stands in {entry.task}.yaml, under former"
        )
    target = str(settings.get("optimizer._target_"))
    is_known = target.startswith(("optim.", "torch.optim.")) or "package" in entry.shared
    if not is_known and not any(entry.folder.glob("*.py")):
        yield f"lacks the source of {target}, which is neither ours nor in a package"


def _leaves(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key, of which rules for parameters have one for each of their options."""
    rules = {key: dict(enumerate(value)) for key, value in settings.items() if key.endswith(".rules") and value}
    return flatten({**settings, **rules})


def _verdict(entry: Entry) -> Iterator[str]:
    """Yield that the stored verdict does not follow from the runs, those of the baseline and of the record of then."""
    if (stored := read_verdict(entry)) is None:
        if entry.name != BASELINE:
            yield "has no verdict yet: run asr-benchmark page, and commit it"
        return
    holder = read_entry(entry.folder.parent / str(stored["holder"]), entry.task)
    if holder.name != BASELINE and not (read_verdict(holder) or {}).get("record"):
        yield f"was compared with {holder.name}, which has never held the record"
    if new_verdict(entry, holder, stored["date"], stored["target_loss"]) != stored:
        yield f"its verdict does not follow from its runs: {entry.task}.verdict.json"
