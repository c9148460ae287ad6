"""`dino`: files of facebookresearch/dino, the backbone alone or a training file with teacher, student and head.

Of a training file the teacher is read, as the repository's own evaluations do. The backbone alone has the names of
many other files, so `layout="dino"` must be said; what it adds is DINO's rule for other picture sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from ...model.config import ViTConfig
from ..layouts import PUBLISHED_SIZES, Ignore, Layout
from ..told import Told
from .originals import KERNEL_NAME, RULES, TABLE, plain

PUBLISHED = {192: 3, 384: 6, 768: 12}
"""Heads by width."""
PROJECTION = "head.last_layer.*"


def describe(tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file; see `originals.plain`."""
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}
    return plain(kept, told, "dino", PUBLISHED)


_layout = partial(Layout, name="dino", describe=describe, card="dino", published=PUBLISHED_SIZES)
LAYOUTS = (
    _layout(decisive=(KERNEL_NAME, TABLE), absent=("head.*",), named_only=True, rules=RULES),
    _layout(
        variant="training",
        decisive=(KERNEL_NAME, TABLE, PROJECTION),
        rules=(
            *RULES,
            Ignore("head.mlp.*", reason="the projection head of its training"),
            Ignore(PROJECTION, reason="the projection head of its training"),
        ),
        prefix="backbone.",
        outside=("head.mlp.*", PROJECTION),
    ),
)
