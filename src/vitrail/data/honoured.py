"""Which settings each kind of source follows; all others that a person set are refused, none is ignored."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ..errors import UsageError
from .settings import DataSettings

Kind = Literal[
    "built-in set", "usual set", "class folders", "manifest", "chest-xray14", "archive", "array", "shards", "tables",
    "frame", "pairs", "arrays", "torch data set", "opened",
]  # fmt: skip

# fmt: off
OF_EVERY_KIND = frozenset({  # parting, checking, decoding; the task is compared once it is known
    "source", "task", "range", "skip_bad", "exclude", "val_fraction", "test_fraction", "folds", "fold", "strata",
})
COLUMNS = frozenset({"path", "targets", "split", "group", "uncertain"})
HONOURED: dict[Kind, frozenset[str]] = {
    "built-in set":   frozenset(),
    "usual set":      frozenset({"data_root"}),
    "class folders":  frozenset({"keep_empty", "allow_outside_root"}),
    "manifest":       COLUMNS | {"data_root", "allow_outside_root"},
    "chest-xray14":   frozenset({"targets", "group", "allow_outside_root"}),
    "archive":        frozenset({"path", "targets", "group", "uncertain"}),
    "array":          frozenset({"targets", "uncertain"}),
    "shards":         COLUMNS,
    "tables":         COLUMNS | {"data_root", "allow_outside_root"},
    "frame":          COLUMNS | {"data_root", "allow_outside_root"},
    "pairs":          frozenset({"uncertain", "allow_outside_root"}),
    "arrays":         frozenset({"uncertain"}),
    "torch data set": frozenset({"uncertain"}),
    "opened":         frozenset(),
}
"""Beside `OF_EVERY_KIND`. Paths in objects of a Python program may lead anywhere, as it may read its own files."""
MEANINGS = {  # what a setting is for, and what a source that cannot follow it lacks
    "data_root":  ("names the folder of a usual set or of a manifest's pictures", "looks for nothing there"),
    "path":       ("names a column", "has no columns"),
    "targets":    ("names a column", "has no columns"),
    "split":      ("names a column", "has no columns"),
    "group":      ("names a column", "has no columns"),
    "uncertain":  ("says what a label of -1 means in manifests, arrays and other tables", "has no such labels"),
    "keep_empty": ("keeps class folders without pictures", "has no folders"),
    "allow_outside_root": (
        "lets manifests and links in class folders lead out of their folder", "names no files that could",
    ),
}
FLAGS = {"data_root": "--data-root", "group": "--group"}
"""Of those that are not typed as --data.NAME only."""
# fmt: on


def refuse_others(settings: DataSettings, kind: Kind, where: str) -> None:
    """Refuse what was asked of the data and this kind of source cannot follow.

    Args:
        where: what messages call the source.

    Raises:
        UsageError: a setting differs from its default and is not honoured.
    """
    asked, usual = dataclasses.asdict(settings), dataclasses.asdict(DataSettings())
    for name, value in asked.items():
        if value == usual[name] or name in OF_EVERY_KIND or name in HONOURED[kind]:
            continue
        shown = ",".join(value) if isinstance(value, tuple) else "true" if value is True else str(value)
        meaning, lack = MEANINGS[name]
        raise UsageError(f"{FLAGS.get(name, f'--data.{name}')} {shown} {meaning}; {where} {lack}.")
