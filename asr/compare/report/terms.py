"""What the terms in the tables mean, for the page and ``asr-compare --help``."""

from __future__ import annotations

from collections.abc import Mapping


def explanations(level: float, rate_name: str) -> Mapping[str, str]:
    """Return what the terms in the tables mean."""
    false_alarms = f"{100 * (1 - level):.3g}"
    return {
        "Interval": f"Another seed would give another {rate_name}, and so would other speakers. The interval covers "
        "both: the spread between seeds, and the spread among speakers that all seeds share (among utterances if "
        "speakers are unknown). With one seed it comes from resampling speakers or utterances (bootstrap) and covers "
        "this run only; another seed may be far outside.",
        "Difference": f"In points of {rate_name}, on the seeds that both systems have and on the same speakers, so "
        "that what is hard for both cancels out. Negative: the system is better.",
        "p (adjusted), verdict, interval of a difference": "Corrected for all pairs of systems that are tested on the "
        f"test set: at most {false_alarms} of 100 such test sets have any false verdict, or any interval that misses "
        "the true difference. A difference is significant if 0 is outside its interval, or is its end, and only then.",
        "Cannot distinguish": "This does not mean that two systems are equal: with more seeds their difference may be "
        "significant.",
        f"P(lower {rate_name})": f"Share of all pairs of seeds in which the system has the lower {rate_name}.",
        "Learned": "A run has learned if its hypotheses depend on the audio: they fit their own references better than "
        "those of other utterances.",
        "80 of 100": "Larger differences are found more often, smaller ones less often; with more seeds all are. From "
        "the spread over seeds of all systems together, at the level of the first verdict.",
    }
