"""Page of the data check: the issues that `vitrail check` found with their images, as one self-contained HTML file."""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ..data.checks.findings import DataCheckReport, DataIssue
from ..data.decoding.decode import decode_image, to_8_bits
from ..data.source import Source
from ..errors import DataError
from ..files import atomic
from ..formatting import format_count
from ..spec import ImageSpec
from .page import render_template

THUMBNAIL_SIDE = 144
"""Longer side of a thumbnail in pixels."""
MAX_SHARP_SIDE = 64
"""Smaller images are stored at their size, and drawn with sharp pixels."""
MAX_IMAGES = 12
MAX_GROUPS = 6
MAX_IMAGES_PER_GROUP = 4
MAX_UNREADABLE = 500
"""Unreadable images that the page lists; check.json lists all."""
CHECK_SEVERITY_WORDS = {"stop": "stops a training", "warning": "warning", "hint": "to be known"}


class ImageTile(NamedTuple):
    """One image on the page."""

    uri: str
    """Data URI; empty if the image cannot be decoded."""
    id: str
    label: str
    small: bool


class IssueSection(NamedTuple):
    """One issue with its images."""

    issue: DataIssue
    word: str
    groups: list[list[ImageTile]]
    images: list[ImageTile]
    more: int
    """Number of images or groups that are not shown."""


def write_check_page(path: Path, findings: DataCheckReport, source: Source, spec: ImageSpec) -> None:
    """Write the page atomically; images are decoded again by `spec`."""
    atomic.write_bytes(path, render_check_page(findings, source, spec).encode("utf-8", "replace"))


def render_check_page(findings: DataCheckReport, source: Source, spec: ImageSpec) -> str:
    """The page as text."""

    @functools.cache
    def get_tile(row: int) -> ImageTile:
        name, label = source.ids[row], describe_label(source, row)
        try:
            values = to_8_bits(decode_image(source.images[row], spec))
        except DataError:
            return ImageTile("", name, label, False)
        return ImageTile(thumbnail_data_uri(values), name, label, max(values.shape[:2]) < MAX_SHARP_SIDE)

    context = {
        "findings": findings,
        "counted": format_count,
        "bad": findings.bad_images[:MAX_UNREADABLE],
        "sections": [_make_section(issue, get_tile) for issue in findings.issues],
        "counts": _count_rows(findings),
        "stops": len(findings.bad_images) + len(findings.blocking_reasons),
        "warnings": sum(issue.severity == "warning" for issue in findings.issues),
    }
    return render_template("findings.html.j2", context)


def _make_section(issue: DataIssue, get_tile: Callable[[int], ImageTile]) -> IssueSection:
    groups = [[get_tile(row) for row in group[:MAX_IMAGES_PER_GROUP]] for group in issue.groups[:MAX_GROUPS]]
    rows = () if groups else issue.rows[:MAX_IMAGES]
    more = len(issue.groups) - len(groups) if groups else len(issue.rows) - len(rows)
    return IssueSection(issue, CHECK_SEVERITY_WORDS[issue.severity], groups, [get_tile(row) for row in rows], more)


def describe_label(source: Source, row: int) -> str:
    """The label of an image as text."""
    target = source.targets[row]
    if source.task in ("classification", "anomaly"):
        return source.classes[int(target.argmax() if source.has_soft_labels else target)]
    if source.task == "multilabel":
        return ", ".join(name for name, value in zip(source.classes, target.tolist(), strict=True) if value >= 0.5)
    return ", ".join("not known" if value != value else f"{value:g}" for value in target.tolist())


def thumbnail_data_uri(values: np.ndarray) -> str:
    """Data URI of an image uint8 [H, W, C], at most 144 pixels long: JPEG, or PNG for small images."""
    image = Image.fromarray(values if values.shape[-1] == 3 else np.ascontiguousarray(values[..., 0]))
    kind = "png" if max(image.size) < MAX_SHARP_SIDE else "jpeg"
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    data = io.BytesIO()
    image.save(data, kind, optimize=kind == "png", quality=82)
    return f"data:image/{kind};base64," + base64.b64encode(data.getvalue()).decode("ascii")


def _count_rows(findings: DataCheckReport) -> list[tuple[str, Sequence[Any]]]:
    """Counts of each class by split; the first row has an empty name and the split names."""
    splits = list(findings.class_counts)
    if not splits:
        return []
    names = findings.class_counts[splits[0]]
    return [("", splits), *((name, [findings.class_counts[split][name] for split in splits]) for name in names)]
