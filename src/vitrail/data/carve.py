"""Deal pictures out to splits so that every split shows every class and label in proportion.

Plain arrays in and out: what each picture shows, a random key in [0, 1) per picture, and the fraction of each split,
the first of which (train) gets what rounding leaves. All of it is done in seconds for a million pictures.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped


def share_pictures(
    strata: Int64[np.ndarray, " n"], keys: Float64[np.ndarray, " n"], fractions: Float64[np.ndarray, " s"]
) -> Int64[np.ndarray, " n"]:
    """The split of each picture: per class in the order of the keys, the first split keeping at least one of each.

    What rounding takes from a split in one class is given back in the next, so that sizes add up over many small
    classes.
    """
    share = np.zeros(len(strata), dtype=np.int64)
    owed = np.zeros(len(fractions))
    for members in _by_stratum(strata, keys):
        exact = len(members) * fractions + owed
        start = 0
        for split in range(1, len(fractions)):
            size = int(np.clip(np.floor(exact[split] + 0.5), 0, len(members) - 1 - start))
            share[members[start : start + size]] = split
            owed[split] = np.clip(exact[split] - size, -0.5, 0.5)
            start += size
    return share


def deal(strata: Int64[np.ndarray, " n"], keys: Float64[np.ndarray, " n"], k: int) -> Int64[np.ndarray, " n"]:
    """The fold of each picture: class after class in the order of the keys, one to each fold in turn.

    Folds differ by at most one picture, in all and of every class.
    """
    share = np.empty(len(strata), dtype=np.int64)
    share[np.lexsort((keys, strata))] = np.arange(len(strata)) % k
    return share


def share_labels(
    positive: Bool[np.ndarray, "n K"], keys: Float64[np.ndarray, " n"], fractions: Float64[np.ndarray, " s"]
) -> Int64[np.ndarray, " n"]:
    """The split of each picture when it may show several of K labels: the rarest label is dealt out first.

    Again and again the label with the fewest pictures left is taken, and each of its pictures goes to the split that
    still wants most of it; of equals, to the one that wants most pictures. All pictures of one label are dealt at
    once, which gives the counts that one after another would.

    Source: Sechidis, Tsoumakas and Vlahavas 2011, "On the stratification of multi-label data", algorithm 1.
    """
    order = np.argsort(keys, kind="stable")
    shown = np.asfortranarray(positive[order])  # labels are looked at one by one
    share = np.full(len(order), -1)
    left = shown.sum(0)  # [K]
    wanted, room = fractions[:, None] * left, fractions * len(order)  # [s, K], [s]
    while left.any():
        label = int(np.where(left > 0, left, len(order) + 1).argmin())
        members = np.flatnonzero(shown[:, label] & (share < 0))
        _hand_out(share, members, _fill(wanted[:, label], room, len(members)))
        taken = np.stack([shown[members[share[members] == split]].sum(0) for split in range(len(fractions))])
        wanted, left = wanted - taken, left - taken.sum(0)
        room = room - np.bincount(share[members], minlength=len(fractions))
    rest = np.flatnonzero(share < 0)  # they show nothing
    _hand_out(share, rest, _fill(room, room, len(rest)))
    found = np.empty_like(share)
    found[order] = share
    return found


def share_groups(
    rows: Int64[np.ndarray, " m"],
    strata: Int64[np.ndarray, " m"],
    keys: Float64[np.ndarray, " n"],
    fractions: Float64[np.ndarray, " s"],
    groups: Int64[np.ndarray, " n"],
) -> Int64[np.ndarray, " n"]:
    """As the others, whole groups only: the largest first, each to the split that then misses its classes least.

    A split misses the square of the shares of every class, and of all pictures, that it has not got yet. Greedy, so
    proportions hold as well as the sizes of groups allow. The first split is never left empty, nor any other while
    there are groups enough: the last ones go to splits that have none.

    Args:
        rows, strata: picture rows[i] shows strata[i]; a picture may stand there often, once or not at all.
        groups: number of each picture's group, from `numbered`.
    """
    everything = int(strata.max(initial=-1)) + 1  # one more stratum, of which each picture is one
    of, kinds, counts = _contents(
        groups[np.concatenate([rows, np.arange(len(groups))])],
        np.concatenate([strata, np.full(len(groups), everything)]),
        everything + 1,
    )
    totals = np.bincount(kinds, counts, everything + 1)
    missing = [(fraction * totals).tolist() for fraction in fractions.tolist()]
    ends = np.searchsorted(of, np.arange(groups.max(initial=-1) + 2)).tolist()
    gains = (counts / totals[kinds] ** 2).tolist()  # what one missing picture of this stratum is worth to the group
    inside, amounts = kinds.tolist(), counts.tolist()
    home = np.zeros(len(ends) - 1, dtype=np.int64)
    empty = set(np.flatnonzero(fractions > 0).tolist())
    for rank, group in enumerate(_largest_first(groups, keys)):
        entries = range(ends[group], ends[group + 1])
        worth = [sum([lacks[inside[entry]] * gains[entry] for entry in entries]) for lacks in missing]
        among = sorted(empty) if len(home) - rank <= len(empty) else range(len(missing))
        chosen = max(among, key=worth.__getitem__) if rank else 0
        home[group] = chosen
        empty.discard(chosen)
        for entry in entries:
            missing[chosen][inside[entry]] -= amounts[entry]
    return home[groups]


def numbered(groups: Shaped[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Groups of any kind as numbers 0, 1, ... in the order in which they first appear."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups.tolist()], dtype=np.int64)


def _by_stratum(strata: np.ndarray, keys: np.ndarray) -> list[np.ndarray]:
    """Places of each stratum's members, in the order of their keys."""
    if not len(strata):
        return []
    order = np.lexsort((keys, strata))
    return np.split(order, np.flatnonzero(np.diff(strata[order])) + 1)


def _fill(wanted: np.ndarray, room: np.ndarray, n: int) -> np.ndarray:
    """How many of n each split gets if they go one by one to the split that wants most, of equals to the roomiest."""
    falling = np.sort(wanted)[::-1]
    levels = (np.cumsum(falling) - n) / np.arange(1, len(wanted) + 1)  # what would be left if only the first j got any
    level = levels[np.flatnonzero(falling >= levels)[-1]]
    sizes = np.maximum(np.floor(wanted - level + 1e-9), 0).astype(np.int64)
    while sizes.sum() < n:
        sizes[np.lexsort((room - sizes, wanted - sizes))[-1]] += 1
    return sizes


def _hand_out(share: np.ndarray, members: np.ndarray, sizes: np.ndarray) -> None:
    share[members] = np.repeat(np.arange(len(sizes)), sizes)


def _contents(groups: np.ndarray, strata: np.ndarray, kinds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(group, stratum, how often) for every pair that occurs, sorted by group."""
    pairs, counts = np.unique(groups * kinds + strata, return_counts=True)
    return pairs // kinds, pairs % kinds, counts


def _largest_first(groups: np.ndarray, keys: np.ndarray) -> list[int]:
    """Numbers of the groups by falling size; those of one size by the smallest key among their pictures."""
    sizes = np.bincount(groups)
    smallest = np.full(len(sizes), 1.0)
    np.minimum.at(smallest, groups, keys)
    return np.lexsort((smallest, -sizes)).tolist()
