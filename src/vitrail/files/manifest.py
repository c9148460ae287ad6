"""The list of a folder's files with sizes and hashes: no container format notices every flipped bit, this does."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path, PurePosixPath

from ..errors import DamagedFileError
from .disk import flush

MANIFEST = "manifest.json"


def sha256(path: Path) -> str:
    """Hash of a file's content in hexadecimal, read piece by piece."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path) -> None:
    """Flush every file of a folder, then list them all in its manifest, the last file to be written."""
    files = {name: folder / name for name in sorted(_names(folder))}
    for file in files.values():
        flush(file)
    entries = {name: {"size": file.stat().st_size, "sha256": sha256(file)} for name, file in files.items()}
    (folder / MANIFEST).write_text(json.dumps({"files": entries}, indent=2) + "\n", encoding="utf-8")
    for inside in [folder / MANIFEST, *(path for path in folder.rglob("*") if path.is_dir()), folder]:
        flush(inside)


def verify(folder: Path) -> None:
    """Compare every file of a folder with its manifest, before anything in it is used.

    Raises:
        DamagedFileError: no manifest, or a file that is missing, of another size, changed, or not listed.
    """
    folder = Path(folder)
    expected = _read(folder)
    for name, (size, digest) in expected.items():
        file = folder / name
        if not file.is_file():
            raise DamagedFileError(f"{file} is missing, though {MANIFEST} lists it. {_ADVICE}")
        if (found_size := file.stat().st_size) != size:
            raise DamagedFileError(f"{file} has {found_size} bytes, expected {size}. {_ADVICE}")
        if (found := sha256(file)) != digest:
            raise DamagedFileError(f"Checksum mismatch in {file}: expected {digest[:8]}, got {found[:8]}. {_ADVICE}")
    if extra := sorted(_names(folder) - expected.keys()):
        raise DamagedFileError(f"{folder / extra[0]} is not listed in {MANIFEST}. Move it out of the folder.")


_ADVICE = "Use another copy of the folder."


def _names(folder: Path) -> set[str]:
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return {name for name in files if name != MANIFEST}


def _read(folder: Path) -> dict[str, tuple[int, str]]:
    """Name -> (size, hash), from a file that may itself be damaged."""
    path = folder / MANIFEST
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        entries = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in files.items()}
    except OSError as error:
        raise DamagedFileError(f"{folder} has no {MANIFEST}, so it is unfinished or not ours. {_ADVICE}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{path} is not a list of files with sizes and hashes. {_ADVICE}") from error
    for name in entries:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise DamagedFileError(f"{path} lists {name}, which is not inside the folder. {_ADVICE}")
    return entries
