"""Opening of exported ONNX and OpenVINO files, by their path or a run folder; never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import UsageError
from ..predict.onnx_predictor import FilePredictor, OnnxPredictor
from ..predict.openvino_predictor import GRAPH_EXTENSION, OpenVinoPredictor
from .image_options import override_image_options

FILE_ENGINES: dict[str, tuple[str, type[OnnxPredictor] | type[OpenVinoPredictor]]] = {
    "onnx": (".onnx", OnnxPredictor),
    "openvino": (GRAPH_EXTENSION, OpenVinoPredictor),
}
"""The file extension and the predictor of each engine."""


def find_file_engine(model: str, engine: str = "") -> str:
    """The engine of a MODEL that is an exported file, by its extension or by the engine that is asked for; else empty.

    Raises:
        UsageError: the file of one engine, and another is asked for.
    """
    ending = Path(model).suffix.lower()
    named = next((name for name, (extension, _) in FILE_ENGINES.items() if extension == ending), "")
    wanted = engine if engine in FILE_ENGINES else ""
    if named and wanted and named != wanted:
        raise UsageError(f"{model} is answered by --engine {named}. Got --engine {wanted}; leave it out.")
    return named or wanted


def open_file_predictor(model: str, engine: str, device: str, changes: Mapping[str, str]) -> FilePredictor:
    """Open the exported file of a MODEL.

    Args:
        engine: of `FILE_ENGINES`.
        device: auto or cpu; these engines compute on the CPU here.
        changes: how images are opened, as `override_image_options`.

    Raises:
        UsageError: no such file, a run without one, another device, or the engine is not installed.
        DamagedFileError: the file is damaged or malicious, or not written by Vitrail.
    """
    if device not in ("auto", "cpu"):
        raise UsageError(
            f"--engine {engine} computes on the CPU. Got --device {device}; leave it out, or use the run itself."
        )
    extension, open_file = FILE_ENGINES[engine]
    path = Path(model)
    if path.suffix.lower() != extension:
        in_run = Path("exports") / f"model{extension}"
        path = path / in_run
        if not path.is_file():
            raise UsageError(f"{model} has no {in_run}. Make it with: vitrail export {model} --to {engine}")
    predictor = open_file(path)
    predictor.spec = override_image_options(predictor.spec, changes)
    return predictor
