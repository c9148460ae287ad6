"""Classes that differ by less than one 8-bit grey level: learnt by command line, and told alike by every interface."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from corpus.films import film, text
from served import form, serving
from vitrail.cli.main import main
from vitrail.data.preprocess import preprocess_image
from vitrail.predict.predictor import Predictor
from vitrail.run import Run

pytestmark = pytest.mark.wide

COUNT, SIDE = 400, 32
CLASSES = ("lying", "upright")


def stripes(middle: int, amplitude: float, noise: float) -> np.ndarray:
    """uint16 [n, 32, 32]: faint stripes, upright in every second picture."""
    generator, (y, x) = np.random.default_rng(0), np.mgrid[:SIDE, :SIDE]
    phases = generator.uniform(0, 2 * np.pi, COUNT)
    waves = np.array([np.sin(np.pi * (x if row % 2 else y) / 4 + phases[row]) for row in range(COUNT)])
    values = middle + (amplitude * waves + generator.normal(0, noise, waves.shape)).clip(-4 * amplitude, 4 * amplitude)
    return np.rint(values).astype(np.uint16)


def write_films(folder: Path, films: np.ndarray, write: Callable[[Path, np.ndarray], Path]) -> list[Path]:
    """A folder for each class; the paths in the order of the films."""
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
    return [write(folder / CLASSES[row % 2] / f"{row:03d}", one) for row, one in enumerate(films)]


def write_png(path: Path, values: np.ndarray) -> Path:
    Image.fromarray(values).save(path.with_suffix(".png"))
    return path.with_suffix(".png")


def write_film_of_12_bits(path: Path, values: np.ndarray) -> Path:
    """MONOCHROME1, where 0 is white."""
    white_is_zero = {(0x28, 0x04): text("CS", "MONOCHROME1")}
    path.with_suffix(".dcm").write_bytes(film(4095 - values, bits=12, more=white_is_zero))
    return path.with_suffix(".dcm")


def train(folder: Path, out: Path, *words: str) -> float:
    """Train by command line; the accuracy on the test pictures."""
    line = ["train", str(folder), "--model", "vit_mu_patch8_16", "--steps", "150", "--out", str(out)]
    assert main([*line, "--device", "cpu", "--compute.precision", "float32", *words]) == 0
    return float(json.loads((out / "metrics-test.json").read_text())["accuracy"])


@dataclass(frozen=True)
class Learnt:
    """A run, its pictures, and what it says of the first twenty."""

    run: Path
    films: np.ndarray
    paths: list[Path]
    expected: np.ndarray


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Learnt:
    folder = tmp_path_factory.mktemp("faint")
    films = stripes(30_050, amplitude=40, noise=15)
    assert len(np.unique(np.rint(films * (255 / 65535)))) == 1, "8 bits would show nothing"
    paths = write_films(folder / "films", films, write_png)
    assert train(folder / "films", folder / "run") >= 0.95
    expected = vitrail.open(folder / "run").predict([str(path) for path in paths[:20]]).probabilities
    assert np.ptp(expected[:, 0]) > 0.5
    return Learnt(folder / "run", films[:20], paths[:20], expected)


def test_the_plan_says_that_16_bits_are_kept_and_8_bits_would_show_nothing(learnt: Learnt, tmp_path: Path) -> None:
    plan = (learnt.run / "plan.toml").read_text()
    assert "bit_depth = 16" in plan and "# 16 bits are kept: of the " in plan
    shallow = train(learnt.paths[0].parents[1], tmp_path / "run", "--image.bit_depth", "8", "--data.range", "16")
    assert shallow <= 0.6


def test_the_command_line_and_onnx_say_the_same(learnt: Learnt, tmp_path: Path) -> None:
    words = [str(path) for path in learnt.paths]
    for more in ((), ("--resize",)):
        out = tmp_path / f"{len(more)}.onnx"
        assert main(["export", str(learnt.run), "--to", "onnx", "--out", str(out), *more]) == 0
        for model in (learnt.run, out):
            table = tmp_path / f"{model.name}-{len(more)}.csv"
            assert main(["predict", str(model), *words, "--to", str(table)]) == 0
            rows = list(csv.DictReader(table.read_text().splitlines()))
            found = [[float(row[f"prob_{name}"]) for name in CLASSES] for row in rows]
            np.testing.assert_allclose(found, learnt.expected, atol=1e-4, err_msg=f"{model} {more}")


def test_arrays_bytes_floats_and_the_bundle_say_the_same(learnt: Learnt) -> None:
    run = vitrail.open(learnt.run)
    assert isinstance(run, Run)
    for images in (list(learnt.films), [path.read_bytes() for path in learnt.paths], list(learnt.films * 1.0)):
        np.testing.assert_allclose(run.predict(images).probabilities, learnt.expected, atol=1e-5)
    found = Predictor.open(learnt.run / "model").predict(learnt.paths).probabilities
    np.testing.assert_allclose(found, learnt.expected, atol=1e-5)


def test_the_server_says_the_same_of_files_forms_and_tensors(learnt: Learnt) -> None:
    spec = Predictor.open(learnt.run).spec
    prepared = np.stack([preprocess_image(path, spec).permute(1, 2, 0).numpy() for path in learnt.paths])
    tensor = {"name": "images", "datatype": "UINT16", "shape": list(prepared.shape), "data": prepared.ravel().tolist()}
    with serving(learnt.run, "--threads", 1, "--workers", 1, "--device", "cpu") as here:
        found = [here.ask("/predict", path.read_bytes()).json for path in learnt.paths]
        in_form = here.ask("/predict", *form(*((path.name, path.read_bytes()) for path in learnt.paths))).json
        said = here.ask("/v2/models/tiny/infer", json.dumps({"inputs": [tensor]}).encode())
        described = here.ask("/v2/models/tiny").json
        explained = here.ask("/explain?method=occlusion", learnt.paths[0].read_bytes())
    for rows in (found, in_form["rows"]):
        chances = [[row[f"prob_{name}"] for name in CLASSES] for row in rows]
        np.testing.assert_allclose(chances, learnt.expected, atol=1e-4)
    assert said.status == explained.status == 200, said.body
    (probabilities,) = (one for one in said.json["outputs"] if one["name"] == "probabilities")
    np.testing.assert_allclose(np.reshape(probabilities["data"], (20, 2)), learnt.expected, atol=1e-4)
    assert described["inputs"][0]["datatype"] == "UINT16"


def test_features_and_maps_are_made_of_them(learnt: Learnt, tmp_path: Path) -> None:
    words = [str(path) for path in learnt.paths]
    assert main(["embed", str(learnt.run), *words, "--to", str(tmp_path / "features.npy")]) == 0
    assert np.load(tmp_path / "features.npy").std(0).max() > 0.1
    assert main(["explain", str(learnt.run), words[0], "--to", str(tmp_path / "maps"), "--method", "occlusion"]) == 0
    assert any((tmp_path / "maps").rglob("*.png"))


def test_an_estimator_learns_them_from_arrays(tmp_path: Path) -> None:
    films = stripes(30_050, amplitude=40, noise=15)
    targets = np.arange(COUNT) % 2
    estimator = vitrail.ViTClassifier(
        model="vit_mu_patch8_16", steps=150, out=tmp_path / "run", device="cpu", settings={"recipe.flip": False}
    )
    estimator.fit(films[:300], targets[:300])
    assert (estimator.predict(films[300:]) == targets[300:]).mean() >= 0.95


def test_a_12_bit_film_whose_white_is_zero_is_learnt_from_its_file_to_its_answer(tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    paths = write_films(tmp_path / "films", stripes(2000, amplitude=80, noise=30), write_film_of_12_bits)
    assert train(tmp_path / "films", tmp_path / "run") >= 0.95
    plan = (tmp_path / "run" / "plan.toml").read_text()
    assert "bit_depth = 16" in plan
    run = vitrail.open(tmp_path / "run")
    answers = run.predict([str(path) for path in paths[:50]])
    assert np.mean(answers.indices == np.arange(50) % 2) >= 0.95
    values = [np.rint(film).astype(np.uint16) for film in stripes(2000, amplitude=80, noise=30)[:50]]
    np.testing.assert_allclose(run.predict(values).probabilities, answers.probabilities, atol=1e-5)
