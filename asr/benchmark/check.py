"""Says which rules an entry breaks, as far as its files tell."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.benchmark.entries import ABOUT, RUNS, UTTERANCES, Entry, read_entry, read_utterances
from asr.benchmark.rules import BASELINE, MAX_BYTES, RULESETS, SEEDS, TASKS, check_override
from asr.benchmark.verdicts import COMPARISON, benchmark_verdicts, comparison_text
from asr.errors import ConfigError
from asr.evaluation.formatting import shortlist
from asr.plain_data import read_json


def problems(root: Path, folders: Sequence[Path] = ()) -> list[str]:
    """Return what breaks a rule, a sentence each.

    Args:
        root: of a version, ``benchmark/v1``.
        folders: of entries; none: all, and that the stored verdicts follow from them.
    """
    chosen = folders or sorted(path.parent for path in root.glob(f"*/*/*/{ABOUT}"))
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
    place = folder.resolve().relative_to(root.resolve()).parts
    if place != (about["task"], about["ruleset"], about["name"]) or place[0] not in TASKS or place[1] not in RULESETS:
        yield f"{ABOUT} names {about['task']}/{about['ruleset']}/{about['name']}, which must be the folder"
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > MAX_BYTES:
        yield f"has {size} bytes, of at most {MAX_BYTES}"
    for word in about["overrides"]:
        try:
            check_override(word)
        except ConfigError as error:
            yield str(error)
    if Counter(line["seed"] for line in entry.lines) != Counter(SEEDS):
        yield f"{RUNS} has the seeds {[line['seed'] for line in entry.lines]}; the rules ask for {list(SEEDS)}"
    target = next((line["settings"]["optimizer._target_"] for line in entry.lines if "settings" in line), BASELINE)
    is_known = target.startswith(("optim.", "torch.optim.")) or "package" in about
    if not is_known and not any(folder.glob("*.py")):
        yield f"lacks the source of {target}, which is neither ours nor in a package"
    yield from _settings(root, entry)
    if (folder.parent / BASELINE / ABOUT).exists():
        yield from _fixed(entry, read_entry(folder.parent / BASELINE).about)
    else:
        yield f"cannot be compared: {folder.parent} has no entry {BASELINE}"


def _settings(root: Path, entry: Entry) -> Iterator[str]:
    """Yield what is wrong with the settings that the entry chose."""
    finished = [line for line in entry.lines if "settings" in line]
    if entry.about["ruleset"] == "tuned":
        if [line["study"] for line in finished] != [SEEDS.index(line["seed"]) + 1 for line in finished]:
            yield "each seed must be of a study of its own"
        return
    if any(line["settings"] != finished[0]["settings"] for line in finished):
        yield "its runs have different settings"
    for path in sorted(root.glob(f"*/as_shipped/{entry.about['name']}/{ABOUT}")):
        other = read_entry(path.parent)
        if sorted(other.about["overrides"]) != sorted(entry.about["overrides"]):
            yield f"{path.parent} has other overrides: as shipped, one config serves all tasks"


def _fixed(entry: Entry, baseline: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs from the baseline's runs although the rules fix it."""
    num = len(read_utterances(entry.folder.parents[1] / UTTERANCES))
    if any(len(line["errors"]) != num for line in entry.lines if "errors" in line):
        yield f"has runs with other numbers of utterances than {UTTERANCES}"
    for key in ("references", "scorer"):
        if entry.about.get(key) != baseline.get(key):
            yield f"{key}: differs from {BASELINE}'s, so that its error rates mean something else"
    fixed, expected = entry.about.get("fixed", {}), baseline.get("fixed", {})
    if differing := sorted(key for key in fixed.keys() & expected.keys() if fixed[key] != expected[key]):
        yield f"differs from {BASELINE} in what the rules fix: {shortlist(differing)}"
