"""Which pictures are trained on, which are watched meanwhile, and which are kept for the end.

Published splits are respected. What is missing is carved out of the training pictures: classes, labels and numbers in
proportion, whole groups only, decided by the seed and each picture's id: another order of the same pictures changes
nothing, and where some are added the others stay on their side as far as proportions allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..randomness import uniform
from .carve import deal, numbered, share_groups, share_labels, share_pictures
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
        part = folds(source, settings.folds, seed, settings.strata)[settings.fold]
        kept["val" if "test" in kept else "test"], pool = part, np.setdiff1d(pool, part)
    fractions = {"val": settings.val_fraction, "test": settings.test_fraction}
    wanted = {split: fraction for split, fraction in fractions.items() if split not in kept}
    if not all(0 <= fraction < 1 for fraction in fractions.values()) or sum(wanted.values()) >= 1:
        raise UsageError(
            "The fractions for val and test must be 0 or more and leave something to train on. "
            f"Got val {settings.val_fraction:g} and test {settings.test_fraction:g}."
        )
    found = {**kept, **_carve(source, pool, wanted, seed, settings.strata)}
    return {split: found[split] for split in SPLITS}


def folds(source: Source, k: int, seed: int, column: str = "") -> list[Rows]:
    """All pictures but a published test, in k parts of the same size that show the same; groups stay whole.

    The same seed gives the same parts, whichever of them is asked for.

    Args:
        column: a further column of the source, whose values each part shows in proportion too.

    Raises:
        UsageError: fewer pictures, or groups, than parts.
    """
    rows = _parted(source)
    things = "pictures" if source.groups is None else "groups"
    have = len(rows) if source.groups is None else len(np.unique(numbered(source.groups[rows])))
    if have < k:
        raise UsageError(f"{k} folds need at least {k} {things}. {source.name} has {have:,} to part; ask for fewer.")
    keys = _keys(source, rows, seed, "folds")
    shown = strata(source, rows, column)
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


def _carve(source: Source, pool: Rows, wanted: Mapping[str, float], seed: int, column: str = "") -> dict[str, Rows]:
    """Split `pool` into train and the wanted splits."""
    names = ["train", *(name for name, fraction in wanted.items() if fraction > 0)]
    fractions = np.array([1 - sum(wanted.values()), *(wanted[name] for name in names[1:])], dtype=np.float64)
    keys = _keys(source, pool, seed, "split")
    share = _share(source, pool, strata(source, pool, column), keys, fractions)
    carved = {name: np.sort(pool[share == number]) for number, name in enumerate(names)}
    return {name: np.zeros(0, dtype=np.int64) for name in wanted} | carved


def _share(source: Source, rows: Rows, shown: np.ndarray, keys: np.ndarray, fractions: np.ndarray) -> Rows:
    """Which part each row belongs to, by the way of dealing that the targets and groups ask for."""
    groups = None if source.groups is None else numbered(source.groups[rows])
    if groups is not None and groups.max(initial=-1) + 1 < len(rows):
        places, kinds = np.nonzero(shown) if shown.ndim == 2 else (np.arange(len(rows)), shown)
        return share_groups(places, kinds, keys, fractions, groups)
    return share_labels(shown, keys, fractions) if shown.ndim == 2 else share_pictures(shown, keys, fractions)


def _keys(source: Source, rows: Rows, seed: int, purpose: str) -> Float64[np.ndarray, " n"]:
    """A random number in [0, 1) for each row that depends on the seed and the row's id alone."""
    letters = (name.encode("utf-8", "surrogateescape") for name in source.ids)
    hashed = b"".join(blake2b(name, digest_size=8).digest() for name in letters)
    numbers = (np.frombuffer(hashed, dtype="<u8") >> np.uint64(1)).astype(np.int64)
    return uniform(seed, purpose, 0, numbers[rows], 1)[:, 0]
