"""Public functions called with what a program may hold: NumPy's numbers are taken, another type is named at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail.errors import VitrailError
from vitrail.model import vit
from vitrail.train import fit as training


@pytest.fixture
def asked(monkeypatch):
    """The request and runtime settings of a training that is not begun."""
    seen = []

    def begin(request, settings, out=None, **_):
        seen.append((request, settings, out))
        yield vitrail.RunFolderEvent(Path("run"))

    monkeypatch.setattr(training, "fit", begin)
    return seen


def test_numbers_of_numpy_and_any_path_are_taken(asked, tmp_path):
    list(
        vitrail.train(
            tmp_path, steps=np.int64(2), seed=np.uint8(3), image_size=np.array([8, 12]), channels=np.int32(1),
            skip_bad=np.True_, data_root=np.str_("here"), out=np.str_("run"), settings={"recipe.lr": np.float32(0.5)},
        )
    )  # fmt: skip
    ((request, _, out),) = asked
    assert (request.steps, request.seed, request.image_size, request.channels) == (2, 3, (8, 12), 1)
    assert type(request.steps) is int and request.data.skip_bad and request.data.data_root == "here"
    assert out == Path("run") and request.overrides["recipe.lr"] == "0.5"
    config = vitrail.ViTConfig(depth=np.int64(1), drop_path=np.float64(0.0), image_size=[np.int64(16), 16])
    assert (type(config.depth), config.image_size) == (int, (16, 16))
    created = vitrail.create("vit_mu_patch8_16", seed=np.int64(1), outputs=np.int64(3), registers=np.uint8(2))
    assert (created.config.outputs, created.config.registers) == (3, 2)
    assert vitrail.ImageSpec(height=np.int64(16), width=16, mean=np.array([0.5]), std=[0.5]).mean == (0.5,)


WRONG = {
    "minutes": ("1", r"minutes must be a number\. Got '1'\. Leave the quotes out\."),
    "steps": (2.5, r"steps must be a whole number\. Got 2\.5\."),
    "seed": (None, r"seed must be a whole number\. Got None\."),
    "image_size": (22.5, r"image_size must be a whole number or 2 whole numbers\. Got 22\.5\."),
    "pretrain": (1, r"pretrain must be True or False\. Got 1\."),
    "out": (5, r"out must be a path\. Got 5\."),
    "group": (["patient"], r"group must be text\. Got \['patient'\]\."),
    "settings": ([("recipe.lr", 1)], r"settings must be a dictionary of names and values\. Got "),
    "loss": ("focal", r"loss must be a function\. Got 'focal'\."),
    "source": (None, r"A training needs a source: a folder"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_of_a_training_is_named_before_anything_else(name, asked):
    value, message = WRONG[name]
    with pytest.raises(VitrailError, match=f"^{message}"):
        vitrail.train(**{"source": "digits", name: value})
    assert not asked


def test_one_callback_is_asked_to_be_in_a_list(asked):
    with pytest.raises(VitrailError, match=r"^callbacks must be a list of functions\. .* Write it as a list\.$"):
        vitrail.fit("digits", callbacks=print)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("validation", r"'validation'\. It is called val here\."),
        ("early_stopping", r"'early_stopping'\. .* callbacks= can end it by event\.stop\(\)\."),
    ],
)
def test_words_of_other_trainings_are_translated(word, message):
    with pytest.raises(TypeError, match=message):
        vitrail.fit("digits", **{word: 1})


def test_models_name_their_arguments():
    model = vitrail.create("vit_mu_patch8_16", outputs=2)
    for ask, message in (
        (lambda: vitrail.create(None), r"^name must be text\. Got None\."),
        (
            lambda: vitrail.create("vit_mu_patch8_16", image_size=[8]),
            r"^image_size must be .* or 2 whole numbers\. Got \[8\]",
        ),
        (lambda: vitrail.create("vit_mu_patch8_16", image_size=None), r"^image_size must be a whole number or"),
        (lambda: vitrail.create("vit_mu_patch8_16", outputs="3"), r"outputs must be a whole number\. Got '3'"),
        (lambda: vitrail.ViT("vit_mu_patch8_16"), r"^config must be a ViTConfig\. Got 'vit_mu_patch8_16'\."),
        (lambda: vitrail.ViTConfig(pool="avg"), r"^pool must be one of class, .* Got 'avg'\."),
        (lambda: vitrail.ImageSpec(interpolation="cubic"), r"^interpolation must .*\. Did you mean 'bicubic'\?"),
        (lambda: vitrail.load(5), r"^path must be a path\. Got 5\."),
        (lambda: vitrail.save(None, "kept"), r"^model must be a Module or a dictionary of names and values\. Got None"),
        (lambda: vitrail.open(None), r"^run must be a path\. Got None\."),
        (
            lambda: model.features(torch.zeros(1, 3, 16, 16), "pooled"),
            r"^keep must be a list of names\. Got 'pooled'\.",
        ),
    ):
        with pytest.raises(VitrailError, match=message):
            ask()


def unchecked(function):
    """A function without the shape checks of the tests, which users do not have."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def test_what_features_are_chosen_by_is_named():
    model, keep = vitrail.create("vit_mu_patch8_16"), ("blocks.0.attention",)
    with pytest.raises(VitrailError, match=r"^keep must be a list of names\. Got 5\."):
        unchecked(vitrail.ViT.features)(model, torch.zeros(1, 3, 16, 16), 5)
    with pytest.raises(VitrailError, match=r"^heads must be a list of whole numbers\. Got \['a'\]\."):
        unchecked(vit._check_selection)(model, keep, ["a"], None)
    with pytest.raises(VitrailError, match=r"^rows must be a list of whole numbers\. Got 0\."):
        unchecked(vit._check_selection)(model, keep, None, 0)


@pytest.mark.parametrize("size", [2**40, 2**70])
@pytest.mark.parametrize("name", ["image_size", "outputs", "channels"])
def test_a_model_is_not_adapted_to_a_size_that_no_memory_holds(name, size, tmp_path):
    kept = vitrail.save(vitrail.create("vit_mu_patch8_16", outputs=2), tmp_path / "kept", classes=("a", "b"))
    more = {"channels_policy": "mean"} if name == "channels" else {}
    with pytest.raises(VitrailError, match=rf"^{name} must be at most [\d,]+\. Got {size:,}\.$"):
        vitrail.load(kept, **{name: size}, **more)


def test_what_is_no_tensor_of_floats_is_pointed_to_preprocess():
    embed = vitrail.create("vit_mu_patch8_16").tokens
    forward = unchecked(type(embed).forward)
    for images in ("a.png", [torch.zeros(3, 16, 16)], torch.zeros(1, 3, 16, 16, dtype=torch.uint8)):
        with pytest.raises(
            VitrailError, match=r"model\.preprocess\(images\) makes one .* Got (str|list|torch\.uint8)\."
        ):
            forward(embed, images)


def test_a_name_of_another_library_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match=r"vitrail has no 'create_model'\. .* Did you mean create\?"):
        vitrail.create_model  # noqa: B018
    assert issubclass(vitrail.errors.DataError, ValueError)
