"""Which layout a file has: by tensor names that no other family uses, and by the config.json beside it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

from ..errors import DamagedFileError, UsageError
from .complete import nearest
from .families import (
    big_vision,
    blog_conv,
    deit,
    dino,
    dinov2,
    dinov3,
    explained,
    google_npz,
    hf_clip,
    hf_dinov2,
    hf_dinov3,
    hf_siglip,
    hf_vit,
    ijepa,
    mae,
    open_clip,
    openai_clip,
    t2t,
    timm,
    timm_dinov3,
    timm_naflex,
    torchvision,
    vit_pytorch,
    xray_rope,
)
from .layouts import Layout, Name, Parts
from .shapes import pattern_of

FAMILIES: tuple[tuple[Layout, ...], ...] = (
    big_vision.LAYOUTS,
    blog_conv.LAYOUTS,
    deit.LAYOUTS,
    dino.LAYOUTS,
    dinov2.LAYOUTS,
    dinov3.LAYOUTS,
    explained.LAYOUTS,
    google_npz.LAYOUTS,
    hf_clip.LAYOUTS,
    hf_dinov2.LAYOUTS,
    hf_dinov3.LAYOUTS,
    hf_siglip.LAYOUTS,
    hf_vit.LAYOUTS,
    ijepa.LAYOUTS,
    mae.LAYOUTS,
    open_clip.LAYOUTS,
    openai_clip.LAYOUTS,
    t2t.LAYOUTS,
    timm.LAYOUTS,
    timm_dinov3.LAYOUTS,
    timm_naflex.LAYOUTS,
    torchvision.LAYOUTS,
    vit_pytorch.LAYOUTS,
    xray_rope.LAYOUTS,
)
"""The layouts of every family, file by file."""
LAYOUTS: dict[str, Layout] = {layout.key: layout for family in FAMILIES for layout in family}
"""Every layout of foreign files, by its name and variant (`name` or `name:variant`)."""


def identify(names: Collection[str]) -> str:
    """The name of the one layout that fits a file's tensor names, as people write it after `layout=`.

    Raises:
        DamagedFileError: none fits, or several do. The layout that comes nearest is named with what it lacks.
    """
    return recognise(names).name


def recognise(names: Collection[str], layout: str | None = None, foreign: Mapping[str, Any] | None = None) -> Layout:
    """The one layout that fits.

    Args:
        layout: the name that a person said; only its variants are tried then.
        foreign: the config.json beside the file, which narrows the choice where it names a kind of model.

    Raises:
        DamagedFileError: none fits, or several do. The layout that comes nearest is named with what it lacks.
        UsageError: there is no layout of that name, or config.json names a kind of model that is not known here.
    """
    unnamed = tuple(candidate for candidate in LAYOUTS.values() if not candidate.named_only)
    candidates = _of_kind(variants(layout) if layout else unnamed, foreign or {})
    fitting = [candidate for candidate in candidates if _fits(candidate, names)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        keys = " and ".join(candidate.key for candidate in fitting)
        raise DamagedFileError(f"The file fits {len(fitting)} layouts, {keys}. Name one with layout=.")
    if len(candidates) == 1:
        raise DamagedFileError(
            f"The file is not of the layout {candidates[0].key}: it {_unlike(candidates[0], names)}."
        )
    known = ", ".join(dict.fromkeys(candidate.name for candidate in candidates))
    raise DamagedFileError(f"The file has none of the layouts known here: {known}. {_closest(candidates, names)}")


def variants(name: str) -> tuple[Layout, ...]:
    """Every layout that shares the name that a person said; `name:variant` means that one.

    Raises:
        UsageError: there is none of that name.
    """
    found = tuple(layout for layout in LAYOUTS.values() if name in (layout.name, layout.key))
    if not found:
        known = ", ".join(dict.fromkeys(layout.name for layout in LAYOUTS.values()))
        raise UsageError(f"There is no layout {name!r}. Known: bundle, {known}.")
    return found


def model_kinds(foreign: Mapping[str, Any]) -> tuple[str, ...]:
    """What a config.json says about the kind of model: transformers' model types, the inner one first, or timm."""
    if isinstance(foreign.get("architecture"), str):
        return ("timm",)
    if "model_cfg" in foreign:
        return ("open_clip",)
    inner = foreign.get("vision_config")
    said = (inner.get("model_type") if isinstance(inner, dict) else None, foreign.get("model_type"))
    return tuple(kind for kind in said if isinstance(kind, str))


def _of_kind(candidates: tuple[Layout, ...], foreign: Mapping[str, Any]) -> tuple[Layout, ...]:
    kinds = model_kinds(foreign)
    for kind in kinds:
        if found := tuple(candidate for candidate in candidates if kind in candidate.model_types):
            return found
    if kinds:
        known = sorted({kind for candidate in candidates for kind in candidate.model_types})
        raise UsageError(
            f"config.json says that the model is a {kinds[-1]}, which is not a plain Vision Transformer known here"
            f"{' (' + ', '.join(known) + ')' if known else ''}."
        )
    return candidates


def _fits(layout: Layout, names: Collection[str]) -> bool:
    forms = _forms(layout, names)
    return all(_among(want, forms) for want in layout.decisive) and not any(_among(n, forms) for n in layout.absent)


def _unlike(layout: Layout, names: Collection[str]) -> str:
    """What is wrong with names that are not of this layout, in words that follow "it"."""
    forms = _forms(layout, names)
    lacking = [want for want in layout.decisive if not _among(want, forms)]
    if lacking:
        return "lacks " + " and ".join(want + nearest(want, forms) for want in lacking)
    strange = [found for unwanted in layout.absent for found in forms if fnmatchcase(found, unwanted)]
    return f"has {min(strange)}"


def _forms(layout: Layout, names: Collection[str]) -> Collection[str]:
    """The names, also without the layout's prefix."""
    if not layout.prefix:
        return set(names)
    return {*names, *(name.removeprefix(layout.prefix) for name in names)}


def _among(want: str, forms: Collection[str]) -> bool:
    return any(fnmatchcase(form, want) for form in forms) if _GLOB.search(want) else want in forms


_GLOB = re.compile(r"[*?\[]")


def _closest(candidates: Collection[Layout], names: Collection[str]) -> str:
    """Words about the layout whose table knows most of the names, and why the file is not of it."""
    if not names:
        return "It holds no tensors at all."
    known = {candidate.key: _known(candidate, names) for candidate in candidates}
    if not max(known.values()):
        return f"Its first tensors are called {', '.join(list(names)[:4])}."
    best = max(candidates, key=lambda candidate: known[candidate.key])
    return f"It comes near {best.key}, but {_unlike(best, names)}."


def _known(layout: Layout, names: Collection[str]) -> int:
    """How many names the layout's table would load."""
    loading = (rule for rule in layout.rules if isinstance(rule, Name | Parts))
    wanted = [
        pattern_of(name) for rule in loading for name in ((rule.theirs,) if isinstance(rule, Name) else rule.theirs)
    ]
    forms = [name.removeprefix(layout.prefix) for name in names]
    return sum(any(pattern.fullmatch(form) for pattern in wanted) for form in forms)
