"""What a figure depends on beside the model: machine, versions, threads, and the state of the code."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ..train.run_folder import describe_environment


def facts(device: str) -> dict[str, object]:
    """The environment as run folders keep it, with the device and the commit of a checkout."""
    return {**describe_environment(), "device": device, "commit": commit()}


def commit() -> str:
    """Which state of the code this is, with "-dirty" where files differ from it; empty outside a checkout."""
    package = Path(__file__).parents[1]
    if not any((folder / ".git").exists() for folder in package.parents[:2]):
        return ""
    words = ["git", "-C", str(package), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # no git here
        return ""
