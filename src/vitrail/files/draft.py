"""Something new written beside its place first, so that what is refused in the end has never been there."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import atomic
from .disk import flush, resource_errors


@contextmanager
def draft(out: Path) -> Iterator[Path]:
    """A place for `out` by its name in a temporary folder beside it, which is gone afterwards with what is left in it.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    folder = out.with_name(f"{atomic.TEMPORARY}{secrets.token_hex(4)}")
    with resource_errors(out):
        try:
            folder.mkdir(parents=True)
            yield folder / out.name
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def keep(drafted: Path, out: Path) -> None:
    """Put a draft, and whatever was written beside it, into its place; `out` itself last."""
    for written in sorted(drafted.parent.iterdir(), key=lambda path: path == drafted):
        if written.is_file():
            flush(written)
        written.rename(out.with_name(written.name))
    flush(out.parent)
