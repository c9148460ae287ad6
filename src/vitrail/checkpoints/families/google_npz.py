"""`google-npz`: Google's `.npz` files of 2020 (ViT), AugReg and SAM, and those that vit_jax writes today.

The published ones number the layers of a block in one row (`LayerNorm_0`, `MultiHeadDotProductAttention_1`,
`LayerNorm_2`, `MlpBlock_3`), today's flax each kind for itself. The position table has a row for the class token, which
then is added to it. In the authors' code the MLP's GELU is by tanh; timm and transformers run the exact one, so that
`match` decides which of the two a model gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import isqrt

from torch import Tensor

from ...model.config import ViTConfig
from ..layouts import Layout, Name, Rule
from ..shapes import agree, need, picture_size
from ..steps import BATCHED
from ..told import Told
from .flax_common import AROUND, CONV, END, block_rules, encoder_settings, missing, outside_container, patch_of
from .plain_express import Expressed, State, as_plain, refuse

TABLE = "Transformer/posembed_input/pos_embedding"
PUBLISHED = ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
TODAY = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
STEM: tuple[Rule, ...] = (
    Name("embedding/kernel", "tokens.patches.weight", CONV),
    Name("embedding/bias", "tokens.patches.bias"),
    Name("cls", "tokens.cls"),
    Name(TABLE, "positions.table", BATCHED),
)


def describe(layers: tuple[str, str, str], tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file; a file without head gives features, one without `cls` takes the mean.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: an argument contradicts the file.
    """
    settings = encoder_settings(tensors, told, layers[0], layers[2])
    kernel = need(tensors, "embedding/kernel", axes=4)
    patch, rows = patch_of(kernel, told), need(tensors, TABLE, axes=3).shape[1]
    class_token = "cls" in tensors
    if not class_token and _is_square(rows - 1) and not _is_square(rows):
        raise missing(tensors, "cls", f"to which the first of the {rows} rows of {TABLE} belongs")
    config = ViTConfig(
        image_size=picture_size(rows - class_token, patch, told, TABLE),
        patch=patch,
        channels=agree(told.channels, kernel.shape[2], "channels", "embedding/kernel"),
        class_token=class_token,
        pool="class" if class_token else "mean",
        **settings,
    )
    return replace(config, **told.numerics("google_npz"))


def express(config: ViTConfig, state: State) -> Expressed:
    """The same function in the parts that these files have.

    Raises:
        UsageError: they have no such part; the message names it.
    """
    refuse("google-npz", {'pool="mean" with a class token': config.pool == "mean" and config.class_token})
    return as_plain(config, state, "google-npz")


def _is_square(count: int) -> bool:
    return count > 0 and isqrt(count) ** 2 == count


LAYOUTS = tuple(
    Layout(
        name="google-npz",
        variant=variant,
        decisive=(f"*{TABLE}", f"*Transformer/encoderblock_0/{layers[0]}/query/kernel"),
        rules=(*STEM, *block_rules(*layers), *END, *AROUND),
        describe=partial(describe, layers),
        card="google_npz",
        clean=outside_container,
        express=express,
    )
    for variant, layers in (("", PUBLISHED), ("linen", TODAY))
)
