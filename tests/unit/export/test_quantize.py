"""Files of fewer bits: they decide as float32 does, say how often and how fast, and are not kept otherwise."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from exportable import member, pictures
from vitrail.errors import DamagedFileError, UsageError
from vitrail.export import verify
from vitrail.export.build import Pt2File
from vitrail.export.quantize import export_reduced_precision
from vitrail.predict.onnx_predictor import OnnxPredictor

CASES = [("onnx", "int8"), ("onnx", "float16"), ("pt2", "bf16")]
OTHERS = [
    ("onnx", "int8", "relative, normed patches", "multilabel", "labels"),
    ("pt2", "bf16", "soft splits", "regression", "nothing"),
]
OTHERS += [
    ("pt2", "bf16", "dinov3", "classification", "unlike"),
    ("onnx", "int8", "dinov3", "classification", "unlike"),
]
OTHERS += [("pt2", "float16", "mean, indexed", "multilabel", "labels")]


def made(one, kind, precision, out, force=False):
    seen = pictures(one.spec, 40, seed=1)
    return export_reduced_precision(
        one, kind, precision, out, list(seen), list(pictures(one.spec, 40, seed=2)), force=force
    )


@pytest.mark.wide
@pytest.mark.parametrize(("kind", "precision"), CASES)
def test_a_smaller_file_decides_almost_as_float32_does_and_says_so(kind, precision, tmp_path):
    one = member(decided="calibrated")
    agreed = made(one, kind, precision, tmp_path / f"model.{kind}", force=True)
    assert [path.name for path in tmp_path.iterdir()] == [f"model.{kind}"]
    assert agreed.num_images == 40 and agreed.same_fraction >= 0.9 and 1e-6 < agreed.difference < 0.2
    assert list(agreed.rates) == ["float32 in PyTorch", "float32 file", f"{precision} file"]
    assert all(rate > 0 for rate in agreed.rates.values())
    assert str(agreed).startswith(
        f"{precision} agrees with float32 in {agreed.same_fraction:.2%} of the classes of 40 pictures"
    )
    file = (OnnxPredictor if kind == "onnx" else Pt2File)(tmp_path / f"model.{kind}")
    assert file.metadata.number_format == {"bf16": "bfloat16"}.get(precision, precision)
    assert file.metadata.classes == ("cat", "dog", "fish")


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "precision", "parts", "task", "decided"), OTHERS)
def test_other_parts_and_tasks_can_be_smaller_too(kind, precision, parts, task, decided, tmp_path):
    agreed = made(member(parts, task, decided), kind, precision, tmp_path / f"model.{kind}", force=True)
    assert agreed.same_fraction > 0.7 and np.isfinite(agreed.difference)


def test_int8_has_whole_numbers_for_the_matrices_of_the_blocks_and_a_scale_for_each_output(tmp_path):
    made(member(), "onnx", "int8", tmp_path / "model.onnx", force=True)
    graph = onnx.load(tmp_path / "model.onnx").graph
    int8 = [tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT8]
    shapes = [list(tensor.dims) for tensor in int8 if len(tensor.dims) == 2]
    assert sorted(shapes) == sorted([[16, 48], [16, 16], [16, 24], [24, 16]] * 2)
    assert [node.op_type for node in graph.node].count("QAttention") == 1
    scales = {tensor.name: list(tensor.dims) for tensor in graph.initializer if tensor.name.endswith("_scale")}
    assert [48] in scales.values() and [24] in scales.values()
    assert {node.op_type for node in graph.node} >= {"Softmax", "LayerNormalization"}


@pytest.mark.wide
def test_matrices_in_half_the_bits_take_half_the_room(tmp_path):
    made(member(), "pt2", "bf16", tmp_path / "model.pt2", force=True)
    weights = torch.export.load(tmp_path / "model.pt2").state_dict
    halves = {name for name, tensor in weights.items() if tensor.dtype == torch.bfloat16}
    assert any(name.endswith("mlp.fc1.weight") for name in halves)
    assert not any("norm" in name for name in halves)


@pytest.mark.wide
def test_a_file_that_decides_otherwise_is_kept_only_by_force(tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "MIN_AGREEMENT", 1.01)
    said = r"In int8 only \d+\.\d\d% of the classes of 40 pictures are answered as in float32, and 101% is asked for"
    with pytest.raises(DamagedFileError, match=said):
        made(member(), "onnx", "int8", tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
    made(member(), "onnx", "int8", tmp_path / "model.onnx", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(("kind", "precision", "other"), [("onnx", "bf16", "pt2"), ("pt2", "int8", "onnx")])
def test_what_a_kind_of_file_cannot_compute_in_is_refused_at_once(kind, precision, other, tmp_path):
    with pytest.raises(UsageError, match=rf"and not in {precision}\. Use --to {other} for it"):
        export_reduced_precision(member(), kind, precision, tmp_path / f"model.{kind}", [], [])


@pytest.mark.wide
@pytest.mark.parametrize("parts", ["probe, no class token", "soft splits"])
def test_a_norm_that_is_given_float16_computes_in_float32(parts, tmp_path):
    agreed = made(member(parts, decided="calibrated"), "onnx", "float16", tmp_path / "model.onnx")
    assert agreed.same_fraction == 1 and agreed.difference < 0.02
