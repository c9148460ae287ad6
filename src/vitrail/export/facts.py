"""What an exported file is to say about itself."""

from __future__ import annotations

import hashlib
from importlib.metadata import version

import numpy as np
from torch import nn

from ..predict.exported import ExportMetadata
from ..predict.predictor import PredictorMember
from .answering import Answering


def facts_of(answering: Answering, member: PredictorMember) -> ExportMetadata:
    """The notes of the file that a module becomes."""
    return ExportMetadata(
        task=member.task,
        classes=member.classes,
        image=member.spec,
        size="model" if answering.resizing is None else "any",
        outputs=answering.names,
        number_format=answering.number_format,
        version=version("vitrail"),
        sha256=hash_of(member.model),
    )


def hash_of(model: nn.Module) -> str:
    """SHA-256 over the names, shapes and values of all tensors of a model, in the order of their names."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().cpu().contiguous().numpy()
        found.update(f"{name} {list(values.shape)} {values.dtype}\n".encode())
        found.update(np.ascontiguousarray(values).data)
    return found.hexdigest()
