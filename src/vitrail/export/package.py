"""A `torch.export` package (.pt2): the graph and its weights for PyTorch, without Vitrail's code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch.export import ExportedProgram

from ..errors import DamagedFileError
from ..predict import exported
from ..predict.exported import ExportMetadata

NOTES = "vitrail.json"
"""The file inside the package that holds its notes."""


class Package:
    """A package that `write` has made, opened: pictures in, named outputs out.

    Only open packages that you trust: reading one can run what it says.

    Raises:
        DamagedFileError: no such package, or Vitrail has not written it.
    """

    def __init__(self, path: Path):
        notes = {NOTES: ""}
        try:
            program = torch.export.load(path, extra_files=notes)
            said = json.loads(notes[NOTES])
        except (OSError, RuntimeError, ValueError) as error:
            raise DamagedFileError(
                f"{path} is no package of torch.export that Vitrail has written: {error}."
            ) from error
        self.facts = exported.parse_metadata(said, str(path))
        self.module = program.module()

    def run(self, images: UInt8[np.ndarray, "B H W C"]) -> dict[str, np.ndarray]:
        """All outputs by name."""
        with torch.inference_mode():
            found = self.module(torch.from_numpy(np.ascontiguousarray(images)))
        return {name: output.numpy() for name, output in zip(self.facts.outputs, found, strict=True)}


def write(program: ExportedProgram, facts: ExportMetadata, path: Path) -> None:
    """Write a graph with its notes."""
    torch.export.save(program, path, extra_files={NOTES: json.dumps(facts.notes())})
