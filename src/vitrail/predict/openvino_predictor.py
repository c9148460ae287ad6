"""A predictor for exported OpenVINO files: a graph in NAME.xml and its weights in NAME.bin."""

from __future__ import annotations

import operator
import re
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt

from ..errors import DamagedFileError, UsageError
from . import exported
from .onnx_predictor import FilePredictor

GRAPH_EXTENSION, WEIGHTS_EXTENSION = ".xml", ".bin"
METADATA_SECTION = "framework"
"""Where OpenVINO keeps the metadata of the ONNX file that it has read, under the same names."""
SETTINGS = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
"""All threads for one batch, and float32 where the graph does not say int8: by itself OpenVINO computes in bf16 on some
processors, the distances from the training images as well."""
GRAPH_START = re.compile(rb"\s*(<\?xml[^>]*\?>)?\s*<net\b")
"""The first bytes of a graph; OpenVINO would take files of other formats, too."""
WRITER = re.compile(r'<info name="OpenVINO Runtime" value="([^"]*)"')


class OpenVinoPredictor(FilePredictor):
    """An OpenVINO file, which its plugin for processors answers.

    Args:
        threads: of OpenVINO; None takes all cores.

    Raises:
        UsageError: OpenVINO is not installed, or there is no such file.
        DamagedFileError: the file cannot be read, or Vitrail has not written it.
    """

    def __init__(self, path: Path, threads: int | None = None):
        if not path.is_file():
            raise UsageError(f"An OpenVINO file is needed at {path}. `vitrail export RUN --to openvino` makes one.")
        weights = path.with_suffix(WEIGHTS_EXTENSION)
        if not weights.is_file():
            raise DamagedFileError(f"{path} has its weights in {weights.name}, which is not there. Copy both files.")
        core = make_core()
        graph = _read_graph(core, path)
        self.metadata = exported.parse_metadata(_read_notes(graph), str(path))
        self.spec = self.metadata.image
        expected, names = self.metadata.outputs, [sorted(output.get_names()) for output in graph.outputs]
        if len(names) != len(expected) or not all(map(operator.contains, names, expected)):
            given = ", ".join("/".join(each) for each in names)
            raise DamagedFileError(f"{path} must give {', '.join(expected)}. It gives {given}.")
        settings: dict[str, Any] = {} if threads is None else {"INFERENCE_NUM_THREADS": threads}
        try:
            self._compiled = core.compile_model(graph, "CPU", SETTINGS | settings)
        except RuntimeError as error:
            raise DamagedFileError(f"OpenVINO cannot run {path}: {_shorten(error)}. Export it again.") from error
        self._request = self._compiled.create_infer_request()

    def run(self, images: UInt[np.ndarray, "B H W C"]) -> dict[str, np.ndarray]:
        """All outputs by name, for images of a size that the file accepts."""
        outputs = self._request.infer([np.ascontiguousarray(images)], share_inputs=True)
        pairs = zip(self.metadata.outputs, self._compiled.outputs, strict=True)
        return {name: outputs[output] for name, output in pairs}


def make_core() -> Any:
    """OpenVINO's entry.

    Raises:
        UsageError: OpenVINO is not installed.
    """
    try:
        import openvino
    except ImportError as error:
        raise UsageError(
            "An OpenVINO file is written and answered by OpenVINO, which is not installed: pip install "
            "'vitrail[openvino]'"
        ) from error
    return openvino.Core()


def _read_graph(core: Any, path: Path) -> Any:
    with path.open("rb") as file:
        if not GRAPH_START.match(file.read(512)):
            raise DamagedFileError(f"{path} is no graph of OpenVINO. Use another copy.")
    try:
        return core.read_model(path, path.with_suffix(WEIGHTS_EXTENSION))
    except RuntimeError as error:
        from openvino import get_version

        found = WRITER.search(path.read_text(encoding="utf-8", errors="replace"))
        written = f", written by OpenVINO {found[1]}" if found and found[1] != get_version() else ""
        raise DamagedFileError(
            f"OpenVINO {get_version()} cannot open {path}{written}: {_shorten(error)}. Use another copy, or export it "
            "again with this version."
        ) from error


def _read_notes(graph: Any) -> dict[str, str]:
    """The metadata of the ONNX file; empty where there are none."""
    if not graph.has_rt_info([METADATA_SECTION]):
        return {}
    section = graph.get_rt_info([METADATA_SECTION]).value
    return {name: str(value) for name, value in section.items()} if isinstance(section, dict) else {}


def _shorten(error: Exception) -> str:
    """The last line of one of its errors: those before name places in its own source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
