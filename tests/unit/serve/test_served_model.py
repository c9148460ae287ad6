"""The model behind the server: its answers, what it says of itself, and when it is not to be trusted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from exportable import BOTH, member, pictures
from vitrail.data.parallel import ImageName
from vitrail.errors import DamagedFileError, UsageError
from vitrail.evaluate.score_log import read_score_log
from vitrail.evaluate.tta import TtaViews
from vitrail.explain.faithfulness.map_choice import MapChoice
from vitrail.explain.methods import METHODS, default_method
from vitrail.predict.predictor import Predictor
from vitrail.serve.http_errors import HttpError
from vitrail.serve.limits import ServerLimits
from vitrail.serve.protocols import METHOD_DESCRIPTIONS, describe_model, explain_prepared_image, list_methods
from vitrail.serve.served_model import ServedModel
from vitrail.services.explanation import ExplainRequest, explain_with_predictor

NAMES = [ImageName(f"{n}.png", f"{n}") for n in range(5)]
SQUARE = (8.0, 8.0)
"""Rows and columns of a picture's own that are seen."""


def opened(*args: object, broken=lambda: None, **changes: object) -> ServedModel:
    return ServedModel(Predictor([member(*args, **changes)]), "tiny", "MIT", broken)


def images_of(found: ServedModel, count: int = 5) -> torch.Tensor:
    return torch.from_numpy(pictures(found.spec, count)).permute(0, 3, 1, 2).contiguous()


@pytest.mark.parametrize(
    ("task", "decided"),
    [
        ("classification", "unsure"),
        ("classification", "unlike"),
        ("classification", "positive"),
        ("multilabel", "labels"),
        ("regression", "nothing"),
    ],
)
def test_rows_are_those_of_the_predictor_and_outputs_those_of_exported_files(task, decided):
    found = opened(task=task, decided=decided)
    answered = found.predict_batch(NAMES, images_of(found))
    plain = found.predictor.predict(list(pictures(found.spec, 5)))
    for row, other in zip(answered.rows, plain.records(), strict=True):
        assert row.keys() == other.keys() and row["label" if task != "regression" else "abstain"] == other.get(
            "label", other["abstain"]
        )
    assert [row["path"] for row in answered.rows] == [name.path for name in NAMES]
    facts = describe_model("tiny", found.predictor.task, len(found.predictor.classes), True, found.spec)
    assert [one["name"] for one in facts["outputs"]] == list(answered.outputs)
    for one in facts["outputs"]:
        values = answered.outputs[one["name"]]
        assert (5, *values.shape[1:]) == (5, *one["shape"][1:]) and values.dtype.kind == {"FP32": "f", "INT64": "i"}[
            one["datatype"]
        ]
    assert (
        answered.slice_rows(1, 3).rows == answered.rows[1:3]
        and len(answered.slice_rows(1, 3).outputs["abstained"]) == 2
    )


def test_several_models_answer_without_logits_and_are_not_looked_into():
    found = ServedModel(Predictor([member(), member()]), "two")
    assert "logits" not in found.predict_batch(NAMES, images_of(found)).outputs
    assert found.explainer is None and found.describe(ServerLimits(), False)["methods"] == []
    facts = describe_model("two", "classification", 3, False, found.spec)
    assert "logits" not in [one["name"] for one in facts["outputs"]]


def test_e20_numbers_that_are_not_finite_break_the_model_for_good():
    """E20."""
    told = []
    found = opened(broken=lambda: told.append(True))
    next(iter(found.predictor.members[0].model.parameters())).data.fill_(float("nan"))
    with pytest.raises(HttpError, match="produced NaN") as refused:
        found.predict_batch(NAMES, images_of(found))
    assert refused.value.status == 503 and told == [True]
    with pytest.raises(HttpError, match="produced NaN"):
        found.embed_image(images_of(found)[0])
    with pytest.raises(DamagedFileError, match=r"produced NaN.*Serve another copy"):
        found.warm_up()


def test_e11_a_picture_must_get_the_same_scores_alone_and_among_others(monkeypatch):
    """E11."""
    found = opened()
    found.warm_up()
    true = found.predictor.predict_prepared

    def leaning(names, images):
        return true(names, images + len(images))

    monkeypatch.setattr(found.predictor, "predict_prepared", leaning)
    with pytest.raises(DamagedFileError, match="other scores alone than among others"):
        found.warm_up()


class Disturbed(torch.nn.Module):
    """A model whose outputs are moved: in a fast number format by `fast` times the batch, else by `exact` times it."""

    def __init__(self, inner: torch.nn.Module, exact: float, fast: float):
        super().__init__()
        self.inner, self.exact, self.fast = inner, exact, fast

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        moved = self.fast if torch.is_autocast_enabled(images.device.type) else self.exact
        return self.inner(images) + moved * len(images) * torch.arange(3)


def disturbed(exact: float, fast: float, precision: str = "bfloat16") -> ServedModel:
    plain = member()
    settings = dataclasses.replace(plain.settings, precision=precision)
    moved = dataclasses.replace(plain, model=Disturbed(plain.model, exact, fast), settings=settings)
    return ServedModel(Predictor([moved]), "tiny")


@pytest.mark.parametrize("rounding", [0.0, 0.002, 0.01, -0.03])
def test_rounding_of_a_fast_number_format_that_depends_on_the_batch_refuses_no_healthy_model(rounding):
    """F3: the scores differ by more than the tolerance of float32, alone and among others."""
    found = disturbed(0.0, rounding)
    found.warm_up()
    together, alone = (found.predictor.predict_prepared(NAMES[:n], images_of(found, 4)[:n])[1][0] for n in (4, 1))
    assert rounding == 0 or np.abs(together[0] - alone[0]).max() > 1e-4


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_that_depends_on_the_batch_is_refused_in_every_number_format(precision):
    with pytest.raises(DamagedFileError, match="other scores alone than among others"):
        disturbed(0.002, 0.002, precision).warm_up()


def test_a_fast_number_format_that_gives_other_outputs_is_refused():
    with pytest.raises(DamagedFileError, match=r"In bfloat16 the model gives other outputs than in float32, .* allows"):
        disturbed(0.0, 1.0).warm_up()


def test_about_says_what_was_decided():
    found = opened(decided="unlike").describe(ServerLimits(max_body_bytes=1000, max_total_body_bytes=2000), True)
    assert found["classes"] == ["cat", "dog", "fish"] and found["columns"] == [] and found["task"] == "classification"
    assert (found["abstains_below"], found["unlike"], found["calibrated"], found["token"]) == (0.36, True, False, True)
    assert found["limits"]["bytes"] == 1000 and found["licence"] == "MIT" and found["methods"][0]["name"] == "relevance"
    assert len(found["palette"]) == 256 and all(len(colour) == 7 and colour[0] == "#" for colour in found["palette"])
    labels = opened(task="multilabel", decided="labels").describe(ServerLimits(), False)
    assert labels["thresholds"] == {"cat": 0.45, "dog": 0.5, "fish": 0.55} and labels["calibrated"]
    assert opened(decided="positive").describe(ServerLimits(), False)["thresholds"] == {"dog": 0.52}
    number = opened(task="regression").describe(ServerLimits(), False)
    assert number["columns"] == ["cat", "dog", "fish"] and number["classes"] == [] and number["thresholds"] == {}


def test_every_method_is_offered_but_the_one_that_needs_a_patch():
    of_banks = {"distances"}  # of anomaly models, which have no other
    whole = {name for name, method in METHODS.items() if "patch" not in method.option_names}
    assert set(METHOD_DESCRIPTIONS) == whole | of_banks
    mean = opened("mean, indexed").explainer
    assert mean is not None
    shown = [each["name"] for each in list_methods(mean.model.config, mean.default_method)]
    assert shown[0] == "relevance" and set(shown) == whole
    checked = dataclasses.replace(mean, map_choice=MapChoice(method="integrated", pictures=32))
    assert list_methods(mean.model.config, checked.default_method)[0]["name"] == "integrated"
    withheld = dataclasses.replace(mean, map_choice=MapChoice(method="", pictures=32))
    assert withheld.default_method == "relevance"
    probe = dataclasses.replace(mean.model.config, pool="attention")
    assert default_method(probe) == "relevance"


@pytest.mark.parametrize("method", ["relevance", "attention", "integrated"])
def test_explanations_are_those_of_the_command(method):
    found = opened(views=TtaViews())
    picture = pictures(found.spec, 1)[0]
    prepared = torch.from_numpy(picture).permute(2, 0, 1)
    told = explain_prepared_image(found.explainer, prepared, (40, 100), method, None)
    (other,) = explain_with_predictor(found.predictor, "tiny", picture, ExplainRequest(method=method))
    np.testing.assert_allclose(told["values"], other.heatmap.values[0], rtol=1e-4, atol=1e-6)
    assert (told["title"], told["target"]) == (other.title, other.target or None)
    assert told["rows"] * told["columns"] == other.heatmap.values[0].size and told["picture"].startswith(
        "data:image/png"
    )
    assert (told["height"], told["width"]) == found.spec.size and told["low"] <= told["high"]
    assert told["aspect"] == 2.5 and told["unit"] == other.heatmap.unit


def test_an_explanation_is_asked_of_a_class_by_its_name():
    found = opened(views=BOTH)
    image = images_of(found, 1)[0]
    assert explain_prepared_image(found.explainer, image, SQUARE, None, "fish")["target"] == "fish"
    with pytest.raises(UsageError, match="no output 'bird'"):
        explain_prepared_image(found.explainer, image, SQUARE, None, "bird")
    with pytest.raises(UsageError, match="There is no method"):
        explain_prepared_image(found.explainer, image, SQUARE, "guess", None)


def test_pictures_of_another_range_are_not_scaled_twice():
    own = member()
    spec = dataclasses.replace(own.spec, low=0, high=100, crop_fraction=0.5)
    found = ServedModel(Predictor([dataclasses.replace(own, spec=spec)]), "tiny")
    picture = pictures(spec, 1)[0]
    told = explain_prepared_image(
        found.explainer, torch.from_numpy(picture).permute(2, 0, 1), SQUARE, "attention", None
    )
    other = explain_prepared_image(
        opened().explainer, torch.from_numpy(picture).permute(2, 0, 1), SQUARE, "attention", None
    )
    np.testing.assert_allclose(told["values"], other["values"], rtol=1e-5)


def test_the_score_log_has_a_line_for_each_answer_and_none_of_trials(tmp_path, caplog):
    found = opened(decided="unlike")
    found.score_log = tmp_path / "scores.jsonl"
    answered = found.predict_batch(NAMES, images_of(found))
    found.predict_batch(NAMES[:2], images_of(found, 2))
    rows = read_score_log(found.score_log)
    assert [row["image"] for row in rows] == [name.id for name in (*NAMES, *NAMES[:2])]
    for row, answer in zip(rows, answered.rows, strict=False):
        assert row["scores"] == {name: answer[f"prob_{name}"] for name in found.predictor.classes}
        assert (row["abstain"] or "no") == answer["abstain"] and row["unlike"] > 0
    found.score_log = tmp_path  # a folder cannot be written as a file
    assert len(found.predict_batch(NAMES, images_of(found)).rows) == len(NAMES)
    assert "5 answers are missing in the score log" in caplog.text
