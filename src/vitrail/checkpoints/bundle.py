"""The bundle: a portable folder with a trained model and all that a prediction needs, verified by hashes.

Here is what needs no torch: everything in it but its weights (`bundle_weights.py`), ensembles (a folder of several
bundles), and how a MODEL argument is resolved to a path on this machine.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..config import read as read_settings
from ..data.source import parse_task
from ..errors import DamagedFileError, UsageError
from ..files import atomic, checksums, hub, strict_json
from ..formatting import format_count
from ..model.config import ViTConfig
from ..spec import ImageSpec
from .decision_versions import (
    BANK_KEY,
    TRAINED,
    check_is_kept,
    decision_path,
    find_decision_in_use,
    read_decision_file,
)
from .foreign_folder import describe_unread_folder, is_foreign_folder
from .image_spec import check_model_fits, make_preprocessor_config

BUNDLE_FORMAT = 1
"""Version of the format; increased when older bundles can no longer be read unchanged."""
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
PREPROCESSOR_FILE, CARD_FILE = "preprocessor_config.json", "README.md"
DECISIONS_KEY = "decisions"
"""The key of the decisions in the metadata: those in use, when a bundle is read."""
FEATURE_STATS_FILE = "familiar.safetensors"
"""Statistics of the training images' features, from which unfamiliar images are detected; optional."""
BANK_ROWS = "head.bank.rows"
"""The patches of a bank among the tensors of an anomaly model."""
PIXEL_SIZE_KEY = "pixel_size"
"""The key of `data.pixel_size` in the metadata of a segmentation model, where it was given."""
ENSEMBLE_FILE = "ensemble.json"
ENSEMBLE_FORMAT = 1
"""Version of the format; increased when older ensembles can no longer be read unchanged."""


@dataclass(frozen=True, kw_only=True)
class BundleInfo:
    """The content of a bundle without its weights."""

    architecture: ViTConfig
    spec: ImageSpec
    """Preprocessing of images for the model."""
    task: str
    """classification, multilabel, regression, anomaly or segmentation."""
    classes: tuple[str, ...]
    """Names of the outputs, in order."""
    info: Mapping[str, Any]
    """Metadata of the training, such as the data's fingerprint, the attention path, flips; and the decisions in use."""
    decision: str = TRAINED
    """The name of the decision in use."""
    has_own_bank: bool = False
    """Whether that has another bank than the weights file."""
    trained_info: Mapping[str, Any] = field(default_factory=dict)
    """The metadata with the training's own decisions."""
    listed: frozenset[str] = frozenset()
    """The files of the manifest, by name."""


def read_bundle_info(folder: Path, check_weights: bool = True, by: str = "") -> BundleInfo:
    """Everything in a bundle but its weights, which are not loaded.

    Args:
        check_weights: compare them with their hash, which takes a second for 2 GB, instead of with their size alone.
        by: a decision to read instead of the one in use, which may then be damaged, as may other kept ones; `listed`
            is without those that are.

    Raises:
        DamagedFileError: a file is missing, changed, or does not agree with the others.
        UsageError: no decision `by` is kept.
    """
    folder = Path(folder)
    if not is_bundle(folder):
        children = sorted(folder.glob("*"))
        inside = next((child for child in children if is_bundle(child) or is_bundle(child / "model")), None)
        hint = describe_unread_folder(folder) or ("Check the path." if inside is None else f"Did you mean {inside}?")
        raise DamagedFileError(f"{folder} holds no model: that would be {CONFIG_FILE} and {WEIGHTS_FILE}. {hint}")
    damaged = checksums.find_damaged_additions(folder) if by else ()
    ignored = [name for name in damaged if folder / name != decision_path(folder, by)]
    listed = checksums.verify_manifest(folder, () if check_weights else (WEIGHTS_FILE, FEATURE_STATS_FILE), ignored)
    path = folder / CONFIG_FILE
    content = parse_bundle_config(strict_json.read_json(path), str(path))
    stored = strict_json.read_json(folder / PREPROCESSOR_FILE)
    expected = make_preprocessor_config(content.spec)
    if differing := [name for name, value in expected.items() if stored.get(name) != value]:
        raise DamagedFileError(
            f"{folder / PREPROCESSOR_FILE} does not agree with {CONFIG_FILE} about {', '.join(differing)}. "
            "Use another copy."
        )
    decision = check_is_kept(folder, by, listed) if by else find_decision_in_use(folder, listed)
    info, architecture, size = content.info, content.architecture, None
    if decision != TRAINED:
        kept = read_decision_file(folder, decision, content.task, content.classes)
        info = {**info, DECISIONS_KEY: {**kept["decisions"], "version": decision}}
        if (size := kept.get(BANK_KEY)) is not None:
            architecture = _resize_bank(architecture, size, str(decision_path(folder, decision)))
    return replace(
        content, architecture=architecture, info=info, decision=decision, has_own_bank=size is not None, listed=listed
    )


def _resize_bank(architecture: ViTConfig, size: object, where: str) -> ViTConfig:
    """The architecture with a bank of another size."""
    if architecture.head != "bank" or type(size) is not int or size < 1:
        raise DamagedFileError(f"{where}: {BANK_KEY} must be a number of patches of an anomaly model. Got {size!r}.")
    return replace(architecture, bank_size=size)


def parse_bundle_config(content: Mapping[str, Any], where: str) -> BundleInfo:
    """The content of a `config.json`; `where` begins every message."""
    kinds = {"format": int, "architecture": dict, "image": dict, "task": str, "classes": list, "info": dict}
    for name, kind in kinds.items():
        if type(content.get(name)) is not kind:
            raise DamagedFileError(f"{where} must hold {name} ({kind.__name__}). Got {content.get(name)!r}.")
    if (version := content["format"]) > BUNDLE_FORMAT:
        raise DamagedFileError(
            f"{where} is of bundle format {version}, expected at most {BUNDLE_FORMAT}. Install a newer vitrail."
        )
    try:
        architecture = read_settings(ViTConfig, content["architecture"], f"{where}, architecture")
        spec = read_settings(ImageSpec, content["image"], f"{where}, image")
        check_model_fits(architecture, spec, tuple(content["classes"]))
        parse_task(content["task"])
    except UsageError as error:
        raise DamagedFileError(str(error)) from error
    return BundleInfo(
        architecture=architecture,
        spec=spec,
        task=content["task"],
        classes=tuple(content["classes"]),
        info=content["info"],
        trained_info=content["info"],
    )


def read_pixel_size(info: Mapping[str, Any], where: str) -> float:
    """`data.pixel_size` from the metadata; 0 where it was not given.

    Raises:
        DamagedFileError: no width above 0.
    """
    if PIXEL_SIZE_KEY not in info:
        return 0.0
    if type(size := info[PIXEL_SIZE_KEY]) not in (int, float) or not 0 < size < math.inf:
        raise DamagedFileError(f"{where}: {PIXEL_SIZE_KEY} must be a width above 0. Got {size!r}.")
    return float(size)


def is_bundle(path: Path) -> bool:
    """Whether a path is a folder with the two files of every bundle, and not a folder of another library."""
    path = Path(path)
    return (path / CONFIG_FILE).is_file() and (path / WEIGHTS_FILE).is_file() and not is_foreign_folder(path)


# -- Ensemble: a folder of several bundles whose predictions are averaged


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
            atomic.copy_folder(bundle, inside / name)
        atomic.write_json(inside / ENSEMBLE_FILE, {"format": ENSEMBLE_FORMAT, "members": names})


def find_ensemble(path: Path) -> Path | None:
    """The ensemble of a folder: the folder itself, or the `model/` of a run of several folds."""
    return next((folder for folder in (Path(path), Path(path) / "model") if (folder / ENSEMBLE_FILE).is_file()), None)


def list_members(folder: Path) -> tuple[Path, ...]:
    """The bundles of an ensemble, after comparing every file with its hash.

    Raises:
        DamagedFileError: a file is missing or changed, or the list of members is invalid.
    """
    folder = Path(folder)
    checksums.verify_manifest(folder)
    content = strict_json.read_json(folder / ENSEMBLE_FILE)
    names = content.get("members") if isinstance(content, dict) else None
    if not isinstance(names, list) or not names or not all((folder / str(name)).is_dir() for name in names):
        raise DamagedFileError(
            f"{folder / ENSEMBLE_FILE} must list the folders of its members. Got {content!r}. Use another copy."
        )
    if content.get("format") != ENSEMBLE_FORMAT:
        raise DamagedFileError(
            f"{folder / ENSEMBLE_FILE} is of format {content.get('format')!r}, expected {ENSEMBLE_FORMAT}. "
            "Install a newer vitrail."
        )
    return tuple(folder / str(name) for name in names)


# -- MODEL arguments: a path, or a name on the Hub whose files are downloaded


@dataclass(frozen=True)
class ResolvedModel:
    """Where a MODEL is on this machine."""

    path: Path
    licence: str = ""
    """Licence as stated on its page on the Hub."""
    repository: str = ""
    """OWNER/NAME on the Hub."""
    revision: str = ""
    """The commit of that repository."""
    notes: tuple[str, ...] = ()


def resolve_model(name: str) -> ResolvedModel | None:
    """The path of a MODEL, downloaded first if it is a name on the Hub; None for any other name.

    The weights file of a bundle stands for the bundle, which has more to say of its model.

    Raises:
        UsageError, ResourceError, DamagedFileError: see `files.hub.download_model`.
    """
    path = folder_of_weights(Path(name))
    if path.exists() or not hub.is_hub_name(name):
        return ResolvedModel(path) if path.exists() else None
    download = hub.download_model(name)
    whole = is_bundle(download.folder) or is_foreign_folder(download.folder)
    if not whole and len(download.weights) > 1:
        raise UsageError(
            f"{name} holds {format_count(len(download.weights), 'weights file')} and no config.json that chooses one: "
            f"{', '.join(download.weights[:4])}. They lie in {download.folder}; give the path of one."
        )
    return ResolvedModel(
        download.folder if whole else download.folder / download.weights[0],
        download.licence,
        hub.parse_hub_name(name).repository,
        download.revision,
        (*download.notes, f"{name} was read at revision {download.revision}"),
    )


def folder_of_weights(path: Path) -> Path:
    """The bundle whose weights file this is; any other path unchanged."""
    return path.parent if path.name == WEIGHTS_FILE and path.is_file() and is_bundle(path.parent) else path


def find_bundle(path: Path) -> Path | None:
    """The bundle of a folder: the folder itself, or the `model/` of a run folder; None if there is none.

    Raises:
        UsageError: a run without one; the message gives the command that finishes it or writes the model again.
    """
    if not path.is_dir():
        return None
    for folder in (path, path / "model"):
        if is_bundle(folder):
            return folder
    if (path / "plan.toml").is_file():
        again = f"vitrail train --resume {shlex.quote(str(path))}"
        done = (path / "report.html").is_file()
        state = "no model any more. Have it written again" if done else "no model yet. Finish it"
        raise UsageError(f"The run {path} has {state} with: {again}")
    return None
