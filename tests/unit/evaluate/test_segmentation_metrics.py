"""IoU and Dice of masks: equal to a slow formula over pixels, unknown ones left out, and stored in a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitrail.data.source import UNKNOWN_PIXEL
from vitrail.errors import DataError
from vitrail.evaluate.mask_overlap import count_overlaps
from vitrail.evaluate.predictions import (
    RegressionPredictions,
    class_areas,
    concat_predictions,
    read_predictions_csv,
    reorder_outputs,
)
from vitrail.evaluate.segmentation_metrics import SegmentationMetrics, compute_segmentation_metrics, image_ious
from vitrail.evaluate.task_metrics import compute_metrics, iter_results

NAMES = ("ground", "disc", "square", "never")


def draw_pairs(n: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Answers and masks [n, 9, 11] that agree in most pixels; some of the masks are unknown."""
    generator = np.random.default_rng(0)
    masks = generator.integers(0, 3, (n, 9, 11)).astype(np.uint8)
    answers = np.where(generator.random(masks.shape) < 0.7, masks, generator.integers(0, 3, masks.shape))
    masks[generator.random(masks.shape) < 0.1] = UNKNOWN_PIXEL
    return answers.astype(np.uint8), masks


def make_table(answers: np.ndarray, masks: np.ndarray) -> RegressionPredictions:
    overlaps = np.stack([count_overlaps(*pair, len(NAMES)) for pair in zip(answers, masks, strict=True)])
    n = len(answers)
    return RegressionPredictions(
        paths=("",) * n,
        ids=tuple(map(str, range(n))),
        split="test",
        skipped=(),
        columns=NAMES,
        values=class_areas(answers, len(NAMES)),
        targets=class_areas(np.minimum(masks, 4), 5)[:, :4],
        overlaps=overlaps,
    )


def slow_figures(answers: np.ndarray, masks: np.ndarray, k: int) -> tuple[float, float]:
    """IoU and Dice of a class, pixel by pixel."""
    both = either = size = 0
    for answer, mask in zip(answers.ravel().tolist(), masks.ravel().tolist(), strict=True):
        if mask != UNKNOWN_PIXEL:
            both += answer == k and mask == k
            either += answer == k or mask == k
            size += (answer == k) + (mask == k)
    return (both / either, 2 * both / size) if either else (float("nan"), float("nan"))


def test_figures_equal_a_count_of_pixels():
    answers, masks = draw_pairs()
    metrics = compute_metrics(make_table(answers, masks))
    assert isinstance(metrics, SegmentationMetrics) and metrics.n == 6
    expected = [slow_figures(answers, masks, k) for k in range(3)]
    for one, (iou, dice) in zip(metrics.per_class, expected, strict=False):
        assert one.iou == pytest.approx(iou, abs=1e-12) and one.dice == pytest.approx(dice, abs=1e-12)
        assert one.iou_interval is not None and one.iou_interval[0] < iou < one.iou_interval[1]
    assert metrics.per_class[3].iou is None and metrics.per_class[3].n == 0  # neither answered nor true
    assert metrics.mean_iou == pytest.approx(np.mean([iou for iou, _ in expected]))
    assert metrics.mean_dice == pytest.approx(np.mean([dice for _, dice in expected]))
    known = masks != UNKNOWN_PIXEL
    assert metrics.pixel_accuracy == pytest.approx((answers == masks)[known].mean())
    assert metrics.headline().startswith(
        f"Mean IoU on 6 held-out pictures (test): {metrics.mean_iou:.3f} (95 % interval"
    )
    assert "mean Dice" in metrics.table() and "never" in metrics.table()
    rows = {(row.scope, row.metric): row.value for row in iter_results(metrics)}
    assert rows["", "mean_iou"] == metrics.mean_iou and rows["disc", "iou"] == metrics.per_class[1].iou


def test_a_class_that_is_answered_and_never_true_counts_as_zero():
    masks = np.zeros((2, 4, 4), np.uint8)
    answers = masks.copy()
    answers[0, 0] = 1
    metrics = compute_segmentation_metrics(make_table(answers, masks))
    assert metrics.per_class[1].iou == 0 and metrics.mean_iou == pytest.approx((28 / 32) / 2)


def test_groups_are_resampled_whole():
    answers, masks = draw_pairs(12)
    answers[:6] = 0
    table = make_table(answers, masks)
    alone, together = (compute_segmentation_metrics(table, groups) for groups in (None, np.repeat([0, 1, 2, 3], 3)))
    assert together.groups == 4 and alone.mean_iou == together.mean_iou
    widths = [one.mean_iou_interval[1] - one.mean_iou_interval[0] for one in (alone, together) if one.mean_iou_interval]
    assert widths[1] > widths[0]


def test_unknown_pixels_are_no_error_and_a_table_of_nothing_known_is():
    answers, masks = draw_pairs(3)
    masks[2] = UNKNOWN_PIXEL
    table = make_table(answers, masks)
    assert compute_segmentation_metrics(table).n == 2 and np.isnan(image_ious(table.overlaps)[2])
    masks[:] = UNKNOWN_PIXEL
    with pytest.raises(DataError, match="at least one picture with a known mask"):
        compute_segmentation_metrics(make_table(answers, masks))


def test_a_table_of_masks_survives_its_file_and_keeps_its_columns(tmp_path: Path):
    answers, masks = draw_pairs()
    table = make_table(answers, masks)
    table.write_csv(tmp_path / "test.csv")
    read = read_predictions_csv(tmp_path / "test.csv", "segmentation")
    assert isinstance(read, RegressionPredictions) and read.overlaps is not None
    np.testing.assert_array_equal(read.overlaps, table.overlaps)
    np.testing.assert_array_equal(read.values, table.values)
    assert compute_metrics(read).to_json() == compute_metrics(table).to_json()
    assert compute_metrics(concat_predictions([table, table])).n == 12
    turned = reorder_outputs(table, NAMES[::-1])
    ours, theirs = (compute_segmentation_metrics(one) for one in (table, turned))
    assert [one.name for one in theirs.per_class] == [one.name for one in ours.per_class][::-1]
    assert [one.iou for one in theirs.per_class] == [one.iou for one in ours.per_class][::-1]
