"""IoU, Dice and boundary F of masks: equal to slow formulas over pixels, unknown ones left out, stored in a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scripts import script
from vitrail.data.source import UNKNOWN_PIXEL
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.decisions import Decisions, add_prediction_sets, fit_rules
from vitrail.evaluate.mask_overlap import count_overlaps
from vitrail.evaluate.predictions import (
    RegressionPredictions,
    class_areas,
    concat_predictions,
    read_predictions_csv,
    reorder_outputs,
)
from vitrail.evaluate.segmentation_metrics import (
    SegmentationMetrics,
    compute_segmentation_metrics,
    image_ious,
    known_areas,
)
from vitrail.evaluate.task_metrics import compute_metrics, iter_results
from vitrail.evaluate.thresholds import DecisionSettings

NAMES = ("ground", "disc", "square", "never")


def draw_pairs(n: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Answers and masks [n, 9, 11] that agree in most pixels; some of the masks are unknown."""
    generator = np.random.default_rng(0)
    masks = generator.integers(0, 3, (n, 9, 11)).astype(np.uint8)
    answers = np.where(generator.random(masks.shape) < 0.7, masks, generator.integers(0, 3, masks.shape))
    masks[generator.random(masks.shape) < 0.1] = UNKNOWN_PIXEL
    return answers.astype(np.uint8), masks


def draw_confidences(answers: np.ndarray) -> np.ndarray:
    """Confidences of answers, in 255ths."""
    return np.random.default_rng(1).integers(90, 256, answers.shape).astype(np.uint8)


def make_table(answers: np.ndarray, masks: np.ndarray) -> RegressionPredictions:
    pairs = zip(answers, draw_confidences(answers), masks, strict=True)
    overlaps, n = np.stack([count_overlaps(*pair, len(NAMES)) for pair in pairs]), len(answers)
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


def slow_border(classes: np.ndarray, unknown: np.ndarray, k: int) -> list[tuple[int, int]]:
    """The known pixels of a class that have a known neighbour of another class."""
    height, width = classes.shape
    found = []
    for row, column in zip(*np.nonzero((classes == k) & ~unknown), strict=True):
        around = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
        inside = [(r, c) for r, c in around if 0 <= r < height and 0 <= c < width and not unknown[r, c]]
        if any(classes[place] != k for place in inside):
            found.append((int(row), int(column)))
    return found


def slow_boundary_f(answers: np.ndarray, masks: np.ndarray, k: int, tolerance: float = 2.0) -> float:
    """Boundary F of a class from all distances between border pixels, of all pictures together."""
    given = true = given_close = true_close = 0
    for answer, mask in zip(answers, masks, strict=True):
        unknown = mask == UNKNOWN_PIXEL
        ours, theirs = slow_border(answer, unknown, k), slow_border(mask, unknown, k)
        given, true = given + len(ours), true + len(theirs)
        given_close += sum(any(np.hypot(a - c, b - d) <= tolerance for c, d in theirs) for a, b in ours)
        true_close += sum(any(np.hypot(a - c, b - d) <= tolerance for a, b in ours) for c, d in theirs)
    if not given + true:
        return float("nan")
    precision, recall = given_close / max(given, 1), true_close / max(true, 1)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def draw_blobs(n: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Answers and masks [n, 24, 30] of smooth regions whose borders differ by some pixels; a part is unknown."""
    generator = np.random.default_rng(1)
    rows, columns = np.mgrid[:24, :30]
    parts = []
    for _ in range(n):
        row, column, reach = generator.uniform(8, 16), generator.uniform(10, 20), generator.uniform(3, 9)
        moved = generator.uniform(-3, 3, 2)
        for down, right in ((0, 0), moved):
            away = np.hypot(rows - row - down, columns - column - right)
            parts.append((away < reach).astype(np.uint8) + (away < reach / 2))
    drawn = np.stack(parts).reshape(n, 2, 24, 30).astype(np.uint8)
    drawn[:, 1, :, :6] = UNKNOWN_PIXEL
    return drawn[:, 0], drawn[:, 1]


@pytest.mark.parametrize("draw", [draw_pairs, draw_blobs])
def test_boundary_f_equals_all_distances_between_border_pixels(draw: Callable[[], tuple[np.ndarray, np.ndarray]]):
    answers, masks = draw()
    metrics = compute_segmentation_metrics(make_table(answers, masks))
    expected = [slow_boundary_f(answers, masks, k) for k in range(3)]
    assert [one.boundary_f for one in metrics.per_class[:3]] == pytest.approx(expected, abs=1e-12)
    assert metrics.per_class[3].boundary_f is None and metrics.mean_boundary_f == pytest.approx(np.mean(expected))
    if draw is draw_blobs:
        assert 0.3 < min(expected) < max(expected) < 0.99


@pytest.mark.parametrize(("shift", "expected"), [(0, 1.0), (2, 1.0), (3, 0.0)])
def test_a_straight_border_may_be_off_by_two_pixels(shift: int, expected: float):
    masks = np.zeros((1, 12, 20), np.uint8)
    masks[..., 10:] = 1
    answers = np.roll(masks, shift, axis=2)
    answers[..., :5] = 0
    metrics = compute_segmentation_metrics(make_table(answers, masks))
    assert metrics.per_class[1].boundary_f == expected


def test_a_class_without_a_border_has_no_boundary_f():
    metrics = compute_segmentation_metrics(make_table(*np.zeros((2, 3, 6, 6), np.uint8)))
    assert metrics.mean_boundary_f is None and metrics.per_class[0].boundary_f is None and metrics.mean_iou == 1


def test_the_worst_pictures_are_named_the_worst_first():
    answers, masks = draw_pairs(8)
    answers[3] = 0
    table = make_table(answers, masks)
    metrics = compute_segmentation_metrics(table)
    ious = image_ious(table.overlaps)
    assert [each.id for each in metrics.worst] == [str(k) for k in np.argsort(ious)[:5]] and metrics.worst[0].id == "3"
    assert [each.iou for each in metrics.worst] == sorted(ious)[:5]
    assert f"lowest IoU: 3 {ious[3]:.3f}, " in metrics.table()
    assert compute_segmentation_metrics(make_table(masks[:1] % UNKNOWN_PIXEL, masks[:1])).worst == ()


def test_what_one_picture_or_group_shows_has_no_interval():
    answers, masks = draw_pairs(6)
    masks[masks == 2] = 0
    masks[4, :3, :3] = 2
    metrics = compute_segmentation_metrics(make_table(answers, masks))
    assert metrics.per_class[2].iou is not None and metrics.per_class[2].dice_interval is None
    assert metrics.per_class[1].iou_interval is not None and metrics.mean_iou_interval is not None
    why = f"No interval for {metrics.per_class[2].name}: masks of fewer than two pictures have it."
    assert why in metrics.table()
    grouped = compute_segmentation_metrics(make_table(answers, masks), np.array([0, 0, 0, 0, 0, 1]))
    low, high = grouped.mean_iou_interval or (1.0, 0.0)
    assert high - low > 2 * np.subtract(*metrics.mean_iou_interval[::-1])  # two groups tell less than six pictures
    alone = compute_segmentation_metrics(make_table(answers[:1], masks[:1]))
    assert alone.mean_iou is not None and alone.mean_iou_interval is None and alone.pixel_accuracy_interval is None
    assert "No intervals: they take two pictures." in alone.table()


# -- Areas


def draw_areas(generator: np.random.Generator, n: int) -> np.ndarray:
    """Overlaps of n pictures whose answered areas miss the true ones by more where these are large."""
    true = generator.beta(1.2, 4, n)
    answered = (true + generator.normal(0, 0.05 + 0.2 * true)).clip(0, 1)
    overlaps = np.zeros((n, 4, 8))
    overlaps[:, 1, 1], overlaps[:, 1, 2] = answered, true
    overlaps[:, 0, 1], overlaps[:, 0, 2] = 1 - answered, 1 - true
    return overlaps * generator.uniform(0.3, 1, (n, 1, 1))  # the rest of the pixels is unknown


def test_ranges_of_areas_hold_nine_of_ten_pictures():
    generator = np.random.default_rng(0)
    settings = DecisionSettings(conformal_alpha=0.1)
    kept = []
    for _ in range(300):
        fitted = fit_rules(Decisions(), "segmentation", settings, NAMES, *known_areas(draw_areas(generator, 39)))
        answered, true = known_areas(draw_areas(generator, 50))
        kept.append(np.abs(answered - true)[:, 1] <= fitted.reach[1])
    assert np.mean(kept) == pytest.approx(0.9, abs=0.02)


def test_ranges_of_areas_end_at_nothing_and_at_everything():
    table = make_table(*draw_pairs(2))
    ranged = add_prediction_sets(table, Decisions(reach=(0.9, 0.01, 0.5, 0.5)), "segmentation")
    assert isinstance(ranged, RegressionPredictions) and ranged.ranges is not None
    assert ranged.ranges[:, 0].tolist() == [[0, 1], [0, 1]]
    np.testing.assert_allclose(ranged.ranges[:, 1], ranged.values[:, 1, None] + [-0.01, 0.01], atol=1e-6)
    with pytest.raises(UsageError, match=r"90% of all cases .* at least 9 validation pictures"):
        add_prediction_sets(table, Decisions(miss=0.1), "segmentation")


def test_a_picture_without_a_known_pixel_fits_no_range():
    overlaps = draw_areas(np.random.default_rng(0), 10)
    overlaps[3] = 0
    answered, true = known_areas(overlaps)
    assert np.isnan(true[3]).all() and not np.isnan(np.delete(true, 3, 0)).any()
    settings = DecisionSettings(conformal_alpha=0.1)
    reach = fit_rules(Decisions(), "segmentation", settings, NAMES, answered, true).reach
    assert reach[1] == np.delete(np.abs(answered - true)[:, 1], 3).max()


@pytest.mark.wide
def test_intervals_of_iou_hold_the_true_one_as_often_as_they_promise():
    """Pictures of one population: its IoU is the ratio of the expected pixels."""
    generator = np.random.default_rng(0)

    def draw(n: int) -> np.ndarray:
        true = generator.beta(2, 5, n)
        both = true * generator.beta(6, 2, n)
        extra = (1 - true) * generator.beta(1, 9, n)
        overlaps = np.zeros((n, 4, 8))
        overlaps[:, 1, 0], overlaps[:, 1, 1], overlaps[:, 1, 2] = both, both + extra, true
        overlaps[:, 0, 2] = 1 - true
        return overlaps

    both, answered, true = draw(200_000)[:, 1, :3].sum(0)
    truth, inside = both / (answered + true - both), 0
    nothing = make_table(*np.zeros((2, 20, 2, 2), np.uint8))
    for _ in range(200):
        metrics = compute_segmentation_metrics(dataclasses.replace(nothing, overlaps=draw(20)), samples=100)
        span = metrics.per_class[1].iou_interval
        assert span is not None
        inside += span[0] <= truth <= span[1]
    assert 0.9 < inside / 200 < 0.99


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


def test_how_far_answers_are_surer_than_right():
    answers, masks = draw_pairs()
    metrics, sure = compute_segmentation_metrics(make_table(answers, masks)), draw_confidences(answers) / 255
    known = masks != UNKNOWN_PIXEL
    right = (answers == masks)[known]
    assert metrics.overconfidence == pytest.approx(sure[known].mean() - right.mean())
    assert metrics.overconfidence_interval is not None
    low, high = metrics.overconfidence_interval
    assert low < metrics.overconfidence < high
    sizes = []
    for k in range(3):
        own = known & (answers == k)
        gap = sure[own].mean() - (masks == k)[own].mean()
        assert metrics.per_class[k].overconfidence == pytest.approx(gap)
        sizes.append(abs(gap) * own.sum() / known.sum())
    assert metrics.calibration_error == pytest.approx(sum(sizes)) and metrics.per_class[3].overconfidence is None
    assert "too sure by" in metrics.table()


@pytest.mark.wide
def test_intervals_of_overconfidence_hold_the_true_one_as_often_as_they_promise():
    generator, inside = np.random.default_rng(0), 0

    def draw(n: int) -> np.ndarray:
        overlaps = np.zeros((n, 4, 8))
        overlaps[:, 0, 1] = overlaps[:, 0, 2] = generator.beta(5, 2, n)  # known pixels
        rate = generator.beta(8, 2, n)
        overlaps[:, 0, 0] = rate * overlaps[:, 0, 1]
        overlaps[:, 0, 7] = (0.5 + 0.5 * rate) * overlaps[:, 0, 1]
        return overlaps

    many = draw(200_000).sum(0)
    truth, nothing = (many[0, 7] - many[0, 0]) / many[0, 1], make_table(*np.zeros((2, 20, 2, 2), np.uint8))
    for _ in range(200):
        metrics = compute_segmentation_metrics(dataclasses.replace(nothing, overlaps=draw(20)), samples=100)
        assert metrics.overconfidence_interval is not None
        inside += metrics.overconfidence_interval[0] <= truth <= metrics.overconfidence_interval[1]
    assert inside / 200 == pytest.approx(0.95, abs=0.04)


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


# -- Intervals, by simulation (benchmarks/mask_coverage.py has more studies)


def test_ranges_of_areas_and_intervals_of_iou_hold_as_often_as_they_promise():
    coverage = script("mask_coverage")
    population = coverage.draw_population(40)
    few = coverage.measure(population, 20, True, 60, samples=100)
    assert min(few[name] for name in ("iou", "dice", "boundary_f", "crack_iou", "crack_boundary_f")) >= 0.88
    rare = coverage.measure(coverage.forget_cracks(population), 20, True, 60, samples=100)
    assert 0.3 < rare["without"] < 0.8 and rare["crack_iou"] >= 0.85  # percentiles: 0.6
    for grouped in (False, True):
        found = coverage.measure(population, 48, grouped, 25, samples=200)
        assert 0.86 <= found["areas"] <= 0.95  # 90 % promised
        assert found["iou"] >= 0.8 and found["dice"] >= 0.8  # 95 %, of 25 studies
        assert found["iou_width"] < 0.2
