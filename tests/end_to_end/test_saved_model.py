"""Every verb takes the folder that `vitrail.save` writes after a training loop of one's own, as it takes a run."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail as package
from end_to_end.test_wrong_inputs import sentence
from vitrail.evaluate.calibration import TargetScaling
from vitrail.serve.served_model import load_served_model

SIZE = package.ImageSpec(height=16, width=16)


@pytest.fixture(scope="module")
def own(flowers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten steps of a plain loop on the drawn flowers."""
    files = sorted(flowers.glob("*/*.png"))
    targets = torch.tensor([path.parent.name == "stripes" for path in files]).long()
    model = package.create("vit_mu_patch8_16", outputs=2)
    images, optimizer = model.preprocess(files), torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(10):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), targets).backward()
        optimizer.step()
    return package.save(model, tmp_path_factory.mktemp("loop") / "own", classes=("disc", "stripes"))


@pytest.fixture
def answers(own: Path, flowers: Path) -> np.ndarray:
    """What the model itself gives for the first disc."""
    model = package.load(own)
    with torch.inference_mode():
        return model(model.preprocess(flowers / "disc" / "0.png")).softmax(-1).numpy()


def test_predict_and_serve_answer_as_the_model_does(vitrail, own, flowers, answers, tmp_path):
    picture = flowers / "disc" / "0.png"
    assert vitrail("predict", own, picture, "--to", tmp_path / "rows.csv").code == 0
    (row,) = csv.DictReader((tmp_path / "rows.csv").read_text().splitlines())
    assert row["label"] in ("disc", "stripes") and float(row["probability"]) == pytest.approx(answers.max(), abs=1e-5)
    served = load_served_model(str(own), "own", "cpu", "float32", 1, {}, lambda: None)
    assert np.abs(served.predictor.predict([picture]).probabilities - answers).max() < 1e-6


def test_evaluate_measures_it_on_labelled_pictures(vitrail, own, flowers):
    answer = vitrail("evaluate", own, flowers, "--json")
    assert answer.code == 0 and json.loads(answer.out)["metrics"]["n"] == 10
    assert "is none. Give a source: vitrail evaluate" in sentence(vitrail("evaluate", own), 2)


def test_explain_embed_and_inspect_look_into_it(vitrail, own, flowers, tmp_path):
    picture = flowers / "disc" / "0.png"
    assert vitrail("explain", own, picture, "--to", tmp_path / "maps").code == 0
    assert vitrail("embed", own, picture, "--to", tmp_path / "features.npy").code == 0
    assert np.load(tmp_path / "features.npy").shape == (1, 32)
    answer = vitrail("inspect", own)
    assert answer.code == 0 and "2 outputs: disc, stripes" in answer.out
    assert "encoder.blocks   [B, 5, 32]      12,704" in answer.out


@pytest.mark.parametrize("to", ["timm", "transformers", "bundle"])
def test_convert_and_export_write_it_for_others(vitrail, own, flowers, answers, tmp_path, to):
    assert vitrail("export", own, "--to", to, "--out", tmp_path / "there").code == 0
    assert vitrail("convert", own, "--to", to, "--out", tmp_path / "here").code == 0
    for name in ("there", "here"):
        model = package.load(tmp_path / name)
        with torch.inference_mode():
            found = model(model.preprocess(flowers / "disc" / "0.png")).softmax(-1).numpy()
        assert np.abs(found - answers).max() < 1e-5 and model.classes == ("disc", "stripes")


@pytest.mark.wide
@pytest.mark.parametrize("to", ["onnx", "pt2"])
def test_export_writes_a_file_that_needs_no_vitrail(vitrail, own, flowers, tmp_path, to):
    path = tmp_path / f"own.{to}"
    assert vitrail("export", own, "--to", to, "--out", path).code == 0 and path.is_file()
    if to == "onnx":
        rows = json.loads(vitrail("predict", path, flowers / "disc" / "0.png", "--json").out)
        assert rows[0]["label"] in ("disc", "stripes")


def test_its_weights_file_stands_for_the_folder_and_alone_says_what_it_lacks(vitrail, own, flowers, tmp_path):
    picture = flowers / "disc" / "0.png"
    whole, part = (vitrail("predict", path, picture, "--json").out for path in (own, own / "model.safetensors"))
    assert json.loads(whole) == json.loads(part)
    assert vitrail("convert", own / "model.safetensors", "--to", "timm").code == 0
    assert (own.parent / "own-timm").is_dir()
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((own / "model.safetensors").read_bytes())
    assert "Answers need the whole bundle" in sentence(vitrail("predict", alone, picture), 2)
    answer = vitrail("inspect", alone)
    assert answer.code == 0 and "read without the calibration, thresholds and units" in answer.out
    assert vitrail("convert", alone, "--to", "bundle", "--out", tmp_path / "whole").code == 0
    assert vitrail("predict", tmp_path / "whole", picture).code == 0


def test_a_state_dict_on_the_command_line_says_what_is_missing(vitrail, tmp_path):
    torch.save(package.create("vit_mu_patch8_16").state_dict(), tmp_path / "own.pt")
    for verb in ("inspect", "convert"):
        words = ("--to", "bundle") if verb == "convert" else ()
        assert "which does not say its architecture" in sentence(vitrail(verb, tmp_path / "own.pt", *words), 2)


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_labels_and_numbers_of_an_own_loop_are_answered(vitrail, flowers, tmp_path, task):
    model = package.create("vit_mu_patch8_16", outputs=2, init="torch")
    given = {"thresholds": {"round": 0.0, "striped": 1.0}} if task == "multilabel" else {"scaling": ([5, 5], [2, 2])}
    folder = package.save(model, tmp_path / "own", classes=("round", "striped"), task=task, **given)
    assert package.load(folder).scaling == (TargetScaling((5, 5), (2, 2)) if task == "regression" else None)
    with torch.inference_mode():
        outputs = model.eval()(model.preprocess(flowers / "disc" / "0.png"))[0]
    (row,) = json.loads(vitrail("predict", folder, flowers / "disc" / "0.png", "--json").out)
    if task == "regression":
        assert row["value_round"] == pytest.approx(2 * outputs[0].item() + 5, abs=1e-4)
    else:
        assert row["label"] == ["round"]
