"""The data card: what the pictures are, how many of each kind, and what the data doctor found, as the run stored it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..evaluate.task_metrics import TaskMetrics
from . import stored
from .facts import ReportFacts

MOST_CLASSES = 30
"""Lines of the table; of more classes the rarest are shown."""
WORDS = {"stop": "would stop a training", "warning": "warning", "hint": "to be known"}
ALL = "all"
SHOWN = 3
"""Examples of what the doctor found."""


class Concern(NamedTuple):
    """One thing that the doctor found."""

    word: str
    text: str
    advice: str
    examples: str
    """Some of its pictures by id: copies joined by an equal sign."""


class DataCard(NamedTuple):
    """What is known of a source's pictures."""

    pictures: int
    looked_at: int
    bad: int
    """That cannot be used."""
    smallest: str
    largest: str
    """Height x width and the id; empty where nothing was looked at."""
    kinds: str
    """Each file format, and how many of it where there are several."""
    values: str
    """The same of the types of stored values."""
    remarks: str
    """What the decoder noticed, and how often."""
    splits: list[str]
    counts: list[tuple[str, list[int]]]
    """Of each class its pictures in each split."""
    left_out: int
    """Classes that the table does not show."""
    groups: int | None
    """Groups that the held-out pictures come in."""
    concerns: list[Concern]
    notes: list[str]
    fingerprint: str


def data_card(folder: Path, known: ReportFacts, figures: TaskMetrics) -> DataCard | None:
    """From check.json and data.json; None where the run has no check.json.

    A folder of several folds has those of its first one, whose splits count for nothing then.

    Raises:
        DamagedFileError: a file that is there and is not JSON.
    """
    found, first = stored.table(folder / "check.json"), folder / "fold-0"
    folds = found is None
    if found is None:
        found, folder = stored.table(first / "check.json"), first
    if found is None:
        return None
    splits, counts = _counted(found.get("class_counts", {}), folds)
    if len(counts) > MOST_CLASSES:
        counts.sort(key=lambda row: row[1][0])
    return DataCard(
        pictures=found["pictures"],
        looked_at=found["looked_at"],
        bad=len(found["bad"]),
        smallest=_size(found.get("smallest")),
        largest=_size(found.get("largest")),
        kinds=_kinds(found.get("formats", {})),
        values=_kinds(found.get("stored_values", {})),
        remarks=_listed(found.get("remarks", {})),
        splits=splits,
        counts=counts[:MOST_CLASSES],
        left_out=max(0, len(counts) - MOST_CLASSES),
        groups=figures.groups,
        concerns=[
            Concern(
                word=WORDS.get(one["severity"], one["severity"]),
                text=one["text"],
                advice="" if folds else one.get("advice", ""),
                examples=_examples(one.get("groups", []), one.get("pictures", [])),
            )
            for one in found.get("concerns", [])
            if not folds or "in-train-and" not in one["code"]
        ],
        notes=[note for note in found.get("notes", []) if note not in known.notes],
        fingerprint=str((stored.table(folder / "data.json") or {}).get("fingerprint", "")),
    )


def _counted(table: Mapping[str, Mapping[str, int]], folds: bool) -> tuple[list[str], list[tuple[str, list[int]]]]:
    """Split names, and for each class a number for each of them."""
    splits = [split for split, counts in table.items() if any(counts.values())]
    names = list(table[splits[0]]) if splits else []
    rows = [(name, [table[split].get(name, 0) for split in splits]) for name in names]
    return ([ALL], [(name, [sum(row)]) for name, row in rows]) if folds and splits else (splits, rows)


def _examples(groups: Sequence[Sequence[str]], pictures: Sequence[str]) -> str:
    """The first of the groups, or where there are none, of the pictures, and how many more there are."""
    names = [" = ".join(group) for group in groups] or list(pictures)
    more = f" and {len(names) - SHOWN:,} more, in check.json" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def _size(size: Mapping[str, Any] | None) -> str:
    return "" if size is None else f"{size['height']} x {size['width']} ({size['id']})"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _kinds(counts: Mapping[str, int]) -> str:
    return next(iter(counts)) if len(counts) == 1 else _listed(counts)
