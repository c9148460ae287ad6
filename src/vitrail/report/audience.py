"""First page of a report for one audience, radiology or inspection: error rates, abstention, failures and limits.

`AudienceRequest` holds the options, `build_first_page` what both audiences share, and `radiology_context` and
`inspection_context` what their templates need beyond that.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ..data.source import Task
from ..errors import UsageError
from ..evaluate.anomaly_metrics import AnomalyMetrics
from ..evaluate.decisions import describe_limits as explain_missing_fits
from ..evaluate.metrics import ClassificationMetrics
from ..evaluate.predictions import ClassificationPredictions, TaskPredictions, output_names
from ..evaluate.task_metrics import TaskMetrics
from ..evaluate.thresholds import MIN_PER_SIDE
from ..formatting import format_count
from ..stats.intervals import Interval
from . import charts, extra_findings, provenance, saliency
from .charts import IconArrayCounts
from .curves_section import read_validation
from .extra_findings import ExtraFindings
from .operating_points import (
    BinaryTarget,
    ThresholdChoices,
    WrongPrediction,
    binary_targets,
    compute_operating_points,
    find_worst_failures,
    target_class_indices,
)
from .proportions import Proportion, estimate_proportion
from .provenance import Provenance, ReportFacts, read_provenance
from .task_sections import find_largest_confusions
from .thumbnails import Thumbnails
from .uncertainty import AbstentionSummary, summarize_abstention

Audience = Literal["radiology", "inspection"]


@dataclass(frozen=True, kw_only=True)
class AudienceRequest:
    """Options of the first page."""

    audience: Audience
    positive: str = ""
    """The only class or label on the page; empty: all labels, or see `operating_points.target_class_indices`."""
    prevalence: str = ""
    """Prevalence where the model will be used: "0.05", or "NAME=0.05,OTHER=0.01"."""
    parts_per_minute: float | None = None
    """Throughput of the inspected line."""
    hours: float | None = None
    """Length of a shift."""

    def __post_init__(self) -> None:
        paced = (self.parts_per_minute, self.hours)
        if self.audience != "inspection" and paced != (None, None):
            raise UsageError("--parts-per-minute and --hours are for --for inspection. Leave them out.")
        if (self.parts_per_minute is None) != (self.hours is None):
            raise UsageError("--parts-per-minute and --hours make the parts of a shift together. Give both or neither.")
        for name, value in (("--parts-per-minute", self.parts_per_minute), ("--hours", self.hours)):
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"{name} must be above 0. Got {value:g}.")

    @property
    def parts_per_shift(self) -> float | None:
        """Parts in a shift, if given."""
        return None if self.parts_per_minute is None or self.hours is None else self.parts_per_minute * 60 * self.hours

    def check_run(self, task: Task, names: Sequence[str]) -> None:
        """Check the request against a run.

        Raises:
            UsageError: a regression run, or `positive` is none of its classes or labels.
        """
        if task == "regression":
            raise UsageError(
                f"--for {self.audience} speaks of what is found and missed, and this run answers with numbers. "
                "Leave --for out."
            )
        if task == "segmentation":
            raise UsageError(f"--for {self.audience} speaks of pictures, and this run answers pixels. Leave --for out.")
        if task == "anomaly":
            raise UsageError("The report of an anomaly run is one of inspection already. Leave --for out.")
        if self.positive and self.positive not in names:
            what = "classes" if task == "classification" else "labels"
            raise UsageError(f"--positive must be one of the {what} {_join_names(names)}. Got {self.positive!r}.")

    def parse_prevalences(self, names: Sequence[str]) -> dict[str, float]:
        """Parse the prevalences, by name.

        Args:
            names: the classes or labels on the page.

        Raises:
            UsageError: no fraction, a name that is not on the page, or one fraction for several names.
        """
        prevalences: dict[str, float] = {}
        for word in filter(None, map(str.strip, self.prevalence.split(","))):
            name, equals, text = word.rpartition("=")
            if not equals and len(names) > 1:
                raise UsageError(
                    f"--prevalence {word} is one share, and this page speaks of {len(names)}: write "
                    f"--prevalence {names[0]}={word},{names[1]}=..., or name one with --positive."
                )
            name = name if equals else names[0]
            if name not in names:
                raise UsageError(f"--prevalence must name one of {_join_names(names)}. Got {name!r}.")
            try:
                share = float(text)
            except ValueError:
                share = -1.0
            if not 0 < share < 1:
                raise UsageError(f"--prevalence must be a share between 0 and 1, for example 0.05. Got {text!r}.")
            prevalences[name] = share
        return prevalences


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


# -- What both audiences share


class MissingItem(NamedTuple):
    """Something that the audience needs and this report does not have."""

    what: str
    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class FirstPage:
    """The content that both audiences share."""

    request: AudienceRequest
    targets: list[BinaryTarget]
    target_guessed: bool
    """Whether the positive one of two classes was not given."""
    abstention: AbstentionSummary
    misses: list[WrongPrediction]
    false_alarms: list[WrongPrediction]
    limits: list[str]
    """Sentences on the limits of the evaluation."""
    provenance: Provenance
    extra_findings: ExtraFindings
    num_train_copies: int
    """Images of the table that are exact or near copies of training images, among those that the check compared."""
    partly_checked: str
    """How many images the check looked at, if not all; empty otherwise."""
    has_maps: bool
    """Whether the report has attribution maps."""

    @property
    def worst(self) -> WrongPrediction | None:
        """The worst miss, or without misses the worst false alarm."""
        return next(iter([*self.misses, *self.false_alarms]), None)

    @property
    def most_missed(self) -> BinaryTarget | None:
        """The target with the highest miss rate; rare targets only where all are rare."""
        return _highest_rate([(one.miss_rate.value, one) for one in self.targets if one.miss_rate is not None])

    @property
    def most_false_alarms(self) -> BinaryTarget | None:
        """The target with the highest false alarm rate; rare targets only where all are rare."""
        rates = [(one.false_alarm_rate.value, one) for one in self.targets if one.false_alarm_rate is not None]
        return _highest_rate(rates)


def build_first_page(
    facts: ReportFacts,
    metrics: TaskMetrics,
    predictions: TaskPredictions,
    folder: Path,
    request: AudienceRequest,
    images: Thumbnails,
) -> FirstPage:
    """Build the first page from the files of a run.

    Raises:
        UsageError: the request does not fit the run.
        DamagedFileError: a stored file that cannot be read.
    """
    names, groups = output_names(predictions), provenance.load_groups(folder, len(predictions))
    request.check_run(facts.task, names)
    if isinstance(predictions, ClassificationPredictions):
        names = tuple(names[index] for index in target_class_indices(predictions, facts.decisions, request.positive))
    prevalences = request.parse_prevalences((request.positive,) if request.positive else names)
    targets = binary_targets(predictions, facts.decisions, request.positive, prevalences, groups)
    explanations = saliency.load_explanations(folder)
    misses, alarms = find_worst_failures(targets, predictions, images)
    positive_given = bool(request.positive or facts.decisions.positive)
    issues, partly_checked = _read_check(folder)
    copy_codes = {f"{how}-copies-in-train-and-{predictions.split}" for how in ("exact", "near")}
    copies = {name for one in issues if one.get("code") in copy_codes for name in one.get("pictures", [])}
    return FirstPage(
        request=request,
        targets=targets,
        target_guessed=facts.task == "classification" and len(facts.classes) == 2 and not positive_given,
        abstention=summarize_abstention(predictions, facts.decisions, groups),
        misses=misses,
        false_alarms=alarms,
        limits=describe_limits(facts, metrics, targets, folder, groups is not None),
        provenance=read_provenance(folder, facts),
        extra_findings=extra_findings.read_extra_findings(folder),
        num_train_copies=len(copies & set(predictions.ids)),
        partly_checked=partly_checked,
        has_maps=explanations is not None and len(explanations.rows) > 0,
    )


def _highest_rate(pairs: Sequence[tuple[float, BinaryTarget]]) -> BinaryTarget | None:
    """The target with the highest rate; rare targets only where all are rare."""
    candidates = [pair for pair in pairs if not _is_rare(pair[1])] or pairs
    return max(candidates, key=lambda pair: pair[0])[1] if candidates else None


def _is_rare(target: BinaryTarget) -> bool:
    return min(target.positives, target.negatives) < MIN_PER_SIDE


def _read_check(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """The issues of the data check, and how many images it looked at, if not all."""
    check = provenance.read_json_table(folder / "check.json") or {}
    looked_at, total = check.get("looked_at", 0), check.get("pictures", 0)
    return check.get("concerns", []), f"{looked_at:,} of {format_count(total, 'picture')}" if looked_at < total else ""


def describe_limits(
    facts: ReportFacts, metrics: TaskMetrics, targets: Sequence[BinaryTarget], folder: Path, has_groups: bool
) -> list[str]:
    """Sentences on the limits of the metrics.

    Args:
        targets: what is found or missed; none of anomalies, numbers and masks.

    Raises:
        DamagedFileError, UsageError: check.json or the facts of an evaluation cannot be read.
    """
    pictures, others = format_count(metrics.n, "picture"), provenance.read_evaluations(folder).values()
    tested = f"tested too: {', '.join(one.source for one in others)}" if others else "no other was tested"
    limits = [f"All figures come from {pictures} of one source, {facts.source}; {tested}."]
    if metrics.groups is None:
        limits.append(
            "Pictures that belong together were not marked (--group COLUMN). If there are some, intervals are narrower "
            "than they should be."
        )
    elif has_groups:
        limits.append(f"The pictures come in {format_count(metrics.groups, 'group')}, and intervals count groups.")
    else:
        limits.append(
            f"The pictures come in {format_count(metrics.groups, 'group')}, but this run has not stored which belong "
            "together, so the intervals of this page count pictures and are narrower than they should be."
        )
    rare = [one.name for one in targets if _is_rare(one)]
    if isinstance(metrics, AnomalyMetrics):
        rare = [name for name, n in (("defects", metrics.defects), ("good", metrics.good)) if n < MIN_PER_SIDE]
    if rare:
        more = f" and {len(rare) - 10} more" if len(rare) > 10 else ""
        limits.append(
            f"Too few to say much, with fewer than {MIN_PER_SIDE} pictures of a kind: {', '.join(rare[:10])}{more}."
        )
    limits += _describe_prevalence(facts, metrics, targets)
    if any(one.prevalence_given for one in targets):
        limits.append(
            "Probabilities are shown as the model gives them, which has learnt at the prevalence of its own pictures; "
            "vitrail decide RUN --prevalence moves them to yours."
        )
    if targets and facts.decisions.temperature:
        what = "calibrated and thresholds chosen" if facts.decisions.thresholds else "calibrated"
        limits.append(f"Probabilities were {what} on the validation pictures, not on these.")
    elif targets:
        limits.append(_explain_uncalibrated(facts))
    issues, partly_checked = _read_check(folder)
    if partly_checked:
        limits.append(f"Copies and bad pictures were looked for among {partly_checked}; vitrail check takes all.")
    return [*limits, *(str(one["text"]) for one in issues if one.get("severity") == "warning")]


def _explain_uncalibrated(facts: ReportFacts) -> str:
    """Why probabilities are not calibrated, as far as the plan and the counts of the splits say."""
    if not tomllib.loads(facts.plan).get("decisions", {}).get("calibrate", True):
        return "Probabilities are not calibrated: calibration was switched off."
    validation = [one.n for one in facts.counts if one.split == "val"]
    found = explain_missing_fits(facts.task, [facts.decisions], validation[0] if validation else None)
    return next((one for one in found if one.startswith("Probabilities")), "Probabilities are not calibrated.")


def _describe_prevalence(facts: ReportFacts, metrics: TaskMetrics, targets: Sequence[BinaryTarget]) -> Iterator[str]:
    """The share of defects, or of the class that is looked for where there are two, if it is not given otherwise."""
    share, what, figures = 0.0, "", "accuracy, predictive values and probabilities"
    if isinstance(metrics, AnomalyMetrics):
        share, what, figures = metrics.defects / metrics.n, "defects", "accuracy, F1 and average precision"
    elif facts.task == "classification" and len(targets) == 1 and not targets[0].prevalence_given:
        share, what = targets[0].positives / (targets[0].positives + targets[0].negatives), targets[0].name
    if share:
        yield f"{share:.1%} of the {metrics.split} pictures are {what}: {figures} hold at this share."


# -- Inspection: expected escapes and false rejects of a shift, and thresholds to choose from

DEFAULT_PARTS = 1000
"""Parts of a shift, if not given."""
MAX_CHOICES = 2
"""Defects with a table of thresholds: those with the most expected escapes."""


class ExpectedCount(NamedTuple):
    """Expected number of parts, with the interval of the rate."""

    value: float
    low: float
    high: float


class ShiftDefect(NamedTuple):
    """Expected errors of one defect in a shift."""

    target: BinaryTarget
    escapes: ExpectedCount | None
    rejects: ExpectedCount | None


class PartsLot(NamedTuple):
    """The number of parts that expected counts refer to."""

    parts: float
    words: str
    """Text for the page, such as "a shift"."""

    def expected_escapes(self, target: BinaryTarget, missed: Proportion | None) -> ExpectedCount | None:
        """Defective parts that pass."""
        return None if missed is None else self.scale(missed, target.prevalence)

    def expected_rejects(self, target: BinaryTarget, alarms: Proportion | None) -> ExpectedCount | None:
        """Parts without the defect that are rejected."""
        return None if alarms is None else self.scale(alarms, 1 - target.prevalence)

    def scale(self, rate: Proportion, share_of_parts: float = 1.0) -> ExpectedCount:
        """Number of parts that a rate of some share of them makes."""
        return ExpectedCount(*(self.parts * share_of_parts * value for value in (rate.value, *rate.interval)))


def inspection_context(first_page: FirstPage, facts: ReportFacts, metrics: TaskMetrics, folder: Path) -> dict[str, Any]:
    """Context of `inspection.html.j2`.

    Raises:
        DataError, DamagedFileError: a stored file that cannot be read.
    """
    parts = first_page.request.parts_per_shift
    lot = PartsLot(DEFAULT_PARTS, f"{DEFAULT_PARTS:,} parts") if parts is None else PartsLot(parts, "a shift")
    defects = [
        ShiftDefect(one, lot.expected_escapes(one, one.miss_rate), lot.expected_rejects(one, one.false_alarm_rate))
        for one in first_page.targets
    ]
    order = sorted(defects, key=lambda one: -(one.escapes.value if one.escapes is not None else -1.0))
    shown = [one.target for one in order[:MAX_CHOICES]]
    return {
        "first": first_page,
        "lot": lot,
        "defects": defects,
        "worst_defect": order[0] if order else None,
        "choices": _all_operating_points(shown, facts, folder),
        "left_out": len(defects) - len(shown),
        "confusions": find_largest_confusions(metrics, 8) if isinstance(metrics, ClassificationMetrics) else [],
        "pace": _seconds_per_image(facts, folder),
        "missing": _missing_for_inspection(first_page, facts),
    }


def _all_operating_points(targets: Sequence[BinaryTarget], facts: ReportFacts, folder: Path) -> list[ThresholdChoices]:
    """Operating points, chosen on the validation predictions if the run has stored them."""
    validation = read_validation(facts, folder)
    if validation is None:
        return [compute_operating_points(one, None) for one in targets]
    return [compute_operating_points(one, binary_targets(validation, facts.decisions, one.name)[0]) for one in targets]


def _seconds_per_image(facts: ReportFacts, folder: Path) -> float | None:
    """Upper bound of the seconds per image: time of the whole evaluation divided by its images."""
    actual = (provenance.read_json_table(folder / "cost.json") or {}).get("actual")
    num_images = sum(count.n for count in facts.counts if count.split in ("val", "test"))
    return actual["evaluation"] / num_images if isinstance(actual, dict) and num_images else None


def _missing_for_inspection(first_page: FirstPage, facts: ReportFacts) -> list[MissingItem]:
    missing = []
    if not first_page.has_maps:
        because = "this run folder holds none whose method has passed its check"
        missing.append(MissingItem("A map of the failures", because))
    because = "no pictures from the line, or golden samples, are stored beside these"
    missing.append(MissingItem("Drift of the scores", because))
    if first_page.extra_findings.slices is None:
        because = "none are stored: vitrail evaluate RUN --by camera,module,date --keep"
        missing.append(MissingItem("Failures by size, module, camera and date", because))
    if first_page.extra_findings.suspects is None:
        because = "they were not searched for: vitrail evaluate RUN --suspects RUN/suspects.csv"
        missing.append(MissingItem("Labels to look at again", because))
    if facts.task == "multilabel":
        missing.append(MissingItem("Which defect was taken for which", "each label is answered by itself"))
    return missing


# -- Radiology: predictive values and icon arrays of patients

PROBABILITY_RANGES = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0))
"""Half-open ranges of probabilities, with 0.7 in the middle of one; the last one includes both ends."""
MAX_ICON_ARRAYS = 14
"""Largest number of findings with icon arrays; the table has all findings."""


class RadiologyFinding(NamedTuple):
    """One finding with its icon array and its rates by probability."""

    target: BinaryTarget
    people: IconArrayCounts | None
    drawing: str
    """Icon array as an SVG element; empty if it takes too many patients, or with too many findings."""
    rate_by_probability: list[Proportion | None]
    """Rate of the finding in each of PROBABILITY_RANGES, at the prevalence of the target."""


def radiology_context(first_page: FirstPage) -> dict[str, Any]:
    """Context of `radiology.html.j2`."""
    return {
        "first": first_page,
        "findings": [_make_finding(one, len(first_page.targets) <= MAX_ICON_ARRAYS) for one in first_page.targets],
        "ranges": PROBABILITY_RANGES,
        "missing": _missing_for_radiology(first_page),
    }


def _make_finding(target: BinaryTarget, draw_icons: bool) -> RadiologyFinding:
    counts, rates = charts.expected_counts(target), []
    for low, high in PROBABILITY_RANGES:
        inside = np.asarray((target.probabilities >= low) & ((target.probabilities < high) | (high == 1.0)))
        rates.append(_shift_prevalence(estimate_proportion(target.present, target.groups, inside), target))
    drawing = ""
    if counts is not None and counts.n in charts.PANE_GEOMETRY and draw_icons:
        drawing = charts.draw_icon_array(counts, target.name)
    return RadiologyFinding(target, counts, drawing, rates)


def _shift_prevalence(rate: Proportion | None, target: BinaryTarget) -> Proportion | None:
    """A rate of the finding among some images, at the given prevalence: its odds change as those of all images."""
    if rate is None or not target.prevalence_given or not (target.positives and target.negatives):
        return rate
    factor = target.prevalence / (1 - target.prevalence) * target.negatives / target.positives
    value, low, high = (factor * share / (factor * share + 1 - share) for share in (rate.value, *rate.interval))
    return Proportion(value, Interval(low, high), rate.n)


def _missing_for_radiology(first_page: FirstPage) -> list[MissingItem]:
    missing = []
    if first_page.extra_findings.slices is None:
        because = "none are stored: vitrail evaluate RUN --by age,sex,view --keep"
        missing.append(MissingItem("Subgroups, such as age, sex, view and device", because))
    if not first_page.has_maps:
        because = "this run folder holds none whose method has passed its check"
        missing.append(MissingItem("Picture and map side by side", because))
    because = "a model keeps what its training pictures look like, but not which pictures they are"
    missing.append(MissingItem("Similar confirmed cases", because))
    because = "this model has no test for pictures that are unlike those of the training"
    if first_page.abstention.can_be_unlike:
        because = "they are not distinguished: such a picture is left unanswered if it is unlike those of the training"
    missing.append(MissingItem("A flag of its own for rotated, lateral, inverted or poor pictures", because))
    missing.append(MissingItem("Dates of the pictures", "no source states them"))
    return missing
