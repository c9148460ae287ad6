"""A model repository of NVIDIA Triton around an ONNX file; KServe's runtime of Triton serves the same folder."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

VERSION = "1"
"""The folder of the only version."""
LABELS_FILE = "labels.txt"
MAX_BATCH, QUEUE_MICROSECONDS = 32, 2000
"""Most images that Triton joins to one batch, and how long it waits for more."""
TYPES = {
    "tensor(uint8)": "TYPE_UINT8", "tensor(uint16)": "TYPE_UINT16", "tensor(int64)": "TYPE_INT64",
    "tensor(float)": "TYPE_FP32", "tensor(double)": "TYPE_FP64",
}  # fmt: skip
"""Of tensors, by ONNX Runtime's names."""


def write_repository(onnx: Path, repository: Path, name: str, classes: Sequence[str]) -> None:
    """Write REPOSITORY/NAME/config.pbtxt, its labels, and the ONNX file with what lies beside it as version 1.

    Args:
        onnx: as `vitrail export` writes it; its first axis is the batch.
        name: of the model in requests.
        classes: names of the probabilities, in order.
    """
    version = repository / name / VERSION
    version.mkdir(parents=True)
    for file in onnx.parent.glob(f"{onnx.name}*"):  # with its data, where they are too large for one file
        shutil.copyfile(file, version / file.name.replace(onnx.name, "model.onnx"))
    lines = "".join(f"{one}\n" for one in (re.sub(r"\s+", " ", each) for each in classes))
    (version.parent / LABELS_FILE).write_text(lines, encoding="utf-8")
    (version.parent / "config.pbtxt").write_text(describe_model(onnx, name), encoding="utf-8")


def describe_model(onnx: Path, name: str) -> str:
    """Triton's configuration of an ONNX file, in protobuf's text format."""
    from onnxruntime import InferenceSession

    session = InferenceSession(onnx, providers=["CPUExecutionProvider"])
    inputs = [_describe_tensor("input", each) for each in session.get_inputs()]
    outputs = [_describe_tensor("output", each) for each in session.get_outputs()]
    return "\n".join(
        [
            f'name: "{name}"',
            'platform: "onnxruntime_onnx"',
            f"max_batch_size: {MAX_BATCH}",
            *inputs,
            *outputs,
            f"dynamic_batching {{ max_queue_delay_microseconds: {QUEUE_MICROSECONDS} }}",
            "",
        ]
    )


def _describe_tensor(kind: str, tensor: object) -> str:
    """One input or output, without its batch axis; a number for each image is a tensor of one, reshaped."""
    name, shape = tensor.name, tensor.shape[1:]  # type: ignore[attr-defined]
    dims = [side if isinstance(side, int) else -1 for side in shape] or [1]
    parts = [f'name: "{name}"', f"data_type: {TYPES[tensor.type]}", f"dims: {dims}"]  # type: ignore[attr-defined]
    parts += ["reshape { shape: [] }"] if not shape else []
    parts += [f'label_filename: "{LABELS_FILE}"'] if name == "probabilities" else []
    return f"{kind} {{ {' '.join(parts)} }}"


def choose_model_name(folder: str) -> str:
    """A name that every client can send, from that of a folder."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", folder).strip("-.") or "model"
