"""Prepared pictures are disturbed, not files; the same ones every time, as many as are asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unit.services.test_evaluation import CLASSES, NAMES, PICTURES, every, opened, predictor, source
from vitrail.data.preprocess import preprocess_image
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.robustness import CORRUPTION_SUITES, corrupt_images
from vitrail.predict.predictor import Predictor
from vitrail.services.diagnostics import evaluate_corruptions
from vitrail.services.evaluation import LabelledImages

__all__ = ["predictor"]  # the fixture


@pytest.fixture(autouse=True)
def few_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kinds are as good as eleven here."""
    monkeypatch.setitem(
        CORRUPTION_SUITES, "films", {kind: CORRUPTION_SUITES["films"][kind] for kind in ("sensor_noise", "gamma")}
    )


def test_every_picture_is_answered_as_the_model_reads_it(predictor):
    labelled = LabelledImages(source(CLASSES, NAMES), np.array([2, 3, 7, 11]), "test")
    found = evaluate_corruptions(predictor, labelled, "films").robustness
    images = torch.stack([preprocess_image(PICTURES[row], predictor.spec) for row in labelled.rows])
    targets = [CLASSES.index(NAMES[row]) for row in labelled.rows]

    def right(shown: torch.Tensor) -> float:
        return float((predictor.logits(shown).argmax(1) == targets).mean())

    assert (found.n, found.split, found.figure, found.clean) == (4, "test", "accuracy", right(images))
    for one in found.disturbances:
        again = [right(corrupt_images(images, one.kind, severity, 0, labelled.rows)) for severity in range(1, 6)]
        assert one.by_severity == tuple(again)


def test_no_more_are_disturbed_than_asked_for_and_always_the_same(predictor):
    labelled = every(source(CLASSES, NAMES))
    first, again = (evaluate_corruptions(predictor, labelled, "films", max_images=5).robustness for _ in range(2))
    assert first == again and first.n == 5
    assert evaluate_corruptions(predictor, labelled, "films").robustness.n == 12


def test_numbers_are_compared_in_their_own_unit(tmp_path):
    scale = {"mean": [1.0, 2.0, 30.0], "deviation": [1.0, 1.0, 4.0]}
    numbers = opened(tmp_path / "model", "regression", ("cat", "dog", "emu"), scaling=scale)
    targets = np.arange(12, dtype=np.float32)[:, None]
    found = evaluate_corruptions(
        numbers, every(source(("emu",), ["emu"] * 12, task="regression", targets=targets)), "films"
    )
    values = numbers.predict(list(PICTURES)).values[:, 2]
    expected = np.abs(values - np.arange(12)).mean() / np.arange(12).std()  # the other columns are not known
    assert found.robustness.clean == pytest.approx(expected, rel=1e-4)
    assert not found.robustness.higher_is_better


def test_what_cannot_be_read_is_refused_or_left_out(predictor):
    pictures = (PICTURES[0], np.full((4, 4, 3), np.nan), PICTURES[2])
    labelled = every(source(CLASSES, ["cat", "dog", "emu"], images=pictures))
    with pytest.raises(DataError, match=r"leave such pictures out with --skip-bad\."):
        evaluate_corruptions(predictor, labelled, "films")
    found = evaluate_corruptions(predictor, labelled, "films", skip_bad=True)
    assert found.robustness.n == 2 and [name for name, _ in found.skipped] == ["1.png"]
    with pytest.raises(DataError, match=r"None of 1 picture of zoo can be read"):
        evaluate_corruptions(predictor, LabelledImages(labelled.source, np.array([1]), "all"), "films", skip_bad=True)


def test_other_suites_other_sources_and_no_pictures_are_refused(predictor):
    labelled = every(source(CLASSES, NAMES))
    with pytest.raises(UsageError, match=r"must be imagenet-c or films\. Got 'weather'\."):
        evaluate_corruptions(predictor, labelled, "weather")
    with pytest.raises(UsageError, match=r"At least 1 picture must be disturbed\. Got 0\."):
        evaluate_corruptions(predictor, labelled, "films", max_images=0)
    with pytest.raises(DataError, match=r"classes that the model does not know: 'fox'"):
        evaluate_corruptions(predictor, every(source(("fox",), ["fox"])), "films")


def test_an_ensemble_is_asked_to_name_one_of_its_models(predictor):
    several = Predictor([predictor.single_member(), predictor.single_member()])
    with pytest.raises(UsageError, match=r"ensemble of 2 models.*MODEL/member-0"):
        evaluate_corruptions(several, every(source(CLASSES, NAMES)), "films")
