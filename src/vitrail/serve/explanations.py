"""Explanations over HTTP: which methods a model offers, in words, and one explained picture as JSON."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from ..explain.methods import METHODS, default_method
from ..explain.overlay import map_colors, to_rgb
from ..model.config import ViTConfig
from ..services.explanation import Explainer, ExplainRequest, Explanation, explain_images

WORDS = {
    "relevance": ("Relevance", "Attention that raises the chosen score, followed through all blocks."),
    "legrad": ("LeGrad", "Where more attention would raise the chosen score, in every block."),
    "grad-cam": ("Grad-CAM", "Patches whose features raise the chosen score, in the last block."),
    "integrated": ("Integrated gradients", "Shares of the score, pixel by pixel, on the way from an empty picture."),
    "occlusion": ("Occlusion", "How the score falls when a patch is covered; slow, and needs no theory."),
    "lens": ("Lens", "What the head would say to each patch alone."),
    "attention": ("Attention", "Where the last block looks, whatever the class."),
    "rollout": ("Attention rollout", "Attention multiplied through all blocks, whatever the class."),
}
"""Title and one line for each method that needs nothing but a picture and a class."""
COLOURS = 256


def methods_of(config: ViTConfig) -> list[dict[str, object]]:
    """The methods that a model offers, its default first."""
    default = default_method(config)
    names = sorted(WORDS, key=lambda name: name != default)
    return [
        {"name": name, "title": WORDS[name][0], "line": WORDS[name][1], "of_class": METHODS[name].of_class}
        for name in names
    ]


def palette() -> list[str]:
    """The colours of one-sided maps from nothing to the strongest, as #rrggbb."""
    colours = np.rint(255 * map_colors(np.linspace(0, 1, COLOURS, dtype=np.float32), "positive")).astype(int)
    return ["#{:02x}{:02x}{:02x}".format(*colour) for colour in colours.tolist()]


def explain(
    explainer: Explainer,
    image: UInt8[Tensor, "C h w"],
    seen: tuple[float, float],
    method: str | None,
    target: str | None,
) -> dict[str, Any]:
    """One prepared picture explained; runs in the model's thread.

    Args:
        explainer: for pictures that have been prepared already.
        seen: rows and columns of the picture's own pixels that it shows.
        target: a class, label or column; None takes the answer.

    Raises:
        UsageError: no such method or class, or a map that says nothing.
    """
    picture = image.permute(1, 2, 0).contiguous().numpy()  # [h, w, C]
    asked = ExplainRequest(method=method or default_method(explainer.model.config), of=target)
    (found,) = explain_images(explainer, [picture], asked)
    assert isinstance(found, Explanation)
    return as_json(found, seen[1] / seen[0])


def as_json(found: Explanation, aspect: float) -> dict[str, Any]:
    """What the page draws.

    Args:
        aspect: width over height of what is seen, as the picture itself has it.
    """
    heat = found.found.values[0]
    shown = heat[~found.artefacts] if (~found.artefacts).any() else heat
    height, width, _ = found.image.shape
    number = found.task == "number"
    return {
        "method": found.found.method,
        "title": found.title,
        "caption": " ".join((f"{found.found.method} · {found.found.layer}.", *found.caption.below[1:])),
        "target": found.of or None,
        "probability": None if number else found.value,
        "value": found.value if number else None,
        "scale": found.found.scale,
        "rows": heat.shape[0],
        "columns": heat.shape[1],
        "values": heat.tolist(),
        "low": float(shown.min()),
        "high": float(shown.max()),
        "height": height,
        "width": width,
        "aspect": aspect,
        "unit": found.found.unit,
        "patch": list(found.patch),
        "picture": f"data:image/png;base64,{base64.b64encode(_png(found.image)).decode('ascii')}",
        "artefacts": np.argwhere(found.artefacts).tolist(),
    }


def _png(image: UInt8[np.ndarray, "h w C"]) -> bytes:
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(to_rgb(image)).save(data, "PNG")
    return data.getvalue()
