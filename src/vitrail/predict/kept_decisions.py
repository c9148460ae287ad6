"""Decisions of a bundle by name: the training's own and those that were kept after it, read again when they change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints import bundle, decision_versions
from ..checkpoints.bundle import BundleInfo
from ..checkpoints.decision_versions import BANK_KEY, TRAINED
from ..data.source import parse_task
from ..errors import DamagedFileError
from ..evaluate.decisions import Decisions, read_decisions
from ..files import checksums
from ..files.checksums import MANIFEST

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class KeptDecisions:
    """The decisions that a model may answer by."""

    in_use: str = TRAINED
    by_name: Mapping[str, Decisions]
    """The training's own first, then the kept ones, sorted."""
    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the file of each kept one says: request, author, time, figures."""
    folder: Path | None = None
    """The bundle; None where there are no others."""

    @property
    def current(self) -> Decisions:
        """The decision in use."""
        return self.by_name[self.in_use]

    def load_bank(self, name: str) -> Tensor:
        """The bank by which a decision of an anomaly model answers.

        Raises:
            DamagedFileError: its file is damaged.
        """
        from ..checkpoints import bundle_weights
        from ..files import safetensors_file

        assert self.folder is not None
        if BANK_KEY in self.records.get(name, {}):
            return bundle_weights.load_bank_rows(self.folder, name)
        return safetensors_file.open_tensors(self.folder / bundle.WEIGHTS_FILE)[bundle.BANK_ROWS]

    @classmethod
    def only(cls, decisions: Decisions) -> KeptDecisions:
        """Those of a model without a folder for others."""
        name = decisions.version or TRAINED
        return cls(in_use=name, by_name={name: decisions})


def read_kept_decisions(folder: Path) -> KeptDecisions:
    """Read every decision of a bundle; its weights are not read.

    Raises:
        DamagedFileError: a file is missing or changed, or a decision is not about this model.
    """
    info = bundle.read_bundle_info(folder, check_weights=False)
    where = str(folder / bundle.CONFIG_FILE)
    trained = read_decisions(info.trained_info, parse_task(info.task), info.classes, where)
    records = {
        name: decision_versions.read_decision_file(folder, name, info.task, info.classes)
        for name in decision_versions.list_decision_names(info.listed)
    }
    kept = {name: _read_record(folder, name, record, info) for name, record in records.items()}
    return KeptDecisions(in_use=info.decision, by_name={TRAINED: trained, **kept}, records=records, folder=folder)


def find_unreadable_decisions(folder: Path, info: BundleInfo) -> tuple[str, ...]:
    """The files of kept decisions, and of which was in use, that are damaged or not about this model.

    Args:
        info: of `read_bundle_info` by another decision.
    """
    unreadable = [*checksums.find_damaged_additions(folder)]
    for name in decision_versions.list_decision_names(info.listed):
        try:
            record = decision_versions.read_decision_file(folder, name, info.task, info.classes)
            _read_record(folder, name, record, info)
        except DamagedFileError:
            unreadable.append(decision_versions.decision_path(folder, name).relative_to(folder).as_posix())
    return tuple(unreadable)


def _read_record(folder: Path, name: str, record: Mapping[str, Any], info: BundleInfo) -> Decisions:
    noted = {**record, "decisions": {**record["decisions"], "version": name}}
    where = str(decision_versions.decision_path(folder, name))
    return read_decisions(noted, parse_task(info.task), info.classes, where)


class DecisionFollower:
    """Reads the decisions of a bundle again once its manifest has changed.

    The manifest is replaced in one step and lists files that are never changed, so what is read belongs together.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._seen: tuple[int, int, int] | None = None

    def poll(self) -> KeptDecisions | None:
        """The decisions, if they may have changed since they were read last; else None.

        Raises:
            DamagedFileError: as `read_kept_decisions`; the next call tries again.
        """
        try:
            stat = os.stat(self._folder / MANIFEST)
        except OSError as error:
            raise DamagedFileError(
                f"{self._folder / MANIFEST} cannot be read any more: {error.strerror}. Put the model back."
            ) from error
        now = (stat.st_mtime_ns, stat.st_ino, stat.st_size)  # of before the reading, so that no change is missed
        if now == self._seen:
            return None
        kept = read_kept_decisions(self._folder)
        self._seen = now
        return kept
