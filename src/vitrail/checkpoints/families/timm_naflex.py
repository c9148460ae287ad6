"""`timm-naflex`: files of timm's NaFlex model, whose patches are flattened rows and whose positions are a plane.

The patch projection is a matrix over row, column, channel, the table [1, rows, columns, D] holds patches alone, and the
blocks and the end have the names of `timm`. The model takes any picture size; the file's own is that of its table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt

from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import Resample, ViTConfig
from ..layouts import Layout, Name, Rule, names
from ..shapes import need
from ..steps import GRID_TABLE, MATRIX_CHANNELS_LAST
from ..told import Told
from . import timm_told
from .timm_express import Expressed, State, express
from .timm_parts import BLOCK, END, block_settings, end_settings, has, token_counts, with_numerics

# fmt: off
STEM = {  # theirs                           ours
    "embeds.proj.bias":                      "tokens.patches.bias",
    "embeds.cls_token":                      "tokens.cls",
    "embeds.reg_token":                      "tokens.registers",
}
# fmt: on
WEIGHT, TABLE = "embeds.proj.weight", "embeds.pos_embed"
RULES: tuple[Rule, ...] = (
    *names({**STEM, **BLOCK, **END}),
    Name(WEIGHT, "tokens.patches.weight", MATRIX_CHANNELS_LAST),
    Name(TABLE, "positions.table", GRID_TABLE),
)


def describe(tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: channels or heads must be told, or the design is not among Vitrail's.
    """
    patch, channels = _patch(need(tensors, WEIGHT, axes=2).shape[1], told)
    table = need(tensors, TABLE, axes=4)
    end, (class_token, registers) = end_settings(tensors, told), token_counts(tensors, told, "embeds.")
    probe = has(tensors, "attn_pool.*")
    _refuse_other_designs(told, probe, prefix_tokens=class_token + registers)
    config = ViTConfig(
        image_size=(table.shape[1] * patch[0], table.shape[2] * patch[1]),
        patch=patch,
        patches="linear",
        channels=channels,
        patch_bias=not end["pre_norm"] or has(tensors, "embeds.proj.bias"),
        class_token=class_token,
        registers=registers,
        class_position=not class_token,
        qkv_bias=has(tensors, "blocks.*.attn.qkv.bias"),
        pool=timm_told.pool(told, probe, class_token, end["pooled_norm"]),
        **block_settings(tensors, told),
        **end,
    )
    config = with_numerics(config, told, card_of(config, told))
    return config if told.match not in (None, "timm") else replace(config, resample=_resample(told))


def card_of(config: ViTConfig, told: Told) -> str:
    """SigLIP 2's card for the shape of its tower, timm's own otherwise.

    Raises:
        UsageError: `match` asks for the authors' numerics, and no card knows the authors of a model of that name.
    """
    if config.pool == "attention":
        return "timm_naflex_siglip"
    if told.match == "original" and (name := timm_told.architecture(told)):
        raise UsageError(f"Nobody knows the authors' numerics of {name}. Leave match= out.")
    return "timm_vit"


def express_plane(config: ViTConfig, state: State) -> Expressed:
    """The model in values that NaFlex can hold: positions of patches alone, flattened patches.

    Raises:
        UsageError: it has no such part.
    """
    unknown = {
        'positions="none"': config.positions == "none",
        f'rotary="{config.rotary}"': config.rotary != "none",
        "distillation_head=true": config.distillation_head,
        "parallel=true": config.parallel,
    }
    if missing := [words for words, there in unknown.items() if there]:
        raise UsageError(f"timm-naflex has no place for {', nor for '.join(missing)}. Write it as timm instead.")
    config, state = express(config, state)
    if config.class_token and config.class_position:
        table = state["positions.table"]
        state |= {"tokens.cls": state["tokens.cls"] + table[0], "positions.table": table[1:].clone()}
    state["tokens.patches.weight"] = state["tokens.patches.weight"].flatten(1)
    return replace(config, patches="linear", class_position=not config.class_token), state


def _patch(numbers: int, told: Told) -> tuple[tuple[int, int], int]:
    """Height and width of a patch, and channels, from the length of a flattened one."""
    said = timm_told.argument(told, "in_chans")
    channels = told.channels or said or 3
    side = isqrt(numbers // channels)
    if side**2 * channels != numbers:
        raise DamagedFileError(
            f"{WEIGHT} must have a column for each pixel of a square patch and each of {channels} channels. "
            f"Got {numbers} columns. Pass channels= if the pictures have another count."
        )
    return (side, side), channels


def _resample(told: Told) -> Resample:
    """How timm stretches the plane: bicubic, or bilinear in SigLIP 2's architectures, both antialiased unless told."""
    usual = "bilinear" if "siglip" in timm_told.architecture(told) else "bicubic"
    mode = timm_told.argument(told, "pos_embed_interp_mode") or usual
    smooth = timm_told.argument(told, "pos_embed_antialias") is not False
    known: dict[tuple[str, bool], Resample] = {
        ("bicubic", True): "bicubic-antialias",
        ("bicubic", False): "bicubic",
        ("bilinear", True): "bilinear-antialias",
    }
    if (mode, smooth) not in known:
        raise UsageError(f"This NaFlex model stretches its positions by a rule that Vitrail lacks: {mode}, plain.")
    return known[mode, smooth]


def _refuse_other_designs(told: Told, probe: bool, prefix_tokens: int) -> None:
    """Refuse what tensors do not show."""
    included = bool(timm_told.argument(told, "pool_include_prefix"))
    if prefix_tokens and probe != included:
        raise UsageError(
            "This NaFlex model pools over other tokens than Vitrail does: a probe of ours looks at every token, "
            "a mean at the patches alone. The file can be read by timm only."
        )
    if timm_told.argument(told, "pos_embed_ar_preserving") or "_par_" in timm_told.architecture(told):
        raise UsageError("This NaFlex model stretches its positions by the longer side alone, which Vitrail does not.")
    if timm_told.argument(told, "rope_type") not in (None, "", "none"):
        raise UsageError("This NaFlex model has rotary positions; Vitrail reads those only from timm's other layout.")


LAYOUTS = (
    Layout(
        name="timm-naflex",
        decisive=(WEIGHT, "blocks.*.attn.qkv.weight"),
        absent=("rope*", "embeds.pos_embed_[xy]", "blocks.*.gamma_[12]"),
        model_types=("timm",),
        rules=RULES,
        describe=describe,
        card=card_of,
        match="timm",
        express=express_plane,
    ),
)
