"""Which pictures are trained on, which are watched meanwhile, and which are kept for the end.

Published splits are respected. What is missing is carved out of the training pictures: classes, labels and numbers in
proportion, whole groups only, decided by the seed and each picture's number.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..files.atomic import write_bytes
from ..randomness import uniform
from .carve import deal, numbered, share_groups, share_labels, share_pictures
from .formulas import guarded, unguarded
from .settings import DataSettings
from .source import SPLITS, Source
from .strata import strata

Rows = NDArray[np.int64]


def complete(source: Source, settings: DataSettings, seed: int) -> dict[str, Rows]:
    """Row numbers under "train", "val" and "test", each sorted; a published val or test is not changed.

    A missing val or test takes its fraction out of train (out of all pictures, where nothing was published), of every
    class, label or range of numbers alike, rounded so that the sizes add up. Each class keeps at least one picture in
    train. Pictures of one group stay together. A fraction of 0 gives an empty split.

    With `settings.folds` all pictures but a published test are parted into so many folds. Fold number `settings.fold`
    is the test split and val is carved out of the others; where there is a published test, it stays the test and the
    fold is val. A published val is parted with the rest then.

    Raises:
        UsageError: fractions that leave nothing to train on, or more folds than can be filled.
        DataError: a published split shares a group with another.
    """
    kept = {split: np.sort(np.asarray(rows, dtype=np.int64)) for split, rows in source.splits.items()}
    if settings.folds:
        kept = {"train": _parted(source), **({"test": kept["test"]} if "test" in kept else {})}
    taken = [rows for split, rows in kept.items() if split != "train"]
    pool = kept.get("train", np.setdiff1d(np.arange(len(source)), np.concatenate([*taken, np.arange(0)])))
    if leaks := group_leaks(source, {"train": pool, **kept}):
        raise DataError(leaks[0])
    if settings.folds:
        part = folds(source, settings.folds, seed)[settings.fold]
        kept["val" if "test" in kept else "test"], pool = part, np.setdiff1d(pool, part)
    fractions = {"val": settings.val_fraction, "test": settings.test_fraction}
    wanted = {split: fraction for split, fraction in fractions.items() if split not in kept}
    if min(fractions.values()) < 0 or sum(wanted.values()) >= 1:
        raise UsageError(
            "The fractions for val and test must be 0 or more and leave something to train on. "
            f"Got val {settings.val_fraction:g} and test {settings.test_fraction:g}."
        )
    found = {**kept, **_carve(source, pool, wanted, seed)}
    return {split: found[split] for split in SPLITS}


def folds(source: Source, k: int, seed: int) -> list[Rows]:
    """All pictures but a published test, in k parts of the same size that show the same; groups stay whole.

    The same seed gives the same parts, whichever of them is asked for.

    Raises:
        UsageError: fewer pictures, or groups, than parts.
    """
    rows = _parted(source)
    things = "pictures" if source.groups is None else "groups"
    have = len(rows) if source.groups is None else len(np.unique(numbered(source.groups[rows])))
    if have < k:
        raise UsageError(f"{k} folds need at least {k} {things}. {source.name} has {have:,} to part; ask for fewer.")
    keys = uniform(seed, "folds", 0, rows, 1)[:, 0]
    shown = strata(source, rows)
    if source.groups is None and shown.ndim == 1:
        share = deal(shown, keys, k)
    else:
        share = _share(source, rows, shown, keys, np.full(k, 1 / k))
    return [rows[share == fold] for fold in range(k)]


def _parted(source: Source) -> Rows:
    """What folds part: published train and val together, or else all but a published test."""
    given = {split: np.asarray(rows, dtype=np.int64) for split, rows in source.splits.items()}
    if "train" in given:
        return np.union1d(given["train"], given.get("val", np.zeros(0, dtype=np.int64)))
    return np.setdiff1d(np.arange(len(source)), given.get("test", np.zeros(0, dtype=np.int64)))


def group_leaks(source: Source, splits: Mapping[str, Rows]) -> tuple[str, ...]:
    """A sentence if splits share groups, so that a result would be too good; else nothing."""
    if source.groups is None:
        return ()
    groups = numbered(source.groups)
    owners = np.zeros((groups.max(initial=-1) + 1, len(splits)), dtype=bool)
    for place, rows in enumerate(splits.values()):
        owners[groups[rows], place] = True
    shared = owners.sum(1) > 1
    if not shared.any():
        return ()
    everyone = np.sort(np.concatenate(list(splits.values())))
    row = everyone[shared[groups[everyone]].argmax()]  # the first picture that a person will look for
    first, second, *_ = (split for split, has in zip(splits, owners[groups[row]], strict=True) if has)
    more = f" ({np.count_nonzero(shared):,} such groups in all)" if shared.sum() > 1 else ""
    sentence = (
        f"Group {source.groups[row]} has pictures in {first} and in {second} of {source.name}{more}, so the result "
        "would be too good. Put each group into one split."
    )
    return (sentence,)


def without(splits: Mapping[str, Rows], rows: Rows) -> dict[str, Rows]:
    """The same splits less some rows; nobody else is renumbered, so their randomness stays the same."""
    return {split: members[~np.isin(members, rows)] for split, members in splits.items()}


def write(path: Path, source: Source, splits: Mapping[str, Rows]) -> None:
    """Keep splits as a CSV of `id,split`, so that they outlive a changed order of files.

    Raises:
        DataError: two pictures have the same id, so that they could not be told apart again.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("id", "split"))
    seen: set[str] = set()
    for split in SPLITS:
        table.writerows((guarded(name), split) for name in _names(source, splits[split], seen))
    write_bytes(path, text.getvalue().encode("utf-8", "surrogateescape"))


def read(path: Path, source: Source) -> dict[str, Rows]:
    """The splits that `write` kept, for the same pictures wherever they stand now.

    Raises:
        DataError: a picture is gone, or a line is not `id,split`.
    """
    rows = {name: row for row, name in enumerate(source.ids)}
    found: dict[str, list[int]] = {split: [] for split in SPLITS}
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        lines = csv.reader(file)
        next(lines, None)
        for line in lines:
            if len(line) != 2 or line[1] not in found:
                raise DataError(f"{path}, line {lines.line_num}: expected an id and one of {SPLITS}. Got {line}.")
            row = rows.get(unguarded(line[0]))
            if row is None:
                raise DataError(
                    f"{path}, line {lines.line_num}: picture {unguarded(line[0])} is no longer in {source.name}."
                )
            found[line[1]].append(row)
    return {split: np.sort(np.array(members, dtype=np.int64)) for split, members in found.items()}


def _carve(source: Source, pool: Rows, wanted: Mapping[str, float], seed: int) -> dict[str, Rows]:
    """Split `pool` into train and the wanted splits."""
    names = ["train", *(name for name, fraction in wanted.items() if fraction > 0)]
    fractions = np.array([1 - sum(wanted.values()), *(wanted[name] for name in names[1:])], dtype=np.float64)
    keys = uniform(seed, "split", 0, pool, 1)[:, 0]
    share = _share(source, pool, strata(source, pool), keys, fractions)
    carved = {name: np.sort(pool[share == number]) for number, name in enumerate(names)}
    return {name: np.zeros(0, dtype=np.int64) for name in wanted} | carved


def _share(source: Source, rows: Rows, shown: np.ndarray, keys: np.ndarray, fractions: np.ndarray) -> Rows:
    """Which part each row belongs to, by the way of dealing that the targets and groups ask for."""
    groups = None if source.groups is None else numbered(source.groups[rows])
    if groups is not None and groups.max(initial=-1) + 1 < len(rows):
        places, kinds = np.nonzero(shown) if shown.ndim == 2 else (np.arange(len(rows)), shown)
        return share_groups(places, kinds, keys, fractions, groups)
    return share_labels(shown, keys, fractions) if shown.ndim == 2 else share_pictures(shown, keys, fractions)


def _names(source: Source, rows: Rows, seen: set[str]) -> Iterator[str]:
    for row in rows.tolist():
        name = source.ids[row]
        if name in seen:
            raise DataError(f"Two pictures of {source.name} are called {name}. Each needs a name of its own.")
        seen.add(name)
        yield name
