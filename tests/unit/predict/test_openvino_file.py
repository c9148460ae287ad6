"""OpenVINO files: equal to the run in several kinds of model and task, and refused in one sentence where damaged."""

from __future__ import annotations

import dataclasses
import shutil
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from exportable import member, pictures
from vitrail.checkpoints.bundle_weights import save_bundle
from vitrail.errors import DamagedFileError, UsageError
from vitrail.export import build
from vitrail.export.build import export_file
from vitrail.export.decision_tensors import round_thresholds
from vitrail.export.quantize import export_reduced_precision
from vitrail.predict.openvino_predictor import OpenVinoPredictor
from vitrail.predict.predictor import Predictor
from vitrail.services.exporting import ExportOptions, export_model
from vitrail.services.predict_file import find_file_engine, open_file_predictor

FEW = [
    ("mean, indexed", "multilabel", "labels"),
    ("class token, learned", "regression", "nothing"),
    ("class token, learned", "classification", "positive"),
]
here = pytest.mark.needs_openvino


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A member that abstains, its file, and what the comparison said."""
    one = member("class token, learned", decided="unlike")
    place = tmp_path_factory.mktemp("openvino") / "model.xml"
    proof, _ = export_file(one, "openvino", place, list(pictures(one.spec)))
    return one, place, proof


@pytest.fixture
def copied(exported, tmp_path):
    """A copy of the file that a test may damage."""
    for path in exported[1].parent.iterdir():
        shutil.copyfile(path, tmp_path / path.name)
    return tmp_path / "model.xml"


@here
def test_a_file_answers_as_the_model_does_with_types_and_names_of_the_onnx_file(exported):
    one, place, proof = exported
    assert proof.num_images == 12 and proof.difference < 2e-5 and proof.num_changed == 0
    assert sorted(path.name for path in place.parent.iterdir()) == ["model.bin", "model.xml"]
    file = OpenVinoPredictor(place, 1)
    outputs = file.run(pictures(one.spec, 4))
    assert {name: (str(values.dtype), values.shape) for name, values in outputs.items()} == {
        "probabilities": ("float32", (4, 3)), "logits": ("float32", (4, 3)), "decisions": ("int64", (4,)),
        "abstained": ("int64", (4,)), "distances": ("float64", (4,)),
    }  # fmt: skip
    decoded = list(pictures(one.spec, 5, seed=3))
    found, expected = file.predict(decoded, batch_size=2), Predictor([one]).predict(decoded)
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-5)
    assert found.abstain_reasons == expected.abstain_reasons and "unlike" in found.abstain_reasons
    assert len(file.predict([])) == 0 and file.metadata.number_format == "float32"


@here
@pytest.mark.wide
@pytest.mark.parametrize(("kind", "task", "decided"), FEW)
def test_other_tasks(kind, task, decided, tmp_path):
    one = member(kind, task, decided)
    proof, _ = export_file(one, "openvino", tmp_path / "model.xml", list(pictures(one.spec)))
    assert proof.difference < 2e-5 and proof.num_changed == 0


@here
@pytest.mark.wide
def test_pictures_of_any_size_and_of_16_bits(tmp_path):
    one = member("sincos2d")
    large = pictures(dataclasses.replace(one.spec, height=31, width=29), 6)
    _, resized = export_file(one, "openvino", tmp_path / "any.xml", list(large), resize=True)
    assert resized is not None and resized.difference < 0.01
    deep = dataclasses.replace(one, spec=dataclasses.replace(one.spec, bit_depth=16))
    proof, _ = export_file(deep, "openvino", tmp_path / "deep.xml", list(pictures(deep.spec).astype(np.uint16) * 257))
    assert proof.difference < 2e-5


@here
@pytest.mark.wide
def test_int8_is_in_standard_operators_and_decides_almost_as_float32_does(tmp_path):
    one = member(decided="calibrated")
    seen = list(pictures(one.spec, 40, seed=1))
    agreed = export_reduced_precision(
        one, "openvino", "int8", tmp_path / "model-int8.xml", seen, list(pictures(one.spec, 40, seed=2)), force=True
    )
    assert agreed.same_fraction >= 0.9 and 1e-6 < agreed.difference < 0.2
    assert list(agreed.rates) == ["float32 in PyTorch", "float32 file", "int8 file"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model-int8.bin", "model-int8.xml"]
    graph = (tmp_path / "model-int8.xml").read_text()
    assert 'element_type="i8"' in graph and "com.microsoft" not in graph
    assert OpenVinoPredictor(tmp_path / "model-int8.xml").metadata.number_format == "int8"
    with pytest.raises(UsageError, match=r"openvino files compute in float32, int8, and not in bf16\. Use --to pt2"):
        export_reduced_precision(one, "openvino", "bf16", tmp_path / "b.xml", seen)


@here
@pytest.mark.wide
def test_a_bundle_is_exported_beside_itself_and_neither_file_is_overwritten(tmp_path):
    one = member(decided="calibrated")
    save_bundle(tmp_path / "cats", one.model, one.spec, "classification", one.classes, {})
    done = export_model(str(tmp_path / "cats"), "openvino")
    assert done.path == tmp_path / "cats.xml" and done.path.with_suffix(".bin").is_file() and done.to == "openvino"
    (tmp_path / "other.bin").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"other\.bin exists already and is not overwritten"):
        export_model(str(tmp_path / "cats"), str(tmp_path / "other.xml"))
    with pytest.raises(UsageError, match=r"openvino is one file, whose name must end in \.xml\. Got x\.bin"):
        export_model(str(tmp_path / "cats"), "openvino", build.Path("x.bin"))
    with pytest.raises(UsageError, match="and not in float16"):
        export_model(str(tmp_path / "cats"), "openvino", tmp_path / "c.xml", ExportOptions(precision="float16"))


DAMAGES = {
    "cut": (lambda graph: graph[: len(graph) // 2], r"OpenVINO \S+ cannot open .*model\.xml: .*Use another copy"),
    "empty": (lambda graph: "", r"model\.xml is no graph of OpenVINO\. Use another copy"),
    "other": (lambda graph: "<?xml version='1.0'?><svg/>", r"model\.xml is no graph of OpenVINO"),
    "newer": (
        lambda graph: graph.replace('version="opset1"', 'version="opset99"').replace('value="2026', 'value="2029'),
        r"OpenVINO 20\S+ cannot open .*model\.xml, written by OpenVINO 2029\S+: .*opset99",
    ),
    "foreign": (lambda graph: graph.replace("vitrail.", "another."), "says nothing of its classes and pictures"),
    "renamed": (
        lambda graph: graph.replace("distances", "lengths").replace("lengths&quot;]", "distances&quot;]"),
        r"must give probabilities, logits, decisions, abstained, distances\. It gives ",
    ),
}


@here
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_graph_is_refused_in_one_sentence(damage, copied):
    change, said = DAMAGES[damage]
    before = copied.read_text()
    copied.write_text(change(before))
    assert copied.read_text() != before
    with pytest.raises(DamagedFileError, match=said) as refused:
        OpenVinoPredictor(copied)
    assert "\n" not in str(refused.value)


@here
def test_weights_that_are_missing_or_cut_are_refused(copied):
    weights = copied.with_suffix(".bin")
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedFileError, match=r"OpenVINO \S+ cannot open .*model\.xml: .*Use another copy"):
        OpenVinoPredictor(copied)
    weights.unlink()
    with pytest.raises(DamagedFileError, match=r"has its weights in model\.bin, which is not there"):
        OpenVinoPredictor(copied)


@here
def test_the_command_line_answers_without_torch(exported, tmp_path, monkeypatch):
    from vitrail.cli.main import main

    one, place, _ = exported
    files = []
    for row, image in enumerate(pictures(one.spec, 2)):
        np.save(tmp_path / f"{row}.npy", image)
        files.append(str(tmp_path / f"{row}.npy"))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    to = tmp_path / "rows.csv"
    assert main(["predict", str(place), *files, "--to", str(to)]) == 0
    assert "torch" not in sys.modules and len(to.read_text().splitlines()) == 3


def test_engines_are_found_by_the_file_or_by_name(tmp_path):
    asked = [("a.xml",), ("a.ONNX", "onnx"), ("run", "openvino"), ("run", "ray")]
    assert [find_file_engine(*words) for words in asked] == ["openvino", "onnx", "openvino", ""]
    with pytest.raises(UsageError, match=r"a\.xml is answered by --engine openvino\. Got --engine onnx; leave it out"):
        find_file_engine("a.xml", "onnx")
    with pytest.raises(UsageError, match=r"has no exports/model\.xml\. Make it with: vitrail export .* --to openvino"):
        open_file_predictor(str(tmp_path), "openvino", "auto", {})
    with pytest.raises(UsageError, match="An OpenVINO file is needed at"):
        open_file_predictor(str(tmp_path / "no.xml"), "openvino", "cpu", {})


def test_without_openvino_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    for name in ("model.xml", "model.bin"):
        (tmp_path / name).write_bytes(b"<net></net>")
    with pytest.raises(UsageError, match=r"which is not installed: pip install 'vitrail\[openvino\]'"):
        OpenVinoPredictor(tmp_path / "model.xml")
    one = member()
    with pytest.raises(UsageError, match=r"pip install 'vitrail\[openvino\]'"):
        export_file(one, "openvino", tmp_path / "new.xml", list(pictures(one.spec)))


class Rules(nn.Module):
    """Thresholds as a graph holds them."""

    def __init__(self, task, threshold):
        super().__init__()
        self.task = task
        for name in ("thresholds", "unlike", "calibration"):
            self.register_buffer(name, torch.tensor([threshold], dtype=torch.float64))


@given(threshold=st.floats(-100, 100), steps=st.integers(-3, 3))
def test_thresholds_of_float32_decide_every_score_as_those_of_float64(threshold, steps):
    score = np.float32(threshold)
    for _ in range(abs(steps)):
        score = np.nextafter(score, np.float32(np.inf if steps > 0 else -np.inf))
    for task in ("multilabel", "anomaly"):
        rules = Rules(task, threshold)
        round_thresholds(rules)
        near = {name: values.float().item() for name, values in rules.named_buffers()}
        assert near == {name: values.item() for name, values in rules.named_buffers()}
        s = float(score)
        assert (s > near["unlike"]) == (s > threshold) and (near["calibration"] >= s) == (threshold >= s)
        reached = np.greater if task == "anomaly" else np.greater_equal
        assert reached(s, near["thresholds"]) == reached(s, threshold)
