"""Cases: the images of one group, such as the films of a patient, answered together.

The answer of a case is a weighted mean of what its images say (calibrated probabilities, or numbers): equal weights
(`mean`), all weight on the most extreme image (`max`), or weights by a learned query on the images' features
(`attention`, the one-query form of `pool attention`: Ilse et al. 2018, "Attention-based deep multiple instance
learning"; a query alone has D parameters, which some dozens of validation cases can fit). Everything is fitted on
validation cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64, Shaped

from .. import config
from ..data.source import Task
from ..errors import DamagedFileError, DataError, UsageError
from ..formatting import format_count
from ..randomness import permutation
from .calibration import TargetScaling, fit_temperature
from .decisions import UNLIKE, Decisions, fit_decisions, predictions_from_outputs, read_decisions
from .metrics import CASES_SUFFIX
from .predictions import (
    UNKNOWN_CLASS,
    ClassificationPredictions,
    RegressionPredictions,
    TableT,
    TaskPredictions,
    output_names,
)
from .thresholds import CaseSetting, DecisionSettings

CASES_KEY = "cases"
"""The key of a `CasePool` in the notes of a bundle."""
PoolMethod = Literal["mean", "max", "attention"]
POOL_METHODS: tuple[PoolMethod, ...] = get_args(PoolMethod)
CASE_TASKS = ("classification", "multilabel", "regression")
MIN_CASES = 20
"""Validation cases that attention over images takes, and a temperature of cases: fewer than of images (`MIN_IMAGES`),
because pooled probabilities are not calibrated before either."""
NUM_FOLDS = 5
"""Parts of the validation cases: each is answered by an attention that was fitted to the others."""
PENALTIES = (0.3, 0.03, 0.003)
"""Weights of the squared length of the query in its loss, of which the best by these parts is taken."""
SMALLEST_PROBABILITY = 1e-12


@dataclass(frozen=True, kw_only=True)
class PoolLoss:
    """What one pool reached on the validation cases."""

    method: PoolMethod
    loss: float
    """Mean log loss of the calibrated cases, or mean squared error; of attention with each case left out of its fit."""


@dataclass(frozen=True, kw_only=True)
class CasePool:
    """How the images of a case become one answer, as a bundle stores it."""

    method: PoolMethod
    temperature: tuple[float, ...] = ()
    """Of the images, as in `Decisions`, whatever decision of them is in use."""
    query: tuple[float, ...] = ()
    """Of attention: D numbers; the product with an image's features is its score."""
    decisions: Decisions = field(default_factory=Decisions)
    """Calibration, thresholds and sets of cases."""
    cases: int = 0
    """Validation cases that it was fitted to."""
    losses: tuple[PoolLoss, ...] = ()
    """What each pool that was tried reached on them."""
    reason: str = "asked for"
    """Why this pool."""

    def describe(self) -> str:
        """The pool in some words."""
        how = {
            "mean": "the mean of what their pictures say",
            "max": "the largest of what their pictures say",
            "attention": "what their pictures say, weighted by attention",
        }[self.method]
        return f"{how} ({self.reason})"

    def score_images(self, features: Float[np.ndarray, "n D"]) -> Float32[np.ndarray, " n"]:
        """The attention score of each image; 0 for a pool without attention."""
        if not self.query:
            return np.zeros(len(features), np.float32)
        return np.asarray(features.astype(np.float64) @ np.array(self.query)).astype(np.float32)

    def weigh_images(
        self,
        values: Float64[np.ndarray, "n K"],
        scores: Float[np.ndarray, " n"],
        members: Int64[np.ndarray, " n"],
        positive: int | None = None,
    ) -> Float64[np.ndarray, "n K"]:
        """The weight of each image in its case, for each output; they sum to 1.

        Args:
            values: what the images say.
            members: the case of each image, 0..m-1.
            positive: of two classes, the one that `max` looks at.
        """
        if self.method == "max":
            ranked = np.repeat(values[:, [positive]], values.shape[1], 1) if positive is not None else values
            largest = np.full((members.max(initial=-1) + 1, values.shape[1]), -np.inf)
            np.maximum.at(largest, members, ranked)
            raw = (ranked == largest[members]).astype(np.float64)  # images that say the same share it
        else:
            tops = np.full(members.max(initial=-1) + 1, -np.inf)
            logits = scores.astype(np.float64) if self.method == "attention" else np.zeros(len(members))
            np.maximum.at(tops, members, logits)
            raw = np.repeat(np.exp(logits - tops[members])[:, None], values.shape[1], 1)
        return raw / sum_by_case(raw, members)[members]

    def pool_images(
        self,
        task: Task,
        inputs: Float[np.ndarray, "n I"],
        members: Int64[np.ndarray, " n"],
        positive: int | None = None,
    ) -> PooledCases:
        """Outputs of m cases from what the model computed of their n images.

        Args:
            inputs: the K outputs of each image, and its attention score.
            members, positive: as in `weigh_images`.
        """
        values = image_values(task, inputs[:, :-1], self.temperature)
        weights = self.weigh_images(values, inputs[:, -1], members, positive)
        return PooledCases(to_outputs(task, sum_by_case(weights * values, members)), values, weights)


class PooledCases(NamedTuple):
    """Cases before anything is decided."""

    outputs: Float64[np.ndarray, "m K"]
    """As a model's outputs: logits, or standardized numbers."""
    values: Float64[np.ndarray, "n K"]
    """What each image says: its calibrated probabilities, or numbers."""
    weights: Float64[np.ndarray, "n K"]
    """The weight of each image."""


def image_values(
    task: Task, outputs: Float[np.ndarray, "n K"], temperature: tuple[float, ...]
) -> Float64[np.ndarray, "n K"]:
    """What images say: calibrated probabilities, or standardized numbers."""
    if task == "regression":
        return outputs.astype(np.float64)
    return Decisions(temperature=temperature).predict_proba(task, outputs).astype(np.float64)


def to_outputs(task: Task, pooled: Float64[np.ndarray, "m K"]) -> Float64[np.ndarray, "m K"]:
    """Pooled values as outputs of a model."""
    if task == "regression":
        return pooled
    logs = np.log(np.maximum(pooled, SMALLEST_PROBABILITY))
    return logs if task == "classification" else logs - np.log(np.maximum(1 - pooled, SMALLEST_PROBABILITY))


def sum_by_case(values: Float64[np.ndarray, "n K"], members: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "m K"]:
    """The sum over the images of each case."""
    sums = np.zeros((members.max(initial=-1) + 1, values.shape[1]))
    np.add.at(sums, members, values)
    return sums


# -- The cases of some images, and their targets


def index_cases(groups: Sequence[object] | np.ndarray) -> tuple[tuple[str, ...], Int64[np.ndarray, " n"]]:
    """Names of the cases, in the order of their first image, and the case of each image."""
    numbers: dict[str, int] = {}
    members = [numbers.setdefault(str(name), len(numbers)) for name in groups]
    return tuple(numbers), np.array(members, np.int64)


def find_case_targets(
    targets: Shaped[np.ndarray, " n *K"], names: Sequence[str], members: Int64[np.ndarray, " n"], outputs: Sequence[str]
) -> Shaped[np.ndarray, " m *K"]:
    """The target of each case: that of its images, unknown where it is of all of them.

    Args:
        targets: class indices [n], -1 where unknown; or [n, K], NaN where unknown.
        names: of the cases. outputs: of the classes, labels or columns, for the message.

    Raises:
        DataError: images of one case have different targets.
    """
    is_class = targets.ndim == 1
    table = (np.where(targets < 0, np.nan, targets)[:, None] if is_class else targets).astype(np.float64)  # [n, C]
    low, high = np.full((2, len(names), table.shape[1]), np.nan)
    np.fmin.at(low, members, table)
    np.fmax.at(high, members, table)
    if len(wrong := np.argwhere(low < high)):
        case, column = wrong[0].tolist()
        first, second = low[case, column], high[case, column]
        of = f"{outputs[column]} {first:g} and {second:g}"
        if is_class:
            of = f"{outputs[int(first)]} and of {outputs[int(second)]}"
        raise DataError(
            f"Pictures of one case share one answer, and case {names[case]!r} has pictures of {of}: group them by "
            "another column, or mend that."
        )
    if is_class:
        return np.where(np.isnan(low[:, 0]), UNKNOWN_CLASS, low[:, 0]).astype(np.int64)
    return low.astype(targets.dtype)


def check_case_settings(
    setting: CaseSetting, task: Task, groups: np.ndarray | None, validation_groups: np.ndarray | None, folds: int
) -> None:
    """Refuse cases that cannot be had, before anything is trained.

    Args:
        groups: of all images. validation_groups: of the validation images.

    Raises:
        UsageError: another task, no groups, several folds, or too few validation cases for attention.
    """
    if setting == "none":
        return
    if task not in CASE_TASKS:
        raise UsageError(
            f"--case {setting} pools answers of whole pictures, of classes, labels or numbers, and the task is {task}. "
            "Leave it out."
        )
    if groups is None or validation_groups is None:
        raise UsageError(
            f"--case {setting} answers the pictures of one group together, and these have no groups. Name the column "
            "of the patient or module with --group."
        )
    if folds:
        raise UsageError(
            f"--case {setting} is fitted on the validation cases of one run, and --folds trains several. Leave one out."
        )
    count = len(np.unique(validation_groups))
    if setting == "attention" and count < MIN_CASES:
        raise UsageError(
            f"--case attention is fitted to validation cases and takes {MIN_CASES} of them; there are "
            f"{count}. Take --case mean, or a larger --data.val_fraction."
        )


# -- Predictions of cases


def predict_cases(
    pool: CasePool,
    task: Task,
    scaling: TargetScaling | None,
    predictions: TableT,
    groups: Sequence[object] | np.ndarray,
) -> TableT:
    """The table of images with its cases: `cases` (a row each), `case_names` and `shares` of the images.

    The row of a case has its name as id, and as path that of the image with the largest share. It abstains as `unlike`
    where all of its images do.

    Args:
        scaling: of the targets of regression.
        groups: the case of each image.

    Raises:
        UsageError: not one group for each image, or a table without what the pool reads.
        DataError: as `find_case_targets`.
    """
    if len(groups) != len(predictions):
        raise UsageError(
            f"Each of {format_count(len(predictions), 'picture')} needs the name of its case. Got {len(groups):,}."
        )
    if predictions.pool_inputs is None:
        raise UsageError("Cases are pooled from what a model computes of pictures. Predict with the run itself.")
    outputs = output_names(predictions)
    names, members = index_cases(groups)
    positive = outputs.index(pool.decisions.positive) if pool.decisions.positive else None
    pooled = pool.pool_images(task, predictions.pool_inputs, members, positive)
    targets = predictions.targets
    table: Any = predictions_from_outputs(
        task, pooled.outputs, outputs, scaling, [("", name) for name in names],
        f"{predictions.split}{CASES_SUFFIX}" if predictions.split else "",
        None if targets is None else find_case_targets(targets, names, members, outputs),
        decisions=pool.decisions,
    )  # fmt: skip
    shares = compute_shares(table, pooled, members)
    order = np.lexsort((-shares, members))  # by case, the largest share first, of equal ones the first image
    loudest = order[np.unique(members[order], return_index=True)[1]].tolist()
    unlike = np.ones(len(names), bool)
    np.logical_and.at(unlike, members, [why == UNLIKE for why in predictions.abstain_column()])
    reasons = [
        UNLIKE if far else why for far, why in zip(unlike, table.abstain_reasons or [""] * len(names), strict=True)
    ]
    table = replace(
        table,
        paths=tuple(predictions.paths[row] for row in loudest),
        abstain_reasons=tuple(reasons) if any(reasons) else (),
        is_unlike_known=predictions.is_unlike_known,
    )
    return replace(predictions, cases=table, case_names=tuple(names[case] for case in members), shares=shares)


def compute_shares(
    table: TaskPredictions, pooled: PooledCases, members: Int64[np.ndarray, " n"]
) -> Float32[np.ndarray, " n"]:
    """The share of each image in the answer of its case: its part of the pooled probability of the class that was
    answered, or of the likeliest label; of numbers its weight. They sum to 1 in each case.
    """
    if isinstance(table, RegressionPredictions):
        return pooled.weights.mean(1).astype(np.float32)
    answered = table.indices if isinstance(table, ClassificationPredictions) else table.probabilities.argmax(1)
    rows = np.arange(len(members))
    parts = (pooled.weights * pooled.values)[rows, answered[members]]
    sums = np.bincount(members, parts, minlength=len(table))[members]
    return np.divide(parts, sums, out=pooled.weights[rows, answered[members]].copy(), where=sums > 0).astype(np.float32)


# -- Fitting


def fit_case_pool(
    setting: CaseSetting,
    task: Task,
    settings: DecisionSettings,
    classes: tuple[str, ...],
    scaling: TargetScaling | None,
    outputs: Float[np.ndarray, "n K"],
    features: Float[np.ndarray, "n D"],
    targets: Shaped[np.ndarray, " n *K"],
    groups: np.ndarray,
    temperature: tuple[float, ...],
    seed: int = 0,
) -> CasePool:
    """Fit the pool that a setting asks for to validation images, and the decisions of its cases.

    "auto" takes mean or max, whichever has the smaller loss on these cases, and attention only where its loss, each
    case left out of its fit, is smaller than that by more than a standard error of the difference.

    Args:
        outputs, features: of the images, before any calibration.
        targets: in the user's units for regression.
        temperature: of the images.
    """
    names, members = index_cases(groups)
    truth = find_case_targets(targets, names, members, classes)
    positive = classes.index(settings.positive) if settings.positive else None
    tried: dict[PoolMethod, _Trial] = {}
    for method in POOL_METHODS if setting == "auto" else (setting,):
        assert method != "none"
        if method != "attention":
            pool = CasePool(method=method, temperature=temperature)
            inputs = np.column_stack([outputs, np.zeros(len(outputs), np.float32)])
            pooled = pool.pool_images(task, inputs, members, positive).outputs
            tried[method] = _Trial(pool, pooled, _case_losses(task, pooled, truth, scaling))
        elif len(names) >= MIN_CASES:
            tried[method] = _try_attention(task, outputs, features, members, truth, scaling, temperature, seed)
    method, reason = _choose_pool(setting, tried, len(names))
    chosen = tried[method]
    answers = chosen.outputs if scaling is None else scaling.unstandardize(chosen.outputs)
    decisions = (
        fit_decisions(task, settings, classes, answers, truth, min_images=MIN_CASES)
        if len(names)
        else Decisions(ordered=settings.ordered, miss=settings.conformal_alpha, positive=settings.positive)
    )
    losses = tuple(
        PoolLoss(method=name, loss=float(trial.losses.mean())) for name, trial in tried.items() if len(trial.losses)
    )
    return replace(chosen.pool, decisions=decisions, cases=len(names), losses=losses, reason=reason)


class _Trial(NamedTuple):
    """A pool on the validation cases."""

    pool: CasePool
    outputs: Float64[np.ndarray, "m K"]
    losses: Float64[np.ndarray, " c"]
    """Of the cases with a known target."""


def _choose_pool(setting: CaseSetting, tried: Mapping[PoolMethod, _Trial], count: int) -> tuple[PoolMethod, str]:
    """The pool to take and why."""
    if len(tried) == 1:
        return next(iter(tried)), "asked for"
    cases = format_count(count, "validation case")
    if not len(tried["mean"].losses):
        return "mean", "no validation case has a known target to choose by"
    plain: PoolMethod = min(("mean", "max"), key=lambda name: float(tried[name].losses.mean()))
    if "attention" not in tried:
        few = f"attention takes {MIN_CASES}"
        return plain, f"the smaller loss of mean and max on {cases}; {few}"
    gains = tried[plain].losses - tried["attention"].losses
    error = float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else np.inf
    if gains.mean() > error:
        return "attention", f"on {cases} its loss is {gains.mean():.3f} below that of {plain}, give or take {error:.3f}"
    return plain, (
        f"the smaller loss of mean and max on {cases}; attention changes it by {-gains.mean():+.3f}, give or take "
        f"{error:.3f}"
    )


def _case_losses(
    task: Task, outputs: Float64[np.ndarray, "m K"], truth: Shaped[np.ndarray, " m *K"], scaling: TargetScaling | None
) -> Float64[np.ndarray, " c"]:
    """The loss of each case with a known target: log loss at the temperature that suits these cases, or squared error
    in standard deviations.
    """
    if task == "regression":
        assert scaling is not None
        errors = np.square(outputs - scaling.standardize(truth))
        known = ~np.isnan(errors).all(1)
        return np.asarray(np.nanmean(errors[known], axis=1))
    logits = outputs / np.array(fit_temperature(task, outputs, truth, min_images=1) or (1.0,))
    if task == "classification":
        known = truth >= 0
        logits = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        return np.asarray(-logits[known, truth[known]])
    losses = np.logaddexp(0, logits) - truth * logits
    known = ~np.isnan(losses).all(1)
    return np.asarray(np.nanmean(losses[known], axis=1))


def _try_attention(
    task: Task,
    outputs: Float[np.ndarray, "n K"],
    features: Float[np.ndarray, "n D"],
    members: Int64[np.ndarray, " n"],
    truth: Shaped[np.ndarray, " m *K"],
    scaling: TargetScaling | None,
    temperature: tuple[float, ...],
    seed: int,
) -> _Trial:
    """Fit attention to all cases; its outputs and losses are those of each case left out, by `NUM_FOLDS` parts."""
    mean, deviation = features.mean(0, dtype=np.float64), features.std(0, dtype=np.float64)
    scaled = (features - mean) / np.where(deviation > 0, deviation, np.inf)  # [n, D]
    values = image_values(task, outputs, temperature)
    if task == "classification":
        wanted = np.where(truth[:, None] < 0, np.nan, np.eye(values.shape[1])[truth])
    else:
        wanted = (truth if scaling is None else scaling.standardize(truth)).astype(np.float64)
    parts = permutation(seed, "cases", 0, len(truth)) % NUM_FOLDS  # of each case
    best: tuple[float, float, np.ndarray, np.ndarray] | None = None
    for penalty in PENALTIES:
        scores = np.zeros(len(members))
        for part in range(NUM_FOLDS):
            learnt, held = parts[members] != part, parts[members] == part
            query = _fit_query(task, scaled[learnt], values[learnt], members[learnt], wanted, penalty)
            scores[held] = scaled[held] @ query
        pool = CasePool(method="attention")
        weights = pool.weigh_images(values, scores, members)
        pooled = to_outputs(task, sum_by_case(weights * values, members))
        losses = _case_losses(task, pooled, truth, scaling)
        loss = float(losses.mean()) if len(losses) else np.inf
        if best is None or loss < best[0]:
            best = loss, penalty, pooled, losses
    assert best is not None
    query = _fit_query(task, scaled, values, members, wanted, best[1]) / np.where(deviation > 0, deviation, np.inf)
    pool = CasePool(method="attention", temperature=temperature, query=tuple(query.tolist()))
    return _Trial(pool, best[2], best[3])


def _fit_query(
    task: Task,
    features: Float64[np.ndarray, "n D"],
    values: Float64[np.ndarray, "n K"],
    members: Int64[np.ndarray, " n"],
    wanted: Float64[np.ndarray, "m K"],
    penalty: float,
) -> Float64[np.ndarray, " D"]:
    """The query with the smallest mean loss over the cases of `members`, plus its penalty; from 0, which is the mean.

    Args:
        wanted: of all cases: 0 and 1 for classes and labels, standardized numbers; NaN where unknown.
    """
    from scipy.optimize import minimize

    present, members = np.unique(members, return_inverse=True)
    wanted = wanted[present]  # [m, K]
    known = ~np.isnan(wanted)
    target, pool, count = np.where(known, wanted, 0.0), CasePool(method="attention"), max(int(known.any(1).sum()), 1)

    def loss_and_slope(query: np.ndarray) -> tuple[float, np.ndarray]:
        weights = pool.weigh_images(values, features @ query, members)
        pooled = sum_by_case(weights * values, members)  # [m, K]
        if task == "regression":
            losses, slopes = np.square(pooled - target), 2 * (pooled - target)
        else:
            p = pooled.clip(SMALLEST_PROBABILITY, 1 - 1e-9)
            losses, slopes = -target * np.log(p), -target / p
            if task == "multilabel":
                losses, slopes = losses - (1 - target) * np.log1p(-p), slopes + (1 - target) / (1 - p)
        slopes = np.where(known, slopes, 0.0) / count
        of_scores = weights[:, 0] * (slopes[members] * (values - pooled[members])).sum(1)  # [n]
        loss = float(np.where(known, losses, 0.0).sum()) / count + penalty * float(query @ query)
        return loss, features.T @ of_scores + 2 * penalty * query

    start = np.zeros(features.shape[1])
    return np.asarray(minimize(loss_and_slope, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x)


def describe_case_limits(pool: CasePool, task: Task) -> list[str]:
    """What too few validation cases leave undecided, in sentences."""
    if task == "regression" or pool.decisions.temperature or pool.cases >= MIN_CASES:
        return []
    return [
        f"Probabilities of cases are not calibrated, which takes {MIN_CASES} validation cases and had {pool.cases:,}."
    ]


def read_case_pool(
    info: Mapping[str, object], task: Task, classes: tuple[str, ...], width: int, where: str
) -> CasePool | None:
    """Read the pool from the notes of a bundle; None if it has none.

    Raises:
        DamagedFileError: the note is no pool for this model.
    """
    if CASES_KEY not in info:
        return None
    noted = info[CASES_KEY]
    try:
        if not isinstance(noted, Mapping):
            raise UsageError(f"{where}: {CASES_KEY} must be a table. Got {noted!r}.")
        pool = config.read(CasePool, noted, where)
    except UsageError as error:
        raise DamagedFileError(f"{error} Use another copy.") from error
    fits = len(pool.query) == (width if pool.method == "attention" else 0)
    if task not in CASE_TASKS or not fits or not np.isfinite(pool.query).all() or min((*pool.temperature, 1.0)) <= 0:
        raise DamagedFileError(f"{where}: {CASES_KEY} must be a pool for {task} of width {width}. Use another copy.")
    read_decisions({"decisions": noted.get("decisions", {})}, task, classes, where)  # which checks their sizes
    return pool
