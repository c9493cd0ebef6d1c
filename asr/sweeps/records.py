"""What is known of each job of a sweep: a file per job."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from asr.plain_data import read_json
from asr.safe_io import write_whole

RECORDS = "jobs"  # folder of a sweep
KILLED = 128  # exit codes above it are signals


@dataclass(frozen=True)
class JobRecord:
    """What is known of a job, as its file says.

    Attributes:
        name: of its folder.
        overrides: of the job.
        status: how it stands.
        exit_code: of its process; None while it runs, and if a later command left it alone.
        seconds: that the last process took; 0 if that is not known.
    """

    name: str
    overrides: list[str]
    status: str  # running, finished, failed, interrupted
    exit_code: int | None = None
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the job is not finished."""
        return self.status != "finished"

    @property
    def was_ended(self) -> bool:
        """Whether something else than the training itself ended it, or has not ended it yet."""
        killed = self.exit_code is not None and (self.exit_code < 0 or self.exit_code > KILLED)
        return self.status in ("running", "interrupted") or killed

    def save(self, sweep_dir: Path) -> None:
        """Write the record of the job."""
        folder = sweep_dir / RECORDS
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{self.name}.json", json.dumps(asdict(self), indent=1))


def records(sweep_dir: Path) -> list[JobRecord]:
    """Return what is known of all jobs of a sweep, in the order of their overrides."""
    found = [JobRecord(**read_json(path)) for path in (sweep_dir / RECORDS).glob("*.json")]
    return sorted(found, key=lambda record: (record.overrides, record.name))
