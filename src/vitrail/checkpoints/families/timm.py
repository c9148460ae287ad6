"""`timm`: files of timm's `VisionTransformer`, plain, distilled, with registers, with an attention pool, or parallel.

The shapes tell almost everything; what they cannot tell is in `timm_told`. A position table may have rows for the class
token or not, and even rows for registers, which are added to the registers once and for all when a file is read: the
sum that timm makes in every forward pass is the same number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from ...errors import UsageError
from ...model.config import ViTConfig
from ...spec import Grid
from ..layouts import Layout, Name, Parts, Rule, names
from ..shapes import agree, blocks, need, vote
from ..steps import BATCHED, KERNEL, SPLIT, Step
from ..told import Told
from . import timm_told
from .timm_express import express, express_parallel, express_split
from .timm_parts import (
    BLOCK,
    END,
    SPLIT_BLOCK,
    Settings,
    block_settings,
    end_settings,
    fold_registers,
    has,
    table,
    token_counts,
    told_grids,
    with_numerics,
)

# fmt: off
STEM = {  # theirs                           ours
    "patch_embed.proj.bias":                 "tokens.patches.bias",
    "cls_token":                             "tokens.cls",
    "dist_token":                            "tokens.distillation",
    "reg_token":                             "tokens.registers",
    "pre_logits.fc.{p}":                     "head.hidden.{p}",
    "head_dist.{p}":                         "head.distillation.{p}",
}
PARALLEL = {
    "blocks.{i}.in_norm.{p}":                "encoder.blocks.{i}.norm1.{p}",
    "blocks.{i}.q_norm.{p}":                 "encoder.blocks.{i}.attention.q_norm.{p}",
    "blocks.{i}.k_norm.{p}":                 "encoder.blocks.{i}.attention.k_norm.{p}",
    "blocks.{i}.attn_out_proj.{p}":          "encoder.blocks.{i}.attention.out.{p}",
    "blocks.{i}.mlp_out_proj.{p}":           "encoder.blocks.{i}.mlp.fc2.{p}",
}
# fmt: on
TWICE: Step[list[Tensor]] = Step(lambda theirs, likes: [theirs[0], theirs[0].clone()], lambda ours, config: ours[:1])
"""One of theirs is two equal ones of ours."""
FC1, QKV = "encoder.blocks.{i}.mlp.fc1", "encoder.blocks.{i}.attention.qkv"
PLACES: tuple[Rule, ...] = (
    *names({**STEM, **END}),
    Name("patch_embed.proj.weight", "tokens.patches.weight", KERNEL),
    Name("pos_embed", "positions.table", BATCHED),
)
RULES: tuple[Rule, ...] = (*PLACES, *names(BLOCK))
SPLIT_RULES: tuple[Rule, ...] = (*PLACES, *names(SPLIT_BLOCK))
PARALLEL_RULES: tuple[Rule, ...] = (
    *PLACES,
    *names(PARALLEL),
    Parts(("blocks.{i}.in_proj.weight",), (f"{FC1}.weight", f"{QKV}.weight"), SPLIT),
    Parts(("blocks.{i}.ls.gamma",), ("encoder.blocks.{i}.scale1", "encoder.blocks.{i}.scale2"), TWICE),
)
JOINT_BIAS: Rule = Parts(("blocks.{i}.in_proj.bias",), (f"{FC1}.bias", f"{QKV}.bias"), SPLIT)
MLP_BIAS: Rule = Name("blocks.{i}.mlp_bias", f"{FC1}.bias")
OTHER_FAMILIES = (
    "mask_token",
    "register_tokens",
    "storage_tokens",
    "decoder*",
    "tokens_to_token*",
    "rope*",
    "*relative_position*",
    "blocks.*.gamma_[12]",
    "blocks.*.attn.[qkv]_bias",
    "blocks.*.attn.bias_mask",
    "blocks.*.mlp.w*",
)
"""Names that no file of this module has, and that look-alikes do."""
_NOT_PLAIN = re.compile(r"_rpn_|^beit|_18x2_")


def describe(tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file with one block after the other.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: heads, a size or an activation must be told, or timm's design is not among Vitrail's.
    """
    settings = {**block_settings(tensors, told), "qkv_bias": has(tensors, "blocks.*.attn.qkv.bias")}
    return _described(tensors, told, settings)


def describe_parallel(tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file whose attention and MLP stand side by side, read from one joint projection.

    Raises:
        DamagedFileError, UsageError: as `describe`.
    """
    width = vote(tensors, "width", ("blocks.{i}.in_norm.weight", 0), ("blocks.{i}.attn_out_proj.weight", 0))
    depth, mlp_width = blocks(tensors, "blocks"), vote(tensors, "MLP width", ("blocks.{i}.mlp_out_proj.weight", 1))
    normed = has(tensors, "blocks.*.[qk]_norm.*")
    norms = [(f"blocks.{{i}}.{n}_norm.{p}", 0) for n in "qk" for p in ("weight", "bias")]
    settings: Settings = {
        "parallel": True,
        "width": width,
        "depth": depth,
        "heads": width // vote(tensors, "width of a head", *norms)
        if normed
        else timm_told.heads(told, width, depth, mlp_width, gated=False),
        "mlp_width": mlp_width,
        "qk_norm": normed,
        "qkv_bias": has(tensors, "blocks.*.in_proj.bias"),
        "out_bias": has(tensors, "blocks.*.attn_out_proj.bias"),
        "norm": "LayerNorm" if has(tensors, "blocks.*.in_norm.bias") else "RMSNorm",
        "layer_scale": 1e-5 if has(tensors, "blocks.*.ls.gamma") else None,
    }
    return _described(tensors, told, settings)


def card_of(config: ViTConfig, told: Told) -> str:
    """The card that fits a timm model best, by its name, or by its design where no name is told.

    Raises:
        UsageError: `match` asks for the authors' numerics, and no card knows the authors of a model of that name.
    """
    name, tag = timm_told.architecture(told), timm_told.tag(told)
    for word, card in _CARDS:
        if word in f"{name}.{tag}":
            return card
    if name and told.match == "original":
        raise UsageError(f"Nobody knows the authors' numerics of {f'{name}.{tag}'.rstrip('.')}. Leave match= out.")
    if name:
        return "timm_vit"
    if config.distillation_token:
        return "deit"
    if config.pre_norm:
        return "timm_clip"
    return "timm_siglip" if config.pool == "attention" else "timm_vit"


# words of a name with its tag; the first that is in it decides, so the longer stands before the shorter
_CARDS = (
    ("deit3", "deit3"),
    ("deit", "deit"),
    ("dinov3", "timm_dinov3"),
    ("dinov2", "timm_dinov2"),
    ("siglip", "timm_siglip"),
    ("clip", "timm_clip"),
    ("augreg", "google_augreg"),
    ("ijepa", "ijepa"),
    ("mae", "mae"),
    ("dino", "dino"),
    ("orig_in", "google_augreg"),
    ("sam_in", "google_augreg"),
)


def refuse_other_designs(told: Told, prefix_tokens: int) -> None:
    """Refuse what tensors do not show: other blocks under the same names, and pooling over class and registers."""
    name = timm_told.architecture(told)
    if _NOT_PLAIN.search(name):
        raise UsageError(f"{name} is not a plain ViT of Vitrail's kinds, though its tensors have the same names.")
    pools = bool(timm_told.argument(told, "pool_include_prefix"))
    if prefix_tokens and pools:
        raise UsageError(f"{name} takes the mean over class and register tokens too, which Vitrail's pools do not.")


def _described(tensors: Mapping[str, Tensor], told: Told, settings: Settings) -> ViTConfig:
    kernel = need(tensors, "patch_embed.proj.weight", axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    end = end_settings(tensors, told)
    tokens = _tokens(tensors, told, patch)
    probe = has(tensors, "attn_pool.*")
    if probe and (tokens["class_token"] or tokens["registers"]):
        _probe_sees_all(told)
    else:
        refuse_other_designs(told, tokens["class_token"] + tokens["registers"])
    config = ViTConfig(
        patch=patch,
        channels=agree(told.channels, kernel.shape[1], "channels", "patch_embed.proj.weight"),
        patch_bias=not end["pre_norm"] or has(tensors, "patch_embed.proj.bias"),
        pad=bool(timm_told.argument(told, "dynamic_img_pad")),
        pool=timm_told.pool(told, probe, tokens["class_token"], end["pooled_norm"]),
        rotary=timm_told.rotary(told, bare="none"),
        head="tanh" if has(tensors, "pre_logits.fc.*") else "linear",
        distillation_head=tokens["distillation_token"],
        **settings,
        **end,
        **tokens,
    )
    return with_numerics(config, told, card_of(config, told))


def _tokens(tensors: Mapping[str, Tensor], told: Told, patch: tuple[int, int]) -> Settings:
    """Prefix tokens, positions and the picture size that they were made for."""
    class_token, registers = token_counts(tensors, told)
    distilled = has(tensors, "dist_token", "head_dist.*")
    found: Settings = {
        "class_token": class_token or distilled,
        "registers": registers,
        "distillation_token": distilled,
    }
    if timm_told.argument(told, "pos_embed") in ("", "none") or told.settings.get("positions") == "none":
        grid = (told_grids(told, patch) or [Grid(14, 14)])[0]
        return {**found, "image_size": (grid.rows * patch[0], grid.columns * patch[1]), "positions": "none"}
    need(tensors, "pos_embed", axes=3)
    prefixes = (2,) if distilled else (0,) if not class_token else (0, 1) if registers else (1, 0)
    if timm_told.argument(told, "no_embed_class"):
        prefixes = (0,)
    size, prefix = table(tensors, "pos_embed", prefixes, patch, told)
    return {**found, "image_size": size, "class_position": prefix > 0 or not class_token}


def _probe_sees_all(told: Told) -> None:
    if not timm_told.argument(told, "pool_include_prefix") and told.settings.get("pool") != "attention":
        raise UsageError(
            "This timm model pools by attention over the patches alone, without its class and register tokens; "
            "Vitrail's probe looks at every token. The file can be read by timm only."
        )


LAYOUTS = (
    Layout(
        name="timm",
        decisive=("patch_embed.proj.weight", "blocks.*.attn.qkv.weight", "blocks.*.mlp.fc1.*"),
        absent=OTHER_FAMILIES,
        model_types=("timm",),
        rules=RULES,
        describe=describe,
        card=card_of,
        match="timm",
        settle=fold_registers,
        express=express,
    ),
    Layout(
        name="timm",
        variant="split-gate",
        decisive=("patch_embed.proj.weight", "blocks.*.attn.qkv.weight", "blocks.*.mlp.fc1_g.*"),
        absent=OTHER_FAMILIES,
        model_types=("timm",),
        rules=SPLIT_RULES,
        describe=describe,
        card=card_of,
        match="timm",
        settle=fold_registers,
        express=express_split,
    ),
    *(
        Layout(
            name="timm",
            variant=variant,
            decisive=("patch_embed.proj.weight", "blocks.*.in_proj.weight", bias),
            absent=OTHER_FAMILIES,
            model_types=("timm",),
            rules=(*PARALLEL_RULES, rule),
            describe=describe_parallel,
            card=card_of,
            match="timm",
            settle=fold_registers,
            express=express_parallel,
        )
        for variant, bias, rule in (
            ("parallel", "blocks.*.in_proj.bias", JOINT_BIAS),
            ("parallel-without-bias", "blocks.*.mlp_bias", MLP_BIAS),
        )
    ),
)
