"""Model card and data card: metrics in Markdown for a bundle's README.md, and facts about the images of a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..data.checks.image_stats import MIN_SKETCHED_SIDE
from ..data.checks.leakage import UNFINISHED
from ..evaluate.anomaly_metrics import AnomalyMetrics, DefectTypeMetrics
from ..evaluate.calibration import MIN_IMAGES
from ..evaluate.cases import CasePool
from ..evaluate.decisions import UNLIKE, UNSURE, Decisions
from ..evaluate.metrics import ClassificationMetrics, PerClassMetrics
from ..evaluate.multilabel_metrics import MultilabelMetrics, PerLabelMetrics
from ..evaluate.precision import PrecisionComparison
from ..evaluate.predictions import TaskPredictions
from ..evaluate.regression_metrics import PerColumnMetrics, RegressionMetrics
from ..evaluate.segmentation_metrics import MaskClassMetrics, SegmentationMetrics
from ..evaluate.task_metrics import TaskMetrics
from ..formatting import format_count
from . import provenance
from .provenance import ReportFacts, SplitCount

CONFIDENCE_ERROR = "Confidence calibration error"
MAX_CARD_ROWS = 50
"""Rows of the table of classes, labels or columns."""
SPLIT_DESCRIPTIONS = {"test": "test pictures that it has not learnt from", "val": "validation pictures"}


class MetricLine(NamedTuple):
    """A metric as text."""

    name: str
    value: str
    interval: str


def performance_section(
    metrics: TaskMetrics,
    predictions: TaskPredictions,
    decisions: Decisions,
    source: str,
    counts: Sequence[SplitCount],
    fingerprint: str,
    compared: PrecisionComparison | None = None,
    copies: Sequence[str] = (),
    limits: Sequence[str] = (),
    cases: tuple[CasePool, TaskMetrics] | None = None,
) -> str:
    """The performance section of a model card: metrics with intervals, abstention, and splits.

    Args:
        metrics: of the held-out split.
        predictions: the table that they were computed from.
        counts: the splits of the source.
        compared: the fast number format beside float32.
        copies: images that are copies of training images, see `list_copy_warnings`.
        limits: what else limits the metrics, such as few images.
        cases: how the images of a case are answered together, and the metrics of the cases.
    """
    plain = f"{metrics.split} pictures"
    what = plain if copies else SPLIT_DESCRIPTIONS.get(metrics.split, plain)
    grouped = "" if metrics.groups is None else f", in {format_count(metrics.groups, 'group')} such as patients"
    fitted = "" if metrics.split == "test" else " Temperature and thresholds were fitted on them too."
    return "\n".join(
        [
            f"Measured on {metrics.n:,} {what} of {source}{grouped}; intervals are 95 %.{fitted}",
            *(f"- **{text}**" for text in (*copies, *limits)),
            "",
            *_markdown_table(["Figure", "Value", "95 % interval"], overall_metric_lines(metrics)),
            "",
            *_per_output_table(metrics),
            *_abstention_lines(predictions, decisions),
            "",
            *([] if cases is None else _case_section(metrics, *cases)),
            "Computed in float32, as `vitrail predict` does by default.",
            *([] if compared is None else [f"With `--precision`, {compared}."]),
            "",
            *_markdown_table(
                ["Pictures", "Number", "Where they come from"],
                [[count.split, f"{count.n:,}", count.origin or "–"] for count in counts],
            ),
            "",
            f"Fingerprint of the source, its names, targets, groups and splits: `{fingerprint}`.",
            "No other source was tested; test the model on your own pictures before anything rests on it.",
        ]
    )


def overall_metric_lines(metrics: TaskMetrics) -> list[MetricLine]:
    """Metrics over all classes, labels or columns."""
    if isinstance(metrics, ClassificationMetrics):
        return [
            _percent_line("Accuracy", metrics.accuracy, metrics.accuracy_interval),
            _percent_line("Majority class", metrics.majority, None),
            _percent_line("Balanced accuracy", metrics.balanced_accuracy, metrics.balanced_accuracy_interval),
            _percent_line("Macro F1", metrics.macro_f1, metrics.macro_f1_interval),
            _number_line("AUROC", metrics.auroc, metrics.auroc_interval),
            _number_line("Log loss", metrics.log_loss, metrics.log_loss_interval),
            _number_line("Brier score", metrics.brier, metrics.brier_interval),
            _calibration_line(metrics.calibration_error, metrics.calibration_error_interval),
            _percent_line(
                "Confidence calibration in the large",
                metrics.calibration_in_the_large,
                metrics.calibration_in_the_large_interval,
            ),
            _number_line("Confidence calibration slope", metrics.calibration_slope, metrics.calibration_slope_interval),
        ]
    if isinstance(metrics, MultilabelMetrics):
        return [
            _number_line(
                f"AUROC, mean of {format_count(metrics.counted, 'label')}", metrics.auroc, metrics.auroc_interval
            ),
            _number_line("Average precision", metrics.average_precision, metrics.average_precision_interval),
            _number_line("Macro F1", metrics.f1, metrics.f1_interval),
            _number_line("Log loss", metrics.log_loss, metrics.log_loss_interval),
        ]
    if isinstance(metrics, AnomalyMetrics):
        return [
            _number_line("AUROC", metrics.auroc, metrics.auroc_interval),
            _number_line("Average precision", metrics.average_precision, metrics.average_precision_interval),
            _percent_line("Defects found", metrics.recall, metrics.recall_interval),
            _percent_line("False alarms", metrics.false_alarms, metrics.false_alarms_interval),
            _percent_line("False alarms promised", metrics.alpha, None),
            _number_line("Pixel AUROC", metrics.pixel_auroc, metrics.pixel_auroc_interval),
            _number_line("AUPRO at 30 %", metrics.aupro, metrics.aupro_interval),
        ]
    if isinstance(metrics, SegmentationMetrics):
        return [
            _number_line("Mean IoU", metrics.mean_iou, metrics.mean_iou_interval),
            _number_line("Mean Dice", metrics.mean_dice, metrics.mean_dice_interval),
            _number_line("Mean boundary F", metrics.mean_boundary_f, metrics.mean_boundary_f_interval),
            _percent_line("Pixels right", metrics.pixel_accuracy, metrics.pixel_accuracy_interval),
            _percent_line("Surer than right by", metrics.overconfidence, metrics.overconfidence_interval),
        ]
    return [_number_line("R2, mean of the columns", metrics.r2, None)]


class CaseLine(NamedTuple):
    """A metric of images beside that of their cases."""

    image: MetricLine
    case: MetricLine


def compare_with_cases(metrics: TaskMetrics, cases: TaskMetrics) -> list[CaseLine]:
    """Metrics over all classes, labels or columns, of images and of their cases."""
    pairs = zip(overall_metric_lines(metrics), overall_metric_lines(cases), strict=True)
    return [CaseLine(*pair) for pair in pairs]


def format_case_table(metrics: TaskMetrics, cases: TaskMetrics) -> str:
    """`compare_with_cases` as text."""
    heads = format_count(metrics.n, "picture"), format_count(cases.n, "case")
    lines = [f"{'':<35}  {heads[0]:>24}  {heads[1]:>24}"]
    for pair in compare_with_cases(metrics, cases):
        cells = [f"{one.value} ({one.interval})" if one.interval != "–" else one.value for one in pair]
        lines.append(f"{pair.image.name:<35}  {cells[0]:>24}  {cells[1]:>24}")
    return "\n".join(lines)


def _case_section(metrics: TaskMetrics, pool: CasePool, cases: TaskMetrics) -> list[str]:
    rows = [
        [image.name, image.value, image.interval, case.value, case.interval]
        for image, case in compare_with_cases(metrics, cases)
    ]
    return [
        f"The {cases.n:,} cases of these pictures are answered too, each by {pool.describe()}:",
        "",
        *_markdown_table(["Figure", "Per picture", "95 % interval", "Per case", "95 % interval"], rows),
        "",
    ]


def format_with_interval(
    value: float | None, interval: tuple[float, float] | None, form: Callable[[float | None], str] | None = None
) -> str:
    """A value with its interval, by default a fraction in per cent; a dash for None."""
    text = form or _format_percent
    return text(value) if interval is None else f"{text(value)} ({_format_bounds(interval, text)})"


def _per_output_table(metrics: TaskMetrics) -> list[str]:
    """Table of classes, labels or columns."""
    if isinstance(metrics, ClassificationMetrics):
        heads = ["Class", "Pictures", "Recall", "Precision", "F1"]
        rows = [_class_row(one) for one in metrics.per_class[:MAX_CARD_ROWS]]
    elif isinstance(metrics, MultilabelMetrics):
        heads = ["Label", "With it", "AUROC", "Sensitivity", "Specificity"]
        rows = [_label_row(one) for one in metrics.per_label[:MAX_CARD_ROWS]]
    elif isinstance(metrics, AnomalyMetrics):
        heads = ["Type of defect", "Pictures", "Found", "AUROC"]
        rows = [_type_row(one) for one in metrics.per_type[:MAX_CARD_ROWS]]
    elif isinstance(metrics, SegmentationMetrics):
        heads = ["Class", "Pictures", "IoU", "Dice"]
        rows = [_mask_row(one) for one in metrics.per_class[:MAX_CARD_ROWS]]
    else:
        assert isinstance(metrics, RegressionMetrics)
        heads = ["Column", "Pictures", "Mean absolute error", "RMSE", "R2"]
        rows = [_column_row(one) for one in metrics.per_column[:MAX_CARD_ROWS]]
    return [*_markdown_table(heads, rows), ""]


def _class_row(metrics: PerClassMetrics) -> list[str]:
    recall = format_with_interval(metrics.recall, metrics.recall_interval)
    precision = format_with_interval(metrics.precision, metrics.precision_interval)
    return [metrics.name, f"{metrics.n:,}", recall, precision, _format_percent(metrics.f1)]


def _type_row(metrics: DefectTypeMetrics) -> list[str]:
    recall = format_with_interval(metrics.recall, metrics.recall_interval)
    auroc = format_with_interval(metrics.auroc, metrics.auroc_interval, format_number)
    return [metrics.name, f"{metrics.n:,}", recall, auroc]


def _mask_row(metrics: MaskClassMetrics) -> list[str]:
    iou = format_with_interval(metrics.iou, metrics.iou_interval, format_number)
    return [metrics.name, f"{metrics.n:,}", iou, format_number(metrics.dice)]


def _label_row(metrics: PerLabelMetrics) -> list[str]:
    auroc = format_with_interval(metrics.auroc, metrics.auroc_interval, format_number)
    sensitivity = format_with_interval(metrics.sensitivity, metrics.sensitivity_interval)
    specificity = format_with_interval(metrics.specificity, metrics.specificity_interval)
    return [metrics.name, f"{metrics.positives:,} of {metrics.n:,}", auroc, sensitivity, specificity]


def _column_row(metrics: PerColumnMetrics) -> list[str]:
    mae = format_with_interval(metrics.mae, metrics.mae_interval, format_number)
    rmse = format_with_interval(metrics.rmse, metrics.rmse_interval, format_number)
    r2 = format_with_interval(metrics.r2, metrics.r2_interval, format_number)
    return [metrics.name, f"{metrics.n:,}", mae, rmse, r2]


def _abstention_lines(predictions: TaskPredictions, decisions: Decisions) -> list[str]:
    """Abstention rules and counts."""
    rules = []
    if decisions.unlike is not None:
        rules.append("pictures less like those of the training than 99 % of the validation pictures are (`unlike`)")
    if decisions.sure:
        rules.append(f"pictures whose likeliest class has a probability below {decisions.sure:.6g} (`unsure`)")
    if not rules:
        return ["Every picture is answered. Which of them are unlike the training pictures is unknown."]
    counts = ", ".join(f"{predictions.abstain_reasons.count(why):,} `{why}`" for why in (UNLIKE, UNSURE))
    pictures = format_count(len(predictions), "picture")
    return [f"Left unanswered are {' and '.join(rules)}: of {pictures} {counts}. The figures count all."]


def _markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table as lines."""
    return [
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows),
    ]


def _percent_line(name: str, value: float | None, interval: tuple[float, float] | None) -> MetricLine:
    return MetricLine(name, _format_percent(value), _format_bounds(interval, _format_percent))


def _calibration_line(error: float | None, interval: tuple[float, float] | None) -> MetricLine:
    if error is None:
        return MetricLine(CONFIDENCE_ERROR, "unknown", f"takes {MIN_IMAGES} pictures")
    return _percent_line(CONFIDENCE_ERROR, error, interval)


def _number_line(name: str, value: float | None, interval: tuple[float, float] | None) -> MetricLine:
    return MetricLine(name, format_number(value), _format_bounds(interval, format_number))


def _format_bounds(interval: tuple[float, float] | None, form: Callable[[float | None], str]) -> str:
    return "–" if interval is None else " to ".join(map(form, interval))


def _format_percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def format_number(value: float | None) -> str:
    """Four significant digits; a dash for None."""
    return "–" if value is None else f"{value:.4g}"


def list_copy_warnings(folder: Path, split: str) -> list[str]:
    """Sentences about images of a split that are copies of training images, with their names; by the data check.

    Args:
        folder: of the run, with its check.json; without one nothing is known.

    Raises:
        DamagedFileError: check.json is not JSON.
    """
    check = provenance.read_json_table(folder / "check.json") or {}
    codes = {f"{how}-copies-in-train-and-{split}" for how in ("exact", "near")}
    return [
        f"{one['text']} ({_format_examples(one.get('groups', []), one.get('pictures', []))})"
        for one in check.get("concerns", [])
        if one["code"] in codes
    ]


# -- Data card

MAX_CARD_CLASSES = 30
"""Rows of the table of classes; the rarest of more classes are shown."""
SEVERITY_WORDS = {"stop": "would stop a training", "warning": "warning", "hint": "to be known"}
ALL_CLASSES = "all"
MAX_EXAMPLES = 3
"""Examples of an issue."""


class DataCardIssue(NamedTuple):
    """An issue of the data check."""

    word: str
    text: str
    advice: str
    examples: str
    """Ids of some of its images; copies are joined by an equal sign."""


class DataCard(NamedTuple):
    """Facts about the images of a source."""

    num_images: int
    num_checked: int
    num_unreadable: int
    """Images that cannot be decoded."""
    smallest: str
    largest: str
    """Height x width and the id; empty if no image was checked."""
    kinds: str
    """File formats, with counts if there are several."""
    values: str
    """Types of stored values, with counts if there are several."""
    remarks: str
    """Remarks of the decoder, with counts."""
    splits: list[str]
    counts: list[tuple[str, list[int]]]
    """Images of each class in each split."""
    left_out: int
    """Classes that the table does not show."""
    groups: int | None
    """Number of groups of the held-out images."""
    issues: list[DataCardIssue]
    copies: list[str]
    """How exact and near copies were looked for, and whether there are some."""
    notes: list[str]
    fingerprint: str


def read_data_card(folder: Path, facts: ReportFacts, metrics: TaskMetrics) -> DataCard | None:
    """Read the data card from check.json and data.json; None without check.json.

    A cross-validation folder has those of its first fold, whose splits are merged.

    Raises:
        DamagedFileError: a file is not JSON.
    """
    check = provenance.read_json_table(folder / "check.json")
    folds = check is None
    if check is None:
        folder = folder / "fold-0"
        check = provenance.read_json_table(folder / "check.json")
    if check is None:
        return None
    splits, counts = _class_counts(check.get("class_counts", {}), folds)
    last = {one.get("advice", ""): one["code"] for one in check.get("concerns", [])}  # says it once
    if len(counts) > MAX_CARD_CLASSES:
        counts.sort(key=lambda row: row[1][0])
    return DataCard(
        num_images=check["pictures"],
        num_checked=check["looked_at"],
        num_unreadable=len(check["bad"]),
        smallest=_format_size(check.get("smallest")),
        largest=_format_size(check.get("largest")),
        kinds=_format_kinds(check.get("formats", {})),
        values=_format_kinds(check.get("stored_values", {})),
        remarks=_format_counts(check.get("remarks", {})),
        splits=splits,
        counts=counts[:MAX_CARD_CLASSES],
        left_out=max(0, len(counts) - MAX_CARD_CLASSES),
        groups=metrics.groups,
        issues=[
            DataCardIssue(
                word=SEVERITY_WORDS.get(one["severity"], one["severity"]),
                text=one["text"],
                advice="" if folds or last[one.get("advice", "")] != one["code"] else one.get("advice", ""),
                examples=_format_examples(one.get("groups", []), one.get("pictures", [])),
            )
            for one in check.get("concerns", [])
            if not folds or "in-train-and" not in one["code"]
        ],
        copies=list(_describe_copies(check)),
        notes=[note for note in check.get("notes", []) if note not in facts.notes],
        fingerprint=str((provenance.read_json_table(folder / "data.json") or {}).get("fingerprint", "")),
    )


def _class_counts(table: Mapping[str, Mapping[str, int]], folds: bool) -> tuple[list[str], list[tuple[str, list[int]]]]:
    """Split names, and for each class its count in each of them."""
    splits = [split for split, counts in table.items() if any(counts.values())]
    names = list(table[splits[0]]) if splits else []
    rows = [(name, [table[split].get(name, 0) for split in splits]) for name in names]
    return ([ALL_CLASSES], [(name, [sum(row)]) for name, row in rows]) if folds and splits else (splits, rows)


def _describe_copies(check: Mapping[str, Any]) -> Iterator[str]:
    """How copies were looked for, and whether there are some; of near ones nothing if an older version looked."""
    codes, total = {one["code"] for one in check.get("concerns", [])}, check["pictures"]
    ways = {
        "Exact": ("equal pixels, by a hash of each picture", check["looked_at"]),
        "Near": ("resized, compressed or slightly cropped, by comparing each with all others", check.get("compared")),
    }
    for how, (what, n) in ways.items():
        if n == 0 < total:
            yield f"{how} copies were not looked for: no picture has {MIN_SKETCHED_SIDE} pixels on its shorter side."
        elif n is not None:
            found = any(one.startswith(f"{how.lower()}-copies-") for one in codes - {UNFINISHED.code})
            among = f"{n:,} of {format_count(total, 'picture')}" if n < total else format_count(n, "picture")
            unfinished = ", as far as there was time" * (how == "Near" and UNFINISHED.code in codes)
            result = "what was found is listed above" if found else "none was found"
            if how == "Exact" and not found and any(one.startswith("near-copies-") for one in codes):
                result += "; the near copies listed above differ in some pixels"
            yield f"{how} copies ({what}) were looked for among {among}{unfinished}: {result}."


def _format_examples(groups: Sequence[Sequence[str]], images: Sequence[str]) -> str:
    """The first groups, or without groups the first images, and how many more there are."""
    names = [" = ".join(group) for group in groups] or list(images)
    count = f"{format_count(len(groups), 'set' if max(map(len, groups)) > 2 else 'pair')}: " if groups else ""
    more = f" and {len(names) - MAX_EXAMPLES:,} more, in check.json" if len(names) > MAX_EXAMPLES else ""
    return f"{count}{', '.join(names[:MAX_EXAMPLES])}{more}"


def _format_size(size: Mapping[str, Any] | None) -> str:
    return "" if size is None else f"{size['height']} x {size['width']} ({size['id']})"


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _format_kinds(counts: Mapping[str, int]) -> str:
    return next(iter(counts)) if len(counts) == 1 else _format_counts(counts)
