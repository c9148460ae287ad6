"""Opening of exported ONNX files, by their path or a run folder; never imports torch (test_onnx_file.py)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import UsageError
from ..predict.onnx_predictor import OnnxPredictor
from .image_options import override_image_options

ONNX_EXTENSION = ".onnx"
ONNX_PATH_IN_RUN = Path("exports") / f"model{ONNX_EXTENSION}"


def is_onnx_path(model: str) -> bool:
    """Whether a MODEL is named as an ONNX file."""
    return Path(model).suffix.lower() == ONNX_EXTENSION


def open_onnx_predictor(model: str, device: str, changes: Mapping[str, str]) -> OnnxPredictor:
    """Open the ONNX file of a MODEL.

    Args:
        device: auto or cpu; ONNX Runtime computes on the CPU here.
        changes: how images are opened, as `override_image_options`.

    Raises:
        UsageError: no such file, a run without one, another device, or ONNX Runtime is not installed.
        DamagedFileError: the file is damaged or malicious, or not written by Vitrail.
    """
    if device not in ("auto", "cpu"):
        raise UsageError(
            f"--engine onnx computes on the CPU. Got --device {device}; leave it out, or use the run itself."
        )
    path = Path(model)
    if not is_onnx_path(model):
        path = path / ONNX_PATH_IN_RUN
        if not path.is_file():
            raise UsageError(f"{model} has no {ONNX_PATH_IN_RUN}. Make it with: vitrail export {model} --to onnx")
    predictor = OnnxPredictor(path)
    predictor.spec = override_image_options(predictor.spec, changes)
    return predictor
