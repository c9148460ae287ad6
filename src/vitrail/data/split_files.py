"""Write the splits of a run to a CSV file, and read them again for the same images; other images are refused."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from zlib import crc32

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from ..errors import DataError
from ..files.atomic import write_bytes
from ..formatting import format_count
from .csv_injection import escape_cell, format_csv_lines, unescape_cell
from .source import SPLITS, Source

SPLIT_COLUMNS = ("id", "split", "target")
WEIGHT_COLUMN = "weight"
"""The last column, where images have loss weights."""
MAX_NAMED_IDS = 5
RowIndices = NDArray[np.int64]


def write_splits(path: Path, source: Source, splits: Mapping[str, RowIndices]) -> None:
    """Write splits as a CSV of `id,split,target`, independent of the order of files.

    `target` is a checksum of the image's target, by which a changed label is detected when the splits are read. Loss
    weights follow as `weight`, because a source in memory cannot be asked for them again.

    Raises:
        DataError: two images have the same id, so that they could not be distinguished again.
    """
    weights = None if source.weights is None else source.weights.tolist()
    lines: list[tuple[str, ...]] = [SPLIT_COLUMNS if weights is None else (*SPLIT_COLUMNS, WEIGHT_COLUMN)]
    seen: set[str] = set()
    for split in SPLITS:
        for row, mark in zip(splits[split].tolist(), _target_checksums(source, splits[split]), strict=True):
            name = source.ids[row]
            if name in seen:
                raise DataError(f"Two pictures of {source.name} are called {name}. Each needs a name of its own.")
            seen.add(name)
            lines.append((escape_cell(name), split, mark, *(() if weights is None else (repr(weights[row]),))))
    write_bytes(path, "".join(format_csv_lines(lines)).encode("utf-8", "surrogateescape"))


def read_splits(path: Path, source: Source) -> tuple[dict[str, RowIndices], tuple[str, ...]]:
    """Read written splits for the same images in any order, with a note if some are missing and left out.

    As many may be missing as may become unreadable during a training.

    Raises:
        DataError: more are missing, an image has another target now, or a line is not `id,split,target`.
    """
    rows = {name: row for row, name in enumerate(source.ids)}
    marks = _target_checksums(source, np.arange(len(source)))
    splits: dict[str, list[int]] = {split: [] for split in SPLITS}
    missing: list[str] = []
    changed: list[str] = []
    for name, split, *mark in _iter_split_lines(path):
        row = rows.get(name)
        if row is None:
            missing.append(name)
        elif mark and mark[0] != marks[row]:
            changed.append(name)
        else:
            splits[split].append(row)
    if changed:
        raise DataError(
            f"{format_count(len(changed), 'picture')} of {source.name} changed classes or labels since the run began: "
            f"{_join_ids(changed)}. Give them back their classes or labels, or begin a new run with the data as it "
            "is now."
        )
    notes = _check_missing_images(source, missing, len(missing) + sum(map(len, splits.values())))
    return {split: np.sort(np.array(members, dtype=np.int64)) for split, members in splits.items()}, notes


def read_split_rows(path: Path, source: Source, split: str) -> RowIndices:
    """Rows of another source whose images are in a written split, with the same id and the same target."""
    written = {name: mark[0] for name, owner, *mark in _iter_split_lines(path) if owner == split and mark}
    marks = _target_checksums(source, np.arange(len(source)))
    return np.array([row for row, name in enumerate(source.ids) if written.get(name) == marks[row]], dtype=np.int64)


def read_weights(path: Path, source: Source) -> Float64[np.ndarray, " n"] | None:
    """The loss weight of each row of a source as written with the splits, 1 for others; None where none were written.

    Raises:
        DataError: the source has other weights.
    """
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        is_weighted = WEIGHT_COLUMN in next(csv.reader(file), ())
    written = {name: float(cells[-1]) for name, _, *cells in _iter_split_lines(path)} if is_weighted else {}
    if source.weights is None:
        return np.array([written.get(name, 1.0) for name in source.ids], np.float64) if is_weighted else None
    own = dict(zip(source.ids, source.weights.tolist(), strict=True))
    if not is_weighted or any(own.get(name, weight) != weight for name, weight in written.items()):
        raise DataError(
            f"The pictures of {source.name} have other loss weights than when the run began, which {path} keeps. Give "
            "them as they were or not at all, or begin a new run."
        )
    return source.weights


def _iter_split_lines(path: Path) -> Iterator[list[str]]:
    """[id, split, checksum] of each line, and its weight; runs of older versions kept no checksum."""
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        table = csv.reader(file)
        width = len(next(table, SPLIT_COLUMNS))
        for line in table:
            if len(line) != width or width < 2 or line[1] not in SPLITS:
                raise DataError(
                    f"{path}, line {table.line_num}: expected an id and one of {', '.join(SPLITS)}. Got {line}."
                )
            yield [unescape_cell(line[0]), *line[1:]]


def _check_missing_images(source: Source, missing: list[str], count: int) -> tuple[str, ...]:
    if not missing:
        return ()
    from .loader import LOST_FILES, LOST_SHARE  # and torch with it

    counted = f"{len(missing):,} of the run's {format_count(count, 'picture')} {'is' if len(missing) == 1 else 'are'}"
    what = f"{counted} no longer in {source.name}: {_join_ids(missing)}."
    if len(missing) >= LOST_FILES and len(missing) > LOST_SHARE * count:
        raise DataError(f"{what} Put them back where they were, or begin a new run with those that are left.")
    return (f"{what} It goes on without them.",)


def _join_ids(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED_IDS:,} more" if len(names) > MAX_NAMED_IDS else ""
    return ", ".join(names[:MAX_NAMED_IDS]) + more


def _target_checksums(source: Source, rows: RowIndices) -> list[str]:
    """A checksum of each image's target, in eight hexadecimal digits."""
    targets = source.targets[rows]
    if targets.dtype.kind == "f":
        targets = np.where(np.isnan(targets), np.float32(np.nan), targets + 0)  # one NaN, one zero
        short = np.unique(source.targets.astype("<f4"))
        kind = "<f4" if len(short) == len(np.unique(source.targets)) else "<f8"  # float32 must not make two equal
        return [f"{crc32(target.tobytes()):08x}" for target in targets.astype(kind)]
    marks = [f"{crc32(number.tobytes()):08x}" for number in np.arange(targets.max(initial=-1) + 1, dtype="<i8")]
    return [marks[number] for number in targets.tolist()]
