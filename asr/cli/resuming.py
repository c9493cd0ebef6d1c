"""``resume=RUN``: the run's own overrides again, and a close look at what has changed since."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from asr.cli.errors import ConfigError

# what may differ between a run and its resumption: where and how fast, not what is trained
FREE = (
    "resume",
    "resume_anyway",
    "run_dir",
    "recipes_dir",
    "sweep",
    "decode_test",
    "torch_threads",
    "calibrate",
    "weights",
    "logger",
    "callbacks",
    "data.dir",
    "data.workers",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.strategy",
    "trainer.log_every_n_steps",
    "trainer.enable_progress_bar",
)
# overrides that make a program read code or configs from elsewhere are never taken from a run's folder
UNTRUSTED = ("hydra", "recipes_dir", "+hydra", "++hydra")


@contextlib.contextmanager
def with_saved_overrides(argv: list[str]) -> Iterator[None]:
    """Put what was typed for the run that ``resume=`` names before what is typed now."""
    words = [word for word in argv[1:] if word.startswith("resume=")]
    given = OverridesParser.create().parse_overrides(words)[-1].value() if words else None
    if given is not None:
        folder = run_folder(given)
        typed = {override_key(word) for word in argv[1:]}
        argv[1:1] = [word for word in _saved_overrides(folder) if override_key(word) not in typed]
    yield


def run_folder(given: object) -> Path:
    """Return the folder that ``resume=`` names.

    Raises:
        ConfigError: it is none, or no run is in it.
    """
    folder = Path(str(given)).expanduser().resolve()
    if not (folder / "overrides.yaml").is_file() or not (folder / "config.yaml").is_file():
        raise ConfigError(f"resume: {str(folder)!r} is not the folder of a run; give one with config.yaml, as in runs/")
    return folder


def _saved_overrides(folder: Path) -> list[str]:
    saved = yaml.safe_load((folder / "overrides.yaml").read_text(encoding="utf-8")) or []
    if not isinstance(saved, list) or not all(isinstance(word, str) for word in saved):
        raise ConfigError(f"resume: {folder / 'overrides.yaml'} is not a list of overrides")
    kept = [word for word in saved if not word.startswith(("run_dir=", "resume=", "resume_anyway="))]
    return [word for word in kept if not word.startswith(UNTRUSTED)]


def override_key(word: str) -> str:
    """Return the key of an override as it was typed."""
    return word.lstrip("+~").partition("=")[0]


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs between two configs, as sentences; where and how fast may differ."""
    old, new = flat(before), flat(now)
    keys = [key for key in sorted(old | new) if not any(f"{key}.".startswith(f"{free}.") for free in FREE)]
    return [
        f"{key}: {old.get(key, 'absent')!r} in the run, {new.get(key, 'absent')!r} now"
        for key in keys
        if old.get(key, "absent") != new.get(key, "absent")
    ]


def saved_config(folder: Path) -> dict[str, Any]:
    """Return the composed config that a run was started with."""
    container = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def refuse_changes(found: list[str], anyway: bool) -> list[str]:
    """Return the changes, to be printed, if they were asked for.

    Raises:
        ConfigError: something has changed, and nobody said ``resume_anyway=true``.
    """
    if found and not anyway:
        raise ConfigError(
            "resume: this is not the training that was interrupted:\n  "
            + "\n  ".join(found)
            + "\nTake the changes back, or say resume_anyway=true to go on with them."
        )
    return found


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested config by dotted key."""
    if isinstance(node, Mapping) and node:
        return {key: value for name, item in node.items() for key, value in flat(item, f"{prefix}{name}.").items()}
    return {prefix.removesuffix("."): list(node) if isinstance(node, tuple) else node}
