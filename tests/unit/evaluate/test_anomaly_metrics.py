"""Metrics of anomaly predictions against scikit-learn, and those of pixels against the definitions pixel by pixel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import label
from scipy.stats import binom
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from vitrail.data.labels.defects import MASK_COLUMN
from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.evaluate.anomaly_metrics import MIN_P_VALUE, compute_anomaly_metrics
from vitrail.evaluate.conformal import Promise
from vitrail.evaluate.decisions import fit_anomaly_decisions
from vitrail.evaluate.pixel_metrics import _compute, count_levels, read_mask, spread_map
from vitrail.evaluate.predictions import ClassificationPredictions, anomaly_fields, read_predictions_csv
from vitrail.evaluate.task_metrics import compute_metrics, iter_results
from vitrail.evaluate.thresholds import DecisionSettings
from vitrail.spec import ImageSpec


def table(n: int = 60, good: int = 40) -> ClassificationPredictions:
    generator = np.random.default_rng(0)
    targets = np.where(np.arange(n) < good, 0, 1)
    scores = (generator.normal(size=n) + 1.5 * targets).round(1).astype(np.float32)  # with ties
    types = np.where(targets == 0, "good", np.where(np.arange(n) % 2, "scratch", "dent")).astype(object)
    p_values = 1 / (1 + np.exp(scores.astype(np.float64)))
    return ClassificationPredictions(
        **anomaly_fields(scores, p_values, scores > 1),
        paths=("",) * n,
        ids=tuple(map(str, range(n))),
        split="test",
        targets=targets,
        defect_types=types,
    )


def test_metrics_are_those_of_scikit_learn():
    predictions = table()
    metrics = compute_metrics(predictions, promise=Promise(0.1, 99))
    assert predictions.targets is not None and predictions.scores is not None
    assert metrics.auroc == pytest.approx(roc_auc_score(predictions.targets, predictions.scores))
    assert metrics.average_precision == pytest.approx(average_precision_score(predictions.targets, predictions.scores))
    assert metrics.f1 == pytest.approx(f1_score(predictions.targets, predictions.indices))
    called = predictions.indices == 1
    assert metrics.false_alarms == pytest.approx(called[:40].mean())
    assert metrics.recall == pytest.approx(called[40:].mean())
    for name in ("auroc", "average_precision", "f1", "recall", "false_alarms"):
        low, high = getattr(metrics, f"{name}_interval")
        assert low <= getattr(metrics, name) <= high
    assert [(one.name, one.n) for one in metrics.per_type] == [("dent", 10), ("scratch", 10)]
    rows = np.array([name in ("good", "dent") for name in predictions.target_names])
    expected = roc_auc_score(predictions.targets[rows], predictions.scores[rows])
    assert metrics.per_type[0].auroc == pytest.approx(expected)
    assert {row.scope for row in iter_results(metrics)} == {"", "dent", "scratch"}
    assert "promised 10.0%" not in metrics.headline() and "10.0% promised" in metrics.headline()


def test_more_false_alarms_than_promised_are_doubted():
    doubted = compute_anomaly_metrics(table(40, 40), promise=Promise(0.01, 999))
    assert doubted.auroc is None and doubted.recall is None and doubted.false_alarms is not None
    assert "1.0% were promised: the chance of so many is" in doubted.describe_doubt()
    assert compute_anomaly_metrics(table(40, 40), promise=Promise(0.5, 99)).describe_doubt() == ""
    assert doubted.headline().startswith("False alarms ")


@pytest.mark.parametrize("grouped", [False, True])
def test_honest_models_are_seldom_doubted(grouped: bool):
    generator, doubted, binomial = np.random.default_rng(0), 0, 0
    groups = np.repeat(np.arange(200), 5)
    for _ in range(400):
        scores = generator.normal(size=(299, 5)) + 2 * generator.normal(size=(299, 1)) * grouped
        calibration = scores[:99] if grouped else scores[:99, :1]
        of = np.repeat(np.arange(99), 5) if grouped else None
        rules = fit_anomaly_decisions(DecisionSettings(alpha=0.01), calibration.ravel(), of)
        called = rules.find_defects(rules.p_values(scores[99:].ravel()))
        assert rules.promise == Promise(0.01, 99)
        doubted += rules.promise.chance_of_alarms(called, groups if grouped else None) < MIN_P_VALUE
        binomial += binom.sf(called.sum() - 1, len(called), 0.01) < MIN_P_VALUE
    assert doubted <= 9  # four of 400 are expected at most; more than nine come by chance once in a hundred times
    assert grouped or binomial > 40  # a test at alpha, as if it were the rate itself


def test_pictures_that_have_changed_are_doubted():
    generator = np.random.default_rng(0)
    rules = fit_anomaly_decisions(DecisionSettings(alpha=0.01), generator.normal(size=99))
    called = rules.find_defects(rules.p_values(generator.normal(size=200) + 1.5))
    assert rules.promise is not None and rules.promise.chance_of_alarms(called, None) < MIN_P_VALUE
    assert rules.promise.chance_of_alarms(np.zeros(200, bool), None) == 1


def test_defects_alone_have_a_recall_and_no_area():
    metrics = compute_anomaly_metrics(table(20, 0), groups=np.arange(20) // 2)
    assert metrics.auroc is None and metrics.false_alarms is None and metrics.recall is not None
    assert metrics.groups == 10 and "defects found" in metrics.table()


def test_the_recall_of_a_type_counts_the_groups_of_its_own_pictures():
    predictions = replace(table(60, 40), defect_types=np.array([*["good"] * 40, *["crack"] * 20], object))
    groups = np.r_[np.arange(40), np.arange(20) // 10 + 40]  # every good picture by itself, all cracks of two lots
    metrics = compute_anomaly_metrics(predictions, groups)
    (crack,) = metrics.per_type
    assert (crack.name, crack.n) == ("crack", 20) and crack.recall_interval == metrics.recall_interval


def test_a_table_survives_its_file(tmp_path: Path):
    written = table()
    written.write_csv(tmp_path / "test.csv")
    read = read_predictions_csv(tmp_path / "test.csv", "anomaly")
    assert isinstance(read, ClassificationPredictions) and read.scores is not None and read.p_values is not None
    assert read.csv_bytes() == written.csv_bytes()
    assert (read.scores == written.scores).all() and (read.p_values == written.p_values).all()
    assert read.targets is not None and (read.targets == written.targets).all()
    assert compute_anomaly_metrics(read) == compute_anomaly_metrics(written)


def reference_pixel_metrics(maps: np.ndarray, masks: np.ndarray, limit: float = 0.3) -> tuple[float, float]:
    """Pixel AUROC, and the area under the mean overlap of regions by false alarms, threshold by threshold."""
    alarms, overlaps = [0.0], [0.0]
    regions = []
    for k, mask in enumerate(masks):
        numbers, count = label(mask, structure=np.ones((3, 3)))
        regions += [(k, numbers == number) for number in range(1, count + 1)]
    for threshold in np.unique(maps)[::-1]:
        found = maps >= threshold
        alarms.append(float(found[~masks].mean()))
        overlaps.append(float(np.mean([found[k][region].mean() for k, region in regions])))
    area = 0.0
    for left, right, low, high in zip(alarms, alarms[1:], overlaps, overlaps[1:], strict=False):
        if left >= limit:
            break
        end = min(right, limit)
        at_end = low + (high - low) * ((end - left) / (right - left) if right > left else 1)
        area += (end - left) * (low + at_end) / 2
    return float(roc_auc_score(masks.ravel(), maps.ravel())), area / limit


def test_pixel_metrics_are_those_of_every_threshold():
    generator = np.random.default_rng(1)
    masks = np.zeros((4, 24, 24), bool)
    masks[1, 3:8, 3:6] = masks[1, 15:20, 10:20] = masks[2, 0:2, 0:24] = masks[3, 10:12, 10:12] = True
    # levels of 1/50 in the middle of those that are counted, so that both see the same ties
    maps = (generator.integers(0, 30, masks.shape) + 12 * masks) / 50 + 1e-4
    parts = np.stack([count_levels(one.astype(np.float32), mask) for one, mask in zip(maps, masks, strict=True)])
    np.testing.assert_allclose(_compute(parts), reference_pixel_metrics(maps, masks), atol=1e-9)
    assert np.isnan(_compute(parts[:1])).all()  # no pixel of a defect


def test_maps_are_spread_between_the_centres_of_patches():
    spread = spread_map(np.array([[0.0, 1.0]], np.float32), (2, 4))
    np.testing.assert_allclose(spread, [[0, 0.25, 0.75, 1]] * 2)


def masked_source(folder: Path, mask: np.ndarray) -> Source:
    Image.fromarray(np.full((20, 30), 90, np.uint8)).save(folder / "part.png")
    Image.fromarray(mask).save(folder / "mask.png")
    return Source(
        name="parts", task="anomaly", classes=("good", "defect"), images=[folder / "part.png"], targets=np.array([1]),
        ids=["part"], metadata={MASK_COLUMN: [str(folder / "mask.png")]},
    )  # fmt: skip


def test_a_mask_of_zeros_and_ones_is_read_as_one_of_black_and_white(tmp_path: Path):
    mask = np.zeros((20, 30), np.uint8)
    mask[:10, :15] = 1
    read = read_mask(masked_source(tmp_path, mask), 0, ImageSpec(height=10, width=10))
    assert read[:5, :5].all() and read.sum() == 25


def test_a_mask_of_another_size_names_both(tmp_path: Path):
    source = masked_source(tmp_path, np.zeros((10, 30), np.uint8))
    with pytest.raises(DataError, match=r"mask.png has 10x30 pixels, and its picture part has 20x30"):
        read_mask(source, 0, ImageSpec(height=10, width=10))
