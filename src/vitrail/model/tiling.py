"""Overlapping tiles of an image that is much larger than the encoder reads, and one grid of patches from theirs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import UsageError
from .config import ViTConfig

TILES_AT_ONCE = 16
"""Tiles of one image in a forward pass on a GPU; a CPU takes one after another."""


class Tiling(nn.Module):
    """Cuts images of `config.input_size` into tiles of `config.image_size`, row by row, and joins their patches.

    A patch that several tiles have is taken from the one whose centre is nearest, where it has most around it.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.size, self.counts = config.image_size, config.tiles
        steps = [(side - config.tile_overlap) for side in config.grid]
        self.steps = [step * patch for step, patch in zip(steps, config.patch, strict=True)]
        self.input_size = config.input_size
        axes = zip(config.tiles, config.grid, steps, strict=True)
        (rows, inner_rows), (columns, inner_columns) = (_nearest_tiles(*axis) for axis in axes)
        tile = rows[:, None] * config.tiles[1] + columns
        place = tile * config.grid.patches + inner_rows[:, None] * config.grid.columns + inner_columns
        self.places = place.flatten().tolist()
        """Of each patch of the whole image, its place among those of all tiles."""

    def map_tiles(
        self, function: Callable[[Float[Tensor, "b C h w"]], Float[Tensor, "b N P"]], images: Float[Tensor, "B C H W"]
    ) -> Float[Tensor, "B k N P"]:
        """The features of the patches of every tile; a few tiles at once, so that memory does not grow with the image.

        In an exported graph those of all images are one batch.
        """
        tiles = self.cut(images)  # k x [B, C, h, w]
        if torch.compiler.is_exporting():
            return function(torch.cat(tiles)).unflatten(0, (len(tiles), -1)).transpose(0, 1)
        several = 1 if images.device.type == "cpu" else TILES_AT_ONCE
        features = []
        for image in range(len(images)):
            of_image = torch.stack([tile[image] for tile in tiles])  # [k, C, h, w]
            features.append(torch.cat([function(some) for some in of_image.split(several)]))
        return torch.stack(features)

    def cut(self, images: Float[Tensor, "B C H W"]) -> list[Float[Tensor, "B C h w"]]:
        """The tiles, each of all images.

        Raises:
            UsageError: images of another size than that of the tiles together.
        """
        (height, width), (rows, columns) = self.size, self.counts
        if tuple(images.shape[-2:]) != self.input_size:
            raise UsageError(
                f"A model that reads tiles takes images of {self.input_size[0]}x{self.input_size[1]} pixels only. Got "
                f"{images.shape[-2]}x{images.shape[-1]}."
            )
        starts = [(r * self.steps[0], c * self.steps[1]) for r in range(rows) for c in range(columns)]
        return [images[:, :, top : top + height, left : left + width] for top, left in starts]

    def join(self, tiles: Float[Tensor, "B k N P"]) -> Float[Tensor, "B M P"]:
        """The features of the patches of whole images from those of their tiles."""
        return tiles.flatten(1, 2)[:, torch.tensor(self.places, device=tiles.device)]


def _nearest_tiles(count: int, side: int, step: int) -> tuple[Tensor, Tensor]:
    """For each patch of an axis the tile whose centre is nearest, and its place there."""
    patches = torch.arange(side + (count - 1) * step, device="cpu")
    centres = torch.arange(count, device="cpu") * step + (side - 1) / 2
    tiles = (patches[:, None] - centres).abs().argmin(1)
    return tiles, patches - tiles * step
