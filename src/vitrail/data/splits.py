"""Split a dataset into train, val and test, or into folds: stratified, by groups, and reproducible.

Published splits are respected. Missing ones are taken out of the training images, stratified by class, label or
number, with whole groups, as a function of the seed and each image's id: the order of the images does not matter, and
added images move the others only as far as proportions require.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..formatting import format_count
from ..randomness import uniform
from .settings import DataSettings
from .source import SPLITS, Source

RowIndices = NDArray[np.int64]


def make_splits(source: Source, settings: DataSettings, seed: int) -> dict[str, RowIndices]:
    """Row numbers under "train", "val" and "test", each sorted; a published val or test is not changed.

    A missing val or test takes its fraction out of train (out of all images, where nothing was published), of every
    class, label or range of numbers alike, rounded so that the sizes add up. Each class keeps at least one image in
    train. Images of one group stay together. A fraction of 0 gives an empty split.

    With `settings.folds` all images but a published test are split into so many folds. Fold `settings.fold` is the
    test split and val is taken out of the others; where there is a published test, it stays the test and the fold is
    val. A published val is then split with the rest.

    Raises:
        UsageError: fractions that leave nothing to train on, or more folds than can be filled.
        DataError: a published split shares a group with another.
    """
    if source.task == "anomaly":
        return _split_good_images(source, settings, seed)
    kept = {split: np.sort(np.asarray(rows, dtype=np.int64)) for split, rows in source.splits.items()}
    if settings.folds:
        kept = {"train": _rows_for_folds(source), **({"test": kept["test"]} if "test" in kept else {})}
    taken = [rows for split, rows in kept.items() if split != "train"]
    pool = kept.get("train", np.setdiff1d(np.arange(len(source)), np.concatenate([*taken, np.arange(0)])))
    if leak := find_group_leaks(source, {"train": pool, **kept}):
        raise DataError(leak)
    if settings.folds:
        part = make_folds(source, settings.folds, seed, settings.strata)[settings.fold]
        kept["val" if "test" in kept else "test"], pool = part, np.setdiff1d(pool, part)
    fractions = {"val": settings.val_fraction, "test": settings.test_fraction}
    wanted = {split: fraction for split, fraction in fractions.items() if split not in kept}
    if not all(0 <= fraction < 1 for fraction in fractions.values()) or sum(wanted.values()) >= 1:
        raise UsageError(
            "The fractions for val and test must be 0 or more and leave something to train on. "
            f"Got val {settings.val_fraction:g} and test {settings.test_fraction:g}."
        )
    splits = {**kept, **_split_train_rows(source, pool, wanted, seed, settings.strata)}
    return {split: splits[split] for split in SPLITS}


MIN_GOOD_IMAGES = 50
"""Good images from which some are held out by default; fewer all go into the bank, and promise by leaving each out."""


def _split_good_images(source: Source, settings: DataSettings, seed: int) -> dict[str, RowIndices]:
    """Good images to train on; defects, and of many good images a fraction, to test on.

    Nothing is held out for validation: what is decided on the training images leaves each of them out in turn.
    Published splits are kept, but for defects in train, which are in no split then.

    Raises:
        UsageError: folds are asked for, or fractions that leave nothing.
    """
    if settings.folds:
        raise UsageError("--task anomaly leaves out every good picture in turn already. Leave --folds out.")
    kept = {split: np.sort(np.asarray(rows, dtype=np.int64)) for split, rows in source.splits.items()}
    others = np.concatenate([np.arange(0), *(rows for split, rows in kept.items() if split != "train")])
    pool = kept.get("train", np.setdiff1d(np.arange(len(source)), others))
    if leak := find_group_leaks(source, {"train": pool, **kept}):
        raise DataError(leak)
    is_good = source.targets[pool] == 0
    train, held_out = pool[is_good], pool[:0]
    fraction = settings.test_fraction
    is_default = fraction == DataSettings().test_fraction
    if "test" not in kept:
        if not 0 <= fraction < 1:
            raise UsageError(f"data.test_fraction must be 0 or more and leave something to train on. Got {fraction:g}.")
        if fraction and not (is_default and len(train) < MIN_GOOD_IMAGES):
            share = _assign_parts(
                source,
                train,
                np.zeros(len(train), np.int64),
                _draw_keys(source, train, seed, "split"),
                np.array([1 - fraction, fraction]),
            )
            train, held_out = train[share == 0], train[share == 1]
        held_out = np.sort(np.concatenate([held_out, pool[~is_good]]))
    empty = np.zeros(0, np.int64)
    return {"train": train, "val": kept.get("val", empty), "test": kept.get("test", held_out)}


def make_folds(source: Source, k: int, seed: int, column: str = "") -> list[RowIndices]:
    """Split all images but a published test into k stratified folds of equal size; groups stay whole.

    Args:
        column: a further column of the source to stratify by.

    Raises:
        UsageError: fewer images, or groups, than folds.
    """
    rows = _rows_for_folds(source)
    things = "pictures" if source.groups is None else "groups"
    count = len(rows) if source.groups is None else len(np.unique(number_groups(source.groups[rows])))
    if count < k:
        raise UsageError(
            f"{k} folds need at least {k} {things}. {source.name} has {count:,} to split; use fewer folds."
        )
    keys = _draw_keys(source, rows, seed, "folds")
    strata = make_strata(source, rows, column)
    if source.groups is None and strata.ndim == 1:
        share = assign_folds(strata, keys, k)
    else:
        share = _assign_parts(source, rows, strata, keys, np.full(k, 1 / k))
    return [rows[share == fold] for fold in range(k)]


def _rows_for_folds(source: Source) -> RowIndices:
    """The images to split into folds: published train and val together, or else all but a published test."""
    published = {split: np.asarray(rows, dtype=np.int64) for split, rows in source.splits.items()}
    if "train" in published:
        return np.union1d(published["train"], published.get("val", np.zeros(0, dtype=np.int64)))
    return np.setdiff1d(np.arange(len(source)), published.get("test", np.zeros(0, dtype=np.int64)))


def find_group_leaks(source: Source, splits: Mapping[str, RowIndices]) -> str:
    """A message if splits share groups, so that a result would be too good; else an empty string."""
    if source.groups is None:
        return ""
    groups = number_groups(source.groups)
    owners = np.zeros((groups.max(initial=-1) + 1, len(splits)), dtype=bool)
    for place, rows in enumerate(splits.values()):
        owners[groups[rows], place] = True
    shared = owners.sum(1) > 1
    if not shared.any():
        return ""
    every_row = np.sort(np.concatenate(list(splits.values())))
    row = every_row[shared[groups[every_row]].argmax()]  # the first image in the order of the source
    first, second, *_ = (split for split, has in zip(splits, owners[groups[row]], strict=True) if has)
    more = f" ({format_count(int(np.count_nonzero(shared)), 'such group')} in all)" if shared.sum() > 1 else ""
    return (
        f"Group {source.groups[row]} has pictures in {first} and in {second} of {source.name}{more}, so the result "
        "would be too good. Put each group into one split."
    )


def remove_rows(splits: Mapping[str, RowIndices], rows: RowIndices) -> dict[str, RowIndices]:
    """Remove rows from splits; other rows keep their index, so their random numbers stay the same."""
    return {split: members[~np.isin(members, rows)] for split, members in splits.items()}


def _split_train_rows(
    source: Source, pool: RowIndices, wanted: Mapping[str, float], seed: int, column: str
) -> dict[str, RowIndices]:
    """Split `pool` into train and the missing splits."""
    names = ["train", *(name for name, fraction in wanted.items() if fraction > 0)]
    fractions = np.array([1 - sum(wanted.values()), *(wanted[name] for name in names[1:])], dtype=np.float64)
    keys = _draw_keys(source, pool, seed, "split")
    share = _assign_parts(source, pool, make_strata(source, pool, column), keys, fractions)
    parts = {name: np.sort(pool[share == number]) for number, name in enumerate(names)}
    return {name: np.zeros(0, dtype=np.int64) for name in wanted} | parts


def _assign_parts(
    source: Source, rows: RowIndices, strata: np.ndarray, keys: np.ndarray, fractions: np.ndarray
) -> RowIndices:
    """The split of each row, by the method that fits the targets and groups."""
    groups = None if source.groups is None else number_groups(source.groups[rows])
    if groups is not None and groups.max(initial=-1) + 1 < len(rows):
        places, kinds = np.nonzero(strata) if strata.ndim == 2 else (np.arange(len(rows)), strata)
        return assign_groups(places, kinds, keys, fractions, groups)
    if strata.ndim == 2:
        return assign_iterative_stratified(strata, keys, fractions)
    return assign_stratified(strata, keys, fractions)


def _draw_keys(source: Source, rows: RowIndices, seed: int, purpose: str) -> Float64[np.ndarray, " n"]:
    """A random number in [0, 1) for each row that depends on the seed and the row's id alone."""
    letters = (name.encode("utf-8", "surrogateescape") for name in source.ids)
    hashed = b"".join(blake2b(name, digest_size=8).digest() for name in letters)
    numbers = (np.frombuffer(hashed, dtype="<u8") >> np.uint64(1)).astype(np.int64)
    return uniform(seed, purpose, 0, numbers[rows], 1)[:, 0]


# -- Stratified allocation on plain arrays: the strata of each image, a random key in [0, 1) per image, and the
# fraction of each split, of which the first (train) gets the remainder. A million images take seconds.


def assign_stratified(
    strata: Int64[np.ndarray, " n"], keys: Float64[np.ndarray, " n"], fractions: Float64[np.ndarray, " s"]
) -> Int64[np.ndarray, " n"]:
    """Stratified split: per class in the order of the keys; the first split gets at least one image of each class.

    Rounding errors of a split are carried over to the next class, so that sizes add up over many small classes.
    """
    share = np.zeros(len(strata), dtype=np.int64)
    owed = np.zeros(len(fractions))
    for members in _members_by_stratum(strata, keys):
        exact = len(members) * fractions + owed
        start = 0
        for split in range(1, len(fractions)):
            size = int(np.clip(np.floor(exact[split] + 0.5), 0, len(members) - 1 - start))
            share[members[start : start + size]] = split
            owed[split] = np.clip(exact[split] - size, -0.5, 0.5)
            start += size
    return share


def assign_folds(strata: Int64[np.ndarray, " n"], keys: Float64[np.ndarray, " n"], k: int) -> Int64[np.ndarray, " n"]:
    """Stratified folds: class after class in the order of the keys, one image to each fold in turn.

    Folds differ by at most one image, in total and per class.
    """
    share = np.empty(len(strata), dtype=np.int64)
    share[np.lexsort((keys, strata))] = np.arange(len(strata)) % k
    return share


def assign_iterative_stratified(
    positive: Bool[np.ndarray, "n K"], keys: Float64[np.ndarray, " n"], fractions: Float64[np.ndarray, " s"]
) -> Int64[np.ndarray, " n"]:
    """Iterative stratification (Sechidis et al. 2011) for multilabel targets: the rarest label is allocated first.

    Repeatedly the label with the fewest images left is taken, and each of its images goes to the split that still
    needs most of it; of equals, to the one that needs most images. All images of one label are allocated at once,
    which gives the same counts as one after another.

    Source: Sechidis, Tsoumakas and Vlahavas 2011, "On the stratification of multi-label data", algorithm 1.
    """
    order = np.argsort(keys, kind="stable")
    labels = np.asfortranarray(positive[order])  # labels are processed one by one
    share = np.full(len(order), -1)
    left = labels.sum(0)  # [K]
    wanted, room = fractions[:, None] * left, fractions * len(order)  # [s, K], [s]
    while left.any():
        label = int(np.where(left > 0, left, len(order) + 1).argmin())
        members = np.flatnonzero(labels[:, label] & (share < 0))
        share[members] = _allocate_splits(wanted[:, label], room, len(members))
        taken = np.stack([labels[members[share[members] == split]].sum(0) for split in range(len(fractions))])
        wanted, left = wanted - taken, left - taken.sum(0)
        room = room - np.bincount(share[members], minlength=len(fractions))
    rest = np.flatnonzero(share < 0)  # images without labels
    share[rest] = _allocate_splits(room, room, len(rest))
    unsorted = np.empty_like(share)
    unsorted[order] = share
    return unsorted


def assign_groups(
    rows: Int64[np.ndarray, " m"],
    strata: Int64[np.ndarray, " m"],
    keys: Float64[np.ndarray, " n"],
    fractions: Float64[np.ndarray, " s"],
    groups: Int64[np.ndarray, " n"],
) -> Int64[np.ndarray, " n"]:
    """Stratified split of whole groups: greedy, the largest group first, each to the split that needs it most.

    The need of a split is the sum of squares of the missing fractions of every class and of all images. Proportions
    hold as well as the sizes of groups allow. The first split is never left empty, nor any other while there are
    groups enough: the last ones go to splits that have none.

    Args:
        rows, strata: image rows[i] is in strata[i]; an image may occur any number of times.
        groups: index of each image's group.
    """
    num_strata = int(strata.max(initial=-1)) + 2  # the last one contains every image
    group_of_entry = groups[np.concatenate([rows, np.arange(len(groups))])]
    stratum_of_entry = np.concatenate([strata, np.full(len(groups), num_strata - 1)])
    pairs, counts = np.unique(group_of_entry * num_strata + stratum_of_entry, return_counts=True)
    owners, kinds = np.divmod(pairs, num_strata)  # the (group, stratum) pairs that occur, sorted by group
    totals = np.bincount(kinds, counts, num_strata)
    missing = [(fraction * totals).tolist() for fraction in fractions.tolist()]
    ends = np.searchsorted(owners, np.arange(groups.max(initial=-1) + 2)).tolist()
    gains = (counts / totals[kinds] ** 2).tolist()  # weight of one missing image of this stratum
    inside, amounts = kinds.tolist(), counts.tolist()
    home = np.zeros(len(ends) - 1, dtype=np.int64)
    empty = set(np.flatnonzero(fractions > 0).tolist())
    for rank, group in enumerate(_groups_by_size(groups, keys)):
        entries = range(ends[group], ends[group + 1])
        worth = [sum([lacks[inside[entry]] * gains[entry] for entry in entries]) for lacks in missing]
        among = sorted(empty) if len(home) - rank <= len(empty) else range(len(missing))
        chosen = max(among, key=worth.__getitem__) if rank else 0
        home[group] = chosen
        empty.discard(chosen)
        for entry in entries:
            missing[chosen][inside[entry]] -= amounts[entry]
    return home[groups]


def number_groups(groups: Shaped[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Encode groups as integers 0, 1, ... in order of first appearance."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups.tolist()], dtype=np.int64)


def _members_by_stratum(strata: np.ndarray, keys: np.ndarray) -> list[np.ndarray]:
    """Positions of each stratum's members, in the order of their keys."""
    if not len(strata):
        return []
    order = np.lexsort((keys, strata))
    return np.split(order, np.flatnonzero(np.diff(strata[order])) + 1)


def _allocate_splits(wanted: np.ndarray, room: np.ndarray, n: int) -> np.ndarray:
    """The splits of n images, ascending, as if each image went to the split that needs most (of equals: most room)."""
    falling = np.sort(wanted)[::-1]
    levels = (np.cumsum(falling) - n) / np.arange(1, len(wanted) + 1)  # what would be left if only the first j got any
    level = levels[np.flatnonzero(falling >= levels)[-1]]
    sizes = np.maximum(np.floor(wanted - level + 1e-9), 0).astype(np.int64)
    while sizes.sum() < n:
        sizes[np.lexsort((room - sizes, wanted - sizes))[-1]] += 1
    return np.repeat(np.arange(len(sizes)), sizes)


def _groups_by_size(groups: np.ndarray, keys: np.ndarray) -> list[int]:
    """Indices of the groups by descending size; those of one size by the smallest key among their images."""
    sizes = np.bincount(groups)
    smallest = np.full(len(sizes), 1.0)
    np.minimum.at(smallest, groups, keys)
    return np.lexsort((smallest, -sizes)).tolist()


# -- Strata: the class of an image, its labels, or the quantile bins of its numbers.

BINS = 10
MIN_PER_BIN = 5  # known numbers per bin, on average at least


def make_strata(
    source: Source, rows: Int64[np.ndarray, " n"], column: str = ""
) -> Int64[np.ndarray, " n"] | Bool[np.ndarray, "n K"]:
    """One stratum per image, or for labels and several numbers the K strata that each image is in.

    Soft labels count as their most probable class, labels from 0.5 on as present, numbers by quantile. Unknown values
    (NaN) are ignored; a single unknown number is a stratum of its own.

    Args:
        column: one of the source's further columns. Its values subdivide each stratum; where an image is in several,
            they are additional strata.
    """
    strata = _target_strata(source, rows)
    if not column:
        return strata
    cells = source.metadata[column]
    _, values = np.unique([str(cells[row]) for row in rows.tolist()], return_inverse=True)
    if strata.ndim == 2:
        return np.concatenate([strata, values[:, None] == np.arange(values.max(initial=-1) + 1)], axis=1)
    return strata * (values.max(initial=0) + 1) + values


def _target_strata(source: Source, rows: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"] | Bool[np.ndarray, "n K"]:
    """Strata of the targets."""
    targets = source.targets[rows]
    if source.task == "segmentation":
        return targets > 0
    if source.task == "multilabel":
        return targets >= 0.5
    if source.task == "classification":
        return targets.argmax(1) if source.has_soft_labels else targets.astype(np.int64, copy=False)
    if targets.shape[1] == 1:
        return _quantile_bins(targets[:, 0])
    return np.concatenate([_quantile_one_hot(column) for column in targets.T], axis=1)


def _quantile_bins(numbers: Shaped[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """The quantile bin of each number; the one after the last for unknown ones."""
    known = np.isfinite(numbers)
    bins = min(BINS, max(1, int(known.sum()) // MIN_PER_BIN))
    edges = np.quantile(numbers[known], np.arange(1, bins) / bins) if known.any() else np.zeros(0)
    return np.where(known, np.searchsorted(edges, numbers, side="right"), bins)


def _quantile_one_hot(numbers: Shaped[np.ndarray, " n"]) -> Bool[np.ndarray, "n b"]:
    """Whether each number is in each bin; unknown ones are in none."""
    bins = _quantile_bins(numbers)
    return (bins[:, None] == np.arange(bins.max(initial=0) + 1)) & np.isfinite(numbers)[:, None]
