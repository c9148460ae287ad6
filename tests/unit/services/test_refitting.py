"""The learning curve of a run on frozen features, and runs that have none."""

from __future__ import annotations

import json

import numpy as np
import pytest

import vitrail
from stored_runs import store_run
from vitrail.checkpoints.save import save_model
from vitrail.cli.main import main
from vitrail.errors import DataError, UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.report.extra_findings import read_extra_findings
from vitrail.run import Run
from vitrail.services.refitting import (
    LabelledFeatures,
    fit_contributions,
    fit_learning_curve,
    measure_learning_curve,
)
from vitrail.spec import ImageSpec

SHAPE = ViTConfig(image_size=(8, 8), channels=1, patch=(4, 4), width=16, depth=1, heads=2, mlp_width=32, outputs=5)


def drawn_features(n: int, seed: int, labels: int = 0) -> LabelledFeatures:
    """Two classes, or labels, whose features overlap."""
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, 2, (n, max(labels, 1)))
    features = generator.normal(size=(n, 12)).astype(np.float32)
    features[:, : max(labels, 1)] += 1.2 * targets
    if labels:
        return LabelledFeatures(features, np.where(generator.random(targets.shape) < 0.1, np.nan, targets).astype("f4"))
    return LabelledFeatures(features, targets[:, 0])


@pytest.mark.parametrize(
    ("task", "labels"), [("classification", 0), pytest.param("multilabel", 2, marks=pytest.mark.wide)]
)
def test_the_curve_rises_and_the_forecast_is_near_what_twice_the_images_bring(task, labels):
    sets = [drawn_features(n, seed, labels) for seed, n in enumerate((80, 60, 1500))]
    forecast = fit_learning_curve(*sets, task, max(labels, 2), seed=0)
    assert forecast.values[0] < forecast.values[1] < forecast.values[2]
    twice = fit_contributions(drawn_features(160, 0, labels), *sets[1:], task, max(labels, 2), seed=0).mean()
    low, high = forecast.interval
    assert low <= twice - forecast.values[2] <= high and 0 < forecast.gain < high


def test_an_area_is_not_drawn_of_labels_that_hardly_any_picture_has():
    train, valid, held_out = (drawn_features(n, n, 1) for n in (60, 40, 40))
    held_out.targets[:] = 0
    held_out.targets[:5] = 1
    with pytest.raises(DataError, match=r"takes 10 held-out pictures with a label"):
        fit_learning_curve(train, valid, held_out, "multilabel", 1, seed=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curve")
    save_model(folder / "theirs", create_model(SHAPE, 3), ImageSpec(height=8, width=8, channels=1), (), "timm")
    generator = np.random.default_rng(0)
    targets = np.arange(120) % 2
    images = (60 * generator.random((120, 8, 8)) + 120 * targets[:, None, None] * (np.arange(8) < 4)).astype(np.uint8)
    np.savez(folder / "pictures.npz", images=images, labels=targets)
    settings = {"finetune.method": "probe", "compute.threads": 1}
    vitrail.fit(folder / "pictures.npz", weights=folder / "theirs", device="cpu", out=folder / "run", settings=settings)
    return folder / "run"


@pytest.mark.wide
def test_the_command_and_python_tell_the_same_curve(run, capsys):
    curve = Run(run).learning_curve()
    assert curve.figure == "accuracy" and curve.split == "test" and curve.images[2] + curve.held_out < 120
    assert curve.images[1] == pytest.approx(curve.images[2] / 2, abs=1) and len(curve.values) == 3
    assert main(["evaluate", str(run), "--plan-test", "doubling", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gain"] == curve.gain
    assert main(["evaluate", str(run), "--plan-test", "doubling"]) == 0
    assert f"{2 * curve.images[2]:,}" in capsys.readouterr().out.splitlines()[-1]
    assert main(["evaluate", str(run), "--plan-test", "doubling", "--keep"]) == 0
    assert f"Kept in {run / 'learning-curve.json'}" in capsys.readouterr().err
    assert read_extra_findings(run).learning_curve == curve


def test_wrong_questions_are_refused(run, capsys, tmp_path):
    assert main(["evaluate", str(run), "--plan-test", "doubling", "--positive", "1"]) == 2
    assert "Leave out the other flags" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--plan-test", "accuracy=0.9±0.05", "--keep"]) == 2
    assert "--keep is for --plan-test doubling" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"has learnt its own .* --finetune\.method probe"):
        measure_learning_curve(store_run(tmp_path / "tuned", n=60), Run(run).predictor)
