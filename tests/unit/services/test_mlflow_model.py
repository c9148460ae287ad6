"""A model in MLflow's format: opened by MLflow itself, it answers as the run does."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas
import pytest
import yaml

from exportable import member, pictures
from vitrail.checkpoints.bundle_weights import save_bundle
from vitrail.errors import DamagedFileError, DataError, UsageError
from vitrail.predict.predictor import Predictor
from vitrail.services import mlflow_model
from vitrail.services.exporting import ExportOptions, export_model
from vitrail.services.mlflow_model import PyfuncModel, _load_pyfunc
from vitrail.services.prediction import open_predictor


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A bundle with a temperature and what is unlike the training, and its folder for MLflow."""
    one = member(decided="calibrated")
    bundle = tmp_path_factory.mktemp("mlflow") / "cats"
    info = {"temperature": 0.7}
    save_bundle(bundle, one.model, one.spec, "classification", one.classes, info)
    done = export_model(str(bundle), "mlflow")
    return bundle, done, list(pictures(one.spec, 5, seed=3))


def test_the_folder_names_its_loader_and_says_columns_in_and_out(exported):
    bundle, done, _ = exported
    assert done.path == bundle.with_name("cats-mlflow") and done.difference == 0
    assert done.notes[0] == "compared on 100 pictures: scores differ by at most 0, every decision is the same"
    told = yaml.safe_load((done.path / "MLmodel").read_text())
    flavor = told["flavors"]["python_function"]
    assert flavor["loader_module"] == "vitrail.services.mlflow_model" and (done.path / flavor["data"]).is_dir()
    assert json.loads(told["signature"]["inputs"]) == [{"type": "any", "name": "image", "required": True}]
    names = [column["name"] for column in json.loads(told["signature"]["outputs"])]
    assert names == list(open_predictor(bundle).predict([np.zeros((12, 8, 2), np.uint8)]).all_typed_columns())
    assert (done.path / "requirements.txt").read_text().startswith("vitrail==")


def test_arrays_paths_and_bytes_are_answered_as_predict_does(exported, tmp_path):
    bundle, done, images = exported
    model = _load_pyfunc(str(done.path / "data"))
    expected = open_predictor(bundle).predict(images).to_pandas()
    assert model.predict(pandas.DataFrame({"image": images})).equals(expected)
    paths = [tmp_path / f"{row}.npy" for row in range(5)]
    for path, image in zip(paths, images, strict=True):
        np.save(path, image)
    by_path = model.predict(pandas.DataFrame({"image": list(map(str, paths))}))
    assert by_path["path"].tolist() == list(map(str, paths))
    by_bytes = model.predict(pandas.DataFrame({"image": [path.read_bytes() for path in paths]}))
    scores = [name for name in expected if expected[name].dtype == np.float32]
    assert scores and all(frame[scores].equals(expected[scores]) for frame in (by_path, by_bytes))


def test_what_is_no_image_is_said_in_one_sentence(exported, tmp_path):
    model = PyfuncModel(open_predictor(exported[0]))
    with pytest.raises(UsageError, match=r"belong into a column named image\. Got path, id\."):
        model.predict(pandas.DataFrame({"path": ["a"], "id": ["b"]}))
    with pytest.raises(UsageError, match=r"An image is a path, .* Got int in the column image\."):
        model.predict(pandas.DataFrame({"image": [3]}))
    with pytest.raises(DataError, match=r"none\.png"):
        model.predict(pandas.DataFrame({"image": [str(tmp_path / "none.png")]}))


def test_nothing_is_overwritten_kept_in_other_bits_or_kept_if_it_answers_otherwise(exported, tmp_path, monkeypatch):
    bundle, _, images = exported
    with pytest.raises(UsageError, match="exists already and is not overwritten"):
        export_model(str(bundle), "mlflow")
    with pytest.raises(UsageError, match="--resize and --precision are for onnx"):
        export_model(str(bundle), "mlflow", tmp_path / "m", ExportOptions(precision="int8"))
    opened = open_predictor(bundle, "cpu")
    other = Predictor([dataclasses.replace(opened.single_member(), decisions=member(decided="unsure").decisions)])
    answers = iter([opened, other])
    monkeypatch.setattr(mlflow_model, "open_predictor", lambda *words: next(answers))
    with pytest.raises(DamagedFileError, match="answers otherwise than the run: scores differ by up to"):
        mlflow_model.export_mlflow(str(bundle), tmp_path / "m", images)
    assert not list(tmp_path.iterdir())


@pytest.mark.needs_mlflow
@pytest.mark.filterwarnings("ignore")  # MLflow's own, about its types
@pytest.mark.wide
def test_mlflow_opens_it_and_gives_the_rows_of_predict(exported, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow.pyfunc

    bundle, done, images = exported
    model = mlflow.pyfunc.load_model(str(done.path))
    expected = open_predictor(bundle).predict(images).to_pandas()
    assert model.predict(pandas.DataFrame({"image": images})).equals(expected)
    np.save(tmp_path / "0.npy", images[0])
    (row,) = model.predict(pandas.DataFrame({"image": [str(tmp_path / "0.npy")]})).to_dict("records")
    assert row["path"] == str(tmp_path / "0.npy") and row["label"] == expected["label"][0]
    assert model.metadata.signature.inputs.input_names() == ["image"]
    assert model.metadata.signature.outputs.input_names() == list(expected)
    with pytest.raises(mlflow.exceptions.MlflowException, match="Model is missing inputs"):
        model.predict(pandas.DataFrame({"path": ["a"]}))
