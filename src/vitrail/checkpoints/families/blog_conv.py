"""`blog-conv`: files of the walk-through that rebuilds ViT-Base with torch's own layers (blog_vit_base_patch16_224)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from ...errors import UsageError
from ...model.config import ViTConfig
from ...model.registry import PRESETS
from ..layouts import Drop, Layout, Name, Rule, Same, names
from ..shapes import agree, blocks, given, need, square_grid, vote
from ..steps import BATCHED, KERNEL
from ..told import Told

# fmt: off
NAMES = {  # theirs                                     ours
    "class_embedding":                                  "tokens.cls",
    "patch_embedding.conv.bias":                        "tokens.patches.bias",
    "vit.{i}.attention.layer.{p}":                      "encoder.blocks.{i}.norm1.{p}",
    "vit.{i}.attention.attention.in_proj_{p}":          "encoder.blocks.{i}.attention.qkv.{p}",
    "vit.{i}.attention.attention.out_proj.{p}":         "encoder.blocks.{i}.attention.out.{p}",
    "vit.{i}.mlp.norm.{p}":                             "encoder.blocks.{i}.norm2.{p}",
    "vit.{i}.mlp.linear1.{p}":                          "encoder.blocks.{i}.mlp.fc1.{p}",
    "vit.{i}.mlp.linear2.{p}":                          "encoder.blocks.{i}.mlp.fc2.{p}",
    "classifier.0.{p}":                                 "encoder.norm.{p}",
    "classifier.1.{p}":                                 "head.linear.{p}",
}
# fmt: on
RULES: tuple[Rule, ...] = (
    *names(NAMES),
    Name("patch_embedding.conv.weight", "tokens.patches.weight", KERNEL),
    Name("position_embedding", "positions.table", BATCHED),
    Same("vit.{i}.mlp.seq.0.{p}", "vit.{i}.mlp.linear1.{p}"),
    Same("vit.{i}.mlp.seq.3.{p}", "vit.{i}.mlp.linear2.{p}"),
    Drop("vit.{i}.norm.{p}", "encoder.blocks.{i}.norm1.{p}", reason="a norm that the article declares and never calls"),
)


def describe(tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file. Heads must be given; a picture is square unless `image_size` says otherwise.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: heads or a size that is needed was not given, or an argument contradicts the file.
    """
    kernel = need(tensors, "patch_embedding.conv.weight", axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    rows = need(tensors, "position_embedding", axes=3).shape[1] - 1
    width = vote(tensors, "width", *((f"vit.{{i}}.{norm}.weight", 0) for norm in ("attention.layer", "mlp.norm")))
    return replace(
        PRESETS["blog_vit_base_patch16_224"],
        image_size=_image_size(rows, patch, told.image_size),
        patch=patch,
        channels=agree(told.channels, kernel.shape[1], "channels", "patch_embedding.conv.weight"),
        width=width,
        depth=blocks(tensors, "vit"),
        heads=given(told.heads, "heads", "blog-conv", "the article's ViT-Base has 12"),
        mlp_width=vote(tensors, "MLP width", ("vit.{i}.mlp.linear1.weight", 0), ("vit.{i}.mlp.linear1.bias", 0)),
        outputs=vote(tensors, "number of outputs", ("classifier.1.weight", 0), ("classifier.1.bias", 0)),
    )


def _image_size(rows: int, patch: tuple[int, int], image_size: tuple[int, int] | None) -> tuple[int, int]:
    if image_size is None:
        side = square_grid((rows,), "position_embedding")
        return side * patch[0], side * patch[1]
    patches = (image_size[0] // patch[0]) * (image_size[1] // patch[1])
    if patches != rows:
        raise UsageError(
            f"image_size={image_size} contradicts the file: it makes {patches} patches of {patch[0]}x{patch[1]}, "
            f"and position_embedding has rows for {rows}. Pass the size that the model was trained with."
        )
    return image_size


LAYOUTS = (
    Layout(
        name="blog-conv",
        decisive=("class_embedding", "patch_embedding.conv.weight"),
        rules=RULES,
        describe=describe,
    ),
)
