"""A quantised graph in ONNX Runtime's own operators: every product with its bias, every attention with its products.

ONNX Runtime joins a product with its scales by itself, but adds the bias in another pass, and cuts queries, keys and
values apart and turns them around in float32: of ViT-Ti in int8 a quarter of the time. What stands here finds these
patterns as our graphs have them and leaves others as they are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

OWN = "com.microsoft"
"""The domain of these operators: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md"""
APART, TOGETHER, KEYS = [2, 0, 3, 1, 4], [0, 2, 1, 3], [0, 1, 3, 2]
"""Turns of axes: [B, N, 3, h, d] to [3, B, h, N, d]; [B, h, N, d] to [B, N, h, d], and of keys to [B, h, d, N]."""


class Wires:
    """Who makes and who reads each tensor of a graph, and which are stored in it."""

    def __init__(self, graph: Any):
        self.maker = {name: node for node in graph.node for name in node.output}
        self.stored = {tensor.name: tensor for tensor in graph.initializer}
        self.readers: dict[str, list[Any]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self.readers[name].append(node)
        for answer in graph.output:
            self.readers[answer.name].append(answer)

    def follow(self, node: Any, *kinds: str) -> list[Any]:
        """The nodes after one, each the only reader of the one before; none where they are not of these kinds."""
        found: list[Any] = []
        for kind in kinds:
            readers = self.readers[node.output[0]]
            if len(readers) != 1 or getattr(readers[0], "op_type", "") != kind:
                return []
            found.append(node := readers[0])
        return found

    def numbers(self, name: str) -> list[float]:
        """What a stored tensor holds, flat; of one that is computed, nothing."""
        from onnx import numpy_helper

        return numpy_helper.to_array(self.stored[name]).ravel().tolist() if name in self.stored else []

    def whole(self, name: str) -> list[str]:
        """What a dequantised tensor was made of: whole numbers, scale, zero; nothing of another."""
        made = self.maker.get(name)
        return list(made.input) if made is not None and made.op_type == "DequantizeLinear" else []


def fuse(model: Any) -> dict[str, int]:
    """Put the operators in their places, in the model as it is.

    Returns:
        How many there are now of each.
    """
    from onnx import helper

    graph, wires = model.graph, Wires(model.graph)
    made: dict[str, Any] = {}
    for product in graph.node:
        if product.op_type == "MatMul" and all(wires.whole(name) for name in product.input):
            operator = _attention(product, wires) or _product(product, wires)
            made[operator.output[0]] = operator
    nodes = [made.get(node.output[0], node) for node in graph.node]
    kept = _read(nodes, {answer.name for answer in graph.output})
    del graph.node[:]
    graph.node.extend(kept)
    names = {name for node in kept for name in node.input}
    stored = [tensor for tensor in graph.initializer if tensor.name in names]
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend(stored)
    if made and all(known.domain != OWN for known in model.opset_import):
        model.opset_import.append(helper.make_opsetid(OWN, 1))
    kinds = [node.op_type for node in made.values()]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def _product(product: Any, wires: Wires) -> Any:
    """A product of whole numbers to float32, with its bias where one is added."""
    from onnx import helper

    (x, x_scale, x_zero), (w, w_scale, w_zero) = map(wires.whole, product.input)
    end, bias = product, ""
    if found := _biased(product, wires):
        end, bias = found
    inputs = [x, w, x_scale, w_scale, x_zero, w_zero, *([bias] if bias else [])]
    return helper.make_node("MatMulIntegerToFloat", inputs, [end.output[0]], product.name, domain=OWN)


def _attention(product: Any, wires: Wires) -> Any | None:
    """All of an attention, from the product with the matrix of queries, keys and values to its tokens [B, N, D]."""
    from onnx import helper

    (x, x_scale, x_zero), (w, w_scale, w_zero) = map(wires.whole, product.input)
    biased, apart = _biased(product, wires), wires.follow(product, "Add", "Reshape", "Transpose")
    if not biased or not apart or _turn(apart[2]) != APART:
        return None
    thirds = {_third(node, wires): node for node in wires.readers[apart[2].output[0]]}
    if sorted(thirds) != [0, 1, 2]:
        return None
    queries = wires.follow(thirds[0], "Squeeze", "Mul", "MatMul", "Softmax", "MatMul", "Transpose", "Reshape")
    keys = wires.follow(thirds[1], "Squeeze", "Transpose", "MatMul")
    values = wires.follow(thirds[2], "Squeeze", "MatMul")
    if not (queries and keys and values):
        return None
    _, scaled, alike, _, mixed, together, tokens = queries
    *_, heads, width = 0, 0, *wires.numbers(apart[1].input[1])
    scales = [number for name in scaled.input for number in wires.numbers(name)]
    as_expected = (
        list(alike.input) == [scaled.output[0], keys[1].output[0]]
        and list(mixed.input) == [queries[3].output[0], values[0].output[0]]
        and (_turn(keys[1]), _turn(together)) == (KEYS, TOGETHER)
        and wires.numbers(tokens.input[1])[2:] == [heads * width] != [0]
        and len(scales) == 1
        and math.isclose(scales[0], width**-0.5, rel_tol=1e-6)
    )
    if not as_expected:
        return None
    inputs = [x, w, biased[1], x_scale, w_scale, "", x_zero, w_zero]
    return helper.make_node("QAttention", inputs, [tokens.output[0]], product.name, domain=OWN, num_heads=int(heads))


def _biased(product: Any, wires: Wires) -> tuple[Any, str] | None:
    """The addition of a stored vector to a product, and that vector."""
    for add in wires.follow(product, "Add"):
        for name in add.input:
            if name in wires.stored and len(wires.stored[name].dims) == 1:
                return add, name
    return None


def _third(node: Any, wires: Wires) -> int:
    """Which of queries, keys and values (0, 1, 2) is cut off along the first axis; -1 if it is something else."""
    if getattr(node, "op_type", "") != "Slice" or len(node.input) != 4:
        return -1
    begin, end, axis = (wires.numbers(name) for name in node.input[1:])
    return int(begin[0]) if axis == [0] and len(begin) == 1 and end == [begin[0] + 1] else -1


def _turn(node: Any) -> list[int]:
    """The order of axes that a Transpose makes."""
    return next((list(found.ints) for found in node.attribute if found.name == "perm"), [])


def _read(nodes: list[Any], wanted: set[str]) -> list[Any]:
    """The nodes that something wanted depends on, in their order."""
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted |= set(node.input)
    return kept[::-1]
