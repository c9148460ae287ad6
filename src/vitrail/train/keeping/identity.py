"""Which data a run was begun with, kept in its folder: a run goes on with the same, or says how it differs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ...data.source import Source
from ...errors import DataError
from ...files.atomic import write_json

SHOWN = 10


def write(path: Path, source: Source) -> None:
    """Keep name, task, classes and fingerprint of a source; what each picture shows is kept with the splits."""
    facts = {"source": source.name, "task": source.task, "classes": list(source.classes)}
    write_json(path, facts | {"fingerprint": source.fingerprint()})


def check(path: Path, source: Source) -> tuple[str, ...]:
    """A sentence if the source is not quite what `write` has seen; nothing if it is.

    Raises:
        DataError: another task or other classes, so that the model's answers would mean something else.
    """
    if not path.is_file():
        return ("This run was begun by an older version, so nobody knows whether its data is still the same.",)
    begun = json.loads(path.read_text(encoding="utf-8"))
    if begun["task"] != source.task:
        raise DataError(
            f"The run was begun with a source of {begun['task']}, and {source.name} is now one of {source.task}. "
            "Put the data back as it was, or begin a new run."
        )
    if begun["classes"] != list(source.classes):
        raise DataError(
            f"The classes of {source.name} have changed since the run began. They were {_listed(begun['classes'])}; "
            f"now they are {_listed(source.classes)}. Put the data back as it was, or begin a new run."
        )
    if begun["fingerprint"] == source.fingerprint():
        return ()
    changed = f"The data of {source.name} has changed since the run began (pictures added, removed or replaced)"
    return (f"{changed}, so results are no longer bit for bit those of the unbroken run.",)


def same(path: Path, source: Source) -> bool:
    """Whether a source is exactly what `write` has seen."""
    return path.is_file() and json.loads(path.read_text(encoding="utf-8"))["fingerprint"] == source.fingerprint()


def is_of(path: Path, source: Source) -> bool:
    """Whether `write` has seen this source, or one of its name whose files were others: ids mean the same there."""
    if not path.is_file():
        return False
    begun = json.loads(path.read_text(encoding="utf-8"))
    in_files = not isinstance(source.pictures, np.ndarray)
    alike = in_files and (begun["source"], begun["task"]) == (source.name, source.task)
    return bool(begun["fingerprint"] == source.fingerprint() or alike)


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:SHOWN])) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")
