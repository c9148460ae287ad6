"""An ONNX file in eight bits, by ONNX Runtime's static quantisation: matrices in int8, what they multiply in uint8.

Weights have a scale for each output, activations one for the tensor, from the least and the largest value that some of
the user's pictures give. Only products with stored matrices are made of whole numbers; products of queries and keys,
softmax, norms and the head stay in float32. `fusing` then writes them in operators of ONNX Runtime's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from ..predict import exported
from ..predict.exported import ExportMetadata
from .fusing import fuse

PRODUCTS = ("MatMul", "Gemm")
BATCH = 8
"""Pictures that ranges are read from at once."""


def quantise(source: Path, pictures: UInt8[np.ndarray, "n H W C"], facts: ExportMetadata, out: Path) -> int:
    """Write the eight-bit form of a float32 file that Vitrail has written.

    Args:
        pictures: prepared for the file, at least one; the ranges of activations come from them.
        facts: the notes of the new file.

    Returns:
        How many matrices are int8 now.
    """
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    model = onnx.load(source)
    chosen = products_in(model.graph)
    add_pre_process_metadata(model)  # constants are folded and shapes known already
    quantize_static(
        model, out, _Batches(pictures), quant_format=QuantFormat.QDQ, op_types_to_quantize=list(PRODUCTS),
        nodes_to_quantize=chosen, per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
        extra_options={"OpTypesToExcludeOutputQuantization": list(PRODUCTS), "MatMulConstBOnly": True},
    )  # fmt: skip
    made = onnx.load(out)
    fuse(made)
    onnx.helper.set_model_props(made, facts.notes())
    onnx.save(made, out)
    return len(chosen)


def products_in(graph: Any) -> list[str]:
    """Names of the products of tokens with stored float32 matrices; the head reads pooled tokens, by Gemm."""
    import onnx

    stored = {tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}
    return [node.name for node in graph.node if node.op_type == "MatMul" and node.input[1] in stored]


class _Batches:
    """What the calibrator asks for: one batch after another, then None."""

    def __init__(self, pictures: UInt8[np.ndarray, "n H W C"]):
        self._left = [pictures[start : start + BATCH] for start in range(0, len(pictures), BATCH)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The input of the graph by its name."""
        return {exported.INPUT_NAME: self._left.pop(0)} if self._left else None
