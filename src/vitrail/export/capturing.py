"""From a module to a graph of tensor operations, for any number of pictures at once: `torch.export`."""

from __future__ import annotations

import warnings

import torch
from torch.export import Dim, ExportedProgram

from .answering import Answering

EXAMPLES = 3
"""Pictures that the graph is recorded with; 1 would be taken for a fact about all batches."""


def capture(answering: Answering) -> ExportedProgram:
    """The graph of a module, for any batch; and for any height and width where the module resizes."""
    spec = answering.spec
    height, width = spec.size if answering.resizing is None else (spec.height + 3, spec.width + 5)
    images = torch.zeros(EXAMPLES, height, width, spec.channels, dtype=torch.uint8)
    sides = {} if answering.resizing is None else {1: Dim("height"), 2: Dim("width")}
    with torch.no_grad():
        program = torch.export.export(
            answering.eval(), (images,), dynamic_shapes={"images": {0: Dim("batch"), **sides}}, strict=False
        )
    if answering.number_format == "float32":
        return program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch copies its own trees in a way that it warns of
        return program.run_decompositions({})  # autocast becomes a change of format wherever it would make one
