"""Pictures of a report of masks: the mask on the left, the answer on the right."""

from __future__ import annotations

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from ..data.decoding.decode import to_8_bits
from ..data.loader import ImageStore
from ..data.mask_store import load_mask
from ..data.source import Source
from ..evaluate.inference import InferenceSettings, forward_batch, inference_mode
from ..explain.mask_overlay import blend_mask
from ..model.class_maps import to_class_maps
from ..model.vit import ViT
from ..spec import ImageSpec


def draw_masks(
    model: ViT,
    images: ImageStore,
    source: Source,
    rows: NDArray[np.int64],
    spec: ImageSpec,
    settings: InferenceSettings,
) -> UInt8[np.ndarray, "n H W 3"]:
    """Two pictures side by side for each row of a source, at the model's size.

    Raises:
        DataError: an image or mask cannot be read, or they differ in size.
    """
    count = model.config.outputs
    drawn = [np.zeros((0, spec.height, 2 * spec.width, 3), np.uint8)]
    with inference_mode(model):
        for row in rows.tolist():
            image = images.take(np.array([row]))
            answer = to_class_maps(forward_batch(model, image, spec, settings, "segmentation")[0], model.config)
            shown = to_8_bits(image[0].permute(1, 2, 0).numpy())
            classes = (load_mask(source, row, spec), answer[0].cpu().numpy())
            drawn.append(np.concatenate([blend_mask(shown, each, count) for each in classes], axis=1)[None])
    return np.concatenate(drawn)
