"""Maps that a training makes of its held-out pictures: those of explain, within their time, reasons where none is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from kinds import TINY, images_for
from unit.evaluate.test_regression_predictions import table
from vitrail.data.preprocess import normalize
from vitrail.evaluate.predictions import ClassificationPredictions
from vitrail.explain.faithfulness.map_choice import MapChoice
from vitrail.explain.methods import explain_images
from vitrail.model.vit import create_model
from vitrail.report import saliency
from vitrail.spec import ImageSpec
from vitrail.train import held_out
from vitrail.train.held_out import MapInput

SPEC = ImageSpec(height=12, width=8, channels=2, mean=(0.4, 0.5), std=(0.2, 0.3))
PICTURES = (images_for(TINY, 24) * 40 + 128).clamp(0, 255).to(torch.uint8)
WRONG = np.arange(24) % 2 == 0
CHOICE = MapChoice(method="relevance", pictures=0, reason="it is chosen by hand")


def answers() -> ClassificationPredictions:
    """Every other picture is answered wrongly."""
    labels = np.arange(24) % 3
    return ClassificationPredictions(
        paths=tuple(f"{i}.png" for i in range(24)),
        ids=tuple(map(str, range(24))),
        split="test",
        targets=np.where(WRONG, (labels + 1) % 3, labels),
        probabilities=np.eye(3, dtype=np.float32)[labels] * 0.6 + 0.1,
        classes=("a", "b", "c"),
    )


def kept(folder, model, seconds=1e9, views=1, pictures=PICTURES, choice=CHOICE):
    """What is stored of all pictures, and how many were asked for."""
    asked = []

    def shown(row: int) -> MapInput:
        asked.append(row)
        return MapInput(model, SPEC, pictures[row])

    held_out.write_explanations(folder, answers(), np.arange(24), shown, seconds, choice, views)
    return saliency.load_explanations(folder), asked


@pytest.mark.parametrize("changes", [{}, {"class_token": False, "pool": "mean"}])
def test_the_maps_are_those_of_explain_alone(changes, tmp_path):
    model = create_model(dataclasses.replace(TINY, **changes), seed=1)
    found, asked = kept(tmp_path, model, views=2)
    assert len(found.rows) + len(found.about.nothing) == len(asked) == 12
    for row, of, values in zip(found.rows.tolist(), found.targets.tolist(), found.values, strict=True):
        wanted = explain_images(model, normalize(PICTURES[row][None], SPEC), targets=of)
        np.testing.assert_array_equal(values, wanted.values[0])
        assert of == row % 3 and found.about.method == wanted.method
        assert (found.about.line, found.about.layer, found.about.scale) == (
            wanted.description,
            wanted.layer,
            wanted.scale,
        )
    assert found.about.patch == (4, 2) and "mean over 2 views" in found.about.remarks[0]


def test_a_model_in_training_stays_as_it_was(tmp_path):
    model = create_model(TINY, seed=1).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kept(tmp_path, model)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_maps_stop_when_their_time_is_over_but_one_there_is(tmp_path, monkeypatch):
    clock = iter(range(0, 10_000, 4))
    monkeypatch.setattr(held_out.time, "perf_counter", lambda: float(next(clock)))
    found, _ = kept(tmp_path, create_model(TINY, seed=1), seconds=400.0)  # 12 seconds for maps that take 4 each
    assert len(found.rows) + len(found.about.nothing) == 4
    assert {bool(WRONG[row]) for row in found.rows.tolist()} == {True, False}


def test_maps_that_say_nothing_are_left_out_with_their_reason(tmp_path):
    model = create_model(TINY, seed=1)
    torch.nn.init.zeros_(model.head.linear.weight)
    found, asked = kept(tmp_path, model)
    assert found.values.shape == (0, 3, 4) and len(found.about.nothing) == len(asked) == 12
    assert found.about.nothing[0].startswith(
        f"{asked[0]}.png: The map by relevance of picture 1 of 1 is zero everywhere"
    )


def test_without_pictures_there_is_no_file(tmp_path):
    none = np.zeros(0, np.int64)
    held_out.write_explanations(
        tmp_path, table(np.zeros((3, 1)), np.zeros((3, 1)), ("age",)), none, lambda row: None, 1.0, CHOICE
    )
    assert not (tmp_path / saliency.EXPLANATIONS_FILE).exists()
