"""What several workers need and only one makes: tiny finished runs, under the temporary folder of the whole session."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from suites import WORKER


def shared_once(name: str, make: Callable[[Path], None], factory: pytest.TempPathFactory) -> Path:
    """The folder that `make` fills, once for all workers of a session; nobody may change what is in it."""
    base = factory.getbasetemp()
    folder = (base.parent if WORKER else base) / "shared" / name
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            half = folder.with_name(f"{name}.half")
            shutil.rmtree(half, ignore_errors=True)  # of a worker that died
            half.mkdir()
            make(half)
            half.rename(folder)
    return folder
