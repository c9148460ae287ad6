"""Layers with outliers: found, named, and kept in float32 where int8 or float16 would spoil the answers."""

from __future__ import annotations

import onnx
import pytest
import torch

from exportable import member, pictures
from vitrail.errors import DamagedFileError
from vitrail.export import quantize, sensitive_layers, verify
from vitrail.export.quantize import export_reduced_precision
from vitrail.export.sensitive_layers import (
    LayerHarm,
    iter_kept_layers,
    list_overflowing,
    match_layers,
    measure_layers,
    round_inputs,
    round_weights,
)

SPOILT = "encoder.blocks.1.mlp.fc1"


def with_an_outlier(factor: float = 1e4):
    """One row of a fc1 is so large that nothing else of its output counts in 256 levels; fc2 takes it back."""
    one = member()
    mlp = one.model.encoder.blocks[1].mlp
    with torch.no_grad():
        mlp.fc1.weight[3] *= factor
        mlp.fc2.weight[:, 3] /= factor
    return one


def made(one, kind, precision, out, **options):
    seen = list(pictures(one.spec, 40, seed=1))
    return export_reduced_precision(one, kind, precision, out, seen, list(pictures(one.spec, 40, seed=2)), **options)


def test_the_layer_with_an_outlier_is_the_most_harmed_one():
    one = with_an_outlier()
    layers = {layer.name: layer for layer in measure_layers(one, pictures(one.spec, 16))}
    plain = {layer.name: layer for layer in measure_layers(member(), pictures(one.spec, 16))}
    assert list(layers) == list(plain) and SPOILT in layers
    after = SPOILT.replace("fc1", "fc2")
    assert layers[after].int8_error > 5 * plain[after].int8_error
    assert max(layers.values(), key=lambda layer: layer.int8_error).name == after
    assert layers[SPOILT].peak > 1000 * plain[SPOILT].peak
    assert all(0 < layer.int8_error < 0.1 for layer in plain.values())


def test_rounding_is_that_of_int8():
    x = torch.tensor([[-1.0, 0.0, 0.4, 4.1]])
    assert (
        torch.allclose(round_inputs(x), x, atol=5.1 / 255) and len(torch.unique(round_inputs(torch.rand(5000)))) <= 256
    )
    weights = torch.tensor([[0.5, -1.27, 0.014], [100.0, 0.3, 0.0]])
    assert torch.allclose(round_weights(weights)[0], torch.tensor([0.5, -1.27, 0.01]))
    assert round_weights(weights)[1].tolist() == [100.0, 0.0, 0.0]
    assert round_inputs(torch.zeros(2, 2)).tolist() == [[0, 0], [0, 0]]


def test_as_few_layers_as_needed_are_kept_the_worst_first():
    layers = [LayerHarm(str(number), error=float(number), output=100.0) for number in range(9)]
    assert list(iter_kept_layers(layers)) == [("8",), ("8", "7"), ("8", "7", "6", "5")]
    assert list_overflowing([LayerHarm("a", peak=4e4), LayerHarm("b", peak=3e4)]) == ("a",)


def test_matrices_of_a_graph_are_matched_to_layers_by_their_numbers():
    model = member().model
    layer = model.encoder.blocks[0].mlp.fc1.weight.detach().numpy()
    assert match_layers({"a": layer.T.copy(), "b": layer.copy(), "c": layer.T * 2}, model) == {
        "a": "encoder.blocks.0.mlp.fc1"
    }


@pytest.mark.wide
def test_int8_keeps_the_harmed_layers_in_float32_until_its_decisions_are_right(tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "MIN_AGREEMENT", 0.97)
    one = with_an_outlier(1e5)
    agreed = made(one, "onnx", "int8", tmp_path / "model.onnx")
    assert SPOILT.replace("fc1", "fc2") in agreed.kept and len(agreed.kept) <= 4
    assert agreed.same_fraction >= 0.97
    assert f"kept in float32, because int8 harms them: {', '.join(agreed.kept)}" in str(agreed)
    graph = onnx.load(tmp_path / "model.onnx").graph
    stored = [
        tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 2
    ]
    assert len(stored) == 8 - len(agreed.kept)
    forced = made(one, "onnx", "int8", tmp_path / "forced.onnx", force=True)
    assert forced.kept == () and forced.same_fraction < agreed.same_fraction


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_float16_keeps_what_would_overflow_in_float32_and_names_it(kind, tmp_path, monkeypatch):
    one = with_an_outlier(1e6)
    agreed = made(one, kind, "float16", tmp_path / f"model.{kind}")
    assert SPOILT in agreed.kept and SPOILT.replace("fc1", "fc2") in agreed.kept and len(agreed.kept) <= 3
    assert agreed.same_fraction >= 0.99
    monkeypatch.setattr(sensitive_layers, "FLOAT16_LIMIT", float("inf"))
    monkeypatch.setattr(quantize, "list_overflowing", lambda layers: ())
    with pytest.raises(
        DamagedFileError, match=rf"no numbers.* The largest number is in {SPOILT}, [\d,]+, and float16 ends"
    ):
        made(one, kind, "float16", tmp_path / f"other.{kind}")
    assert [path.name for path in tmp_path.iterdir()] == [f"model.{kind}"]
