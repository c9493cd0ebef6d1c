"""Says which rules an entry breaks, as far as its files tell."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.benchmark.entries import ABOUT, REPRODUCED, RUNS, UTTERANCES, Entry, read_entry, read_utterances
from asr.benchmark.rules import BASELINE, MAX_BYTES, NEW_SEEDS, RULESETS, SEEDS, TASKS, check_override
from asr.benchmark.verdicts import COMPARISON, benchmark_verdicts, comparison_text
from asr.errors import ConfigError
from asr.evaluation.formatting import shortlist
from asr.former_names import PRESENT
from asr.plain_data import read_json


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
