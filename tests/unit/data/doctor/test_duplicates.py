"""Copies are found, exact ones all of them, near ones nearly all; look-alikes are left in peace."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from unit.data.doctored import SPEC, as_jpeg, cropped, resized, textures
from vitrail.data.doctor import duplicates
from vitrail.data.doctor.looks import look


def sketches(pictures: list[np.ndarray]) -> np.ndarray:
    return np.stack([look(picture, SPEC).sketch for picture in pictures])


def test_exact_groups_are_all_places_with_one_hash():
    digests = np.array([5, 7, 5, 9, 7, 5], dtype=np.uint64)
    assert [group.tolist() for group in duplicates.exact(digests)] == [[0, 2, 5], [1, 4]]
    assert duplicates.exact(digests[:0]) == []


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
    pairs = {tuple(pair) for pair in duplicates.near(sketches([*originals, *copies])).places.tolist()}
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
    pairs = {tuple(pair) for pair in duplicates.near(sketches([*originals, *copies])).places.tolist()}
    planted = {(number, 400 + number) for number in range(60)}
    assert len(pairs & planted) >= 57
    assert len(pairs - planted) == 0


@pytest.mark.wide
def test_two_pictures_are_a_set_too():
    picture = textures(1)[0]
    assert duplicates.near(sketches([picture, as_jpeg(picture)])).places.tolist() == [[0, 1]]
    assert len(duplicates.near(sketches(textures(2))).places) == 0
    assert len(duplicates.near(np.zeros((0, 40, 40), np.uint8)).places) == 0


@pytest.mark.wide
def test_a_set_that_is_half_copies_of_one_picture_is_found_whole():
    one, *others = textures(41)
    copies = [as_jpeg(one, quality) for quality in range(55, 95)]
    pairs = duplicates.near(sketches([*copies, *others])).places
    assert len(pairs) == 40 * 39 // 2 and pairs.max() < 40


def test_a_kind_of_which_there_are_many_needs_more_likeness_than_a_lonely_pair():
    pairs = np.array([[0, 1], [2, 3], [2, 4], [2, 5], [2, 6], [7, 8]])
    alike = np.array([0.8, 0.8, 0.75, 0.75, 0.75, 0.97], np.float32)
    assert duplicates.are_copies(pairs, alike, 9).tolist() == [True, False, False, False, False, True]
    twice = np.array([0.8, 0.9, 0.9, 0.9, 0.3, 0.97], np.float32)  # three copies do not hide each other
    assert duplicates.are_copies(pairs, twice, 9).tolist() == [True, True, True, True, False, True]


def test_candidates_are_the_pairs_of_the_whole_table(monkeypatch):
    found = sketches(textures(60))
    described = duplicates.descriptions(found)
    table = np.argwhere(np.triu(described @ described.T >= 0.1, 1))
    monkeypatch.setattr(duplicates, "CANDIDATE", 0.1)
    monkeypatch.setattr(duplicates, "TILE", (16, 32))
    assert sorted(duplicates.candidates(found).tolist()) == sorted(table.tolist())


@pytest.mark.wide
def test_when_time_is_over_the_likeliest_pairs_have_been_compared(monkeypatch):
    originals = textures(60)
    found = sketches([*originals, *(as_jpeg(values) for values in originals[:20])])
    monkeypatch.setattr(duplicates, "CANDIDATE", 0.1)
    monkeypatch.setattr(duplicates, "PAIRS", 25)
    cut = duplicates.near(found, until=0.0)
    assert not cut.complete and len(cut.places) == 20
    assert duplicates.near(found).complete


def test_mirror_images_are_other_pictures():
    picture = textures(1)[0]
    mirrored = np.asarray(Image.fromarray(picture).transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    assert len(duplicates.near(sketches([picture, mirrored])).places) == 0
