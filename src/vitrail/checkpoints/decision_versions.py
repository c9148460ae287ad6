"""Kept decisions of a bundle: files in `decisions/` that are only ever added, and which of them is in use.

`decisions/NAME.json` holds a decision, `decisions/use/0001.json`, `0002.json`, ... say which name was put to use, by
whom and when; the last one counts. A file counts from the moment at which the manifest lists it, so that a reader finds
one decision or the other, and a crash leaves the one before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import DamagedFileError, UsageError
from ..files import atomic, checksums, strict_json
from ..files.checksums import ADDED_FOLDER

DECISION_FORMAT = 1
"""Version of the format; increased when older files can no longer be read unchanged."""
BANK_KEY = "bank"
"""In a kept decision with a bank of its own, decisions/NAME.safetensors: the number of its patches."""
TRAINED = "training"
"""The name of the training's own decision, which lies in config.json."""
USE_FOLDER = f"{ADDED_FOLDER}/use"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_decision_name(name: str) -> str:
    """Check that a name can be one of a kept decision.

    Raises:
        UsageError: it cannot.
    """
    if not _NAME.fullmatch(name) or name == TRAINED:
        raise UsageError(
            f"The name of a decision is letters, digits, dots, - and _, at most 64, such as clinic-2026; {TRAINED} is "
            f"the training's own. Got {name!r}."
        )
    return name


def decision_path(folder: Path, name: str) -> Path:
    """The file of a kept decision."""
    return Path(folder) / ADDED_FOLDER / f"{name}.json"


def bank_path(folder: Path, name: str) -> Path:
    """The bank of a kept decision that has one of its own."""
    return Path(folder) / ADDED_FOLDER / f"{name}.safetensors"


def list_decision_names(listed: Collection[str]) -> tuple[str, ...]:
    """The names of the kept decisions, sorted.

    Args:
        listed: the files of the bundle's manifest.
    """
    files = [PurePosixPath(name) for name in listed]
    names = [file.stem for file in files if file.parent.as_posix() == ADDED_FOLDER and file.suffix == ".json"]
    return tuple(sorted(name for name in names if _NAME.fullmatch(name)))


def check_is_kept(folder: Path, name: str, listed: Collection[str]) -> str:
    """Check that a decision of this name is kept, or that it is the training's own.

    Raises:
        UsageError: it is not.
    """
    known = (TRAINED, *list_decision_names(listed))
    if name not in known:
        raise UsageError(f"No decision {name!r} is kept in {folder}. There are: {', '.join(known)}.")
    return name


def find_decision_in_use(folder: Path, listed: Collection[str]) -> str:
    """The name of the decision in use; `TRAINED` where it is the training's own.

    Args:
        listed: the files of the bundle's manifest, verified.

    Raises:
        DamagedFileError: it is not among the kept ones.
    """
    records = list_use_files(listed)
    if not records:
        return TRAINED
    path = folder / records[-1]
    name = strict_json.read_json(path).get("decision")
    if name != TRAINED and name not in list_decision_names(listed):
        raise DamagedFileError(f"{path} must name a decision of {path.parents[1]}. Got {name!r}. Use another copy.")
    return str(name)


def list_use_files(listed: Collection[str]) -> list[str]:
    """The files that say which decision was put to use, by whom and when, the first one first.

    Args:
        listed: the files of the bundle's manifest.
    """
    return sorted((name for name in listed if name.startswith(f"{USE_FOLDER}/")), key=lambda name: (len(name), name))


def read_decision_file(folder: Path, name: str, task: str, classes: Sequence[str]) -> Mapping[str, Any]:
    """The content of a kept decision of a bundle whose manifest was verified.

    Raises:
        DamagedFileError: it is of a newer format, or about another task or other classes.
    """
    path = decision_path(folder, name)
    content = strict_json.read_json(path)
    if type(version := content.get("format")) is not int or version > DECISION_FORMAT:
        raise DamagedFileError(
            f"{path} is of decision format {version!r}, expected at most {DECISION_FORMAT}. Install a newer vitrail."
        )
    if (content.get("task"), content.get("classes")) != (task, list(classes)):
        raise DamagedFileError(
            f"{path} decides {content.get('task')} of {_shorten(content.get('classes'))}, and the model answers {task} "
            f"of {_shorten(classes)}. Use the file that was kept for this model."
        )
    if not isinstance(content.get("decisions"), Mapping):
        raise DamagedFileError(f"{path} holds no decisions. Use another copy.")
    return content


def add_decision_file(folder: Path, name: str, content: Mapping[str, Any], with_bank: bool = False) -> Path:
    """Keep a decision in a bundle. The caller holds the lock of the run.

    Args:
        with_bank: it has a bank of its own, which lies at `bank_path` already and is listed together with it.

    Raises:
        UsageError: a name that is taken, or cannot be one.
        DamagedFileError: the bundle's files are not those of its manifest.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    path = decision_path(folder, check_decision_name(name))
    if name in list_decision_names(checksums.verify_manifest(folder)):
        raise UsageError(f"{path} is kept already and is not overwritten. Choose another name.")
    _add_files(folder, path, content, more=(bank_path(folder, name),) * with_bank)
    return path


def add_use_record(
    folder: Path, name: str, by: str, time: str, listed: Collection[str], damaged: Collection[str] = ()
) -> Path:
    """Put a kept decision, or `TRAINED`, to use. The caller holds the lock of the run.

    Args:
        listed: the files of the bundle's manifest, verified.
        damaged: further ones, which it lists no longer; they stay where they lie.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    records = [one for one in (*listed, *damaged) if one.startswith(f"{USE_FOLDER}/")]
    number = 1 + max((int(Path(one).stem) for one in records), default=0)
    path = Path(folder) / USE_FOLDER / f"{number:04d}.json"
    _add_files(folder, path, {"decision": name, "by": by, "time": time}, damaged)
    return path


def _add_files(
    folder: Path, path: Path, content: Mapping[str, Any], without: Collection[str] = (), more: Sequence[Path] = ()
) -> None:
    """Write a file, then the manifest that lists it and `more`; what a crash leaves in between was never listed."""
    atomic.write_json(path, dict(content))
    checksums.add_to_manifest(folder, path, *more, without=without)


def _shorten(classes: object) -> str:
    names = classes if isinstance(classes, list | tuple) else [classes]
    return ", ".join(map(str, names[:6])) + (", ..." if len(names) > 6 else "")
