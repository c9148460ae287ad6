"""One figure for every kind and severity: put together right, and falling where disturbance grows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from vitrail import config
from vitrail.errors import UsageError
from vitrail.evaluate.corrupting.corrupt import SUITES, corrupt
from vitrail.evaluate.robustness import Disturbance, Robustness, kinds_of, measure
from vitrail.evaluate.yardstick import Yardstick

BRIGHTNESS = Yardstick(name="mean AUROC", higher_is_better=True, of=lambda outputs: float(outputs.mean()))


def means(images: Tensor) -> np.ndarray:
    return images.float().mean((1, 2, 3), keepdim=False)[:, None].numpy() / 255


def pictures(n: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (n, 1, 8, 8), dtype=np.uint8))


def test_every_figure_is_that_of_its_kind_and_severity_over_all_pictures():
    images, indices = pictures(70), np.arange(100, 170)  # more than one batch
    found = measure(means, BRIGHTNESS, images, indices, "films", "test", seed=4)
    assert (found.n, found.split, found.seed, found.suite) == (70, "test", 4, "films")
    assert tuple(one.kind for one in found.disturbances) == tuple(SUITES["films"])
    for one in found.disturbances:
        expected = [means(corrupt(images, one.kind, severity, 4, indices)).mean() for severity in range(1, 6)]
        assert one.by_severity == pytest.approx(expected) and one.mean == pytest.approx(np.mean(expected))
    assert found.clean == pytest.approx(means(images).mean())
    assert found.mean == pytest.approx(np.mean([one.mean for one in found.disturbances]))
    assert found.worst[0].kind == "underexposure"
    assert replace(found, higher_is_better=False).worst[0].kind == "overexposure"


def test_progress_is_told_how_many_figures_there_are_over_how_many_pictures():
    asked, passed = [], []

    def counted(figures, lots, size):
        asked.append((lots, size))
        for figure in figures:
            passed.append(figure)
            yield figure

    found = measure(means, BRIGHTNESS, pictures(2), np.arange(2), "imagenet-c", counted=counted)
    assert asked == [(75, 2)] and len(passed) == 75 and len(found.disturbances) == 15


def stood(figure: str = "accuracy", **fields: object) -> Robustness:
    rows = (("snow", (0.5, 0.4, 0.3, 0.2, 0.1)), ("jpeg_compression", (0.9, 0.9, 0.8, 0.8, 0.6)))
    given = {
        "suite": "imagenet-c", "split": "test", "n": 1200, "seed": 0, "figure": figure, "higher_is_better": True,
        "clean": 0.95, "mean": 0.55,
        "disturbances": tuple(
            Disturbance(kind=kind, by_severity=row, mean=sum(row) / 5) for kind, row in rows
        ),
    }  # fmt: skip
    return Robustness(**(given | fields))


def test_the_table_shows_every_severity_and_what_is_lost():
    lines = stood().table().splitlines()
    assert lines[0] == (
        "Accuracy on 1,200 pictures (test): 95.00 %; disturbed in 2 ways of 5 severities 55.00 % in the mean; "
        "worst: snow (30.00 %), jpeg compression (80.00 %)."
    )
    assert lines[2].split() == ["severity", "1", "2", "3", "4", "5", "mean", "change"]
    assert lines[3].split("  ")[0] == "snow" and lines[3].endswith("30.00 %  -65.00 %")
    assert {len(line) for line in lines[2:]} == {len(lines[2])}
    assert stood("mean AUROC").table().splitlines()[4].split()[-3:] == ["0.6000", "0.8000", "-0.1500"]
    assert stood("mean absolute error", split="").headline().startswith("Mean absolute error on 1,200 pictures: 0.95;")


def test_json_is_read_back():
    found = stood()
    assert config.read(Robustness, found.to_json(), "here") == found


def test_other_suites_and_no_pictures_are_refused():
    with pytest.raises(UsageError, match=r"must be imagenet-c or films\. Got 'films-c'\."):
        kinds_of("films-c")
    with pytest.raises(UsageError, match=r"at least one picture\. Got none\."):
        measure(means, BRIGHTNESS, pictures(0), np.arange(0), "films")


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

    accuracy = Yardstick(
        name="accuracy", higher_is_better=True, of=lambda found: float((found.argmax(1) == targets[900:1000]).mean())
    )
    return answering, accuracy, torch.from_numpy(images[900:1000].reshape(-1, 1, 8, 8))


@pytest.mark.parametrize("suite", SUITES)
def test_accuracy_falls_with_severity(digits, suite):
    found = measure(*digits, np.arange(100), suite)
    by_severity = np.mean([one.by_severity for one in found.disturbances], axis=0)
    assert found.clean > 0.85 and (np.diff([found.clean, *by_severity]) < 0.002).all()
    assert by_severity[-1] < found.clean - 0.05
    noise = {one.kind: one.by_severity for one in found.disturbances if "noise" in one.kind}
    assert all(row[0] > row[-1] for row in noise.values())
