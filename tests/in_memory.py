"""Load a model from tensors in memory, by the rules for a file that holds them."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from vitrail.checkpoints.foreign_folder import ForeignFolder
from vitrail.checkpoints.layouts import LayoutHints
from vitrail.checkpoints.load import LoadedModel, LoadOptions, _load_content
from vitrail.checkpoints.weight_files import WeightsContent


def load_from_tensors(
    tensors: dict[str, Tensor], where: str, layout: str | None = None, hints: LayoutHints | None = None
) -> LoadedModel:
    """The model; `tensors` is emptied, and `where` names the file in messages."""
    hints = hints or LayoutHints()
    options = LoadOptions(
        layout=layout,
        heads=hints.heads,
        image_size=hints.image_size,
        channels=hints.channels,
        pool=hints.pool,
        match=hints.match,
        settings=hints.settings,
    )
    folder = ForeignFolder(path=Path(where), config=dict(hints.foreign_config), preprocessor={})
    return _load_content(WeightsContent(tensors=tensors), where, options, folder)
