"""Faithfulness benchmark of attribution methods on a model: curves, localization, randomization, and comparisons."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Shaped
from torch import Tensor

from ... import config
from ...data.sources.synthetic import SyntheticImages, SyntheticPairs
from ...errors import UsageError
from ...formatting import format_count
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
"""Images of the randomization test; each costs one map per block of the model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SyntheticTruth:
    """Ground truth of synthetic images; output k of the model must be class k of `synthetic.CLASSES`."""

    images: SyntheticImages
    """The measured images, in their order."""
    pairs: SyntheticPairs | None = None
    """Further images with two classes each."""
    spec: ImageSpec
    """Preprocessing of the pairs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FaithfulnessRequest:
    """The model and images to explain, and the options of the measurements."""

    model: ViT
    images: Float[Tensor, "B C H W"]
    classes: Int[Tensor, " B"]
    """The explained output of each image."""
    score: ScoreFunction = softmax_score
    """`curves.TASK_SCORES` has the one of each task."""
    synthetic: SyntheticTruth | None = None
    """Ground truth, for synthetic images."""
    num_shuffled: int = NUM_SHUFFLED
    """Images of the randomization test; 0 skips it."""
    points: int = NUM_POINTS
    """Points of every curve."""
    seed: int = 0
    groups: Shaped[np.ndarray, " B"] | None = None
    """Group of each image, such as its patient; intervals resample whole groups."""


def measure_faithfulness(methods: Mapping[str, MapFunction], request: FaithfulnessRequest) -> FaithfulnessReport:
    """Measure every method and the three baselines, and compare the methods pairwise.

    Each method is compared with the next in the given order, and with each baseline: what is only truer than noise may
    show the edges of the image. List the method expected to be most faithful first.

    Raises:
        UsageError: no methods, one with a baseline's name, or unusable maps; the message names the method.
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
    compared = []
    for first, second in (*pairwise(methods), *((name, other) for name in methods for other in BASELINES)):
        differences = paired_differences(gaps[first], gaps[second], request.seed, request.groups)
        compared.append(FaithfulnessComparison(first, second, differences, decide_verdict(differences)))
    return FaithfulnessReport(
        pictures=len(request.images),
        patches=patch_grid_of(request.model, request.images).patches,
        rows=tuple(rows),
        compared=tuple(compared),
    )


def _measure_method(
    name: str, method: MapFunction, request: FaithfulnessRequest
) -> tuple[MethodResult, dict[RemovalMode, Float64[np.ndarray, " B"]]]:
    """The results of one method, and its insertion minus deletion gaps per image."""
    maps = compute_maps(method, request.model, request.images, request.classes)
    baseline, flat = name in BASELINES, np.ptp(maps, axis=(1, 2)) == 0
    faithful: list[FaithfulnessAreas] = []
    gaps: dict[RemovalMode, Float64[np.ndarray, " B"]] = {}
    for way in removal_modes_for(request.model.config):
        curves = deletion_insertion_curves(
            request.model, request.images, request.classes, maps, way, request.score, request.points, request.seed
        )
        gaps[way] = curves.gap
        areas = (curves.deletion_area, curves.insertion_area, curves.gap)
        estimates = (_mean_estimate(one, request.seed, request.groups) for one in areas)
        faithful.append(FaithfulnessAreas(way, *estimates))
    result = MethodResult(method=name, baseline=baseline, faithful=tuple(faithful), flat=int(flat.sum()))
    if request.synthetic is not None:
        result = replace(result, located=_measure_localization(method, maps, request, request.synthetic, baseline))
    if request.num_shuffled and not baseline:
        result = replace(result, shuffled=_measure_randomization(method, request, ~flat))
    return result, gaps


def _measure_localization(
    method: MapFunction,
    maps: Float64[np.ndarray, "B rows columns"],
    request: FaithfulnessRequest,
    synthetic: SyntheticTruth,
    baseline: bool,
) -> LocalizationResult:
    scores = localization.score_localization(maps, synthetic.images)
    own_class, class_correlation = None, None
    if synthetic.pairs is not None and not baseline:
        sensitivity = localization.measure_class_sensitivity(method, request.model, synthetic.pairs, synthetic.spec)
        own_class = _mean_estimate(sensitivity.own_mass, request.seed)
        class_correlation = _mean_estimate(sensitivity.correlation, request.seed)
    return LocalizationResult(
        pointing=_mean_estimate(scores.pointing, request.seed, request.groups),
        in_box=_mean_estimate(scores.in_box, request.seed, request.groups),
        in_mask=_mean_estimate(scores.in_mask, request.seed, request.groups),
        overlap=_mean_estimate(scores.overlap, request.seed, request.groups),
        on_decoy=_mean_estimate(scores.on_decoy, request.seed, request.groups),
        on_tag=None if scores.on_tag is None else _mean_estimate(scores.on_tag, request.seed, request.groups),
        own_class=own_class,
        class_correlation=class_correlation,
        chance_pointing=scores.chance_pointing,
        chance_box=scores.chance_box,
        chance_mask=scores.chance_mask,
        best_box=scores.best_box,
        best_mask=scores.best_mask,
    )


def _measure_randomization(
    method: MapFunction, request: FaithfulnessRequest, usable: Bool[np.ndarray, " B"]
) -> MeanEstimate | None:
    """Randomization test on the first images with a map that is not constant; None without any."""
    few = np.flatnonzero(usable)[: request.num_shuffled].tolist()
    if not few:
        return None
    images, classes = request.images[few], request.classes[few]
    correlations = cascading_randomization(method, request.model, images, classes, request.seed)
    return _mean_estimate(correlations[-1], request.seed)


def _mean_estimate(
    values: Float64[np.ndarray, " n"], seed: int, groups: Shaped[np.ndarray, " n"] | None = None
) -> MeanEstimate:
    """Mean with its bootstrap interval over images, or over whole groups."""
    interval = bootstrap_interval(values, lambda rows: float(rows.mean()), seed, groups=groups)
    return MeanEstimate(float(values.mean()), interval)


# -- Results


@dataclass(frozen=True)
class MeanEstimate:
    """A mean over images with its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class FaithfulnessAreas:
    """Areas under the deletion and insertion curves of one removal mode."""

    way: RemovalMode
    deletion: MeanEstimate
    """The most relevant patches are removed first: small is faithful."""
    insertion: MeanEstimate
    """The most relevant patches are inserted first: large is faithful."""
    gap: MeanEstimate
    """Insertion minus deletion: large is faithful, 0 is random."""


@dataclass(frozen=True, kw_only=True)
class LocalizationResult:
    """Means of `localization.LocalizationScores` and `localization.ClassSensitivity`."""

    pointing: MeanEstimate
    in_box: MeanEstimate
    in_mask: MeanEstimate
    overlap: MeanEstimate
    on_decoy: MeanEstimate
    on_tag: MeanEstimate | None = None
    own_class: MeanEstimate | None = None
    """On images with two classes: fraction of the relevance on both glyphs that lies on the target's."""
    class_correlation: MeanEstimate | None = None
    """Correlation of the maps of the two classes; 1 for a class-agnostic method."""
    chance_pointing: float
    """Pointing of a random map."""
    chance_box: float
    """Fraction of the image that the box covers."""
    chance_mask: float
    """Fraction of the image that the glyph's pixels cover, or the decoy's."""
    best_box: float
    """`in_box` of a perfect map."""
    best_mask: float
    """`in_mask` of a perfect map."""


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """The results of one method."""

    method: str
    baseline: bool
    """Independent of the model: noise, centre prior, or image edges."""
    faithful: tuple[FaithfulnessAreas, ...]
    located: LocalizationResult | None = None
    flat: int
    """Number of constant maps, whose patches are removed in random order."""
    shuffled: MeanEstimate | None = None
    """Rank correlation with the map after all weights are shuffled: should be near 0."""


@dataclass(frozen=True)
class FaithfulnessComparison:
    """Comparison of two methods on the same images."""

    first: str
    second: str
    differences: tuple[GapDifference, ...]
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class FaithfulnessReport:
    """Results of all methods; `format_faithfulness` prints them."""

    pictures: int
    patches: int
    rows: tuple[MethodResult, ...]
    """The methods in the given order, then the baselines."""
    compared: tuple[FaithfulnessComparison, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; unmeasured values are absent."""
        return config.write(self)


# -- Paired comparison

Verdict = Literal["truer", "less true", "inconclusive"]


@dataclass(frozen=True, kw_only=True)
class GapDifference:
    """Mean difference of two methods' gaps on the same images, for one removal mode."""

    way: RemovalMode
    mean: float
    interval: Interval
    """95 % bootstrap interval over images, or whole groups."""

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval.low > 0 or self.interval.high < 0


def paired_differences(
    first: Mapping[RemovalMode, Float64[np.ndarray, " B"]],
    second: Mapping[RemovalMode, Float64[np.ndarray, " B"]],
    seed: int = 0,
    groups: Shaped[np.ndarray, " B"] | None = None,
) -> tuple[GapDifference, ...]:
    """Mean of the first method's gaps minus the second's, for every removal mode.

    Args:
        groups: group of each image, such as its patient; whole groups are resampled.
    """
    means = {way: _mean_estimate(first[way] - second[way], seed, groups) for way in first}
    return tuple(GapDifference(way=way, mean=one.value, interval=one.interval) for way, one in means.items())


def decide_verdict(differences: tuple[GapDifference, ...]) -> Verdict:
    """A verdict if every removal mode agrees and no interval includes 0; otherwise inconclusive."""
    signs = {np.sign(one.mean) for one in differences}
    if len(signs) != 1 or not all(one.is_significant for one in differences):
        return "inconclusive"
    return "truer" if signs == {1.0} else "less true"


# -- Model parameter randomization (Adebayo et al. 2018)


def cascading_randomization(
    method: MapFunction, model: ViT, images: Float[Tensor, "B C H W"], classes: Int[Tensor, " B"], seed: int = 0
) -> Float64[np.ndarray, "parts B"]:
    """Cascading randomization: shuffle the head, then the last block too, and so on down to the patch projection.

    A method whose map does not change shows the image, not the model. Adebayo et al. draw new weights; here the values
    of each tensor are permuted, which keeps their scale, so that for example a layer scale initialised near zero does
    not switch a block off. The model itself is not changed.

    Returns:
        Spearman correlation of each map with that of the trained model, after each of `model_parts`; 0 for a constant
        map. The last row is near 0 for a method that depends on the model.

    Raises:
        UsageError: as `compute_maps`; or a map of the trained model is constant, which has no correlation.

    Source: Adebayo et al. 2018, "Sanity checks for saliency maps", section 4.1.
    """
    trained = _rank_maps(compute_maps(method, model, images, classes))
    if (flat := trained.std(1) == 0).any():
        raise UsageError(
            f"The map of picture {int(flat.argmax())} (from 0) is the same everywhere, so nothing can be like it."
        )
    shuffled, correlations = copy.deepcopy(model), []
    for part in model_parts(model):
        shuffle_parameters(shuffled, part, seed)
        correlations.append(row_correlation(trained, _rank_maps(compute_maps(method, shuffled, images, classes))))
    return np.stack(correlations)


def model_parts(model: ViT) -> tuple[str, ...]:
    """The parts in the order of shuffling; each is a prefix of parameter names."""
    blocks = (f"encoder.blocks.{i}." for i in reversed(range(model.config.depth)))
    order = ("head.", "pool.", "encoder.norm.", *blocks, "encoder.pre_norm.", "rotary.", "positions.", "tokens.")
    names = [name for name, parameter in model.named_parameters() if parameter.numel() > 1]
    return tuple(part for part in order if any(name.startswith(part) for name in names))


def shuffle_parameters(model: ViT, part: str, seed: int) -> None:
    """Permute the values of every parameter of a part, each within itself."""
    for name, parameter in model.named_parameters():
        if name.startswith(part):
            generator = torch.Generator().manual_seed(derive(seed, f"shuffled {name}"))
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            with torch.no_grad():
                parameter.copy_(parameter.flatten()[order].view_as(parameter))


def _rank_maps(maps: Float64[np.ndarray, "B rows columns"]) -> Float64[np.ndarray, "B N"]:
    from scipy.stats import rankdata

    return np.asarray(rankdata(maps.reshape(len(maps), -1), axis=1), np.float64)


# -- The report as text: three tables, and a sentence for each comparison

VERDICT_WORDS: dict[Verdict, str] = {
    "truer": "is truer than",
    "less true": "is less true than",
    "inconclusive": "cannot be distinguished from",
}
REMOVAL_NAMES = {"drop": "patches dropped", "blur": "patches blurred", "mean": "patches painted in the mean"}


def format_faithfulness(report: FaithfulnessReport) -> str:
    """The report for the terminal; intervals are 95 %."""
    lines = [
        f"{format_count(report.pictures, 'picture')} of {report.patches} patches; intervals are 95 %",
        "",
        *_area_table(report),
    ]
    if report.rows[0].located is not None:
        lines += ["", *_localization_table(report, report.rows[0].located)]
    if any(row.shuffled is not None for row in report.rows):
        lines += ["", *_randomization_table(report)]
    lines += ["", *(_describe_comparison(one) for one in report.compared)]
    lines += [
        f"{row.method} says nothing of {format_count(row.flat, 'picture')}: the same everywhere"
        for row in report.rows
        if row.flat
    ]
    return "\n".join(lines)


def _area_table(report: FaithfulnessReport) -> list[str]:
    cells = [("insertion less deletion", *(REMOVAL_NAMES[one.way] for one in report.rows[0].faithful))]
    cells += [(row.method, *(_format_estimate(one.gap) for one in row.faithful)) for row in report.rows]
    return _align_columns(cells)


def _localization_table(report: FaithfulnessReport, first: LocalizationResult) -> list[str]:
    """One row a method, one column a score; the last rows are chance and a perfect map."""
    has_tag, has_pairs = first.on_tag is not None, first.own_class is not None
    names = ["pointing", "in box", "in mask", "on decoy", *["on tag"] * has_tag]
    cells = [("planted evidence", *names, *["own class", "class correlation"] * has_pairs)]
    for row in report.rows:
        at = row.located
        assert at is not None
        estimates = [
            at.pointing,
            at.in_box,
            at.in_mask,
            at.on_decoy,
            *[at.on_tag] * has_tag,
            *[at.own_class] * has_pairs,
        ]
        correlation = "" if at.class_correlation is None else f"{at.class_correlation.value:.2f}"
        cells.append((row.method, *map(_format_share, estimates), *[correlation] * has_pairs))
    chance = (first.chance_pointing, first.chance_box, first.chance_mask, first.chance_mask)
    for name, shares in (("chance", chance), ("a perfect map", (1.0, first.best_box, first.best_mask))):
        known = (name, *(f"{100 * share:.1f} %" for share in shares))
        cells.append((*known, *[""] * (len(cells[0]) - len(known))))
    return _align_columns(cells)


def _randomization_table(report: FaithfulnessReport) -> list[str]:
    cells = [("after all weights are shuffled", "rank correlation with the trained model's map")]
    cells += [(row.method, _format_estimate(row.shuffled)) for row in report.rows if row.shuffled is not None]
    return _align_columns(cells)


def _describe_comparison(comparison: FaithfulnessComparison) -> str:
    differences = ", ".join(
        f"{each.way} {_format_estimate(MeanEstimate(each.mean, each.interval))}" for each in comparison.differences
    )
    return f"{comparison.first} {VERDICT_WORDS[comparison.verdict]} {comparison.second}: {differences}"


def _format_estimate(estimate: MeanEstimate) -> str:
    return f"{estimate.value:+.3f} ({estimate.interval.low:+.3f} to {estimate.interval.high:+.3f})"


def _format_share(estimate: MeanEstimate | None) -> str:
    return "" if estimate is None else f"{100 * estimate.value:.1f} %"


def _align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns: the first one left, the others right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [
        "  ".join(
            [row[0].ljust(first), *(cell.rjust(wide) for cell, wide in zip(row[1:], others, strict=True))]
        ).rstrip()
        for row in rows
    ]
