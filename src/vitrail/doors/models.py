"""MODEL by any of its names: a run folder, a bundle, a weights file, or the name of a size."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..checkpoints import bundle
from ..checkpoints.audit import Audit
from ..checkpoints.load import load
from ..errors import UsageError
from ..model.config import ViTConfig
from ..model.sizes import examples, named
from ..model.vit import ViT, create
from ..spec import ImageSpec

Kind = Literal["run", "bundle", "weights file", "name"]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a MODEL turned out to be."""

    kind: Kind
    config: ViTConfig
    spec: ImageSpec
    classes: tuple[str, ...] = ()
    """Empty where nobody has named the outputs."""
    audit: Audit | None = None
    """Every tensor of the file; None for a name."""
    trained: ViT | None = None
    """The model in evaluation mode; None for a name, whose weights are made when they are asked for."""

    @property
    def model(self) -> ViT:
        """The model; for a name, with fresh initial values of seed 0."""
        return create(self.config, 0).eval() if self.trained is None else self.trained


def find(
    given: str,
    layout: str | None = None,
    heads: int | None = None,
    image_size: tuple[int, int] | None = None,
    channels: int | None = None,
    outputs: int | None = None,
) -> Found:
    """The model behind a path or a name; a path that exists is taken before a name.

    Args:
        layout, heads: what a weights file cannot say itself.
        image_size, channels, outputs: as for `checkpoints.load`; for a name they change the shape.

    Raises:
        UsageError: no such path and no such name, or an argument that contradicts the file.
        DamagedFileError: the file or folder cannot be trusted.
    """
    path = Path(given)
    if path.exists():
        folder = bundle_of(path) if path.is_dir() else None
        if folder is not None:
            return _in_folder(path, folder, layout, heads, image_size, channels, outputs)
        return _in_file(path, layout, heads, image_size, channels, outputs)
    if layout is not None or heads is not None:
        raise UsageError(f"--layout and --heads describe a weights file. There is no file {given}.")
    config = resized(_named(given), image_size, channels, outputs)
    return Found(kind="name", config=config, spec=plain_spec(config))


def bundle_of(path: Path) -> Path:
    """The bundle of a folder: itself, or the `model/` of a run folder.

    Raises:
        UsageError: neither; for a run that has not ended, with the command that ends it.
    """
    for folder in (path, path / "model"):
        if bundle.is_bundle(folder):
            return folder
    if (path / "plan.toml").is_file():
        raise UsageError(f"The run {path} has no model yet. Finish it with: vitrail train --resume {path}")
    raise UsageError(
        f"A model must be a run folder, a bundle (a folder with config.json and model.safetensors), a weights file "
        f"or a name. The folder {path} is none of them."
    )


def resized(
    config: ViTConfig, image_size: tuple[int, int] | None, channels: int | None, outputs: int | None
) -> ViTConfig:
    """A shape with another picture size, channel count or number of outputs, each where it is given."""
    return replace(
        config,
        image_size=config.image_size if image_size is None else image_size,
        channels=config.channels if channels is None else channels,
        outputs=config.outputs if outputs is None else outputs,
    )


def plain_spec(config: ViTConfig) -> ImageSpec:
    """The pictures that a model reads when nobody has said more: its size, 0..255, mean and deviation one half."""
    height, width = config.image_size
    return ImageSpec(height=height, width=width, channels=config.channels)


def _in_folder(
    path: Path,
    folder: Path,
    layout: str | None,
    heads: int | None,
    image_size: tuple[int, int] | None,
    channels: int | None,
    outputs: int | None,
) -> Found:
    loaded = load(folder, layout, heads, image_size, channels, outputs)
    opened = bundle.load(folder)
    same = loaded.config.outputs == opened.model.config.outputs
    return Found(
        kind="bundle" if folder == path else "run",
        config=loaded.config,
        spec=opened.spec,
        classes=opened.classes if same else (),
        audit=loaded.audit,
        trained=loaded.model,
    )


def _in_file(
    path: Path,
    layout: str | None,
    heads: int | None,
    image_size: tuple[int, int] | None,
    channels: int | None,
    outputs: int | None,
) -> Found:
    loaded = load(path, layout, heads, image_size, channels, outputs)
    return Found(
        kind="weights file",
        config=loaded.config,
        spec=plain_spec(loaded.config),
        audit=loaded.audit,
        trained=loaded.model,
    )


def _named(name: str) -> ViTConfig:
    if name.startswith("vit_") or name in examples() or difflib.get_close_matches(name, examples(), n=1):
        return named(name)
    raise UsageError(
        f"There is no run folder, bundle, weights file or named size {name}. "
        "Check the path; names read as vit_tiny_patch16_224."
    )
