"""Identify the layout of a file by its tensor names and by the config.json beside it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any

from ..errors import DamagedFileError, UsageError
from ..formatting import format_count
from .bundle_weights import OWN_LAYOUTS
from .families import (
    clip,
    deit,
    dinov2_dinov3,
    flax,
    hf,
    hf_aimv2,
    hf_beit,
    hf_clip_siglip,
    hf_dino,
    hf_mlcd,
    hf_yolos,
    internvit,
    originals,
    t2t,
    teaching,
    timm,
    timm_beit,
    timm_eva_naflex,
    timm_relpos,
    torchvision,
    vit5,
    vit_pytorch,
)
from .layouts import IgnoreRule, Layout, PartsRule, TensorDict, find_ignore_rule
from .validate import compile_pattern, nearest_name_hint, zero_block_number

UNLIKE = "It is no plain Vision Transformer that Vitrail reads:"
"""Beginning of a message on a file of another architecture."""
_GLOB = re.compile(r"[*?\[]")
FAMILIES: tuple[tuple[Layout, ...], ...] = (
    flax.BIG_VISION_LAYOUTS,
    teaching.BLOG_CONV_LAYOUTS,
    deit.DEIT_LAYOUTS,
    originals.DINO_LAYOUTS,
    dinov2_dinov3.DINOV2_LAYOUTS,
    dinov2_dinov3.DINOV3_LAYOUTS,
    teaching.EXPLAINED_LAYOUTS,
    flax.GOOGLE_NPZ_LAYOUTS,
    hf_aimv2.HF_AIMV2_LAYOUTS,
    hf_beit.HF_BEIT_LAYOUTS,
    hf_clip_siglip.HF_CLIP_LAYOUTS,
    hf_dino.HF_DINOV2_LAYOUTS,
    hf_dino.HF_DINOV3_LAYOUTS,
    hf_mlcd.HF_MLCD_LAYOUTS,
    hf_clip_siglip.HF_SIGLIP_LAYOUTS,
    hf.HF_VIT_LAYOUTS,
    hf_yolos.HF_YOLOS_LAYOUTS,
    originals.IJEPA_LAYOUTS,
    internvit.INTERNVIT_LAYOUTS,
    originals.MAE_LAYOUTS,
    clip.OPEN_CLIP_LAYOUTS,
    clip.OPENAI_CLIP_LAYOUTS,
    t2t.T2T_LAYOUTS,
    timm.TIMM_LAYOUTS,
    timm_beit.BEIT_LAYOUTS,
    timm_relpos.RELPOS_LAYOUTS,
    timm_eva_naflex.EVA_LAYOUTS,
    timm_eva_naflex.NAFLEX_LAYOUTS,
    torchvision.TORCHVISION_LAYOUTS,
    vit5.VIT5_LAYOUTS,
    vit_pytorch.VIT_PYTORCH_LAYOUTS,
    teaching.XRAY_LAYOUTS,
)
"""The layouts of every family, file by file."""
LAYOUTS: dict[str, Layout] = {layout.key: layout for family in FAMILIES for layout in family}
"""Every layout of foreign files, by its name and variant (`name` or `name:variant`)."""


def identify_layout(names: Collection[str]) -> str:
    """The name of the one layout that fits a file's tensor names, as a value of `layout=`; see `find_layout`."""
    return find_layout(names).name


def find_layout(names: Collection[str], layout: str | None = None, foreign: Mapping[str, Any] | None = None) -> Layout:
    """The one layout that fits.

    Args:
        layout: name of a layout; only its variants are tried then.
        foreign: the config.json beside the file, which narrows the choice if it names a kind of model.

    Raises:
        DamagedFileError: none fits, or several do. The message names the closest layout and what the file lacks.
        UsageError: there is no layout of that name, config.json names an unknown kind of model, or the file has other
            tensors than any layout.
    """
    candidates = list_candidates(layout, foreign or {})
    fitting = [candidate for candidate in candidates if matches_layout(candidate, names)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        keys = " and ".join(candidate.key for candidate in fitting)
        raise DamagedFileError(f"The file fits {len(fitting)} layouts, {keys}. Name one with layout=.")
    if layout is None and (stranger := _describe_stranger(candidates, names)):
        raise UsageError(stranger)
    if len(candidates) == 1:
        raise DamagedFileError(
            f"The file is not of the layout {candidates[0].key}: it {_explain_mismatch(candidates[0], names)}."
        )
    known = ", ".join(dict.fromkeys(candidate.name for candidate in candidates))
    raise DamagedFileError(
        f"The file has none of the layouts known here: {known}. {_describe_closest(candidates, names)}"
    )


def list_candidates(layout: str | None, foreign: Mapping[str, Any]) -> tuple[Layout, ...]:
    """The layouts that are tried; see `find_layout`."""
    unnamed = tuple(candidate for candidate in (*LAYOUTS.values(), *OWN_LAYOUTS) if not candidate.named_only)
    return _filter_by_model_type(list_variants(layout) if layout else unnamed, foreign)


def list_variants(name: str) -> tuple[Layout, ...]:
    """Every layout of this name; `name:variant` means one of them."""
    variants = tuple(layout for layout in (*LAYOUTS.values(), *OWN_LAYOUTS) if name in (layout.name, layout.key))
    if not variants:
        known = ", ".join(dict.fromkeys(layout.name for layout in LAYOUTS.values()))
        raise UsageError(f"There is no layout {name!r}. Known: bundle, {known}.")
    return variants


def read_model_types(foreign: Mapping[str, Any]) -> tuple[str, ...]:
    """Kinds of model in a config.json: transformers' model types, the inner one first, "timm" or "open_clip"."""
    if isinstance(foreign.get("architecture"), str):
        return ("timm",)
    if "model_cfg" in foreign:
        return ("open_clip",)
    inner = foreign.get("vision_config")
    kinds = (inner.get("model_type") if isinstance(inner, dict) else None, foreign.get("model_type"))
    return tuple(kind for kind in kinds if isinstance(kind, str))


def read_kinds(foreign: Mapping[str, Any]) -> tuple[str, ...]:
    """As `read_model_types`, with the architecture's name for timm and for OpenCLIP's towers of timm."""
    architecture: Any = foreign
    for name in ("model_cfg", "vision_cfg", "timm_model_name") if "model_cfg" in foreign else ("architecture",):
        architecture = architecture.get(name) if isinstance(architecture, Mapping) else None
    return (architecture,) if isinstance(architecture, str) else read_model_types(foreign)


def _filter_by_model_type(candidates: tuple[Layout, ...], foreign: Mapping[str, Any]) -> tuple[Layout, ...]:
    kinds = read_model_types(foreign)
    for kind in kinds:
        if matching := tuple(candidate for candidate in candidates if kind in candidate.model_types):
            return matching
    if kinds:
        known = sorted({kind for candidate in candidates for kind in candidate.model_types})
        raise UsageError(
            f"config.json says that the model is a {kinds[-1]}, which is not a plain Vision Transformer known here"
            f"{' (' + ', '.join(known) + ')' if known else ''}."
        )
    return candidates


def matches_layout(layout: Layout, names: Collection[str]) -> bool:
    """Whether a file's names, and its shapes where they are given, are those of a layout."""
    forms = _name_forms(layout, names)
    complete = all(_matches_any(pattern, forms) for pattern in layout.required_names)
    forbidden = any(_matches_any(pattern, forms) for pattern in layout.forbidden_names)
    return complete and not forbidden and not _find_other_axes(layout, names)


def _find_other_axes(layout: Layout, names: Collection[str]) -> str:
    """The first tensor with other axes than the layout has, for a message, after "it"; empty if there is none.

    Args:
        names: the tensors by name; of names alone nothing is known.
    """
    tensors: TensorDict = names if isinstance(names, Mapping) else {}
    for name, axes in layout.axes.items():
        for form in (name, layout.prefix + name):
            if form in tensors and tensors[form].ndim != axes:
                return f"has {form} with {tensors[form].ndim} axes, not {axes}"
    return ""


def _explain_mismatch(layout: Layout, names: Collection[str]) -> str:
    """Why names are not of this layout, for a message, after "it"."""
    forms = _name_forms(layout, names)
    missing = [pattern for pattern in layout.required_names if not _matches_any(pattern, forms)]
    if missing:
        return "lacks " + " and ".join(pattern + nearest_name_hint(pattern, forms) for pattern in missing)
    unexpected = [name for pattern in layout.forbidden_names for name in forms if fnmatchcase(name, pattern)]
    return f"has {min(unexpected)}" if unexpected else _find_other_axes(layout, names)


def _name_forms(layout: Layout, names: Collection[str]) -> Collection[str]:
    """The names, with and without the layout's prefix."""
    return {*names, *(name.removeprefix(layout.prefix) for name in names)}


def is_glob(pattern: str) -> bool:
    """Whether a pattern of names has placeholders."""
    return _GLOB.search(pattern) is not None


def _matches_any(pattern: str, forms: Collection[str]) -> bool:
    return any(fnmatchcase(form, pattern) for form in forms) if is_glob(pattern) else pattern in forms


def _describe_closest(candidates: Collection[Layout], names: Collection[str]) -> str:
    """For a message: the layout whose table has most of the names, and why the file is not of it."""
    if not names:
        return "It holds no tensors at all."
    best = max(candidates, key=lambda candidate: _count_known_names(candidate, names))
    if not _count_known_names(best, names):
        return f"Its first tensors are called {', '.join(list(names)[:4])}."
    return f"It comes near {best.key}, but {_explain_mismatch(best, names)}."


def _describe_stranger(candidates: Collection[Layout], names: Collection[str]) -> str:
    """What a file is that has other tensors than any layout, in a sentence; empty if few differ from those of one."""
    first, last = (end(names, default="").split(".") for end in (min, max))
    shared = [part for part, other in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))]
    inside = [name.removeprefix(".".join([*shared, ""])) for name in names]
    counts = {layout.key: _count_known_names(layout, inside) for layout in candidates}
    nearest = max(counts, key=lambda key: counts[key])
    if 2 * counts[nearest] > len(inside) or not inside:
        return describe_other_blocks(LAYOUTS[nearest], inside)
    known = f"the nearest layout, {nearest}, knows {counts[nearest]}" if counts[nearest] else "no layout knows any"
    return f"{UNLIKE} of its {format_count(len(inside), 'tensor')} ({', '.join(inside[:3])}) {known}."


def describe_other_blocks(layout: Layout, names: Collection[str]) -> str:
    """What the blocks of a file have that a layout lacks, in a sentence; empty where not every block has it."""
    alike, patterns = _group_by_block(names), _compile_names(layout)
    depth = max(map(len, alike), default=0)
    for name, *others in alike:
        of_every_block = depth > 1 and (1 + len(others)) % depth == 0
        if of_every_block and not _is_known(name, layout, patterns) and not find_ignore_rule(layout, name):
            return f"{UNLIKE} every block has a tensor such as {name}, which the layout {layout.key} lacks."
    return ""


def _count_known_names(layout: Layout, names: Collection[str]) -> int:
    """How many of the names the layout's table has."""
    patterns = _compile_names(layout)
    return sum(len(alike) for alike in _group_by_block(names) if _is_known(alike[0], layout, patterns))


def _group_by_block(names: Collection[str]) -> list[list[str]]:
    """Names that differ in the number of the block alone, together."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(zero_block_number(name), []).append(name)
    return list(found.values())


def _is_known(name: str, layout: Layout, patterns: Collection[re.Pattern[str]]) -> bool:
    bare = name.removeprefix(layout.prefix)
    return any(pattern.fullmatch(bare) for pattern in patterns)


def _compile_names(layout: Layout) -> list[re.Pattern[str]]:
    """Patterns of the names that the layout's table has."""
    known: list[str] = []
    for rule in layout.rules:
        if not isinstance(rule, IgnoreRule):
            known += rule.theirs if isinstance(rule, PartsRule) else [rule.theirs]
    return [compile_pattern(name) for name in known]
