"""Several bundles as one model: a folder that holds them, whose answers are averaged."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from ..errors import DamagedFileError, UsageError
from ..files import atomic, checksums, strict_json

ABOUT = "ensemble.json"
FORMAT = 1
"""Raised when such a folder of an older version can no longer be read as it is."""


def save(folder: Path, bundles: Sequence[Path]) -> None:
    """Copy bundles into one folder, whole or not at all, as member-0, member-1, ...

    Raises:
        UsageError: the folder exists, or there is nothing to copy.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    if not bundles:
        raise UsageError("An ensemble needs at least one bundle. Got none.")
    names = [f"member-{number}" for number in range(len(bundles))]
    with atomic.write_folder(Path(folder)) as inside:
        for name, bundle in zip(names, bundles, strict=True):
            shutil.copytree(bundle, inside / name)
        atomic.write_json(inside / ABOUT, {"format": FORMAT, "members": names})


def is_ensemble(path: Path) -> bool:
    """Whether a path is such a folder."""
    return (Path(path) / ABOUT).is_file()


def ensemble_in(path: Path) -> Path | None:
    """The ensemble of a folder: itself, or the `model/` of a run of several folds."""
    return next((folder for folder in (Path(path), Path(path) / "model") if is_ensemble(folder)), None)


def members(folder: Path) -> tuple[Path, ...]:
    """Its bundles, after every file has been compared with its hash.

    Raises:
        DamagedFileError: a file is missing or changed, or the list of members is none.
    """
    folder = Path(folder)
    checksums.verify_manifest(folder)
    told = strict_json.read_json(folder / ABOUT)
    names = told.get("members") if isinstance(told, dict) else None
    if not isinstance(names, list) or not names or not all((folder / str(name)).is_dir() for name in names):
        raise DamagedFileError(
            f"{folder / ABOUT} must list the folders of its members. Got {told!r}. Use another copy."
        )
    if told.get("format") != FORMAT:
        raise DamagedFileError(
            f"{folder / ABOUT} is of format {told.get('format')!r}, expected {FORMAT}. Install a newer vitrail."
        )
    return tuple(folder / str(name) for name in names)
