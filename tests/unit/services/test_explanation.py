"""From a model and pictures to explained pictures: which output, with which probability, in which files."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.checkpoints import bundle_weights
from vitrail.data.preprocess import normalize, preprocess_image
from vitrail.errors import DataError, UsageError
from vitrail.explain import methods
from vitrail.explain.attribution import EmptyMapError
from vitrail.explain.methods import METHODS, MethodOptions
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.services.explanation import (
    Explainer,
    ExplainRequest,
    explain_images,
    explain_with_predictor,
    hash_weights,
    make_unique_stems,
    open_explainer,
)
from vitrail.spec import ImageSpec

SPEC = ImageSpec(height=16, width=24, mean=(0.4,), std=(0.2,))
CLASSES = ("cat", "dog", "owl")


@pytest.fixture
def pictures(tmp_path):
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for seed, path in enumerate(paths):
        values = np.random.default_rng(seed).integers(0, 256, (16, 24, 3), dtype=np.uint8)
        Image.fromarray(values).save(path)
    return paths


def model_of(outputs: int = 3, **changes):
    size = config_from_name("vit_mu_patch8_16")
    shape = dataclasses.replace(size, image_size=(16, 24), outputs=outputs, init="torch", **changes)
    return create_model(shape, seed=2).eval()


@pytest.fixture
def kept(tmp_path):
    """A function that keeps a model as a bundle."""

    def keep(task="classification", classes=CLASSES, info=None, **changes):
        folder = tmp_path / f"model-{len(list(tmp_path.iterdir()))}"
        outputs = len(classes) or changes.pop("outputs", 3)
        bundle_weights.save_bundle(folder, model_of(outputs, **changes), SPEC, task, tuple(classes), info or {})
        return open_explainer(folder, "cpu")

    return keep


def images_of(path):
    return normalize(preprocess_image(path, SPEC)[None], SPEC)


def test_the_answer_is_explained_with_its_probability(kept, pictures):
    explainer = kept()
    found = list(explain_images(explainer, pictures, ExplainRequest()))
    answers = explainer.predictor.predict(pictures)
    assert [one.target for one in found] == list(answers.labels)
    np.testing.assert_allclose([one.value for one in found], answers.confidences, atol=1e-6)
    for path, one in zip(pictures, found, strict=True):
        assert one.name == str(path) and one.heatmap.method == methods.default_method(explainer.model.config)
        wanted = methods.explain_images(explainer.model, images_of(path))
        np.testing.assert_array_equal(one.heatmap.values, wanted.values)
        assert one.title == f"{one.target}, {one.value:.1%}"
        np.testing.assert_array_equal(one.image, np.asarray(Image.open(path)))


@pytest.mark.first(1)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_draws_and_keeps_a_picture(kept, pictures, tmp_path, method):
    asked = ExplainRequest(
        method=method,
        patch=3 if method == "similarity" else None,
        target="owl" * METHODS[method].class_specific or None,
    )
    (one,) = explain_images(kept(), pictures[:1], asked)
    path = one.save(tmp_path / "to", "a", extra={"model": "M"})
    assert path == tmp_path / "to" / f"a.{method}.png"
    with Image.open(path) as drawn:
        assert one.heatmap.description in drawn.text["Description"]
    with np.load(path.with_suffix(".npz")) as arrays:
        np.testing.assert_array_equal(arrays["values"], one.heatmap.values[0])
        assert ("pixels" in arrays) == (method == "integrated")
    facts = json.loads(path.with_suffix(".json").read_text())
    assert (facts["model"], facts["method"], facts["rows"], facts["columns"]) == ("M", method, 2, 3)
    assert facts["class"] == ("owl" if METHODS[method].class_specific else None)
    assert facts["highest"] == one.heatmap.values.max() and len(facts["picture_sha256"]) == 64


def test_another_class_can_be_named_and_the_answer_is_told(kept, pictures):
    explainer = kept()
    answered = explainer.predictor.predict(pictures[:1]).labels[0]
    other = next(name for name in CLASSES if name != answered)
    (one,) = explain_images(explainer, pictures[:1], ExplainRequest(target=other))
    assert one.heatmap.targets == (CLASSES.index(other),)
    assert one.title == f"{other}, {one.value:.1%}  (answered: {answered})"


def test_of_labels_the_most_likely_is_explained(kept, pictures):
    explainer = kept("multilabel")
    (one,) = explain_images(explainer, pictures[:1], ExplainRequest())
    chances = explainer.predictor.predict(pictures[:1]).probabilities[0]
    assert one.target == CLASSES[chances.argmax()] and one.value == pytest.approx(chances.max())


def test_a_number_is_told_in_its_unit_and_one_of_several_must_be_named(kept, pictures):
    scaling = {"scaling": {"mean": [10.0], "deviation": [2.0]}}
    explainer = kept("regression", ("kilograms",), scaling)
    (one,) = explain_images(explainer, pictures[:1], ExplainRequest())
    value = explainer.predictor.predict(pictures[:1]).values[0, 0]
    assert one.title == f"kilograms = {value:.4g}"
    with pytest.raises(UsageError, match=r"gives several numbers: cat, dog, owl\. Name the one to explain"):
        list(
            explain_images(
                kept("regression", info={"scaling": {"mean": [0.0] * 3, "deviation": [1.0] * 3}}),
                pictures,
                ExplainRequest(),
            )
        )


def test_what_is_not_there_is_named(kept, pictures, tmp_path):
    with pytest.raises(UsageError, match=r"^The model has no output 'fox'\. Its outputs are cat, dog, owl\.$"):
        list(explain_images(kept(), pictures, ExplainRequest(target="fox")))
    with pytest.raises(UsageError, match=r"^A model is needed to explain: .*nowhere does not exist\.$"):
        open_explainer(tmp_path / "nowhere", "cpu")
    (tmp_path / "first").mkdir()
    with pytest.raises(UsageError, match=r"frist does not exist\. Did you mean .*first\?$"):
        open_explainer(tmp_path / "frist", "cpu")


@pytest.mark.parametrize(
    ("method", "fill", "message"),
    [
        ("relevance", "black", r"^relevance has no use for fill\."),
        ("integrated", "drop", r"^integrated needs an empty picture: fill must be mean, black or white\. Got drop\.$"),
    ],
)
def test_nothing_stands_for_nothing_where_it_cannot(kept, pictures, method, fill, message):
    with pytest.raises(UsageError, match=message):
        list(explain_images(kept(), pictures, ExplainRequest(method=method, fill=fill)))


def test_a_model_whose_outputs_have_no_names_is_explained_by_number(pictures):
    explainer = Explainer(
        model_name="M",
        model=model_of(4),
        spec=SPEC,
        classes=(),
        task="classification",
        device=torch.device("cpu"),
        predictor=None,
    )
    (one,) = explain_images(explainer, pictures[:1], ExplainRequest(target="2"))
    assert (one.target, one.title, one.value) == ("output 2", "output 2", None)
    with pytest.raises(UsageError, match=r"^The model has no output '4'\. Its outputs are 0 to 3\.$"):
        list(explain_images(explainer, pictures, ExplainRequest(target="4")))


def test_features_are_explained_by_what_needs_no_output(kept, pictures):
    explainer = kept(classes=(), outputs=0)
    (one,) = explain_images(explainer, pictures[:1], ExplainRequest())
    assert (one.heatmap.method, one.target, one.title) == ("attention", "", "Attention")
    with pytest.raises(UsageError, match=r"^The model has no output '0': it gives features"):
        list(explain_images(explainer, pictures, ExplainRequest(target="0")))


def test_what_has_no_map_is_named_or_left_out(kept, pictures, tmp_path):
    explainer = kept()
    Image.new("RGB", (24, 16)).save(tmp_path / "dark.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    asked = ExplainRequest(method="integrated", fill="black")
    mixed = [pictures[0], tmp_path / "dark.png", tmp_path / "broken.png", pictures[1]]
    with pytest.raises(EmptyMapError, match=r"^.*dark\.png: Picture 1 of 1 equals the empty picture"):
        list(explain_images(explainer, mixed[:2], asked))
    with pytest.raises(DataError, match=r"broken\.png"):
        list(explain_images(explainer, mixed[2:], asked))
    found = list(explain_images(explainer, mixed, asked, skip_bad=True))
    assert [isinstance(one, tuple) for one in found] == [False, True, True, False]
    assert found[1][0] == str(mixed[1]) and "equals the empty picture" in found[1][1]


@pytest.mark.parametrize(("fill", "level"), [("black", 0), ("white", 255)])
def test_the_empty_picture_is_black_or_white_as_the_model_reads_it(kept, pictures, fill, level):
    explainer = kept()
    (one,) = explain_images(explainer, pictures[:1], ExplainRequest(method="occlusion", fill=fill, target="cat"))
    cover = normalize(torch.full((1, 3, 16, 24), level, dtype=torch.uint8), SPEC)
    wanted = methods.explain_images(explainer.model, images_of(pictures[0]), "occlusion", 0, MethodOptions(cover=cover))
    np.testing.assert_array_equal(one.heatmap.values, wanted.values)
    (gone,) = explain_images(explainer, pictures[:1], ExplainRequest(method="occlusion", fill="drop", target="cat"))
    assert "taken out" in gone.heatmap.layer


def test_one_picture_or_many_from_python(kept, pictures):
    predictor = kept().predictor
    (one,) = explain_with_predictor(predictor, "M", str(pictures[0]), ExplainRequest())
    both = explain_with_predictor(predictor, "M", [str(path) for path in pictures], ExplainRequest())
    np.testing.assert_array_equal(one.heatmap.values, both[0].heatmap.values)
    (array,) = explain_with_predictor(predictor, "M", np.asarray(Image.open(pictures[0])), ExplainRequest())
    np.testing.assert_array_equal(array.heatmap.values, one.heatmap.values)
    assert array.name == "0" and len(both) == 2


def test_an_averaged_answer_is_told_of(kept, pictures):
    (one,) = explain_images(kept(info={"mirror": True, "shift": 1}), pictures[:1], ExplainRequest())
    assert one.notes[-1].startswith("The answer is the mean over 6 views of the picture")


def test_artefacts_are_counted_and_not_drawn(kept, pictures):
    (one,) = explain_images(kept(), pictures[:1], ExplainRequest())
    spoiled = dataclasses.replace(one, artefacts=np.array([[True, False, False], [False, True, False]]))
    assert spoiled.notes[-1] == "2 of 6 patches, hatched, hold notes of the model instead of picture: not drawn."
    assert spoiled.to_json()["artefacts"] == 2
    before, after = (np.asarray(which.figure().axes[1].images[0].get_array()) for which in (one, spoiled))
    assert (before != after).any()
    alone = spoiled.figure().axes[2]
    assert [(box.get_xy(), box.get_width(), box.get_height(), box.get_hatch()) for box in alone.patches] == [
        ((-0.5, -0.5), 240, 240, "////"), ((239.5, 239.5), 240, 240, "////"),
    ]  # fmt: skip
    assert not one.figure().axes[2].patches and one.caption.below[0].startswith("a.png · relevance · ")
    assert dataclasses.replace(one, name="0").caption.below[0].startswith("relevance · ")


def test_equal_names_are_numbered():
    assert make_unique_stems(["x/a.png", "y/a.png", "b.jpg", "z/a.tif", ""]) == ["a", "a-2", "b", "a-3", "picture"]


def test_the_fingerprint_is_that_of_the_weights():
    first, same, other = model_of(), model_of(), model_of()
    with torch.no_grad():
        other.head.linear.bias[0] += 1e-3
    assert hash_weights(first) == hash_weights(same) != hash_weights(other)
