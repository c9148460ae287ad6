"""The sampler: which images each training step reads, as a function of seed, epoch and step alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from ..errors import UsageError
from ..formatting import format_count
from ..randomness import uniform

SHUFFLED_SHARDS = 8  # shards whose images are mixed with each other
REPEAT_KEY_OFFSET = 2**40  # keys of further copies are larger than every row index


class StepIndices(NamedTuple):
    """The images of one step, or one rank's part of them."""

    step: int
    epoch: int
    places: Int64[np.ndarray, " B"]
    """Positions of the images in the list of those held, 0..n-1."""
    copies: Int64[np.ndarray, " B"]
    """Which copy of its image each is; all 0 unless images are repeated."""


def iter_step_indices(
    rows: Int64[np.ndarray, " n"],
    batch_size: int,
    seed: int,
    start_step: int = 0,
    repeats: int = 1,
    blocks: Int64[np.ndarray, " n"] | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[StepIndices]:
    """Iterate endlessly over batches of indices, from `start_step` on.

    An epoch shows each image once (`repeats` times in the same batch); its last incomplete batch is dropped, and with
    fewer images than `batch_size`, a batch is all of them. The batch of all ranks is the same for any `world_size`;
    rank k has the k-th of its equal parts.

    Raises:
        UsageError: a batch that repeats or ranks do not divide, fewer images than ranks, or a rank beyond world_size.
    """
    _check_batch_split(batch_size, repeats, rank, world_size)
    distinct = min(batch_size // repeats, len(rows))
    size = distinct * repeats
    if size < world_size:
        raise UsageError(f"A batch of {format_count(size, 'picture')} cannot be shared among {world_size:,} ranks.")
    part = slice(size * rank // world_size, size * (rank + 1) // world_size)
    copies = np.repeat(np.arange(repeats), distinct)[part]
    epoch, within = divmod(start_step, len(rows) // distinct)
    order = shuffle_epoch(rows, seed, epoch, blocks)
    for step in count(start_step):
        if within == len(rows) // distinct:
            epoch, within = epoch + 1, 0
            order = shuffle_epoch(rows, seed, epoch, blocks)
        places = np.tile(order[within * distinct : (within + 1) * distinct], repeats)[part]
        yield StepIndices(step, epoch, places, copies)
        within += 1


def shuffle_epoch(
    rows: Int64[np.ndarray, " n"], seed: int, epoch: int, blocks: Int64[np.ndarray, " n"] | None = None
) -> Int64[np.ndarray, " n"]:
    """The order of an epoch: positions 0..n-1 sorted by one random number per row, independent of other rows.

    With `blocks` (the shard of each row) the shards too are shuffled, and only the images of some successive ones are
    mixed with each other, so that few files are read at a time and each is read once an epoch.
    """
    numbers = uniform(seed, "order", epoch, rows, 1)[:, 0]
    if blocks is None:
        return np.argsort(numbers, kind="stable")
    shards, shard = np.unique(blocks, return_inverse=True)
    turn = np.argsort(np.argsort(uniform(seed, "order of shards", epoch, shards, 1)[:, 0], kind="stable"))
    return np.lexsort((numbers, turn[shard] // SHUFFLED_SHARDS))


def make_random_keys(rows: Int64[np.ndarray, " B"], copies: Int64[np.ndarray, " B"] | None) -> Int64[np.ndarray, " B"]:
    """Keys of each image's random numbers: its row, and a different key for each further copy."""
    return rows if copies is None else rows + copies * REPEAT_KEY_OFFSET


def _check_batch_split(batch_size: int, repeats: int, rank: int, world_size: int) -> None:
    if repeats < 1 or batch_size < repeats or batch_size % repeats:
        raise UsageError(
            f"The batch must be a multiple of how often each picture is repeated in it. Got batch={batch_size}, "
            f"repeats={repeats}."
        )
    if not 0 <= rank < world_size:
        raise UsageError(f"rank must lie in 0..world-1. Got rank={rank}, world={world_size}.")
    if batch_size % world_size:
        raise UsageError(
            f"The batch must be a multiple of the number of ranks. Got batch={batch_size}, world={world_size}."
        )
