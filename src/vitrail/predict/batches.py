"""Images read ahead of whoever answers them, by threads: each made ready, or the reason why it cannot be."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from ..data.parallel import Workers
from ..data.source import ImageInput
from ..errors import DataError, UsageError
from ..evaluate.tables import image_path

NUM_READERS = 4
"""Threads that make the next batch ready while the model works on this one."""
PreparedT = TypeVar("PreparedT")


class ImageName(NamedTuple):
    """What a row of answers calls its image."""

    path: str
    id: str


def prepare_batches(
    image_inputs: Sequence[ImageInput | bytes],
    batch_size: int,
    prepare: Callable[[ImageInput | bytes], PreparedT],
    skip_bad: bool,
) -> Iterator[tuple[list[ImageName], list[PreparedT], list[tuple[str, str]]]]:
    """Batch by batch the names of the images that could be read, what was made of them, and what was left out.

    Args:
        skip_bad: leave unreadable images out, as (path, reason), instead of raising at the first.

    Raises:
        DataError: an image that cannot be read, by name.
        UsageError: batch below 1.
    """
    if batch_size < 1:
        raise UsageError(f"batch must be at least 1. Got {batch_size}.")
    for rows in _prepare_ahead(image_inputs, batch_size, prepare):
        names: list[ImageName] = []
        images: list[PreparedT] = []
        skipped: list[tuple[str, str]] = []
        for name, image in rows:
            if not isinstance(image, DataError):
                names.append(name)
                images.append(image)
            elif skip_bad:
                skipped.append((name.path or name.id, str(image)))
            else:
                raise image
        yield names, images, skipped


def _prepare_ahead(
    images: Sequence[ImageInput | bytes], batch_size: int, prepare: Callable[[ImageInput | bytes], PreparedT]
) -> Iterator[list[tuple[ImageName, PreparedT | DataError]]]:
    """Batches in order, one of them being made ready while the last one is answered."""

    def prepare_or_error(picture: ImageInput | bytes) -> PreparedT | DataError:
        try:
            return prepare(picture)
        except DataError as problem:
            return problem

    workers = Workers(NUM_READERS)
    ahead: deque[Callable[[], PreparedT | DataError]] = deque()
    todo = iter(images)
    try:
        for start in range(0, len(images), batch_size):
            ahead.extend(
                workers.begin(prepare_or_error, picture) for picture in islice(todo, 2 * batch_size - len(ahead))
            )
            here = range(start, min(start + batch_size, len(images)))
            yield [(_image_name(images[i], i), ahead.popleft()()) for i in here]
    finally:
        workers.close()


def _image_name(image: ImageInput | bytes, position: int) -> ImageName:
    """A file is called by its name, an array by its place in what was asked."""
    if isinstance(image, np.ndarray | bytes):
        return ImageName("", str(position))
    return ImageName(image_path(image), image.name)
