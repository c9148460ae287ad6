"""`open-clip` with a tower of timm: timm's own table under `visual.trunk.`, and perhaps a projection after it.

SigLIP's towers end with timm's pooling and have no projection; others have one matrix, `visual.head.proj`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import ViTConfig
from ..layouts import Ignore, Layout, Name, Rule
from ..shapes import has, vote
from ..told import Told
from . import timm
from .clip_common import BESIDE, check_outputs

TRUNK = "visual.trunk."
PROJECTION = ("visual.head.proj.weight", "visual.head.proj.bias")
DECISIVE = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight")
TRUNK_RULES: tuple[Rule, ...] = tuple(
    rule for rule in timm.RULES if not (isinstance(rule, Name) and rule.theirs == "head.{p}")
)
"""timm's table without its head, in whose place the projection stands."""


def describe(tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file. The outputs are the vector that is compared with the words'.

    Raises:
        DamagedFileError: as timm's own files.
        UsageError: open_clip_config.json is not there, and what it says must be told.
    """
    config = timm.describe(tensors, as_timm(told))
    if not has(tensors, *PROJECTION):
        if told.foreign and _vision(told).get("timm_proj", "linear") == "linear":
            raise DamagedFileError(
                f"The file has no tensor {PROJECTION[0]}, the projection that its configuration says."
            )
        return config
    outputs = vote(tensors, "number of outputs", *((name, 0) for name in PROJECTION))
    check_outputs(told, outputs, PROJECTION[0])
    return replace(config, outputs=outputs, head_bias=has(tensors, PROJECTION[1]))


def as_timm(told: Told) -> Told:
    """What is told, in the words of timm's config.json.

    Raises:
        DamagedFileError: open_clip_config.json names no architecture of timm.
        UsageError: `match` asks for transformers, which has no such towers, or the tower has no pooling.
    """
    if told.match == "transformers":
        raise UsageError('match="transformers" is not known for OpenCLIP\'s towers of timm. Known: original, timm.')
    if not told.foreign:
        return replace(told, match="timm")
    vision = _vision(told)
    name, pool, size = vision.get("timm_model_name"), vision.get("timm_pool", "avg"), vision.get("image_size")
    if not isinstance(name, str):
        raise DamagedFileError("open_clip_config.json must name timm_model_name, as the weights are those of timm.")
    if not pool and vision.get("timm_proj", "linear") != "linear":
        raise UsageError("open_clip_config.json asks for no pooling at all (timm_pool), which no model here has.")
    arguments = {"img_size": size} if isinstance(size, int | list) else {}
    return replace(
        told, match="timm", foreign={"architecture": name, "model_args": arguments, "global_pool": pool or None}
    )


def _vision(told: Told) -> Mapping[str, object]:
    """The picture tower's part of open_clip_config.json."""
    model = told.foreign.get("model_cfg", {})
    vision = model.get("vision_cfg", {}) if isinstance(model, Mapping) else {}
    return vision if isinstance(vision, Mapping) else {}


def card_of(config: ViTConfig, told: Told) -> str:
    """The card of the timm model."""
    return timm.card_of(config, as_timm(told))


TIMM_LAYOUTS = tuple(
    Layout(
        name="open-clip",
        variant=variant,
        decisive=(*DECISIVE, *more),
        absent=(*timm.OTHER_FAMILIES, *absent),
        model_types=("open_clip",),
        rules=(*table, *(rule for rule in BESIDE if isinstance(rule, Ignore))),
        describe=describe,
        card=card_of,
        prefix=TRUNK,
        outside=("visual.head.proj.{p}",),
    )
    for variant, table, more, absent in (
        ("timm", timm.RULES, (f"{TRUNK}patch_embed.proj.weight",), ("visual.head.*",)),
        ("timm-projection", (*TRUNK_RULES, Name("visual.head.proj.{p}", "head.linear.{p}")), PROJECTION[:1], ()),
    )
)
