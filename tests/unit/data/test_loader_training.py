"""Loading for training: cuts, repeats, ranks, workers, and pictures that vanish on the way."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.augment.crops import resized_crop
from vitrail.data.loader import (
    LOST_FILES,
    PREFETCH_BATCHES,
    Batch,
    InMemoryImageStore,
    StreamingImageStore,
    iter_batches,
    load_images,
)
from vitrail.data.parallel import NAME
from vitrail.data.preprocess import preprocess_image
from vitrail.data.random_crop import RandomResizedCrop
from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.spec import ImageSpec

SPEC = ImageSpec(height=16, width=20)
PICTURES = 40
CUT = RandomResizedCrop(5)


@pytest.fixture
def photos(tmp_path: Path) -> Source:
    """Forty JPEGs and PNGs of three sizes, the largest of which are decoded smaller."""
    paths = []
    for number in range(PICTURES):
        height, width = [(30, 41), (66, 90), (120, 200)][number % 3]
        rows, columns = np.mgrid[0:height, 0:width]
        values = np.stack([rows + 3 * number, columns, rows * 2 + columns], axis=-1) % 256
        paths.append(tmp_path / f"{number:02}.{'png' if number % 5 == 0 else 'jpg'}")
        Image.fromarray(values.astype(np.uint8)).save(paths[-1])
    return Source(
        name="photos",
        classes=("a", "b"),
        images=tuple(paths),
        targets=np.arange(PICTURES) % 2,
        ids=tuple(path.name for path in paths),
    )


def streamed(source: Source, workers: int = 2, cut: RandomResizedCrop | None = CUT) -> StreamingImageStore:
    found = load_images(source, np.arange(PICTURES), SPEC, 0, workers, cut, training=True)
    assert isinstance(found, StreamingImageStore)
    return found


def batches(
    pictures: InMemoryImageStore | StreamingImageStore, targets: np.ndarray, count: int, **settings: int
) -> list[Batch]:
    return [batch for _, _, batch in islice(iter_batches(pictures, targets, 12, 3, **settings), count)]


def same(ours: Batch, theirs: Batch) -> bool:
    return (
        torch.equal(ours.images, theirs.images)
        and torch.equal(ours.targets, theirs.targets)
        and np.array_equal(ours.random_keys, theirs.random_keys)
    )


@pytest.fixture
def alive() -> Callable[[], list[str]]:
    """Workers that this test has started and that still live; those of others end with the pictures they belong to."""
    before = set(threading.enumerate())
    return lambda: [each.name for each in set(threading.enumerate()) - before if each.name.startswith(NAME)]


@pytest.mark.parametrize("limit", [0, 2**30])
@pytest.mark.parametrize("cut", [None, CUT])
def test_batches_are_the_same_bits_with_0_1_and_2_workers(limit, cut, photos):
    runs = []
    for workers in (0, 1, 2):
        pictures = load_images(photos, np.arange(PICTURES), SPEC, limit, workers, cut, training=True)
        runs.append(batches(pictures, photos.targets, 7, repeats=2))
    for first, second, third in zip(*runs, strict=True):
        assert same(first, second)
        assert same(first, third)
        assert first.images.is_contiguous()


@pytest.mark.parametrize("start", [1, 3, 5])
def test_resuming_shows_the_same_cuts(start, photos):
    unbroken = batches(streamed(photos), photos.targets, 8)[start:]
    resumed = batches(streamed(photos, 1), photos.targets, 8 - start, start_step=start)
    assert all(same(ours, theirs) for ours, theirs in zip(resumed, unbroken, strict=True))


@pytest.mark.parametrize("limit", [0, 2**30])
def test_a_cut_depends_on_the_picture_the_epoch_and_the_copy_alone(limit, photos):
    pictures = load_images(photos, np.arange(PICTURES), SPEC, limit, 0, CUT)
    alone = pictures.take(np.array([8]), epoch=2)
    among = pictures.take(np.array([3, 8, 21]), epoch=2)
    assert torch.equal(alone[0], among[1])
    assert not torch.equal(alone, pictures.take(np.array([8]), epoch=3))
    for batch in batches(pictures, photos.targets, 3, repeats=3):
        for row in np.unique(batch.indices):
            copies = batch.images[torch.from_numpy(batch.indices == row)]
            assert len({image.numpy().tobytes() for image in copies}) == 3


def test_resident_cuts_are_antialiased_only_where_the_model_is(photos):
    cuts = {}
    for antialias in (True, False):
        spec = replace(SPEC, height=90, width=90, antialias=antialias)
        pictures = load_images(
            photos, np.arange(PICTURES), spec, 2**30, 0, RandomResizedCrop(5, scale=(0.9, 1.0)), training=True
        )
        assert isinstance(pictures, InMemoryImageStore)
        cuts[antialias] = pictures.take(np.arange(PICTURES))
        boxes = RandomResizedCrop(5, scale=(0.9, 1.0)).boxes(np.arange(PICTURES), 0, np.tile([90, 90], (PICTURES, 1)))
        expected = resized_crop(pictures.images, boxes, (90, 90), "bicubic", antialias)
        assert torch.equal(cuts[antialias], expected)
    assert not torch.equal(cuts[True], cuts[False])


def test_evaluation_is_exact_and_training_need_not_be(photos):
    rows = np.arange(PICTURES)
    exact = load_images(photos, rows, SPEC, 0, 2).take(rows)
    assert torch.equal(exact, torch.stack([preprocess_image(photos.images[row], SPEC) for row in rows]))
    for limit in (0, 2**30):
        fast = load_images(photos, rows, SPEC, limit, 2, training=True).take(rows)
        assert torch.equal(fast[0::3], exact[0::3])  # those that are too small to be reduced
        assert not torch.equal(fast, exact)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_share_out_the_same_batches(world, photos):
    alone = batches(streamed(photos), photos.targets, 4)
    parts = [batches(streamed(photos, 1), photos.targets, 4, rank=rank, world_size=world) for rank in range(world)]
    for whole, *shares in zip(alone, *parts, strict=True):
        assert torch.equal(torch.cat([share.images for share in shares]), whole.images)
        assert torch.equal(torch.cat([share.targets for share in shares]), whole.targets)
        assert np.array_equal(np.concatenate([share.indices for share in shares]), whole.indices)


def test_targets_belong_to_the_repeated_pictures(photos):
    for batch in batches(streamed(photos), photos.targets, 4, repeats=3):
        assert np.array_equal(batch.targets.numpy(), batch.indices % 2)
        assert np.unique(batch.indices, return_counts=True)[1].tolist() == [3, 3, 3, 3]
        assert len(set(batch.random_keys.tolist())) == 12


@pytest.mark.parametrize("workers", [0, 2])
def test_D23_pictures_that_vanish_are_left_out_counted_and_named(workers, photos):
    whole = batches(streamed(photos), photos.targets, 3)
    pictures = streamed(photos, workers)
    gone, cut_off, replaced, fine = whole[2].indices[[0, 5, 7, 11]].tolist()
    running = iter_batches(pictures, photos.targets, 12, 3)
    next(running)
    pictures.take(np.array([replaced]))  # so that it has been seen before
    running.close()
    photos.images[gone].unlink()
    photos.images[cut_off].write_bytes(photos.images[cut_off].read_bytes()[:300])
    photos.images[replaced].write_bytes(photos.images[fine].read_bytes())
    left = batches(pictures, photos.targets, 1, start_step=2)[0]
    kept = [place for place in range(12) if place not in (0, 5, 7)]
    assert np.array_equal(left.indices, whole[2].indices[kept])
    assert torch.equal(left.images, whole[2].images[torch.tensor(kept)])
    assert torch.equal(left.targets, whole[2].targets[torch.tensor(kept)])
    assert [row for row, _ in pictures.lost] == [gone, cut_off, replaced]
    patterns = [r"cannot be read", r"truncated|bytes before, 300 now", r"was changed while .* bytes before, [\d,]+ now"]
    for (row, reason), words in zip(pictures.lost, patterns, strict=True):
        assert reason.startswith(str(photos.images[row]))
        assert re.search(words, reason)


def test_D23_too_many_of_them_stop_the_run(photos, alive):
    pictures = streamed(photos)
    for path in photos.images[: LOST_FILES + 1]:
        path.unlink()
    running = iter_batches(pictures, photos.targets, 12, 3)
    with pytest.raises(DataError, match=r"1[01] of 40 pictures were deleted, replaced or damaged.*\.png: cannot be"):
        list(islice(running, 10))
    assert LOST_FILES <= len(pictures.lost) <= LOST_FILES + 1
    assert not alive()


def test_D23_a_few_of_them_are_counted_once_however_often_they_are_missed(photos):
    pictures = streamed(photos)
    for path in photos.images[: LOST_FILES - 1]:
        path.unlink()
    shown = batches(pictures, photos.targets, 12)
    assert sorted(row for row, _ in pictures.lost) == list(range(LOST_FILES - 1))
    assert min(len(batch.indices) for batch in shown) < 12
    assert not set(np.concatenate([batch.indices for batch in shown]).tolist()) & set(range(LOST_FILES - 1))


def test_D23_a_batch_that_is_lost_altogether_stops_the_run(photos):
    for path in photos.images[:3]:
        path.unlink()
    pictures = load_images(photos, np.arange(3), SPEC, 0, 1, training=True)
    with pytest.raises(DataError, match=r"None of the 3 pictures of step 1 can be read any more"):
        next(iter_batches(pictures, photos.targets[:3], 12, 0))


def test_evaluation_never_leaves_a_picture_out(photos):
    pictures = load_images(photos, np.arange(PICTURES), SPEC, 0, 2)
    photos.images[7].unlink()
    with pytest.raises(DataError, match=r"07\.jpg"):
        pictures.take(np.arange(PICTURES))


@pytest.mark.parametrize("stop", [GeneratorExit, KeyboardInterrupt, ValueError])
def test_no_thread_is_left_whatever_ends_the_training(stop, photos, alive):
    running = iter_batches(streamed(photos), photos.targets, 12, 3)
    next(running)
    assert alive()
    with pytest.raises(stop):
        running.throw(stop)
    assert not alive()


def test_few_batches_are_decoded_ahead(photos):
    begun = []

    class Watched:
        indices = np.arange(PICTURES)

        def take(self, indices, epoch=0):
            return torch.zeros(len(indices), 3, 1, 1, dtype=torch.uint8)

        def begin(self, indices, epoch=0):
            begun.append(epoch)
            return lambda: self.take(indices, epoch)

    running = iter_batches(Watched(), photos.targets, 12, 3)
    for count in range(1, 6):
        next(running)
        assert len(begun) == count + PREFETCH_BATCHES
