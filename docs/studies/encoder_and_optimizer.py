"""Was it the encoder or the optimizer? {Zipformer, Zapformer} x {ScaledAdam, Rubik, Muon}, on an4 and phrases.

    python docs/studies/encoder_and_optimizer.py --an4 PATH [--corpora an4,phrases] [--jobs 2]
    python docs/studies/encoder_and_optimizer.py --factors [--corpora an4]      the last step alone

PATH: cepstra of an4, see recipes/an4/README.md. Begun again, it goes on: finished runs are left alone. Fixed before the
first run:

- Parameters: the two encoders differ by 2 % (2.42 and 2.46 million on an4).
- Rates: for each cell four trials of the whole length, with seed 200, at the same quasi-random points around the usual
  rate of the optimizer, the same for both encoders; judged on dev. Nothing else is tuned; each optimizer has its usual
  schedule.
- Five seeds, 201 to 205, of the best trial of each cell; equal updates and batches.
- asr-compare judges the cells with seeds and speakers, at equal updates and, on dev, at equal CPU time.
- The factors are ratios of word errors on test: of encoders, over all three optimizers; of optimizers, over both
  encoders; and whether they need each other, as the ratio of the encoders with one optimizer to that with another.
  Intervals are Student's, of the logarithms, over seeds: they do not hold other speakers.

About 13 CPU hours: 54 runs of 7 to 9 minutes on an4, and 54 of 5 to 6 on phrases (synthetic speech; the extra tts).
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from asr.runs.files import read_run

UPDATES = {"an4": 2000, "phrases": 1200}
ENCODERS, OPTIMIZERS = ("zipformer", "zapformer"), ("scaled_adam", "rubik", "muon")
SEEDS = (201, 202, 203, 204, 205)
LEVEL = 0.95
SWEEP = [
    *("sweep=optimizers", f"sweep.only=[{','.join(OPTIMIZERS)}]", "sweep.schedule_modes=[usual]"),
    *("sweep.trials=4", "sweep.max_extra_trials=0", "sweep.search=[optimizer.lr]", "sweep.tuning_seed=200"),
    *(f"sweep.seeds=[{','.join(map(str, SEEDS))}]", "sweep.with_defaults=false", "sweep.target_wer=0.35"),
    *("logger=csv", "torch_threads=1", "hydra/launcher=parallel"),
]
Cells = Mapping[tuple[str, str], np.ndarray]


def sweep_name(corpus: str, encoder: str) -> str:
    """Return the folder of a sweep in runs."""
    return f"encoder_and_optimizer_{corpus}_{encoder}"


def run(command: str, *words: str) -> None:
    """Run a command of asr, or end."""
    ended = subprocess.run([sys.executable, "-m", "asr.commands", command, *words], check=False)
    if ended.returncode:
        sys.exit(ended.returncode)


def train(corpus: str, source: Path | None, jobs: int, extra: Sequence[str]) -> None:
    """Train all cells of a corpus, and compare them."""
    for encoder in ENCODERS:
        of_data = [f"data.source={source}"] if corpus == "an4" else []
        words = [f"recipe={corpus}/{encoder}_ctc", f"sweep.name={sweep_name(corpus, encoder)}", *SWEEP]
        budget = f"trainer.max_steps={UPDATES[corpus]}", f"hydra.launcher.n_jobs={jobs}"
        run("train", "-m", *words, *budget, *of_data, *extra)
    baseline = f"baseline='scaled_adam recipe={corpus}/zipformer_ctc'"
    run("compare", f"runs=runs/{sweep_name(corpus, '*')}/*", "pairs=all", "target_wer=0.35", baseline)


def log_errors(corpus: str) -> Cells:
    """Return the logarithms of the error rates on test (S,) by seed, of each encoder and optimizer."""
    found: dict[tuple[str, str], dict[int, float]] = {cell: {} for cell in itertools.product(ENCODERS, OPTIMIZERS)}
    for encoder in ENCODERS:
        for config in Path("runs", sweep_name(corpus, encoder)).glob("*/config.yaml"):
            finished = read_run(config.parent)
            if not (finished.options.decode_test and finished.summary):
                continue
            (optimizer,) = (name for name in OPTIMIZERS if f"optimizer={name}" in finished.overrides)
            found[encoder, optimizer][finished.options.seed] = np.log(finished.summary["test"]["test"]["wer"])
    missing = [f"{encoder} {name}" for (encoder, name), by_seed in found.items() if by_seed.keys() < set(SEEDS)]
    if missing:
        sys.exit(f"{corpus}: not all seeds have finished of {', '.join(missing)}")
    return {cell: np.array([by_seed[seed] for seed in SEEDS]) for cell, by_seed in found.items()}


def factors(cells: Cells) -> dict[str, np.ndarray]:
    """Return the logarithms of the ratios (S,) by seed."""
    zipformer, zapformer = (np.stack([cells[encoder, name] for name in OPTIMIZERS]) for encoder in ENCODERS)
    encoder, optimizer = zapformer - zipformer, (zapformer + zipformer) / 2
    pairs = list(itertools.combinations(range(len(OPTIMIZERS)), 2))
    names = {(i, j): f"{OPTIMIZERS[j]} / {OPTIMIZERS[i]}" for i, j in pairs}
    return {
        "encoder: zapformer / zipformer": encoder.mean(axis=0),
        **{f"  with {name}": encoder[i] for i, name in enumerate(OPTIMIZERS)},
        **{f"optimizer: {names[i, j]}": optimizer[j] - optimizer[i] for i, j in pairs},
        **{f"both: zapformer / zipformer with {names[i, j]}": encoder[j] - encoder[i] for i, j in pairs},
    }


def interval(logs: np.ndarray) -> tuple[float, float, float]:
    """Return the ratio of geometric means, and the ends of its interval."""
    half = stats.t.ppf((1 + LEVEL) / 2, len(logs) - 1) * stats.sem(logs)
    mean = logs.mean()
    return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))


def main() -> None:
    """Run the study, or what is left of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--an4", type=Path, help="cepstra of an4")
    parser.add_argument("--corpora", default="an4,phrases")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--factors", action="store_true", help="print the factors of finished runs")
    parser.add_argument("overrides", nargs="*", help="of all runs, as of asr-train")
    options = parser.parse_args()
    corpora = options.corpora.split(",")
    if "an4" in corpora and not (options.an4 or options.factors):
        parser.error("give --an4 PATH, or --corpora phrases")
    for corpus in corpora:
        if not options.factors:
            train(corpus, options.an4, options.jobs, options.overrides)
        print(f"\n| {corpus}: errors on test | ratio | {100 * LEVEL:.0f} % |\n|---|---|---|")
        for name, logs in factors(log_errors(corpus)).items():
            ratio, low, high = interval(logs)
            print(f"| {name.strip()} | {ratio:.3f} | {low:.3f} – {high:.3f} |")


if __name__ == "__main__":
    main()
