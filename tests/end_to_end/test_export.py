"""`vitrail export` as a person would type it: where files go, what is said of them, and what is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail as package
from end_to_end.test_wrong_inputs import sentence
from vitrail.data.transforms import prepare
from vitrail.predict.predictor import Predictor


@pytest.fixture
def run(run_folder, tmp_path):
    """A copy that may be written to."""
    return shutil.copytree(run_folder, tmp_path / "run")


def test_a_package_lies_in_the_run_and_is_compared_on_its_own_pictures(vitrail, run, flowers):
    answer = vitrail("export", run, "--to", "pt2")
    assert answer.code == 0, answer.err
    place = run / "exports" / "model.pt2"
    wrote, compared, whose, *more = answer.out.splitlines()
    assert wrote == f"wrote  {place}"
    assert compared.strip().startswith("compared on ") and compared.endswith("every decision is the same")
    assert whose.strip() == "on pictures of the run's own test split"
    picture = flowers / "disc" / "0.png"
    plan = package.open(run).plan
    assert any("this file computes in float32" in note for note in more) == (plan.compute.number_format != "float32")
    images = prepare(picture, plan.image).permute(1, 2, 0)[None].contiguous()
    probabilities = torch.export.load(place).module()(images)[0]
    expected = Predictor.open(run, number_format="float32").predict([picture]).probabilities
    np.testing.assert_allclose(probabilities.numpy(), expected, atol=1e-4)


def test_python_exports_too_and_json_says_what_was_proved(vitrail, run, tmp_path):
    assert package.open(run).export("pt2", tmp_path / "mine.pt2") == tmp_path / "mine.pt2"
    answer = vitrail("export", run, "--to", "pt2", "--out", tmp_path / "again.pt2", "--json")
    told = json.loads(answer.out)
    assert told["path"] == str(tmp_path / "again.pt2") and told["to"] == "pt2"
    assert told["largest_difference"] < 1e-4 and told["changed"] == 0 and told["pictures"] >= 1


def test_a_package_that_resizes_says_how_far_its_answers_lie_apart(vitrail, run, flowers):
    answer = vitrail("export", run, "--to", "pt2", "--resize")
    assert answer.code == 0, answer.err
    assert "resizing by itself, compared on " in answer.out
    module = torch.export.load(run / "exports" / "model.pt2").module()
    picture = flowers / "stripes" / "1.png"
    as_it_is = torch.from_numpy(np.asarray(Image.open(picture)).copy())[None]
    expected = Predictor.open(run, number_format="float32").predict([picture]).probabilities
    np.testing.assert_allclose(module(as_it_is)[0].numpy(), expected, atol=0.01)


def test_where_the_pictures_of_a_run_are_gone_drawn_ones_are_compared_and_said(vitrail, run):
    (run / "splits.csv").unlink()
    answer = vitrail("export", run, "--to", "pt2")
    assert answer.code == 0, answer.err
    assert "on drawn pictures, because those of the run are not here" in answer.out and "100 pictures" in answer.out


def test_a_bundle_is_exported_beside_itself(vitrail, run):
    bundle = run / "model"
    answer = vitrail("export", bundle, "--to", "pt2")
    assert answer.code == 0, answer.err
    assert (run / "model.pt2").is_file() and "on drawn pictures, because no run has held out any" in answer.out


def test_other_libraries_get_what_convert_gives(vitrail, run):
    answer = vitrail("export", run, "--to", "transformers")
    assert answer.code == 0, answer.err
    assert (run / "exports" / "transformers" / "config.json").is_file()
    assert "compared on 3 random pictures: outputs differ by at most" in answer.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "onnx"), "Export to onnx arrives with a later version. --to pt2 writes the same graph for PyTorch."),
        (("--to", "tflite"), "A model can be exported as pt2, bundle, timm"),
        (("--to", "timm", "--resize"), "--resize is for pt2, whose file holds a graph. Got --to timm."),
        (("--to", "pt2", "--out", "x.onnx"), "pt2 is one file, whose name must end in .pt2. Got x.onnx."),
    ],
)
def test_what_cannot_be_exported_is_said_in_a_sentence(vitrail, run, words, said):
    answer = vitrail("export", run, *words)
    assert said in sentence(answer, 2)
    assert not (run / "exports").exists()


def test_a_file_that_is_there_is_not_overwritten(vitrail, run):
    place = run / "exports" / "model.pt2"
    place.parent.mkdir()
    place.write_text("mine")
    answer = vitrail("export", run, "--to", "pt2")
    assert "exists already and is not overwritten" in sentence(answer, 2)
    assert place.read_text() == "mine"
