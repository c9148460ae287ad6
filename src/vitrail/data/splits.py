"""Which pictures are trained on, which are watched meanwhile, and which are kept for the end.

Published splits are respected. What is missing is carved out of the training pictures: class by class in proportion,
whole groups only, decided by the seed and each picture's number.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..files.atomic import write_text
from ..randomness import uniform
from .carve import share_groups, share_pictures
from .source import SPLITS, Source

Rows = NDArray[np.int64]


def complete(source: Source, seed: int, val_fraction: float, test_fraction: float) -> dict[str, Rows]:
    """Row numbers under "train", "val" and "test", each sorted; a published val or test is not changed.

    A missing val or test takes its fraction of every class out of train (out of all pictures, where nothing was
    published), rounded so that the sizes add up. Each class keeps at least one picture in train. Pictures of one
    group stay together. A fraction of 0 gives an empty split.

    Raises:
        UsageError: fractions that leave nothing to train on.
        DataError: a published split shares a group with another.
    """
    published = {split: np.sort(np.asarray(rows, dtype=np.int64)) for split, rows in source.splits.items()}
    _check_groups(source, published)
    taken = [rows for split, rows in published.items() if split != "train"]
    pool = published.get("train", np.setdiff1d(np.arange(len(source)), np.concatenate([*taken, np.arange(0)])))
    fractions = {"val": val_fraction, "test": test_fraction}
    wanted = {split: fraction for split, fraction in fractions.items() if split not in published}
    if min(fractions.values()) < 0 or sum(wanted.values()) >= 1:
        raise UsageError(
            "The fractions for val and test must be 0 or more and leave something to train on. "
            f"Got val {val_fraction:g} and test {test_fraction:g}."
        )
    carved = _carve(source, pool, wanted, seed)
    found = {**published, **carved}
    return {split: found[split] for split in SPLITS}


def without(splits: Mapping[str, Rows], rows: Rows) -> dict[str, Rows]:
    """The same splits less some rows; nobody else is renumbered, so their randomness stays the same."""
    return {split: members[~np.isin(members, rows)] for split, members in splits.items()}


def write(path: Path, source: Source, splits: Mapping[str, Rows]) -> None:
    """Keep splits as a CSV of `id,split`, so that they outlive a changed order of files."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("id", "split"))
    for split in SPLITS:
        table.writerows((source.ids[row], split) for row in splits[split].tolist())
    write_text(path, text.getvalue())


def read(path: Path, source: Source) -> dict[str, Rows]:
    """The splits that `write` kept, for the same pictures wherever they stand now.

    Raises:
        DataError: a picture is gone, or a line is not `id,split`.
    """
    rows = {name: row for row, name in enumerate(source.ids)}
    found: dict[str, list[int]] = {split: [] for split in SPLITS}
    with path.open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        next(lines, None)
        for line in lines:
            if len(line) != 2 or line[1] not in found:
                raise DataError(f"{path}, line {lines.line_num}: expected an id and one of {SPLITS}. Got {line}.")
            if line[0] not in rows:
                raise DataError(f"{path}, line {lines.line_num}: picture {line[0]} is no longer in {source.name}.")
            found[line[1]].append(rows[line[0]])
    return {split: np.sort(np.array(members, dtype=np.int64)) for split, members in found.items()}


def _check_groups(source: Source, published: Mapping[str, Rows]) -> None:
    if source.groups is None:
        return
    owner: dict[object, str] = {}
    for split, rows in published.items():
        for row in rows.tolist():
            other = owner.setdefault(source.groups[row], split)
            if other != split:
                raise DataError(
                    f"Group {source.groups[row]} has pictures in {other} and in {split} of {source.name}, so the "
                    "result would be too good. Put each group into one split."
                )


def _carve(source: Source, pool: Rows, wanted: Mapping[str, float], seed: int) -> dict[str, Rows]:
    """Split `pool` into train and the wanted splits."""
    strata = source.targets[pool] if source.task == "classes" else np.zeros(len(pool), dtype=np.int64)
    keys = uniform(seed, "split", 0, pool, 1)[:, 0]
    names = ["train", *wanted]
    fractions = np.array([1 - sum(wanted.values()), *wanted.values()], dtype=np.float64)
    if source.groups is None:
        share = share_pictures(strata, keys, fractions)
    else:
        share = share_groups(strata, keys, fractions, source.groups[pool])
    return {name: np.sort(pool[share == number]) for number, name in enumerate(names)}
