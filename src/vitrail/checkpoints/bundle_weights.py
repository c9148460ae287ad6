"""The weights of a bundle: written with everything else in it, and opened after comparing every file with its hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from ..config import write as write_settings
from ..data.source import parse_task
from ..errors import DamagedFileError
from ..files import atomic, safetensors_file, strict_json
from ..model.config import ViTConfig
from ..model.vit import ViT
from ..spec import ImageSpec
from .adapt import build_model, build_on_meta
from .bundle import (
    BANK_ROWS,
    BUNDLE_FORMAT,
    CARD_FILE,
    CONFIG_FILE,
    FEATURE_STATS_FILE,
    PREPROCESSOR_FILE,
    WEIGHTS_FILE,
    BundleInfo,
    parse_bundle_config,
    read_bundle_info,
)
from .decision_versions import bank_path
from .image_spec import check_model_fits, make_preprocessor_config
from .layouts import Layout, LayoutHints, NameRule, TensorDict
from .model_card import format_model_card
from .rules import load_with_layout
from .validate import Audit, check_model_size

DESCRIPTION_KEY = "vitrail"
"""Metadata key of the weights file: what `config.json` says of the model, so that the file alone can be loaded."""
MAX_DESCRIPTION = 2**20
"""Longest description there; the names of very many classes are in `config.json` alone."""


@dataclass(frozen=True, kw_only=True)
class Bundle(BundleInfo):
    """The content of a bundle."""

    model: ViT
    """In evaluation mode, on the CPU, in float32."""
    audit: Audit
    """Every tensor of the weights file."""
    feature_stats: Mapping[str, Tensor]
    """Statistics of the training images' features; empty if there are none."""


def save_bundle(
    folder: Path,
    model: ViT,
    spec: ImageSpec,
    task: str,
    classes: tuple[str, ...],
    info: Mapping[str, object],
    feature_stats: Mapping[str, Tensor] | None = None,
    evaluation: str = "",
) -> None:
    """Write a bundle whole or not at all.

    Args:
        info: metadata that JSON can hold.
        feature_stats: statistics of the training images' features.
        evaluation: metrics and plots for the model card, in Markdown.

    Raises:
        UsageError: the folder exists, or the image spec or the class names do not fit the model.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    check_model_fits(model.config, spec, classes)
    parse_task(task)
    content = {
        "format": BUNDLE_FORMAT,
        "architecture": write_settings(model.config),
        "image": write_settings(spec),
        "task": task,
        "classes": list(classes),
        "info": dict(info),
    }
    parameters = sum(parameter.numel() for parameter in model.parameters())
    card = format_model_card(model.config, parameters, spec, task, classes, info, evaluation)
    with atomic.write_folder(Path(folder)) as inside:
        atomic.write_json(inside / CONFIG_FILE, content)
        atomic.write_json(inside / PREPROCESSOR_FILE, make_preprocessor_config(spec))
        atomic.write_text(inside / CARD_FILE, card)
        description = json.dumps({name: value for name, value in content.items() if name != "info"})
        metadata = {DESCRIPTION_KEY: description} if len(description) <= MAX_DESCRIPTION else {}
        safetensors_file.save_tensors(inside / WEIGHTS_FILE, model.state_dict(), {"format": "pt", **metadata})
        if feature_stats:
            safetensors_file.save_tensors(inside / FEATURE_STATS_FILE, feature_stats, {"format": "pt"})


def load_bundle(folder: Path, allow_nonfinite: bool = False) -> Bundle:
    """Open a bundle after comparing every file with its hash.

    Args:
        allow_nonfinite: note weights that are NaN or infinite in the audit, instead of refusing them.

    Raises:
        DamagedFileError: a file is missing, changed, or does not agree with the others.
    """
    folder = Path(folder)
    content = read_bundle_info(folder)
    check_model_size(content.architecture, str(folder / CONFIG_FILE))
    weights: dict[str, Tensor] = dict(safetensors_file.open_tensors(folder / WEIGHTS_FILE))
    if content.has_own_bank:
        weights[BANK_ROWS] = load_bank_rows(folder, content.decision)
    opened = build_bundle(content, weights, str(folder / WEIGHTS_FILE), allow_nonfinite)
    return replace(opened, feature_stats=load_feature_stats(folder))


def build_bundle(content: BundleInfo, weights: dict[str, Tensor], where: str, allow_nonfinite: bool = False) -> Bundle:
    """The model of a bundle from tensors under our own names; `weights` is emptied on the way.

    Args:
        where: the file, for messages.
        allow_nonfinite: as `load_bundle`.

    Raises:
        DamagedFileError: a tensor is missing, unknown, of another shape or not finite.
    """
    state = build_on_meta(content.architecture).state_dict()
    layout = replace(OWN_LAYOUTS[0], rules=tuple(NameRule(name, name) for name in state))
    values, audit = load_with_layout(weights, state, content.architecture, layout, where, allow_nonfinite)
    model = build_model(content.architecture, values)
    return Bundle(model=model, audit=audit, feature_stats={}, **vars(content))


def _describe_nothing(tensors: TensorDict, hints: LayoutHints) -> ViTConfig:
    raise AssertionError("tensors under our own names do not say their architecture; see `load.describe_own_weights`")


OWN_LAYOUTS = tuple(
    Layout(name="bundle", variant=variant, required_names=(name,), rules=(), describe=_describe_nothing)
    for variant, name in (("", "tokens.patches.weight"), ("t2t", "tokens.patches.project.weight"))
)
"""How tensors under our own names are recognised: those of bundles, and of a `state_dict` that a program has saved."""


def is_own_layout(layout: Layout) -> bool:
    """Whether a layout is that of our own names."""
    return layout.name == OWN_LAYOUTS[0].name


def read_description(path: Path) -> BundleInfo | None:
    """What a weights file says of its own model, as those of bundles do; without info. None if it says nothing.

    Raises:
        DamagedFileError: the description is invalid.
    """
    text = safetensors_file.read_metadata(path).get(DESCRIPTION_KEY) if path.suffix == ".safetensors" else None
    if text is None:
        return None
    where = f"The header of {path}"
    return parse_bundle_config({**strict_json.parse_json(text.encode(), where), "info": {}}, where)


def save_bank_rows(folder: Path, name: str, rows: Tensor) -> None:
    """Write the bank of a kept decision; it counts once `decision_versions.add_decision_file` has listed it.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    safetensors_file.save_tensors(bank_path(folder, name), {BANK_ROWS: rows}, {"format": "pt"})


def load_bank_rows(folder: Path, name: str) -> Tensor:
    """The patches of the bank of a kept decision, of a bundle whose manifest was verified.

    Raises:
        DamagedFileError: the file holds no such patches.
    """
    path = bank_path(folder, name)
    tensors = safetensors_file.load_tensors(path)
    if [*tensors] != [BANK_ROWS]:
        raise DamagedFileError(f"{path} must hold {BANK_ROWS}. Got {', '.join(tensors) or 'nothing'}.")
    return tensors[BANK_ROWS]


def load_feature_stats(folder: Path) -> Mapping[str, Tensor]:
    """Statistics of the training images' features in a bundle; empty if there are none."""
    path = Path(folder) / FEATURE_STATS_FILE
    return safetensors_file.load_tensors(path) if path.is_file() else {}
