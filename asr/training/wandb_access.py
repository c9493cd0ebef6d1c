"""Whether Weights & Biases can be reached with a key; never a prompt."""

from __future__ import annotations

import netrc
import os
from typing import Literal
from urllib.parse import urlparse

import wandb

FORMER_HOST = "api.wandb.ai"  # keys saved by earlier versions of wandb are filed under it
INIT_TIMEOUT_S = 30

Mode = Literal["auto", "online", "offline"]


def has_api_key() -> bool:
    """Return whether wandb would find a key without asking."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    hosts = (urlparse(wandb.Settings().base_url).hostname, FORMER_HOST)
    try:
        saved = netrc.netrc(os.environ.get("NETRC"))
    except (OSError, netrc.NetrcParseError):
        return False
    return any(host in saved.hosts for host in hosts)


def chosen_mode(mode: Mode) -> Mode:
    """Return what ``auto`` stands for: the variable WANDB_MODE, else online where there is an API key."""
    if mode == "auto":
        return os.environ.get("WANDB_MODE") or ("online" if has_api_key() else "offline")  # type: ignore[return-value]
    return mode
