"""Operators of ONNX Runtime's own in the place of patterns: the same answers, and what is no such pattern stays."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from exportable import member, pictures
from vitrail.export import quantize
from vitrail.export.build import write_and_reopen

PRODUCT, ATTENTION = "MatMulIntegerToFloat", "QAttention"
COUNTS = {
    "class token, learned": {ATTENTION: 1, PRODUCT: 7},  # the last block asks for its class token alone
    "mean, indexed": {ATTENTION: 2, PRODUCT: 6},
    "registers, layer scale, packed gate": {ATTENTION: 2, PRODUCT: 6},
    "axial rotary, RMSNorm": {PRODUCT: 8},
    "dinov3": {PRODUCT: 10},
    "parallel, normed queries and keys": {PRODUCT: 8},
    "relative, normed patches": {PRODUCT: 13},  # one with the patches, four with the tables of places
}


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    """Gives a member in int8 as ONNX's own operators, made once, and pictures to ask it about."""

    @cache
    def made(kind: str) -> bytes:
        one, folder = member(kind), tmp_path_factory.mktemp("quantised")
        whole = write_and_reopen(one, "onnx", folder / "float32.onnx", resize=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(quantize, "fuse_operators", lambda model: {})
            facts = replace(whole.metadata, number_format="int8")
            quantize.quantize_onnx(
                folder / "float32.onnx", pictures(one.spec, 20), facts, folder / "int8.onnx", one.model
            )
        return (folder / "int8.onnx").read_bytes()

    return lambda kind: (onnx.load_from_string(made(kind)), pictures(member(kind).spec, 6, seed=1))


def logits(model, images):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(["logits"], {"images": images})[0]


@pytest.mark.wide
@pytest.mark.first(1)
@pytest.mark.parametrize("kind", COUNTS)
def test_fused_graphs_answer_as_before_and_count_what_they_hold(kind, quantised):
    model, images = quantised(kind)
    before = logits(model, images)
    assert quantize.fuse_operators(model) == COUNTS[kind]
    found = Counter(node.op_type for node in model.graph.node)
    assert {name: found[name] for name in COUNTS[kind]} == COUNTS[kind]
    onnx.checker.check_model(model)
    np.testing.assert_allclose(logits(model, images), before, atol=1e-4 * float(np.abs(before).max()))


@pytest.mark.wide
def test_nothing_stays_that_nobody_reads(quantised):
    model, _ = quantised("mean, indexed")
    quantize.fuse_operators(model)
    read = {name for node in model.graph.node for name in node.input} | {"logits"}
    assert {tensor.name for tensor in model.graph.initializer} <= read
    answers = {answer.name for answer in model.graph.output}
    assert all(read.intersection(node.output) or answers.intersection(node.output) for node in model.graph.node)


def test_an_attention_of_another_scale_is_left_as_it_is(quantised):
    model, images = quantised("mean, indexed")
    for tensor in model.graph.initializer:
        if not tensor.dims and np.isclose(float(numpy_helper.to_array(tensor)), 8**-0.5):
            tensor.CopyFrom(numpy_helper.from_array(np.float32(0.3), tensor.name))
    before = logits(model, images)
    assert quantize.fuse_operators(model) == {PRODUCT: 8}
    np.testing.assert_allclose(logits(model, images), before, atol=1e-4 * float(np.abs(before).max()))


@pytest.mark.parametrize("kind", ["scale", "shape", "cut"])
def test_an_attention_with_a_computed_part_is_left_as_it_is(kind, quantised):
    """As in a graph that reads pictures of any size: nothing is known of what is not stored."""
    model, images = quantised("mean, indexed")
    before = logits(model, images)
    changed = {"scale": ("Mul", 1), "shape": ("Reshape", 1), "cut": ("Slice", 1)}[kind]
    stored = {tensor.name for tensor in model.graph.initializer}
    names = {
        node.input[changed[1]]
        for node in model.graph.node
        if node.op_type == changed[0] and node.input[changed[1]] in stored
    }
    copies = [onnx.helper.make_node("Identity", [name], [f"{name}_computed"]) for name in sorted(names)]
    for node in model.graph.node:
        if node.op_type == changed[0] and node.input[changed[1]] in names:
            node.input[changed[1]] += "_computed"
    nodes = [*copies, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert quantize.fuse_operators(model) == {PRODUCT: 8}
    np.testing.assert_allclose(logits(model, images), before, atol=1e-4 * float(np.abs(before).max()))


@pytest.mark.wide
def test_a_graph_of_floats_stays_as_it_is(tmp_path):
    write_and_reopen(member(), "onnx", tmp_path / "float32.onnx", resize=False)
    model = onnx.load(tmp_path / "float32.onnx")
    before = [node.output[0] for node in model.graph.node]
    assert quantize.fuse_operators(model) == {}
    assert [node.output[0] for node in model.graph.node] == before
    assert [known.domain for known in model.opset_import] == [""]


@pytest.mark.wide
def test_a_guard_against_division_by_zero_is_written_however_small_it_is(tmp_path):
    one = member("soft splits")  # its random features underflow: 0 / (0 + 1e-8)
    write_and_reopen(one, "onnx", tmp_path / "float32.onnx", resize=False)
    session = onnxruntime.InferenceSession(tmp_path / "float32.onnx")
    images = np.stack(list(pictures(one.spec)))
    assert all(np.isfinite(found).all() for found in session.run(None, {"images": images}))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kind", "joined", "times"), [("mean, indexed", "Gelu", 2), ("probe, no class token", "FastGelu", 3)]
)
def test_gelu_is_written_as_onnx_runtime_knows_it(kind, joined, times, tmp_path):
    write_and_reopen(member(kind), "onnx", tmp_path / "float32.onnx", resize=False)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "joined.onnx")
    onnxruntime.InferenceSession(tmp_path / "float32.onnx", options)
    found = Counter(node.op_type for node in onnx.load(tmp_path / "joined.onnx").graph.node)
    assert found[joined] + found[f"Bias{joined}"] == times and not found["Erf"] and not found["Tanh"]
