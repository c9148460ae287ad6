"""`create` and `load`: an untrained model by the name of its size, and a trained one by its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import UsageError
from ..files.hub import is_hub_name
from ..model.registry import config_from_name
from ..model.vit import ViT
from ..model.vit import create_model as create_from_config
from . import models, saying, wishes

Size = int | tuple[int, int]


def create(
    name: str,
    outputs: int | None = None,
    channels: int | None = None,
    image_size: Size | None = None,
    seed: int = 0,
) -> ViT:
    """An untrained model by the name of its size: pictures [B, C, H, W], normalised, to logits [B, outputs].

    Raises:
        UsageError: no such name, or an image size that the patch does not divide.
    """
    size = None if image_size is None else wishes.pixels(image_size)
    return create_from_config(models.resized(config_from_name(name), size, channels, outputs), seed)


def load(
    path: str | Path,
    layout: str | None = None,
    heads: int | None = None,
    image_size: Size | None = None,
    channels: int | None = None,
    pool: str | None = None,
    match: str | None = None,
    outputs: int | None = None,
    channels_policy: str | Sequence[int] | None = None,
    network: str | None = None,
    settings: Mapping[str, object] | None = None,
    allow_nonfinite: bool = False,
) -> ViT:
    """A trained model, complete or not at all, in evaluation mode on the CPU.

    Args:
        path: a run folder, a bundle, a weights file or folder of any known layout, or "hf:OWNER/NAME".
        layout: name of a layout, such as "timm"; recognised from the tensors if it is not given.
        heads: attention heads, where a file cannot say; a value that contradicts the file is an error.
        image_size: pixels, where a file cannot say; another size than its own stretches its positions once, by the
            rule of its family.
        channels: of the pictures, where a file cannot say; another count than its own needs `channels_policy`.
        pool: "class", "mean", "attention" or "class+mean", where the file cannot say or another is wanted.
        match: whose numerics, "original", "timm" or "transformers", where libraries run the same file differently.
        outputs: another number than the file's puts a fresh head of zeros on the model; 0 gives pooled features.
        channels_policy: how the patch projection is adapted: "sum", "mean", "tile", or for each new channel the file's.
        network: which of several networks that a training saved, such as "encoder" of I-JEPA.
        settings: fields of the architecture that neither file nor layout says, such as {"activation": "QuickGELU"}.
        allow_nonfinite: load weights that are NaN or infinite, to look at what a diverged training left.

    Raises:
        UsageError: nothing at the path, or an argument is missing or contradicts the file.
        DamagedFileError: the file is damaged, or its tensors are not those of its layout.
        ResourceError: a name on the Hub whose files are neither here nor reachable.
    """
    if not (Path(path).exists() or is_hub_name(str(path))):
        raise UsageError(
            f"There is nothing at {path}. Give a run folder, a bundle, a weights file or folder, or hf:OWNER/NAME."
        )
    words = saying.said(
        layout=layout,
        heads=heads,
        image_size=image_size,
        channels=channels,
        pool=pool,
        match=match,
        outputs=outputs,
        channels_policy=channels_policy,
        network=network,
    )
    return models.find(str(path), replace(words, settings=settings or {}, allow_nonfinite=allow_nonfinite)).model
