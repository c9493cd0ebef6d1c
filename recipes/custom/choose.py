"""Which options suit recordings of one's own, by how much there is of them; README.md has them as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator

from asr.data.preparation.saved_corpus import Budget, Choice, CorpusFacts

NARROW_HZ = 8000  # of telephones
SMALL_HOURS = 1.0  # up to here the recipe's own budget is enough
MORE_UPDATES = 4 / 3  # of the recipe's own, before they become longer too
SHORT_HOURS = 2.0  # up to here updates are as long as the recipe's own
LONGEST = 5.0  # times the audio of the recipe's own updates
MOST_UPDATES = 30_000
FAST_CHARACTERS_HZ = 14.0  # without the pauses speech is up to twice as fast: encodings at 25 Hz would be too few
MASKED_FEATURES = 15 / 80  # that a mask of SpecAugment covers at most, as of log-mel features
FEW_HOURS = 0.5
FEW_SPEAKERS = 5


def choose_custom(facts: CorpusFacts, budget: Budget) -> Iterator[Choice | str]:
    """Yield choices and advice for a corpus, from the budget that the recipe has for a small one."""
    if facts.rate_hz is not None and facts.rate_hz <= NARROW_HZ:
        yield Choice("data.sampling_rate_hz", NARROW_HZ, "no audio has more")
    if facts.num_features is not None:
        yield Choice("features", "precomputed", "features without audio")
        yield Choice("data.num_features", facts.num_features, "as many in a frame")
        yield Choice("augment.audio", None, "no audio")
        bins = math.ceil(MASKED_FEATURES * facts.num_features)
        yield Choice("augment.features.max_feature_bins", bins, f"of {facts.num_features}")
    if facts.fast_characters_hz > FAST_CHARACTERS_HZ:
        reason = f"up to {facts.fast_characters_hz:.0f} characters per second, pauses included"
        yield Choice("encoder.subsampling_factor", 2, reason)
    yield from _budget(facts.hours, budget)
    if facts.hours < FEW_HOURS:
        yield (
            f"{60 * facts.hours:.2g} minutes of training audio are few: most words occur rarely or never. More "
            "recordings help most; then init=RUN, a run on other speech"
        )
    if 0 < facts.num_speakers < FEW_SPEAKERS:
        speakers = "one speaker" if facts.num_speakers == 1 else f"{facts.num_speakers} speakers"
        yield (
            f"training has {speakers}: other voices will be understood far worse. Recordings of more voices help most; "
            "then init=RUN, a run on other speech"
        )


def _budget(hours: float, budget: Budget) -> Iterator[Choice]:
    """Yield the updates and their length: first a few more, then longer ones, then many more."""
    reason = f"{hours:.1f} hours of training audio"
    times = max(1.0, hours / SHORT_HOURS)
    longer = min(LONGEST, times)  # which take less time per second of audio than more of them
    more = min(MORE_UPDATES, max(1.0, hours / SMALL_HOURS)) * times / longer
    if longer > 1:
        yield Choice("data.batch.max_duration_s", round(budget.batch_s * longer), reason)
    if more > 1:
        yield Choice("trainer.max_steps", min(MOST_UPDATES, 100 * round(budget.updates * more / 100)), reason)
