"""A folder's manifest with the size and SHA-256 of every file, which detects every flipped bit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ..errors import DamagedFileError
from . import disk, strict_json
from .disk import flush

MANIFEST = "manifest.json"
README_FILE = "README.md"
"""For people only; nothing is computed from it."""
ADDED_FOLDER = "decisions"
"""Files here may be added to a finished folder; one that the manifest does not list yet is ignored."""


class _ManifestEntry(NamedTuple):
    size: int
    sha256: str


def sha256(path: Path) -> str:
    """Hash of a file's content in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, with_page: bool = True) -> None:
    """Flush every file of a folder, then write its manifest last.

    Args:
        with_page: whether README.md is listed, and so must not be edited.
    """
    files = {name: folder / name for name in sorted(_list_names(folder)) if with_page or name != README_FILE}
    for name, file in files.items():
        flush(file)
        disk.crash_if_requested("flushed-again", name)
    entries = {name: _ManifestEntry(file.stat().st_size, sha256(file)) for name, file in files.items()}
    disk.crash_if_requested("before", MANIFEST)
    (folder / MANIFEST).write_bytes(_format_manifest(entries))
    disk.crash_if_requested("written", MANIFEST)
    for inside in [folder / MANIFEST, *(path for path in folder.rglob("*") if path.is_dir()), folder]:
        flush(inside)
        disk.crash_if_requested("flushed-again", inside.name if inside.name == MANIFEST else "folder")


def add_to_manifest(folder: Path, *added: Path, without: Collection[str] = ()) -> None:
    """List further files, of `ADDED_FOLDER`, in the manifest, which is replaced in one step.

    Args:
        without: names of files of `ADDED_FOLDER` that the manifest lists no longer; they stay where they lie.
    """
    path = folder / MANIFEST
    entries = {one: entry for one, entry in _read_manifest(folder).items() if one not in without}
    entries |= {one.relative_to(folder).as_posix(): _ManifestEntry(one.stat().st_size, sha256(one)) for one in added}
    with disk.resource_errors(path):
        temporary = folder / ADDED_FOLDER / f".{MANIFEST}"  # where a reader in between ignores it
        temporary.write_bytes(_format_manifest(dict(sorted(entries.items()))))
        flush(temporary)
        disk.crash_if_requested("before", MANIFEST)
        temporary.replace(path)
        flush(folder)


def verify_manifest(folder: Path, unread: Collection[str] = (), ignored: Collection[str] = ()) -> frozenset[str]:
    """Compare every file of a folder with its manifest, before anything in it is used; return their names.

    Args:
        unread: names of files that are not used now, of which the size alone is compared.
        ignored: names of files that are neither compared nor returned.

    Raises:
        DamagedFileError: no manifest or a changed one, or a file that is missing, shorter, longer, changed, swapped
            with another, or not listed. README.md need not be.
    """
    folder = Path(folder)
    expected = _read_manifest(folder)
    names = [name for name in expected if name not in ignored]
    for name in names:
        _verify_file(folder, name, expected, name not in unread)
    extra = sorted(_list_names(folder) - expected.keys() - {README_FILE})
    if extra := [name for name in extra if not name.startswith(f"{ADDED_FOLDER}/")]:
        raise DamagedFileError(f"{folder / extra[0]} is not listed in {MANIFEST}. Move it out of the folder.")
    return frozenset(names)


def find_damaged_additions(folder: Path) -> tuple[str, ...]:
    """The listed files of `ADDED_FOLDER` that are missing or changed, sorted.

    Raises:
        DamagedFileError: no manifest, or a changed one.
    """
    damaged, expected = [], _read_manifest(folder)
    for name in sorted(name for name in expected if name.startswith(f"{ADDED_FOLDER}/")):
        try:
            _verify_file(folder, name, expected)
        except DamagedFileError:
            damaged.append(name)
    return tuple(damaged)


def _verify_file(folder: Path, name: str, expected: Mapping[str, _ManifestEntry], is_read: bool = True) -> None:
    file, entry = folder / name, expected[name]
    advice = _ADVICE_OF_ADDITIONS if name.startswith(f"{ADDED_FOLDER}/") else _ADVICE
    if not file.is_file():
        raise DamagedFileError(f"{file} is missing, though {MANIFEST} lists it. {advice}")
    if (size := file.stat().st_size) != entry.size:
        change = "shorter" if size < entry.size else "longer"
        raise DamagedFileError(
            f"{file} has {size} bytes, expected {entry.size}: it is {change} than when it was written. {advice}"
            + _swap_hint(name, expected, file)
        )
    if is_read and (found := sha256(file)) != entry.sha256:
        raise DamagedFileError(
            f"Checksum mismatch in {file}: expected {entry.sha256[:8]}, got {found[:8]}. {advice}"
            + _swap_hint(name, expected, file, found)
        )


_ADVICE = "Use another copy of the folder."
_ADVICE_OF_ADDITIONS = (
    "Use another copy of the folder, or put another decision to use, which leaves this file out: vitrail decide RUN "
    "--use training."
)


def _swap_hint(name: str, expected: Mapping[str, _ManifestEntry], file: Path, digest_found: str | None = None) -> str:
    """A hint if the file has the content of another of the folder's files; else empty."""
    size = file.stat().st_size
    alike = {other: entry for other, entry in expected.items() if other != name and entry.size == size}
    digest = digest_found or (sha256(file) if alike else "")
    for other, entry in alike.items():
        if entry.sha256 == digest:
            return f" Its content is that of {other}: the two may have been swapped."
    return ""


def _list_names(folder: Path) -> set[str]:
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return {name for name in files if name != MANIFEST}


def _format_manifest(entries: Mapping[str, _ManifestEntry]) -> bytes:
    """The manifest's canonical text; any other text was changed."""
    files = {name: entry._asdict() for name, entry in entries.items()}
    return (json.dumps({"files": files}, indent=2) + "\n").encode()


def _read_manifest(folder: Path) -> dict[str, _ManifestEntry]:
    """Name -> (size, hash), from a manifest that may itself be damaged."""
    path = folder / MANIFEST
    if not path.is_file():
        raise DamagedFileError(f"{folder} has no {MANIFEST}, so it is unfinished or not ours. {_ADVICE}")
    try:
        entries = {name: _parse_entry(value) for name, value in strict_json.read_json(path)["files"].items()}
    except (DamagedFileError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{path} is not a list of files with sizes and hashes. {_ADVICE}") from error
    for name in entries:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise DamagedFileError(f"{path} lists {name}, which is not inside the folder. {_ADVICE}")
    if path.read_bytes() != _format_manifest(entries):
        raise DamagedFileError(f"{path} was changed since it was written. {_ADVICE}")
    return entries


def _parse_entry(value: Any) -> _ManifestEntry:
    size, digest = value["size"], value["sha256"]
    if type(size) is not int or not isinstance(digest, str):
        raise TypeError
    return _ManifestEntry(size, digest)
