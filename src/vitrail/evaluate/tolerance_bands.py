"""Tolerance bands: is a number inside its limits, outside, or unsure, by its conformal range; likewise for grades."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Int64

from ..errors import UsageError
from . import conformal
from .decisions import Decisions, add_prediction_sets
from .predictions import ClassificationPredictions, RegressionPredictions, TaskPredictions

BandVerdict = Literal["inside", "outside", "unsure"]
VERDICTS: tuple[BandVerdict, ...] = get_args(BandVerdict)
INSIDE, OUTSIDE, UNSURE_VERDICT = range(len(VERDICTS))


class Band(NamedTuple):
    """The limits of a column, both allowed, in its unit; or of the grades, as class indices."""

    low: float
    high: float


def parse_bands(text: str, names: tuple[str, ...], ordered: bool) -> dict[str, Band]:
    """Parse bands such as "power=280..320,tilt=..4", "..4" of the only column, or "mild..severe" of ordered classes.

    Args:
        names: of the columns, or of the classes in their order.

    Returns:
        Bands by column; of grades the only one, by the name "grade".

    Raises:
        UsageError: no such column or grade, or no band.
    """
    if ordered:
        low, dots, high = text.partition("..")
        if not dots or not all(name in ("", *names) for name in (low, high)):
            raise UsageError(f"A band of grades is FROM..TO, two of {', '.join(names)}. Got {text!r}.")
        band = Band(names.index(low) if low else 0, names.index(high) if high else len(names) - 1)
        return {"grade": _check_band(band, text)}
    bands = {}
    for word in filter(None, map(str.strip, text.split(","))):
        name, equals, limits = word.rpartition("=")
        if not equals and len(names) > 1:
            raise UsageError(f"A band names its column: {names[0]}={word}. The columns are {', '.join(names)}.")
        if equals and name not in names:
            raise UsageError(f"A band must be of one of {', '.join(names)}. Got {name!r}.")
        low, dots, high = limits.partition("..")
        try:
            band = Band(float(low) if low else -np.inf, float(high) if high else np.inf)
        except ValueError:
            band = Band(np.nan, np.nan)
        if not dots or not (low or high):
            band = Band(np.nan, np.nan)
        bands[name or names[0]] = _check_band(band, word)
    if not bands:
        raise UsageError(f"A band is LOW..HIGH, for example {names[0]}=280..320. Got {text!r}.")
    return bands


def _check_band(band: Band, text: str) -> Band:
    if not band.low <= band.high:  # also NaN
        raise UsageError(f"A band is LOW..HIGH with LOW at most HIGH, for example 280..320 or ..4. Got {text!r}.")
    return band


class BandResult(NamedTuple):
    """Verdicts of one band on n images: indices into `VERDICTS`."""

    name: str
    band: Band
    verdicts: Int64[np.ndarray, " n"]
    known: Bool[np.ndarray, " n"]
    """Whether the target is known."""
    is_inside: Bool[np.ndarray, " n"]
    """Whether the target lies inside; False where unknown."""


def judge_bands(table: TaskPredictions, decisions: Decisions, bands: Mapping[str, Band]) -> list[BandResult]:
    """Compare the conformal range of each number, or the hull of the set of grades, with the bands.

    A range within the band is inside, one without any part of it outside, every other is unsure. Of all images at most
    a fraction alpha is judged inside or outside wrongly, because at most so many ranges miss the truth.

    Without ranges or sets every image is unsure.
    """
    has_ranges = bool(decisions.reach if isinstance(table, RegressionPredictions) else decisions.cuts)
    if isinstance(table, RegressionPredictions) and has_ranges:
        table = add_prediction_sets(table, decisions)
    results = []
    for name, band in bands.items():
        if isinstance(table, RegressionPredictions):
            k = table.columns.index(name)
            ends = np.zeros((len(table), 2)) if table.ranges is None else table.ranges[:, k].astype(np.float64)
            truth = np.full(len(table), np.nan) if table.targets is None else table.targets[:, k]
        else:
            assert isinstance(table, ClassificationPredictions)
            cuts = decisions.cuts or (1.0,) * len(table.classes)
            ends = _hulls(conformal.predict_sets(table.probabilities, cuts), table.indices)
            truth = np.full(len(table), np.nan)
            if table.targets is not None:
                truth = np.where(table.targets >= 0, table.targets, np.nan)
        inside = (ends[:, 0] >= band.low) & (ends[:, 1] <= band.high)
        outside = (ends[:, 1] < band.low) | (ends[:, 0] > band.high)
        verdicts = np.where(inside, INSIDE, np.where(outside, OUTSIDE, UNSURE_VERDICT)).astype(np.int64)
        verdicts = verdicts if has_ranges else np.full(len(table), UNSURE_VERDICT)
        results.append(BandResult(name, band, verdicts, ~np.isnan(truth), (truth >= band.low) & (truth <= band.high)))
    return results


def _hulls(sets: Bool[np.ndarray, "n K"], labels: Int64[np.ndarray, " n"]) -> np.ndarray:
    """float64 [n, 2]: the lowest and the highest grade of each set; the predicted one of an empty set."""
    ends = np.stack([sets.argmax(1), sets.shape[1] - 1 - sets[:, ::-1].argmax(1)], 1)
    return np.where(np.logical_or.reduce(sets, axis=1)[:, None], ends, labels[:, None]).astype(np.float64)
