"""``asr-benchmark``: runs, checks and shows the entries of the benchmark of optimizers."""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.run.command_line import override_key, override_value
from asr.run.options import decides
from asr.runs.files import SUMMARY, read_run
from asr.runs.folders import read_runs
from asr.sweeps.jobs import JobRecord, asked_for, asked_since, records
from werdict.benchmark.entries import (
    ABOUT,
    MACHINE,
    NEW_SEEDS,
    REPRODUCED,
    RULESETS,
    SEEDS,
    TASKS,
    VERSION,
    Entry,
    FinishedRun,
    check_override,
    problems,
    write_runs,
)
from werdict.benchmark.page import write_pages
from werdict.errors import ConfigError
from werdict.files import flatten, get_nested, is_within, read_yaml

HELP = f"""\
asr-benchmark: optimizers compared on the same speech tasks, by fixed rules (docs/benchmark/rules.md)

  asr-benchmark run task=TASK optimizer=NAME [schedule=NAME …]  train and write an entry; the same command resumes
  asr-benchmark check [FOLDER …]                                say what breaks a rule; default: benchmark/{VERSION}
  asr-benchmark page                                            recompute all verdicts, and write docs/benchmark

  task        {", ".join(TASKS)}
  ruleset     {", ".join(RULESETS)}; default: as_shipped
  name        of the entry; default: that of the optimizer
  author      default: the name that git has
  reproduces  NAME: train the same with other seeds, into the folder of that entry
  …           options of asr-train that the rules leave free, and those of places and machines

By default as many jobs run at a time as there are cores: hydra.launcher.n_jobs=1 for one.
"""
JOBS = ("sweep.gpus_per_job", "sweep.jobs_per_gpu")
OWN = ("task", "ruleset", "name", "author", "reproduces")
ROOT, PAGES = Path("benchmark") / VERSION, Path("docs") / "benchmark"
TRIAL = "decode_test=false"  # override of a trial of a study, which is no result
POLL_S = 30.0


def main() -> None:
    """Run ``asr-benchmark``."""
    command, *arguments = sys.argv[1:] or ["--help"]
    try:
        if command == "run":
            sys.exit(run(arguments))
        elif command == "check":
            broken = problems(ROOT, [Path(folder) for folder in arguments])
            print("\n".join(broken) if broken else "no rule is broken")
            sys.exit(bool(broken))
        elif command == "page":
            print("\n".join(f"written: {path}" for path in write_pages(ROOT, PAGES)))
        else:
            print(HELP)
            sys.exit(0 if command in ("--help", "-h") else 2)
    except (ConfigError, ValueError) as error:
        print(f"asr-benchmark: {error}", file=sys.stderr)
        sys.exit(2)


def run(arguments: Sequence[str]) -> int:
    """Train what an entry lacks, and write the entry; return the exit code of the sweep."""
    options = {override_key(word): override_value([word], override_key(word)) for word in arguments if _is_own(word)}
    free = [word for word in arguments if not _is_own(word)]
    task, ruleset = _choice(options, "task", TASKS, None), _choice(options, "ruleset", tuple(RULESETS), "as_shipped")
    for word in free:
        if not is_of_machine(word):
            check_override(word)
    optimizer = override_value(free, "optimizer") or override_value(free, "optimizer._target_")
    if not optimizer:
        raise ConfigError("optimizer: give one, for example optimizer=muon or optimizer._target_=mypkg.MyOptimizer")
    name = str(options.get("reproduces") or options.get("name") or str(optimizer).rpartition(".")[2])
    seeds, folder, sweep = SEEDS, ROOT / task / ruleset / name, f"benchmark-{VERSION}-{task}-{ruleset}-{name}"
    if "reproduces" in options:
        if not (folder / ABOUT).exists():
            raise ConfigError(f"reproduces={name}: {folder} is not an entry")
        seeds, folder, sweep = NEW_SEEDS, folder / REPRODUCED, f"{sweep}-{REPRODUCED}"
    sweep_dir = Path("runs") / sweep
    if (folder / ABOUT).exists() and not sweep_dir.exists():
        raise ConfigError(f"{folder} is an entry already: give name=…, or reproduces={name}, or remove it")
    code = _train(_sweep_words(task, ruleset, sweep, seeds, free), sweep_dir, _num_runs(ruleset))
    about = {
        "name": name,
        "task": task,
        "ruleset": ruleset,
        "author": str(options.get("author") or _git("config", "user.name")),
        "optimizer": str(optimizer),
        "overrides": [word for word in free if not is_of_machine(word)],
    }
    entry = _collect(folder, sweep_dir, about)
    if entry is not None:
        print(f"entry: {folder} ({len(entry.lines)} of {len(seeds)} runs)")
    return code


def is_of_machine(word: str) -> bool:
    """Return whether an override, or an option of Hydra, names places or machines, which do not change a result."""
    key = override_key(word).replace("/", ".")
    if is_within(key, ("sweep",)):
        return key in JOBS
    if word.startswith("--") or is_within(key, MACHINE):
        return True
    return decides(key) in ("speed", "place") and key != "decode_test"


def _is_own(word: str) -> bool:
    return override_key(word) in OWN


def _choice(options: Mapping[str, Any], key: str, allowed: Sequence[str], default: str | None) -> str:
    value = options.get(key, default)
    if value not in allowed:
        raise ConfigError(f"{key} must be one of {', '.join(allowed)}, given {value}")
    return str(value)


def _sweep_words(task: str, ruleset: str, sweep: str, seeds: Sequence[int], free: Sequence[str]) -> list[str]:
    """Return the command line of the sweep; what the user gives of places and machines wins."""
    fixed = [word.replace(_listed(SEEDS), _listed(seeds)) for word in RULESETS[ruleset]]
    user_overrides = list(free)
    if ruleset == "tuned":
        optimizer = override_value(free, "optimizer")
        if not optimizer:
            raise ConfigError(
                "ruleset=tuned: give optimizer=NAME, a name that has a yaml and a range; see docs/benchmark/rules.md"
            )
        user_overrides = [word for word in free if override_key(word) != "optimizer"]
        # other places and seeds of trials for a reproduction
        fixed += [f"sweep.only=[{optimizer}]", f"sweep.tuning_seed={0 if seeds == SEEDS else 500}"]
    usual = ["logger=csv", "torch_threads=1", "hydra/launcher=parallel", "hydra.launcher.n_jobs=-1"]
    if override_value(free, "hydra/launcher"):
        usual = usual[:2]
    given_keys = {override_key(word) for word in free}
    usual = [word for word in usual if override_key(word) not in given_keys]
    return ["-m", f"recipe={task}/benchmark_{VERSION}", f"sweep.name={sweep}", *fixed, *usual, *user_overrides]


def _listed(seeds: Sequence[int]) -> str:
    return ",".join(map(str, seeds))


def _num_runs(ruleset: str) -> int:
    trials = int(str(override_value(RULESETS[ruleset], "sweep.trials") or 0))
    return len(SEEDS) * (trials + 1)


def _train(arguments: Sequence[str], sweep_dir: Path, num_runs: int) -> int:
    """Run the sweep, and say the hours that are left after each job; return its exit code."""
    print(f"asr-train {' '.join(arguments)}", flush=True)
    before, printed = asked_for(sweep_dir), -1
    process = subprocess.Popen([sys.executable, "-m", "asr.commands", "train", *arguments])
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())  # the sweep ends its jobs, which save
    try:
        while process.poll() is None:
            jobs = asked_since(sweep_dir, before)
            done = [job.seconds for job in jobs if job.status == "finished" and job.seconds]
            if done and len(done) != printed:
                printed = len(done)
                hours = (num_runs - printed) * statistics.median(done) / 3600
                print(f"{printed} of {num_runs} runs; one after another, the others take {hours:.1f} hours", flush=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
    except KeyboardInterrupt:
        process.wait()  # it was interrupted too, and saves
    return process.returncode


def jobs_by_seed(sweep_dir: Path) -> dict[int, JobRecord]:
    """Return the job of each seed that was asked for last; earlier ones had other options, or data at another place."""
    times = asked_for(sweep_dir)
    jobs = sorted(records(sweep_dir), key=lambda job: times[job.name])
    return {int(str(override_value(job.overrides, "seed"))): job for job in jobs if TRIAL not in job.overrides}


def _collect(folder: Path, sweep_dir: Path, about: dict[str, Any]) -> Entry | None:
    """Write the runs that the sweep has finished so far; None if there are none."""
    jobs = jobs_by_seed(sweep_dir)
    finished = [sweep_dir / job.name for job in jobs.values() if (sweep_dir / job.name / SUMMARY).is_file()]
    failed = {seed: f"exit code {job.exit_code}" for seed, job in jobs.items() if job.failed and not job.was_ended}
    if not finished:
        return None
    config = read_yaml(finished[0] / "config.yaml")
    target = config["optimizer"]["_target_"]
    about |= _origin(target)
    if about["ruleset"] == "tuned":
        about["tuning"] = read_yaml(sweep_dir / "tuning.json")
        about["ranges"] = get_nested(config, "sweep", "tuned", "keys")
    runs = []
    for path in finished:
        files, (measured,) = read_run(path), read_runs([path]).runs
        runs.append(FinishedRun(measured, files.summary, flatten(files.options.plain())))
    entry = write_runs(folder, about, runs, failed)
    if "package" not in about and not target.startswith(("optim.", "torch.")):
        shutil.copy(_source(target), folder)
    return entry


def _origin(target: str) -> dict[str, str]:
    """Return the commit, and the package of an optimizer that is neither ours nor torch's but from an index."""
    names = importlib.metadata.packages_distributions().get(target.partition(".")[0], [])
    distributions = [] if target.startswith(("optim.", "torch.")) else map(importlib.metadata.distribution, names)
    # what was installed from a folder or a repository has this file (PEP 610)
    packages = [f"{one.name}=={one.version}" for one in distributions if one.read_text("direct_url.json") is None]
    return {"commit": _git("rev-parse", "HEAD"), **({"package": packages[0]} if packages else {})}


def _source(target: str) -> Path:
    """Return the file of a class."""
    module, _, name = target.rpartition(".")
    return Path(str(inspect.getsourcefile(getattr(importlib.import_module(module), name))))


def _git(*arguments: str) -> str:
    completed = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return completed.stdout.strip()


if __name__ == "__main__":
    os.environ["PYTHONSAFEPATH"] = "1"
    main()
