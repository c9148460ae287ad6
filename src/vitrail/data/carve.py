"""Deal pictures out to splits so that every split shows every class in proportion.

Plain arrays in and out: a stratum (class) and a random key in [0, 1) per picture, and the fraction of each split, the
first of which (train) gets what rounding leaves.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64, Shaped


def share_pictures(
    strata: Int64[np.ndarray, " n"], keys: Float64[np.ndarray, " n"], fractions: Float64[np.ndarray, " s"]
) -> Int64[np.ndarray, " n"]:
    """The split of each picture: per class in the order of the keys, the first split keeping at least one of each.

    What rounding takes from a split in one class is given back in the next, so that sizes add up over many small
    classes.
    """
    share = np.zeros(len(strata), dtype=np.int64)
    owed = np.zeros(len(fractions))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        members = members[np.argsort(keys[members], kind="stable")]
        exact = len(members) * fractions + owed
        start = 0
        for split in range(1, len(fractions)):
            size = int(np.clip(np.floor(exact[split] + 0.5), 0, len(members) - 1 - start))
            share[members[start : start + size]] = split
            owed[split] = np.clip(exact[split] - size, -0.5, 0.5)
            start += size
    return share


def share_groups(
    strata: Int64[np.ndarray, " n"],
    keys: Float64[np.ndarray, " n"],
    fractions: Float64[np.ndarray, " s"],
    groups: Shaped[np.ndarray, " n"],
) -> Int64[np.ndarray, " n"]:
    """As `share_pictures`, whole groups only: the largest first, each to the split that then misses its classes least.

    Greedy, so proportions hold as well as the sizes of groups allow. The first split is never left empty.
    """
    _, member_of = np.unique(groups, return_inverse=True)  # [n] number of the group
    classes, class_of = np.unique(strata, return_inverse=True)
    counts = np.zeros((member_of.max(initial=-1) + 1, len(classes)))
    np.add.at(counts, (member_of, class_of), 1)  # [groups, classes]
    group_keys = np.full(len(counts), 1.0)
    np.minimum.at(group_keys, member_of, keys)
    missing = fractions[:, None] * counts.sum(0)  # [splits, classes] still wanted
    home = np.zeros(len(counts), dtype=np.int64)
    for rank, group in enumerate(np.lexsort((group_keys, -counts.sum(1)))):
        # |missing - count|^2 - |missing|^2, up to a term that is equal for all splits
        gain = missing @ counts[group]
        home[group] = 0 if rank == 0 else int(gain.argmax())
        missing[home[group]] -= counts[group]
    return home[member_of]
