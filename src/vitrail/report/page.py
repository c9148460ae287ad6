"""Report page: renders the stored facts, predictions, curves and thumbnails of a run as one self-contained HTML file.

`template.html.j2` is the page of every run; `classification.html.j2`, `multilabel.html.j2`, `regression.html.j2` and
`anomaly.html.j2` add the parts of each task, with the context from `task_sections`. For an audience the page begins
with `radiology.html.j2` or `inspection.html.j2`, with the context from `audience`.
"""

from __future__ import annotations

import functools
import html
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UsageError
from ..evaluate.anomaly_metrics import AnomalyMetrics
from ..evaluate.metrics import CASES_SUFFIX, ClassificationMetrics
from ..evaluate.multilabel_metrics import MultilabelMetrics
from ..evaluate.predictions import (
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
    TaskPredictions,
    read_predictions_csv,
)
from ..evaluate.regression_metrics import RegressionMetrics
from ..evaluate.segmentation_metrics import SegmentationMetrics
from ..evaluate.task_metrics import TaskMetrics, compute_metrics
from ..files import atomic
from ..formatting import format_count
from . import (
    audience,
    charts,
    curves_section,
    extra_findings,
    figure_files,
    provenance,
    saliency,
    task_sections,
    thumbnails,
    uncertainty,
)
from .audience import AudienceRequest
from .cards import read_data_card
from .decision_section import BankRow, DecisionRow, decide_run, list_banks, list_decisions
from .provenance import ReportFacts
from .thumbnails import Thumbnails

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT_FILE = "report.html"
CONTACT_SHEET_FILE = "figures/what-the-model-sees.png"
"""Contact sheet of a training: some images, original and augmented."""
SPLIT_NAMES = {"test": "held-out test", "val": "validation", "train": "training", "out-of-fold": "out-of-fold"}


class SplitRow(NamedTuple):
    """A row of the table of splits."""

    split: str
    n: int
    groups: int | None
    origin: str
    figures: list[tuple[str, str]]
    """The primary metric and its interval, of images, then where cases are answered of cases."""


def build_report(run_folder: Path, request: AudienceRequest | None = None) -> Path:
    """Write report.html of a run folder atomically, from report.json, predictions/*.csv and the files beside them.

    Args:
        request: audience of the first page; None leaves it out.

    Raises:
        UsageError: no report.json, no predictions of its held-out split, or a request that does not fit the run.
        DataError, DamagedFileError: a stored file that cannot be read, by name.
    """
    folder = Path(run_folder)
    run = decide_run(folder)
    path = folder / REPORT_FILE
    text = render_report(run.facts, run.predictions, folder, request, list_decisions(run, folder), list_banks(run))
    atomic.write_bytes(path, text.encode("utf-8", "replace"))  # a path may hold bytes that are not UTF-8
    return path


def write_plots(run_folder: Path) -> list[Path]:
    """Write the figures of a run's report into `figures/` of its folder, as SVG and PNG; returns the files.

    Raises:
        UsageError, DataError, DamagedFileError: as `build_report`.
        UsageError: a run whose answers are numbers.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    folder = Path(run_folder)
    run = decide_run(folder)
    if run.facts.task in ("regression", "segmentation"):
        raise UsageError(
            "Plots are of ROC and precision-recall curves, net benefit, reliability and confusion, and this run "
            f"answers numbers or masks, whose pictures are in {REPORT_FILE}."
        )
    groups = provenance.load_groups(folder, len(run.predictions))
    metrics = run.metrics
    curves = curves_section.curves_context(run.facts, run.predictions, folder, groups)
    confidence = uncertainty.uncertainty_context(run.predictions, run.facts.decisions, groups)["calibration"]
    return figure_files.write_figures(folder, curves, confidence, metrics)


def render_report(
    facts: ReportFacts,
    predictions: TaskPredictions,
    folder: Path,
    request: AudienceRequest | None = None,
    versions: Sequence[DecisionRow] = (),
    banks: Sequence[BankRow] = (),
    dossier: Mapping[str, Any] | None = None,
) -> str:
    """The page as text; curves, thumbnails, maps and check results in `folder` are optional.

    Args:
        versions: the rows of the table of decisions.
        banks: those of the versions of an anomaly run's bank.
        dossier: what a dossier has beyond a report, see `dossier`; its subgroups take the place of stored ones.
    """
    context = _page_context(facts, predictions, folder, request)
    context |= {"versions": versions, "banks": banks, "dossier": dossier}
    if dossier is not None:
        context["extra_findings"] = context["extra_findings"]._replace(slices=dossier["subgroups"])
    return render_template(f"{facts.task}.html.j2", context)


def render_template(name: str, context: Mapping[str, Any]) -> str:
    """Render a template of this folder with the filters that all pages share."""
    return _environment().get_template(name).render(context)


@functools.cache  # which compiles each template once in a process
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=format_percent,
        rate=format_rate,
        about=format_expected_count,
        duration=format_duration,
        count="{:,}".format,
        counted=format_count,
        hidden=hide_folders,
        flags=keep_flags_whole,
    )
    environment.tests["estimable"] = curves_section.is_estimable
    return environment


def _page_context(
    facts: ReportFacts, predictions: TaskPredictions, folder: Path, request: AudienceRequest | None
) -> dict[str, Any]:
    metrics = facts.metrics_for_split(facts.held_out_split) or compute_metrics(predictions)
    history = charts.read_history(folder / "metrics.jsonl")
    images = thumbnails.load_thumbnails(folder)
    thumbnails.check_thumbnail_rows(images, predictions)
    groups = provenance.load_groups(folder, len(predictions))
    name = {"classification": "accuracy", "regression": "R2", "segmentation": "mean IoU"}.get(facts.task, "AUROC")
    rising = (
        charts.draw_accuracy_chart(history)
        if facts.task == "classification"
        else charts.draw_score_chart(history, name.removeprefix("mean "))
    )
    first_page: dict[str, Any] = {"first_page": None}
    if request is not None:
        page = audience.build_first_page(facts, metrics, predictions, folder, request, images)
        if request.audience == "radiology":
            first_page = {"first_page": "radiology.html.j2", **audience.radiology_context(page)}
        else:
            context = audience.inspection_context(page, facts, metrics, folder)
            first_page = {"first_page": "inspection.html.j2", **context}
    return {
        "facts": facts,
        "metrics": metrics,
        "split": SPLIT_NAMES.get(metrics.split, metrics.split),
        "figure": name.replace("R2", "R²"),
        "parts": [_split_row(facts, count, metrics) for count in facts.counts],
        "loss": charts.draw_loss_chart(history),
        "rising": rising,
        "rate": charts.draw_lr_chart(history),
        "decisions": facts.decisions,
        "most_charts": charts.MAX_LABEL_CHARTS,
        "uncertainty": uncertainty.uncertainty_context(predictions, facts.decisions, groups),
        "cases": task_sections.case_context(facts, metrics, predictions, _read_cases(facts, metrics.split, folder)),
        "curves": curves_section.curves_context(facts, predictions, folder, groups),
        "card": read_data_card(folder, facts, metrics),
        "saliency": saliency.build_saliency_section(saliency.load_explanations(folder), predictions, images),
        "extra_findings": extra_findings.read_extra_findings(folder),
        "values": _setting_values(facts),
        "repeat": _format_repeat(facts, folder),
        "sheet": CONTACT_SHEET_FILE if (folder / CONTACT_SHEET_FILE).is_file() else "",
        **_task_context(metrics, predictions, images),
        **first_page,
    }


def _read_cases(facts: ReportFacts, split: str, folder: Path) -> TaskPredictions | None:
    """The stored answers of the cases; None without any."""
    file = folder / "predictions" / f"{split}{CASES_SUFFIX}.csv"
    return None if facts.case_pool is None or not file.is_file() else read_predictions_csv(file, facts.task)


def _task_context(metrics: TaskMetrics, predictions: TaskPredictions, images: Thumbnails) -> dict[str, Any]:
    """Context of the sections of this task."""
    if isinstance(metrics, ClassificationMetrics) and isinstance(predictions, ClassificationPredictions):
        return task_sections.classification_context(metrics, predictions, images)
    if isinstance(metrics, AnomalyMetrics) and isinstance(predictions, ClassificationPredictions):
        return task_sections.anomaly_context(predictions, images)
    if isinstance(metrics, MultilabelMetrics) and isinstance(predictions, MultilabelPredictions):
        return task_sections.multilabel_context(metrics, predictions, images)
    assert isinstance(predictions, RegressionPredictions)
    if isinstance(metrics, SegmentationMetrics):
        return task_sections.segmentation_context(predictions, images)
    assert isinstance(metrics, RegressionMetrics)
    return task_sections.regression_context(predictions, images)


def _format_repeat(facts: ReportFacts, folder: Path) -> str:
    """The command that makes it again, with RUN for the folder of the page."""
    if facts.kind == "evaluation":
        return hide_folders(facts.command)
    folds = [f"{one.parent.name}/plan.toml" for one in sorted(folder.glob("fold-*/plan.toml"))]
    return "\n".join(f"vitrail train --plan RUN/{name}" for name in folds or ["plan.toml"])


def _setting_values(facts: ReportFacts) -> dict[str, str]:
    """The value in plan.toml of every setting with a reason; a dash for one that is not set."""
    plan = tomllib.loads(facts.plan)
    values = {}
    for reason in facts.reasons:
        table, _, name = reason.name.rpartition(".")
        values[reason.name] = _format_setting((plan.get(table, {}) if table else plan).get(name))
    return values


def _format_setting(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " x ".join(map(_format_setting, value))
    return f"{value:,}" if isinstance(value, int) else str("\u2013" if value in (None, "") else value)


def _split_row(facts: ReportFacts, count: provenance.SplitCount, headline: TaskMetrics) -> SplitRow:
    """A split with its primary metric."""
    metrics = [headline if count.split == headline.split else facts.metrics_for_split(count.split)]
    if facts.case_pool is not None:
        metrics.append(facts.metrics_for_split(f"{count.split}{CASES_SUFFIX}"))
    return SplitRow(count.split, count.n, count.groups, count.origin, [_primary_figure(one) for one in metrics])


def _primary_figure(metrics: TaskMetrics | None) -> tuple[str, str]:
    """The primary metric of a task and its interval, as text."""
    value, interval = None, None
    if isinstance(metrics, ClassificationMetrics):
        low, high = map(format_percent, metrics.accuracy_interval)
        return format_percent(metrics.accuracy), f"{low} to {high}"
    if isinstance(metrics, MultilabelMetrics | AnomalyMetrics):
        value, interval = metrics.auroc, metrics.auroc_interval
    if isinstance(metrics, SegmentationMetrics):
        value, interval = metrics.mean_iou, metrics.mean_iou_interval
    if isinstance(metrics, RegressionMetrics):
        value, interval = metrics.r2, metrics.per_column[0].r2_interval if len(metrics.per_column) == 1 else None
    value_text = "–" if value is None else f"{value:.3f}"
    return value_text, "–" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"


_ABSOLUTE_PATH = re.compile(
    r"""(?<=["'])/[^"'\n]*/([^"'\n/]+)(?=["'])|(?<![\w.:/~-])(?:/[^\s"'/:,;()<>]+)+/([^\s"'/:,;()<>]+)"""
)


def hide_folders(text: str) -> str:
    """A text whose absolute paths are shortened to their last part: a page that is sent names no folder of a machine.

    Web addresses and relative paths stay.
    """
    return _ABSOLUTE_PATH.sub(lambda found: f"\u2026/{found[1] or found[2]}", str(text))


_FLAG = re.compile(r"(?<![\w-])--[A-Za-z][\w.-]*\w")


def keep_flags_whole(text: str) -> str:
    """A text as HTML, in which no flag of a command, such as --folds, is broken at the end of a line."""
    return _FLAG.sub(r'<span class="flag">\g<0></span>', html.escape(str(text)))


def format_percent(share: float | None, digits: int = 1) -> str:
    """A fraction as per cent with a thin no-break space; a dash for None."""
    return "–" if share is None else f"{100 * share:.{digits}f}\u202f%"


def format_rate(share: float) -> str:
    """A fraction as per cent, with one digit more near 0 and 1, the usual range of error rates."""
    return format_percent(share, 2 if 0 < min(share, 1 - share) < 0.00995 else 1)


def format_expected_count(number: float) -> str:
    """An expected count: rounded if large, two digits if small."""
    return f"{number:,.0f}" if number >= 9.95 or number == round(number) else f"{number:.2g}"


def format_duration(seconds: float) -> str:
    """A duration such as 42 s, 9 min 58 s, 3 h 20 min."""
    total = round(seconds)
    if total < 60:
        return f"{seconds:.1f} s" if total < 10 else f"{total} s"
    minutes, rest = divmod(total, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
