"""Whether Weights & Biases can be reached with a key; never a prompt."""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

import wandb

from asr.safe_io import check_regular_file

MAX_SETTINGS_BYTES = 2**16
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
    """Return what ``auto`` stands for: the variable WANDB_MODE, else online where there is an API key.

    Raises:
        ValueError: numbers and the key would go to a server that only the current folder names.
    """
    if mode == "auto":
        mode = os.environ.get("WANDB_MODE") or ("online" if has_api_key() else "offline")  # type: ignore[assignment]
    if mode != "offline":
        _refuse_server_of_folder()
    return mode


def _refuse_server_of_folder() -> None:
    """Refuse a server that the current folder names: it may be somebody else's, and would be sent the API key.

    wandb reads ``wandb/settings`` of the current folder without a word.

    Raises:
        ValueError: the file names a server, and the environment does not.
    """
    folder = Path(os.environ.get("WANDB_DIR", "."))
    paths = [path for name in ("wandb", ".wandb") if os.path.lexists(path := folder / name / "settings")]
    if os.environ.get("WANDB_BASE_URL") or not paths:
        return
    path = paths[0]
    try:
        check_regular_file(path, MAX_SETTINGS_BYTES)
        text = path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise ValueError(f"wandb would read {path.resolve()}: {error}; remove it") from error
    found = [line.strip() for line in text.splitlines() if "url" in line.lower()]
    if found:
        raise ValueError(
            f"{path.resolve()} names the server of wandb: {found[0][:200]!r}; remove the file, or confirm the server "
            "with the variable WANDB_BASE_URL"
        )


def reason(error: Exception) -> str:
    """Return what wandb says, which may take many lines, in a short one."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]}…"
