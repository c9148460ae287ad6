"""A graph as ONNX: by torch's exporter, with class names, version and hash among the file's notes."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ..errors import UsageError
from ..predict import exported
from ..predict.exported import ExportMetadata

OPSET = 18
"""The version of ONNX's operators that files are written in; readers since 2023 know it."""
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INSTALL = "Get them with: pip install 'vitrail[export]'"
LOST = 1e-8
"""onnxscript's rewriting drops an addition of what is no larger."""
IN_ONE_FILE = 1_900_000_000
"""Bytes of weights up to which they lie in the file itself; ONNX allows 2 GiB."""


def check_installed() -> None:
    """Refuse to begin without what writes ONNX and what reads it again.

    Raises:
        UsageError: packages are missing, by name.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"An ONNX file needs {', '.join(PACKAGES)}. Missing: {', '.join(missing)}. {INSTALL}")


def write(program: ExportedProgram, facts: ExportMetadata, path: Path) -> None:
    """Write a graph with its notes; weights that are too many for one file lie beside it, in NAME.data.

    Raises:
        UsageError: packages are missing, by name.
    """
    check_installed()
    from onnxscript.ir.passes.common import ClearMetadataAndDocStringPass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's advice is for its authors
        made = torch.onnx.export(
            program, (), input_names=[exported.INPUT_NAME], output_names=list(facts.outputs), opset_version=OPSET,
            dynamo=True, verbose=False, custom_translation_table=_translated(),
        )  # fmt: skip
    assert made is not None
    ClearMetadataAndDocStringPass()(made.model)  # which line of whose folder each node came from
    made.model.metadata_props.update(facts.notes())
    weights = sum(tensor.numel() * tensor.element_size() for tensor in program.state_dict.values())
    made.save(path, external_data=weights > IN_ONE_FILE)


def _translated() -> dict[Any, Callable[..., Any]]:
    """The functions of PyTorch that are not written as its exporter would."""
    aten = torch.ops.aten
    return {aten.log_sigmoid.default: _log_sigmoid, aten.gelu.default: _gelu, aten.add.Tensor: _add}


def _add(x: Any, y: Any, alpha: float = 1.0) -> Any:
    """A sum; with a number that the exporter's optimiser would take for 0 and leave out, by another operator.

    Performer attention divides by a sum that may be 0, plus 1e-8.
    """
    from onnxscript import opset18 as op

    if isinstance(y, float) and 0 < abs(y) <= LOST:
        lost: Any = op.Constant(value_float=y)
        return op.Sum(x, op.CastLike(lost, x))
    times: Any = op.Constant(value_float=float(alpha))
    return op.Add(x, y if alpha == 1 else op.Mul(y, op.CastLike(times, y)))


def _gelu(x: Any, approximate: str = "none") -> Any:
    """The same factors in the order in which ONNX Runtime knows them, and computes them in one pass."""
    from onnxscript import opset18 as op

    def like(number: float) -> Any:
        constant: Any = op.Constant(value_float=number)
        return op.CastLike(constant, x)

    if approximate == "tanh":
        grown = op.Add(op.Mul(op.Mul(x, like(0.044715)), x), like(1.0))
        bent = op.Tanh(op.Mul(op.Mul(x, like(math.sqrt(2 / math.pi))), grown))
        return op.Mul(op.Add(bent, like(1.0)), op.Mul(x, like(0.5)))
    bent = op.Erf(op.Div(x, like(math.sqrt(2))))
    return op.Mul(op.Mul(x, op.Add(bent, like(1.0))), like(0.5))


def _log_sigmoid(x: Any) -> Any:
    """In one step: the logarithm of a sigmoid that has become 0 is no number any more."""
    from onnxscript import opset18

    return opset18.Neg(opset18.Softplus(opset18.Neg(x)))
