"""A repository for Triton: its configuration is read by Triton's own message, and names what the file really has."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format

from exportable import member, pictures
from vitrail.checkpoints.bundle_weights import save_bundle
from vitrail.errors import UsageError
from vitrail.export.triton import choose_model_name
from vitrail.predict.onnx_predictor import OnnxPredictor
from vitrail.services.exporting import ExportOptions, export_model

pytestmark = pytest.mark.needs_tritonclient


def parse_config(path: Path):
    """By tritonclient's message; the package around it would ask for gRPC."""
    folder = Path(importlib.util.find_spec("tritonclient").submodule_search_locations[0])
    spec = importlib.util.spec_from_file_location("model_config_pb2", folder / "grpc" / "model_config_pb2.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return text_format.Parse(path.read_text(encoding="utf-8"), module.ModelConfig())


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    one = member(decided="calibrated")
    folder = tmp_path_factory.mktemp("triton") / "my flowers"
    save_bundle(folder, one.model, one.spec, "classification", one.classes, {})
    return folder, one.spec


def test_the_repository_has_the_proved_file_its_labels_and_a_configuration_that_triton_reads(bundle, tmp_path):
    folder, spec = bundle
    exported = export_model(str(folder), "triton", tmp_path / "repository")
    model = exported.path / "my-flowers"
    assert sorted(path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()) == [
        "1/model.onnx", "config.pbtxt", "labels.txt",
    ]  # fmt: skip
    assert (model / "labels.txt").read_text().split() == ["cat", "dog", "fish"]
    assert exported.notes[-1] == "Triton serves it from this folder, by requests for the model my-flowers"
    config = parse_config(model / "config.pbtxt")
    assert (config.name, config.platform) == ("my-flowers", "onnxruntime_onnx") and config.max_batch_size > 1
    (images,) = config.input
    types = type(config).DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
    assert (images.name, list(images.dims)) == ("images", [spec.height, spec.width, spec.channels])
    assert types[images.data_type].name == "TYPE_UINT8"
    answers = OnnxPredictor(model / "1" / "model.onnx", 1).run(pictures(spec, 4))
    assert [each.name for each in config.output] == list(answers)
    kinds = {"float32": "TYPE_FP32", "float64": "TYPE_FP64", "int64": "TYPE_INT64"}
    for told in config.output:
        found = np.asarray(answers[told.name])
        assert types[told.data_type].name == kinds[str(found.dtype)]
        assert list(told.dims) == (list(found.shape[1:]) or [1])
        assert told.HasField("reshape") == (found.ndim == 1) and not list(told.reshape.shape)
        assert told.label_filename == ("labels.txt" if told.name == "probabilities" else "")


@pytest.mark.wide
def test_pictures_of_any_size_have_open_sides_and_nothing_is_overwritten(bundle, tmp_path):
    exported = export_model(str(bundle[0]), "triton", tmp_path / "any", ExportOptions(resize=True))
    (images,) = parse_config(exported.path / "my-flowers" / "config.pbtxt").input
    assert list(images.dims)[:2] == [-1, -1]
    with pytest.raises(UsageError, match="exists already and is not overwritten"):
        export_model(str(bundle[0]), "triton", tmp_path / "any")


def test_names_are_what_clients_can_send():
    names = [choose_model_name(each) for each in ("run 7/β", "20261128-flowers", "...")]
    assert names == ["run-7", "20261128-flowers", "model"]
