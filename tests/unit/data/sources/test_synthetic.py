"""Pictures with planted evidence: what makes the class is where the masks say, and nowhere else."""

from __future__ import annotations

import time

import numpy as np
import pytest

from vitrail.data.open import open_source
from vitrail.data.sources import synthetic
from vitrail.data.sources.synthetic import CLASSES, GLYPHS, make_synthetic_images, open_synthetic


def test_the_source_has_official_splits_of_equal_classes_and_is_the_same_every_time():
    source = open_source("planted")
    assert source.images.shape == (2000, 64, 64) and source.images.dtype == np.uint8
    assert {split: len(rows) for split, rows in source.splits.items()} == {"train": 1400, "val": 200, "test": 400}
    for rows in source.splits.values():
        assert len(set(np.bincount(source.targets[rows]).tolist())) == 1
    assert source.classes == CLASSES and source.ids[7] == "planted/000007"
    assert source.fingerprint() == open_synthetic().fingerprint()
    assert np.array_equal(source.images, make_synthetic_images(2000, 0).images)


def test_a_picture_depends_on_the_seed_and_its_number_alone():
    few, many, other = make_synthetic_images(10, 3), make_synthetic_images(50, 3), make_synthetic_images(10, 4)
    assert np.array_equal(few.images, many.images[:10]) and np.array_equal(few.glyph_masks, many.glyph_masks[:10])
    assert not np.array_equal(few.images, other.images)
    assert len({picture.tobytes() for picture in many.images}) == 50


def test_every_glyph_is_as_large_and_as_bright_as_the_others():
    made = make_synthetic_images(2000, 0)
    assert (made.glyph_masks.sum((1, 2)) == 112).all() and (made.decoy_masks.sum((1, 2)) == 112).all()
    assert (made.glyph_boxes.sum((1, 2)) == 256).all()
    assert (made.glyph_boxes | ~made.glyph_masks).all(), "a glyph lies in its box"
    assert not (made.glyph_boxes & made.decoy_masks).any(), "the decoy lies elsewhere"
    means = [made.images[made.targets == number].mean() for number in range(4)]
    assert max(means) - min(means) < 4
    inside = made.images[made.glyph_masks].mean()
    around = made.images[made.glyph_boxes & ~made.glyph_masks].mean()
    assert 80 < inside - around < 100


def test_the_mask_is_the_glyph_of_the_class_on_whole_steps():
    made = make_synthetic_images(40, 1)
    for target, mask, box in zip(made.targets, made.glyph_masks, made.glyph_boxes, strict=True):
        rows, columns = np.flatnonzero(box.any(1)), np.flatnonzero(box.any(0))
        assert rows[0] % 8 == columns[0] % 8 == 0 and rows[0] >= 8 and columns[-1] < 56
        assert np.array_equal(mask[np.ix_(rows, columns)], GLYPHS[target])
    assert len({glyph.tobytes() for glyph in GLYPHS}) == 4


def test_the_tag_changes_its_field_only_and_speaks_of_the_class_in_most_pictures():
    plain, tagged = make_synthetic_images(2000, 0), make_synthetic_images(2000, 0, tag=True)
    different = plain.images != tagged.images
    assert not (different & ~tagged.tag_masks).any() and not plain.tag_masks.any() and (plain.tags == -1).all()
    assert (tagged.tag_masks.sum((1, 2)) == 72).all()
    assert 0.94 < (tagged.tags == tagged.targets).mean() < 0.98
    assert not (tagged.tag_masks[:, 8:, :].any() or tagged.tag_masks[:, :, 56:].any())
    brightness = [tagged.images[tagged.tags == number][:, 1:7, 1:13].mean() for number in range(4)]
    assert max(brightness) - min(brightness) < 1


def nearest_mean(pictures: np.ndarray, targets: np.ndarray) -> float:
    """Accuracy on the second half of the classes' mean pictures in the first half."""
    half = len(pictures) // 2
    flat = pictures.reshape(len(pictures), -1).astype(np.float32)
    means = np.stack([flat[:half][targets[:half] == number].mean(0) for number in range(4)])
    distance = ((flat[half:, None] - means) ** 2).sum(-1)
    return float((distance.argmin(1) == targets[half:]).mean())


@pytest.mark.parametrize("tag", [False, True])
def test_the_border_betrays_the_class_only_with_the_tag(tag):
    made = make_synthetic_images(2000, 0, tag)
    border = made.images.copy()
    border[:, 8:-8, 8:-8] = 0
    accuracy = nearest_mean(border, made.targets)
    assert accuracy > 0.9 if tag else accuracy < 0.32


def test_the_glyph_alone_tells_the_class_and_the_rest_of_the_picture_does_not():
    made = make_synthetic_images(1000, 0)
    crops = made.images[made.glyph_boxes].reshape(-1, 16, 16)
    assert nearest_mean(crops - crops.mean((1, 2), keepdims=True), made.targets) > 0.95
    hidden = np.where(made.glyph_boxes, 128, made.images)
    assert nearest_mean(hidden, made.targets) < 0.33


def test_two_thousand_pictures_take_less_than_a_second_or_so():
    start = time.process_time()
    make_synthetic_images(2000, 0)
    assert time.process_time() - start < 3, "0.5 s on a machine at rest"
    assert synthetic.COUNT == 2000
