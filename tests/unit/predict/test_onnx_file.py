"""ONNX files: equal to the run in every kind of model and task, opened without torch."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from exportable import member, pictures
from kinds import KINDS
from vitrail.errors import DamagedFileError, DataError
from vitrail.evaluate.tta import TtaViews
from vitrail.export.build import export_file
from vitrail.model.vit import create_model
from vitrail.predict.onnx_predictor import OnnxPredictor
from vitrail.predict.predictor import Predictor

FEW = [
    ("mean, indexed", "multilabel", "labels"),
    ("class token, learned", "regression", "nothing"),
    ("class token, learned", "classification", "unlike"),
]


@pytest.fixture
def paths(tmp_path):
    """Seven files in colour."""
    generator = np.random.default_rng(0)
    found = [tmp_path / f"{i}.png" for i in range(7)]
    for path in found:
        Image.fromarray(generator.integers(0, 256, (9, 14, 3), dtype=np.uint8)).save(path)
    return found


def grey_member():
    """One that reads grey files, which the members of two channels cannot."""
    one = member("class token, learned", decided="calibrated")
    config = dataclasses.replace(one.model.config, channels=1)
    return dataclasses.replace(
        one, model=create_model(config, seed=1).eval(), spec=dataclasses.replace(one.spec, channels=1)
    )


@pytest.fixture(scope="module")
def grey(tmp_path_factory):
    """Such a member, and its exported file."""
    one = grey_member()
    place = tmp_path_factory.mktemp("onnx") / "model.onnx"
    export_file(one, "onnx", place, list(pictures(one.spec)))
    return one, place


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_part_can_be_written(kind, tmp_path):
    one = member(kind)
    proof, _ = export_file(one, "onnx", tmp_path / "model.onnx", list(pictures(one.spec)))
    assert proof.difference < 2e-5 and proof.num_changed == 0


@pytest.mark.wide
@pytest.mark.first(1)
@pytest.mark.parametrize(("kind", "task", "decided"), FEW)
def test_a_file_answers_as_the_model_does_one_and_five_at_a_time(kind, task, decided, tmp_path):
    one = member(kind, task, decided)
    proof, _ = export_file(one, "onnx", tmp_path / "model.onnx", list(pictures(one.spec)))
    assert proof.num_images == 12 and proof.difference < 2e-5 and proof.num_changed == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.slow
@pytest.mark.parametrize("views", [TtaViews(shift=2, vertical=True), TtaViews(flip=True), TtaViews()])
def test_every_view_is_in_the_graph(views, tmp_path):
    one = member(views=views)
    assert export_file(one, "onnx", tmp_path / "model.onnx", list(pictures(one.spec)))[0].difference < 2e-5


@pytest.mark.wide
def test_outputs_far_from_zero_stay_numbers(tmp_path):
    """log(sigmoid(x)) written as two steps would be minus infinity at -200, and its mean over views no number."""
    one = member("mean, indexed", "multilabel", "labels")
    with torch.no_grad():
        one.model.head.linear.weight.mul_(300)
    images = pictures(one.spec)
    outputs = one.compute_outputs(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()).outputs
    assert outputs.min() < -150 and outputs.max() > 150
    proof, _ = export_file(one, "onnx", tmp_path / "model.onnx", list(images))
    assert proof.difference < 1e-4
    found = OnnxPredictor(tmp_path / "model.onnx").run(images)
    assert np.isfinite(found["logits"]).all()
    np.testing.assert_allclose(found["logits"], outputs, rtol=1e-3, atol=0.05)


@pytest.mark.wide
def test_files_get_the_same_rows_as_from_the_predictor(grey, paths):
    one, place = grey
    found, expected = OnnxPredictor(place).predict(paths, batch_size=3), Predictor([one]).predict(paths)
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-4)
    assert (found.paths, found.ids, found.classes) == (expected.paths, expected.ids, expected.classes)
    np.testing.assert_array_equal(found.indices, expected.indices)
    assert len(OnnxPredictor(place).predict([])) == 0


def test_an_unreadable_picture_is_named_or_left_out(grey, paths):
    paths[2].write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"2\.png"):
        OnnxPredictor(grey[1]).predict(paths)
    found = OnnxPredictor(grey[1]).predict(paths, skip_bad=True)
    assert len(found) == 6 and found.skipped[0][0] == str(paths[2])


def test_the_file_says_its_classes_version_and_hash_and_nothing_of_where_it_was_made(grey):
    notes = {entry.key: entry.value for entry in onnx.load(grey[1]).metadata_props}
    assert json.loads(notes["vitrail.classes"]) == ["cat", "dog", "fish"]
    assert len(json.loads(notes["vitrail.sha256"])) == 64 and json.loads(notes["vitrail.version"])
    assert b"site-packages" not in grey[1].read_bytes() and b"vitrail/export" not in grey[1].read_bytes()


def test_the_input_is_called_images_and_any_number_of_them_is_taken(grey):
    graph = onnx.load(grey[1]).graph
    (given,) = graph.input
    sides = [dimension.dim_param or dimension.dim_value for dimension in given.type.tensor_type.shape.dim]
    assert given.name == "images" and given.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert isinstance(sides[0], str) and sides[1:] == [12, 8, 1]
    assert [output.name for output in graph.output] == ["probabilities", "logits", "decisions", "abstained"]


@pytest.mark.wide
@pytest.mark.parametrize(("fit", "fraction"), [("squash", 0.875), ("pad", 1.0)])
def test_pictures_of_any_size_where_the_graph_resizes(fit, fraction, tmp_path):
    one = member("sincos2d")
    one = dataclasses.replace(one, spec=dataclasses.replace(one.spec, fit=fit, crop_fraction=fraction))
    decoded = [
        picture
        for height, width in [(12, 8), (31, 9), (10, 40)]
        for picture in pictures(dataclasses.replace(one.spec, height=height, width=width), 2)
    ]
    proof, resized = export_file(one, "onnx", tmp_path / "model.onnx", decoded, resize=True)
    assert proof.difference < 0.01 and resized is not None and resized.difference < 0.01
    found, expected = OnnxPredictor(tmp_path / "model.onnx").predict(decoded), Predictor([one]).predict(decoded)
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-4 if fraction == 1 else 0.01)


def test_a_graph_without_our_notes_is_refused(grey, tmp_path):
    model = onnx.load(grey[1])
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "bare.onnx")
    with pytest.raises(DamagedFileError, match="says nothing of its classes and pictures"):
        OnnxPredictor(tmp_path / "bare.onnx")


def test_a_graph_with_other_outputs_than_it_says_is_refused(grey, tmp_path):
    model = onnx.load(grey[1])
    del model.graph.output[-1]
    onnx.save(model, tmp_path / "short.onnx")
    with pytest.raises(DamagedFileError, match=r"must give probabilities, logits, decisions, abstained\. It gives"):
        OnnxPredictor(tmp_path / "short.onnx")


def test_a_model_that_the_runtime_refuses_is_told_with_its_reason(grey, tmp_path):
    model = onnx.load(grey[1])
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(DamagedFileError, match=r"ONNX Runtime cannot open .*odd\.onnx: .*NoSuchOperator"):
        OnnxPredictor(tmp_path / "odd.onnx")


@pytest.mark.first(1)
@pytest.mark.parametrize("ending", ["", ".jsonl", ".parquet"])
def test_torch_is_never_imported(grey, paths, ending, tmp_path):
    to = ["--to", str(tmp_path / f"a{ending}")] if ending else []
    script = (
        "import sys; from vitrail.cli.main import main\n"
        f"code = main(['predict', {str(grey[1])!r}, *{[*map(str, paths), *to]!r}])\n"
        "assert 'torch' not in sys.modules, 'torch'; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == (1 if to else 8)
