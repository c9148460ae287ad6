"""One figure for every kind and severity: put together right, falling where disturbance grows, with intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from unit.evaluate.test_primary_metric import named
from vitrail import config
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.predictions import ClassificationPredictions, MultilabelPredictions, RegressionPredictions
from vitrail.evaluate.robustness import (
    CORRUPTION_SUITES,
    CorruptionResult,
    RobustnessReport,
    corrupt_images,
    corruption_kinds,
    measure_robustness,
)
from vitrail.stats import auc
from vitrail.stats.intervals import bootstrap_interval, wilson_interval


def means(images: Tensor) -> np.ndarray:
    return images.float().mean((1, 2, 3), keepdim=False)[:, None].numpy() / 255


def brightness(outputs: np.ndarray) -> RegressionPredictions:
    """Numbers whose truth is 0, so that the mean absolute error is how bright the pictures are."""
    return RegressionPredictions(
        **named(len(outputs)), targets=np.zeros_like(outputs), values=outputs, columns=("brightness",)
    )


def bright(outputs: np.ndarray) -> ClassificationPredictions:
    """Classes whose truth is `dark`: right where the mean is below one half."""
    chances = np.where(outputs < 0.5, [0.9, 0.1], [0.1, 0.9])
    return ClassificationPredictions(
        **named(len(outputs)),
        targets=np.zeros(len(outputs), np.int64),
        probabilities=chances,
        classes=("dark", "bright"),
    )


def pictures(n: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (n, 1, 8, 8), dtype=np.uint8))


def test_every_figure_is_that_of_its_kind_and_severity_over_all_pictures():
    images, indices = pictures(70), np.arange(100, 170)  # more than one batch
    found = measure_robustness(means, brightness, images, indices, "films", "test", seed=4)
    assert (found.n, found.split, found.seed, found.suite) == (70, "test", 4, "films")
    assert (found.figure, found.higher_is_better) == ("mean absolute error of brightness", False)
    assert tuple(one.kind for one in found.disturbances) == tuple(CORRUPTION_SUITES["films"])
    for one in found.disturbances:
        expected = [means(corrupt_images(images, one.kind, severity, 4, indices)).mean() for severity in range(1, 6)]
        assert one.by_severity == pytest.approx(expected) and one.mean == pytest.approx(np.mean(expected))
        assert one.mean_interval[0] < one.mean < one.mean_interval[1]
    assert found.clean == pytest.approx(means(images).mean())
    assert found.mean == pytest.approx(np.mean([one.mean for one in found.disturbances]))
    assert found.worst[0].kind == "overexposure"
    assert replace(found, higher_is_better=True).worst[0].kind == "underexposure"


def test_intervals_draw_pictures_with_all_their_answers():
    images, indices = pictures(90), np.arange(90)
    found = measure_robustness(means, bright, images, indices, "films")
    right = np.array(
        [
            [means(corrupt_images(images, kind, severity, 0, indices))[:, 0] < 0.5 for severity in range(1, 6)]
            for kind in CORRUPTION_SUITES["films"]
        ]
    )  # [kinds, severities, n]
    clean = int((means(images) < 0.5).sum())
    assert found.clean_interval == wilson_interval(clean, 90)
    drawn = bootstrap_interval(right.mean((0, 1)), lambda rows: float(rows.mean()), 0)
    assert found.mean_interval == pytest.approx(drawn) and found.mean == pytest.approx(right.mean())
    of_kind = bootstrap_interval(right[2].mean(0), lambda rows: float(rows.mean()), 0)
    assert found.disturbances[2].mean_interval == pytest.approx(of_kind)
    naive = wilson_interval(int(right.sum()), right.size)
    assert drawn[1] - drawn[0] > 3 * (naive[1] - naive[0]), "answers to one picture are alike"


@pytest.mark.wide
def test_groups_widen_intervals():
    images = pictures(30).repeat_interleave(4, dim=0)
    alone = measure_robustness(means, brightness, images, np.arange(120), "films")
    grouped = measure_robustness(means, brightness, images, np.arange(120), "films", groups=np.arange(120) // 4)
    widths = [one.mean_interval[1] - one.mean_interval[0] for one in (alone, grouped)]
    assert grouped.mean == alone.mean and widths[1] > 1.6 * widths[0]


def test_a_mean_of_areas_has_delong_s_interval():
    images, indices = pictures(60), np.arange(60)
    there = np.arange(60) % 2 == 0

    def answers(outputs: np.ndarray) -> MultilabelPredictions:
        return MultilabelPredictions(
            **named(60), targets=there[:, None].astype(float), probabilities=outputs, classes=("spot",)
        )

    found = measure_robustness(means, answers, images, indices, "films")
    of_gamma = [
        auc.roc_auc_with_influence(
            there, means(corrupt_images(images, "gamma", severity, 0, indices))[:, 0].astype(np.float32)
        )
        for severity in range(1, 6)
    ]
    gamma = next(one for one in found.disturbances if one.kind == "gamma")
    assert found.figure == "AUROC" and gamma.mean_interval == pytest.approx(auc.mean_roc_auc(of_gamma).interval())


def test_progress_is_told_how_many_figures_there_are_over_how_many_pictures():
    asked, passed = [], []

    def counted(tables, lots, size):
        asked.append((lots, size))
        for table in tables:
            passed.append(table)
            yield table

    found = measure_robustness(means, brightness, pictures(2), np.arange(2), "imagenet-c", progress=counted)
    assert asked == [(75, 2)] and len(passed) == 75 and len(found.disturbances) == 15


def stood(figure: str = "accuracy", **fields: object) -> RobustnessReport:
    rows = (
        ("snow", (0.5, 0.4, 0.3, 0.2, 0.1), (0.25, 0.35)),
        ("jpeg_compression", (0.9, 0.9, 0.8, 0.8, 0.6), (0.7, 0.8501)),
    )
    given = {
        "suite": "imagenet-c",
        "split": "test",
        "n": 1200,
        "seed": 0,
        "figure": figure,
        "higher_is_better": True,
        "clean": 0.95,
        "clean_interval": (0.94, 0.96),
        "mean": 0.55,
        "disturbances": tuple(
            CorruptionResult(kind=kind, by_severity=row, mean=sum(row) / 5, mean_interval=span)
            for kind, row, span in rows
        ),
    }
    return RobustnessReport(**(given | fields))


def test_the_table_shows_every_severity_and_what_is_lost():
    lines = stood().table().splitlines()
    assert lines[0] == (
        "Accuracy on 1,200 pictures (test): 95.00 % (94.00 to 96.00 %); disturbed in 2 ways of 5 severities 55.00 % in "
        "the mean; worst: snow (30.00 %), jpeg compression (80.00 %)."
    )
    assert lines[2].split("  ")[0] == "severity" and lines[2].endswith("mean     95 % interval    change")
    assert lines[3].split("  ")[0] == "snow" and lines[3].endswith("30.00 %  25.00 to 35.00 %  -65.00 %")
    assert {len(line) for line in lines[2:]} == {len(lines[2])}
    assert stood("mean AUROC").table().splitlines()[4].split()[-5:] == ["0.8000", "0.7000", "to", "0.8501", "-0.1500"]
    shown = stood("mean absolute error", split="", clean_interval=None).headline()
    assert shown.startswith("Mean absolute error on 1,200 pictures: 0.95;")


def test_json_is_read_back():
    found = stood()
    assert config.read(RobustnessReport, found.to_json(), "here") == found


def test_other_suites_no_pictures_and_answers_that_are_no_numbers_are_refused():
    with pytest.raises(UsageError, match=r"must be imagenet-c or films\. Got 'films-c'\."):
        corruption_kinds("films-c")
    with pytest.raises(UsageError, match=r"at least one picture\. Got none\."):
        measure_robustness(means, brightness, pictures(0), np.arange(0), "films")
    with pytest.raises(DataError, match=r"3 of 3 answers are NaN or infinite"):
        measure_robustness(
            lambda shown: np.full((len(shown), 1), np.nan), brightness, pictures(3), np.arange(3), "films"
        )


@pytest.fixture(scope="module")
def digits():
    """A logistic regression on half of the digits, and 100 of the others."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    pictures, targets = load_digits(return_X_y=True)
    images = np.rint(pictures * 255 / 16).astype(np.uint8)
    model = LogisticRegression(C=0.05, max_iter=500).fit(images[:900] / 255, targets[:900])

    def answering(shown: Tensor) -> np.ndarray:
        return model.predict_proba(shown.numpy().reshape(len(shown), 64) / 255)

    def answers(found: np.ndarray) -> ClassificationPredictions:
        names = tuple("0123456789")
        return ClassificationPredictions(**named(100), targets=targets[900:1000], probabilities=found, classes=names)

    return answering, answers, torch.from_numpy(images[900:1000].reshape(-1, 1, 8, 8))


@pytest.mark.wide
@pytest.mark.parametrize("suite", CORRUPTION_SUITES)
def test_V8_accuracy_falls_with_severity(digits, suite):
    found = measure_robustness(*digits, np.arange(100), suite)
    by_severity = np.mean([one.by_severity for one in found.disturbances], axis=0)
    assert found.clean > 0.85 and (np.diff([found.clean, *by_severity]) < 0.002).all()
    assert by_severity[-1] < found.clean - 0.05
    noise = {one.kind: one.by_severity for one in found.disturbances if "noise" in one.kind}
    assert all(row[0] > row[-1] for row in noise.values())
