"""Whole runs to their published WER: minutes, audio seconds per second, shares of the loader and of the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.configs import options_from
from bench.data import NUM_UPDATES, waiting
from bench.measure import Row, Setting, at_most, lacking, left_out, too_late, until_error
from bench.runs import TINY, Ended, RunEnded, ended, train

MOST_WAITING = 0.05  # of the time of updates
WORKERS = (4, 12)
LEAST_UPDATES_PER_S = 60  # of digits


@dataclass(frozen=True)
class Corpus:
    """A recipe, and the test WER in % that its RESULTS.md gives as the upper end of an interval.

    With ``archive`` it is read from the folder of data; without one it is spoken on the spot.
    """

    recipe: str
    published: float
    archive: str = ""


CORPORA = {
    "digits": Corpus("digits/transformer_ctc", 3.43),
    "fsdd": Corpus("fsdd/transformer_ctc", 1.73, "fsdd_flac.tar"),
    "an4": Corpus("an4/transformer_ctc", 29.39, "an4_feats.tar"),
    "phrases": Corpus("phrases/transformer_ctc", 25.39),
}
DIGITS = CORPORA["digits"]


def rows(setting: Setting, what: str) -> Iterator[Row]:
    """Yield a run of a corpus with a precision, as in ``an4-bf16``, or what is measured of ``loader`` or ``seeds``."""
    name, _, precision = what.partition("-")
    corpus = CORPORA.get(name, DIGITS)
    if not corpus.archive and (why := lacking("espeakng_loader")):
        yield left_out(f"{corpus.recipe}, which is spoken on the spot", why, "measured")
    elif name == "loader":
        yield from until_error("waiting for the loader", _loading(setting), setting)
    elif name == "seeds":
        yield from until_error("seeds on one device", _shared(setting), setting)
    else:
        yield from _run(setting, corpus, {"bf16": "bf16-mixed", "fp16": "16-mixed"}[precision])


def _words(setting: Setting, corpus: Corpus) -> tuple[str, ...]:
    source = () if not corpus.archive else (f"data.source={setting.data}/{corpus.archive}",)
    # an archive is prepared whole
    tiny = [word for word in TINY if not (corpus.archive and word.startswith("data.prepare."))]
    size = (*tiny, "trainer.max_steps=4", "trainer.val_check_interval=2") if setting.small else ()
    return (f"recipe={corpus.recipe}", *source, setting.trainer, *size)


def _run(setting: Setting, corpus: Corpus, precision: str) -> Iterator[Row]:
    check = f"{corpus.recipe}, {precision}"
    goal = "" if setting.small else f"at most {corpus.published:g} % WER"
    if corpus.archive and not (setting.data and (setting.data / corpus.archive).is_file()):
        yield left_out(check, f"--data names no folder with {corpus.archive}", goal)
        return
    try:
        train(setting.work, *_words(setting, corpus), f"trainer.precision={precision}", "run_dir=run")
    except RunEnded as error:
        yield Row(check, str(error)[-300:], goal or "a result", met=False)
        return
    run = ended(setting.work / "run")
    yield Row(check, _text(run), goal, 100 * run.wer <= corpus.published if goal else None)
    if corpus is DIGITS and setting.on_gpu:
        met = run.updates_per_s >= LEAST_UPDATES_PER_S
        yield Row(f"{check}, updates/s", f"{run.updates_per_s:.1f}", f"at least {LEAST_UPDATES_PER_S}", met)


def _text(found: Ended) -> str:
    share = "" if found.optimizer_share is None else f", optimizer {found.optimizer_share:.1%}"
    pace = f"{found.audio_s_per_s:,.0f} audio s/s, {found.updates_per_s:.1f} updates/s"
    return f"WER {found.wer:.2%}, {found.minutes:.2f} minutes, {pace}{share}"


def _loading(setting: Setting) -> Iterator[Row]:
    """Yield the share of the time in which updates wait for the loader."""
    data = ("data.dir=" + str(Path(setting.work, "data", "digits")),)
    words = [*_words(setting, DIGITS), *data]
    for num_workers in (1,) if setting.small else WORKERS:
        for features in ("log_mel", "log_mel_on_device"):
            options = options_from(*words, f"features={features}", f"data.workers.num_workers={num_workers}")
            waited, total = waiting(options, setting.device, 3 if setting.small else NUM_UPDATES)
            check = f"share of the time that updates wait for {num_workers} workers, features={features}"
            if setting.on_gpu and features == "log_mel_on_device":
                yield at_most(check, waited / total, MOST_WAITING)
            else:
                yield Row(check, f"{waited / total:.3g}")


def _shared(setting: Setting) -> Iterator[Row]:
    """Yield what it takes to train seeds one after another, and at a time on one GPU."""
    seeds = "1,2" if setting.small else "1,2,3"
    common = ("-m", *_words(setting, DIGITS), f"seed={seeds}", "decode_test=false")
    num = len(seeds.split(","))
    shared = (f"sweep.jobs_per_gpu={num}",) if setting.on_gpu else ()
    together = ("hydra/launcher=parallel", f"hydra.launcher.n_jobs={num}", *shared)
    seconds = {}
    for name, words in (("one after another", tuple[str, ...]()), ("at a time", together)):
        check = f"{num} seeds {name}"
        if setting.is_late():
            yield too_late(check)
            return
        seconds[name] = train(setting.work, *common, *words, f"sweep.name={name.replace(' ', '-')}")
        yield Row(check, f"{seconds[name]:.1f} s")
    before, after = seconds.values()
    yield Row(f"{num} seeds at a time on one device", f"{before / after:.2f} times as fast")
