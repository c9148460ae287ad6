"""From a weights file or a bundle to a model: recognised, complete, reported tensor by tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..errors import DamagedFileError, UsageError
from ..model.config import ViTConfig
from ..model.vit import ViT
from . import bundle
from .audit import Audit
from .build import build, on_meta
from .containers import read_tensors
from .identify import identify, named_layout
from .rules import read
from .shapes import agree

__all__ = ["Loaded", "identify", "load"]


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model that came out of a file."""

    model: ViT
    """In evaluation mode, on the CPU, in float32."""
    config: ViTConfig
    """Its architecture."""
    audit: Audit
    """What became of every tensor of the file."""


def load(
    path: str | Path,
    layout: str | None = None,
    heads: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    outputs: int | None = None,
) -> Loaded:
    """Read a bundle, or a weights file of a known layout, completely or not at all.

    Args:
        layout: its name; recognised from the tensors unless given. A folder with config.json is a bundle.
        heads, image_size, channels: what the file cannot say; an argument that contradicts the file is an error.
        outputs: unless it is the file's own count the head is replaced: 0 for none (pooled features come out), any
            other number for a new one whose weights are zero, ready for training.

    Raises:
        DamagedFileError: the file is damaged or of no known layout; a tensor is missing, renamed, extra, of another
            shape, not finite, or a fixed table of another convention.
        UsageError: an argument is missing, contradicts the file, or names no layout.
    """
    path = Path(path)
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if path.is_dir() or layout == "bundle":
        loaded = _load_bundle(path, layout, heads, size, channels)
    else:
        loaded = _load_file(path, layout, heads, size, channels)
    return loaded if outputs in (None, loaded.config.outputs) else _with_new_head(loaded, outputs)


def _load_file(
    path: Path, layout: str | None, heads: int | None, size: tuple[int, int] | None, channels: int | None
) -> Loaded:
    tensors = read_tensors(path)
    try:
        family = named_layout(identify(tensors) if layout is None else layout)
        config = family.config(tensors, heads, size, channels)
    except (DamagedFileError, UsageError) as error:
        raise type(error)(f"{path}: {error}") from error
    values, audit = read(tensors, on_meta(config).state_dict(), config, family, str(path))
    return Loaded(model=build(config, values), config=config, audit=audit)


def _load_bundle(
    path: Path, layout: str | None, heads: int | None, size: tuple[int, int] | None, channels: int | None
) -> Loaded:
    if layout not in (None, "bundle"):
        raise UsageError(f"{path} is a folder, which can only be a bundle. Got layout={layout!r}; leave it out.")
    opened = bundle.load(path)
    config, source = opened.model.config, str(path / "config.json")
    agree(heads, config.heads, "heads", source)
    agree(size, config.image_size, "image_size", source)
    agree(channels, config.channels, "channels", source)
    return Loaded(model=opened.model, config=config, audit=opened.audit)


def _with_new_head(loaded: Loaded, outputs: int | None) -> Loaded:
    """The same encoder under a head of zeros with another number of outputs, or under none."""
    config = replace(loaded.config, outputs=outputs or 0)
    kept = {name: tensor for name, tensor in loaded.model.state_dict().items() if not name.startswith("head.")}
    shapes = {name: tensor.shape for name, tensor in on_meta(config).state_dict().items() if name not in kept}
    fresh: dict[str, Tensor] = {name: torch.zeros(shape) for name, shape in shapes.items()}
    rows = tuple(
        replace(row, action="dropped", ours=f"outputs={outputs} asks for another head")
        if row.ours.startswith("head.")
        else row
        for row in loaded.audit.rows
    )
    return Loaded(model=build(config, {**kept, **fresh}), config=config, audit=replace(loaded.audit, rows=rows))
