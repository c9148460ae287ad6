"""What a timm file cannot say by its shapes: heads, norm epsilon, activation, pooling. `config.json` or its name tells.

timm keeps these in the code of each architecture, and `config.json` beside the file names the architecture and lists
what was changed (`model_args`). A file alone says less: published sizes have known heads, the rest must be told.
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
"""Heads of the architectures whose heads are not 64 numbers wide: (their names, {width: heads})."""
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
    """timm's name of the architecture, without the tag of the weights; empty if nothing says it."""
    name = hints.foreign_config.get("architecture", "")
    if not isinstance(name, str):
        raise DamagedFileError(f"config.json: architecture must be a name. Got {name!r}.")
    return name.partition(".")[0]


def read_weights_tag(hints: LayoutHints) -> str:
    """timm's name of the published weights, such as augreg_in21k; empty if nothing says it."""
    described = hints.foreign_config.get("pretrained_cfg", {})
    return str(described.get("tag", "")) if isinstance(described, Mapping) else ""


def read_model_arg(hints: LayoutHints, name: str) -> Any:
    """What `model_args` of config.json says about an argument of timm's class; None if nothing."""
    arguments = hints.foreign_config.get("model_args", {})
    if not isinstance(arguments, Mapping):
        raise DamagedFileError(f"config.json: model_args must hold arguments by name. Got {arguments!r}.")
    return arguments.get(name)


def read_timm_heads(hints: LayoutHints, width: int, depth: int, mlp_width: int, gated: bool) -> int:
    """Attention heads: as the caller says, or config.json, or the architecture's name, or the published size.

    Raises:
        UsageError: nothing tells them, or the caller contradicts config.json.
    """
    said = read_model_arg(hints, "num_heads")
    if said is None and (name := read_architecture(hints)):
        said = _published_heads(name, width)
    if said is not None:
        return reconcile(hints.heads, said, "heads", "config.json")
    published = _PUBLISHED_GATED if gated else _PUBLISHED
    known = published.get((width, depth, mlp_width)) if hints.heads is None else hints.heads
    return require_argument(
        known, "heads", "timm", f"width {width} over 64 gives {max(width // 64, 1)}, the usual choice"
    )


def _published_heads(name: str, width: int) -> int | None:
    for pattern, widths in _HEADS:
        if re.search(pattern, name) and width in widths:
            return widths[width]
    return width // 64 if width % 64 == 0 else None


def choose_norm_eps(hints: LayoutHints, pre_norm: bool, rotary: bool = False) -> float:
    """Epsilon of the norms: timm's 1e-6, but 1e-5 in CLIP's design, DINOv3 and a few more."""
    if read_model_arg(hints, "norm_layer") is not None:  # a word in JSON stands for the class with its own default
        return 1e-6
    name = read_architecture(hints)
    if name:
        return 1e-5 if _EPS_1E5.search(name) else 1e-6
    return 1e-5 if pre_norm or rotary else 1e-6


def choose_activation(hints: LayoutHints, pre_norm: bool, gated: bool) -> Activation:
    """Activation of the MLP.

    Raises:
        UsageError: a CLIP tower without config.json, which may have either of two; or a word that is not known.
    """
    said = read_model_arg(hints, "act_layer")
    if said is not None:
        if said not in TIMM_ACTIVATIONS:
            raise UsageError(f"config.json names the activation {said!r}. Known: {', '.join(TIMM_ACTIVATIONS)}.")
        return TIMM_ACTIVATIONS[said]
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
    """Activation that a CLIP tower was trained with: OpenAI's had QuickGELU, also where timm runs them with GELU.

    Raises:
        UsageError: as `activation`.
    """
    if (
        "activation" not in hints.settings
        and read_model_arg(hints, "act_layer") is None
        and read_weights_tag(hints) == "openai"
    ):
        return "QuickGELU"
    return choose_activation(hints, pre_norm, gated)


def choose_rotary(hints: LayoutHints, bare: RotaryKind | None) -> RotaryKind:
    """How queries and keys are turned: as the caller's settings say, or config.json, or else `bare`.

    Args:
        bare: the angles of such tensors where nothing says them; None where there is no saying.

    Raises:
        UsageError: they are not told, or are none of ours.
    """
    if "rotary" in hints.settings:
        return hints.settings["rotary"]
    name, kind = read_architecture(hints), read_model_arg(hints, "rope_type")
    if read_model_arg(hints, "use_rot_pos_emb") is False:
        return "none"
    if kind is None and ("dinov3" in name or "lingbot" in name):
        return "dinov3"
    for ours, arguments in TIMM_ROPE_ARGUMENTS.items():
        if kind == arguments["rope_type"] and all(
            read_model_arg(hints, word) == value for word, value in arguments.items()
        ):
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
"""timm's arguments for our kinds of angles."""


def choose_pool(hints: LayoutHints, probe: bool, class_token: bool, pooled_norm: bool, default: Pool = "class") -> Pool:
    """What goes to the head, as timm would do it.

    Raises:
        DamagedFileError: the class token is missing.
        UsageError: timm pools in a way that Vitrail does not have.
    """
    if probe:
        return "attention"
    said = read_model_arg(hints, "global_pool") or hints.foreign_config.get("global_pool")
    if said is not None and said not in TIMM_POOLS:
        raise UsageError(f"config.json says global_pool={said!r}. Known: {', '.join(TIMM_POOLS)}. Pass pool= instead.")
    if said == "token" and not class_token:
        raise DamagedFileError(
            "The file has no tensor cls_token, from which config.json (global_pool) makes the outputs."
        )
    if said is not None and TIMM_POOLS[said] != "attention":
        return TIMM_POOLS[said]
    if not class_token or pooled_norm:
        return "mean"
    return default


def lacks_final_norm(hints: LayoutHints) -> bool:
    """Whether a file without a norm behind its blocks is meant to have none."""
    words = ("final_norm", "use_post_transformer_norm")
    return hints.settings.get("final_norm") is False or any(read_model_arg(hints, word) is False for word in words)


def check_promised_tokens(hints: LayoutHints, class_token: bool, registers: int) -> None:
    """Refuse a file that lacks tokens which config.json or the architecture's name promises.

    Raises:
        DamagedFileError: it lacks one; without it the file would be another model that is whole.
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
    """Height and width in pixels that config.json says the model was made for."""
    said = read_model_arg(hints, "img_size")
    if isinstance(said, int):
        return said, said
    if said is None:
        described = hints.foreign_config.get("pretrained_cfg", {})
        said = described.get("input_size", (0, 0, 0))[-2:] if isinstance(described, Mapping) else (0, 0)
    if not (isinstance(said, list | tuple) and len(said) == 2 and all(isinstance(side, int) for side in said)):
        raise DamagedFileError(f"config.json: the image size must be two whole numbers of pixels. Got {said!r}.")
    return (said[0], said[1]) if min(said) > 0 else None
