"""Load batches for training: small datasets decoded in memory, larger ones decoded by threads ahead of time.

"Index" always means a row of the Source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Int64, Integer, Shaped
from torch import Tensor

from ..errors import DataError, UsageError
from ..formatting import format_count
from ..spec import ImageSpec, Interpolation
from .augment.crops import resized_crop
from .mask_store import MaskStore
from .parallel import Workers, map_in_order
from .preprocess import TORCH_DTYPES, Preprocessor, preprocess_stack, widen
from .random_crop import RandomResizedCrop
from .sampler import StepIndices, iter_step_indices, make_random_keys
from .source import Source

PREFETCH_BATCHES = 2  # batches decoded ahead
CHUNK = 8  # images per piece of work: few, so that all threads finish a batch together
IMAGES_PER_STACK = 4096  # images of an array converted at a time
LOST_FILES, LOST_SHARE = 10, 0.001  # training stops at so many unreadable images, if they exceed this fraction


@dataclass(frozen=True)
class Batch:
    """One training batch; images that could no longer be read are left out of it."""

    images: Integer[Tensor, "B C H W"]
    targets: Tensor
    """int64 [B] for classes; float32 [B, K] for labels, numbers and soft labels; uint8 [B, H, W] for masks."""
    indices: Int64[np.ndarray, " B"]
    """Rows of the source."""
    copies: Int64[np.ndarray, " B"] | None = None
    """Which copy of its image each is; None where none is repeated."""
    weights: Float32[Tensor, " B"] | None = None
    """Loss weights; None is 1 for all."""

    @property
    def random_keys(self) -> Int64[np.ndarray, " B"]:
        """Keys of each image's random numbers; see `make_random_keys`."""
        return make_random_keys(self.indices, self.copies)


@runtime_checkable
class ImageStore(Protocol):
    """Prepared images of some rows of a source."""

    @property
    def indices(self) -> Int64[np.ndarray, " n"]:
        """The rows held, in their order; no others may be requested."""
        ...

    def take(self, indices: Int64[np.ndarray, " B"], epoch: int = 0) -> Integer[Tensor, "B C H W"]:
        """The images of these rows of the source, in this order, randomly cropped for the epoch if configured."""
        ...

    def begin(self, indices: Int64[np.ndarray, " B"], epoch: int = 0) -> Callable[[], Tensor]:
        """As `take`, but asynchronous: calling the result waits for the images."""
        ...


class InMemoryImageStore:
    """Images decoded once and held in memory, of the CPU or, after `to`, of a GPU."""

    def __init__(
        self,
        images: Integer[Tensor, "n C H W"],
        indices: Int64[np.ndarray, " n"] | None = None,
        random_crop: RandomResizedCrop | None = None,
        interpolation: Interpolation = "bicubic",
        antialias: bool = True,
    ):
        self.images = images
        self.indices = np.arange(len(images)) if indices is None else indices
        self._random_crop = random_crop
        self._interpolation = interpolation
        self._antialias = antialias
        # NumPy gathers a batch in 0.02 ms; torch, which wakes its threads, took up to 16 ms.
        self._values = images.numpy() if images.device.type == "cpu" else None
        # The position of each row of the source; rows that are not held get an invalid one, so that access fails.
        self._positions = np.full(int(self.indices.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        self._positions[self.indices] = np.arange(len(self.indices))

    def to(self, device: str) -> InMemoryImageStore:
        """Copy the images to a device, where batches are then gathered and cropped."""
        return InMemoryImageStore(
            self.images.to(device), self.indices, self._random_crop, self._interpolation, self._antialias
        )

    def take(
        self, indices: Int64[np.ndarray, " B"], epoch: int = 0, copies: Int64[np.ndarray, " B"] | None = None
    ) -> Integer[Tensor, "B C H W"]:
        positions = self._positions[indices]
        if self._values is not None:
            images = torch.from_numpy(self._values.take(positions, axis=0))
        else:
            place, deep = torch.from_numpy(positions).to(self.images.device), self.images.dtype == torch.uint16
            # GPUs have no index kernel for uint16: its bits are gathered as int16
            images = self.images.view(torch.int16)[place].view(torch.uint16) if deep else self.images[place]
        if self._random_crop is None:
            return images
        images = widen(images)
        size = (images.shape[2], images.shape[3])
        keys = make_random_keys(indices, copies)
        boxes = self._random_crop.boxes(keys, epoch, np.tile(size, (len(indices), 1)))
        crops = resized_crop(images, boxes, size, self._interpolation, self._antialias)
        flipped = torch.from_numpy(self._random_crop.draw_flips(keys, epoch)).to(crops.device)
        crops[flipped] = crops[flipped].flip(-1)
        return crops

    def begin(
        self, indices: Int64[np.ndarray, " B"], epoch: int = 0, copies: Int64[np.ndarray, " B"] | None = None
    ) -> Callable[[], Tensor]:
        return lambda: self.take(indices, epoch, copies)


class StreamingImageStore:
    """Images decoded by threads on request.

    Args:
        num_workers: decoding threads; with 0 the thread that waits for a batch decodes it.
        random_crop: only the crop of each image is decoded and resized.
        training: JPEGs may be decoded at reduced size.
    """

    def __init__(
        self,
        source: Source,
        indices: Int64[np.ndarray, " n"],
        spec: ImageSpec,
        num_workers: int | None = None,
        random_crop: RandomResizedCrop | None = None,
        training: bool = False,
    ):
        self.indices = indices
        self.lost: list[tuple[int, str]] = []
        """(row, reason) of every image that could no longer be read, in the order of the steps."""
        self._preprocessor = Preprocessor(source, spec, random_crop, training)
        self._shape = (spec.channels, spec.height, spec.width)
        self._dtype = TORCH_DTYPES[spec.dtype]
        self._workers = Workers(num_workers)

    def take(self, indices: Int64[np.ndarray, " B"], epoch: int = 0) -> Integer[Tensor, "B C H W"]:
        return self.begin(indices, epoch)()

    def begin(self, indices: Int64[np.ndarray, " B"], epoch: int = 0) -> Callable[[], Tensor]:
        wait = self._start_chunks(indices, indices, epoch)

        def wait_for_all() -> Tensor:
            images, failed = wait()
            if failed:
                raise failed[min(failed)]
            return images

        return wait_for_all

    def start_readable_batch(
        self, indices: Int64[np.ndarray, " B"], epoch: int = 0, copies: Int64[np.ndarray, " B"] | None = None
    ) -> Callable[[], tuple[Tensor, Int64[np.ndarray, " b"]]]:
        """As `begin`, but images that became unreadable are left out: the others, and their positions in `indices`.

        Rows that are left out are recorded in `lost` and not replaced.

        Raises:
            DataError: (when called) LOST_FILES images are lost, and more than LOST_SHARE of all.
        """
        wait = self._start_chunks(indices, make_random_keys(indices, copies), epoch)

        def wait_for_readable() -> tuple[Tensor, np.ndarray]:
            images, failed = wait()
            if not failed:
                return images, np.arange(len(indices))
            for place in sorted(failed):
                self._record_lost(int(indices[place]), str(failed[place]))
            kept = np.setdiff1d(np.arange(len(indices)), list(failed))
            return images[torch.from_numpy(kept)], kept

        return wait_for_readable

    def close(self) -> None:
        """Stop the threads and drop pending work; the next request starts new threads."""
        self._workers.close()

    def _start_chunks(
        self, indices: Int64[np.ndarray, " B"], random_keys: Int64[np.ndarray, " B"], epoch: int
    ) -> Callable[[], tuple[Tensor, dict[int, DataError]]]:
        images = torch.empty(len(indices), *self._shape, dtype=self._dtype)
        values = images.numpy()
        places = range(len(indices))
        chunk = max(1, min(CHUNK, -(-len(indices) // max(1, self._workers.threads))))
        parts = [
            self._workers.begin(
                self._preprocessor.fill_batch, values, places[start : start + chunk], indices, random_keys, epoch
            )
            for start in places[::chunk]
        ]

        def wait() -> tuple[Tensor, dict[int, DataError]]:
            failed: dict[int, DataError] = {}
            for part in parts:
                failed |= part()
            return images, failed

        return wait

    def _record_lost(self, row: int, reason: str) -> None:
        if any(row == other for other, _ in self.lost):
            return
        self.lost.append((row, reason))
        if len(self.lost) >= LOST_FILES and len(self.lost) > LOST_SHARE * len(self.indices):
            named = "; ".join(reason.rstrip(".") for _, reason in self.lost[:LOST_FILES])
            more = f"; and {len(self.lost) - LOST_FILES:,} more" if len(self.lost) > LOST_FILES else ""
            raise DataError(
                f"{len(self.lost):,} of {format_count(len(self.indices), 'picture')} were deleted, replaced or damaged "
                f"while they were being trained on: {named}{more}. Put them back before the training goes on."
            )


def load_images(
    source: Source,
    indices: Int64[np.ndarray, " n"],
    spec: ImageSpec,
    limit_bytes: int,
    num_workers: int | None = None,
    random_crop: RandomResizedCrop | None = None,
    training: bool = False,
) -> InMemoryImageStore | StreamingImageStore:
    """Load rows of a source: in memory if their decoded images take at most `limit_bytes`, else streamed.

    Args:
        num_workers: decoding threads, by default one per core; 0 decodes in the calling thread. The images are the
            same bytes for any number.
        random_crop: crop a random part of each image, a different one in each epoch; streamed images are cropped
            before they are resized, those in memory after.
        training: JPEGs may be decoded at reduced size.

    Raises:
        DataError: an image cannot be read (at once if in memory, else when its batch is taken).
    """
    dtype = TORCH_DTYPES[spec.dtype]
    if len(indices) * spec.channels * spec.height * spec.width * dtype.itemsize > limit_bytes:
        return StreamingImageStore(source, indices, spec, num_workers, random_crop, training)
    images = torch.empty(len(indices), spec.channels, spec.height, spec.width, dtype=dtype)
    if isinstance(source.images, np.ndarray):
        for start in range(0, len(indices), IMAGES_PER_STACK):
            rows = indices[start : start + IMAGES_PER_STACK]
            images[start : start + IMAGES_PER_STACK] = preprocess_stack(source.images[rows], spec)
    else:
        preprocessor, values = Preprocessor(source, spec, training=training or random_crop is not None), images.numpy()
        chunks = (range(start, min(start + CHUNK, len(indices))) for start in range(0, len(indices), CHUNK))
        for failed in map_in_order(
            lambda places: preprocessor.fill_batch(values, places, indices, indices, 0), chunks, num_workers
        ):
            if failed:
                raise failed[min(failed)]
    return InMemoryImageStore(images, indices, random_crop, spec.interpolation, spec.antialias)


def iter_batches(
    store: ImageStore,
    targets: Shaped[np.ndarray, " n *K"] | MaskStore,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    repeats: int = 1,
    blocks: Int64[np.ndarray, " n"] | None = None,
    rank: int = 0,
    world_size: int = 1,
    weights: Float32[np.ndarray, " n"] | None = None,
) -> Iterator[tuple[int, int, Batch]]:
    """Iterate endlessly over (step, epoch, batch) from `start_step` on, exactly as an uninterrupted run would.

    Every epoch has its own order, drawn from (seed, epoch); see `sampler`. Closing the iterator stops the threads that
    decode ahead.

    Args:
        targets: one per image, in the order of `store.indices`.
        batch_size: images per step, of all ranks together and with their repeats.
        repeats: copies of each image in its batch, each with another key (repeated augmentation).
        blocks: the shard of each image; shards are then read a few at a time.
        rank, world_size: each process gets an equal part of each batch.
        weights: the loss weight of each image, in the order of the targets.

    Raises:
        UsageError: no images, another number of targets than images, or a batch that cannot be divided.
        DataError: too many images became unreadable, or all of a batch.
    """
    if len(targets) != len(store.indices) or len(targets) == 0:
        raise UsageError(
            "Training needs one target for each picture held, and at least one. "
            f"Got {len(targets):,} targets for {format_count(len(store.indices), 'picture')}."
        )
    waiting: deque[tuple[StepIndices, Callable[[], tuple[Tensor, np.ndarray]]]] = deque()
    try:
        for share in iter_step_indices(store.indices, batch_size, seed, start_step, repeats, blocks, rank, world_size):
            waiting.append((share, _start_batch(store, share)))
            if len(waiting) > PREFETCH_BATCHES:
                share, wait = waiting.popleft()
                images, kept = wait()
                batch = _build_batch(share, images, kept, store.indices, targets, repeats > 1, weights)
                yield share.step, share.epoch, batch
    finally:
        if isinstance(store, StreamingImageStore):
            store.close()


def _start_batch(store: ImageStore, step: StepIndices) -> Callable[[], tuple[Tensor, np.ndarray]]:
    """Start loading a batch; calling the result waits for its images and their positions in the rank's part."""
    rows = store.indices[step.places]
    if isinstance(store, StreamingImageStore):
        return store.start_readable_batch(rows, step.epoch, step.copies)
    if isinstance(store, InMemoryImageStore):
        wait = store.begin(rows, step.epoch, step.copies)
    else:
        wait = store.begin(rows, step.epoch)
    return lambda: (wait(), np.arange(len(rows)))


def _build_batch(
    step: StepIndices,
    images: Tensor,
    positions: np.ndarray,
    indices: np.ndarray,
    targets: np.ndarray | MaskStore,
    repeated: bool,
    weights: np.ndarray | None,
) -> Batch:
    if len(positions) == 0:
        raise DataError(
            f"None of the {format_count(len(step.places), 'picture')} of step {step.step + 1} can be read any more. "
            "Put them back before the training goes on."
        )
    places = step.places[positions]
    copies = step.copies[positions] if repeated else None
    image_weights = None if weights is None else torch.from_numpy(weights[places])
    return Batch(images, torch.from_numpy(targets[places]), indices[places], copies, image_weights)
