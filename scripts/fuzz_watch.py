"""What a reader must never do with a stranger's bytes, watched while it reads them."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_SECONDS = 10  # of processor time, which other processes do not stretch
MAX_MB = 1024
STATUS, RESET_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# audit events that change files, with their number of paths; opening to write is another
CHANGES = {"os.mkdir": 1, "os.remove": 1, "os.rmdir": 1, "os.chmod": 1, "os.chown": 1, "os.utime": 1}
CHANGES |= {"os.rename": 2, "os.link": 2, "os.symlink": 2}
FOREIGN: tuple[str, ...] = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "pickle.find_class",
)
FOREIGN += ("socket.connect", "socket.getaddrinfo", "urllib.Request", "ctypes.dlopen")


class Watch:
    """Lets a reader read an input, and says what it did that it must never do.

    Args:
        folder: the only one where files may be made; emptied for every input.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.active, self.deeds = False, list[str]()
        sys.addaudithook(self._see)  # stays until the process ends

    def find(self, read: Callable[[bytes, Path], object], data: bytes) -> str | None:
        """Return what is wrong, with the place in the code where it is known; None where the input is well answered."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.deeds.clear()
        RESET_PEAK.write_text("5")
        before, start = _peak_mb(), time.process_time()
        problem = self._read(read, data)
        taken = _peak_mb() - before
        if taken > MAX_MB:
            problem = problem or f"took {taken:.0f} MB, allowed are {MAX_MB}"
        if time.process_time() - start > MAX_SECONDS:
            problem = problem or f"took more than {MAX_SECONDS} s"
        return self.deeds[0] if self.deeds else problem

    def _read(self, read: Callable[[bytes, Path], object], data: bytes) -> str | None:
        compiled, sys.dont_write_bytecode, self.active = sys.dont_write_bytecode, True, True
        try:
            read(data, self.folder)
        except ValueError:
            return None
        except OSError as error:
            # the commands answer a name that the system refuses in one line
            return None if error.filename is not None else "".join(traceback.format_exception(error))
        except Exception as error:
            return "".join(traceback.format_exception(error))
        finally:
            sys.dont_write_bytecode, self.active = compiled, False
        return None

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event in FOREIGN:
            self.deeds.append(f"did {event} {str(arguments)[:200]}")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self._refuse_outside(event, arguments[0])
        elif event in CHANGES and arguments[-1] == -1:  # names relative to an open folder are those of rmtree
            for path in arguments[: CHANGES[event]]:
                self._refuse_outside(event, path)

    def _refuse_outside(self, event: str, path: Any) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            parent, name = os.path.split(os.path.abspath(os.fsdecode(path)))
            place = Path(os.path.realpath(parent), name)
            if not place.is_relative_to(self.folder) and place != Path(os.devnull):
                self.deeds.append(f"did {event} {str(place)!r}, which is outside its folder")


def _peak_mb() -> float:
    """Return the largest resident memory since the last reset, which is what is resident then."""
    return int(re.findall(r"VmHWM:\s+(\d+)", STATUS.read_text())[0]) / 1024
