"""Which system was better, by how much, and how sure that is; ``asr.compare(rows)`` calls ``compare_results``."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    """This package, which is called as a function too: importing any of its modules makes it ``asr.compare``."""

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        from asr.compare.from_python import compare_results

        return compare_results.__doc__

    def __call__(self, *args: Any, **options: Any) -> Any:
        from asr.compare.from_python import compare_results

        return compare_results(*args, **options)


sys.modules[__name__].__class__ = _CallableModule
