"""A classic figure of any MODEL and some pictures, in one call: prepared, drawn, saved with its arrays and facts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..explain.paper_figures import all_figures
from ..explain.paper_figures.plots import FigureOptions, empty_figure_inputs, prepare_figure_inputs, resize_spec
from .models import Found


def draw_classic(
    found: Found,
    name: str,
    pictures: Sequence[Path],
    to: Path,
    image_size: tuple[int, int] | None = None,
    choices: FigureOptions | None = None,
) -> list[Path]:
    """Write a figure of `book.FIGURES` to a PNG, and beside it its arrays (.npz) and facts (.json).

    Args:
        image_size: (height, width) that the pictures are enlarged or shrunk to, other than the model's own.

    Raises:
        UsageError: no such figure or option, another number of pictures than it takes, or a size that no patch divides.
        DataError: a picture cannot be read.
        ResourceError: the files cannot be written.
    """
    model = found.model
    spec = found.spec if image_size is None else resize_spec(found.spec, image_size)
    names = [path.name for path in pictures]
    shown = prepare_figure_inputs(model, spec, list(pictures), names) if pictures else empty_figure_inputs(model)
    return all_figures.save_figure(all_figures.draw_figure(name, model, shown, choices), to)
