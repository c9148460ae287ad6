"""`transformers`: the image tower of MLCD with rotary positions (bigG); its smaller towers are CLIP's.

CLIP's design, but queries and keys are rotated by row and column instead of positions that are added, and those of the
class token by learned angles. It pairs number k of a head with number k + d/2. When the file is read, the rows of
queries and keys are put in the order in which neighbours are pairs: their products stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import ViTConfig
from ..layouts import FLAT, KERNEL, Layout, LayoutHints, NameRule, Rule, make_name_rules
from ..validate import count_blocks, majority_length, reconcile, require_tensor
from .hf import hf_block_rules, read_hf_config, read_hf_numerics
from .hf_clip_siglip import CLIP_CLASS_TOKEN, PATCH_WEIGHT, SIGLIP_BLOCK, TOWER_QKV

# fmt: off
MLCD_STEM = {  # theirs      ours
    "class_pos_emb":         "rotary.prefix_angles",
    "pre_layrnorm.{p}":      "encoder.pre_norm.{p}",
    "post_layernorm.{p}":    "pool.norm.{p}",
}
# fmt: on
CLASS_ANGLES, MLCD_PREFIX = "class_pos_emb", "vision_model."
MLCD_DEFAULTS = {"layer_norm_eps": 1e-5, "hidden_act": "gelu", "image_size": 336, "num_key_value_groups": 1}
"""Defaults of this class, for fields that a config.json leaves out."""
MLCD_RULES: tuple[Rule, ...] = (
    *make_name_rules(MLCD_STEM),
    NameRule(PATCH_WEIGHT, "tokens.patches.weight", KERNEL),
    NameRule(CLIP_CLASS_TOKEN, "tokens.cls", FLAT),
    *hf_block_rules("encoder.layers", SIGLIP_BLOCK, TOWER_QKV),
)


def describe_hf_mlcd(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file, after `pair_neighbours`. The outputs are the normalised class token."""
    inside = "encoder.layers.{i}."
    stored = read_hf_config(hints, MLCD_DEFAULTS)
    if stored.positive_int("num_key_value_groups") != 1:
        raise UsageError("config.json says that queries share keys (num_key_value_groups), as in no model here.")
    kernel = require_tensor(tensors, PATCH_WEIGHT, axes=4)
    width = majority_length(tensors, "width", (f"{inside}layer_norm1.weight", 0), (f"{inside}layer_norm2.weight", 0))
    half = require_tensor(tensors, CLASS_ANGLES, axes=2).shape[1]
    if not half or width % (2 * half):
        raise DamagedFileError(f"{CLASS_ANGLES} must hold half a head. {half} numbers make no heads of width {width}.")
    size = stored.int_pair("image_size")
    return ViTConfig(
        image_size=size if hints.foreign_config else hints.image_size or size,
        patch=(kernel.shape[2], kernel.shape[3]),
        channels=kernel.shape[1],
        width=width,
        depth=count_blocks(tensors, "encoder.layers"),
        heads=reconcile(hints.heads, width // (2 * half), "heads", CLASS_ANGLES),
        mlp_width=majority_length(tensors, "MLP width", (f"{inside}mlp.fc1.{{p}}", 0)),
        outputs=0,
        patch_bias=False,
        positions="none",
        rotary="eva02",
        rotary_base=_read_base(stored.values),
        rotary_prefix=True,
        pre_norm=True,
        final_norm=False,
        pooled_norm=True,
        **{"pool": "class", **read_hf_numerics(hints, stored, "hf_mlcd")},
    )


def _read_base(config: Mapping[str, object]) -> float:
    """The base of the frequencies, 10000 in published models."""
    given = config.get("rope_parameters")
    base = given.get("rope_theta", 10000.0) if isinstance(given, Mapping) else 10000.0
    if isinstance(base, bool) or not isinstance(base, int | float):
        raise DamagedFileError(f"config.json must say rope_theta as a number. Got {base!r}.")
    return float(base)


def pair_neighbours(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Order the rows of queries and keys so that the numbers that are rotated together are neighbours."""
    angles = tensors.get(MLCD_PREFIX + CLASS_ANGLES, tensors.get(CLASS_ANGLES))
    head = 2 * angles.shape[1] if angles is not None and angles.ndim == 2 else 0

    def reorder(name: str, tensor: Tensor) -> Tensor:
        turned = ".self_attn.q_proj." in name or ".self_attn.k_proj." in name
        if not turned or not head or not tensor.ndim or len(tensor) % head:
            return tensor
        return tensor.unflatten(0, (-1, 2, head // 2)).transpose(1, 2).flatten(0, 2).contiguous()

    return {name: reorder(name, tensor) for name, tensor in tensors.items()}


HF_MLCD_LAYOUTS = (
    Layout(
        name="transformers",
        variant="mlcd",
        required_names=(PATCH_WEIGHT, CLIP_CLASS_TOKEN, CLASS_ANGLES),
        model_types=("mlcd_vision_model", "mlcd"),
        rules=MLCD_RULES,
        describe=describe_hf_mlcd,
        card="hf_mlcd",
        match="transformers",
        published=frozenset(),
        prefix=MLCD_PREFIX,
        clean=pair_neighbours,
    ),
)
