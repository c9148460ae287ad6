"""Figures of a report as files of their own: SVG and PNG of every curve, reliability diagram and confusion matrix."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..evaluate.metrics import ClassificationMetrics
from ..evaluate.task_metrics import TaskMetrics
from ..explain.matplotlib_style import default_style, import_matplotlib
from ..files import atomic
from ..formatting import format_count
from .charts import CalibrationChart, Chart, ChartLine
from .curves_section import CurvesSection
from .task_sections import MAX_MATRIX_CLASSES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES_FOLDER = "figures"
PNG_DPI = 200
COLOURS = {"first": "#1f6f8b", "second": "#b5762a", "faint": "#1f6f8b", "guide": "#666a76", "points": "#1f6f8b"}
"""As the page has them in light."""


def write_figures(
    folder: Path, curves: CurvesSection | None, confidence: CalibrationChart | None, metrics: TaskMetrics
) -> list[Path]:
    """Write the curves, the reliability diagram of the confidence and the confusion matrix; returns the files.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    import_matplotlib()
    charts: dict[str, Chart] = {}
    targets = curves.targets if curves else []
    for one in targets:
        ending = f"-{_slug(one.name)}" if len(targets) > 1 else ""
        charts |= {f"{name}{ending}": chart for name, chart in one.charts.items()}
    if confidence is not None:
        charts["reliability-of-confidence"] = confidence.figure
    written = []
    with default_style():
        for name, chart in charts.items():
            written += write_plot(folder / FIGURES_FOLDER, name, plot_chart(chart))
        if isinstance(metrics, ClassificationMetrics) and len(metrics.confusion) <= MAX_MATRIX_CLASSES:
            written += write_plot(folder / FIGURES_FOLDER, "confusion-matrix", plot_confusion(metrics))
    return written


def _slug(name: str) -> str:
    """A name as part of a file name."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "unnamed"


def write_plot(folder: Path, name: str, figure: Figure) -> list[Path]:
    """Write one figure as SVG and PNG; equal figures give equal files."""
    paths = []
    for extension, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
        data, path = io.BytesIO(), folder / f"{name}.{extension}"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # letters that matplotlib's font lacks are boxes in the PNG
            figure.savefig(data, format=extension, dpi=PNG_DPI, metadata=metadata)
        path.parent.mkdir(exist_ok=True)
        atomic.write_bytes(path, data.getvalue())
        paths.append(path)
    return paths


def _new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "vitrail"  # names inside the SVG are random otherwise
    rcParams["svg.fonttype"] = "none"  # text that stays text, in a font that has the letters of a class's name
    rcParams["text.parse_math"] = False  # a name may hold a dollar
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def plot_chart(chart: Chart) -> Figure:
    """A line chart as a matplotlib figure, in the colours of the page."""
    figure, axes = _new_figure(5.6, 4.2)
    for line in chart.lines:
        _plot_line(axes, line)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label, title=chart.title, xlim=chart.x, ylim=chart.y)
    axes.title.set_fontsize("medium")
    axes.grid(color="#e2dfd8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small", framealpha=0.9)
    return figure


def _plot_line(axes: Axes, line: ChartLine) -> None:
    colour = COLOURS[line.style]
    x, y = np.array([*zip(*line.points, strict=True)]) if line.points else np.zeros((2, 0))
    if line.band:
        low, high = np.array(line.band).T
        alpha = 0.1 if line.style == "faint" else 0.22
        name = line.name if line.style == "faint" else "95 %, at each place"
        axes.fill_between(x, low, high, color=colour, alpha=alpha, linewidth=0, label=name)
        if line.style == "faint":
            return
    if line.error_bars:
        low, high = np.array(line.error_bars).T
        axes.vlines(x, low, high, color=colour, alpha=0.5)
    if line.style == "points" or len(line.points) == 1:
        size = 36 if line.style == "second" else 14
        axes.scatter(x, y, s=size, color=colour, zorder=3, label=line.name if line.style == "second" else None)
        return
    dashed, faint = "--" if line.style == "guide" else "-", 0.4 if line.style == "faint" else 1.0
    marker = "o" if line.dots else None
    axes.plot(x, y, dashed, color=colour, alpha=faint, marker=marker, markersize=4, linewidth=1.4, label=line.name)


def plot_confusion(metrics: ClassificationMetrics) -> Figure:
    """The confusion matrix as a matplotlib figure; shades are shares of the true class."""
    matrix, names = np.array(metrics.confusion), [one.name for one in metrics.per_class]
    shares = matrix / np.maximum(1, matrix.sum(1, keepdims=True))
    side = max(3.6, 1.8 + 0.42 * len(names))
    figure, axes = _new_figure(side + 0.6, side)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    short = [name if len(name) <= 24 else f"{name[:23]}…" for name in names]
    axes.set_xticks(range(len(names)), short, rotation=90 if max(map(len, short)) > 3 else 0)
    axes.set_yticks(range(len(names)), short)
    axes.set(xlabel="predicted", ylabel="is", title=f"Confusion matrix, {format_count(metrics.n, 'picture')}")
    axes.title.set_fontsize("medium")
    for (row, column), count in np.ndenumerate(matrix):
        if count:
            colour = "white" if shares[row, column] > 0.55 else "black"
            axes.text(column, row, f"{count}", ha="center", va="center", color=colour, fontsize="small")
    return figure
