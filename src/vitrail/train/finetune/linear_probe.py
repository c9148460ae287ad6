"""k-NN and a path of linear probes on frozen features, compared on the validation images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int64, Shaped

from ...data.source import Task
from ...evaluate import probe
from ...evaluate.probe import LinearProbe
from ...evaluate.quick_metrics import QuickMetrics, compute_quick_metrics
from ...files import atomic
from ...formatting import format_count
from ...randomness import permutation
from ...stats.intervals import bootstrap_interval

MAX_FEATURE_VALUES = 2**25
"""Largest number of values in the features of a probe; larger sets are sampled."""
WORSE_STEPS_BEFORE_STOP = 2
DEFAULT_C = 0.032
"""C without validation images."""


@dataclass(frozen=True)
class FeatureSet:
    """Frozen features of images, and their targets for the loss."""

    features: Float[np.ndarray, "n *N P"]
    """[n, P]; of an anomaly model those of patches [n, N, P]."""
    targets: Shaped[np.ndarray, " n *K"]
    weights: Float32[np.ndarray, " n"] | None = None
    """Loss weights of the images; None is 1 for all."""


FeatureColumns = Int64[np.ndarray, " _"]
"""Indices of features."""


@dataclass(frozen=True)
class ProbeResult:
    """The probe that becomes the head, and all candidates."""

    best: LinearProbe
    columns: FeatureColumns
    """The features of the probe."""
    candidates: tuple[Candidate, ...]


def fit_probes(
    train: FeatureSet, valid: FeatureSet, task: Task, outputs: int, parts: Mapping[str, FeatureColumns], seed: int
) -> ProbeResult:
    """Fit probes on the training images, and choose by the loss on the validation images.

    For every kind of pooling C rises until two steps in a row are worse. k-NN on the last block's features is shown for
    comparison only, because it cannot become a head.

    Args:
        valid: its targets are class numbers [m] for classes, and those of the loss for other tasks.
        parts: the columns of the features by the kind of pooling, those of several blocks last.
    """
    candidates: list[Candidate] = []
    probes: list[tuple[Candidate, LinearProbe, FeatureColumns]] = []
    last_block = [columns for name, columns in parts.items() if not name.endswith("blocks")][-1]
    train_part = _subsample(_select_columns(train, last_block), seed)
    valid_part = _select_columns(valid, last_block)
    for count in probe.NEIGHBOR_COUNTS if len(valid.features) else ():
        outputs_nearest = probe.knn_outputs(
            train_part.features, train_part.targets, valid_part.features, task, outputs, count
        )
        if (candidate := evaluate_candidate(f"{count} nearest", task, outputs_nearest, valid.targets)) is not None:
            candidates.append(candidate)
    for name, columns in parts.items():
        train_part, valid_part = _subsample(_select_columns(train, columns), seed), _select_columns(valid, columns)
        for candidate, linear in _fit_path(name, train_part, valid_part, task, outputs):
            probes.append((candidate, linear, columns))
    if not probes:  # no validation images
        train_part = _subsample(_select_columns(train, last_block), seed)
        (linear,) = probe.fit_probe_path(
            train_part.features, train_part.targets, task, outputs, (DEFAULT_C,), train_part.weights
        )
        return ProbeResult(linear, last_block, tuple(candidates))
    best = min(range(len(probes)), key=lambda index: probes[index][0].loss)
    candidates += [replace(one, chosen=index == best) for index, (one, _, _) in enumerate(probes)]
    return ProbeResult(probes[best][1], probes[best][2], tuple(candidates))


def _fit_path(
    name: str, train: FeatureSet, valid: FeatureSet, task: Task, outputs: int
) -> list[tuple[Candidate, LinearProbe]]:
    """Probes of rising C until two in a row are worse than the best so far."""
    path: list[tuple[Candidate, LinearProbe]] = []
    worse = 0
    for linear in probe.fit_probe_path(train.features, train.targets, task, outputs, weights=train.weights):
        candidate = evaluate_candidate(
            f"linear {name}, C {linear.c:g}", task, linear.predict_outputs(valid.features), valid.targets
        )
        if candidate is None:
            break
        worse = worse + 1 if path and candidate.loss >= min(one.loss for one, _ in path) else 0
        path.append((candidate, linear))
        if worse == WORSE_STEPS_BEFORE_STOP:
            break
    return path


def _select_columns(feature_set: FeatureSet, columns: FeatureColumns) -> FeatureSet:
    return replace(feature_set, features=np.ascontiguousarray(feature_set.features[:, columns]))


def _subsample(train: FeatureSet, seed: int) -> FeatureSet:
    most = max(1, MAX_FEATURE_VALUES // train.features.shape[1])
    if len(train.features) <= most:
        return train
    rows = np.sort(permutation(seed, "probed", 0, len(train.features))[:most])
    weights = None if train.weights is None else train.weights[rows]
    return FeatureSet(train.features[rows], train.targets[rows], weights)


# -- Candidates compared on the validation images: start.json and a table


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to predict, and its metrics on the validation images."""

    name: str
    """Such as "10 nearest", "linear class+mean, C 0.032", or "0.5 of the tuned weights"."""
    figure_name: str
    """accuracy, AUROC, R2 or IoU."""
    figure: float | None
    loss: float
    chosen: bool = False

    @property
    def rank(self) -> tuple[float, float]:
        """Larger is better: by the metric, then by the loss."""
        return (-np.inf if self.figure is None else self.figure, -self.loss)


def evaluate_candidate(name: str, task: Task, outputs: np.ndarray, targets: np.ndarray) -> Candidate | None:
    """The metrics of predictions on the validation images; None without known targets.

    Args:
        targets: int64 [n] for classes; float32 [n, K] for labels, and for numbers on the scale of `outputs`.
    """
    return to_candidate(name, compute_quick_metrics(task, outputs, targets) if len(targets) else None)


def to_candidate(name: str, metrics: QuickMetrics | None) -> Candidate | None:
    """A candidate with these metrics; None without any."""
    if metrics is None:
        return None
    value = None if metrics.value is None else round(metrics.value, 6)
    return Candidate(name=name, figure_name=metrics.name, figure=value, loss=round(metrics.loss, 6))


@dataclass(frozen=True, kw_only=True)
class ContinuedStart:
    """The best probes of a checkpoint and of what pre-training has made of it, on the same validation images."""

    steps: int
    start: Candidate
    continued: Candidate
    gain: float
    """How much less the loss of the continued features is, a mean over images."""
    interval: tuple[float, float]
    """Of the gain, 95 %."""

    @property
    def is_kept(self) -> bool:
        """Whether the gain is beyond luck."""
        return self.interval[0] > 0

    def __str__(self) -> str:
        what = "is kept" if self.is_kept else "is not kept, for that may be luck, and the checkpoint is used as it is"
        return (
            f"Pre-training from the checkpoint, {format_count(self.steps, 'step')}: the probe's loss on the validation "
            f"pictures was {self.start.loss:.4f} before and is {self.continued.loss:.4f} after it "
            f"({_format_metric(self.start)} and {_format_metric(self.continued)}), a gain of {self.gain:+.4f} "
            f"({self.interval[0]:+.4f} to {self.interval[1]:+.4f}), so it {what}."
        )


def compare_starts(
    steps: int,
    start: tuple[Candidate, Float[np.ndarray, " n *K"]],
    continued: tuple[Candidate, Float[np.ndarray, " n *K"]],
    groups: Shaped[np.ndarray, " n"] | None,
    seed: int,
) -> ContinuedStart:
    """Compare the probes of two models by a paired bootstrap of images, or of groups of images.

    Args:
        start, continued: the chosen probe and its losses, NaN where unknown: `quick_metrics.output_losses`.
    """
    gains = (start[1] - continued[1]).reshape(len(start[1]), -1)  # [n, K]
    known = ~np.isnan(gains).all(1)
    rows = np.nanmean(gains[known], axis=1)
    own = None if groups is None else groups[known]
    low, high = bootstrap_interval(rows, lambda drawn: float(drawn.mean()), seed, groups=own)
    return ContinuedStart(
        steps=steps, start=start[0], continued=continued[0], gain=float(rows.mean()), interval=(low, high)
    )


def write_candidates(
    path: Path,
    probes: Sequence[Candidate],
    means: Sequence[Candidate] = (),
    continued: ContinuedStart | None = None,
) -> None:
    """Write the candidates on frozen features, the means of initial and tuned weights, and what pre-training has made
    of the checkpoint, if it did."""
    content: dict[str, Any] = {"frozen": [asdict(one) for one in probes], "tuned": [asdict(one) for one in means]}
    if continued is not None:
        content["continued"] = asdict(continued) | {"kept": continued.is_kept}
    atomic.write_json(path, content)


def read_continued(path: Path) -> ContinuedStart | None:
    """What `write_candidates` stored of a pre-training from the checkpoint; None without it."""
    stored = json.loads(path.read_text(encoding="utf-8")).get("continued") if path.is_file() else None
    if stored is None:
        return None
    start, continued = Candidate(**stored["start"]), Candidate(**stored["continued"])
    low, high = stored["interval"]
    return ContinuedStart(
        steps=stored["steps"], start=start, continued=continued, gain=stored["gain"], interval=(low, high)
    )


def read_candidates(path: Path) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """Read what `write_candidates` stored; two empty tuples without a file."""
    if not path.is_file():
        return (), ()
    content = json.loads(path.read_text(encoding="utf-8"))
    return tuple(Candidate(**row) for row in content["frozen"]), tuple(Candidate(**row) for row in content["tuned"])


def keep_best_of_each_kind(rows: Sequence[Candidate]) -> list[Candidate]:
    """The rows to show: of each kind of linear probe only the best."""
    best: dict[str, Candidate] = {}
    for row in rows:
        kind = row.name.partition(", C ")[0]
        if row.chosen or kind not in best or (not best[kind].chosen and row.rank > best[kind].rank):
            best[kind] = row
    return list(best.values())


def format_candidates(rows: Sequence[Candidate]) -> list[str]:
    """The lines of a plain-text table; the chosen row is marked."""
    shown = keep_best_of_each_kind(rows)
    width = max((len(row.name) for row in shown), default=0)
    return [
        f"  {row.name:<{width}}  {_format_metric(row)}  loss {row.loss:.3f}{'  <- chosen' if row.chosen else ''}"
        for row in shown
    ]


def describe_candidates(path: Path) -> list[str]:
    """A sentence for each table of start.json, and for pre-training from a checkpoint, for the report."""
    continued = read_continued(path)
    titles = ("Frozen features, on the validation pictures", "Start, tuned weights and their means, there too")
    return [str(continued)] * (continued is not None) + [
        f"{title}: "
        + "; ".join(f"{row.name} {_format_metric(row)}{' (chosen)' if row.chosen else ''}" for row in shown)
        + "."
        for title, rows in zip(titles, read_candidates(path), strict=True)
        if (shown := keep_best_of_each_kind(rows))
    ]


def _format_metric(row: Candidate) -> str:
    if row.figure is None:
        return f"{row.figure_name} unknown"
    digits = ".1%" if row.figure_name == "accuracy" else ".3f"
    return f"{row.figure_name} {row.figure:{digits}}"
