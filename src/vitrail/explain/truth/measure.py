"""Everything that can be known of how true some methods are, for one model and some pictures: measured in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Shaped
from torch import Tensor

from ...data.sources.synthetic import SyntheticImages, SyntheticPairs
from ...errors import UsageError
from ...model.vit import ViT
from ...spec import ImageSpec
from ...stats.intervals import bootstrap_interval
from ..reading import grid_of
from . import evidence
from .baselines import BASELINES, baselines
from .curves import POINTS, curves
from .differences import differences, verdict
from .maps import Method, maps_of
from .randomised import cascade
from .removal import Way, ways_of
from .results import Compared, Estimate, Faithful, Located, Row, Truth
from .scores import Score, probability

SHUFFLED = 16
"""Pictures whose maps are compared while weights are shuffled: each costs a map for every block of the model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Known:
    """The truth about planted pictures; a model's output k must be class k of `planted.CLASSES`."""

    planted: SyntheticImages
    """Of the very pictures that are measured, in their order."""
    pairs: SyntheticPairs | None = None
    """Further pictures, each with two classes."""
    spec: ImageSpec
    """How the model reads pictures; used for the pairs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """What is explained, and how it is judged."""

    model: ViT
    images: Float[Tensor, "B C H W"]
    classes: Int[Tensor, " B"]
    """Which output of each picture is explained and watched."""
    score: Score = probability
    """`scores.SCORES` has the one of each task."""
    known: Known | None = None
    """The truth, where the pictures are planted."""
    shuffled: int = SHUFFLED
    """Pictures of the test with shuffled weights; 0 leaves it out."""
    points: int = POINTS
    """Places at which every curve is measured."""
    seed: int = 0
    groups: Shaped[np.ndarray, " B"] | None = None
    """Of each picture, such as its patient; intervals draw whole groups then."""


def measure(methods: Mapping[str, Method], asked: Asked) -> Truth:
    """Areas, localisation and sanity of every method and of the three baselines, and how sure the differences are.

    Methods are compared in the order given, each with the next, and every one of them with `random`: name the one that
    should be truest first.

    Raises:
        UsageError: no methods, one with a baseline's name, or maps that cannot be used; the message names the method.
    """
    if not methods or set(methods) & set(BASELINES):
        raise UsageError(
            f"Some methods must be given, none of them called {', '.join(BASELINES)}. "
            f"Got {', '.join(methods) or 'none'}."
        )
    rows: list[Row] = []
    gaps: dict[str, dict[Way, Float64[np.ndarray, " B"]]] = {}
    for name, method in {**methods, **baselines(asked.seed)}.items():
        try:
            row, gaps[name] = _row(name, method, asked)
        except UsageError as problem:
            raise UsageError(f"The method {name} cannot be measured. {problem}") from problem
        rows.append(row)
    return Truth(
        pictures=len(asked.images),
        patches=grid_of(asked.model, asked.images).patches,
        rows=tuple(rows),
        compared=tuple(_compared(pair, gaps, asked) for pair in _pairs(list(methods))),
    )


def _row(name: str, method: Method, asked: Asked) -> tuple[Row, dict[Way, Float64[np.ndarray, " B"]]]:
    """Everything of one method, and its gaps picture by picture."""
    maps = maps_of(method, asked.model, asked.images, asked.classes)
    baseline, flat = name in BASELINES, np.ptp(maps, axis=(1, 2)) == 0
    faithful: list[Faithful] = []
    gaps: dict[Way, Float64[np.ndarray, " B"]] = {}
    for way in ways_of(asked.model.config):
        made = curves(asked.model, asked.images, asked.classes, maps, way, asked.score, asked.points, asked.seed)
        gaps[way] = made.gap
        areas = (_estimate(one, asked) for one in (made.deletion_area, made.insertion_area, made.gap))
        faithful.append(Faithful(way, *areas))
    return (
        Row(
            method=name,
            baseline=baseline,
            faithful=tuple(faithful),
            flat=int(flat.sum()),
            located=None if asked.known is None else _located(method, maps, asked, asked.known, baseline),
            shuffled=None if baseline or not asked.shuffled else _shuffled(method, asked, ~flat),
        ),
        gaps,
    )


def _located(
    method: Method, maps: Float64[np.ndarray, "B rows columns"], asked: Asked, known: Known, baseline: bool
) -> Located:
    found = evidence.find(maps, known.planted)
    apart = None
    if known.pairs is not None and not baseline:
        apart = evidence.tell_apart(method, asked.model, known.pairs, known.spec)
    return Located(
        pointing=_estimate(found.pointing, asked),
        in_box=_estimate(found.in_box, asked),
        in_mask=_estimate(found.in_mask, asked),
        overlap=_estimate(found.overlap, asked),
        on_decoy=_estimate(found.on_decoy, asked),
        on_tag=None if found.on_tag is None else _estimate(found.on_tag, asked),
        own_class=None if apart is None else _alone(apart.own, asked),
        class_correlation=None if apart is None else _alone(apart.correlation, asked),
        chance_pointing=found.chance_pointing,
        chance_box=found.chance_box,
        chance_mask=found.chance_mask,
        best_box=found.best_box,
        best_mask=found.best_mask,
    )


def _shuffled(method: Method, asked: Asked, usable: Bool[np.ndarray, " B"]) -> Estimate | None:
    """On the first pictures whose map says anything; None if no map does."""
    few = np.flatnonzero(usable)[: asked.shuffled].tolist()
    if not few:
        return None
    return _alone(cascade(method, asked.model, asked.images[few], asked.classes[few], asked.seed).last, asked)


def _estimate(values: Float64[np.ndarray, " B"], asked: Asked) -> Estimate:
    """A mean with its interval over the pictures that are measured, or their groups."""
    interval = bootstrap_interval(values, lambda rows: float(rows.mean()), asked.seed, groups=asked.groups)
    return Estimate(float(values.mean()), interval)


def _alone(values: Float64[np.ndarray, " n"], asked: Asked) -> Estimate:
    """The same of other pictures, or of some of them, whose groups nobody knows."""
    interval = bootstrap_interval(values, lambda rows: float(rows.mean()), asked.seed)
    return Estimate(float(values.mean()), interval)


def _pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each method with the next, and with noise."""
    return [*pairwise(names), *((name, "random") for name in names)]


def _compared(
    pair: tuple[str, str], gaps: Mapping[str, Mapping[Way, Float64[np.ndarray, " B"]]], asked: Asked
) -> Compared:
    found = differences(gaps[pair[0]], gaps[pair[1]], asked.seed, asked.groups)
    return Compared(*pair, found, verdict(found))
