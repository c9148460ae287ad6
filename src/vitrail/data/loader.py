"""Batches for training: which pictures, in which order, decoded in time.

Small sets lie decoded in memory (`Resident`), larger ones are decoded by threads shortly before they are needed
(`Streamed`); both hand out the same bytes. "Index" always means a row of the Source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor

from ..errors import UsageError
from ..randomness import permutation
from ..spec import ImageSpec
from .parallel import in_order, usable_cores
from .source import Source
from .transforms import prepare, prepare_stack

AHEAD = 2  # batches that are being decoded while one is trained on
CHUNK = 4096  # pictures of an array converted at a time


@dataclass(frozen=True)
class Batch:
    """What one training step reads."""

    images: UInt8[Tensor, "B C H W"]
    targets: Tensor
    """int64 [B] for classes; float32 [B, K] for labels and numbers."""
    indices: Int64[np.ndarray, " B"]
    """Rows of the source, for the randomness of each picture."""


@runtime_checkable
@runtime_checkable
class Pictures(Protocol):
    """Prepared pictures of some rows of a source."""

    @property
    def indices(self) -> Int64[np.ndarray, " n"]:
        """The rows held, in their order; no others may be asked for."""
        ...

    def take(self, indices: Int64[np.ndarray, " B"]) -> UInt8[Tensor, "B C H W"]:
        """The pictures of these rows of the source, in the order asked."""
        ...

    def begin(self, indices: Int64[np.ndarray, " B"]) -> Callable[[], Tensor]:
        """As `take`, but returns at once; calling the result waits for the pictures."""
        ...


class Resident:
    """Pictures decoded once and held in the processor's memory."""

    def __init__(self, images: UInt8[Tensor, "n C H W"], indices: Int64[np.ndarray, " n"] | None = None):
        self.images = images
        self.indices = np.arange(len(images)) if indices is None else indices
        self._values = images.numpy()  # NumPy gathers a batch in 0.02 ms; torch, waking its threads, took up to 16
        self._places = _places(self.indices)

    def take(self, indices: Int64[np.ndarray, " B"]) -> UInt8[Tensor, "B C H W"]:
        return torch.from_numpy(self._values.take(self._places[indices], axis=0))

    def begin(self, indices: Int64[np.ndarray, " B"]) -> Callable[[], Tensor]:
        return lambda: self.take(indices)


def _places(indices: np.ndarray) -> np.ndarray:
    """Where each row of the source lies; rows that are not held lie out of reach, so that asking for one fails."""
    size = int(indices.max()) + 1 if len(indices) else 0
    places = np.full(size, np.iinfo(np.int64).max)
    places[indices] = np.arange(len(indices))
    return places


class Streamed:
    """Pictures decoded by threads whenever they are asked for."""

    def __init__(self, source: Source, indices: Int64[np.ndarray, " n"], spec: ImageSpec, threads: int):
        self.indices = indices
        self._source = source
        self._spec = spec
        self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="decode")

    def take(self, indices: Int64[np.ndarray, " B"]) -> UInt8[Tensor, "B C H W"]:
        return self.begin(indices)()

    def begin(self, indices: Int64[np.ndarray, " B"]) -> Callable[[], Tensor]:
        futures = [self._pool.submit(prepare, self._source.pictures[row], self._spec) for row in indices.tolist()]
        return lambda: torch.stack([future.result() for future in futures])


def load(
    source: Source,
    indices: Int64[np.ndarray, " n"],
    spec: ImageSpec,
    limit_bytes: int,
    threads: int | None = None,
) -> Resident | Streamed:
    """These rows of a source, resident if their decoded pictures take at most `limit_bytes`, else streamed.

    Raises:
        DataError: a picture cannot be read (at once when resident, else when its batch is taken).
    """
    if len(indices) * spec.channels * spec.height * spec.width > limit_bytes:
        return Streamed(source, indices, spec, threads or usable_cores())
    images = torch.empty(len(indices), spec.channels, spec.height, spec.width, dtype=torch.uint8)
    if isinstance(source.pictures, np.ndarray):
        for start in range(0, len(indices), CHUNK):
            images[start : start + CHUNK] = prepare_stack(source.pictures[indices[start : start + CHUNK]], spec)
    else:
        pictures = (source.pictures[row] for row in indices.tolist())
        for place, image in enumerate(in_order(partial(prepare, spec=spec), pictures, threads)):
            images[place] = image
    return Resident(images, indices)


def steps(
    pictures: Pictures, targets: Shaped[np.ndarray, " n *K"], batch: int, seed: int, start_step: int = 0
) -> Iterator[tuple[int, int, Batch]]:
    """Endless (step, epoch, batch), beginning with `start_step` exactly as an unbroken run would go on.

    Every epoch has its own order, drawn from (seed, epoch). The last incomplete batch of an epoch is left out; with
    fewer pictures than `batch`, a batch is all of them.

    Args:
        targets: one per picture held, in the order of `pictures.indices`.

    Raises:
        UsageError: as many targets as pictures are needed, and at least one.
    """
    if len(targets) != len(pictures.indices) or len(targets) == 0:
        raise UsageError(
            "Training needs one target for each picture held, and at least one. "
            f"Got {len(targets):,} targets for {len(pictures.indices):,} pictures."
        )
    waiting: deque[tuple[int, int, np.ndarray, Callable[[], Tensor]]] = deque()
    for step, epoch, places in _order(len(targets), batch, seed, start_step):
        waiting.append((step, epoch, places, pictures.begin(pictures.indices[places])))
        if len(waiting) > AHEAD:
            yield _finish(*waiting.popleft(), pictures.indices, targets)


def _order(n: int, batch: int, seed: int, start_step: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """(step, epoch, places in 0..n-1) from start_step on."""
    size = min(batch, n)
    epoch, within = divmod(start_step, n // size)
    for step in count(start_step):
        if within == 0 or step == start_step:
            order = permutation(seed, "order", epoch, n)
        yield step, epoch, order[within * size : (within + 1) * size]
        within += 1
        if within == n // size:
            epoch, within = epoch + 1, 0


def _finish(
    step: int, epoch: int, places: np.ndarray, images: Callable[[], Tensor], indices: np.ndarray, targets: np.ndarray
) -> tuple[int, int, Batch]:
    return step, epoch, Batch(images(), torch.from_numpy(targets[places]), indices[places])
