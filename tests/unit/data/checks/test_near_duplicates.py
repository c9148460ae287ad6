"""Copies are found, exact ones all of them, near ones nearly all; look-alikes are left in peace."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from unit.data.doctored import SPEC, as_jpeg, cropped, resized, textures
from vitrail.data.checks import near_duplicates
from vitrail.data.checks.image_stats import measure_image


def sketches(pictures: list[np.ndarray]) -> np.ndarray:
    return np.stack([measure_image(picture, SPEC).sketch for picture in pictures])


def test_exact_groups_are_all_places_with_one_hash():
    digests = np.array([5, 7, 5, 9, 7, 5], dtype=np.uint64)
    assert [group.tolist() for group in near_duplicates.find_exact_duplicates(digests)] == [[0, 2, 5], [1, 4]]
    assert near_duplicates.find_exact_duplicates(digests[:0]) == []


COPIES = {
    "resized": lambda values: resized(values, 70, 80),
    "jpeg": as_jpeg,
    "cropped": cropped,
    "cropped at a corner": lambda values: np.ascontiguousarray(values[2:, 2:]),
    "all": lambda values: as_jpeg(resized(cropped(values), 72, 72)),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("how", COPIES)
def test_D18_near_copies_are_found_and_no_others(how):
    originals = textures(400)
    copies = [COPIES[how](values) for values in originals[:100]]
    pairs = {
        tuple(pair) for pair in near_duplicates.find_near_duplicates(sketches([*originals, *copies])).indices.tolist()
    }
    planted = {(number, 400 + number) for number in range(100)}
    assert len(pairs & planted) >= 95
    assert len(pairs - planted) == 0


def look_alikes(n: int) -> list[np.ndarray]:
    """One plate with bars and a dark rim, each time with faint grain of its own."""
    y, x = np.mgrid[-1:1:96j, -1:1:96j]
    plate = 150 - 40 * (x**4 + y**4) - 70 * (np.abs((x * 1.5) % 1 - 0.5) < 0.05)
    return [
        np.rint(plate + (grain.astype(np.float64) - 127) / 8).clip(0, 255).astype(np.uint8)
        for grain in textures(n, seed=3)
    ]


@pytest.mark.wide
def test_D18_look_alikes_are_not_taken_for_copies_and_their_copies_are_found():
    originals = look_alikes(400)
    copies = [as_jpeg(cropped(values)) for values in originals[:60]]
    pairs = {
        tuple(pair) for pair in near_duplicates.find_near_duplicates(sketches([*originals, *copies])).indices.tolist()
    }
    planted = {(number, 400 + number) for number in range(60)}
    assert len(pairs & planted) >= 57
    assert len(pairs - planted) == 0


@pytest.mark.wide
def test_two_pictures_are_a_set_too():
    picture = textures(1)[0]
    assert near_duplicates.find_near_duplicates(sketches([picture, as_jpeg(picture)])).indices.tolist() == [[0, 1]]
    assert len(near_duplicates.find_near_duplicates(sketches(textures(2))).indices) == 0
    assert len(near_duplicates.find_near_duplicates(np.zeros((0, 40, 40), np.uint8)).indices) == 0


@pytest.mark.wide
def test_a_set_that_is_half_copies_of_one_picture_is_found_whole():
    one, *others = textures(41)
    copies = [as_jpeg(one, quality) for quality in range(55, 95)]
    pairs = near_duplicates.find_near_duplicates(sketches([*copies, *others])).indices
    assert len(pairs) == 40 * 39 // 2 and pairs.max() < 40


def test_a_kind_of_which_there_are_many_needs_more_likeness_than_a_lonely_pair():
    pairs = np.array([[0, 1], [2, 3], [2, 4], [2, 5], [2, 6], [7, 8]])
    alike = np.array([0.8, 0.8, 0.75, 0.75, 0.75, 0.97], np.float32)
    assert near_duplicates.classify_pairs(pairs, alike, 9).tolist() == [True, False, False, False, False, True]
    twice = np.array([0.8, 0.9, 0.9, 0.9, 0.3, 0.97], np.float32)  # three copies do not hide each other
    assert near_duplicates.classify_pairs(pairs, twice, 9).tolist() == [True, True, True, True, False, True]


def test_candidates_are_the_pairs_of_the_whole_table(monkeypatch):
    found = sketches(textures(60))
    described = near_duplicates.compute_descriptors(found)
    table = np.argwhere(np.triu(described @ described.T >= 0.1, 1))
    monkeypatch.setattr(near_duplicates, "MIN_CANDIDATE_COSINE", 0.1)
    monkeypatch.setattr(near_duplicates, "TILE", (16, 32))
    assert sorted(near_duplicates.find_candidate_pairs(found).tolist()) == sorted(table.tolist())


@pytest.mark.wide
def test_when_time_is_over_the_likeliest_pairs_have_been_compared(monkeypatch):
    originals = textures(60)
    found = sketches([*originals, *(as_jpeg(values) for values in originals[:20])])
    monkeypatch.setattr(near_duplicates, "MIN_CANDIDATE_COSINE", 0.1)
    monkeypatch.setattr(near_duplicates, "PAIRS_PER_CHUNK", 25)
    cut = near_duplicates.find_near_duplicates(found, until=0.0)
    assert not cut.is_complete and len(cut.indices) == 20
    assert near_duplicates.find_near_duplicates(found).is_complete


def test_mirror_images_are_other_pictures():
    picture = textures(1)[0]
    mirrored = np.asarray(Image.fromarray(picture).transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    assert len(near_duplicates.find_near_duplicates(sketches([picture, mirrored])).indices) == 0
