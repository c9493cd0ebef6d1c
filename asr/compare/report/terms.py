"""What the terms in the tables mean, for the page and ``asr-compare --help``."""

from __future__ import annotations

from collections.abc import Mapping


def explanations(level: float, rate_name: str) -> Mapping[str, str]:
    """Return what the terms in the tables mean."""
    false_alarms = f"{100 * (1 - level):.3g}"
    return {
        "May be best": f"The systems that no other one is significantly better than. In at most {false_alarms} of 100 "
        "such comparisons the truly best system is not among them.",
        "Ratio of errors": f"Of the geometric mean {rate_name}s over seeds: how a typical run compares with a typical "
        "run of the baseline, on the seeds that both systems have and on the same speakers, so that what is hard for "
        "both cancels out. 0.60 means 40 % fewer errors. Rates above 100 %, and runs that failed, count as 100 %.",
        "p (adjusted), verdict, interval of a ratio": "Corrected for the number of systems that are compared with the "
        f"baseline: at most {false_alarms} of 100 such test sets have any false verdict, and as many an interval that "
        "misses the true ratio. An interval that ends at 1.00 belongs to a significant difference.",
        "Cannot distinguish": "This does not mean that two systems are equal: with more seeds their difference may be "
        "significant.",
        "Interval of a mean": f"Another seed would give another {rate_name}, and so would other speakers. It "
        "covers both: the spread between seeds, and the spread among speakers that all seeds share (among utterances "
        "if speakers are unknown). With one seed it comes from resampling speakers or utterances (bootstrap) and "
        "covers this run only; another seed may be far outside.",
        "Learned": "A run has learned if its hypotheses depend on the audio: they fit their own references better than "
        "those of other utterances.",
        "80 of 100": "From the noise of the two systems, at the level of the first verdict. Larger differences are "
        "found more often, smaller ones less often; with more seeds all are.",
    }
