"""The report page: stored facts, predictions, curves and thumbnails in, one self-contained HTML file out.

`template.html.j2` is the page of every run; `classes.html.j2`, `labels.html.j2` and `number.html.j2` fill in what
each task has of its own, from `classes_page`, `labels_page` and `numbers_page`. For one reader the page begins with
`radiology.html.j2` or `inspection.html.j2`, from `first` and the module of that name.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UsageError
from ..evaluate.metrics import ClassificationMetrics
from ..evaluate.multilabel_metrics import MultilabelMetrics
from ..evaluate.prediction_tables import TaskPredictions, read_predictions_csv
from ..evaluate.predictions import ClassificationPredictions, MultilabelPredictions, RegressionPredictions
from ..evaluate.regression_metrics import RegressionMetrics
from ..evaluate.task_metrics import TaskMetrics, compute_metrics
from ..files import atomic
from . import (
    beside,
    classes_page,
    curves,
    explanations,
    facts,
    first,
    grouping,
    heat,
    inspection,
    labels_page,
    numbers_page,
    radiology,
    reliable,
    thumbnails,
    trust,
)
from .asked import Asked
from .data_card import data_card
from .facts import ReportFacts
from .thumbnails import Kept

NAME = "report.html"
SHEET = "figures/what-the-model-sees.png"
"""Where a training draws some of its pictures, as they are and as the first epochs change them."""
SPLITS = {"test": "held-out test", "val": "validation", "train": "training", "out-of-fold": "out-of-fold"}


class Part(NamedTuple):
    """A line of the table of splits."""

    split: str
    n: int
    origin: str
    figure: str
    interval: str


def build(run_folder: Path, asked: Asked | None = None) -> Path:
    """Write report.html of a run folder in one step, from report.json, predictions/*.csv and what lies beside them.

    Args:
        asked: for whom the first page is; none leaves it out.

    Raises:
        UsageError: no report.json, no predictions of its held-out split, or a run that cannot be asked so.
        DataError, DamagedFileError: a stored file that cannot be read, by name.
    """
    folder = Path(run_folder)
    known = facts.read(folder)
    stored = folder / "predictions" / f"{known.held_out}.csv"
    if not stored.exists():
        raise UsageError(f"The report speaks of the {known.held_out} split and needs {stored}. There is no such file.")
    path = folder / NAME
    text = render(known, read_predictions_csv(stored, known.task), folder, asked)
    atomic.write_bytes(path, text.encode("utf-8", "replace"))  # a path may hold bytes that are not UTF-8
    return path


def render(known: ReportFacts, answers: TaskPredictions, folder: Path, asked: Asked | None = None) -> str:
    """The page as text. `folder` may lack all that it is asked for: curves, thumbnails, maps, what the check found."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    room = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    room.filters.update(percent=percent, rate=rate, about=about, duration=duration, count="{:,}".format)
    page = room.get_template(f"{known.task}.html.j2")
    return page.render(**_contents(known, answers, folder, asked))


def _contents(known: ReportFacts, answers: TaskPredictions, folder: Path, asked: Asked | None) -> dict[str, Any]:
    metrics = known.measured(known.held_out) or compute_metrics(answers)
    figures = curves.history(folder / "metrics.jsonl")
    images = thumbnails.load(folder)
    name = {"classes": "accuracy", "labels": "AUROC", "number": "R2"}[known.task]
    rising = curves.accuracy_chart(figures) if known.task == "classes" else curves.score_chart(figures, name)
    return {
        "first_page": None,
        "facts": known,
        "metrics": metrics,
        "split": SPLITS.get(metrics.split, metrics.split),
        "figure": name.replace("R2", "R²"),
        "parts": [_part(known, count, metrics) for count in known.counts],
        "loss": curves.loss_chart(figures),
        "rising": rising,
        "rate": curves.rate_chart(figures),
        "decisions": known.decisions,
        "most_charts": reliable.MOST,
        "trust": trust.of(answers, known.decisions, grouping.load(folder, len(answers))),
        "card": data_card(folder, known, metrics),
        "heat": heat.heat(explanations.load(folder), answers, *images),
        "beside": beside.read(folder),
        "values": _values(known),
        "sheet": SHEET if (folder / SHEET).is_file() else "",
        **_own(metrics, answers, images),
        **({} if asked is None else _first(known, metrics, answers, folder, asked, images)),
    }


def _first(
    known: ReportFacts,
    metrics: TaskMetrics,
    answers: TaskPredictions,
    folder: Path,
    asked: Asked,
    images: tuple[list[Kept], np.ndarray],
) -> dict[str, Any]:
    """What only the first page of this reader has."""
    found = first.first(known, metrics, answers, folder, asked, *images)
    if asked.reader == "radiology":
        return {"first_page": radiology.TEMPLATE, **radiology.contents(found)}
    return {"first_page": inspection.TEMPLATE, **inspection.contents(found, known, metrics, folder)}


def _own(metrics: TaskMetrics, answers: TaskPredictions, images: tuple[list[Kept], np.ndarray]) -> dict[str, Any]:
    """What only the page of this task has."""
    if isinstance(metrics, ClassificationMetrics) and isinstance(answers, ClassificationPredictions):
        return classes_page.contents(metrics, answers, *images)
    if isinstance(metrics, MultilabelMetrics) and isinstance(answers, MultilabelPredictions):
        return labels_page.contents(metrics, answers, *images)
    assert isinstance(metrics, RegressionMetrics) and isinstance(answers, RegressionPredictions)
    return numbers_page.contents(metrics, answers, *images)


def _values(known: ReportFacts) -> dict[str, str]:
    """The value of every setting that has a reason, as plan.toml has it; a dash for one that is not set."""
    plan = tomllib.loads(known.plan)
    places = {reason.name: reason.name.rpartition(".") for reason in known.reasons}
    return {
        whole: _in_words((plan.get(table, {}) if table else plan).get(name))
        for whole, (table, _, name) in places.items()
    }


def _in_words(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " x ".join(map(_in_words, value))
    return f"{value:,}" if isinstance(value, int) else str("\u2013" if value in (None, "") else value)


def _part(known: ReportFacts, count: facts.SplitCount, headline: TaskMetrics) -> Part:
    """A split with its most important figure."""
    figures = headline if count.split == headline.split else known.measured(count.split)
    if isinstance(figures, ClassificationMetrics):
        low, high = figures.accuracy_interval
        return Part(count.split, count.n, count.origin, percent(figures.accuracy), f"{percent(low)} to {percent(high)}")
    value, interval = None, None
    if isinstance(figures, MultilabelMetrics):
        value, interval = figures.auroc, figures.auroc_interval
    if isinstance(figures, RegressionMetrics):
        value, interval = figures.r2, figures.per_column[0].r2_interval if len(figures.per_column) == 1 else None
    words = "–" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
    return Part(count.split, count.n, count.origin, "–" if value is None else f"{value:.3f}", words)


def percent(share: float | None, digits: int = 1) -> str:
    """A fraction as per cent with a thin no-break space, or a dash where nothing was measured."""
    return "–" if share is None else f"{100 * share:.{digits}f}\u202f%"


def rate(share: float) -> str:
    """A fraction as per cent, with one digit more near none and near all, where rates of errors live."""
    return percent(share, 2 if 0 < min(share, 1 - share) < 0.00995 else 1)


def about(number: float) -> str:
    """An expected count: whole where it is large, with a digit where it is small."""
    return f"{number:,.0f}" if number >= 9.95 or number == round(number) else f"{number:.2g}"


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 9 min 58 s, 3 h 20 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if whole < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
