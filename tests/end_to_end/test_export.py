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
from parity.opened import CLASSIFIERS
from vitrail.data.preprocess import normalize, preprocess_image
from vitrail.export import build, verify
from vitrail.predict.predictor import Predictor
from vitrail.services.open_model import find_model


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
    assert not more
    images = preprocess_image(picture, plan.image).permute(1, 2, 0)[None].contiguous()
    probabilities = torch.export.load(place).module()(images)[0]
    expected = Predictor.open(run).predict([picture]).probabilities
    np.testing.assert_allclose(probabilities.numpy(), expected, atol=1e-4)


@pytest.mark.wide
def test_python_exports_too_and_json_says_what_was_proved(vitrail, run, tmp_path):
    assert package.open(run).export("pt2", tmp_path / "mine.pt2") == tmp_path / "mine.pt2"
    answer = vitrail("export", run, "--to", "pt2", "--out", tmp_path / "again.pt2", "--json")
    told = json.loads(answer.out)
    assert told["path"] == str(tmp_path / "again.pt2") and told["to"] == "pt2"
    assert told["largest_difference"] < 1e-4 and told["changed"] == 0 and told["pictures"] >= 1


@pytest.mark.wide
def test_a_package_that_resizes_says_how_far_its_answers_lie_apart(vitrail, run, flowers):
    answer = vitrail("export", run, "--to", "pt2", "--resize")
    assert answer.code == 0, answer.err
    assert "resizing by itself, compared on " in answer.out
    module = torch.export.load(run / "exports" / "model.pt2").module()
    picture = flowers / "stripes" / "1.png"
    as_it_is = torch.from_numpy(np.asarray(Image.open(picture)).copy())[None]
    expected = Predictor.open(run).predict([picture]).probabilities
    np.testing.assert_allclose(module(as_it_is)[0].numpy(), expected, atol=0.01)


@pytest.mark.wide
def test_where_the_pictures_of_a_run_are_gone_drawn_ones_are_compared_and_said(vitrail, run):
    (run / "splits.csv").unlink()
    answer = vitrail("export", run, "--to", "pt2")
    assert answer.code == 0, answer.err
    assert "on drawn pictures, because those of the run are not here" in answer.out and "100 pictures" in answer.out


@pytest.mark.wide
def test_a_bundle_is_exported_beside_itself(vitrail, run):
    bundle = run / "model"
    answer = vitrail("export", bundle, "--to", "pt2")
    assert answer.code == 0, answer.err
    assert (run / "model.pt2").is_file() and "on drawn pictures, because no run has held out any" in answer.out


@pytest.mark.first(1)
@pytest.mark.parametrize("to", CLASSIFIERS)
def test_other_libraries_open_what_they_get_with_the_run_s_names_and_logits(vitrail, run, flowers, to):
    answer = vitrail("export", run, "--to", to)
    assert answer.code == 0, answer.err
    assert "compared on 3 random pictures: outputs differ by at most" in answer.out
    found = find_model(str(run))
    theirs = CLASSIFIERS[to](run / "exports" / to)
    images = [preprocess_image(flowers / "disc" / f"{k}.png", found.spec) for k in range(5)]
    logits = theirs.logits([Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images])
    with torch.inference_mode():
        ours = found.model(normalize(torch.stack(images), found.spec)).numpy()
    np.testing.assert_allclose(logits, ours, atol=1e-4)
    assert theirs.classes == found.classes == ("disc", "stripes")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "tflite"), "A model can be exported as onnx, openvino, pt2, web, triton, mlflow, bundle"),
        (("--to", "timm", "--resize"), "--resize and --precision are for onnx, openvino, pt2 and triton, which hold"),
        (("--to", "pt2", "--out", "x.onnx"), "pt2 is one file, whose name must end in .pt2. Got x.onnx."),
        (("--to", "onnx", "--precision", "bf16"), "and not in bf16. Use --to pt2 for it."),
        (("--to", "pt2", "--precision", "int8"), "and not in int8. Use --to onnx for it."),
        (("--precision", "float16", "--calibrate", "x"), "Only int8 is fitted to pictures. Got --calibrate with"),
        (("--force",), "there is nothing to --force."),
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


def test_without_the_packages_for_onnx_they_are_named(vitrail, run, monkeypatch):
    monkeypatch.setattr(build, "ONNX_PACKAGES", ("onnx", "no_such_package"))
    answer = vitrail("export", run, "--to", "onnx")
    assert "Missing: no_such_package. Get them with: pip install 'vitrail[export]'" in sentence(answer, 2)


def test_a_run_without_an_onnx_file_says_how_to_make_one(vitrail, run, flowers):
    answer = vitrail("predict", run, flowers / "disc", "--engine", "onnx")
    assert sentence(answer, 2).endswith(f"has no exports/model.onnx. Make it with: vitrail export {run} --to onnx")


def test_an_onnx_file_that_is_none_is_refused_before_any_runtime_sees_it(vitrail, tmp_path, flowers):
    (tmp_path / "bad.onnx").write_bytes(b"\x00\x01\x02 no model")
    answer = vitrail("predict", tmp_path / "bad.onnx", flowers / "disc")
    assert "is not a whole ONNX model" in sentence(answer, 4)
    answer = vitrail("predict", tmp_path / "none.onnx", flowers / "disc")
    assert "An ONNX file is needed at" in sentence(answer, 2)
    answer = vitrail("predict", tmp_path / "bad.onnx", flowers / "disc", "--device", "cuda")
    assert "--engine onnx computes on the CPU. Got --device cuda" in sentence(answer, 2)


def test_an_onnx_file_is_what_is_made_when_nothing_is_said_and_predict_answers_with_it(vitrail, run, flowers):
    answer = vitrail("export", run)
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"wrote  {run / 'exports' / 'model.onnx'}\n       compared on ")
    local, by_onnx, by_name = (
        json.loads(vitrail("predict", *words, flowers / "disc", "--json").out)
        for words in ((run,), (run, "--engine", "onnx"), (run / "exports" / "model.onnx",))
    )
    assert by_onnx == by_name and [list(row) for row in by_onnx] == [list(row) for row in local]
    assert [(row["path"], row["id"], row["label"]) for row in by_onnx] == [
        (row["path"], row["id"], row["label"]) for row in local
    ]


@pytest.mark.wide
@pytest.mark.needs_openvino
def test_openvino_answers_from_the_run_s_file_or_by_its_name(vitrail, run, flowers):
    answer = vitrail("export", run, "--to", "openvino")
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"wrote  {run / 'exports' / 'model.xml'}\n       compared on ")
    local, by_engine, by_name = (
        json.loads(vitrail("predict", *words, flowers / "disc", "--json").out)
        for words in ((run,), (run, "--engine", "openvino"), (run / "exports" / "model.xml",))
    )
    assert by_engine == by_name and [list(row) for row in by_engine] == [list(row) for row in local]
    assert [(row["path"], row["label"]) for row in by_engine] == [(row["path"], row["label"]) for row in local]


@pytest.mark.wide
def test_a_run_is_written_for_mlflow(vitrail, run):
    answer = vitrail("export", run, "--to", "mlflow")
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"wrote  {run / 'exports' / 'mlflow'}\n       compared on ")
    assert (run / "exports" / "mlflow" / "MLmodel").is_file()


@pytest.mark.wide
def test_int8_is_fitted_to_the_run_s_training_pictures_and_says_how_fast_it_is(vitrail, run):
    answer = vitrail("export", run, "--precision", "int8", "--json", "--force")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    assert told["path"] == str(run / "exports" / "model-int8.onnx") and 0 <= told["agreement"] <= 1
    assert list(told["pictures_per_second"]) == ["float32 in PyTorch", "float32 file", "int8 file"]
    agreed, whose, fitted = told["notes"]
    assert agreed.startswith("int8 agrees with float32 in ")
    assert whose == "on pictures of the run's own test split"
    assert fitted.startswith("calibrated on ") and fitted.endswith(" training pictures of the run")


@pytest.mark.wide
def test_int8_can_be_fitted_to_other_pictures(vitrail, run, flowers):
    out = run / "other.onnx"
    words = ("export", run / "model", "--precision", "int8", "--out", out, "--force")
    assert "int8 is fitted to pictures like those to come" in sentence(vitrail(*words), 2)
    answer = vitrail(*words, "--calibrate", flowers / "disc")
    assert answer.code == 0, answer.err
    assert f"calibrated on 5 pictures of {flowers / 'disc'}" in answer.out and out.is_file()


@pytest.mark.wide
def test_a_smaller_file_that_decides_otherwise_leaves_nothing_and_an_exit_code(vitrail, run, monkeypatch):
    monkeypatch.setattr(verify, "MIN_AGREEMENT", 1.01)
    answer = vitrail("export", run, "--to", "pt2", "--precision", "bf16")
    assert "pictures are answered as in float32, and 101% is asked for. Nothing is kept." in sentence(answer, 4)
    assert not list((run / "exports").iterdir())
    monkeypatch.undo()
    assert package.open(run).export("pt2", precision="bf16", force=True) == run / "exports" / "model-bf16.pt2"


def test_sets_stay_in_the_run(vitrail, run, flowers):
    answer = vitrail("predict", run, flowers / "disc", "--engine", "onnx", "--sets")
    assert "--sets are fitted in the run and not exported" in sentence(answer, 2)
