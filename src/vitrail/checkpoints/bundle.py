"""The portable bundle: a folder with a trained model and all that a prediction needs, checked by its hashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config import read as read_settings
from ..config import write as write_settings
from ..errors import DamagedFileError, UsageError
from ..files import atomic, checksums, safetensors_file, strict_json
from ..model.config import ViTConfig
from ..model.vit import ViT
from ..spec import ImageSpec
from .audit import Audit
from .budget import check_budget
from .build import build, on_meta
from .card import card
from .folders import is_foreign
from .layouts import Layout, Name
from .preprocessor import preprocessor
from .rules import take

FORMAT = 1
"""Raised when a bundle of an older version can no longer be read as it is."""
CONFIG, WEIGHTS, PREPROCESSOR, CARD = "config.json", "model.safetensors", "preprocessor_config.json", "README.md"
FAMILIAR = "familiar.safetensors"
"""What the training pictures look like to the model, where a bundle knows it."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What a bundle holds."""

    model: ViT
    """In evaluation mode, on the CPU, in float32."""
    spec: ImageSpec
    """How a picture is brought to the model."""
    task: str
    """classes, labels or number."""
    classes: tuple[str, ...]
    """Names of the outputs, in order."""
    info: Mapping[str, Any]
    """What else the training noted, such as thresholds, the data's fingerprint, the attention path, the mirror."""
    audit: Audit
    """Every tensor of the weights file."""
    familiar: Mapping[str, Tensor]
    """What the training pictures look like to the model; empty where nobody has noted it."""


@dataclass(frozen=True, kw_only=True)
class About:
    """What a bundle says beside its weights; the fields of `Bundle`, and the shape of the model."""

    architecture: ViTConfig
    spec: ImageSpec
    task: str
    classes: tuple[str, ...]
    info: Mapping[str, Any]


def save(
    folder: Path,
    model: ViT,
    spec: ImageSpec,
    task: str,
    classes: tuple[str, ...],
    info: Mapping[str, object],
    familiar: Mapping[str, Tensor] | None = None,
    worth: str = "",
) -> None:
    """Write a bundle whole or not at all.

    Args:
        info: anything that JSON can hold.
        familiar: what the training pictures look like to the model.
        worth: what the model card says of figures and pictures, in Markdown.

    Raises:
        UsageError: the folder exists, or the picture description or the class names do not fit the model.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    _check_fits(model.config, spec, task, classes)
    content = {
        "format": FORMAT,
        "architecture": write_settings(model.config),
        "image": write_settings(spec),
        "task": task,
        "classes": list(classes),
        "info": dict(info),
    }
    parameters = sum(parameter.numel() for parameter in model.parameters())
    with atomic.write_folder(Path(folder)) as inside:
        atomic.write_json(inside / CONFIG, content)
        atomic.write_json(inside / PREPROCESSOR, preprocessor(spec))
        atomic.write_text(inside / CARD, card(model.config, parameters, spec, task, classes, info, worth))
        safetensors_file.save_tensors(inside / WEIGHTS, model.state_dict(), {"format": "pt"})
        if familiar:
            safetensors_file.save_tensors(inside / FAMILIAR, familiar, {"format": "pt"})


def load(folder: Path, allow_nonfinite: bool = False) -> Bundle:
    """Open a bundle after comparing every file with its hash.

    Args:
        allow_nonfinite: note weights that are NaN or infinite in the report, instead of refusing them.

    Raises:
        DamagedFileError: a file is missing, changed, or does not agree with the others.
    """
    folder = Path(folder)
    about = describe(folder)
    check_budget(about.architecture, str(folder / CONFIG))
    state = on_meta(about.architecture).state_dict()
    own_names = Layout(
        name="bundle",
        decisive=(),
        rules=tuple(Name(name, name) for name in state),
        describe=lambda tensors, told: about.architecture,
    )
    weights = dict(safetensors_file.open_tensors(folder / WEIGHTS))
    where = str(folder / WEIGHTS)
    values, audit = take(weights, state, about.architecture, own_names, where, allow_nonfinite)
    return Bundle(
        model=build(about.architecture, values),
        spec=about.spec,
        task=about.task,
        classes=about.classes,
        info=about.info,
        audit=audit,
        familiar=familiar_in(folder),
    )


def familiar_in(folder: Path) -> Mapping[str, Tensor]:
    """What the training pictures look like to a bundle's model; empty where nobody has noted it.

    Raises:
        DamagedFileError: the file is not in the safetensors format.
    """
    path = Path(folder) / FAMILIAR
    return safetensors_file.load_tensors(path) if path.is_file() else {}


def describe(folder: Path) -> About:
    """What a bundle says beside its weights, which are compared with their hash and not read.

    Raises:
        DamagedFileError: a file is missing, changed, or does not agree with the others.
    """
    folder = Path(folder)
    if not is_bundle(folder):
        inside = next(
            (child for child in sorted(folder.glob("*")) if is_bundle(child) or is_bundle(child / "model")), None
        )
        hint = "Check the path." if inside is None else f"Did you mean {inside}?"
        raise DamagedFileError(f"{folder} holds no model: that would be {CONFIG} and {WEIGHTS}. {hint}")
    checksums.verify_manifest(folder)
    content = strict_json.read_json(folder / CONFIG)
    architecture, spec = _described(content, folder / CONFIG)
    if differing := _differing(preprocessor(spec), strict_json.read_json(folder / PREPROCESSOR)):
        raise DamagedFileError(
            f"{folder / PREPROCESSOR} does not agree with {CONFIG} about {', '.join(differing)}. Use another copy."
        )
    return About(
        architecture=architecture,
        spec=spec,
        task=content["task"],
        classes=tuple(content["classes"]),
        info=content["info"],
    )


def is_bundle(path: Path) -> bool:
    """Whether a path is a folder that holds the two files of every bundle, and not one of another library."""
    path = Path(path)
    return (path / CONFIG).is_file() and (path / WEIGHTS).is_file() and not is_foreign(path)


def _check_fits(config: ViTConfig, spec: ImageSpec, task: str, classes: tuple[str, ...]) -> None:
    if (spec.size, spec.channels) != (config.image_size, config.channels):
        raise UsageError(
            f"The pictures must be what the model reads: {config.image_size} pixels and {config.channels} channels. "
            f"Got {spec.size} and {spec.channels}."
        )
    if task not in ("classes", "labels", "number"):
        raise UsageError(f"The task must be classes, labels or number. Got {task!r}.")
    if len(classes) != config.outputs:
        raise UsageError(f"Every one of the model's {config.outputs} outputs needs a name. Got {len(classes)} names.")


def _described(content: Mapping[str, Any], path: Path) -> tuple[ViTConfig, ImageSpec]:
    """The two descriptions in config.json; what else it must hold is checked too."""
    kinds = {"format": int, "architecture": dict, "image": dict, "task": str, "classes": list, "info": dict}
    for name, kind in kinds.items():
        if type(content.get(name)) is not kind:
            raise DamagedFileError(f"{path} must hold {name} ({kind.__name__}). Got {content.get(name)!r}.")
    if content["format"] > FORMAT:
        raise DamagedFileError(
            f"{path} is of bundle format {content['format']}, expected at most {FORMAT}. Install a newer vitrail."
        )
    try:
        architecture = read_settings(ViTConfig, content["architecture"], f"{path}, architecture")
        spec = read_settings(ImageSpec, content["image"], f"{path}, image")
        _check_fits(architecture, spec, content["task"], tuple(content["classes"]))
    except UsageError as error:
        raise DamagedFileError(str(error)) from error
    return architecture, spec


def _differing(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    return [name for name, value in expected.items() if found.get(name) != value]
