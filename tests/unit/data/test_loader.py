"""Batches: the same for whoever asks, from wherever one begins."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.loader import InMemoryImageStore, StreamingImageStore, iter_batches, load_images
from vitrail.data.open import open_source
from vitrail.data.preprocess import preprocess_image
from vitrail.data.source import Source
from vitrail.errors import DataError, UsageError
from vitrail.spec import ImageSpec

SPEC = ImageSpec(height=8, width=6, channels=3)


def files(folder, n: int = 12) -> Source:
    paths = []
    for number in range(n):
        paths.append(folder / f"{number}.png")
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (9, 7 + number % 3), dtype=np.uint8)).save(
            paths[-1]
        )
    return Source(
        name="files", classes=("a", "b"), images=tuple(paths), targets=np.arange(n) % 2, ids=tuple(map(str, paths))
    )


def numbered(n: int) -> InMemoryImageStore:
    """Pictures of one pixel that say which they are."""
    return InMemoryImageStore(torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1))


def test_resident_and_streamed_pictures_are_the_same_bytes(tmp_path):
    source = files(tmp_path)
    rows = np.array([11, 3, 4, 7, 0])
    resident, streamed = (
        load_images(source, rows, SPEC, 5 * 3 * 8 * 6),
        load_images(source, rows, SPEC, 5 * 3 * 8 * 6 - 1),
    )
    assert isinstance(resident, InMemoryImageStore)
    assert isinstance(streamed, StreamingImageStore)
    asked = np.array([4, 11, 4])
    expected = torch.stack([preprocess_image(source.images[row], SPEC) for row in asked])
    for pictures in (resident, streamed):
        assert np.array_equal(pictures.indices, rows)
        assert torch.equal(pictures.take(asked), expected)
        assert torch.equal(pictures.begin(asked)(), expected)


def test_an_array_is_loaded_as_its_pictures_are_prepared():
    digits = open_source("digits")
    rows = np.arange(1796, 1700, -1)
    expected = torch.stack([preprocess_image(digits.images[row], SPEC) for row in rows])
    assert torch.equal(load_images(digits, rows, SPEC, 2**30).take(rows), expected)
    assert torch.equal(load_images(digits, rows, SPEC, 0).take(rows), expected)


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_the_number_of_workers_changes_nothing(workers, tmp_path):
    source = files(tmp_path)
    rows = np.arange(12)
    for limit in (0, 2**20):
        batches = islice(iter_batches(load_images(source, rows, SPEC, limit, workers), source.targets, 5, 7), 6)
        reference = islice(iter_batches(load_images(source, rows, SPEC, 2**20, 1), source.targets, 5, 7), 6)
        for (_, _, ours), (_, _, theirs) in zip(batches, reference, strict=True):
            assert torch.equal(ours.images, theirs.images)
            assert np.array_equal(ours.indices, theirs.indices)


@pytest.mark.parametrize("limit", [0, 2**20])
def test_an_unreadable_picture_is_named(limit, tmp_path):
    source = files(tmp_path)
    source.images[5].write_bytes(b"<html>")
    with pytest.raises(DataError, match=r"5\.png: not a picture .*looks like HTML"):
        load_images(source, np.arange(12), SPEC, limit).take(np.arange(12))


@pytest.mark.parametrize("row", [2, 99])
def test_only_pictures_that_are_held_may_be_asked_for(row):
    with pytest.raises(IndexError):
        InMemoryImageStore(torch.zeros(2, 1, 1, 1, dtype=torch.uint8), np.array([1, 5])).take(np.array([row]))


def test_every_epoch_shows_each_picture_at_most_once_in_its_own_order():
    seen: dict[int, list[int]] = {}
    for step, epoch, batch in islice(iter_batches(numbered(10), np.arange(10), 3, seed=0), 9):
        assert (epoch, len(batch.indices)) == (step // 3, 3)
        assert batch.images.flatten().tolist() == batch.indices.tolist() == batch.targets.tolist()
        seen.setdefault(epoch, []).extend(batch.indices.tolist())
    assert [len(set(rows)) for rows in seen.values()] == [9, 9, 9]
    assert len({tuple(rows) for rows in seen.values()}) == 3


@pytest.mark.parametrize("start", [0, 1, 2, 3, 7, 30])
def test_beginning_anywhere_goes_on_as_an_unbroken_run(start):
    unbroken = list(islice(iter_batches(numbered(10), np.arange(10), 3, seed=4), 40))[start:]
    resumed = list(islice(iter_batches(numbered(10), np.arange(10), 3, 4, start), 40 - start))
    for (step, epoch, ours), (other_step, other_epoch, theirs) in zip(resumed, unbroken, strict=True):
        assert (step, epoch) == (other_step, other_epoch)
        assert np.array_equal(ours.indices, theirs.indices)


def test_indices_and_targets_are_those_of_the_source():
    held = np.array([40, 20, 30])
    _, _, batch = next(iter_batches(InMemoryImageStore(numbered(3).images, held), np.array([4, 2, 3]), 3, 0))
    assert (batch.indices // 10).tolist() == batch.targets.tolist()
    assert [held.tolist().index(row) for row in batch.indices] == batch.images.flatten().tolist()


def test_fewer_pictures_than_a_batch_are_one_batch():
    batches = list(islice(iter_batches(numbered(3), np.arange(3), 50, 0), 2))
    assert [(epoch, sorted(batch.indices)) for _, epoch, batch in batches] == [(0, [0, 1, 2]), (1, [0, 1, 2])]


@pytest.mark.parametrize(("pictures", "targets"), [(3, 2), (0, 0)])
def test_each_picture_needs_a_target(pictures, targets):
    with pytest.raises(UsageError, match=f"Got {targets} targets for {pictures} pictures"):
        next(iter_batches(numbered(pictures), np.arange(targets), 2, 0))
