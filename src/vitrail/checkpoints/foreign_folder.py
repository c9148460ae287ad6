"""Folders of other libraries: what their config.json and preprocessor_config.json say. No weights, so no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DamagedFileError
from ..files import strict_json
from ..files.checksums import MANIFEST

CONFIG_FILES = ("config.json", "open_clip_config.json")
WEIGHT_FILES = (
    "model.safetensors",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
)
"""Weights in one file, the safer format first."""
PREPROCESSOR_FILE = "preprocessor_config.json"
WRITTEN_BY_KEY = "written_by"
"""Field of a config.json in which Vitrail names itself."""


@dataclass(frozen=True, kw_only=True)
class ForeignFolder:
    """The descriptions beside the weights in a folder of another library."""

    path: Path
    config: dict[str, Any]
    """config.json or open_clip_config.json."""
    preprocessor: dict[str, Any]
    """preprocessor_config.json; empty if there is none."""
    notes: tuple[str, ...] = ()
    """Which parts were ignored."""
    fault: str = ""
    """What makes config.json unusable, if the weights are those of a plain ViT."""


def is_foreign_folder(path: Path) -> bool:
    """Whether a folder is one of transformers, timm or OpenCLIP, by its config.json.

    Raises:
        DamagedFileError: config.json cannot be trusted, and there is no manifest of a bundle, whose check says why.
    """
    path = Path(path)
    if not any((path / name).is_file() for name in CONFIG_FILES):
        return False
    try:
        content = _read_config(path).fields
    except DamagedFileError:
        if (path / MANIFEST).is_file():
            return False
        raise
    named = isinstance(content.get("model_type"), str) or isinstance(content.get("architecture"), str)
    return named or "model_cfg" in content


def make_origin_fields(info: Mapping[str, object]) -> dict[str, str]:
    """Fields that Vitrail adds to a config.json of another library: its name, licence and repository of the weights.

    Args:
        info: metadata as in a bundle; licence and repository are taken from it, if they are there.
    """
    origin = {name: str(info[name]) for name in ("licence", "repository") if info.get(name)}
    return {WRITTEN_BY_KEY: "vitrail", **origin}


def is_written_by_vitrail(config: Mapping[str, Any]) -> bool:
    """Whether Vitrail wrote a config.json; the family's card then does not give the weights' origin."""
    return config.get(WRITTEN_BY_KEY) == "vitrail"


def read_foreign_folder(path: Path) -> ForeignFolder:
    """The descriptions in a folder of another library.

    Raises:
        DamagedFileError: config.json is missing or not JSON text.
    """
    config, processor_path = _read_config(path), path / PREPROCESSOR_FILE
    preprocessor = strict_json.read_json(processor_path) if processor_path.is_file() else {}
    return ForeignFolder(
        path=path, config=config.fields, preprocessor=preprocessor, notes=config.notes, fault=config.fault
    )


def describe_unread_folder(path: Path) -> str:
    """What a folder without a model holds instead, and what to do with it; empty if it is not known."""
    from ..files.pickles import DEEPSPEED_ADVICE  # and torch with it, which a folder with a model does not need

    if (path / "zero_to_fp32.py").is_file() or any(path.glob("*_optim_states.pt")):
        return DEEPSPEED_ADVICE
    if any(path.glob("*.distcp")):
        return (
            "It is a sharded checkpoint of torch.distributed: python -m torch.distributed.checkpoint.format_utils "
            "dcp_to_torch FOLDER OUT.pt makes one file of it."
        )
    if (path / "adapter_config.json").is_file():
        return "It holds LoRA adapters alone: merge them into their model first, model.merge_and_unload()."
    if weights := next((path / name for name in WEIGHT_FILES if (path / name).is_file()), None):
        return f"Without a config.json give the weights file itself: {weights}."
    return ""


def _read_config(path: Path) -> strict_json.ForeignConfig:
    for name in CONFIG_FILES:
        if (path / name).is_file():
            return strict_json.read_foreign_config(path / name)
    raise DamagedFileError(f"{path} has no {CONFIG_FILES[0]}. Give the weights file itself, or the whole folder.")
