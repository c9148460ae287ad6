"""Where the answers to a few held-out pictures come from: maps that are made once, when a training has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, UInt8
from torch import Tensor

from ..data.preprocess import normalize
from ..evaluate.answers import Answers
from ..explain import methods
from ..explain.map import EmptyMapError, Map
from ..explain.outliers import OF_ATTENTION, artefact_patches
from ..model.config import ViTConfig
from ..model.vit import ViT
from ..report import explanations
from ..report.explanations import About, Explanations
from ..spec import ImageSpec

SHARE = 0.03
"""Of the training's seconds that maps may take: check, evaluation and report have 15 % together."""
LEAST = 10.0
"""Seconds that they may take in any case."""


class Shown(NamedTuple):
    """What a map is made of."""

    model: ViT
    spec: ImageSpec
    image: UInt8[Tensor, "C H W"]
    """Prepared as the spec says."""


class _Found(NamedTuple):
    """One map, and which of its patches are artefacts."""

    row: int
    of: int
    made: Map
    hidden: Bool[np.ndarray, "rows columns"]


def keep(
    folder: Path,
    answers: Answers,
    rows: Int64[np.ndarray, " k"],
    shown: Callable[[int], Shown],
    seconds: float,
    views: int = 1,
) -> None:
    """Write explanations.npz: maps by the model's default method, as many as there is time for; none of no pictures.

    Args:
        rows: of the table, those with a thumbnail.
        shown: from one of these rows to what its map is made of.
        seconds: of the training.
        views: of a picture that its answer is the mean over.
    """
    began, limit = time.perf_counter(), max(LEAST, SHARE * seconds)
    found: list[_Found] = []
    nothing: list[str] = []
    shape: ViTConfig | None = None
    for row, of in explanations.wanted(answers, rows):
        if found and time.perf_counter() - began > limit:
            break
        given = shown(row)
        shape = given.model.config
        try:
            found.append(_one(row, of, given))
        except EmptyMapError as problem:
            nothing.append(f"{answers.paths[row] or answers.ids[row]}: {problem}")
    if shape is not None:
        remarks = (methods.AVERAGED.format(views),) if views > 1 else ()
        explanations.save(folder, _joined(found, shape, remarks, tuple(nothing)))


def _one(row: int, of: int, given: Shown) -> _Found:
    images = normalize(given.image[None].to(next(given.model.parameters()).device), given.spec)
    found = methods.explain(given.model, images, None, of)
    hidden = np.zeros(found.values.shape[1:], bool)
    if found.method in OF_ATTENTION:
        hidden = artefact_patches(given.model, images)[0]
    return _Found(row, of, found, hidden)


def _joined(found: list[_Found], shape: ViTConfig, remarks: tuple[str, ...], nothing: tuple[str, ...]) -> Explanations:
    """All maps as arrays; of none, arrays of no pictures, so that the page can say why."""
    size = (len(found), *shape.grid)
    one = found[0].made if found else None
    return Explanations(
        about=About(
            method=methods.default_method(shape),
            layer=one.layer if one else "",
            line=one.line if one else "",
            scale=one.scale if one else "positive",
            patch=shape.patch,
            remarks=remarks,
            nothing=nothing,
        ),
        rows=np.array([each.row for each in found], np.int64),
        of=np.array([each.of for each in found], np.int64),
        values=np.array([each.made.values[0] for each in found], np.float32).reshape(size),
        artefacts=np.array([each.hidden for each in found], bool).reshape(size),
    )
