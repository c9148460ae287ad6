"""The portable bundle: a folder with a trained model and all that a prediction needs, checked by its hashes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config import read as read_settings
from ..config import write as write_settings
from ..errors import DamagedFileError, UsageError
from ..files import atomic, checksums, hub, safetensors_file, strict_json
from ..model.config import ViTConfig
from ..model.vit import ViT
from ..spec import ImageSpec
from . import weight_files
from .adapt import build_model, build_on_meta
from .image_spec import make_preprocessor_config
from .layouts import Layout, NameRule
from .model_card import format_model_card
from .rules import load_with_layout
from .validate import Audit, check_model_size
from .weight_files import is_foreign_folder

BUNDLE_FORMAT = 1
"""Raised when a bundle of an older version can no longer be read as it is."""
CONFIG_FILE, WEIGHTS_FILE, PREPROCESSOR_FILE, CARD_FILE = (
    "config.json",
    "model.safetensors",
    "preprocessor_config.json",
    "README.md",
)
FEATURE_STATS_FILE = "familiar.safetensors"
"""What the training images look like to the model, where a bundle knows it."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What a bundle holds."""

    model: ViT
    """In evaluation mode, on the CPU, in float32."""
    spec: ImageSpec
    """How an image is brought to the model."""
    task: str
    """classes, labels or number."""
    classes: tuple[str, ...]
    """Names of the outputs, in order."""
    info: Mapping[str, Any]
    """What else the training noted, such as thresholds, the data's fingerprint, the attention path, the mirror."""
    audit: Audit
    """Every tensor of the weights file."""
    feature_stats: Mapping[str, Tensor]
    """What the training images look like to the model; empty where nobody has noted it."""


@dataclass(frozen=True, kw_only=True)
class BundleInfo:
    """What a bundle says beside its weights; the fields of `Bundle`, and the shape of the model."""

    architecture: ViTConfig
    spec: ImageSpec
    task: str
    classes: tuple[str, ...]
    info: Mapping[str, Any]


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
        info: anything that JSON can hold.
        feature_stats: what the training images look like to the model.
        evaluation: what the model card says of figures and images, in Markdown.

    Raises:
        UsageError: the folder exists, or the image description or the class names do not fit the model.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    _check_bundle_fits(model.config, spec, task, classes)
    content = {
        "format": BUNDLE_FORMAT,
        "architecture": write_settings(model.config),
        "image": write_settings(spec),
        "task": task,
        "classes": list(classes),
        "info": dict(info),
    }
    parameters = sum(parameter.numel() for parameter in model.parameters())
    with atomic.write_folder(Path(folder)) as inside:
        atomic.write_json(inside / CONFIG_FILE, content)
        atomic.write_json(inside / PREPROCESSOR_FILE, make_preprocessor_config(spec))
        atomic.write_text(
            inside / CARD_FILE, format_model_card(model.config, parameters, spec, task, classes, info, evaluation)
        )
        safetensors_file.save_tensors(inside / WEIGHTS_FILE, model.state_dict(), {"format": "pt"})
        if feature_stats:
            safetensors_file.save_tensors(inside / FEATURE_STATS_FILE, feature_stats, {"format": "pt"})


def load_bundle(folder: Path, allow_nonfinite: bool = False) -> Bundle:
    """Open a bundle after comparing every file with its hash.

    Args:
        allow_nonfinite: note weights that are NaN or infinite in the report, instead of refusing them.

    Raises:
        DamagedFileError: a file is missing, changed, or does not agree with the others.
    """
    folder = Path(folder)
    about = read_bundle_info(folder)
    check_model_size(about.architecture, str(folder / CONFIG_FILE))
    state = build_on_meta(about.architecture).state_dict()
    own_names = Layout(
        name="bundle",
        required_names=(),
        rules=tuple(NameRule(name, name) for name in state),
        describe=lambda tensors, told: about.architecture,
    )
    weights = dict(safetensors_file.open_tensors(folder / WEIGHTS_FILE))
    where = str(folder / WEIGHTS_FILE)
    values, audit = load_with_layout(weights, state, about.architecture, own_names, where, allow_nonfinite)
    return Bundle(
        model=build_model(about.architecture, values),
        spec=about.spec,
        task=about.task,
        classes=about.classes,
        info=about.info,
        audit=audit,
        feature_stats=load_feature_stats(folder),
    )


def load_feature_stats(folder: Path) -> Mapping[str, Tensor]:
    """What the training images look like to a bundle's model; empty where nobody has noted it.

    Raises:
        DamagedFileError: the file is not in the safetensors format.
    """
    path = Path(folder) / FEATURE_STATS_FILE
    return safetensors_file.load_tensors(path) if path.is_file() else {}


def read_bundle_info(folder: Path) -> BundleInfo:
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
        raise DamagedFileError(f"{folder} holds no model: that would be {CONFIG_FILE} and {WEIGHTS_FILE}. {hint}")
    checksums.verify_manifest(folder)
    content = strict_json.read_json(folder / CONFIG_FILE)
    architecture, spec = _parse_descriptions(content, folder / CONFIG_FILE)
    if differing := _find_differences(
        make_preprocessor_config(spec), strict_json.read_json(folder / PREPROCESSOR_FILE)
    ):
        raise DamagedFileError(
            f"{folder / PREPROCESSOR_FILE} does not agree with {CONFIG_FILE} about {', '.join(differing)}. Use "
            f"another copy."
        )
    return BundleInfo(
        architecture=architecture,
        spec=spec,
        task=content["task"],
        classes=tuple(content["classes"]),
        info=content["info"],
    )


def is_bundle(path: Path) -> bool:
    """Whether a path is a folder that holds the two files of every bundle, and not one of another library."""
    path = Path(path)
    return (path / CONFIG_FILE).is_file() and (path / WEIGHTS_FILE).is_file() and not is_foreign_folder(path)


def _check_bundle_fits(config: ViTConfig, spec: ImageSpec, task: str, classes: tuple[str, ...]) -> None:
    if (spec.size, spec.channels) != (config.image_size, config.channels):
        raise UsageError(
            f"The pictures must be what the model reads: {config.image_size} pixels and {config.channels} channels. "
            f"Got {spec.size} and {spec.channels}."
        )
    if task not in ("classes", "labels", "number"):
        raise UsageError(f"The task must be classes, labels or number. Got {task!r}.")
    if len(classes) != config.outputs:
        raise UsageError(f"Every one of the model's {config.outputs} outputs needs a name. Got {len(classes)} names.")


def _parse_descriptions(content: Mapping[str, Any], path: Path) -> tuple[ViTConfig, ImageSpec]:
    """The two descriptions in config.json; what else it must hold is checked too."""
    kinds = {"format": int, "architecture": dict, "image": dict, "task": str, "classes": list, "info": dict}
    for name, kind in kinds.items():
        if type(content.get(name)) is not kind:
            raise DamagedFileError(f"{path} must hold {name} ({kind.__name__}). Got {content.get(name)!r}.")
    if content["format"] > BUNDLE_FORMAT:
        raise DamagedFileError(
            f"{path} is of bundle format {content['format']}, expected at most {BUNDLE_FORMAT}. Install a newer "
            f"vitrail."
        )
    try:
        architecture = read_settings(ViTConfig, content["architecture"], f"{path}, architecture")
        spec = read_settings(ImageSpec, content["image"], f"{path}, image")
        _check_bundle_fits(architecture, spec, content["task"], tuple(content["classes"]))
    except UsageError as error:
        raise DamagedFileError(str(error)) from error
    return architecture, spec


def _find_differences(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    return [name for name, value in expected.items() if actual.get(name) != value]


# Several bundles as one model: a folder that holds them, whose answers are averaged.

ENSEMBLE_FILE = "ensemble.json"
ENSEMBLE_FORMAT = 1
"""Raised when such a folder of an older version can no longer be read as it is."""


def save_ensemble(folder: Path, bundles: Sequence[Path]) -> None:
    """Copy bundles into one folder, whole or not at all, as member-0, member-1, ...

    Raises:
        UsageError: the folder exists, or there is nothing to copy.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    if not bundles:
        raise UsageError("An ensemble needs at least one bundle. Got none.")
    names = [f"member-{number}" for number in range(len(bundles))]
    with atomic.write_folder(Path(folder)) as inside:
        for name, bundle in zip(names, bundles, strict=True):
            shutil.copytree(bundle, inside / name)
        atomic.write_json(inside / ENSEMBLE_FILE, {"format": ENSEMBLE_FORMAT, "members": names})


def is_ensemble(path: Path) -> bool:
    """Whether a path is such a folder."""
    return (Path(path) / ENSEMBLE_FILE).is_file()


def find_ensemble(path: Path) -> Path | None:
    """The ensemble of a folder: itself, or the `model/` of a run of several folds."""
    return next((folder for folder in (Path(path), Path(path) / "model") if is_ensemble(folder)), None)


def list_members(folder: Path) -> tuple[Path, ...]:
    """Its bundles, after every file has been compared with its hash.

    Raises:
        DamagedFileError: a file is missing or changed, or the list of members is none.
    """
    folder = Path(folder)
    checksums.verify_manifest(folder)
    told = strict_json.read_json(folder / ENSEMBLE_FILE)
    names = told.get("members") if isinstance(told, dict) else None
    if not isinstance(names, list) or not names or not all((folder / str(name)).is_dir() for name in names):
        raise DamagedFileError(
            f"{folder / ENSEMBLE_FILE} must list the folders of its members. Got {told!r}. Use another copy."
        )
    if told.get("format") != ENSEMBLE_FORMAT:
        raise DamagedFileError(
            f"{folder / ENSEMBLE_FILE} is of format {told.get('format')!r}, expected {ENSEMBLE_FORMAT}. Install a "
            f"newer vitrail."
        )
    return tuple(folder / str(name) for name in names)


# Where a model lies on this machine: a path, or a name on the Hub after its files have come.


@dataclass(frozen=True)
class ResolvedModel:
    """A MODEL on this machine."""

    path: Path
    licence: str = ""
    """As its page on the Hub states it."""
    repository: str = ""
    """OWNER/NAME on the Hub."""
    revision: str = ""
    """The commit of that repository."""
    notes: tuple[str, ...] = ()


def resolve_model(name: str) -> ResolvedModel | None:
    """Where a MODEL lies on this machine, for a name on the Hub after its files have come; None for another name.

    Raises:
        UsageError, ResourceError, DamagedFileError: see `files.hub.fetch`.
    """
    path = Path(name)
    if path.exists() or not hub.is_hub_name(name):
        return ResolvedModel(path) if path.exists() else None
    got = hub.download_model(name)
    whole = is_bundle(got.folder) or weight_files.is_foreign_folder(got.folder)
    if not whole and len(got.weights) > 1:
        raise UsageError(
            f"{name} holds {len(got.weights)} weights files and no config.json that chooses one: "
            f"{', '.join(got.weights[:4])}. They lie in {got.folder}; give the path of one."
        )
    return ResolvedModel(
        got.folder if whole else got.folder / got.weights[0],
        got.licence,
        hub.parse_hub_name(name).repository,
        got.revision,
        (*got.notes, f"{name} was read at revision {got.revision}"),
    )


def find_bundle(path: Path) -> Path | None:
    """The bundle of a folder: itself, or the `model/` of a run folder; None where others have written the folder.

    Raises:
        UsageError: a run that has not ended, with the command that ends it.
    """
    if not path.is_dir():
        return None
    for folder in (path, path / "model"):
        if is_bundle(folder):
            return folder
    if (path / "plan.toml").is_file():
        raise UsageError(f"The run {path} has no model yet. Finish it with: vitrail train --resume {path}")
    return None
