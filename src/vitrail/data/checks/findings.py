"""Findings of the dataset check as text and JSON, and the exclude list (CSV) that `--exclude` reads."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...files.atomic import write_bytes
from ...formatting import format_count
from ..csv_injection import escape_cell, format_csv_lines, unescape_cell
from ..source import Source

MAX_SHOWN = 20
"""Names in a sentence; the JSON holds all."""
MAX_SHOWN_GROUPS = 6
"""Images, or groups of them, that the table names for a finding."""
Severity = Literal["stop", "warning", "hint"]


@dataclass(frozen=True, kw_only=True)
class ImageSize:
    """Height and width of an image in pixels, and its id."""

    height: int
    width: int
    id: str


@dataclass(frozen=True, kw_only=True)
class DataIssue:
    """One finding: an error, a warning or a hint."""

    code: str
    """A fixed name, for scripts."""
    severity: Severity
    """stop: training is refused; warning: the result will be worse or too good; hint: for information."""
    text: str
    """The finding, in a sentence with its count."""
    advice: str = ""
    """What to do about it."""
    rows: tuple[int, ...] = ()
    """The images concerned."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Rows of images that belong together, such as copies."""
    rows_to_exclude: tuple[tuple[int, str], ...] = ()
    """(row, reason) of images to exclude, for exclude.csv."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DataCheckReport:
    """All findings of a check; `bad` and `stops` prevent training, the rest is information."""

    name: str
    image_count: int
    """In all splits."""
    checked_count: int
    """Images read within the time limit."""
    compared_count: int
    """Images that near copies were looked for among: those that are large enough, or a sample of them."""
    bad_images: list[tuple[str, str]]
    """(id, reason) of every image that cannot be used."""
    bad_indices: NDArray[np.int64]
    """Their rows in the source."""
    class_counts: dict[str, dict[str, int]]
    """Images per class, or with each label, in each split; empty for numbers."""
    smallest: ImageSize | None
    largest: ImageSize | None
    depths: dict[str, int]
    """Images per type of stored value: uint8, uint16, ..."""
    kinds: dict[str, int]
    """Images per file format."""
    remark_counts: dict[str, int]
    """Remarks of the decoder, with their counts."""
    issues: tuple[DataIssue, ...]
    """Worst first."""
    notes: tuple[str, ...]
    """Those of the source, then the check's own."""
    ids: Sequence[str] = field(repr=False)
    """Those of the source."""

    @property
    def blocking_reasons(self) -> tuple[str, ...]:
        """Why training is refused although all images can be read, with advice."""
        return tuple(f"{each.text} {each.advice}".strip() for each in self.issues if each.severity == "stop")

    @property
    def is_partial(self) -> bool:
        """Whether the check had no time for some of the images."""
        return self.checked_count < self.image_count

    def rows_to_exclude(self) -> list[tuple[int, str]]:
        """(row, first reason) of images to exclude, by row: unreadable, contradictory, or also in a held-out split."""
        reasons = dict(zip(self.bad_indices.tolist(), (reason for _, reason in self.bad_images), strict=True))
        for issue in self.issues:
            for row, reason in issue.rows_to_exclude:
                reasons.setdefault(row, reason)
        return sorted(reasons.items())

    def with_folder(self, source: str, folder: str) -> DataCheckReport:
        """The report whose advice names the source, and the folder that the list of images to exclude is in."""
        named = {"SOURCE --out DIR": f"{source} --out {folder}", "DIR/exclude.csv": f"{folder}/exclude.csv"}
        issues = []
        for issue in self.issues:
            advice = issue.advice
            for placeholder, path in named.items():
                advice = advice.replace(placeholder, path)
            issues.append(replace(issue, advice=advice))
        return replace(self, issues=tuple(issues))

    def issues_with_new_advice(self) -> list[DataIssue]:
        """The issues, of which each advice is kept by the last one that has it."""
        last = {issue.advice: place for place, issue in enumerate(self.issues)}
        return [
            issue if last[issue.advice] == place else replace(issue, advice="")
            for place, issue in enumerate(self.issues)
        ]

    def table(self) -> str:
        """All findings as plain text, with the name of every bad image."""
        lines = self._header_lines()
        if self.bad_images:
            lines.append(f"STOP     {format_count(len(self.bad_images), 'picture')} cannot be used:")
        lines += [f"           {name}  {reason}" for name, reason in self.bad_images]
        lines += [line for issue in self.issues_with_new_advice() for line in self._issue_lines(issue)]
        lines += self._class_count_lines()
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """All findings as JSON; `bad` as objects with id and reason."""
        return {
            "name": self.name,
            "pictures": self.image_count,
            "looked_at": self.checked_count,
            "compared": self.compared_count,
            "bad": [{"id": name, "reason": reason} for name, reason in self.bad_images],
            "stops": list(self.blocking_reasons),
            "concerns": [self._issue_json(each) for each in self.issues],
            "class_counts": self.class_counts,
            "smallest": vars(self.smallest) if self.smallest else None,
            "largest": vars(self.largest) if self.largest else None,
            "stored_values": self.depths,
            "formats": self.kinds,
            "remarks": self.remark_counts,
            "notes": list(self.notes),
        }

    def _issue_json(self, issue: DataIssue) -> dict[str, Any]:
        return {
            "code": issue.code,
            "severity": issue.severity,
            "text": issue.text,
            "advice": issue.advice,
            "pictures": [self.ids[row] for row in issue.rows],
            "groups": [[self.ids[row] for row in group] for group in issue.groups],
        }

    def _header_lines(self) -> list[str]:
        seen = "" if not self.is_partial else f", {self.checked_count:,} of them looked at"
        unusable = f"{len(self.bad_images):,} of them unusable" if self.bad_images else "all of them usable"
        lines = [f"{self.name}: {format_count(self.image_count, 'picture')}{seen}, {unusable}"]
        if self.smallest and self.largest:
            small, large = self.smallest, self.largest
            if (small.height, small.width) == (large.height, large.width):
                lines.append(f"  {small.height} high, {small.width} wide")
            else:
                lines.append(f"  smallest {small.height} high, {small.width} wide ({small.id})")
                lines.append(f"  largest {large.height} high, {large.width} wide ({large.id})")
        if self.kinds:
            lines.append(f"  stored as {join_counts(self.kinds)}; values {join_counts(self.depths)}")
        return lines

    def _issue_lines(self, issue: DataIssue) -> list[str]:
        details = [" = ".join(self.ids[row] for row in group) for group in issue.groups[:MAX_SHOWN_GROUPS]]
        if len(issue.groups) > MAX_SHOWN_GROUPS:
            details.append(f"and {len(issue.groups) - MAX_SHOWN_GROUPS:,} more")
        if issue.rows and not issue.groups:
            names = [self.ids[row] for row in issue.rows[:MAX_SHOWN_GROUPS]]
            details.append(join_names(names, len(issue.rows), MAX_SHOWN_GROUPS))
        if issue.advice:
            details.append(issue.advice)
        return [f"{SEVERITY_WORDS[issue.severity]:<9}{issue.text}", *(f"           {line}" for line in details)]

    def _class_count_lines(self) -> list[str]:
        """A table with one line per class and one column per split."""
        if not self.class_counts:
            return []
        splits = list(self.class_counts)
        names = list(self.class_counts[splits[0]])
        wide = max(map(len, [*names, "class"]))
        lines = [f"{'class':<{wide}}" + "".join(f"{split:>9}" for split in splits)]
        for name in names:
            lines.append(f"{name:<{wide}}" + "".join(f"{self.class_counts[split][name]:>9,}" for split in splits))
        return lines


SEVERITY_WORDS: dict[Severity, str] = {"stop": "STOP", "warning": "WARNING", "hint": "hint"}


def join_names(names: Sequence[str], total: int | None = None, limit: int = MAX_SHOWN) -> str:
    """The first names of `total`, and how many there are beside them."""
    total = len(names) if total is None else total
    more = f" and {total - limit:,} more" if total > limit else ""
    return f"{', '.join(names[:limit])}{more}"


def join_counts(counts: Mapping[str, int]) -> str:
    """Counts and what they count: 12 PNG, 3 JPEG."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


# -- The exclude list: a CSV that the dataset check writes, a user may edit, and `--exclude` reads.

MAX_NAMED_MISSING = 5


def write_exclude_list(path: Path, source: Source, rows: Iterable[tuple[int, str]]) -> None:
    """Write a CSV of id, path and reason, one line per (row, reason); `path` is empty where there is no file."""
    lines = [("id", "path", "reason")]
    for row, reason in rows:
        image = source.images[row]
        file = str(image) if isinstance(image, Path) else ""
        lines.append((escape_cell(source.ids[row]), escape_cell(file), escape_cell(reason)))
    write_bytes(path, "".join(format_csv_lines(lines)).encode("utf-8", "surrogateescape"))


def read_exclude_list(path: Path, source: Source) -> NDArray[np.int64]:
    """Read the rows of an exclude list, ascending, by `id` or, where that is empty or absent, by `path`.

    Raises:
        DataError: no such file, neither column, or an image that the source does not have.
    """
    ids, paths = _read_ids_and_paths(path)
    rows = [row for row, name in enumerate(source.ids) if name in ids] if ids else []
    missing = ids - {source.ids[row] for row in rows}
    if paths:
        images = () if isinstance(source.images, np.ndarray) else source.images
        rows_by_path = {os.path.abspath(image): row for row, image in enumerate(images) if isinstance(image, Path)}
        for name in paths:
            if (file := os.path.abspath(name)) in rows_by_path:
                rows.append(rows_by_path[file])
            else:
                missing.add(name)
    if missing:
        names = ", ".join(sorted(missing)[:MAX_NAMED_MISSING])
        raise DataError(
            f"{path} leaves out {format_count(len(missing), 'picture')} that {source.name} does not have: "
            f"{names}{' and more' if len(missing) > MAX_NAMED_MISSING else ''}. Is it the list of another source? Take "
            "these lines out of it, or write it again with vitrail check SOURCE --out DIR."
        )
    return np.unique(np.array(rows, dtype=np.int64))


def _read_ids_and_paths(path: Path) -> tuple[set[str], set[str]]:
    """The ids of a list, and the paths of its lines that have no id."""
    ids: set[str] = set()
    paths: set[str] = set()
    try:
        text = Path(path).read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise DataError(
            f"{path}: the list to exclude cannot be read ({(error.strerror or str(error)).lower()})."
        ) from error
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)  # a spreadsheet may have changed the delimiter
    table = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    columns = [(name or "").strip() for name in table.fieldnames or ()]
    if not {"id", "path"} & set(columns):
        raise DataError(
            f"{path}: a list to exclude needs a first line with id or path among its columns. "
            f"Got {columns or 'nothing'}."
        )
    table.fieldnames = columns
    for line in table:
        name, file = (unescape_cell(line.get(column) or "") for column in ("id", "path"))
        if name:
            ids.add(name)
        elif file:
            paths.add(file)
    return ids, paths
