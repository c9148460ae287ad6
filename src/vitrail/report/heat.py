"""Where answers come from, as the page shows it: a picture beside itself under its map, what was asked, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from ..evaluate.prediction_tables import TaskPredictions, output_names
from ..evaluate.predictions import LABEL_THRESHOLD, MultilabelPredictions, RegressionPredictions
from ..explain.attribution import MapScale
from ..explain.overlay import OVERLAY_OPACITY, blend_map, map_colors
from . import thumbnails
from .choice import wrong_labels
from .explanations import About, Explanations, wrong
from .shown import Line
from .thumbnails import Kept

SIDE = 168
"""Pixels of an enlarged picture's shorter side."""
STOPS = 9
"""Colours of the scale."""
DOWN, ACROSS = ("upper", "middle", "lower"), ("left", "middle", "right")


class Pair(NamedTuple):
    """One picture twice: as it is, and under its map."""

    picture: str
    mixed: str
    path: str
    small: bool
    """The picture is drawn with sharp pixels."""
    lines: tuple[Line, ...]
    alt: str
    """Of the map, for a screen reader."""


class Heat(NamedTuple):
    """All of the section."""

    about: About
    worst: list[Pair]
    others: list[Pair]
    scale: str
    """The colours from the smallest share to the largest, as CSS knows a gradient."""
    hidden: int
    """Maps that leave artefact tokens out."""


def heat(
    found: Explanations | None,
    answers: TaskPredictions,
    images: Sequence[Kept],
    indices: Int64[np.ndarray, " k"],
) -> Heat | None:
    """What `explanations.html.j2` needs; None where a run has no maps.

    Args:
        images, indices: the stored thumbnails, and their rows in the table.
    """
    if found is None:
        return None
    thumbnails.check_rows(indices, len(answers), answers.targets is not None)
    places = {row: place for place, row in enumerate(indices.tolist())}
    bad = dict(zip(places, wrong(answers, indices).tolist(), strict=True)) if len(indices) else {}
    worst: list[Pair] = []
    others: list[Pair] = []
    hidden = 0
    for at, row in enumerate(found.rows.tolist()):
        if row in places:
            (worst if bad[row] else others).append(_pair(found, at, answers, row, images[places[row]]))
            hidden += bool(found.artefacts[at].any())
    if not (worst or others or found.about.nothing):
        return None
    return Heat(found.about, worst, others, gradient(found.about.scale), hidden)


def strongest(values: Float32[np.ndarray, "rows columns"]) -> str:
    """Where a map is largest, in words: a ninth of the picture."""
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    down = DOWN[int(3 * (row + 0.5) / values.shape[0])]
    across = ACROSS[int(3 * (column + 0.5) / values.shape[1])]
    return f"at the {down} {across}" if down != across else "in the middle"


def gradient(scale: MapScale) -> str:
    """The colours as they are mixed in, each as opaque as its share is there."""
    shares = np.linspace(-1 if scale in ("signed", "cosine") else 0, 1, STOPS, dtype=np.float32)
    stops = zip(np.round(255 * map_colors(shares, scale)).astype(int).tolist(), np.abs(shares).tolist(), strict=True)
    return ", ".join(
        f"rgb({red} {green} {blue} / {OVERLAY_OPACITY * share:.2f})" for (red, green, blue), share in stops
    )


def _pair(found: Explanations, at: int, answers: TaskPredictions, row: int, kept: Kept) -> Pair:
    about, of = found.about, int(found.of[at])
    values, hidden = found.values[at], found.artefacts[at]
    mixed = blend_map(kept.image, values, about.scale, about.patch, hidden, SIDE)
    name, value = output_names(answers)[of], _value(answers, row, of)
    place = strongest(np.where(hidden, 0, values).astype(np.float32))
    return Pair(
        picture=kept.uri,
        mixed=Kept(mixed, kept.aspect).uri,
        path=answers.paths[row] or answers.ids[row],
        small=kept.small,
        lines=(_truth(answers, row, of), Line(f"{about.method} for", name, f", {value}", _is_wrong(answers, row, of))),
        alt=f"map by {about.method} of {name}, {value}, strongest {place}",
    )


def _value(answers: TaskPredictions, row: int, of: int) -> str:
    """What was answered for the explained output."""
    if isinstance(answers, RegressionPredictions):
        return f"{answers.values[row, of]:.4g}"
    return f"{100 * answers.probabilities[row, of]:.1f}\u202f%"


def _truth(answers: TaskPredictions, row: int, of: int) -> Line:
    """What is the case."""
    assert answers.targets is not None
    if isinstance(answers, RegressionPredictions):
        return Line("is", f"{answers.targets[row, of]:.4g}")
    if not isinstance(answers, MultilabelPredictions):
        return Line("is", answers.classes[int(answers.targets[row])])
    if np.isnan(answers.targets[row, of]):
        return Line("not known:", answers.classes[of])
    return Line("has" if answers.targets[row, of] >= LABEL_THRESHOLD else "has no", answers.classes[of])


def _is_wrong(answers: TaskPredictions, row: int, of: int) -> bool:
    """Whether what was answered for the explained output is not the case; numbers are more or less so."""
    assert answers.targets is not None
    if isinstance(answers, RegressionPredictions):
        return False
    if not isinstance(answers, MultilabelPredictions):
        return int(answers.targets[row]) != of
    return bool(wrong_labels(answers)[row, of])
