"""A training in bfloat16 is evaluated in float32, and both are compared once on validation pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import vitrail
from quick_fits import LEARNING, digits
from vitrail import ViTClassifier
from vitrail.evaluate.precision import PRECISION_KEY, read_comparison
from vitrail.evaluate.predictions import read_predictions_csv
from vitrail.report import provenance


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    threads = torch.get_num_threads()
    X, y = digits(300, 4)
    settings = {**LEARNING["settings"], "compute.precision": "bfloat16", "data.val_fraction": 0.3}
    words = {**LEARNING, "steps": 30, "settings": settings, "out": tmp_path_factory.mktemp("fit") / "run"}
    found = ViTClassifier(**words).fit(X, y)
    torch.set_num_threads(threads)
    return found, X


def test_stored_predictions_are_those_that_every_interface_gives(fitted):
    found, X = fitted
    stored = read_predictions_csv(found.run_.path / "predictions" / "val.csv", "classification")
    images = [X[int(name)] for name in stored.ids]
    np.testing.assert_allclose(found.run_.predict(images).probabilities, stored.probabilities, atol=1e-6)


def test_bundle_report_and_card_say_what_the_fast_number_format_changes(fitted):
    run = fitted[0].run_.path
    info = json.loads((run / "model" / "config.json").read_text())["info"]
    compared = read_comparison(info, "")
    assert info[PRECISION_KEY] == "float32" and compared is not None
    assert compared.precision == "bfloat16" and compared.num_images == 90 and compared.speedup > 0
    assert 1e-5 < compared.difference < 0.1 and compared.difference_99 <= compared.difference
    assert provenance.read_facts(run).fast_precision == compared
    for page in ("report.html", "model/README.md"):
        assert f"{compared}." in (run / page).read_text(encoding="utf-8"), page
    fast = vitrail.open(run, precision="bf16")
    assert str(compared) in fast.predictor.precision_notes[0]


def test_the_comparison_is_that_of_the_validation_pictures_in_both_number_formats(fitted):
    found, X = fitted
    stored = read_predictions_csv(found.run_.path / "predictions" / "val.csv", "classification")
    fast = found.run_.with_precision("bf16").predict([X[int(name)] for name in stored.ids])
    compared = provenance.read_facts(found.run_.path).fast_precision
    assert compared is not None
    assert np.abs(fast.probabilities - stored.probabilities).max() == pytest.approx(compared.difference, rel=0.3)
    assert abs(int((fast.indices != stored.indices).sum()) - compared.changed_decisions) <= 1


def test_an_estimator_answers_in_the_number_format_that_it_is_set_to(fitted):
    found, X = fitted
    exact = found.predict_proba(X[:40])
    fast = found.set_params(precision="bf16").predict_proba(X[:40])
    again = found.set_params(precision="float32").predict_proba(X[:40])
    assert 0 < np.abs(fast - exact).max() < 0.1
    np.testing.assert_array_equal(again, exact)


def test_what_a_run_reopens_keeps_its_number_format(fitted):
    run = vitrail.open(fitted[0].run_.path, precision="bfloat16")
    assert run.precision == "bfloat16" and run.with_precision("bf16") is run
    assert run.with_precision("float32").predictor.settings.precision == "float32"
