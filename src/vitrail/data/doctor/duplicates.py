"""Which pictures are copies of each other: the same values, or nearly (resized, compressed, cropped a little).

Near copies are found in two steps. A description of 63 numbers per picture, compared all with all by products of
matrices, names the pairs that may be copies; each of them is then laid on its partner (`alignment`) and compared in
all that makes it different from the other pictures of the set (`whitening`), so that look-alikes are left in peace.
benchmarks/near_duplicates.py measures both steps and is where the thresholds come from.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int64, UInt8
from numpy.typing import NDArray

from .alignment import MARGIN, inner, laid, normal, started, stretched
from .whitening import Whitening, of_photographs, whitening

WAVES = 8
"""Frequencies in each direction, of which the description is made."""
CANDIDATE = 0.55
"""Least cosine of two descriptions that are looked at closely."""
WORTH_LAYING = 0.15
"""Least likeness before the fine alignment that is worth its time."""
ALIKE = 0.8
"""Least likeness of two copies, once laid on each other."""
SURE = 0.95
"""Likeness from which two pictures are copies whatever else resembles them."""
CROWD = 4
"""Below that, their distance must be small beside that of each from its fourth nearest neighbour: a picture with four
such neighbours is one of a kind of which the set has many. Up to three copies of a picture do not hide each other."""
CLEARLY = 0.6
"""Largest part of the distance from the fourth neighbour, where distance is 1 - likeness."""
UNLIKE = 0.2
"""Likeness of neighbours that were not looked at."""
WHOLE = 0.9
"""Least plain correlation of two copies."""
SOFTNESS = 0.85
"""Deviation of a slight blur, in pixels of a sketch; what is finer differs between copies."""
TILE = (1024, 8192)
PER_TILE = 16 * TILE[0]
"""Most pairs that one tile of the table of cosines may name: the best ones."""
PAIRS = 2048
"""Laid on each other at once, to bound memory."""

Soft = Float32[np.ndarray, "n S S"]


class Pairs(NamedTuple):
    """Places of two pictures each, the first before the second."""

    places: Int64[np.ndarray, "P 2"]
    likeness: Float32[np.ndarray, " P"]
    """Correlation of what is their own, 1 for the same."""
    complete: bool = True
    """Whether there was time for all that may be copies."""


def exact(digests: NDArray[np.uint64]) -> list[NDArray[np.int64]]:
    """Places with the same hash, for every hash that stands more than once, in the order of their first places."""
    order = np.argsort(digests, kind="stable")
    starts = np.flatnonzero(np.diff(digests[order])) + 1
    groups = [group for group in np.split(order, starts) if len(group) > 1]
    return sorted(groups, key=lambda group: int(group[0]))


def near(sketches: UInt8[np.ndarray, "n S S"], until: float | None = None) -> Pairs:
    """Pairs of near copies. The pictures should be different ones, none of them flat (`exact` and the doctor's
    measures come first); their number times itself is the work: 100,000 take seconds, a million some minutes.

    Args:
        until: a value of `time.monotonic` at which no further pairs are compared; the likeliest come first.
    """
    pairs = candidates(sketches)
    if not len(pairs):
        return Pairs(pairs, np.zeros(0, np.float32))
    own = distinctions(sketches)
    parts = []
    for start in range(0, len(pairs), PAIRS):
        if until is not None and start and time.monotonic() > until:
            break
        parts.append(likeness(sketches, pairs[start : start + PAIRS], own))
    alike, whole = (np.concatenate(part) for part in zip(*parts, strict=True))
    seen = pairs[: len(alike)]
    copies = (whole >= WHOLE) & are_copies(seen, alike, len(sketches))
    order = np.lexsort(seen[copies].T[::-1])
    return Pairs(seen[copies][order], alike[copies][order], len(seen) == len(pairs))


def are_copies(pairs: Int64[np.ndarray, "P 2"], alike: Float32[np.ndarray, " P"], n: int) -> Bool[np.ndarray, " P"]:
    """Which pairs of n pictures are copies, judged by their likeness and by how much others resemble either one."""
    places, values = pairs.T.ravel(), np.tile(alike, 2)
    order = np.lexsort((-values, places))
    first = np.searchsorted(places[order], np.arange(n))
    many = np.bincount(places, minlength=n) >= CROWD
    crowd = np.full(n, UNLIKE, np.float32)  # likeness of each picture's fourth nearest neighbour
    crowd[many] = np.maximum(UNLIKE, values[order][first[many] + CROWD - 1])
    apart = 1 - crowd[pairs].max(1)
    return (alike >= SURE) | ((alike >= ALIKE) & (1 - alike <= CLEARLY * apart))


def candidates(sketches: UInt8[np.ndarray, "n S S"]) -> Int64[np.ndarray, "P 2"]:
    """Pairs whose descriptions point nearly the same way, the likeliest first, found tile by tile of the table of all
    cosines."""
    if len(sketches) < 2:
        return np.zeros((0, 2), np.int64)
    described = descriptions(sketches)
    n = len(described)
    found, cosines_found = [], []
    for top in range(0, n, TILE[0]):
        rows = described[top : top + TILE[0]]
        for left in range(top - top % TILE[1], n, TILE[1]):
            cosines = rows @ described[left : left + TILE[1]].T
            places = np.flatnonzero(cosines.ravel() >= CANDIDATE)
            if len(places) > 2 * PER_TILE:
                places = places[np.argpartition(-cosines.ravel()[places], 2 * PER_TILE)[: 2 * PER_TILE]]
            first, second = np.divmod(places, cosines.shape[1])
            pairs = np.stack([first + top, second + left], axis=1)
            once = pairs[:, 0] < pairs[:, 1]
            found.append(pairs[once])
            cosines_found.append(cosines.ravel()[places[once]])
    return np.concatenate(found)[np.argsort(-np.concatenate(cosines_found), kind="stable")]


def descriptions(sketches: UInt8[np.ndarray, "n S S"]) -> Float32[np.ndarray, "n 63"]:
    """Low frequencies of each picture (its cosine transform), whitened over the set."""
    basis = _waves(WAVES, sketches.shape[1])
    blocks = np.array_split(sketches, len(sketches) // TILE[1] + 1)
    waves = [(basis @ normal(_soft(block)) @ basis.T).reshape(-1, WAVES * WAVES)[:, 1:] for block in blocks]
    rows = np.concatenate(waves)
    expected = of_photographs(*np.divmod(np.arange(1, WAVES * WAVES), WAVES))
    return whitening(rows, np.diag(expected), known_from=rows.shape[1], floor=1e-3)(rows)


def distinctions(sketches: UInt8[np.ndarray, "n S S"]) -> Whitening:
    """What makes pictures of this set different from each other, pixel by pixel of a sketch's inside."""
    few = inner(_soft(sketches[:: -(-len(sketches) // 4000)]))
    side = sketches.shape[1] - 2 * MARGIN
    basis = _waves(side, side).astype(np.float64)
    basis /= np.sqrt((basis**2).sum(1, keepdims=True))
    turned = np.kron(basis, basis)  # [side², side²]
    expected = of_photographs(*np.divmod(np.arange(side * side), side))
    expected[0] = 0  # the mean is gone
    rows = few.reshape(len(few), -1)
    return whitening(rows, turned.T @ (expected[:, None] * turned), known_from=rows.shape[1] / 4, floor=0.01)


def likeness(
    sketches: UInt8[np.ndarray, "n S S"], pairs: Int64[np.ndarray, "P 2"], own: Whitening
) -> tuple[Float32[np.ndarray, " P"], Float32[np.ndarray, " P"]]:
    """Correlation of what is each picture's own, and of the whole pictures, once they are laid on each other; where
    a rough look shows nothing in common, that of the rough look."""
    first, second = (_soft(sketches[pairs[:, side]]) for side in range(2))
    moves = started(first, second)
    alike, whole = _compared(first, second, moves, own)
    worth = np.flatnonzero(alike >= WORTH_LAYING)
    if len(worth):
        first, second = first[worth], second[worth]
        alike[worth], whole[worth] = _compared(first, second, laid(first, second, moves[worth]), own)
    return alike, whole


def _compared(
    first: Soft, second: Soft, moves: Float32[np.ndarray, "n 4"], own: Whitening
) -> tuple[Float32[np.ndarray, " n"], Float32[np.ndarray, " n"]]:
    target, found = (inner(each).reshape(len(first), -1) for each in (first, stretched(second, moves)))
    return (own(target) * own(found)).sum(1), (target * found).mean(1)


def _soft(sketches: UInt8[np.ndarray, "n S S"]) -> Soft:
    """Blurred slightly, as numbers."""
    apart = np.arange(sketches.shape[1])[:, None] - np.arange(sketches.shape[1])
    blur = np.exp(-0.5 * (apart / SOFTNESS) ** 2).astype(np.float32)
    blur /= blur.sum(1, keepdims=True)
    return blur @ sketches.astype(np.float32) @ blur.T


def _waves(count: int, side: int) -> Float32[np.ndarray, "count side"]:
    """Cosine waves, from the constant upwards."""
    return np.cos(np.pi / side * np.arange(count)[:, None] * (np.arange(side) + 0.5)).astype(np.float32)
