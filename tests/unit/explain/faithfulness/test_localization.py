"""Does a map lie on what makes the class? Perfect maps, random ones, flat ones, and pictures of two classes."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data.sources.synthetic import CLASSES, GLYPHS, make_synthetic_images, make_synthetic_pairs
from vitrail.errors import UsageError
from vitrail.explain.faithfulness.localization import (
    compute_class_sensitivity,
    localize_on_targets,
    patch_coverage,
    perfect_map,
    row_correlation,
    score_localization,
)
from vitrail.spec import Grid


@pytest.mark.parametrize("grid", [Grid(8, 8), Grid(16, 16), Grid(4, 4), Grid(7, 9)])
def test_a_perfect_map_of_planted_evidence_points_at_it(grid):
    planted = make_synthetic_images(60, 0, tag=True)
    found = score_localization(perfect_map(planted, grid), planted)
    assert (found.pointing == 1).all()
    assert found.in_box.min() >= 0.24 and found.in_box.mean() > 5 * found.chance_box
    assert found.on_decoy.mean() < found.in_mask.mean() / 2 and found.on_tag.max() < 0.1


def test_on_patches_that_outline_the_glyph_a_perfect_map_has_all_its_mass_there():
    planted = make_synthetic_images(60, 0)
    found = score_localization(perfect_map(planted, Grid(8, 8)), planted)
    np.testing.assert_allclose(found.in_box, 1)
    np.testing.assert_allclose(found.in_mask, 112 / 256)
    np.testing.assert_allclose(found.overlap, 1)
    np.testing.assert_allclose(found.on_decoy, 0)
    assert found.on_tag is None


def test_a_random_map_has_what_chance_gives():
    planted = make_synthetic_images(2000, 0)
    found = score_localization(np.random.default_rng(0).random((2000, 8, 8)), planted)
    assert found.chance_pointing == pytest.approx(4 / 64) and found.chance_box == pytest.approx(256 / 4096)
    assert found.chance_mask == pytest.approx(112 / 4096)
    assert found.pointing.mean() == pytest.approx(4 / 64, abs=0.02)
    assert found.in_box.mean() == pytest.approx(256 / 4096, abs=0.005)
    assert found.on_decoy.mean() == pytest.approx(112 / 4096, abs=0.005)


def test_a_flat_map_has_chance_and_the_decoys_map_has_nothing_on_the_glyph():
    planted = make_synthetic_images(20, 0)
    flat = score_localization(np.ones((20, 8, 8)), planted)
    np.testing.assert_allclose(flat.pointing, 4 / 64)
    np.testing.assert_allclose(flat.in_box, 256 / 4096)
    np.testing.assert_allclose(flat.overlap, 0)
    fooled = score_localization(patch_coverage(planted.decoy_masks, Grid(8, 8)), planted)
    assert (fooled.pointing == 0).all() and (fooled.in_box == 0).all() and (fooled.on_decoy > 0.4).all()


def test_negative_relevance_is_no_claim():
    target = np.zeros((1, 4, 6), bool)
    target[0, :2, :3] = True
    found = localize_on_targets(np.array([[[1.0, -9.0], [3.0, -9.0]]]), target)
    assert found.mass.tolist() == [0.25] and found.pointing.tolist() == [0]
    assert localize_on_targets(-np.ones((1, 2, 2)), target).mass.tolist() == [0]


@pytest.mark.parametrize("grid", [Grid(2, 3), Grid(3, 4), Grid(5, 7), Grid(10, 20), Grid(1, 1)])
def test_shares_are_those_of_a_picture_large_enough_for_both(grid):
    targets = np.random.default_rng(0).random((3, 4, 6)) < 0.5
    fine = targets.repeat(grid.rows, 1).repeat(grid.columns, 2).astype(float)  # each cell is 4 x 6 of these
    expected = fine.reshape(3, grid.rows, 4, grid.columns, 6).mean((2, 4))
    np.testing.assert_allclose(patch_coverage(targets, grid), expected, atol=1e-12)


def test_maps_that_follow_the_class_are_told_from_maps_that_are_blind_to_it():
    pairs = make_synthetic_pairs(24, 0)
    own = tuple(patch_coverage(boxes, Grid(8, 8)) for boxes in pairs.glyph_boxes.swapaxes(0, 1))
    targets = (pairs.glyph_boxes[:, 0], pairs.glyph_boxes[:, 1])
    found = compute_class_sensitivity(own, targets)
    np.testing.assert_allclose(found.own_mass, 1)
    assert (found.correlation < 0).all()
    blind = compute_class_sensitivity((own[0] + own[1],) * 2, targets)
    np.testing.assert_allclose(blind.own_mass, 0.5)
    np.testing.assert_allclose(blind.correlation, 1)
    wrong = compute_class_sensitivity(own[::-1], targets)
    np.testing.assert_allclose(wrong.own_mass, 0)
    nowhere = np.zeros((24, 8, 8))
    nowhere[:, 0, 0] = 1
    lost = compute_class_sensitivity((nowhere, nowhere), targets)
    np.testing.assert_allclose(lost.own_mass, 0)


def test_correlation_is_numpys_and_nothing_is_like_a_flat_row():
    rows = np.random.default_rng(0).normal(size=(2, 5, 9))
    expected = [np.corrcoef(one, other)[0, 1] for one, other in zip(*rows, strict=True)]
    np.testing.assert_allclose(row_correlation(rows[0], rows[1]), expected)
    assert row_correlation(rows[0], np.ones((5, 9))).tolist() == [0] * 5


def test_what_cannot_be_judged_is_refused():
    target = np.zeros((2, 4, 6), bool)
    with pytest.raises(UsageError, match=r"must hold a pixel\. That of picture 0"):
        localize_on_targets(np.ones((2, 2, 2)), target)
    target[:, 0, 0] = True
    with pytest.raises(UsageError, match=r"Got 1 maps and 2 targets"):
        localize_on_targets(np.ones((1, 2, 2)), target)


def test_pictures_of_pairs_hold_two_different_glyphs_in_all_twelve_orders():
    pairs = make_synthetic_pairs(48, 3)
    assert (pairs.targets[:, 0] != pairs.targets[:, 1]).all()
    assert len({tuple(row) for row in pairs.targets[:12]}) == 12
    assert not pairs.glyph_boxes.all(1).any(), "the boxes do not overlap"
    for picture, targets, masks, boxes in zip(*vars(pairs).values(), strict=True):
        for target, mask, box in zip(targets, masks, boxes, strict=True):
            rows, columns = np.flatnonzero(box.any(1)), np.flatnonzero(box.any(0))
            assert np.array_equal(mask[np.ix_(rows, columns)], GLYPHS[target])
            assert picture[mask].mean() - picture[box & ~mask].mean() > 50
    few = make_synthetic_pairs(5, 3)
    assert np.array_equal(few.images, pairs.images[:5]) and len(CLASSES) == 4


def test_a_tag_in_some_pictures_only_is_refused():
    made = make_synthetic_images(6, 0, tag=True)
    made.tag_masks[:2] = False
    with pytest.raises(UsageError, match=r"on in all pictures or in none\. Got 4 of 6"):
        score_localization(np.ones((6, 8, 8)), made)
