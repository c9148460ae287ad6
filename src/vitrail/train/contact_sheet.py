"""The sheet "what the model sees": some training images after preprocessing, and augmented as in the first epochs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, Integer
from PIL import Image, ImageDraw
from torch import Tensor

from ..data.decoding.decode import to_8_bits
from ..data.loader import Batch, ImageStore
from ..data.preprocess import preprocess_image, widen
from ..data.source import Source
from ..errors import UsageError
from ..files import atomic
from ..randomness import permutation
from ..report.check_page import describe_label
from .batch_augment import augment_batch, mix_batch
from .custom_functions import NO_CUSTOM_FUNCTIONS, CustomFunctions
from .plan import Plan

SHEET_SIDE = 8
"""Images per row, and maximum number of rows."""
MIN_TILE, MAX_TILE = 96, 160
"""Pixels of the long side of an image on the sheet."""
CAPTION = 16
GAP = 4
INK, PAPER = "#1b1b22", "#ffffff"


def write_contact_sheet(
    path: Path,
    source: Source,
    image_source: ImageStore,
    plan: Plan,
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
) -> None:
    """Draw eight training images, each with its augmented versions of the first seven epochs, into a PNG."""
    indices = image_source.indices
    rows = indices[permutation(plan.seed, "sheet", 0, len(indices))[:SHEET_SIDE]]
    images, captions = render_views(source, image_source, rows, plan, custom_functions=custom_functions)
    draw_image_grid(path, images, captions)


def render_views(
    source: Source,
    images: ImageStore,
    rows: Int64[np.ndarray, " n"],
    plan: Plan,
    epochs: int = SHEET_SIDE - 1,
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
) -> tuple[Integer[Tensor, "images C H W"], list[str]]:
    """For each row: the image as preprocessed for prediction, then augmented as in each of the first epochs.

    These are the images of the training, bit for bit, except that mixing partners come from the sheet and not from the
    batch, and that a custom augmentation may draw other random numbers.
    """
    prepared = widen(torch.stack([preprocess_image(source.images[row], plan.image) for row in rows.tolist()]))
    targets = torch.from_numpy(source.targets[rows])
    columns = [prepared]
    for epoch in range(epochs):
        batch = Batch(images.take(rows, epoch), targets, rows)
        augmented = custom_functions.apply_augment(augment_batch(batch, plan.recipe, plan.seed, epoch))
        columns.append(mix_batch(augmented, batch, plan.recipe, plan.seed, epoch, len(source.classes))[0])
    names = [describe_label(source, row) for row in rows.tolist()]
    captions = [caption for name in names for caption in (name, *(f"epoch {epoch + 1}" for epoch in range(epochs)))]
    return torch.stack(columns, dim=1).flatten(0, 1), captions


def draw_image_grid(path: Path, images: Integer[Tensor, "n C H W"], captions: Sequence[str]) -> None:
    """Draw images row by row, eight in each, with a caption above each one.

    One channel is grey, three are colour; of any other count the first is drawn.

    Raises:
        UsageError: no image, more than 64, or another number of captions.
    """
    if not 1 <= len(images) <= SHEET_SIDE * SHEET_SIDE or len(captions) != len(images):
        raise UsageError(
            f"A sheet holds 1 to {SHEET_SIDE * SHEET_SIDE} pictures with a caption each. "
            f"Got {len(images)} and {len(captions)} captions."
        )
    tiles = [_make_tile(image) for image in images.numpy()]
    width, height = tiles[0].size
    columns = min(SHEET_SIDE, len(tiles))
    num_rows = -(-len(tiles) // columns)
    size = columns * (width + GAP) + GAP, num_rows * (height + CAPTION + GAP) + GAP
    sheet = Image.new("RGB", size, PAPER)
    pen = ImageDraw.Draw(sheet)
    for index, (tile, caption) in enumerate(zip(tiles, captions, strict=True)):
        row, column = divmod(index, columns)
        left, top = GAP + column * (width + GAP), GAP + row * (height + CAPTION + GAP)
        text = " ".join(caption.split()).encode("latin-1", "replace").decode("latin-1")  # the font has no others
        while text and pen.textlength(text) > width:
            text = text[:-1]
        pen.text((left, top), text, fill=INK)
        sheet.paste(tile, (left, top + CAPTION))
    data = io.BytesIO()
    sheet.save(data, "PNG", compress_level=1)  # three times as fast as the usual level, a tenth larger
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(path, data.getvalue())


def _make_tile(image: Integer[np.ndarray, "C H W"]) -> Image.Image:
    """The image at 96 to 160 pixels; small ones are enlarged by an integer factor, so that pixels stay visible."""
    image = to_8_bits(image)
    colour = image.transpose(1, 2, 0) if len(image) == 3 else image[:1].repeat(3, 0).transpose(1, 2, 0)
    tile = Image.fromarray(np.ascontiguousarray(colour))
    longest = max(tile.size)
    if longest > MAX_TILE:
        tile.thumbnail((MAX_TILE, MAX_TILE))
        return tile
    zoom = max(1, -(-MIN_TILE // longest))
    return tile.resize((tile.width * zoom, tile.height * zoom), Image.Resampling.NEAREST)
