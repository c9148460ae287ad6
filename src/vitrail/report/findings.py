"""The doctor's page: what `vitrail check` found, with the pictures in question, in one self-contained HTML file."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ..data.checks.findings import DataCheckReport, DataIssue
from ..data.decoding.decode import decode_image
from ..data.source import Source
from ..errors import DataError
from ..files import atomic
from ..plural import counted
from ..spec import ImageSpec
from .page import percent

SIDE = 144
"""Longer side of a thumbnail in pixels."""
SHARP = 64
"""Smaller pictures are stored as they are, and drawn with sharp pixels."""
MOST_PICTURES = 12
MOST_GROUPS = 6
MOST_OF_A_GROUP = 4
MOST_BAD = 500
"""Unusable pictures that the page names; check.json names all."""
WORDS = {"stop": "stops a training", "warning": "warning", "hint": "to be known"}


class Tile(NamedTuple):
    """One picture on the page."""

    uri: str
    """Empty where it cannot be decoded."""
    id: str
    label: str
    small: bool


class Section(NamedTuple):
    """One concern with its pictures."""

    concern: DataIssue
    word: str
    groups: list[list[Tile]]
    pictures: list[Tile]
    more: int
    """Pictures or groups that are not shown."""


def write(path: Path, findings: DataCheckReport, source: Source, spec: ImageSpec) -> None:
    """Replace the page at once. Pictures are decoded again, as `spec` says."""
    atomic.write_bytes(path, render(findings, source, spec).encode("utf-8", "replace"))


def render(findings: DataCheckReport, source: Source, spec: ImageSpec) -> str:
    """The page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    room = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    room.filters.update(percent=percent, count="{:,}".format)
    album = _Album(source, spec)
    return room.get_template("findings.html.j2").render(
        findings=findings,
        counted=counted,
        bad=findings.bad[:MOST_BAD],
        sections=[_section(concern, album) for concern in findings.concerns],
        counts=_counts(findings),
        stops=len(findings.bad) + len(findings.stops),
        warnings=sum(concern.severity == "warning" for concern in findings.concerns),
    )


class _Album:
    """Thumbnails, each made once."""

    def __init__(self, source: Source, spec: ImageSpec):
        self.source = source
        self.spec = spec
        self.made: dict[int, Tile] = {}

    def tile(self, row: int) -> Tile:
        if row not in self.made:
            self.made[row] = self._make(row)
        return self.made[row]

    def _make(self, row: int) -> Tile:
        name, label = self.source.ids[row], label_of(self.source, row)
        try:
            values = decode_image(self.source.pictures[row], self.spec)
        except DataError:
            return Tile("", name, label, False)
        return Tile(thumbnail(values), name, label, max(values.shape[:2]) < SHARP)


def _section(concern: DataIssue, album: _Album) -> Section:
    groups = [[album.tile(row) for row in group[:MOST_OF_A_GROUP]] for group in concern.groups[:MOST_GROUPS]]
    rows = () if groups else concern.rows[:MOST_PICTURES]
    more = len(concern.groups) - len(groups) if groups else len(concern.rows) - len(rows)
    return Section(concern, WORDS[concern.severity], groups, [album.tile(row) for row in rows], more)


def label_of(source: Source, row: int) -> str:
    """What a picture is labelled, in a few words."""
    target = source.targets[row]
    if source.task == "classes":
        return source.classes[int(target.argmax() if source.soft else target)]
    if source.task == "labels":
        return ", ".join(name for name, value in zip(source.classes, target.tolist(), strict=True) if value >= 0.5)
    return ", ".join("not known" if value != value else f"{value:g}" for value in target.tolist())


def thumbnail(values: np.ndarray) -> str:
    """A picture inside a text, from uint8 [H, W, C], at most 144 pixels long: JPEG, or PNG where it is small."""
    image = Image.fromarray(values if values.shape[-1] == 3 else np.ascontiguousarray(values[..., 0]))
    small = max(image.size) < SHARP
    image.thumbnail((SIDE, SIDE))
    data = io.BytesIO()
    if small:
        image.save(data, "PNG", optimize=True)
    else:
        image.save(data, "JPEG", quality=82)
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64," + base64.b64encode(data.getvalue()).decode("ascii")


def _counts(findings: DataCheckReport) -> list[tuple[str, Sequence[Any]]]:
    """Classes with their counts, one per split; the splits themselves come first, under an empty name."""
    splits = list(findings.class_counts)
    if not splits:
        return []
    names = findings.class_counts[splits[0]]
    return [("", splits), *((name, [findings.class_counts[split][name] for split in splits]) for name in names)]
