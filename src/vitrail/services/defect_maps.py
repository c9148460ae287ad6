"""`vitrail predict --maps`: where pictures differ from good ones, as overlays and as 16-bit images."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt16
from PIL import Image

from ..data.decoding.decode import decode_image, to_8_bits
from ..data.preprocess import crop_for_display, fit_array_to_tensor
from ..errors import UsageError
from ..evaluate.inference import forward_batch, inference_mode
from ..evaluate.pixel_metrics import DistanceMaps, spread_map
from ..explain.overlay import MIN_SIDE_PIXELS, blend_colors, enlarge_pixels, to_rgb, upsample_map
from ..files import atomic
from ..model.vit import ViT
from ..predict.predictor import Predictor
from .explanation import make_unique_stems

MAX_DISTANCE = 2.0
"""The distance that is 65535 in a 16-bit map."""
OVERLAY_ENDING, MAP_ENDING = ".png", ".map.png"


def require_maps(predictor: Predictor) -> None:
    """Check that a model has maps of defects, before inference.

    Raises:
        UsageError: it has none.
    """
    if predictor.task != "anomaly":
        raise UsageError(
            f"--maps show where a picture differs from good ones, and this model answers {predictor.task}. For the "
            "reasons of its answers there is vitrail explain."
        )


def write_defect_maps(predictor: Predictor, images: Sequence[Path], folder: Path) -> Iterator[Path]:
    """Write NAME.png, the picture under its map, and NAME.map.png, the distances, of each picture; yield the former.

    The colour begins at half the score from which a picture is called a defect and is strongest at one and a half of
    it, in every picture alike. NAME.map.png has the size that the model reads, and 65535 is a distance of 2.

    Raises:
        DataError: a picture cannot be read.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    member, alarm = predictor.single_member(), predictor.decisions.alarm_score
    assert isinstance(member.model, ViT)
    spec, patch, maps = predictor.spec, member.model.config.patch, DistanceMaps(member.model.eval())
    folder.mkdir(parents=True, exist_ok=True)
    for path, name in zip(images, make_unique_stems([str(path) for path in images]), strict=True):
        decoded = decode_image(path, spec)
        prepared = fit_array_to_tensor(decoded, spec)
        with inference_mode(maps):
            distances = forward_batch(maps, prepared[None], member.spec, member.settings, "anomaly")[0][0].cpu().numpy()
        atomic.write_bytes(folder / f"{name}{MAP_ENDING}", _encode_png(to_16_bits(spread_map(distances, spec.size))))
        large = enlarge_pixels(to_rgb(crop_for_display(to_8_bits(decoded), spec, MIN_SIDE_PIXELS)))
        strength = np.clip(distances / alarm - 0.5, 0, 1).astype(np.float32)
        mixed = blend_colors(large, upsample_map(strength, spec.size, patch, large.shape[:2]), "positive")
        atomic.write_bytes(folder / f"{name}{OVERLAY_ENDING}", _encode_png(mixed))
        yield folder / f"{name}{OVERLAY_ENDING}"


def to_16_bits(distances: Float32[np.ndarray, "H W"]) -> UInt16[np.ndarray, "H W"]:
    """Distances 0..2 as 0..65535."""
    return np.round(np.clip(distances / MAX_DISTANCE, 0, 1) * 65535).astype(np.uint16)


def _encode_png(pixels: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()
