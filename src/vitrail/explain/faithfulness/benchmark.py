"""Everything that can be known of how true some methods are, for one model and some pictures: measured in one call."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Shaped
from torch import Tensor

from ... import config
from ...data.sources.synthetic import SyntheticImages, SyntheticPairs
from ...errors import UsageError
from ...model.vit import ViT
from ...randomness import derive
from ...spec import ImageSpec
from ...stats.intervals import Interval, bootstrap_interval
from ..attribution import patch_grid_of
from . import localization
from .curves import (
    NUM_POINTS,
    MapFunction,
    RemovalMode,
    ScoreFunction,
    compute_maps,
    deletion_insertion_curves,
    removal_modes_for,
    softmax_score,
)
from .localization import BASELINES, baseline_methods, row_correlation

NUM_SHUFFLED = 16
"""Pictures whose maps are compared while weights are shuffled: each costs a map for every block of the model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SyntheticTruth:
    """The truth about planted pictures; a model's output k must be class k of `planted.CLASSES`."""

    images: SyntheticImages
    """Of the very pictures that are measured, in their order."""
    pairs: SyntheticPairs | None = None
    """Further pictures, each with two classes."""
    spec: ImageSpec
    """How the model reads pictures; used for the pairs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FaithfulnessRequest:
    """What is explained, and how it is judged."""

    model: ViT
    images: Float[Tensor, "B C H W"]
    classes: Int[Tensor, " B"]
    """Which output of each picture is explained and watched."""
    score: ScoreFunction = softmax_score
    """`scores.SCORES` has the one of each task."""
    synthetic: SyntheticTruth | None = None
    """The truth, where the pictures are planted."""
    num_shuffled: int = NUM_SHUFFLED
    """Pictures of the test with shuffled weights; 0 leaves it out."""
    points: int = NUM_POINTS
    """Places at which every curve is measured."""
    seed: int = 0
    groups: Shaped[np.ndarray, " B"] | None = None
    """Of each picture, such as its patient; intervals draw whole groups then."""


def measure_faithfulness(methods: Mapping[str, MapFunction], request: FaithfulnessRequest) -> FaithfulnessReport:
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
    rows: list[MethodResult] = []
    gaps: dict[str, dict[RemovalMode, Float64[np.ndarray, " B"]]] = {}
    for name, method in {**methods, **baseline_methods(request.seed)}.items():
        try:
            row, gaps[name] = _measure_method(name, method, request)
        except UsageError as problem:
            raise UsageError(f"The method {name} cannot be measured. {problem}") from problem
        rows.append(row)
    return FaithfulnessReport(
        pictures=len(request.images),
        patches=patch_grid_of(request.model, request.images).patches,
        rows=tuple(rows),
        compared=tuple(_compare_methods(pair, gaps, request) for pair in _comparison_pairs(list(methods))),
    )


def _measure_method(
    name: str, method: MapFunction, request: FaithfulnessRequest
) -> tuple[MethodResult, dict[RemovalMode, Float64[np.ndarray, " B"]]]:
    """Everything of one method, and its gaps picture by picture."""
    maps = compute_maps(method, request.model, request.images, request.classes)
    baseline, flat = name in BASELINES, np.ptp(maps, axis=(1, 2)) == 0
    faithful: list[FaithfulnessAreas] = []
    gaps: dict[RemovalMode, Float64[np.ndarray, " B"]] = {}
    for way in removal_modes_for(request.model.config):
        made = deletion_insertion_curves(
            request.model, request.images, request.classes, maps, way, request.score, request.points, request.seed
        )
        gaps[way] = made.gap
        areas = (_mean_estimate(one, request) for one in (made.deletion_area, made.insertion_area, made.gap))
        faithful.append(FaithfulnessAreas(way, *areas))
    return (
        MethodResult(
            method=name,
            baseline=baseline,
            faithful=tuple(faithful),
            flat=int(flat.sum()),
            located=None
            if request.synthetic is None
            else _measure_localization(method, maps, request, request.synthetic, baseline),
            shuffled=None if baseline or not request.num_shuffled else _measure_randomization(method, request, ~flat),
        ),
        gaps,
    )


def _measure_localization(
    method: MapFunction,
    maps: Float64[np.ndarray, "B rows columns"],
    request: FaithfulnessRequest,
    synthetic: SyntheticTruth,
    baseline: bool,
) -> LocalizationResult:
    found = localization.score_localization(maps, synthetic.images)
    apart = None
    if synthetic.pairs is not None and not baseline:
        apart = localization.measure_class_sensitivity(method, request.model, synthetic.pairs, synthetic.spec)
    return LocalizationResult(
        pointing=_mean_estimate(found.pointing, request),
        in_box=_mean_estimate(found.in_box, request),
        in_mask=_mean_estimate(found.in_mask, request),
        overlap=_mean_estimate(found.overlap, request),
        on_decoy=_mean_estimate(found.on_decoy, request),
        on_tag=None if found.on_tag is None else _mean_estimate(found.on_tag, request),
        own_class=None if apart is None else _ungrouped_estimate(apart.own_mass, request),
        class_correlation=None if apart is None else _ungrouped_estimate(apart.correlation, request),
        chance_pointing=found.chance_pointing,
        chance_box=found.chance_box,
        chance_mask=found.chance_mask,
        best_box=found.best_box,
        best_mask=found.best_mask,
    )


def _measure_randomization(
    method: MapFunction, request: FaithfulnessRequest, usable: Bool[np.ndarray, " B"]
) -> MeanEstimate | None:
    """On the first pictures whose map says anything; None if no map does."""
    few = np.flatnonzero(usable)[: request.num_shuffled].tolist()
    if not few:
        return None
    return _ungrouped_estimate(
        cascading_randomization(
            method, request.model, request.images[few], request.classes[few], request.seed
        ).final_correlations,
        request,
    )


def _mean_estimate(values: Float64[np.ndarray, " B"], request: FaithfulnessRequest) -> MeanEstimate:
    """A mean with its interval over the pictures that are measured, or their groups."""
    interval = bootstrap_interval(values, lambda rows: float(rows.mean()), request.seed, groups=request.groups)
    return MeanEstimate(float(values.mean()), interval)


def _ungrouped_estimate(values: Float64[np.ndarray, " n"], request: FaithfulnessRequest) -> MeanEstimate:
    """The same of other pictures, or of some of them, whose groups nobody knows."""
    interval = bootstrap_interval(values, lambda rows: float(rows.mean()), request.seed)
    return MeanEstimate(float(values.mean()), interval)


def _comparison_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each method with the next, and with noise."""
    return [*pairwise(names), *((name, "random") for name in names)]


def _compare_methods(
    pair: tuple[str, str],
    gaps: Mapping[str, Mapping[RemovalMode, Float64[np.ndarray, " B"]]],
    request: FaithfulnessRequest,
) -> FaithfulnessComparison:
    found = paired_differences(gaps[pair[0]], gaps[pair[1]], request.seed, request.groups)
    return FaithfulnessComparison(*pair, found, decide_verdict(found))


# What was measured of some methods, as lines of text: three short tables and one sentence for each comparison.

VERDICT_WORDS: dict[Verdict, str] = {
    "truer": "is truer than",
    "less true": "is less true than",
    "inconclusive": "cannot be told from",
}
REMOVAL_NAMES = {"drop": "patches dropped", "blur": "patches blurred", "mean": "patches painted in the mean"}


def format_faithfulness(report: FaithfulnessReport) -> str:
    """All of it for the terminal; every interval is 95 %."""
    lines = [f"{report.pictures:,} pictures of {report.patches} patches; intervals are 95 %", "", *_area_table(report)]
    if report.rows[0].located is not None:
        lines += ["", *_localization_table(report, report.rows[0].located)]
    if any(row.shuffled is not None for row in report.rows):
        lines += ["", *_randomization_table(report)]
    lines += ["", *(_describe_comparison(one) for one in report.compared)]
    lines += [
        f"{row.method} says nothing of {row.flat:,} pictures: the same everywhere" for row in report.rows if row.flat
    ]
    return "\n".join(lines)


def _area_table(report: FaithfulnessReport) -> list[str]:
    head = ("insertion less deletion", *(REMOVAL_NAMES[one.way] for one in report.rows[0].faithful))
    return _align_columns(
        [head, *((row.method, *(_format_estimate(one.gap) for one in row.faithful)) for row in report.rows)]
    )


def _localization_table(report: FaithfulnessReport, first: LocalizationResult) -> list[str]:
    """One row a method, one column a question that was asked; the last rows are what knowing nothing and all gives."""
    cells = [
        ("planted evidence", *_localization_headings(first)),
        *((row.method, *_localization_cells(row, first)) for row in report.rows),
    ]
    chance = (first.chance_pointing, first.chance_box, first.chance_mask, first.chance_mask)
    for name, shares in (("chance", chance), ("a perfect map", (1.0, first.best_box, first.best_mask))):
        known = (name, *(f"{100 * share:.1f} %" for share in shares))
        cells.append((*known, *[""] * (len(cells[0]) - len(known))))
    return _align_columns(cells)


def _localization_headings(first: LocalizationResult) -> list[str]:
    names = ["pointing", "in box", "in mask", "on decoy"]
    names += ["on tag"] * (first.on_tag is not None)
    return names + ["own class", "class correlation"] * (first.own_class is not None)


def _localization_cells(row: MethodResult, first: LocalizationResult) -> list[str]:
    at = row.located
    assert at is not None
    shares = [at.pointing, at.in_box, at.in_mask, at.on_decoy] + [at.on_tag] * (first.on_tag is not None)
    found = [_format_share(one) for one in shares]
    if first.own_class is not None:
        alike = "" if at.class_correlation is None else f"{at.class_correlation.value:.2f}"
        found += [_format_share(at.own_class), alike]
    return found


def _randomization_table(report: FaithfulnessReport) -> list[str]:
    cells = [("after all weights are shuffled", "rank correlation with the trained model's map")]
    cells += [(row.method, _format_estimate(row.shuffled)) for row in report.rows if row.shuffled is not None]
    return _align_columns(cells)


def _describe_comparison(comparison: FaithfulnessComparison) -> str:
    apart = ", ".join(
        f"{each.way} {each.mean:+.3f} ({_format_interval(*each.interval)})" for each in comparison.differences
    )
    return f"{comparison.first} {VERDICT_WORDS[comparison.verdict]} {comparison.second}: {apart}"


def _format_estimate(estimate: MeanEstimate) -> str:
    return f"{estimate.value:+.3f} ({_format_interval(*estimate.interval)})"


def _format_interval(low: float, high: float) -> str:
    return f"{low:+.3f} to {high:+.3f}"


def _format_share(estimate: MeanEstimate | None) -> str:
    return "" if estimate is None else f"{100 * estimate.value:.1f} %"


def _align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side: the first to the left, numbers to the right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [
        "  ".join(
            [row[0].ljust(first), *(cell.rjust(wide) for cell, wide in zip(row[1:], others, strict=True))]
        ).rstrip()
        for row in rows
    ]


# Does a map depend on what the model has learnt? Weights are shuffled part by part, from the head down.
#
# A method that draws the same picture of a model that knows nothing has drawn the picture, not the model. After each
# part the maps are compared with those of the trained model, by rank.
#
# Source: Adebayo et al. 2018, "Sanity checks for saliency maps", section 4.1. They draw new weights; here each
# tensor's own numbers change places, so that their sizes stay and a layer scale that starts near zero cannot switch a
# block off.


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomizationResult:
    """What was shuffled, and how alike the maps still were."""

    parts: tuple[str, ...]
    """From the head down to the embedding; with each part those before it stay shuffled."""
    correlations: Float64[np.ndarray, "parts B"]
    """Spearman's correlation of each picture's map with that of the trained model; 0 for a map that went flat."""

    @property
    def final_correlations(self) -> Float64[np.ndarray, " B"]:
        """When nothing that was learnt is in its place: near 0 for a method that shows the model."""
        return self.correlations[-1]


def cascading_randomization(
    method: MapFunction, model: ViT, images: Float[Tensor, "B C H W"], classes: Int[Tensor, " B"], seed: int = 0
) -> RandomizationResult:
    """Shuffle the head, then the last block as well, and so on to the patches; compare the maps each time.

    The model itself stays as it is.

    Raises:
        UsageError: as `maps_of`; or a map of the trained model is flat, so that nothing can be like it.
    """
    trained = _rank_maps(compute_maps(method, model, images, classes))
    if (flat := trained.std(1) == 0).any():
        raise UsageError(
            f"The map of picture {int(flat.argmax())} (from 0) is the same everywhere, so nothing can be like it."
        )
    shuffled, alike = copy.deepcopy(model), []
    stages = model_parts(model)
    for part in stages:
        shuffle_parameters(shuffled, part, seed)
        alike.append(row_correlation(trained, _rank_maps(compute_maps(method, shuffled, images, classes))))
    return RandomizationResult(parts=stages, correlations=np.stack(alike))


def model_parts(model: ViT) -> tuple[str, ...]:
    """What is shuffled in turn; each name is the beginning of the names of its parameters."""
    blocks = (f"encoder.blocks.{i}." for i in reversed(range(model.config.depth)))
    order = ("head.", "pool.", "encoder.norm.", *blocks, "encoder.pre_norm.", "positions.", "tokens.")
    names = [name for name, parameter in model.named_parameters() if parameter.numel() > 1]
    return tuple(part for part in order if any(name.startswith(part) for name in names))


def shuffle_parameters(model: ViT, part: str, seed: int) -> None:
    """Let the numbers of every parameter of a part change places, each parameter within itself."""
    for name, parameter in model.named_parameters():
        if name.startswith(part):
            generator = torch.Generator().manual_seed(derive(seed, f"shuffled {name}"))
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            with torch.no_grad():
                parameter.copy_(parameter.flatten()[order].view_as(parameter))


def _rank_maps(maps: Float64[np.ndarray, "B rows columns"]) -> Float64[np.ndarray, "B N"]:
    from scipy.stats import rankdata

    return np.asarray(rankdata(maps.reshape(len(maps), -1), axis=1), np.float64)


# What was measured of some methods, as plain values: one row a method, and how sure the differences are.


@dataclass(frozen=True)
class MeanEstimate:
    """A mean over pictures with its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class FaithfulnessAreas:
    """The areas of one way of taking patches away."""

    way: RemovalMode
    deletion: MeanEstimate
    """Mean height of the curve while the most relevant patches go first: small is true."""
    insertion: MeanEstimate
    """Mean height while the most relevant come first: large is true."""
    gap: MeanEstimate
    """Insertion less deletion: large is true, 0 is random."""


@dataclass(frozen=True, kw_only=True)
class LocalizationResult:
    """Where maps of planted pictures lie; see `evidence.Found` and `localisation.Sensitivity`."""

    pointing: MeanEstimate
    in_box: MeanEstimate
    in_mask: MeanEstimate
    overlap: MeanEstimate
    on_decoy: MeanEstimate
    on_tag: MeanEstimate | None = None
    own_class: MeanEstimate | None = None
    """Of pictures with two classes: share of the relevance on either glyph that lies on the one asked about."""
    class_correlation: MeanEstimate | None = None
    """Correlation of the maps of the two classes; 1 for a method that is blind to the class."""
    chance_pointing: float
    """Pointing of a random map."""
    chance_box: float
    """Share of the picture that the box covers."""
    chance_mask: float
    """Share of the picture that the glyph's pixels cover, and the decoy's as well."""
    best_box: float
    """`in_box` of the map of whoever knows."""
    best_mask: float
    """`in_mask` of it."""


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """What was measured of one method."""

    method: str
    baseline: bool
    """It knows nothing of the model: noise, the middle, or the picture's edges."""
    faithful: tuple[FaithfulnessAreas, ...]
    located: LocalizationResult | None = None
    flat: int
    """Pictures whose map is the same everywhere: it points nowhere, and the patches go in an order drawn blindly."""
    shuffled: MeanEstimate | None = None
    """Rank correlation with the map of the same model after all its weights were shuffled: near 0 is sane."""


@dataclass(frozen=True)
class FaithfulnessComparison:
    """Two methods on the same pictures."""

    first: str
    second: str
    differences: tuple[GapDifference, ...]
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class FaithfulnessReport:
    """All of it; `lines.table` says it in lines."""

    pictures: int
    patches: int
    rows: tuple[MethodResult, ...]
    """The methods as they were given, then the baselines."""
    compared: tuple[FaithfulnessComparison, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; what could not be measured is absent."""
        return config.write(self)


# Is one map truer than another, or is it luck? Paired differences over the same pictures, and one verdict.

Verdict = Literal["truer", "less true", "inconclusive"]


@dataclass(frozen=True, kw_only=True)
class GapDifference:
    """How much larger one method's gap is than another's, on the same pictures, for one way of taking patches away."""

    way: RemovalMode
    mean: float
    interval: Interval
    """95 %, by drawing pictures (or whole groups of them) with replacement."""

    @property
    def is_significant(self) -> bool:
        """The interval excludes 0."""
        return self.interval.low > 0 or self.interval.high < 0


def paired_differences(
    first: Mapping[RemovalMode, Float64[np.ndarray, " B"]],
    second: Mapping[RemovalMode, Float64[np.ndarray, " B"]],
    seed: int = 0,
    groups: Shaped[np.ndarray, " B"] | None = None,
) -> tuple[GapDifference, ...]:
    """The first method's gaps less the second's, for every way that both have been measured in.

    Args:
        groups: of each picture, such as its patient: whole groups are drawn then.
    """
    found = []
    for way in first:
        apart = first[way] - second[way]
        interval = bootstrap_interval(apart, lambda rows: float(rows.mean()), seed, groups=groups)
        found.append(GapDifference(way=way, mean=float(apart.mean()), interval=interval))
    return tuple(found)


def decide_verdict(differences: tuple[GapDifference, ...]) -> Verdict:
    """The first is truer, or less true, if every way says so and no interval holds 0; otherwise nobody knows."""
    signs = {np.sign(one.mean) for one in differences}
    if len(signs) != 1 or not all(one.is_significant for one in differences):
        return "inconclusive"
    return "truer" if signs == {1.0} else "less true"
