"""``asr-train``: from a recipe to a WER."""

from __future__ import annotations

from asr.commands.app import run_app
from asr.commands.find_batch_size import find_batch_size
from asr.run.build import Run
from asr.run.choices import with_own_classes
from asr.run.compose import Composed
from asr.run.train import train
from asr.sweeps.jobs import run_job


def main() -> None:
    """Run ``asr-train``."""
    run_app("train", run)


def run(composed: Composed) -> float | None:
    """Prepare missing data, train, decode the test sets; in a sweep, run one job and return its WER on dev."""
    if composed.sweep_dir is not None:
        return run_job(with_own_classes(composed))
    built = Run.build(composed)
    if built.options.find_batch_size:
        find_batch_size(built)
    else:
        train(built)
    return None


if __name__ == "__main__":
    # launchers of parallel sweeps pickle the task: another process finds it by this module's name, not in __main__
    from asr.commands import train as named

    named.main()
