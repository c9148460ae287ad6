"""Other decisions for a file that was exported before: named tensors are replaced, and every other one stays."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..errors import DamagedFileError, UsageError
from ..evaluate.decisions import Decisions
from ..files import onnx_guard
from ..predict import exported
from ..predict.exported import ExportMetadata
from .build import METADATA_FILE, load_pt2
from .decision_tensors import MODULE_NAME, decision_tensors


class RewrittenFile(NamedTuple):
    """The content of a file with other decisions."""

    data: bytes
    metadata: ExportMetadata
    changed: tuple[str, ...]
    """Tensors with other values."""
    unchanged: int
    """Tensors that stay as they were."""
    sha256: str
    """Of the names and contents of those, the same before and after."""


def rewrite_onnx(path: Path, decisions: Decisions, weights_sha256: str) -> RewrittenFile:
    """The content of an ONNX file with other decisions.

    Args:
        weights_sha256: of the model whose decisions these are, by `build.hash_model`.

    Raises:
        UsageError: no such file, one of another model, or one that holds no decisions by name.
        DamagedFileError: the file is damaged or malicious, or not written by Vitrail.
    """
    import onnx
    from onnx import numpy_helper

    _check_is_file(path)
    onnx_guard.check_onnx_file(path)
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # those of protobuf have no family but this
        raise DamagedFileError(f"{path} is no whole ONNX model: {error}. Use another copy.") from error
    notes = {each.key: each.value for each in model.metadata_props}
    metadata = exported.parse_metadata(notes, str(path))
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    wanted = _choose_tensors(path, metadata, decisions, weights_sha256, {name: [*t.dims] for name, t in stored.items()})
    changed = [name for name, values in wanted.items() if (numpy_helper.to_array(stored[name]) != values).any()]
    before = _hash_tensors({n: t.SerializeToString(deterministic=True) for n, t in stored.items() if n not in wanted})
    for name, values in wanted.items():
        stored[name].CopyFrom(numpy_helper.from_array(values, name))
    metadata = replace(metadata, decision=decisions.version)
    onnx.helper.set_model_props(model, {**notes, **metadata.to_metadata()})
    data = model.SerializeToString()
    again = onnx.load_from_string(data).graph.initializer
    after = _hash_tensors({t.name: t.SerializeToString(deterministic=True) for t in again if t.name not in wanted})
    return _require_unchanged(
        path, RewrittenFile(data, metadata, tuple(changed), len(stored) - len(wanted), after), before
    )


def rewrite_pt2(path: Path, decisions: Decisions, weights_sha256: str) -> RewrittenFile:
    """As `rewrite_onnx`, of a torch.export package. Only open packages that you trust: loading can execute code.

    Raises:
        as `rewrite_onnx`.
    """
    _check_is_file(path)
    program, metadata = load_pt2(path)
    stored = program.state_dict
    shapes = {name: [*values.shape] for name, values in stored.items()}
    wanted = _choose_tensors(path, metadata, decisions, weights_sha256, shapes)
    changed = [name for name, values in wanted.items() if (stored[name].numpy() != values).any()]
    before = _hash_tensors({name: _to_bytes(values) for name, values in stored.items() if name not in wanted})
    stored.update({name: torch.from_numpy(values) for name, values in wanted.items()})
    metadata, file = replace(metadata, decision=decisions.version), io.BytesIO()
    torch.export.save(program, file, extra_files={METADATA_FILE: json.dumps(metadata.to_metadata())})
    again = torch.export.load(io.BytesIO(file.getvalue())).state_dict
    after = _hash_tensors({name: _to_bytes(values) for name, values in again.items() if name not in wanted})
    rewritten = RewrittenFile(file.getvalue(), metadata, tuple(changed), len(stored) - len(wanted), after)
    return _require_unchanged(path, rewritten, before)


def _check_is_file(path: Path) -> None:
    if not path.is_file():
        kind = path.suffix.removeprefix(".")
        raise UsageError(f"There is no {path} to write a decision into. `vitrail export RUN --to {kind}` makes one.")


def _choose_tensors(
    path: Path, metadata: ExportMetadata, decisions: Decisions, sha256: str, shapes: Mapping[str, list[int]]
) -> dict[str, np.ndarray]:
    """The tensors to write, by their full names; raises UsageError where the file is not one to write them into."""
    if metadata.sha256 != sha256:
        raise UsageError(
            f"{path} holds other weights ({metadata.sha256[:8]}) than the run ({sha256[:8]}). Give a file that was "
            "exported from this run."
        )
    tensors = decision_tensors(metadata.task, metadata.classes, decisions)
    wanted = {f"{MODULE_NAME}.{name}": values for name, values in tensors.items()}
    if without := [name for name, values in wanted.items() if shapes.get(name) != [*values.shape]]:
        raise UsageError(
            f"{path} has no tensor {without[0]}: an older version wrote it. Export the run again: vitrail export RUN."
        )
    return wanted


def _to_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _hash_tensors(contents: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        digest.update(f"{name} {hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()


def _require_unchanged(path: Path, rewritten: RewrittenFile, before: str) -> RewrittenFile:
    if rewritten.sha256 != before:
        raise DamagedFileError(f"Other tensors of {path} would change. Nothing is written; please report this file.")
    return rewritten
