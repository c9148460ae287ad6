"""`DataSettings`: the [data] table of a plan and the flags of `check`, and which settings each source supports."""

from __future__ import annotations

import dataclasses
import math
import shlex
from dataclasses import dataclass
from typing import Literal

from ..errors import UsageError

MEMORY = "memory"
"""The value of `DataSettings.source` for a Python object."""
NO_SPLIT_COLUMN = "none"
"""The value of `DataSettings.split` that ignores columns of splits."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The source of the images, how they are read, and how they are split."""

    source: str = "digits"
    """A named set, a folder of class folders, a manifest, an array file, tar shards, hf:NAME or a datasets folder."""
    val_source: str = ""
    """A source of its own for the validation pictures, read as `source` is; empty takes them out of `source`."""
    test_source: str = ""
    """A source of its own for the test pictures, likewise."""
    data_root: str = ""
    """Folder that holds the files of a named set, or a manifest's pictures; empty for the usual places, or the
    manifest's own folder."""
    task: Literal["auto", "classification", "multilabel", "regression", "anomaly", "segmentation"] = "auto"
    """One of K, any of K, numbers, anomaly: what differs from good pictures, or segmentation: the class of every pixel;
    auto infers one of the first three from the label columns and says why."""
    good: str = ""
    """With task anomaly the class of the good pictures; the only one, or one called good, ok or normal, if empty."""
    legend: str = ""
    """With task segmentation a CSV of value,name that says what the values of masks mean, a value being a class number
    or a colour #rrggbb; classes.csv beside the pictures, or the numbers themselves, if empty."""
    path: str = ""
    """Column of a manifest that names the pictures; found if empty."""
    targets: tuple[str, ...] = ()
    """Columns of a manifest to learn; found if empty."""
    split: str = ""
    """Column of a manifest that says train, val or test, found if empty; COLUMN:0=train,1=test says what its words
    mean, and none ignores such columns."""
    group: str = ""
    """Column whose equal values (one patient, one module, one place) never cross from one split to another; of class
    folders: folder, the folders of a picture beside that of its class."""
    decimal: Literal["auto", "point", "comma"] = "auto"
    """Decimal mark of the numbers in a column; auto infers it from the whole column, and asks where that is not clear.
    """
    uncertain: Literal["stop", "ignore", "zero", "one"] = "stop"
    """What a label of -1 or "uncertain" means: stop and ask, unknown, absent, or present."""
    class_level: int = 1
    """Which folder names the class, counted from the source or its train/, val/, test/: 2 reads SITE/CLASS/picture."""
    keep_empty: bool = False
    """Keep class folders without pictures as classes."""
    allow_outside_root: bool = False
    """Let a manifest name pictures outside its own folder, and class folders link to such."""
    pixel_size: float = 0.0
    """Of masks: how wide a pixel of the pictures is in your unit, such as 0.25 micrometres; areas are given in squares
    of it too. 0: only as fractions of the picture."""
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
    """Split into this many folds, of which `fold` is the test split; 0 splits once by the fractions."""
    fold: int = 0
    """The fold that is the test split, from 0."""
    strata: str = ""
    """Column to stratify splits and folds by, in addition to the targets."""

    def __post_init__(self) -> None:
        if self.folds in (1,) or self.folds < 0:
            raise UsageError(f"data.folds must be 0, or at least 2. Got {self.folds}.")
        if self.class_level < 1:
            raise UsageError(f"data.class_level must be at least 1, the first folder. Got {self.class_level}.")
        if not 0 <= self.fold < max(1, self.folds):
            raise UsageError(f"data.fold must lie in 0..{max(1, self.folds) - 1}. Got {self.fold}.")
        if self.folds and self.val_source:
            raise UsageError(
                "Folds validate on pictures that other folds train on, and those of a source of its own for val are "
                "never trained on. Leave one of them out."
            )
        if self.folds and self.task == "segmentation":
            raise UsageError("Folds average the answers of several models, which masks cannot be. Leave --folds out.")
        if self.good and self.task != "anomaly":
            raise UsageError(f"data.good {self.good} names good pictures, which only --task anomaly learns from.")
        if self.legend and self.task != "segmentation":
            raise UsageError(f"data.legend {self.legend} is about masks, which only --task segmentation learns from.")
        if not 0 <= self.pixel_size < math.inf:
            raise UsageError(f"data.pixel_size must be a width above 0. Got {self.pixel_size}.")
        if self.pixel_size and self.task != "segmentation":
            raise UsageError(
                f"data.pixel_size {self.pixel_size:g} is for areas of masks, which only --task segmentation has."
            )
        for meaning in self.split_codes.values():
            if meaning not in ("train", "val", "test"):
                raise UsageError(f"data.split must give each word train, val or test. Got {self.split!r}.")

    @property
    def label_task(self) -> str:
        """The task by which labels are read: good pictures and defects are classes."""
        return "classification" if self.task == "anomaly" else self.task

    @property
    def split_column(self) -> str:
        """The column that `split` names; empty if none."""
        return "" if self.split == NO_SPLIT_COLUMN else self._split_parts[0]

    @property
    def split_codes(self) -> dict[str, str]:
        """The split that each word of that column means, in lower case, as far as `split` says."""
        pairs = [pair.partition("=") for pair in self._split_parts[1].split(",") if pair]
        return {word.strip().casefold(): meaning.strip().casefold() for word, _, meaning in pairs}

    @property
    def _split_parts(self) -> tuple[str, str]:
        column, _, codes = self.split.rpartition(":")
        return (column, codes) if column and "=" in codes else (self.split, "")


# -- Supported settings per kind of source; any other setting is an error, none is ignored.

SourceKind = Literal[
    "built-in set", "usual set", "class folders", "mask folders", "mask annotations", "manifest", "chest-xray14",
    "archive", "array",    "shards", "tables", "frame", "pairs", "arrays", "torch data set", "opened",
]  # fmt: skip

# fmt: off
COMMON_SETTINGS = frozenset({  # splitting, checking, decoding; the task is compared once it is known
    "source", "val_source", "test_source", "task", "good", "legend", "pixel_size", "range", "skip_bad", "exclude",
    "val_fraction", "test_fraction", "folds", "fold", "strata",
})
COLUMN_SETTINGS = frozenset({"path", "targets", "split", "group", "uncertain", "decimal"})
SUPPORTED_SETTINGS: dict[SourceKind, frozenset[str]] = {
    "built-in set":   frozenset(),
    "usual set":      frozenset({"data_root"}),
    "class folders":  frozenset({"class_level", "group", "keep_empty", "allow_outside_root"}),
    "mask folders":   frozenset(),
    "mask annotations": frozenset({"data_root", "allow_outside_root"}),
    "manifest":       COLUMN_SETTINGS | {"data_root", "allow_outside_root"},
    "chest-xray14":   frozenset({"targets", "group", "allow_outside_root"}),
    "archive":        frozenset({"path", "targets", "group", "uncertain", "decimal"}),
    "array":          frozenset({"targets", "uncertain", "decimal"}),
    "shards":         COLUMN_SETTINGS,
    "tables":         COLUMN_SETTINGS | {"data_root", "allow_outside_root"},
    "frame":          COLUMN_SETTINGS | {"data_root", "allow_outside_root"},
    "pairs":          frozenset({"uncertain", "decimal", "allow_outside_root"}),
    "arrays":         frozenset({"uncertain", "decimal"}),
    "torch data set": frozenset({"uncertain", "decimal"}),
    "opened":         frozenset(),
}
"""In addition to `COMMON_SETTINGS`. Paths in Python objects may lead anywhere: a program may read its own files."""
SETTING_MEANINGS = {  # the purpose of a setting, and what a source lacks that does not support it
    "data_root":  ("names the folder of a usual set or of a manifest's pictures", "looks for nothing there"),
    "path":       ("names a column", "has no columns"),
    "targets":    ("names a column", "has no columns"),
    "split":      ("names a column", "has no columns"),
    "group":      ("names a column", "has no columns"),
    "decimal":    ("says how numbers are written", "has no numbers written as text"),
    "uncertain":  ("says what a label of -1 means in manifests, arrays and other tables", "has no such labels"),
    "class_level": ("says which folder names the class", "has no folders"),
    "keep_empty": ("keeps class folders without pictures", "has no folders"),
    "allow_outside_root": (
        "lets manifests and links in class folders lead out of their folder", "names no files that could",
    ),
}
SETTING_FLAGS = {"data_root": "--data-root", "group": "--group"}
"""Flags of settings that have a short form beside --data.NAME."""
# fmt: on


def advise_anomaly(source: str) -> str:
    """The sentence for a source of good pictures only, after another: the task that needs no other class."""
    return f" To find what differs from these alone: vitrail train {shlex.quote(source)} --task anomaly"


def check_supported_settings(settings: DataSettings, kind: SourceKind, where: str) -> None:
    """Refuse settings that this kind of source does not support.

    Args:
        where: the name of the source in messages.

    Raises:
        UsageError: an unsupported setting differs from its default.
    """
    defaults = dataclasses.asdict(DataSettings())
    for name, value in dataclasses.asdict(settings).items():
        if value == defaults[name] or name in COMMON_SETTINGS or name in SUPPORTED_SETTINGS[kind]:
            continue
        shown = ",".join(value) if isinstance(value, tuple) else "true" if value is True else str(value)
        meaning, lack = SETTING_MEANINGS[name]
        raise UsageError(f"{SETTING_FLAGS.get(name, f'--data.{name}')} {shown} {meaning}; {where} {lack}.")
