"""Read what no tensor of a timm file gives (heads, norm epsilon, activation, pooling) from config.json.

timm keeps these in the code of each architecture. config.json beside the file names the architecture and lists what was
changed (`model_args`). Without config.json, published sizes have known heads and the rest must be given by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import DamagedFileError, UsageError
from ...model.config import BASED_ROTARY, Activation, Pool, RotaryKind
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
_EVA_MODULE = re.compile(r"dinov3|lingbot|_rope_|^eva02|^eva_giant|_pe_(core|lang|spatial)_")
_CLASS_POOL_OF_EVA = re.compile(r"_rope_(?!reg)|^eva.*_clip_|lingbot")
_NO_TABLE = re.compile(r"dinov3|lingbot|_rope_(?!.*ape_)")
_NO_FINAL_NORM = re.compile(r"_radio_|_intern300m_|_pe_(lang|spatial)_")
_POST_NORM = re.compile(r"_rpn_|^eva02_enormous")
_GELU_TANH = re.compile(
    r"patch32_siglip|large_patch16_siglip(_gap)?_512|so400m_patch16_siglip|giantopt|^naflexvit_.*siglip"
)
_HEADS = (
    (r"^test_vit\d?$", {64: 2, 96: 3}),
    (r"^vit_base_patch16_gap_224$", {768: 16}),
    (r"giantopt|_gigantic_|enormous", {1536: 16, 1664: 16, 1792: 16}),
    (r"^aimv2", {1024: 8, 1536: 12, 2048: 16, 3072: 24}),
    (r"dinov3", {1280: 20, 4096: 32}),
    (r"", {1152: 16, 1280: 16, 1408: 16}),
)
"""Heads of the architectures whose heads are not 64 wide: (pattern of their names, {width: heads})."""
_PUBLISHED = {(size.width, size.depth, size.mlp_width): size.heads for size in SIZES.values()} | {
    (256, 14, 1280): 4,
    (320, 14, 1792): 5,
    (640, 12, 2560): 10,
    (832, 21, 2176): 13,
    (896, 12, 3584): 14,
    (896, 18, 2304): 14,
    (1536, 40, 6144): 16,
}
"""Heads of published sizes with a plain MLP: (width, depth, MLP width) to heads."""
_PUBLISHED_GATED = {
    (192, 12, 512): 3,
    (384, 12, 1024): 6,
    (384, 12, 1536): 6,
    (768, 12, 2048): 12,
    (1024, 24, 2730): 16,
    (1024, 24, 2816): 8,
    (1280, 32, 5120): 20,
    (1536, 24, 4096): 12,
    (1536, 40, 4096): 24,
    (2048, 24, 5632): 16,
    (3072, 24, 8192): 24,
    (4096, 40, 8192): 32,
}
"""The same for gated MLPs: EVA-02, AIMv2, DINOv3 S+, H+ and 7B, DINOv2 g."""


NAMED = "described by its name"
"""Key of a description that stands for a config.json: it holds what the name says, and not the file."""


def read_architecture(hints: LayoutHints) -> str:
    """timm's name of the architecture, without the tag of the weights; empty without config.json."""
    name = hints.foreign_config.get("architecture", "")
    if not isinstance(name, str):
        raise DamagedFileError(f"config.json: architecture must be a name. Got {name!r}.")
    return name.partition(".")[0]


def describe_published_model(name: str | None) -> dict[str, Any]:
    """What the config.json of one of timm's published models says, by its name; empty for another word.

    Names have the patch in them. Mean and deviation of the pictures are those of most weights of the name.
    """
    if name is None or not re.match(r"(vit|eva02|eva|beit|beitv2|beit3|aimv2|deit|deit3)_.*patch\d", name):
        return {}
    architecture, _, tag = name.partition(".")
    mean, std = next((pictures for pattern, pictures in _PICTURES if re.search(pattern, name)), _HALF)
    described = {"tag": tag, "mean": list(mean), "std": list(std), "interpolation": "bicubic", "crop_pct": 0.9}
    return {"architecture": architecture, "pretrained_cfg": described, NAMED: True}


_HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_PICTURES = (
    (r"_tipsv2|_miil", ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))),
    (r"_betwixt_patch16_rope_reg", _OPENAI),
    (r"siglip|_pe_|_rope_reg", _HALF),
    (r"_rope_|^beitv2|^beit3|^deit|dino|lingbot|_intern300m|_(huge|giant)_.*_gap_|_small_patch8_|_560$|mae", _IMAGENET),
    (r"_clip_|^eva|^aimv2|_radio_", _OPENAI),
)
"""Pattern of timm's names -> mean and standard deviation; all others have 0.5. The first match decides."""


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


def read_timm_heads(hints: LayoutHints, width: int, depth: int, mlp_width: int, gated: bool, branches: int = 1) -> int:
    """Attention heads: from config.json or the architecture's name, else from the caller or the published size.

    A caller who names a bare file may give other heads: it need not have the size of the published model.

    Args:
        branches: attentions side by side, for the question: a caller counts the heads of all.
    """
    heads = read_model_arg(hints, "num_heads")
    if heads is None and (name := read_architecture(hints)):
        fitting = (widths[width] for pattern, widths in _HEADS if re.search(pattern, name) and width in widths)
        heads = next(fitting, width // 64 if width % 64 == 0 else None)
    if heads is not None:
        if NAMED in hints.foreign_config:
            return hints.heads or heads
        return reconcile(hints.heads, heads, "heads", "config.json")
    published = _PUBLISHED_GATED if gated else _PUBLISHED
    known = published.get((width, depth, mlp_width)) if hints.heads is None else hints.heads
    usual = f"width {width} over 64 gives {max(width // 64, 1)}, the usual choice"
    each = f", for each of its {branches} attentions side by side; pass the sum" if branches > 1 else ""
    return require_argument(known, "heads", "timm", usual + each)


def is_eva(hints: LayoutHints) -> bool:
    """Whether the architecture is one of timm's `Eva` module, whose pooling and rotary arguments have other names."""
    return _EVA_MODULE.search(read_architecture(hints)) is not None


def default_eva_pool(hints: LayoutHints) -> Pool:
    """The pooling of an `Eva` without a probe, where config.json does not say it."""
    return "class" if _CLASS_POOL_OF_EVA.search(read_architecture(hints)) else "mean"


def lacks_table(hints: LayoutHints) -> bool:
    """Whether a file of `Eva` without a position table is meant to have none."""
    given, name = read_model_arg(hints, "use_abs_pos_emb"), read_architecture(hints)
    return not given if given is not None else not name or _NO_TABLE.search(name) is not None


def read_post_norm(hints: LayoutHints, ambiguous: bool, names: str) -> bool:
    """Whether the norms stand behind the branches, which no tensor shows.

    Args:
        ambiguous: whether the shapes of a file without config.json are those of a published model that has them there.
        names: such models, for the question.
    """
    given = read_model_arg(hints, "use_post_norm")
    if (name := read_architecture(hints)) and given is None:
        return _POST_NORM.search(name) is not None
    if given is not None or not ambiguous:
        return bool(given)
    hint = f"in settings: true for {names}, false where the norms stand before attention and MLP"
    return require_argument(hints.settings.get("post_norm"), "post_norm", "timm", hint)


def read_probe_heads(hints: LayoutHints) -> int | None:
    """Heads of the attention pool, where they are not those of the blocks."""
    given = read_model_arg(hints, "attn_pool_num_heads")
    return 8 if given is None and "_pe_core_" in read_architecture(hints) else given


def choose_norm_eps(hints: LayoutHints, pre_norm: bool, as_1e5: bool = False) -> float:
    """Epsilon of the norms: timm's 1e-6, but 1e-5 in CLIP's design, DINOv3 and a few more.

    Args:
        as_1e5: whether the tensors are those of one of these.
    """
    if read_model_arg(hints, "norm_layer") is not None:  # a name in JSON means the class with its own default
        return 1e-6
    name = read_architecture(hints)
    if name:
        return 1e-5 if _EPS_1E5.search(name) else 1e-6
    return 1e-5 if pre_norm or as_1e5 else 1e-6


def choose_activation(hints: LayoutHints, pre_norm: bool, gated: bool, tanh: bool = False) -> Activation:
    """Activation of the MLP; must be given for a CLIP tower without config.json, which may have either of two.

    Args:
        tanh: whether the shapes are those of a SigLIP that timm runs with the tanh form of GELU.
    """
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
    if not name and tanh:
        return require_argument(
            hints.settings.get("activation"),
            "activation",
            "timm without a class token, in a size of SigLIP,",
            'in settings: "GELUTanh" for SigLIP\'s weights of this size (vit_so400m_patch16_siglip_256 and the like), '
            '"GELU" for others; outputs differ by 1e-3',
        )
    return "GELUTanh" if _GELU_TANH.search(name) else "GELU"


def choose_clip_activation(hints: LayoutHints, pre_norm: bool, gated: bool) -> Activation:
    """Activation that a CLIP tower was trained with: QuickGELU for OpenAI's, also where timm runs them with GELU."""
    given = "activation" in hints.settings or read_model_arg(hints, "act_layer") is not None
    if not given and read_weights_tag(hints) == "openai":
        return "QuickGELU"
    return choose_activation(hints, pre_norm, gated)


def choose_rotary(hints: LayoutHints, bare: RotaryKind | None, names: str = "") -> dict[str, Any]:
    """Fields of ViTConfig for rotary positions: from the caller's settings, else from config.json, else `bare`.

    Args:
        bare: the kind for a file without config.json; None where its tensors leave it open.
        names: published models that such a file may be, in quotation marks, for the question.
    """
    if "rotary" in hints.settings:
        return {"rotary": hints.settings["rotary"]}
    if not (name := read_architecture(hints)):
        if bare is None:
            raise UsageError(
                "Several models of timm, with and without rotary positions, have the tensors of this file; none says "
                f"which. Name the published model whose design it has, such as network={names}; or pass settings="
                '{"rotary": ...}, which may be "none".'
            )
        return {"rotary": bare}
    given = hints.foreign_config.get("model_args", {})
    usual = next((arguments for pattern, arguments in _ROPE_BY_NAME if re.search(pattern, name)), {})
    known = {**_ROPE_DEFAULTS, **usual}
    found = _translate_rope({word: given.get(word, value) for word, value in known.items()})
    if found is None:
        raise UsageError(f"{name} turns queries and keys by angles that are none of Vitrail's: only timm can run it.")
    return found


def _translate_rope(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Fields of ViTConfig for timm's arguments; None for angles that Vitrail lacks."""
    if not arguments["use_rot_pos_emb"]:
        return {"rotary": "none"}
    kind, half, grid = arguments["rope_type"], bool(arguments["rope_rotate_half"]), arguments["ref_feat_shape"]
    base, offset = float(arguments["rope_temperature"]), float(arguments["rope_grid_offset"])
    places = (arguments["rope_grid_indexing"], offset)
    if kind == "mixed" and not half and places[0] == "xy":
        return {"rotary": "mixed"}
    if half and base == 100 and places == ("ij", 0.0):
        return (
            {"rotary": "dinov3"} if kind == "dinov3" else {"rotary": "axial"} if (kind, grid) == ("cat", None) else None
        )
    if kind != "cat" or half or places not in _PLACES:
        return None
    ours = _PLACES[places]
    reference = (grid, grid) if isinstance(grid, int) else None if grid is None else (int(grid[0]), int(grid[1]))
    return {"rotary": ours, "rotary_base": None if base == BASED_ROTARY[ours] else base, "rotary_grid": reference}


_PLACES: dict[tuple[str, float], RotaryKind] = {("ij", 0.0): "eva02", ("xy", 0.0): "rope-vit", ("xy", 1.0): "pe"}
"""timm's order of the axes and first place -> our kind."""
_ROPE_DEFAULTS: dict[str, Any] = {
    "use_rot_pos_emb": False,
    "rope_type": "cat",
    "rope_temperature": 10000.0,
    "rope_grid_offset": 0.0,
    "rope_grid_indexing": "ij",
    "rope_rotate_half": False,
    "ref_feat_shape": None,
}
_XY = {"use_rot_pos_emb": True, "rope_grid_indexing": "xy"}
_ROPE_BY_NAME: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        r"dinov3|lingbot",
        {"use_rot_pos_emb": True, "rope_type": "dinov3", "rope_temperature": 100.0, "rope_rotate_half": True},
    ),
    (r"^eva02_(?!enormous)|_rope_reg\d", {"use_rot_pos_emb": True, "ref_feat_shape": 16}),
    (r"_pe_core_(tiny|small|large)", {**_XY, "rope_grid_offset": 1.0, "ref_feat_shape": 24}),
    (r"_pe_core_base", {**_XY, "rope_grid_offset": 1.0, "ref_feat_shape": 14}),
    (r"_pe_(core|lang|spatial)_gigantic", {**_XY, "ref_feat_shape": 32}),
    (r"_pe_(lang|spatial)", {**_XY, "rope_grid_offset": 1.0, "ref_feat_shape": 32}),
    (r"_rope_mixed_", {**_XY, "rope_type": "mixed", "rope_temperature": 10.0}),
    (r"_rope_", {**_XY, "rope_temperature": 100.0}),
)
"""Pattern of a name -> the arguments that timm's code sets for it. The first match decides."""


def make_rope_arguments(rotary: RotaryKind, base: float | None, grid: tuple[int, int] | None) -> dict[str, Any]:
    """timm's arguments for our rotary positions; the inverse of `choose_rotary`."""
    arguments = {**_ROPE_DEFAULTS, "use_rot_pos_emb": rotary != "none"}
    if rotary in ("axial", "dinov3"):
        kind = "cat" if rotary == "axial" else "dinov3"
        return {**arguments, "rope_type": kind, "rope_temperature": 100.0, "rope_rotate_half": True}
    if rotary == "mixed":
        return {**arguments, "rope_type": "mixed", "rope_temperature": 10.0, "rope_grid_indexing": "xy"}
    for (order, offset), ours in _PLACES.items():
        if ours == rotary:
            arguments |= {"rope_grid_indexing": order, "rope_grid_offset": offset}
            arguments |= {"rope_temperature": base or BASED_ROTARY[ours], "ref_feat_shape": grid and list(grid)}
    return arguments


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
    given = [read_model_arg(hints, word) for word in ("final_norm", "use_post_transformer_norm")]
    by_name = _NO_FINAL_NORM.search(read_architecture(hints)) is not None and True not in given
    return hints.settings.get("final_norm") is False or False in given or by_name


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
