"""Export to ONNX, OpenVINO and torch.export (.pt2): capture the graph, write, reopen, verify, and only then keep it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import tempfile
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import UInt
from torch import nn
from torch.export import Dim, ExportedProgram

from ..data.preprocess import TORCH_DTYPES
from ..errors import DamagedFileError, UsageError
from ..files.atomic import check_new_path, commit_draft, make_draft
from ..predict import exported
from ..predict.exported import ExportMetadata
from ..predict.onnx_predictor import OnnxPredictor
from ..predict.openvino_predictor import GRAPH_EXTENSION, WEIGHTS_EXTENSION, OpenVinoPredictor, make_core
from ..predict.predictor import AnsweringModel, as_predictor
from ..version import __version__
from .decision_tensors import DECISION_NAMES, MODULE_NAME, draw_placeholders, round_thresholds
from .ensemble import ExportedModule, join_models, make_module
from .verify import VerificationResult, preprocess_decoded, verify_file, verify_resizing

ONNX_OPSET = 18
"""ONNX operator set; supported by readers since 2023."""
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
MIN_KEPT_ADDEND = 1e-8
"""onnxscript's optimizer drops an addition of a constant that is no larger."""
MAX_EMBEDDED_BYTES = 1_900_000_000
"""Most bytes of weights inside the ONNX file, which may have 2 GiB; larger ones go into NAME.data."""


def check_onnx_installed() -> None:
    """Check that the packages for writing and reading ONNX are installed.

    Raises:
        UsageError: packages are missing, by name.
    """
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"An ONNX file needs {', '.join(ONNX_PACKAGES)}. Missing: {', '.join(missing)}. Get them with: "
            "pip install 'vitrail[export]'"
        )


def write_onnx(program: ExportedProgram, metadata: ExportMetadata, path: Path) -> None:
    """Write a graph with its metadata as ONNX; large weights go into NAME.data beside it.

    Raises:
        UsageError: packages are missing, by name.
    """
    check_onnx_installed()
    from onnxscript import ir
    from onnxscript.ir.passes.common import ClearMetadataAndDocStringPass

    names = [f"{MODULE_NAME}.{name}" for name in DECISION_NAMES]
    decided = {name: program.state_dict[name] for name in names if name in program.state_dict}
    program.state_dict.update(draw_placeholders(decided))  # no optimizer removes their places in the graph
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's advice is for its authors
        onnx_program = torch.onnx.export(
            program,
            (),
            input_names=[exported.INPUT_NAME],
            output_names=list(metadata.outputs),
            opset_version=ONNX_OPSET,
            dynamo=True,
            verbose=False,
            custom_translation_table={
                torch.ops.aten.log_sigmoid.default: _translate_log_sigmoid,
                torch.ops.aten.gelu.default: _translate_gelu,
                torch.ops.aten.add.Tensor: _translate_add,
            },
        )
    assert onnx_program is not None
    program.state_dict.update(decided)
    for name, tensor in decided.items():
        onnx_program.model.graph.initializers[name].const_value = ir.tensor(tensor.numpy(), name=name)
    ClearMetadataAndDocStringPass()(onnx_program.model)  # source paths of this machine
    onnx_program.model.metadata_props.update(metadata.to_metadata())
    weights = sum(tensor.numel() * tensor.element_size() for tensor in program.state_dict.values())
    onnx_program.save(path, external_data=weights > MAX_EMBEDDED_BYTES)


def _translate_add(x: Any, y: Any, alpha: float = 1.0) -> Any:
    """Addition; with a tiny constant as `Sum`, because the exporter's optimizer would drop an `Add` of it.

    Performer attention divides by a sum that may be 0, plus 1e-8.
    """
    from onnxscript import opset18 as op

    if isinstance(y, float) and 0 < abs(y) <= MIN_KEPT_ADDEND:
        tiny: Any = op.Constant(value_float=y)
        return op.Sum(x, op.CastLike(tiny, x))
    factor: Any = op.Constant(value_float=float(alpha))
    return op.Add(x, y if alpha == 1 else op.Mul(y, op.CastLike(factor, y)))


def _translate_gelu(x: Any, approximate: str = "none") -> Any:
    """GELU with its factors in the order that ONNX Runtime recognises and fuses into one operator."""
    from onnxscript import opset18 as op

    def like(number: float) -> Any:
        constant: Any = op.Constant(value_float=number)
        return op.CastLike(constant, x)

    if approximate == "tanh":
        cubic = op.Add(op.Mul(op.Mul(x, like(0.044715)), x), like(1.0))
        tanh = op.Tanh(op.Mul(op.Mul(x, like(math.sqrt(2 / math.pi))), cubic))
        return op.Mul(op.Add(tanh, like(1.0)), op.Mul(x, like(0.5)))
    erf = op.Erf(op.Div(x, like(math.sqrt(2))))
    return op.Mul(op.Mul(x, op.Add(erf, like(1.0))), like(0.5))


def _translate_log_sigmoid(x: Any) -> Any:
    """log(sigmoid(x)) as -softplus(-x), which stays finite where the sigmoid underflows to 0."""
    from onnxscript import opset18

    return opset18.Neg(opset18.Softplus(opset18.Neg(x)))


# -- OpenVINO's format: a graph in NAME.xml and its weights in NAME.bin, from an ONNX file.


def write_openvino_source(model: AnsweringModel, path: Path, resize: bool) -> None:
    """Write the ONNX file from which OpenVINO's is made: in float32, with thresholds of float32.

    Raises:
        UsageError: OpenVINO is not installed, or the model's numbers need float64, which it computes in float32.
    """
    make_core()  # it says what is missing
    scalings = [member.scaling for member in as_predictor(model).members]
    if any(scaling is not None and scaling.needs_float64 for scaling in scalings):
        raise UsageError("OpenVINO computes in float32, and the numbers of this model need float64. Use --to onnx.")
    module = make_module(model, resize)
    round_thresholds(module.decision)
    write_onnx(capture_graph(module), make_metadata(module, model), path)


def write_openvino(onnx: Path, path: Path) -> None:
    """Write an ONNX file as NAME.xml and NAME.bin, with its metadata.

    OpenVINO's own converter would do the same and report its use to a server; this reads and saves only.
    """
    core = make_core()
    from openvino import save_model

    save_model(core.read_model(onnx), path, compress_to_fp16=False)


# -- torch.export packages (.pt2): graph and weights for PyTorch, without Vitrail's code.

METADATA_FILE = "vitrail.json"
"""The metadata file inside the package."""


class Pt2File:
    """An opened .pt2 package of `write_pt2`: images in, named outputs out.

    Only open packages that you trust: loading one can execute its code.

    Raises:
        DamagedFileError: no such package, or not written by Vitrail.
    """

    def __init__(self, path: Path):
        program, self.metadata = load_pt2(path)
        self.module = program.module()

    def run(self, images: UInt[np.ndarray, "B H W C"]) -> dict[str, np.ndarray]:
        """All outputs by name."""
        with torch.inference_mode():
            outputs = self.module(torch.from_numpy(np.ascontiguousarray(images)))
        return {name: output.numpy() for name, output in zip(self.metadata.outputs, outputs, strict=True)}


def load_pt2(path: Path) -> tuple[ExportedProgram, ExportMetadata]:
    """The graph and the metadata of a package.

    Raises:
        DamagedFileError: as `Pt2File`.
    """
    notes = {METADATA_FILE: ""}
    try:
        program = torch.export.load(path, extra_files=notes)
        values = json.loads(notes[METADATA_FILE])
    except (OSError, RuntimeError, ValueError) as error:
        raise DamagedFileError(f"{path} is no package of torch.export that Vitrail has written: {error}.") from error
    return program, exported.parse_metadata(values, str(path))


def write_pt2(program: ExportedProgram, metadata: ExportMetadata, path: Path) -> None:
    """Write a graph with its metadata as .pt2."""
    torch.export.save(program, path, extra_files={METADATA_FILE: json.dumps(metadata.to_metadata())})


# -- Export of one file: capture, write a draft, reopen, compare with the model, keep.

ExportFormat = Literal["onnx", "openvino", "pt2"]
EXPORT_FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)
FORMAT_EXTENSIONS: dict[ExportFormat, str] = {"onnx": ".onnx", "openvino": GRAPH_EXTENSION, "pt2": ".pt2"}
ExportedFile = OnnxPredictor | OpenVinoPredictor | Pt2File
"""An opened exported file: `metadata`, and `run` from images to named outputs."""


def export_file(
    model: AnsweringModel, file_format: ExportFormat, out: Path, decoded: Sequence[np.ndarray], resize: bool = False
) -> tuple[VerificationResult, VerificationResult | None]:
    """Write a model as one float32 file and verify its predictions.

    Args:
        model: as the interfaces open it, whose predictions the file must give.
        decoded: decoded images on which the file is compared with the model; at least one.
        resize: let the file take images of any size.

    Returns:
        The verification on preprocessed images, and with `resize` another one on decoded images.

    Raises:
        UsageError: `out` exists or has the wrong extension, or the required packages are not installed.
        DamagedFileError: the file's predictions differ from the model's; nothing is kept.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    check_export_path(out, file_format)
    with make_draft(out) as draft:
        file = write_and_reopen(model, file_format, draft, resize)
        result = verify_file(file.run, file.metadata, model, preprocess_decoded(decoded, model.spec))
        resize_result = verify_resizing(file.run, file.metadata, model, decoded) if resize else None
        commit_draft(draft, out)
    return result, resize_result


def write_and_reopen(
    model: AnsweringModel, file_format: ExportFormat, path: Path, resize: bool, precision: str = "float32",
    kept: Collection[str] = (),
) -> ExportedFile:  # fmt: skip
    """Write a file and open it again, without verification.

    Args:
        precision: of the stored matrices and their products.
        kept: names of linear layers that compute in float32 all the same.

    Raises:
        UsageError: the required packages are not installed.
    """
    if file_format != "pt2":
        check_onnx_installed()
    if file_format == "openvino":
        with tempfile.TemporaryDirectory() as folder:
            write_openvino_source(model, Path(folder) / "model.onnx", resize)
            write_openvino(Path(folder) / "model.onnx", path)
        return reopen_file(path, file_format)
    module = make_module(model, resize, precision, kept)
    write = write_onnx if file_format == "onnx" else write_pt2
    write(capture_graph(module), make_metadata(module, model), path)
    return reopen_file(path, file_format)


def reopen_file(path: Path, file_format: ExportFormat) -> ExportedFile:
    """Open a file as its users will, with as many threads as PyTorch has here."""
    if file_format == "pt2":
        return Pt2File(path)
    predictor = OnnxPredictor if file_format == "onnx" else OpenVinoPredictor
    return predictor(path, torch.get_num_threads())


def check_export_path(out: Path, file_format: ExportFormat) -> None:
    """Check the output path before any work is done.

    Raises:
        UsageError: the path exists, or has the wrong extension.
    """
    ending = FORMAT_EXTENSIONS[file_format]
    if out.suffix != ending:
        raise UsageError(f"{file_format} is one file, whose name must end in {ending}. Got {out}.")
    check_new_path(out)
    if file_format == "openvino":
        check_new_path(out.with_suffix(WEIGHTS_EXTENSION))


# -- Graph capture by torch.export, and the file's metadata.

NUM_EXAMPLE_IMAGES = 3
"""Batch size of the example input; torch.export would specialise the graph on 1."""


def capture_graph(module: ExportedModule) -> ExportedProgram:
    """The graph of a module with a dynamic batch size, and dynamic height and width if the module resizes."""
    spec = module.spec
    height, width = spec.size if module.resizing is None else (spec.height + 3, spec.width + 5)
    images = torch.zeros(NUM_EXAMPLE_IMAGES, height, width, spec.channels, dtype=TORCH_DTYPES[spec.dtype])
    sides = {} if module.resizing is None else {1: Dim("height"), 2: Dim("width")}
    with torch.no_grad():
        program = torch.export.export(
            module.eval(), (images,), dynamic_shapes={"images": {0: Dim("batch"), **sides}}, strict=False
        )
    if module.precision == "float32":
        return program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from torch's own code
        return program.run_decompositions({})  # autocast becomes explicit casts


def make_metadata(module: ExportedModule, model: AnsweringModel) -> ExportMetadata:
    """The metadata of a module's exported file."""
    return ExportMetadata(
        task=model.task,
        classes=model.classes,
        image=model.spec,
        size="model" if module.resizing is None else "any",
        outputs=module.output_names,
        number_format=module.precision,
        version=__version__,
        sha256=hash_model(join_models(model)),
        decision=model.decisions.version,
        pixel_size=model.pixel_size,
    )


def hash_model(model: nn.Module) -> str:
    """SHA-256 of the names, shapes, types and values of all tensors of a model, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{name} {list(values.shape)} {values.dtype}\n".encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()
