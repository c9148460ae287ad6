"""A classifier that Vitrail trained, opened by timm and by transformers from the folders written for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from parity import opened
from vitrail.predict.predictor import Predictor
from vitrail.services.prediction import open_predictor

pytestmark = pytest.mark.wide  # timm and transformers take long to import
SETTINGS = {"model.rotary": "none", "model.class_token": True, "model.pool": "class", "model.heads": 2}
SETTINGS |= {"model.width": 32, "model.depth": 2, "model.mlp_width": 64, "model.resample": "bicubic-antialias"}
SETTINGS |= {"recipe.batch_size": 32, "compute.threads": 1, "compute.precision": "float32"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> vitrail.Run:
    """A small plain ViT, class token and learned positions, after a few steps on the digits."""
    threads = torch.get_num_threads()
    out = tmp_path_factory.mktemp("exported") / "run"
    trained = vitrail.fit("digits", steps=150, image_size=16, channels=3, out=out, settings=SETTINGS, quiet=True)
    torch.set_num_threads(threads)
    return trained


@pytest.fixture(scope="module", params=["timm", "transformers"])
def opened_elsewhere(request, run, tmp_path_factory) -> opened.Classifier:
    folder = run.export(request.param, tmp_path_factory.mktemp("elsewhere") / request.param)
    return opened.CLASSIFIERS[request.param](folder)


def test_logits_are_equal_on_pictures_of_the_models_size(run, opened_elsewhere):
    pictures = drawn(40, size=16)
    ours = Predictor.open(run.path)
    batch = torch.stack([torch.from_numpy(picture).permute(2, 0, 1) for picture in pictures])
    theirs = opened_elsewhere.logits([Image.fromarray(picture) for picture in pictures])
    (temperature,) = ours.decisions.temperature  # which the head of the written file has taken up
    assert np.abs(ours.logits(batch) / temperature - theirs).max() < 1e-4


def test_with_its_own_resizing_the_answers_are_the_same(run, opened_elsewhere, tmp_path):
    """Two libraries resize to within a grey level or two, so that only pictures between two classes may differ."""
    pictures = drawn(60, size=None)
    ours = run.predict(pictures).indices
    theirs = opened_elsewhere.logits([Image.fromarray(picture) for picture in pictures]).argmax(-1)
    assert (ours == theirs).mean() >= 0.98


def test_the_class_names_come_along(run, opened_elsewhere):
    assert opened_elsewhere.classes == run.predictor.classes


def test_the_exported_folder_is_a_model_for_us_too(run, tmp_path):
    folder = run.export("transformers", tmp_path / "there")
    picture = drawn(1, size=16)[0]
    Image.fromarray(picture).save(tmp_path / "a.png")
    ours, again = run.predict([picture]), open_predictor(folder, "cpu").predict([tmp_path / "a.png"])
    assert again.classes == ours.classes
    assert np.abs(again.probabilities - ours.probabilities).max() < 1e-5


def test_without_a_place_an_export_lies_in_the_run(run):
    assert run.export("bundle") == run.path / "exports" / "bundle"


def drawn(count: int, size: int | None) -> list[np.ndarray]:
    """Digits of scikit-learn in colour, stretched to one size or to many."""
    from sklearn.datasets import load_digits

    draw = np.random.default_rng(0)
    pictures = []
    for values in load_digits().images[-count:]:
        height, width = (size, size) if size else draw.integers(12, 60, 2).tolist()
        grey = Image.fromarray((values / 16 * 255).astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
        pictures.append(np.array(grey.convert("RGB")))
    return pictures
