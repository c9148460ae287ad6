"""`ijepa`: training files of facebookresearch/ijepa: encoder, target encoder and predictor side by side.

The target encoder is what the paper evaluates, and what is read. There is no class token; the mean of the normalised
tokens is pooled. The fixed waves are read as a learned table and stretch by bicubic interpolation: the repository's own
function for other sizes takes the first patch for a class token. The encoder has the names of other files:
`layout="ijepa"` must be said.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ...model.config import ViTConfig
from ..layouts import PUBLISHED_SIZES, Layout
from ..told import Told
from .originals import KERNEL_NAME, RULES, TABLE, plain

PUBLISHED = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16}
"""Heads by width."""


def describe(tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file; see `originals.plain`."""
    return plain(tensors, told, "ijepa", PUBLISHED, class_token=False)


LAYOUTS = (
    Layout(
        name="ijepa",
        decisive=(KERNEL_NAME, TABLE),
        absent=("cls_token", "head.*"),
        named_only=True,
        rules=RULES,
        describe=describe,
        card="ijepa",
        published=PUBLISHED_SIZES,
    ),
)
