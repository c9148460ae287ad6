"""Cache small image sets on the GPU, and prefetch the next batch of the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from ...data.loader import Batch, ImageStore, InMemoryImageStore

NumberedBatch = tuple[int, int, Batch]
"""Step, epoch and batch, as `data.loader.iter_batches` yields them."""
MAX_GPU_FRACTION = 0.25  # of a GPU's free memory


def cache_on_gpu(images: ImageStore, device: str) -> ImageStore:
    """The images, moved to the GPU if they are in memory and take at most a quarter of its free memory."""
    return images.to(device) if isinstance(images, InMemoryImageStore) and gpu_cache_bytes(images, device) else images


def gpu_cache_bytes(images: ImageStore, device: str) -> int:
    """Bytes of the images on the GPU; 0 where they stay outside."""
    if not device.startswith("cuda") or not isinstance(images, InMemoryImageStore):
        return 0
    free, _ = torch.cuda.mem_get_info(torch.device(device))
    size = images.images.nbytes
    return size if size <= MAX_GPU_FRACTION * free else 0


def prefetch_to_device(batches: Iterator[NumberedBatch], device: str) -> Iterator[NumberedBatch]:
    """The batches with images and targets on the device; for a GPU they are copied one step ahead.

    The copies go from pinned memory on a separate stream; the reader of a batch waits for its copy only.
    """
    if not device.startswith("cuda"):
        yield from batches
        return
    stream = torch.cuda.Stream(device)
    waiting: tuple[NumberedBatch, torch.cuda.Event] | None = None
    try:
        for step, epoch, batch in batches:
            ready, waiting = waiting, _start_copy(step, epoch, batch, stream, device)
            if ready is not None:
                yield _wait_for_copy(*ready)
    finally:
        batches.close()  # type: ignore[attr-defined]


def _start_copy(
    step: int, epoch: int, batch: Batch, stream: torch.cuda.Stream, device: str
) -> tuple[NumberedBatch, torch.cuda.Event]:
    with torch.cuda.stream(stream):
        parts = {
            name: part if part.is_cuda else part.pin_memory().to(device, non_blocking=True)
            for name, part in _tensors(batch).items()
        }
        return (step, epoch, dataclasses.replace(batch, **parts)), stream.record_event()


def _wait_for_copy(numbered_batch: NumberedBatch, copy_event: torch.cuda.Event) -> NumberedBatch:
    now = torch.cuda.current_stream(numbered_batch[2].images.device)
    now.wait_event(copy_event)
    for part in _tensors(numbered_batch[2]).values():
        part.record_stream(now)  # so that its memory is not reused before this step has read it
    return numbered_batch


def _tensors(batch: Batch) -> dict[str, Any]:
    """The tensors of a batch by their fields."""
    weights = {} if batch.weights is None else {"weights": batch.weights}
    return {"images": batch.images, "targets": batch.targets, **weights}
