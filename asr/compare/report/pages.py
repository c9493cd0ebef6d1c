"""Pages without scripts that load nothing, with all names as text; for phones, and to keep offline."""

from __future__ import annotations

from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from asr.console import printable


def render(template: str, package: str = __package__ or "", **values: Any) -> str:
    """Return a page.

    Args:
        template: its name.
        package: whose templates may extend and include those of this package.
        values: of the template.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("asr.compare.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        # what macros return is escaped already, and no plain string
        finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
