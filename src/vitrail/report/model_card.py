"""What a model card says of a model's worth: the figures of the report, in Markdown, for the bundle's README.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..evaluate.decisions import UNLIKE, UNSURE, Decisions
from ..evaluate.metrics import ClassificationMetrics, PerClassMetrics
from ..evaluate.multilabel_metrics import MultilabelMetrics, PerLabelMetrics
from ..evaluate.prediction_tables import TaskPredictions
from ..evaluate.regression_metrics import PerColumnMetrics, RegressionMetrics
from ..evaluate.task_metrics import TaskMetrics
from .facts import SplitCount

MOST = 50
"""Classes, labels or columns that a card lists."""
SPLITS = {"test": "test pictures that it has not learnt from", "val": "validation pictures"}


class Line(NamedTuple):
    """A figure as words."""

    name: str
    value: str
    interval: str


def section(
    figures: TaskMetrics,
    answers: TaskPredictions,
    decided: Decisions,
    source: str,
    counts: Sequence[SplitCount],
    fingerprint: str,
) -> str:
    """Figures with intervals, what is left unanswered, and the pictures, as the lines of a card.

    Args:
        figures: of the held-out pictures.
        answers: the table that they were measured on.
        counts: the splits of the source.
    """
    what = SPLITS.get(figures.split, f"{figures.split} pictures")
    grouped = "" if figures.groups is None else f", in {figures.groups:,} groups such as patients"
    fitted = "" if figures.split == "test" else " Temperature and thresholds were fitted on them too."
    return "\n".join(
        [
            f"Measured on {figures.n:,} {what} of {source}{grouped}; intervals are 95 %.{fitted}",
            "",
            *_table(["Figure", "Value", "95 % interval"], [list(line) for line in whole(figures)]),
            "",
            *_parts(figures),
            *_silence(answers, decided),
            "",
            *_table(
                ["Pictures", "Number", "Where they come from"],
                [[count.split, f"{count.n:,}", count.origin or "–"] for count in counts],
            ),
            "",
            f"Fingerprint of the source, its names, targets, groups and splits: `{fingerprint}`.",
            "No other source was tested; test the model on your own pictures before anything rests on it.",
        ]
    )


def whole(figures: TaskMetrics) -> list[Line]:
    """The figures of all classes, labels or columns together."""
    if isinstance(figures, ClassificationMetrics):
        shares = [
            _share("Accuracy", figures.accuracy, figures.accuracy_interval),
            _share("Balanced accuracy", figures.balanced_accuracy, figures.balanced_accuracy_interval),
            _share("Macro F1", figures.macro_f1, figures.macro_f1_interval),
        ]
        return [
            *shares,
            _number("AUROC", figures.auroc, figures.auroc_interval),
            _number("Log loss", figures.log_loss, figures.log_loss_interval),
            _number("Brier score", figures.brier, figures.brier_interval),
            _share("Calibration error", figures.calibration_error, None),
        ]
    if isinstance(figures, MultilabelMetrics):
        return [
            _number(f"AUROC, mean of {figures.counted} labels", figures.auroc, figures.auroc_interval),
            _number("Average precision", figures.average_precision, figures.average_precision_interval),
            _number("Macro F1", figures.f1, figures.f1_interval),
            _number("Log loss", figures.log_loss, figures.log_loss_interval),
        ]
    return [_number("R2, mean of the columns", figures.r2, None)]


def with_interval(value: float | None, interval: tuple[float, float] | None) -> str:
    """A share with its interval, in per cent; a dash where nothing was measured."""
    return _percent(value) if interval is None else f"{_percent(value)} ({_between(*map(_percent, interval))})"


def _parts(figures: TaskMetrics) -> list[str]:
    """A table of classes, labels or columns."""
    if isinstance(figures, ClassificationMetrics):
        heads = ["Class", "Pictures", "Recall", "Precision", "F1"]
        rows = [_of_class(one) for one in figures.per_class[:MOST]]
    elif isinstance(figures, MultilabelMetrics):
        heads = ["Label", "With it", "AUROC", "Sensitivity", "Specificity"]
        rows = [_of_label(one) for one in figures.per_label[:MOST]]
    else:
        assert isinstance(figures, RegressionMetrics)
        heads = ["Column", "Pictures", "Mean absolute error", "RMSE", "R2"]
        rows = [_of_column(one) for one in figures.per_column[:MOST]]
    return [*_table(heads, rows), ""]


def _of_class(one: PerClassMetrics) -> list[str]:
    rates = (one.recall, one.recall_interval), (one.precision, one.precision_interval)
    return [one.name, f"{one.n:,}", *(with_interval(*pair) for pair in rates), _percent(one.f1)]


def _of_label(one: PerLabelMetrics) -> list[str]:
    rates = (one.sensitivity, one.sensitivity_interval), (one.specificity, one.specificity_interval)
    found, left = (with_interval(*pair) for pair in rates)
    return [one.name, f"{one.positives:,} of {one.n:,}", _plain(one.auroc, one.auroc_interval), found, left]


def _of_column(one: PerColumnMetrics) -> list[str]:
    mae, rmse = _plain(one.mae, one.mae_interval), _plain(one.rmse, one.rmse_interval)
    return [one.name, f"{one.n:,}", mae, rmse, _plain(one.r2, one.r2_interval)]


def _silence(answers: TaskPredictions, decided: Decisions) -> list[str]:
    """What is left unanswered, and why."""
    rules = []
    if decided.unlike is not None:
        rules.append("pictures less like those of the training than 99 % of the validation pictures are (`unlike`)")
    if decided.sure:
        rules.append(f"pictures whose likeliest class has a probability below {decided.sure:.6g} (`unsure`)")
    if not rules:
        return ["Every picture is answered."]
    counts = ", ".join(f"{sum(one == why for one in answers.abstained):,} `{why}`" for why in (UNLIKE, UNSURE))
    return [f"Left unanswered are {' and '.join(rules)}: of {len(answers):,} pictures {counts}. The figures count all."]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of Markdown."""
    return [
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows),
    ]


def _share(name: str, value: float | None, interval: tuple[float, float] | None) -> Line:
    return Line(name, _percent(value), "–" if interval is None else _between(*map(_percent, interval)))


def _number(name: str, value: float | None, interval: tuple[float, float] | None) -> Line:
    return Line(name, _short(value), "–" if interval is None else _between(*map(_short, interval)))


def _plain(value: float | None, interval: tuple[float, float] | None) -> str:
    return _short(value) if interval is None else f"{_short(value)} ({_between(*map(_short, interval))})"


def _between(low: str, high: str) -> str:
    return f"{low} to {high}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
