"""Where a model lies on this machine: a path, or a name on the Hub after its files have come."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..files import hub
from . import bundle, folders


@dataclass(frozen=True)
class Located:
    """A MODEL on this machine."""

    path: Path
    licence: str = ""
    """As its page on the Hub states it."""
    repository: str = ""
    """OWNER/NAME on the Hub."""
    revision: str = ""
    """The commit of that repository."""
    notes: tuple[str, ...] = ()


def located(given: str) -> Located | None:
    """Where a MODEL lies on this machine, for a name on the Hub after its files have come; None for another name.

    Raises:
        UsageError, ResourceError, DamagedFileError: see `files.hub.fetch`.
    """
    path = Path(given)
    if path.exists() or not hub.is_hub_name(given):
        return Located(path) if path.exists() else None
    got = hub.download_model(given)
    whole = bundle.is_bundle(got.folder) or folders.is_foreign(got.folder)
    if not whole and len(got.weights) > 1:
        raise UsageError(
            f"{given} holds {len(got.weights)} weights files and no config.json that chooses one: "
            f"{', '.join(got.weights[:4])}. They lie in {got.folder}; give the path of one."
        )
    return Located(
        got.folder if whole else got.folder / got.weights[0],
        got.licence,
        hub.parse_hub_name(given).repository,
        got.revision,
        (*got.notes, f"{given} was read at revision {got.revision}"),
    )


def bundle_in(path: Path) -> Path | None:
    """The bundle of a folder: itself, or the `model/` of a run folder; None where others have written the folder.

    Raises:
        UsageError: a run that has not ended, with the command that ends it.
    """
    if not path.is_dir():
        return None
    for folder in (path, path / "model"):
        if bundle.is_bundle(folder):
            return folder
    if (path / "plan.toml").is_file():
        raise UsageError(f"The run {path} has no model yet. Finish it with: vitrail train --resume {path}")
    return None
