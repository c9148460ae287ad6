"""Pictures of a report of masks: the mask on the left, the answer on the right."""

from __future__ import annotations

import numpy as np
from jaxtyping import UInt8

from ..data.decoding.decode import to_8_bits
from ..evaluate.mask_overlap import MaskComparison
from ..explain.mask_overlay import blend_mask


def draw_masks(comparison: MaskComparison) -> UInt8[np.ndarray, "n H W 3"]:
    """Two pictures side by side for each row of a source, at the model's size.

    Raises:
        DataError: an image or mask cannot be read, or they differ in size.
    """
    count, (height, width) = comparison.model.config.outputs, comparison.spec.size
    drawn = [np.zeros((0, height, 2 * width, 3), np.uint8)]
    for batch in comparison:
        for image, mask, answer in zip(batch.images, batch.masks, batch.answers, strict=True):
            shown = to_8_bits(image.permute(1, 2, 0).numpy())
            drawn.append(np.concatenate([blend_mask(shown, each, count) for each in (mask, answer)], axis=1)[None])
    return np.concatenate(drawn)
