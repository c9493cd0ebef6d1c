"""``asr-benchmark``: runs, checks and shows the entries of the benchmark of optimizers."""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import importlib.metadata
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.commands.api import composed_run
from asr.doctor import version_lines
from asr.run.choices import with_own_classes
from asr.run.command_line import override_key, override_value
from asr.run.folder import usable_folder
from asr.run.options import decides
from asr.runs.files import SUMMARY, read_run
from asr.runs.folders import read_runs
from asr.sweeps.jobs import JobRecord, asked_for, asked_since, records
from asr.sweeps.tuning import Search, systems
from werdict.benchmark.check import problems
from werdict.benchmark.entries import Entry, FinishedRun, collected, entries_of, read_about, read_entry, store
from werdict.benchmark.page import write_pages
from werdict.benchmark.rules import (
    BASELINE,
    LOOKS,
    MACHINE,
    NUM_TRIALS,
    RULESETS,
    TASKS,
    VERSION,
    check_override,
    drawn_seeds,
    free_part,
)
from werdict.benchmark.verdicts import freeze, holder_of, is_open, new_verdict, sentences, target_loss
from werdict.errors import DIVERGED, ConfigError
from werdict.files import flatten, is_within, read_json, read_yaml

HELP = f"""\
asr-benchmark: optimizers compared on the same speech tasks, by fixed rules (docs/benchmark/rules.md)

  asr-benchmark run entry=FOLDER task=TASK  preview an entry: train it, and say how it compares; stores nothing
  asr-benchmark check [FOLDER …]            say what breaks a rule; default: all entries in benchmark/{VERSION}
  asr-benchmark page                        give new entries their verdicts, and write docs/benchmark

  entry     folder with entry.yaml: benchmark/{VERSION}/{{{",".join(RULESETS)}}}/NAME
  task      {", ".join(TASKS)}
  official  true: seeds from the commit that brought the entry, and TASK.jsonl beside entry.yaml; for the project's runs
  look      1: no more than the first {LOOKS[0]} runs, even if they leave open how the entry compares
  …         options of asr-train that name places and machines, such as data.source=PATH or trainer.accelerator=gpu

By default as many jobs run at a time as there are cores: hydra.launcher.n_jobs=1 for one. The same command resumes.
"""
JOBS = ("sweep.gpus_per_job", "sweep.jobs_per_gpu")
OWN = ("entry", "task", "official", "look")
ROOT, PAGES = Path("benchmark") / VERSION, Path("docs") / "benchmark"
TRIAL = "decode_test=false"  # override of a trial of a study, which is no result
PREVIEW = "preview"  # in the place of a commit
POLL_S = 30.0
# what decides the numbers of a run beside the entry; a digest of it goes with them
HARNESS = (
    *("asr/models/encoders/conformer.py", "asr/models/encoders/transformer.py", "asr/models/heads/ctc.py"),
    *("asr/models/recognizer.py", "asr/data/loading/sampling.py", "asr/features/log_mel.py", "asr/text/tokenizer.py"),
    *("asr/decoding/greedy.py", "asr/training/module.py", "asr/training/nonfinite_guard.py", "werdict/scoring.py"),
)
TASK_FILES = ("prepare.py", f"benchmark_{VERSION}.yaml")


def main() -> None:
    """Run ``asr-benchmark``."""
    command, *arguments = sys.argv[1:] or ["--help"]
    try:
        if command not in ("run", "check", "page") or {"--help", "-h"} & {*arguments}:
            print(*version_lines() if command == "--version" else [HELP], sep="\n")
            sys.exit(0 if {"--help", "-h", "--version"} & {command, *arguments} else 2)
        if not ROOT.is_dir():
            raise ConfigError(f"there is no {ROOT} here: run this in a checkout of the project")
        if command == "run":
            sys.exit(run(arguments))
        elif command == "check":
            broken = problems(ROOT, settings_of, [Path(folder) for folder in arguments])
            print("\n".join(broken) if broken else "no rule is broken")
            sys.exit(bool(broken))
        else:
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            print("\n".join(f"written: {path}" for path in (*freeze(ROOT, today), *write_pages(ROOT, PAGES))))
    except (ConfigError, ValueError) as error:
        print(f"asr-benchmark: {error}", file=sys.stderr)
        sys.exit(2)


def run(arguments: Sequence[str]) -> int:
    """Train what an entry lacks on a task, and store it or say how it compares; return the exit code of the sweep."""
    options = {override_key(word): override_value([word], override_key(word)) for word in arguments if _is_own(word)}
    machine = [word for word in arguments if not _is_own(word)]
    for word in machine:
        if not is_of_machine(word):
            raise ConfigError(f"{word}: names no place or machine; what an entry chooses stands in its entry.yaml")
    task = str(options.get("task"))
    if task not in TASKS:
        raise ConfigError(f"task must be one of {', '.join(TASKS)}, given {options.get('task')}")
    folder = Path(str(options.get("entry")))
    about = read_about(folder)
    for word in about["overrides"]:
        check_override(word)
    places = _places(machine)
    settings_of(folder, task, [*about["overrides"], *places], {})
    is_official = options.get("official") is True
    shared = {"commit": _commit_of(folder) if is_official else PREVIEW}
    words = [*about["overrides"], *machine]
    if configs := _own_configs(folder):
        words.append(f"--config-dir={configs}")
    before = read_entry(folder, task) if is_official and (folder / f"{task}.jsonl").exists() else None
    if before is not None and before.shared["commit"] != shared["commit"]:
        before = None
    # one of the processes below would say what is wrong with the data, while the others wait
    prepared = _asr("prepare", f"recipe={task}/benchmark_{VERSION}", *places).wait()
    if prepared != 0:
        return prepared
    for look in LOOKS[:1] if options.get("look") == 1 else LOOKS:
        seeds = drawn_seeds(shared["commit"], task)[:look]
        entry, code = _trained(folder, task, about, {**shared, "seeds": seeds}, words, before)
        if entry is None:
            print("no run has finished yet: the same command continues; why a job failed stands at the end of its log")
            return code or 1
        if is_official and entry is not before:
            before = entry
            print(f"written: {store(entry)} ({len(entry.lines)} of {LOOKS[-1]} runs); next: asr-benchmark page")
        is_open = _says_open(entry)
        if len(entry.lines) < look:  # interrupted
            return code or 1
        if not is_open:
            break
    return 0


def _trained(
    folder: Path,
    task: str,
    about: Mapping[str, Any],
    told: dict[str, Any],
    words: Sequence[str],
    before: Entry | None,
) -> tuple[Entry | None, int]:
    """Train what an entry lacks on a task; return it, None without results, and the exit code.

    Runs that are stored were perhaps made on another machine: they are not trained again, nor are trials.
    """
    ruleset, run_of = folder.parent.name, told["commit"][:10]
    if run_of == PREVIEW:  # of an optimizer that was changed since, no run is used
        run_of += f"-{_digest(_sources(folder))}"
    is_searched, missing = ruleset == "tuned", list(told["seeds"])
    if before is not None:
        finished = {line["seed"] for line in before.lines if "failed" not in line}
        missing = [seed for seed in missing if seed not in finished]
        if not missing:
            return before, 0
        if is_searched:
            ((tuned,),) = (study.values() for study in before.shared["tuning"])
            is_searched, words = False, [*words, *_words_of_trial(task, words, tuned["chosen"], _own_configs(folder))]
    sweep_dir = Path("runs") / "-".join(["benchmark", VERSION, task, ruleset, folder.name, run_of])
    arguments = _sweep_words(task, sweep_dir.name, missing, words, is_searched)
    baseline = sweep_dir.with_name(f"{sweep_dir.name}-{BASELINE}")
    with _baseline_beside(task, told["seeds"][0], _places(words), baseline) as beside:
        code = _train(arguments, sweep_dir, folder, len(missing) + (NUM_TRIALS if is_searched else 0))
        if beside is not None and all(job.failed and job.exit_code != DIVERGED for job in records(sweep_dir)):
            beside.terminate()  # there is nothing to compare
    return _collect(folder, task, about, told, missing, sweep_dir, baseline, before), code


def _says_open(entry: Entry) -> bool:
    """Say how an entry compares so far; return whether a second look is needed, as it is for the baseline."""
    print(f"{entry.name} on {entry.task}: mean WER {100 * statistics.mean(entry.wers):.1f} %, {len(entry.lines)} runs")
    if entry.cost is not None:
        print(f"CPU seconds of a run ÷ those of {BASELINE} beside it: {entry.cost:.2f}")
    others = entries_of(ROOT, entry.task, entry.folder.parent.name)
    if BASELINE not in {other.name for other in others} - {entry.name} or len(entry.lines) < 2:
        return True
    verdict = new_verdict(entry, holder_of(others), "", target_loss(ROOT, entry.task))
    print("\n".join(sentences(verdict)))
    return is_open(verdict)


def settings_of(folder: Path, task: str, overrides: Sequence[str], trial: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the free options of a run of an entry with these overrides, and the settings of a trial if it is tuned.

    Raises:
        ConfigError: a choice or class is not found, or does not take an option.
    """
    from asr.run.build import try_third_party  # imports Lightning

    words, configs = [f"recipe={task}/benchmark_{VERSION}", *overrides], _own_configs(folder)
    sys.path.insert(0, str(folder.resolve()))  # of an optimizer of its own
    try:
        if trial or folder.parent.name == "tuned":
            words += _words_of_trial(task, overrides, trial, configs)
        with composed_run(words, configs) as composed:
            options = with_own_classes(composed).options
            try_third_party(options, on_cpu=True)
            return free_part(flatten(options.plain()))
    finally:
        sys.path.pop(0)


def _words_of_trial(task: str, overrides: Sequence[str], trial: Mapping[str, Any], configs: Path | None) -> list[str]:
    """Return the overrides of a run with the settings of a trial of a tuned entry; without any, of the first one."""
    given = [word for word in overrides if not word.startswith("--")]
    only = f"sweep.only=[{_optimizer_of(given)}]"
    with composed_run([f"recipe={task}/benchmark_{VERSION}", *RULESETS["tuned"], only, *given], configs) as composed:
        (system,) = systems(Search.read(composed.options.plain()["sweep"]), seed=0)
    return system.words(dict(trial) or system.sample(1)[0])


def _optimizer_of(words: Sequence[str]) -> str:
    """Return the name of the optimizer of a tuned entry."""
    if name := override_value(words, "optimizer"):
        return str(name)
    raise ConfigError(
        "a tuned entry has optimizer=NAME, with optimizer/NAME.yaml beside its entry.yaml and a range; see "
        "docs/benchmark/rules.md"
    )


def _own_configs(folder: Path) -> Path | None:
    """Return the folder of an entry if it has configs of its own, such as ``optimizer/NAME.yaml``."""
    return folder if any(folder.glob("*/*.yaml")) else None


def harness(task: str) -> str:
    """Return a digest of the code that decides the numbers of a run beside the entry."""
    root = Path(__file__).resolve().parents[2]
    return _digest([root / name for name in (*HARNESS, *(f"recipes/{task}/{file}" for file in TASK_FILES))])


def _digest(paths: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:10]


def _sources(folder: Path) -> list[Path]:
    """Return what an entrant gives."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".yaml", ".py"))


def _commit_of(folder: Path) -> str:
    """Return the commit of the main line that brought an entry, as it is.

    Raises:
        ConfigError: it is not committed, or was changed since.
    """
    files = [str(path) for path in _sources(folder)]
    if changed := _git("status", "--porcelain", "--", *files):
        raise ConfigError(
            f"official=true draws seeds from the commit of the entry, and this is not committed: {changed}"
        )
    return _git("log", "--first-parent", "-1", "--format=%H", "--", *files)


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


def _sweep_words(task: str, sweep: str, seeds: Sequence[int], words: Sequence[str], is_searched: bool) -> list[str]:
    """Return the command line of the sweep; what the user gives of places and machines wins."""
    fixed, user_overrides = [f"seed={_listed(seeds)}"], list(words)
    if is_searched:
        optimizer = _optimizer_of(words)
        user_overrides = [word for word in words if override_key(word) != "optimizer"]
        draw = [f"sweep.seeds=[{_listed(seeds)}]", f"sweep.tuning_seed={seeds[0] // 2}"]  # trials have their own
        fixed = [*RULESETS["tuned"], f"sweep.only=[{optimizer}]", *draw]
    usual = ["logger=csv", "torch_threads=1", "hydra/launcher=parallel", "hydra.launcher.n_jobs=-1"]
    if override_value(words, "hydra/launcher"):
        usual = usual[:2]
    given_keys = {override_key(word) for word in words}
    usual = [word for word in usual if override_key(word) not in given_keys]
    flags = [word for word in user_overrides if word.startswith("--")]  # which Hydra does not take after overrides
    rest = [word for word in user_overrides if word not in flags]
    return ["-m", *flags, f"recipe={task}/benchmark_{VERSION}", f"sweep.name={sweep}", *fixed, *usual, *rest]


def _places(words: Sequence[str]) -> list[str]:
    """Return the overrides that name places and machines of one run."""
    of_sweeps = ("hydra", "sweep")
    keys = {word: override_key(word).replace("/", ".") for word in words if not word.startswith("--")}
    return [word for word, key in keys.items() if is_of_machine(word) and not is_within(key, of_sweeps)]


def _asr(command: str, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a command of asr."""
    return subprocess.Popen([sys.executable, "-m", "asr.commands", command, *words], **options)


def _listed(seeds: Sequence[int]) -> str:
    return ",".join(map(str, seeds))


@contextlib.contextmanager
def _baseline_beside(
    task: str, seed: int, places: Sequence[str], run_dir: Path
) -> Iterator[subprocess.Popen[bytes] | None]:
    """Train the baseline once while the entry trains: its CPU seconds are the unit of those of the entry."""
    if (run_dir / SUMMARY).exists():
        yield None
        return
    fixed = [f"recipe={task}/benchmark_{VERSION}", f"optimizer={BASELINE}", "schedule=warmup_cosine", f"seed={seed}"]
    words = [*fixed, "logger=csv", "torch_threads=1", f"run_dir={run_dir}"]
    if (run_dir / "config.yaml").exists():  # it was interrupted
        words = [f"resume={run_dir}"]
    print(f"{BASELINE} is trained once beside the entry, for the cost of an update: {run_dir}", flush=True)
    process = _asr("train", *words, *places, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.wait()


def _train(arguments: Sequence[str], sweep_dir: Path, folder: Path, num_runs: int) -> int:
    """Run the sweep, and say the hours that are left after each job; return its exit code."""
    print(f"asr-train {' '.join(arguments)}", flush=True)
    print(f"{num_runs} runs; after the first, the hours that are left are said; tail -f LOG shows progress", flush=True)
    path = os.pathsep.join([str(folder.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": path}
    before, printed = asked_for(sweep_dir), -1
    process = _asr("train", *arguments, env=variables)
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


def _collect(
    folder: Path,
    task: str,
    about: Mapping[str, Any],
    told: dict[str, Any],
    seeds: Sequence[int],
    sweep_dir: Path,
    baseline: Path,
    before: Entry | None,
) -> Entry | None:
    """Return an entry with its runs before, and those with the other seeds that have ended so far.

    None if none of these has finished, unless all have diverged.
    """
    jobs = {seed: job for seed, job in jobs_by_seed(sweep_dir).items() if seed in seeds}
    finished = [sweep_dir / job.name for job in jobs.values() if (sweep_dir / job.name / SUMMARY).is_file()]
    failed = {seed: f"exit code {job.exit_code}" for seed, job in jobs.items() if job.failed and not job.was_ended}
    num_diverged = sum(job.exit_code == DIVERGED for job in jobs.values())
    if (not finished and num_diverged < len(seeds)) or not (baseline / SUMMARY).is_file():
        return None
    trained = finished or [sweep_dir / job.name for job in jobs.values()]  # those that diverged
    config = read_yaml(trained[0] / "config.yaml")
    told |= _package(config["optimizer"]["_target_"])
    usual_seconds = read_json(baseline / SUMMARY)["cost"]["cpu_seconds"]
    batch = {"harness": harness(task), "baseline_cpu_seconds": usual_seconds}
    if before is not None:
        told = {**before.shared, **told}
    elif folder.parent.name == "tuned":
        told |= {"tuning": read_yaml(sweep_dir / "tuning.json"), "ranges": config["sweep"]["tuned"]["keys"]}
    runs = []
    for path in finished:
        files, (measured,) = read_run(path), read_runs([path]).runs
        options = flatten(files.options.plain())
        data = data_digest(usable_folder(options["data.dir"], "data.dir") / files.summary["data"])
        runs.append(FinishedRun(measured, files.summary, options, data, batch))
    return collected(folder, task, about, told, runs, failed, before)


@functools.cache
def data_digest(folder: Path) -> str:
    """Return a digest of the utterances of prepared data, the same for each place and form of their source."""
    from asr.data.preparation.prepared import PreparedData, fingerprint  # imports lhotse

    prepared = PreparedData.load(folder)
    cuts = ((split, cut) for split in sorted(prepared.splits) for cut in prepared.cuts(split))
    return fingerprint(
        [(split, cut.id, f"{cut.duration:.3f}", [(s.speaker, s.text) for s in cut.supervisions]) for split, cut in cuts]
    )


def _package(target: str) -> dict[str, str]:
    """Return the package, with its version, of an optimizer that is neither ours nor torch's but from an index."""
    names = importlib.metadata.packages_distributions().get(target.partition(".")[0], [])
    distributions = [] if target.startswith(("optim.", "torch.")) else map(importlib.metadata.distribution, names)
    # what was installed from a folder or a repository has this file (PEP 610)
    packages = [f"{one.name}=={one.version}" for one in distributions if one.read_text("direct_url.json") is None]
    return {"package": packages[0]} if packages else {}


def _git(*arguments: str) -> str:
    completed = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return completed.stdout.strip()


if __name__ == "__main__":
    os.environ["PYTHONSAFEPATH"] = "1"
    main()
