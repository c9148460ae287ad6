"""A file or folder appears whole or not at all, whatever interrupts the writing.

The order that survives a crash: write a temporary neighbour, flush it to the disk, rename it into place, flush the
folder that holds the name.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .disk import flush, resource_errors
from .lock import Lock
from .manifest import MANIFEST, sha256, verify, write_manifest

__all__ = [
    "MANIFEST",
    "TEMPORARY",
    "Lock",
    "append_line",
    "folder",
    "sha256",
    "verify",
    "write_bytes",
    "write_json",
    "write_text",
]

TEMPORARY = ".tmp-"
"""Begins the name of everything unfinished; what a crash left behind may be deleted."""


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file at once, making its folder if need be; whatever fails, the old file is still there.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    path = Path(path)
    temporary = _temporary(path)
    with resource_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(data)
            flush(temporary)
            temporary.replace(path)
            flush(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a text file at once, in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file at once; NaN and infinity are refused, because JSON has no word for them."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def append_line(path: Path, text: str) -> None:
    """Add one line of text; after a line that a crash cut short, begin a new one, so that only that one is lost."""
    path = Path(path)
    with resource_errors(path), path.open("a+b") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(text.rstrip("\n").encode() + b"\n")


@contextmanager
def folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder to fill; afterwards, with its manifest, it becomes `path`. An error leaves none.

    Raises:
        UsageError: `path` exists already; such folders are made once and never changed.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    path = Path(path)
    if path.exists():
        raise UsageError(f"{path} exists already and is not overwritten. Choose another name or move it away.")
    temporary = _temporary(path)
    with resource_errors(path):
        try:
            temporary.mkdir(parents=True)
            yield temporary
            write_manifest(temporary)
            temporary.rename(path)
            flush(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{path.name}"[:200])
