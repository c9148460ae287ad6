"""One picture by all methods: which are there, what stands where there is no map, and the files."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from vitrail.errors import UsageError
from vitrail.explain.methods import METHODS
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.predict.predictor import Predictor, PredictorMember
from vitrail.services.explanation import (
    Explainer,
    ExplainRequest,
    MethodComparison,
    explain_by_all_methods,
    explain_images,
)
from vitrail.spec import ImageSpec

SPEC = ImageSpec(height=16, width=24)
PICTURE = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)


def explainer_of(outputs: int = 2) -> Explainer:
    shape = dataclasses.replace(
        config_from_name("vit_mu_patch8_16"), image_size=(16, 24), outputs=outputs, init="torch"
    )
    model, classes = create_model(shape, seed=2).eval(), ("cat", "dog")[:outputs]
    predictor = Predictor([PredictorMember(model=model, spec=SPEC, classes=classes)]) if classes else None
    return Explainer(
        model_name="M", model=model, spec=SPEC, classes=classes, task="classification", device=torch.device("cpu"),
        predictor=predictor,
    )  # fmt: skip


@pytest.fixture(scope="module")
def page() -> MethodComparison:
    """Of two classes, nothing named."""
    (found,) = explain_by_all_methods(explainer_of(), [PICTURE], ExplainRequest())
    assert isinstance(found, MethodComparison)
    return found


def test_every_method_is_there_with_the_map_that_it_has_alone(tmp_path):
    explainer = explainer_of()
    (page,) = explain_by_all_methods(explainer, [PICTURE], ExplainRequest(target="dog", patch=4))
    assert set(page.by_method) == set(METHODS)
    for method, one in page.by_method.items():
        asked = ExplainRequest(
            method=method,
            target="dog" if METHODS[method].class_specific else None,
            patch=4 * (method == "similarity") or None,
        )
        (alone,) = explain_images(explainer, [PICTURE], asked)
        np.testing.assert_array_equal(one.heatmap.values, alone.heatmap.values)
    path = page.save(tmp_path, "a")
    with np.load(tmp_path / "a.all.npz") as arrays:
        assert set(arrays) == {*METHODS, "artefacts"}
    facts = json.loads((tmp_path / "a.all.json").read_text())
    assert set(facts["methods"]) == set(METHODS) and facts["methods"]["lens"]["class"] == "dog"
    with Image.open(path) as drawn:
        assert drawn.text["Description"].startswith(page.title) and "integrated: " in drawn.text["Description"]


def test_the_page_has_the_picture_and_every_map_with_its_name(page):
    figure = page.figure()
    assert len(figure.axes) == 1 + len(METHODS)
    said = [text.get_text() for text in figure.texts]
    assert all(method in said for method in ("what the model sees", *METHODS))
    renderer = FigureCanvasAgg(figure).get_renderer()
    for text in figure.texts:
        box = text.get_window_extent(renderer)
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height


def test_similarity_is_to_the_patch_that_the_default_method_marks_most(page):
    patch = page.default_explanation.heatmap.values[0].argmax() + 1
    assert f"to patch {patch} " in page.by_method["similarity"].heatmap.description
    assert page.by_method["similarity"].heatmap.values[0].flat[patch - 1] == pytest.approx(1)


def test_where_a_map_says_nothing_its_reason_stands():
    explainer = explainer_of()
    with torch.no_grad():  # blind: every patch is the bias and its position
        explainer.model.tokens.patches.weight.zero_()
    (page,) = explain_by_all_methods(explainer, [PICTURE], ExplainRequest(target="cat"))
    assert "zero everywhere: no pixel changes this score" in page.by_method["integrated"]
    assert len(page.figure().axes) == 1 + len(METHODS)


def test_features_have_the_methods_that_need_no_answer():
    (page,) = explain_by_all_methods(explainer_of(outputs=0), [PICTURE], ExplainRequest())
    assert set(page.by_method) == {"attention", "rollout", "similarity"} and page.title == "Attention"


def test_options_of_single_methods_are_refused():
    with pytest.raises(
        UsageError, match=r"^With all methods only a class and a patch can be named\. Got layer, steps\.$"
    ):
        list(explain_by_all_methods(explainer_of(), [PICTURE], ExplainRequest(layer=1, steps=3)))
