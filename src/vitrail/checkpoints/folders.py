"""Folders that other libraries write: config.json and the weights beside it, in one file or in several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import DamagedFileError, UsageError
from ..files import strict_json
from ..files.checksums import MANIFEST
from .containers import Content, open_file

CONFIGS = ("config.json", "open_clip_config.json")
WEIGHTS = (
    "model.safetensors",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
)
"""Weights in one file, the safer format first."""
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
"""Lists of which tensor lies in which of several files."""
PREPROCESSOR = "preprocessor_config.json"
WRITTEN_BY = "written_by"
"""Field of a config.json in which Vitrail names itself."""


@dataclass(frozen=True, kw_only=True)
class Folder:
    """What stands beside the weights."""

    path: Path
    config: dict[str, Any]
    """Its config.json (or open_clip_config.json)."""
    preprocessor: dict[str, Any]
    """Its preprocessor_config.json; empty if there is none."""
    notes: tuple[str, ...] = ()
    """What of it was ignored."""


def is_foreign(path: Path) -> bool:
    """Whether a folder is one of transformers, timm or OpenCLIP, by what its config.json says.

    Raises:
        DamagedFileError: config.json cannot be trusted, and no manifest of a bundle is there to say why.
    """
    path = Path(path)
    if not any((path / name).is_file() for name in CONFIGS):
        return False
    try:
        content = _config(path).fields
    except DamagedFileError:
        if (path / MANIFEST).is_file():
            return False
        raise
    return (
        isinstance(content.get("model_type"), str)
        or isinstance(content.get("architecture"), str)
        or "model_cfg" in content
    )


def signed(info: Mapping[str, object]) -> dict[str, str]:
    """What Vitrail adds to a config.json that it writes for another library: its name, and where the weights are from.

    Args:
        info: what a bundle keeps; licence and repository are taken from it, where they are known.
    """
    origin = {name: str(info[name]) for name in ("licence", "repository") if info.get(name)}
    return {WRITTEN_BY: "vitrail", **origin}


def is_ours(config: Mapping[str, Any]) -> bool:
    """Whether Vitrail wrote a config.json, so that the card of the family says nothing of the weights' origin."""
    return config.get(WRITTEN_BY) == "vitrail"


def describe(path: Path) -> Folder:
    """What stands beside the weights of a folder.

    Raises:
        DamagedFileError: config.json is missing or not JSON text.
    """
    beside = path / PREPROCESSOR
    config = _config(path)
    preprocessor = strict_json.read_json(beside) if beside.is_file() else {}
    return Folder(path=path, config=config.fields, preprocessor=preprocessor, notes=config.notes)


def beside(path: Path) -> Folder:
    """What stands beside a weights file that has the name of one in such a folder; nothing beside any other."""
    if path.name in WEIGHTS and is_foreign(path.parent):
        return describe(path.parent)
    return Folder(path=path, config={}, preprocessor={})


def open_weights(path: Path, match: str | None = None, network: str | None = None) -> Content:
    """Every tensor of a folder.

    Args:
        match, network: as in `containers.open_file`.

    Raises:
        DamagedFileError: there are no weights, or the files do not hold what their index lists.
        UsageError: there is no such network.
    """
    for name in WEIGHTS:
        if (path / name).is_file():
            return open_file(path / name, match, network)
    for name in INDEXES:
        if (path / name).is_file():
            if network is not None:
                raise UsageError(f"{path} holds one model, not several networks. Leave network={network!r} out.")
            return _sharded(path / name)
    raise DamagedFileError(f"{path} holds no weights. It must hold one of {', '.join((*WEIGHTS, *INDEXES))}.")


def _config(path: Path) -> strict_json.ForeignConfig:
    for name in CONFIGS:
        if (path / name).is_file():
            return strict_json.read_foreign_config(path / name)
    raise DamagedFileError(f"{path} has no {CONFIGS[0]}. Give the weights file itself, or the whole folder.")


def _sharded(index: Path) -> Content:
    """The tensors of several files, each of which must hold exactly what the index says."""
    listed = strict_json.read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(file, str) for file in listed.values()):
        raise DamagedFileError(f"{index} must hold weight_map, the file of every tensor. Use another copy.")
    found: dict[str, Tensor] = {}
    notes: dict[str, None] = {}
    for file in dict.fromkeys(listed.values()):
        if Path(file).name != file:
            raise DamagedFileError(f"{index} names the file {file!r}, which does not lie beside it. Use another copy.")
        opened = open_file(index.parent / file)
        expected = {name for name, place in listed.items() if place == file}
        if differing := sorted(expected ^ opened.tensors.keys()):
            raise DamagedFileError(
                f"{index.parent / file} does not hold what {index.name} lists: {', '.join(differing[:4])}. "
                "Some of the files are of another version; copy the folder again."
            )
        found.update(opened.tensors)
        notes.update(dict.fromkeys(opened.notes))
    return Content(tensors=found, notes=list(notes))
