"""A quantised graph in ONNX Runtime's own operators: every product with its bias, every attention with its products.

ONNX Runtime joins a product with its scales by itself, but adds the bias in another pass, and cuts queries, keys and
values apart and turns them around in float32: of ViT-Ti in int8 a quarter of the time. What stands here finds these
patterns as our graphs have them and leaves others as they are.
"""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import UInt8

from ..data.preprocess import to_batch_tensor
from ..errors import UsageError
from ..files.atomic import commit_draft, make_draft
from ..predict import exported
from ..predict.exported import ExportMetadata
from ..predict.predictor import PredictorMember
from . import verify
from .build import ExportedFile, ExportFormat, check_export_path, reopen_file, write_and_reopen
from .verify import PrecisionAgreement, check_agreement, compare_with_float32, preprocess_decoded

CONTRIB_DOMAIN = "com.microsoft"
"""The domain of these operators: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md"""
SPLIT_HEADS_AXES, MERGE_HEADS_AXES, TRANSPOSE_KEYS_AXES = [2, 0, 3, 1, 4], [0, 2, 1, 3], [0, 1, 3, 2]
"""Turns of axes: [B, N, 3, h, d] to [3, B, h, N, d]; [B, h, N, d] to [B, N, h, d], and of keys to [B, h, d, N]."""


class GraphIndex:
    """Who makes and who reads each tensor of a graph, and which are stored in it."""

    def __init__(self, graph: Any):
        self.producers = {name: node for node in graph.node for name in node.output}
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.consumers: dict[str, list[Any]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self.consumers[name].append(node)
        for answer in graph.output:
            self.consumers[answer.name].append(answer)

    def follow_consumers(self, node: Any, *kinds: str) -> list[Any]:
        """The nodes after one, each the only reader of the one before; none where they are not of these kinds."""
        found: list[Any] = []
        for kind in kinds:
            readers = self.consumers[node.output[0]]
            if len(readers) != 1 or getattr(readers[0], "op_type", "") != kind:
                return []
            found.append(node := readers[0])
        return found

    def constant_values(self, name: str) -> list[float]:
        """What a stored tensor holds, flat; of one that is computed, nothing."""
        from onnx import numpy_helper

        return numpy_helper.to_array(self.initializers[name]).ravel().tolist() if name in self.initializers else []

    def dequantize_inputs(self, name: str) -> list[str]:
        """What a dequantised tensor was made of: whole numbers, scale, zero; nothing of another."""
        made = self.producers.get(name)
        return list(made.input) if made is not None and made.op_type == "DequantizeLinear" else []


def fuse_operators(model: Any) -> dict[str, int]:
    """Put the operators in their places, in the model as it is.

    Returns:
        How many there are now of each.
    """
    from onnx import helper

    graph, wires = model.graph, GraphIndex(model.graph)
    made: dict[str, Any] = {}
    for product in graph.node:
        if product.op_type == "MatMul" and all(wires.dequantize_inputs(name) for name in product.input):
            operator = _fuse_attention(product, wires) or _fuse_matmul(product, wires)
            made[operator.output[0]] = operator
    nodes = [made.get(node.output[0], node) for node in graph.node]
    kept = _keep_needed_nodes(nodes, {answer.name for answer in graph.output})
    del graph.node[:]
    graph.node.extend(kept)
    names = {name for node in kept for name in node.input}
    stored = [tensor for tensor in graph.initializer if tensor.name in names]
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend(stored)
    if made and all(known.domain != CONTRIB_DOMAIN for known in model.opset_import):
        model.opset_import.append(helper.make_opsetid(CONTRIB_DOMAIN, 1))
    kinds = [node.op_type for node in made.values()]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def _fuse_matmul(product: Any, index: GraphIndex) -> Any:
    """A product of whole numbers to float32, with its bias where one is added."""
    from onnx import helper

    (x, x_scale, x_zero), (w, w_scale, w_zero) = map(index.dequantize_inputs, product.input)
    end, bias = product, ""
    if found := _find_bias_add(product, index):
        end, bias = found
    inputs = [x, w, x_scale, w_scale, x_zero, w_zero, *([bias] if bias else [])]
    return helper.make_node("MatMulIntegerToFloat", inputs, [end.output[0]], product.name, domain=CONTRIB_DOMAIN)


def _fuse_attention(product: Any, index: GraphIndex) -> Any | None:
    """All of an attention, from the product with the matrix of queries, keys and values to its tokens [B, N, D]."""
    from onnx import helper

    (x, x_scale, x_zero), (w, w_scale, w_zero) = map(index.dequantize_inputs, product.input)
    biased, apart = _find_bias_add(product, index), index.follow_consumers(product, "Add", "Reshape", "Transpose")
    if not biased or not apart or _transpose_axes(apart[2]) != SPLIT_HEADS_AXES:
        return None
    thirds = {_qkv_slice_index(node, index): node for node in index.consumers[apart[2].output[0]]}
    if sorted(thirds) != [0, 1, 2]:
        return None
    queries = index.follow_consumers(thirds[0], "Squeeze", "Mul", "MatMul", "Softmax", "MatMul", "Transpose", "Reshape")
    keys = index.follow_consumers(thirds[1], "Squeeze", "Transpose", "MatMul")
    values = index.follow_consumers(thirds[2], "Squeeze", "MatMul")
    if not (queries and keys and values):
        return None
    _, scaled, alike, _, mixed, together, tokens = queries
    *_, heads, width = 0, 0, *index.constant_values(apart[1].input[1])
    scales = [number for name in scaled.input for number in index.constant_values(name)]
    as_expected = (
        list(alike.input) == [scaled.output[0], keys[1].output[0]]
        and list(mixed.input) == [queries[3].output[0], values[0].output[0]]
        and (_transpose_axes(keys[1]), _transpose_axes(together)) == (TRANSPOSE_KEYS_AXES, MERGE_HEADS_AXES)
        and index.constant_values(tokens.input[1])[2:] == [heads * width] != [0]
        and len(scales) == 1
        and math.isclose(scales[0], width**-0.5, rel_tol=1e-6)
    )
    if not as_expected:
        return None
    inputs = [x, w, biased[1], x_scale, w_scale, "", x_zero, w_zero]
    return helper.make_node(
        "QAttention", inputs, [tokens.output[0]], product.name, domain=CONTRIB_DOMAIN, num_heads=int(heads)
    )


def _find_bias_add(product: Any, index: GraphIndex) -> tuple[Any, str] | None:
    """The addition of a stored vector to a product, and that vector."""
    for add in index.follow_consumers(product, "Add"):
        for name in add.input:
            if name in index.initializers and len(index.initializers[name].dims) == 1:
                return add, name
    return None


def _qkv_slice_index(node: Any, index: GraphIndex) -> int:
    """Which of queries, keys and values (0, 1, 2) is cut off along the first axis; -1 if it is something else."""
    if getattr(node, "op_type", "") != "Slice" or len(node.input) != 4:
        return -1
    begin, end, axis = (index.constant_values(name) for name in node.input[1:])
    return int(begin[0]) if axis == [0] and len(begin) == 1 and end == [begin[0] + 1] else -1


def _transpose_axes(node: Any) -> list[int]:
    """The order of axes that a Transpose makes."""
    return next((list(found.ints) for found in node.attribute if found.name == "perm"), [])


def _keep_needed_nodes(nodes: list[Any], needed: set[str]) -> list[Any]:
    """The nodes that something wanted depends on, in their order."""
    kept = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            kept.append(node)
            needed |= set(node.input)
    return kept[::-1]


# A file that computes in fewer bits: its answers and speed beside those of float32, kept if it decides alike.

ExportPrecision = Literal["float32", "int8", "bf16", "float16"]
EXPORT_PRECISIONS: tuple[ExportPrecision, ...] = get_args(ExportPrecision)
TORCH_PRECISIONS: dict[ExportPrecision, str] = {"bf16": "bfloat16", "float16": "float16"}
SUPPORTED_PRECISIONS: dict[ExportFormat, tuple[ExportPrecision, ...]] = {
    "onnx": ("float32", "int8", "float16"),
    "pt2": ("float32", "bf16", "float16"),
}
"""What each kind of file computes in on a CPU: ONNX Runtime has no products in bf16 there, PyTorch's graphs no int8."""


def export_reduced_precision(
    member: PredictorMember,
    file_format: ExportFormat,
    precision: ExportPrecision,
    out: Path,
    decoded: Sequence[np.ndarray],
    calibration: Sequence[np.ndarray] = (),
    resize: bool = False,
    force: bool = False,
) -> PrecisionAgreement:
    """Write a model as one file that answers almost as it does in float32, and say how nearly and how fast.

    Args:
        decoded: images as `data.decode` gives them, on which the file is compared with the model; at least one.
        calibration: of int8, images that the ranges of activations are read from; at least one.
        resize: let the file take images of any size.
        force: keep it although too many decisions differ.

    Raises:
        UsageError: `out` exists or has the wrong ending, or such a file cannot compute in that precision.
        DamagedFileError: too many decisions differ, or the file's decisions do not follow from its scores; nothing is
            kept.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    check_export_path(out, file_format)
    check_precision_support(file_format, precision)
    exact = replace(member, settings=replace(member.settings, precision="float32"))
    pictures = preprocess_decoded(decoded, exact.spec)
    with make_draft(out) as place, tempfile.TemporaryDirectory() as elsewhere:
        aside = Path(elsewhere) / f"float32.{file_format}"
        whole = write_and_reopen(exact, file_format, aside, resize)
        if precision == "int8":
            facts = replace(whole.metadata, number_format=precision)
            quantize_onnx(aside, preprocess_decoded(calibration, exact.spec), facts, place)
            file = reopen_file(place, file_format)
        else:
            file = write_and_reopen(exact, file_format, place, resize, TORCH_PRECISIONS[precision])
        same, difference = compare_with_float32(file.run, file.metadata, exact, pictures)
        agreed = PrecisionAgreement(
            precision=precision, task=member.task, num_images=len(pictures), same_fraction=same, difference=difference,
            rates=verify.measure_rates(_functions_to_time(exact, whole, file, precision), pictures),
        )  # fmt: skip
        if not force:
            check_agreement(agreed)
        commit_draft(place, out)
    return agreed


def check_precision_support(file_format: ExportFormat, precision: ExportPrecision) -> None:
    """Refuse what a kind of file cannot compute in, before anything is done for it.

    Raises:
        UsageError: it cannot; the message names the kind that can.
    """
    if precision not in SUPPORTED_PRECISIONS[file_format]:
        other = next(name for name, able in SUPPORTED_PRECISIONS.items() if precision in able)
        raise UsageError(
            f"{file_format} files compute in {', '.join(SUPPORTED_PRECISIONS[file_format])}, and not in "
            f"{precision}. Use --to "
            f"{other} for it."
        )


def _functions_to_time(
    exact: PredictorMember, whole: ExportedFile, file: ExportedFile, precision: str
) -> dict[str, Callable[[np.ndarray], object]]:
    """Whose speed is compared: the run itself, the same kind of file in float32, and the new one."""
    return {
        "float32 in PyTorch": lambda images: exact.compute_outputs(to_batch_tensor(images)),
        "float32 file": whole.run,
        f"{precision} file": file.run,
    }


# An ONNX file in eight bits, by ONNX Runtime's static quantisation: matrices in int8, what they multiply in uint8.
#
# Weights have a scale for each output, activations one for the tensor, from the least and the largest value that some
# of the user's images give. Only products with stored matrices are made of whole numbers; products of queries and
# keys, softmax, norms and the head stay in float32. `fusing` then writes them in operators of ONNX Runtime's own.

QUANTIZED_OPS = ("MatMul", "Gemm")
CALIBRATION_BATCH_SIZE = 8
"""Images that ranges are read from at once."""


def quantize_onnx(source: Path, images: UInt8[np.ndarray, "n H W C"], metadata: ExportMetadata, out: Path) -> int:
    """Write the eight-bit form of a float32 file that Vitrail has written.

    Args:
        images: prepared for the file, at least one; the ranges of activations come from them.
        metadata: the notes of the new file.

    Returns:
        How many matrices are int8 now.
    """
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    model = onnx.load(source)
    chosen = find_weight_matmuls(model.graph)
    add_pre_process_metadata(model)  # constants are folded and shapes known already
    quantize_static(
        model, out, _CalibrationBatches(images), quant_format=QuantFormat.QDQ, op_types_to_quantize=list(QUANTIZED_OPS),
        nodes_to_quantize=chosen, per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
        extra_options={"OpTypesToExcludeOutputQuantization": list(QUANTIZED_OPS), "MatMulConstBOnly": True},
    )  # fmt: skip
    made = onnx.load(out)
    fuse_operators(made)
    onnx.helper.set_model_props(made, metadata.to_metadata())
    onnx.save(made, out)
    return len(chosen)


def find_weight_matmuls(graph: Any) -> list[str]:
    """Names of the products of tokens with stored float32 matrices; the head reads pooled tokens, by Gemm."""
    import onnx

    stored = {tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}
    return [node.name for node in graph.node if node.op_type == "MatMul" and node.input[1] in stored]


class _CalibrationBatches:
    """What the calibrator asks for: one batch after another, then None."""

    def __init__(self, images: UInt8[np.ndarray, "n H W C"]):
        self._remaining = [
            images[start : start + CALIBRATION_BATCH_SIZE] for start in range(0, len(images), CALIBRATION_BATCH_SIZE)
        ]

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The input of the graph by its name."""
        return {exported.INPUT_NAME: self._remaining.pop(0)} if self._remaining else None
