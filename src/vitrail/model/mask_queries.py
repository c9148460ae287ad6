"""Learned queries in the last blocks: each has a class and a mask, and together they give every part of a patch its
classes.

As in EoMT (Kerssies et al. 2025, "Your ViT is secretly an image segmentation model") the blocks of the encoder serve as
the decoder, and a query's mask is the product of its own numbers with those of the parts. Two things differ. Patches do
not see the queries, so that what the blocks say of patches, and a head that was fitted to it, stay the same. And the
answer is semantic only: no query is matched to an object, the loss is that of the pixels.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .config import ViTConfig

MASK_WIDTH = 64
"""Numbers of a part and of a query, whose product is the query's mask there."""
MIN_SCORE = 1e-4
"""Added to scores before their logarithm."""


class MaskQueries(nn.Module):
    """Queries and the outputs of parts of patches that they give.

    The score of class k in a part is the sum over queries of softmax(class)[k] * sigmoid(mask), as in MaskFormer (Cheng
    et al. 2021, section 3.4), and the output is its logarithm. A further class means that a query is not used. With
    equal classes, as they begin, the outputs of all k are equal and change no answer.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        width, self.num_parts = config.width, config.upsample**2
        self.queries = nn.Parameter(torch.empty(1, config.queries, width))
        self.classes = nn.Linear(width, config.outputs + 1)
        self.hidden = nn.Linear(width, width)
        self.mask = nn.Linear(width, MASK_WIDTH)
        self.parts = nn.Linear(width, self.num_parts * MASK_WIDTH)

    def forward(self, queries: Float[Tensor, "B Q D"], patches: Float[Tensor, "B N D"]) -> Float[Tensor, "B N M"]:
        classes = self.classes(queries).float().softmax(-1)[..., :-1]  # [B, Q, K]
        mask = self.mask(nn.functional.gelu(self.hidden(queries)))  # [B, Q, E]
        parts = self.parts(patches).unflatten(-1, (self.num_parts, -1)).flatten(1, 2)  # [B, N s s, E]
        inside = (parts @ mask.transpose(1, 2)).float().sigmoid()  # [B, N s s, Q]
        outputs = (inside @ classes + MIN_SCORE).log()  # [B, N s s, K]
        return outputs.unflatten(1, (-1, self.num_parts)).transpose(2, 3).flatten(2)
