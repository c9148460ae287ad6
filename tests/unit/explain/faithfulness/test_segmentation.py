"""X11: a map taken for a segmentation, against counting by hand; parts join to the whole."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import jaccard_score

from scripts import script
from vitrail.errors import UsageError

segmentation = script("making.segmentation")
merge_segmentation_scores, score_segmentation = segmentation.merge_segmentation_scores, segmentation.score_segmentation

MASKS = np.zeros((3, 8, 12), bool)
MASKS[0, 2:6, 3:9], MASKS[1, :, :6], MASKS[2, 0, 0] = True, True, True


def test_X11_the_mask_itself_is_perfect_and_its_opposite_is_always_wrong():
    found = score_segmentation(MASKS.astype(np.float64), MASKS)
    assert (found.accuracy, found.mean_iou, found.mean_average_precision) == (1, 1, pytest.approx(1))
    wrong = score_segmentation(1.0 - MASKS, MASKS)
    assert (wrong.accuracy, wrong.mean_iou) == (0, 0) and wrong.mean_average_precision < 0.6


def test_X11_what_lies_above_the_mean_is_the_object_and_counts_are_those_of_scikit_learn():
    maps = np.random.default_rng(0).random((3, 8, 12)) + 0.4 * MASKS
    found = score_segmentation(maps, MASKS)
    heat = (maps - maps.min((1, 2), keepdims=True)) / np.ptp(maps, axis=(1, 2), keepdims=True)
    called = heat > heat.mean((1, 2), keepdims=True)
    assert found.accuracy == pytest.approx((called == MASKS).mean())
    both = [jaccard_score(MASKS.ravel() == kind, called.ravel() == kind) for kind in (False, True)]
    assert found.mean_iou == pytest.approx(np.mean(both))
    assert found.precisions.shape == (3,) and 0.5 < found.mean_average_precision < 1


def test_scale_and_offset_of_a_map_mean_nothing_and_it_is_stretched_between_patch_centres():
    maps = np.random.default_rng(1).random((3, 2, 3))
    found, other = score_segmentation(maps, MASKS), score_segmentation(7 * maps - 3, MASKS)
    assert found.correct == other.correct and found.union == other.union
    np.testing.assert_allclose(found.precisions, other.precisions, atol=0.02)  # ties at the border break otherwise
    left = np.tile([[1.0, 0.0]], (1, 1, 1))  # half a picture: between the centres it falls evenly
    assert score_segmentation(left, MASKS[1:2]).accuracy == 1


def test_parts_of_a_data_set_join_to_the_whole():
    maps = np.random.default_rng(2).random((3, 4, 4))
    whole = score_segmentation(maps, MASKS)
    parts = merge_segmentation_scores(
        [score_segmentation(maps[:1], MASKS[:1]), score_segmentation(maps[1:], MASKS[1:])]
    )
    assert (parts.correct, parts.pixels, parts.intersection, parts.union) == (
        whole.correct,
        whole.pixels,
        whole.intersection,
        whole.union,
    )
    assert parts.mean_iou == whole.mean_iou and parts.mean_average_precision == whole.mean_average_precision


@pytest.mark.parametrize(
    ("maps", "masks", "message"),
    [
        (np.ones((2, 2, 2)), MASKS, r"Got 2 maps and 3 masks"),
        (np.random.default_rng(0).random((1, 2, 2)), np.ones((1, 4, 4), bool), r"object and background\. That of pic"),
        (np.ones((3, 2, 2)), MASKS, r"must not be the same everywhere\. That of picture 0"),
    ],
)
def test_what_cannot_be_compared_is_refused(maps, masks, message):
    with pytest.raises(UsageError, match=message):
        score_segmentation(maps, masks)
