"""Export in int8, bfloat16 or float16: quantise, fuse operators, and compare decisions and speed with float32.

A fused graph uses ONNX Runtime's own operators: each product with its bias, each attention as a whole. ONNX Runtime
fuses a product with its scales by itself, but adds the bias in another pass, and splits and transposes queries, keys
and values in float32, which takes a quarter of the time of ViT-Ti in int8. Only the patterns of our graphs are fused.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import UInt
from torch import nn

from ..data.preprocess import to_batch_tensor
from ..errors import DamagedFileError, UsageError
from ..evaluate.precision import measure_rates
from ..files.atomic import commit_draft, make_draft
from ..predict import exported
from ..predict.exported import ExportMetadata
from ..predict.predictor import AnsweringModel, as_predictor
from . import verify
from .build import (
    FORMAT_EXTENSIONS,
    ExportedFile,
    ExportFormat,
    check_export_path,
    reopen_file,
    write_and_reopen,
    write_openvino,
    write_openvino_source,
)
from .ensemble import join_models
from .sensitive_layers import describe_peak, iter_kept_layers, list_overflowing, match_layers, measure_layers
from .verify import PrecisionAgreement, check_agreement, compare_with_float32, preprocess_decoded

CONTRIB_DOMAIN = "com.microsoft"
"""Domain of ONNX Runtime's operators: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md"""
SPLIT_HEADS_AXES, MERGE_HEADS_AXES, TRANSPOSE_KEYS_AXES = [2, 0, 3, 1, 4], [0, 2, 1, 3], [0, 1, 3, 2]
"""Permutations: [B, N, 3, h, d] to [3, B, h, N, d]; [B, h, N, d] to [B, N, h, d]; keys to [B, h, d, N]."""


class GraphIndex:
    """Producers, consumers and initializers of an ONNX graph by tensor name."""

    def __init__(self, graph: Any):
        self.producers = {name: node for node in graph.node for name in node.output}
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.consumers: dict[str, list[Any]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self.consumers[name].append(node)
        for output in graph.output:
            self.consumers[output.name].append(output)

    def follow_consumers(self, node: Any, *kinds: str) -> list[Any]:
        """The chain of nodes of these kinds after a node, each the only consumer of the one before; else empty."""
        chain: list[Any] = []
        for kind in kinds:
            consumers = self.consumers[node.output[0]]
            if len(consumers) != 1 or getattr(consumers[0], "op_type", "") != kind:
                return []
            chain.append(node := consumers[0])
        return chain

    def constant_values(self, name: str) -> list[float]:
        """The flat values of an initializer; empty for a computed tensor."""
        from onnx import numpy_helper

        return numpy_helper.to_array(self.initializers[name]).ravel().tolist() if name in self.initializers else []

    def dequantize_inputs(self, name: str) -> list[str]:
        """Inputs of the DequantizeLinear that makes a tensor (integers, scale, zero point); else empty."""
        producer = self.producers.get(name)
        return list(producer.input) if producer is not None and producer.op_type == "DequantizeLinear" else []


def fuse_operators(model: Any) -> dict[str, int]:
    """Replace quantised products and attention by fused operators, in place.

    Returns:
        Number of fused operators by kind.
    """
    from onnx import helper

    graph, index = model.graph, GraphIndex(model.graph)
    fused: dict[str, Any] = {}
    for product in graph.node:
        if product.op_type == "MatMul" and all(index.dequantize_inputs(name) for name in product.input):
            operator = _fuse_attention(product, index) or _fuse_matmul(product, index)
            fused[operator.output[0]] = operator
    nodes = [fused.get(node.output[0], node) for node in graph.node]
    needed_nodes = _keep_needed_nodes(nodes, {output.name for output in graph.output})
    del graph.node[:]
    graph.node.extend(needed_nodes)
    names = {name for node in needed_nodes for name in node.input}
    stored = [tensor for tensor in graph.initializer if tensor.name in names]
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend(stored)
    if fused and all(known.domain != CONTRIB_DOMAIN for known in model.opset_import):
        model.opset_import.append(helper.make_opsetid(CONTRIB_DOMAIN, 1))
    kinds = [node.op_type for node in fused.values()]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def _fuse_matmul(product: Any, index: GraphIndex) -> Any:
    """Fuse an integer product with its scales and, if there is one, its bias."""
    from onnx import helper

    (x, x_scale, x_zero), (w, w_scale, w_zero) = map(index.dequantize_inputs, product.input)
    inputs, end = [x, w, x_scale, w_scale, x_zero, w_zero], product
    if bias_add := _find_bias_add(product, index):
        end, bias = bias_add
        inputs.append(bias)
    return helper.make_node("MatMulIntegerToFloat", inputs, [end.output[0]], product.name, domain=CONTRIB_DOMAIN)


def _fuse_attention(product: Any, index: GraphIndex) -> Any | None:
    """Fuse an attention, from its QKV product to its tokens [B, N, D]; None if the pattern does not match."""
    from onnx import helper

    (x, x_scale, x_zero), (w, w_scale, w_zero) = map(index.dequantize_inputs, product.input)
    bias_add = _find_bias_add(product, index)
    split_nodes = index.follow_consumers(product, "Add", "Reshape", "Transpose")
    if not bias_add or not split_nodes or _transpose_axes(split_nodes[2]) != SPLIT_HEADS_AXES:
        return None
    slices = {_qkv_slice_index(node, index): node for node in index.consumers[split_nodes[2].output[0]]}
    if sorted(slices) != [0, 1, 2]:
        return None
    queries = index.follow_consumers(slices[0], "Squeeze", "Mul", "MatMul", "Softmax", "MatMul", "Transpose", "Reshape")
    keys = index.follow_consumers(slices[1], "Squeeze", "Transpose", "MatMul")
    values = index.follow_consumers(slices[2], "Squeeze", "MatMul")
    if not (queries and keys and values):
        return None
    _, scaled, scores, _, context, merged, tokens = queries
    *_, heads, width = 0, 0, *index.constant_values(split_nodes[1].input[1])
    scales = [number for name in scaled.input for number in index.constant_values(name)]
    as_expected = (
        list(scores.input) == [scaled.output[0], keys[1].output[0]]
        and list(context.input) == [queries[3].output[0], values[0].output[0]]
        and (_transpose_axes(keys[1]), _transpose_axes(merged)) == (TRANSPOSE_KEYS_AXES, MERGE_HEADS_AXES)
        and index.constant_values(tokens.input[1])[2:] == [heads * width] != [0]
        and len(scales) == 1
        and math.isclose(scales[0], width**-0.5, rel_tol=1e-6)
    )
    if not as_expected:
        return None
    inputs = [x, w, bias_add[1], x_scale, w_scale, "", x_zero, w_zero]
    return helper.make_node(
        "QAttention", inputs, [tokens.output[0]], product.name, domain=CONTRIB_DOMAIN, num_heads=int(heads)
    )


def _find_bias_add(product: Any, index: GraphIndex) -> tuple[Any, str] | None:
    """The Add of a stored vector after a product, and the vector's name."""
    for add in index.follow_consumers(product, "Add"):
        for name in add.input:
            if name in index.initializers and len(index.initializers[name].dims) == 1:
                return add, name
    return None


def _qkv_slice_index(node: Any, index: GraphIndex) -> int:
    """0, 1, 2 for a slice of queries, keys, values along the first axis; -1 for another node."""
    if getattr(node, "op_type", "") != "Slice" or len(node.input) != 4:
        return -1
    begin, end, axis = (index.constant_values(name) for name in node.input[1:])
    return int(begin[0]) if axis == [0] and len(begin) == 1 and end == [begin[0] + 1] else -1


def _transpose_axes(node: Any) -> list[int]:
    """The permutation of a Transpose."""
    return next((list(attribute.ints) for attribute in node.attribute if attribute.name == "perm"), [])


def _keep_needed_nodes(nodes: list[Any], needed: set[str]) -> list[Any]:
    """Nodes that the needed tensors depend on, in their order."""
    needed_nodes = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed_nodes.append(node)
            needed |= set(node.input)
    return needed_nodes[::-1]


# -- Export with fewer bits, kept only if its decisions agree with float32.

ExportPrecision = Literal["float32", "int8", "bf16", "float16"]
EXPORT_PRECISIONS: tuple[ExportPrecision, ...] = get_args(ExportPrecision)
TORCH_PRECISIONS: dict[ExportPrecision, str] = {"bf16": "bfloat16", "float16": "float16"}
SUPPORTED_PRECISIONS: dict[ExportFormat, tuple[ExportPrecision, ...]] = {
    "onnx": ("float32", "int8", "float16"),
    "openvino": ("float32", "int8"),
    "pt2": ("float32", "bf16", "float16"),
}
"""Precisions of each format on a CPU: ONNX Runtime has no bf16 products there, PyTorch's graphs no int8. OpenVINO
computes distances from the training images in bf16, too, and has no float16 products there."""


def export_reduced_precision(
    model: AnsweringModel,
    file_format: ExportFormat,
    precision: ExportPrecision,
    out: Path,
    decoded: Sequence[np.ndarray],
    calibration: Sequence[np.ndarray] = (),
    resize: bool = False,
    force: bool = False,
) -> PrecisionAgreement:
    """Write a model as one file of reduced precision, and measure its agreement with float32 and its speed.

    In float16 the layers whose numbers come near its largest stay in float32. In int8 all matrices are quantised; if
    too many decisions differ, the layers that it harms most stay in float32, as few as are enough.

    Args:
        decoded: decoded images on which the file is compared with the model; at least one.
        calibration: for int8, decoded images for the ranges of activations; at least one.
        resize: let the file take images of any size.
        force: keep the file even if too many decisions differ.

    Raises:
        UsageError: `out` exists or has the wrong extension, or the format does not support the precision.
        DamagedFileError: too many decisions differ, or the file's decisions do not follow from its scores; nothing is
            kept.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    check_export_path(out, file_format)
    check_precision_support(file_format, precision)
    exact = as_predictor(model).with_precision("float32")
    images = preprocess_decoded(decoded, exact.spec)
    seen = preprocess_decoded(calibration or decoded, exact.spec)
    with make_draft(out) as draft, tempfile.TemporaryDirectory() as folder:
        float32_path = Path(folder) / f"float32{FORMAT_EXTENSIONS[file_format]}"
        float32_file = write_and_reopen(exact, file_format, float32_path, resize)
        onnx_path = float32_path
        if file_format == "openvino" and precision == "int8":
            onnx_path = Path(folder) / "float32.onnx"
            write_openvino_source(exact, onnx_path, resize)

        def write_reduced(kept: tuple[str, ...]) -> ExportedFile:
            if precision != "int8":
                return write_and_reopen(exact, file_format, draft, resize, TORCH_PRECISIONS[precision], kept)
            metadata = replace(float32_file.metadata, number_format=precision)
            if file_format == "onnx":
                quantize_onnx(onnx_path, seen, metadata, draft, join_models(exact), kept)
            else:
                standard = onnx_path.with_name("int8.onnx")
                quantize_onnx(onnx_path, seen, metadata, standard, join_models(exact), kept, fuse=False)
                write_openvino(standard, draft)
            return reopen_file(draft, file_format)

        layers = measure_layers(exact, seen) if precision != "bf16" else []
        first = list_overflowing(layers) if precision == "float16" else ()
        more = iter_kept_layers(layers) if precision == "int8" else iter(())
        for kept in itertools.chain([first], more):
            file = write_reduced(kept)
            try:
                same, difference = compare_with_float32(file.run, file.metadata, exact, images)
            except DamagedFileError as error:
                raise DamagedFileError(f"{error} {describe_peak(layers)}" if layers else str(error)) from error
            if same >= verify.MIN_AGREEMENT or force:
                break
        timed: dict[str, Callable[[np.ndarray], object]] = {
            "float32 in PyTorch": lambda batch: exact.compute_outputs(to_batch_tensor(batch)),
            "float32 file": float32_file.run,
            f"{precision} file": file.run,
        }
        agreement = PrecisionAgreement(
            precision=precision, task=exact.task, num_images=len(images), same_fraction=same, difference=difference,
            rates=measure_rates(timed, images), kept=kept,
        )  # fmt: skip
        if not force:
            check_agreement(agreement)
        commit_draft(draft, out)
    return agreement


def check_precision_support(file_format: ExportFormat, precision: ExportPrecision) -> None:
    """Check that a format supports a precision, before any work is done.

    Raises:
        UsageError: it does not; the message names the format that does.
    """
    if precision not in SUPPORTED_PRECISIONS[file_format]:
        other = next(name for name, able in SUPPORTED_PRECISIONS.items() if precision in able)
        raise UsageError(
            f"{file_format} files compute in {', '.join(SUPPORTED_PRECISIONS[file_format])}, and not in {precision}. "
            f"Use --to {other} for it."
        )


# -- Static quantisation by ONNX Runtime: int8 weights, uint8 activations.

QUANTIZED_OPS = ("MatMul", "Gemm")
CALIBRATION_BATCH_SIZE = 8
"""Batch size of the calibration."""


def quantize_onnx(
    source: Path, images: UInt[np.ndarray, "n H W C"], metadata: ExportMetadata, out: Path, model: nn.Module,
    kept: Collection[str] = (), fuse: bool = True,
) -> None:  # fmt: skip
    """Write the int8 version of a float32 file that Vitrail has written.

    Weights have one scale per output, activations one per tensor, from their smallest and largest value on calibration
    images. Only products with stored matrices are quantised; products of queries and keys, softmax, norms and the head
    stay in float32.

    Args:
        images: preprocessed calibration images, at least one.
        metadata: of the new file.
        model: what was exported, whose weights say which matrix is of which layer.
        kept: names of its linear layers that stay in float32.
        fuse: use ONNX Runtime's own operators, by `fuse_operators`; other engines read the standard ones only.
    """
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    exact = onnx.load(source)
    stored = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in exact.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
    }
    layers = match_layers(stored, model)
    # Products of tokens with stored matrices; the head reads pooled tokens, by Gemm.
    matmuls = [
        node.name
        for node in exact.graph.node
        if node.op_type == "MatMul" and node.input[1] in stored and layers.get(node.input[1]) not in kept
    ]
    add_pre_process_metadata(exact)  # constants are folded and shapes known already
    starts = range(0, len(images), CALIBRATION_BATCH_SIZE)
    batches = ({exported.INPUT_NAME: images[start : start + CALIBRATION_BATCH_SIZE]} for start in starts)
    quantize_static(
        exact, out, SimpleNamespace(get_next=lambda: next(batches, None)), quant_format=QuantFormat.QDQ,
        op_types_to_quantize=list(QUANTIZED_OPS), nodes_to_quantize=matmuls, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, calibrate_method=CalibrationMethod.MinMax,
        extra_options={"OpTypesToExcludeOutputQuantization": list(QUANTIZED_OPS), "MatMulConstBOnly": True},
    )  # fmt: skip
    quantized = onnx.load(out)
    if fuse:
        fuse_operators(quantized)
    onnx.helper.set_model_props(quantized, metadata.to_metadata())
    onnx.save(quantized, out)
