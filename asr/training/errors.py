"""Errors that a training ends with, and whose message is all that a user needs."""

from __future__ import annotations


class TrainingFailed(RuntimeError):
    """A training that cannot go on; the message says why, and what to do."""
