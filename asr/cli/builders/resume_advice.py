"""What an interrupted run says about how to resume it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from asr.data.preparation.prepared import INDEX, PreparedData
from asr.errors import PeerLost, RunFailed
from asr.quoting import resume_command
from asr.signals import Terminated
from asr.training.checkpoints.files import how_to_resume

LAST_RECORDED = "overrides.yaml"  # of the start of a run, which can be resumed from then on


@contextlib.contextmanager
def saying_how_to_resume(run_dir: Path, prepared: PreparedData) -> Iterator[None]:
    """Add the command that resumes the run to a Ctrl-C, a signal, a lost peer, and an error of data that are gone."""
    try:
        yield
    except KeyboardInterrupt:
        if not (run_dir / LAST_RECORDED).is_file():
            raise
        raise KeyboardInterrupt(f"to resume from its last checkpoint: {resume_command(run_dir)}") from None
    except PeerLost as error:
        raise PeerLost(f"{error}; {how_to_resume(run_dir)}") from error
    except (OSError, ValueError, RunFailed) as error:
        if (prepared.folder / INDEX).is_file() or not run_dir.is_dir():
            raise
        again = f"{resume_command(run_dir)} data.dir={prepared.folder.parent.parent}"
        raise RunFailed(
            f"the prepared data in {prepared.folder} were removed while the run read them; {again} prepares them "
            "again and continues after the last checkpoint"
        ) from error
    except Terminated as ended:
        if not (run_dir / LAST_RECORDED).is_file():
            raise  # nothing to resume yet
        raise Terminated(ended.signal, lambda: f"; to resume: {resume_command(run_dir)}") from None
