"""A graph as ONNX: by torch's exporter, with class names, version and hash among the file's notes."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import UInt8
from torch import nn
from torch.export import Dim, ExportedProgram

from ..errors import DamagedFileError, UsageError
from ..files.atomic import commit_draft, make_draft
from ..predict import exported
from ..predict.exported import ExportMetadata
from ..predict.onnx_predictor import OnnxPredictor
from ..predict.predictor import PredictorMember
from .module import ExportModule
from .verify import VerificationResult, preprocess_decoded, verify_file, verify_resizing

ONNX_OPSET = 18
"""The version of ONNX's operators that files are written in; readers since 2023 know it."""
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INSTALL_HINT = "Get them with: pip install 'vitrail[export]'"
MIN_KEPT_ADDEND = 1e-8
"""onnxscript's rewriting drops an addition of what is no larger."""
MAX_EMBEDDED_BYTES = 1_900_000_000
"""Bytes of weights up to which they lie in the file itself; ONNX allows 2 GiB."""


def check_onnx_installed() -> None:
    """Refuse to begin without what writes ONNX and what reads it again.

    Raises:
        UsageError: packages are missing, by name.
    """
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"An ONNX file needs {', '.join(ONNX_PACKAGES)}. Missing: {', '.join(missing)}. {INSTALL_HINT}"
        )


def write_onnx(program: ExportedProgram, metadata: ExportMetadata, path: Path) -> None:
    """Write a graph with its notes; weights that are too many for one file lie beside it, in NAME.data.

    Raises:
        UsageError: packages are missing, by name.
    """
    check_onnx_installed()
    from onnxscript.ir.passes.common import ClearMetadataAndDocStringPass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's advice is for its authors
        made = torch.onnx.export(
            program,
            (),
            input_names=[exported.INPUT_NAME],
            output_names=list(metadata.outputs),
            opset_version=ONNX_OPSET,
            dynamo=True,
            verbose=False,
            custom_translation_table=_custom_translations(),
        )
    assert made is not None
    ClearMetadataAndDocStringPass()(made.model)  # which line of whose folder each node came from
    made.model.metadata_props.update(metadata.to_metadata())
    weights = sum(tensor.numel() * tensor.element_size() for tensor in program.state_dict.values())
    made.save(path, external_data=weights > MAX_EMBEDDED_BYTES)


def _custom_translations() -> dict[Any, Callable[..., Any]]:
    """The functions of PyTorch that are not written as its exporter would."""
    aten = torch.ops.aten
    return {
        aten.log_sigmoid.default: _translate_log_sigmoid,
        aten.gelu.default: _translate_gelu,
        aten.add.Tensor: _translate_add,
    }


def _translate_add(x: Any, y: Any, alpha: float = 1.0) -> Any:
    """A sum; with a number that the exporter's optimiser would take for 0 and leave out, by another operator.

    Performer attention divides by a sum that may be 0, plus 1e-8.
    """
    from onnxscript import opset18 as op

    if isinstance(y, float) and 0 < abs(y) <= MIN_KEPT_ADDEND:
        lost: Any = op.Constant(value_float=y)
        return op.Sum(x, op.CastLike(lost, x))
    times: Any = op.Constant(value_float=float(alpha))
    return op.Add(x, y if alpha == 1 else op.Mul(y, op.CastLike(times, y)))


def _translate_gelu(x: Any, approximate: str = "none") -> Any:
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


def _translate_log_sigmoid(x: Any) -> Any:
    """In one step: the logarithm of a sigmoid that has become 0 is no number any more."""
    from onnxscript import opset18

    return opset18.Neg(opset18.Softplus(opset18.Neg(x)))


# A `torch.export` package (.pt2): the graph and its weights for PyTorch, without Vitrail's code.

METADATA_FILE = "vitrail.json"
"""The file inside the package that holds its notes."""


class Pt2File:
    """A package that `write` has made, opened: images in, named outputs out.

    Only open packages that you trust: reading one can run what it says.

    Raises:
        DamagedFileError: no such package, or Vitrail has not written it.
    """

    def __init__(self, path: Path):
        notes = {METADATA_FILE: ""}
        try:
            program = torch.export.load(path, extra_files=notes)
            said = json.loads(notes[METADATA_FILE])
        except (OSError, RuntimeError, ValueError) as error:
            raise DamagedFileError(
                f"{path} is no package of torch.export that Vitrail has written: {error}."
            ) from error
        self.metadata = exported.parse_metadata(said, str(path))
        self.module = program.module()

    def run(self, images: UInt8[np.ndarray, "B H W C"]) -> dict[str, np.ndarray]:
        """All outputs by name."""
        with torch.inference_mode():
            found = self.module(torch.from_numpy(np.ascontiguousarray(images)))
        return {name: output.numpy() for name, output in zip(self.metadata.outputs, found, strict=True)}


def write_pt2(program: ExportedProgram, metadata: ExportMetadata, path: Path) -> None:
    """Write a graph with its notes."""
    torch.export.save(program, path, extra_files={METADATA_FILE: json.dumps(metadata.to_metadata())})


# One exported file: captured, written beside its place, opened again, compared with the run, and only then kept.

ExportFormat = Literal["onnx", "pt2"]
EXPORT_FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)
ExportedFile = OnnxPredictor | Pt2File
"""A file that has been written and opened again: facts, and `run` from images to named outputs."""


def export_file(
    member: PredictorMember, file_format: ExportFormat, out: Path, decoded: Sequence[np.ndarray], resize: bool = False
) -> tuple[VerificationResult, VerificationResult | None]:
    """Write a model as one file that answers as it does in float32.

    Args:
        decoded: images as `data.decode` gives them, on which the file is compared with the model; at least one.
        resize: let the file take images of any size.

    Returns:
        The proof on prepared images, and with `resize` another on images as they are.

    Raises:
        UsageError: `out` exists or has the wrong ending, or the packages that write such a file are not installed.
        DamagedFileError: the file answers otherwise than the model; nothing is kept.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    check_export_path(out, file_format)
    exact = replace(member, settings=replace(member.settings, precision="float32"))
    with make_draft(out) as place:
        file = write_and_reopen(exact, file_format, place, resize)
        proof = verify_file(file.run, file.metadata, exact, preprocess_decoded(decoded, exact.spec))
        resizing = verify_resizing(file.run, file.metadata, exact, decoded) if resize else None
        commit_draft(place, out)
    return proof, resizing


def write_and_reopen(
    member: PredictorMember, file_format: ExportFormat, path: Path, resize: bool, precision: str = "float32"
) -> ExportedFile:
    """A file that has just been written, opened again; nothing has been compared.

    Args:
        precision: in which matrices are stored and multiplied.

    Raises:
        UsageError: the packages that write such a file are not installed.
    """
    if file_format == "onnx":
        check_onnx_installed()
    answering = ExportModule(member, resize, precision=precision)
    program = capture_graph(answering)
    write = write_onnx if file_format == "onnx" else write_pt2
    write(program, make_metadata(answering, member), path)
    return reopen_file(path, file_format)


def reopen_file(path: Path, file_format: ExportFormat) -> ExportedFile:
    """A file as its users will open it, computing with as many threads as PyTorch does here."""
    return OnnxPredictor(path, torch.get_num_threads()) if file_format == "onnx" else Pt2File(path)


def check_export_path(out: Path, file_format: ExportFormat) -> None:
    """Refuse a place, before anything is done for it.

    Raises:
        UsageError: something is there already, or the name has the wrong ending.
    """
    if out.suffix != f".{file_format}":
        raise UsageError(f"{file_format} is one file, whose name must end in .{file_format}. Got {out}.")
    if out.exists():
        raise UsageError(f"{out} exists already and is not overwritten. Choose another name or move it away.")


# From a module to a graph of tensor operations, for any number of images at once: `torch.export`.

NUM_EXAMPLE_IMAGES = 3
"""Images that the graph is recorded with; 1 would be taken for a fact about all batches."""


def capture_graph(module: ExportModule) -> ExportedProgram:
    """The graph of a module, for any batch; and for any height and width where the module resizes."""
    spec = module.spec
    height, width = spec.size if module.resizing is None else (spec.height + 3, spec.width + 5)
    images = torch.zeros(NUM_EXAMPLE_IMAGES, height, width, spec.channels, dtype=torch.uint8)
    sides = {} if module.resizing is None else {1: Dim("height"), 2: Dim("width")}
    with torch.no_grad():
        program = torch.export.export(
            module.eval(), (images,), dynamic_shapes={"images": {0: Dim("batch"), **sides}}, strict=False
        )
    if module.precision == "float32":
        return program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch copies its own trees in a way that it warns of
        return program.run_decompositions({})  # autocast becomes a change of format wherever it would make one


# What an exported file is to say about itself.


def make_metadata(module: ExportModule, member: PredictorMember) -> ExportMetadata:
    """The notes of the file that a module becomes."""
    return ExportMetadata(
        task=member.task,
        classes=member.classes,
        image=member.spec,
        size="model" if module.resizing is None else "any",
        outputs=module.output_names,
        number_format=module.precision,
        version=version("vitrail"),
        sha256=hash_model(member.model),
    )


def hash_model(model: nn.Module) -> str:
    """SHA-256 over the names, shapes and values of all tensors of a model, in the order of their names."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().cpu().contiguous().numpy()
        found.update(f"{name} {list(values.shape)} {values.dtype}\n".encode())
        found.update(np.ascontiguousarray(values).data)
    return found.hexdigest()
