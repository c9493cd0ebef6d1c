"""Finds out, without a prompt, whether and how Weights & Biases may be used."""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

import wandb
from wandb.env import CACHE_DIR, DATA_DIR, get_cache_dir, get_data_dir
from wandb.sdk.wandb_setup import singleton

FORMER_HOST = "api.wandb.ai"  # keys saved by earlier versions of wandb are filed under it

Mode = Literal["auto", "online", "offline"]
# values of WANDB_MODE; dryrun and run are their former names
MODES: dict[str, Mode] = {"online": "online", "run": "online", "offline": "offline", "dryrun": "offline"}


def settings() -> wandb.Settings:
    """Return wandb's own settings: of ``wandb init`` and ``wandb offline`` in this folder, and of its variables."""
    return singleton().settings


def default_project() -> str:
    """Return the project of runs for which none is given: of wandb's settings or variables, else ``werdict``."""
    return settings().project or "werdict"


def has_api_key() -> bool:
    """Return whether wandb would find an API key without a prompt."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    hosts = (urlparse(settings().base_url).hostname, FORMER_HOST)
    try:
        saved = netrc.netrc(os.environ.get("NETRC"))
    except (OSError, netrc.NetrcParseError):
        return False
    return any(host in saved.hosts for host in hosts)


def is_switched_off() -> bool:
    """Return whether a variable of wandb, or its settings, ask for no runs at all."""
    disabled = os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "t", "yes", "y", "on")
    return disabled or (os.environ.get("WANDB_MODE") or settings().mode) == "disabled"


def chosen_mode(mode: Mode) -> Mode:
    """Return the mode that ``auto`` stands for: of WANDB_MODE or ``wandb offline``, else online if there is a key.

    Raises:
        ValueError: WANDB_MODE is not a mode of wandb's, wandb is switched off, or it cannot write.
    """
    if mode == "auto":
        if is_switched_off():
            raise ValueError(
                "wandb is switched off by WANDB_MODE, WANDB_DISABLED or its settings; choose logger=csv, or unset that"
            )
        named = os.environ.get("WANDB_MODE") or (
            "online" if settings().mode != "offline" and has_api_key() else "offline"
        )
        if named not in MODES:
            raise ValueError(f"WANDB_MODE must be online, offline or disabled, given {named[:40]!r}")
        mode = MODES[named]
    refuse_unwritable_folders()
    return mode


def refuse_unwritable_folders() -> None:
    """Refuse folders of wandb's own, mostly in the user's home, that cannot be written.

    wandb (0.31) would fail at the first table, in the middle of training, and log to the terminal.

    Raises:
        ValueError: names the folder and the variable that moves it.
    """
    # its service, which is written in Go, knows the home by the variable alone
    os.environ.setdefault("HOME", os.path.expanduser("~"))
    for variable, folder in ((DATA_DIR, get_data_dir()), (CACHE_DIR, get_cache_dir())):
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            is_writable = os.access(folder, os.W_OK | os.X_OK)
        except OSError:
            is_writable = False
        if not is_writable:
            raise ValueError(
                f"wandb cannot write to {folder}; set {variable}, or HOME, to a folder of yours, or choose logger=csv"
            )
