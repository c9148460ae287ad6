"""The Open Inference Protocol, version 2: what a model is, and answers to tensors, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from ..data.source import Task
from ..predict import exported
from ..spec import ImageSpec
from .refusals import RefusedError

TYPES = {"f": "FP32", "i": "INT64"}
FORM = "1"
"""The model's version, as the protocol calls it: a server holds one."""


def server_facts() -> dict[str, Any]:
    """`GET /v2`."""
    return {"name": "vitrail", "version": version("vitrail"), "extensions": []}


def model_facts(name: str, task: Task, outputs: int, alone: bool, spec: ImageSpec) -> dict[str, Any]:
    """`GET /v2/models/NAME`.

    Args:
        outputs: K.
        alone: one model; several together have no logits.
    """
    of_labels = [-1, outputs] if task == "labels" else [-1]
    shapes = {
        exported.PROBABILITIES: ("FP32", [-1, outputs]),
        exported.VALUES: ("FP32", [-1, outputs]),
        exported.LOGITS: ("FP32", [-1, outputs]),
        exported.DECISIONS: ("INT64", of_labels),
        exported.ABSTAINED: ("INT64", [-1]),
    }
    names = [one for one in exported.list_output_names(task, distances=False) if alone or one != exported.LOGITS]
    images = {"name": exported.INPUT_NAME, "datatype": "UINT8", "shape": [-1, spec.height, spec.width, spec.channels]}
    return {
        "name": name,
        "versions": [FORM],
        "platform": "vitrail",
        "inputs": [images],
        "outputs": [{"name": one, "datatype": shapes[one][0], "shape": shapes[one][1]} for one in names],
    }


def inferred(name: str, id: str, outputs: dict[str, np.ndarray], asked: Sequence[str]) -> dict[str, Any]:
    """`POST /v2/models/NAME/infer`.

    Args:
        asked: names of outputs; none asks for all.

    Raises:
        RefusedError: 422, an output that the model does not have.
    """
    if unknown := [one for one in asked if one not in outputs]:
        raise RefusedError(422, f"The model has no output {unknown[0]!r}. Its outputs are {', '.join(outputs)}.")
    found = {one: outputs[one] for one in (asked or outputs)}
    return {
        "model_name": name,
        "model_version": FORM,
        **({"id": id} if id else {}),
        "outputs": [
            {
                "name": one,
                "datatype": TYPES[values.dtype.kind],
                "shape": list(values.shape),
                "data": values.ravel().tolist(),
            }
            for one, values in found.items()
        ],
    }
