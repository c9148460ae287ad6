"""An `ImageSpec` in the field names of transformers' image processors, for readers other than us."""

from __future__ import annotations

from typing import Any

from ..spec import ImageSpec

RESAMPLE = {"bicubic": 3, "bilinear": 2}
"""Pillow's numbers of the interpolations."""


def preprocessor(spec: ImageSpec) -> dict[str, Any]:
    """The content of `preprocessor_config.json`.

    The 0..255 that it rescales are what decoding gives: a stored range other than 0..255 (16-bit films) is brought
    there first, as `config.json` says.
    """
    size = {"height": spec.height, "width": spec.width}
    whole = {"height": spec.cover[0], "width": spec.cover[1]}
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": min(spec.cover)} if spec.fit == "crop" else whole,
        "resample": RESAMPLE[spec.interpolation],
        "do_center_crop": spec.fit == "crop" or spec.crop_fraction < 1,
        "crop_size": size,
        "do_pad": spec.fit == "pad",
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": _per_channel(spec.mean, spec.channels),
        "image_std": _per_channel(spec.std, spec.channels),
    }


def _per_channel(values: tuple[float, ...], channels: int) -> list[float]:
    return list(values * channels if len(values) == 1 else values)
