"""Read what no tensor of a timm file gives (heads, norm epsilon, activation, pooling) from config.json.

timm keeps these in the code of each architecture. config.json beside the file names the architecture and lists what was
changed (`model_args`). Without config.json, published sizes have known heads and the rest must be given by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import DamagedFileError, UsageError
from ...model.config import Activation, Pool, RotaryKind
from ...model.registry import SIZES
from ..layouts import LayoutHints
from ..validate import reconcile, require_argument

TIMM_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "quick_gelu": "QuickGELU",
    "relu": "ReLU",
    "silu": "SiLU",
    "swish": "SiLU",
    "tanh": "Tanh",
    "elu": "ELU",
    "leaky_relu": "LeakyReLU",
    "mish": "Mish",
}
"""timm's words for activations, and ours."""
TIMM_POOLS: dict[str, Pool] = {"token": "class", "avg": "mean", "map": "attention"}
"""timm's words for pooling, and ours."""
_EPS_1E5 = re.compile(r"^vit_.*_clip_|dinov3|lingbot|_pe_(core|lang|spatial)|^beit3|^aimv2")
_OTHER_ROTARY = re.compile(r"_rope_|^eva02|_pe_(core|lang|spatial)|sapiens")
_GELU_TANH = re.compile(
    r"patch32_siglip|large_patch16_siglip(_gap)?_512|so400m_patch16_siglip|giantopt|^naflexvit_.*siglip"
)
_HEADS = (
    (r"^test_vit\d?$", {64: 2, 96: 3}),
    (r"^vit_base_patch16_gap_224$", {768: 16}),
    (r"giantopt|_gigantic_", {1536: 16, 1664: 16}),
    (r"^aimv2", {1024: 8, 1536: 12, 2048: 16, 3072: 24}),
    (r"dinov3", {1280: 20, 4096: 32}),
    (r"", {1152: 16, 1280: 16, 1408: 16}),
)
"""Heads of the architectures whose heads are not 64 wide: (pattern of their names, {width: heads})."""
_PUBLISHED = {(size.width, size.depth, size.mlp_width): size.heads for size in SIZES.values()} | {
    (256, 14, 1280): 4,
    (320, 14, 1792): 5,
    (640, 12, 2560): 10,
    (896, 12, 3584): 14,
    (1536, 40, 6144): 16,
}
"""Heads of published sizes with a plain MLP: (width, depth, MLP width) to heads."""
_PUBLISHED_GATED = {(384, 12, 1536): 6, (1280, 32, 5120): 20, (1536, 40, 4096): 24, (4096, 40, 8192): 32}
"""The same for gated MLPs: DINOv3 S+, H+ and 7B, DINOv2 g."""


def read_architecture(hints: LayoutHints) -> str:
    """timm's name of the architecture, without the tag of the weights; empty without config.json."""
    name = hints.foreign_config.get("architecture", "")
    if not isinstance(name, str):
        raise DamagedFileError(f"config.json: architecture must be a name. Got {name!r}.")
    return name.partition(".")[0]


def read_weights_tag(hints: LayoutHints) -> str:
    """timm's name of the published weights, such as augreg_in21k; empty if config.json has none."""
    described = hints.foreign_config.get("pretrained_cfg", {})
    return str(described.get("tag", "")) if isinstance(described, Mapping) else ""


def read_model_arg(hints: LayoutHints, name: str) -> Any:
    """An argument of timm's class in `model_args` of config.json; None if it is not there."""
    arguments = hints.foreign_config.get("model_args", {})
    if not isinstance(arguments, Mapping):
        raise DamagedFileError(f"config.json: model_args must hold arguments by name. Got {arguments!r}.")
    return arguments.get(name)


def read_timm_heads(hints: LayoutHints, width: int, depth: int, mlp_width: int, gated: bool) -> int:
    """Attention heads: from config.json or the architecture's name, else from the caller or the published size."""
    heads = read_model_arg(hints, "num_heads")
    if heads is None and (name := read_architecture(hints)):
        fitting = (widths[width] for pattern, widths in _HEADS if re.search(pattern, name) and width in widths)
        heads = next(fitting, width // 64 if width % 64 == 0 else None)
    if heads is not None:
        return reconcile(hints.heads, heads, "heads", "config.json")
    published = _PUBLISHED_GATED if gated else _PUBLISHED
    known = published.get((width, depth, mlp_width)) if hints.heads is None else hints.heads
    return require_argument(
        known, "heads", "timm", f"width {width} over 64 gives {max(width // 64, 1)}, the usual choice"
    )


def choose_norm_eps(hints: LayoutHints, pre_norm: bool, rotary: bool = False) -> float:
    """Epsilon of the norms: timm's 1e-6, but 1e-5 in CLIP's design, DINOv3 and a few more."""
    if read_model_arg(hints, "norm_layer") is not None:  # a name in JSON means the class with its own default
        return 1e-6
    name = read_architecture(hints)
    if name:
        return 1e-5 if _EPS_1E5.search(name) else 1e-6
    return 1e-5 if pre_norm or rotary else 1e-6


def choose_activation(hints: LayoutHints, pre_norm: bool, gated: bool) -> Activation:
    """Activation of the MLP; must be given for a CLIP tower without config.json, which may have either of two."""
    word = read_model_arg(hints, "act_layer")
    if word is not None:
        if word not in TIMM_ACTIVATIONS:
            raise UsageError(f"config.json names the activation {word!r}. Known: {', '.join(TIMM_ACTIVATIONS)}.")
        return TIMM_ACTIVATIONS[word]
    name = read_architecture(hints)
    if gated:
        return "SiLU"
    if "quickgelu" in name:
        return "QuickGELU"
    if not name and pre_norm:
        return require_argument(
            hints.settings.get("activation"),
            "activation",
            "timm with a norm before the blocks (CLIP)",
            'in settings: "QuickGELU" for OpenAI\'s weights, "GELU" for most others; outputs differ by 1e-2',
        )
    return "GELUTanh" if _GELU_TANH.search(name) else "GELU"


def choose_clip_activation(hints: LayoutHints, pre_norm: bool, gated: bool) -> Activation:
    """Activation that a CLIP tower was trained with: QuickGELU for OpenAI's, also where timm runs them with GELU."""
    given = "activation" in hints.settings or read_model_arg(hints, "act_layer") is not None
    if not given and read_weights_tag(hints) == "openai":
        return "QuickGELU"
    return choose_activation(hints, pre_norm, gated)


def choose_rotary(hints: LayoutHints, bare: RotaryKind | None) -> RotaryKind:
    """The kind of rotary positions: from the caller's settings, else from config.json, else `bare`.

    Args:
        bare: the kind for a file without config.json; None where its tensors leave it open.
    """
    if "rotary" in hints.settings:
        return hints.settings["rotary"]
    name, kind = read_architecture(hints), read_model_arg(hints, "rope_type")
    if read_model_arg(hints, "use_rot_pos_emb") is False:
        return "none"
    if kind is None and ("dinov3" in name or "lingbot" in name):
        return "dinov3"
    for ours, arguments in TIMM_ROPE_ARGUMENTS.items():
        if all(read_model_arg(hints, word) == value for word, value in arguments.items()):
            return ours
    if kind or _OTHER_ROTARY.search(name):
        raise UsageError(f"{name} turns queries and keys by angles that are none of Vitrail's: only timm can run it.")
    if name:
        return "none"
    hint = 'in settings: "none", or the kind of rotary positions; only the config.json beside the file says it'
    return require_argument(bare, "rotary", "timm with biases of queries and values", hint)


_ROPE_ARGUMENTS = {
    "rope_temperature": 100.0,
    "rope_rotate_half": True,
    "rope_grid_offset": 0.0,
    "rope_grid_indexing": "ij",
}
TIMM_ROPE_ARGUMENTS: dict[RotaryKind, dict[str, Any]] = {
    "axial": {"rope_type": "cat", **_ROPE_ARGUMENTS, "ref_feat_shape": None},
    "dinov3": {"rope_type": "dinov3", **_ROPE_ARGUMENTS},
}
"""timm's arguments for our kinds of rotary positions."""


def choose_pool(hints: LayoutHints, probe: bool, class_token: bool, pooled_norm: bool, default: Pool = "class") -> Pool:
    """The pooling that timm would use."""
    if probe:
        return "attention"
    word = read_model_arg(hints, "global_pool") or hints.foreign_config.get("global_pool")
    if word is not None and word not in TIMM_POOLS:
        raise UsageError(f"config.json says global_pool={word!r}. Known: {', '.join(TIMM_POOLS)}. Pass pool= instead.")
    if word == "token" and not class_token:
        raise DamagedFileError(
            "The file has no tensor cls_token, from which config.json (global_pool) makes the outputs."
        )
    if word is not None and TIMM_POOLS[word] != "attention":
        return TIMM_POOLS[word]
    if not class_token or pooled_norm:
        return "mean"
    return default


def lacks_final_norm(hints: LayoutHints) -> bool:
    """Whether a file without a norm after its blocks is meant to have none."""
    words = ("final_norm", "use_post_transformer_norm")
    return hints.settings.get("final_norm") is False or any(read_model_arg(hints, word) is False for word in words)


def check_promised_tokens(hints: LayoutHints, class_token: bool, registers: int) -> None:
    """Refuse a file without the tokens that config.json or the architecture's name requires.

    Without this check it would load as another, complete model.
    """
    name = read_architecture(hints)
    dinov3 = re.search(r"dinov3|lingbot", name) is not None
    promised = read_model_arg(hints, "class_token")
    if not class_token and (dinov3 if promised is None else promised):
        raise DamagedFileError(f"The file has no tensor cls_token, which {name} has.")
    numbered = re.search(r"_reg(\d+)_", name)
    counts = [read_model_arg(hints, word) for word in ("reg_tokens", "num_reg_tokens")]
    counts += [int(numbered[1]) if numbered else 4 if dinov3 else None]
    expected = next((count for count in counts if count is not None), None)
    if expected is not None and expected != registers:
        raise DamagedFileError(f"{name} has {expected} registers in reg_token. The file has {registers}.")


def read_timm_image_size(hints: LayoutHints) -> tuple[int, int] | None:
    """Height and width in pixels from config.json; None if it has none."""
    size = read_model_arg(hints, "img_size")
    if isinstance(size, int):
        return size, size
    if size is None:
        described = hints.foreign_config.get("pretrained_cfg", {})
        size = described.get("input_size", (0, 0, 0))[-2:] if isinstance(described, Mapping) else (0, 0)
    if not (isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(side, int) for side in size)):
        raise DamagedFileError(f"config.json: the image size must be two whole numbers of pixels. Got {size!r}.")
    return (size[0], size[1]) if min(size) > 0 else None
