"""What a person may say about the data, in one place: the [data] table of a plan, and the flags of `check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import UsageError


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Where the pictures come from, how they are read, and how they are parted."""

    source: str = "digits"
    """A named set, a folder of class folders, a manifest, an array file, tar shards, hf:NAME or a datasets folder."""
    data_root: str = ""
    """Folder that holds the files of a named set, or a manifest's pictures; empty for the usual places, or the
    manifest's own folder."""
    task: Literal["auto", "classes", "labels", "number"] = "auto"
    """One of K, any of K, or numbers; auto infers it from the label columns and says why."""
    path: str = ""
    """Column of a manifest that names the pictures; found if empty."""
    targets: tuple[str, ...] = ()
    """Columns of a manifest that are to be learnt; found if empty."""
    split: str = ""
    """Column of a manifest that says train, val or test; found if empty."""
    group: str = ""
    """Column whose equal values (one patient, one module, one place) never cross from one split to another."""
    uncertain: Literal["stop", "ignore", "zero", "one"] = "stop"
    """What a label of -1 or "uncertain" means: stop and ask, unknown, absent, or present."""
    keep_empty: bool = False
    """Keep class folders without pictures as classes."""
    allow_outside_root: bool = False
    """Let a manifest name pictures outside its own folder, and class folders link to such."""
    range: Literal["auto", "8", "12", "16", "percentile"] = "auto"
    """Which stored values are black and white: the depth that the training pictures use, a number of bits, or their
    0.5th and 99.5th percentile."""
    skip_bad: bool = False
    """Leave out pictures that cannot be read, instead of stopping."""
    exclude: str = ""
    """A CSV of ids to leave out, such as the one that `vitrail check --out` writes."""
    val_fraction: float = 0.1
    """Share of the training pictures kept for validation where the source names none."""
    test_fraction: float = 0.2
    """Share of all pictures kept for the final test where the source names none."""
    folds: int = 0
    """Part into this many folds, of which `fold` is the test split; 0 parts once by the fractions."""
    fold: int = 0
    """Which fold is the test split, from 0."""
    strata: str = ""
    """Column whose values every split and fold shows in proportion too, beside what is learnt."""

    def __post_init__(self) -> None:
        if self.folds in (1,) or self.folds < 0:
            raise UsageError(f"data.folds must be 0, or at least 2. Got {self.folds}.")
        if not 0 <= self.fold < max(1, self.folds):
            raise UsageError(f"data.fold must lie in 0..{max(1, self.folds) - 1}. Got {self.fold}.")
