"""Which model, which pictures and which software a page speaks of: hashes and versions, as the run folder has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from ..files.checksums import MANIFEST
from . import stored
from .facts import ReportFacts

WEIGHTS = "model.safetensors"


class Stamp(NamedTuple):
    """What is not known is empty."""

    models: tuple[str, ...]
    """SHA-256 of the weights, of each member of an ensemble."""
    data: str
    """Fingerprint of the source: its names, targets, groups and splits."""
    version: str
    """Of Vitrail, when the run was trained."""
    created: str


def stamp(folder: Path, known: ReportFacts) -> Stamp:
    """Read from a run folder.

    Raises:
        DamagedFileError: a file that is there and is not JSON.
    """
    data = stored.table(folder / "data.json") or {}
    return Stamp(
        models=_models(folder / "model" / MANIFEST),
        data=str(data.get("fingerprint", "")),
        version=_version(known),
        created=known.created,
    )


def _models(path: Path) -> tuple[str, ...]:
    files = (stored.table(path) or {}).get("files", {})
    names = sorted(name for name in files if name.rpartition("/")[2] == WEIGHTS)
    return tuple(str(files[name]["sha256"]) for name in names)


def _version(known: ReportFacts) -> str:
    words = next((line.text for line in known.environment if line.name == "versions"), "{}")
    try:
        versions = json.loads(words)
    except ValueError:
        return ""
    return str(versions.get("vitrail", "")) if isinstance(versions, dict) else ""
