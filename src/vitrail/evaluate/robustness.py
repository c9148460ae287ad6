"""Robustness to image corruptions: the primary metric for every kind and severity, compared with clean images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64, Integer, Shaped

from .. import config
from ..config.library_names import suggest_name
from ..errors import UsageError
from ..formatting import format_count
from . import corruption_filters, corruptions_acquisition, corruptions_weather
from .corruption_filters import Corruption, CorruptionRandom
from .predictions import RegressionPredictions, TaskPredictions
from .primary_metric import ACCURACY, compute_mean_primary_metric, compute_primary_metric, primary_metric_value

if TYPE_CHECKING:
    from torch import Tensor

CORRUPTION_BATCH_SIZE = 64
NUM_WORST = 3
"""Number of kinds in the headline."""

Span = tuple[float, float]
ForwardFunction = Callable[["Tensor"], np.ndarray]
"""Preprocessed images [n, C, H, W] -> outputs [n, K]."""
ProgressWrapper = Callable[[Iterator[TaskPredictions], int, int], Iterator[TaskPredictions]]
"""(tables, number of tables, images per table) -> the same tables, with a progress display."""


@dataclass(frozen=True, kw_only=True)
class CorruptionResult:
    """The metric under one kind of corruption."""

    kind: str
    by_severity: tuple[float, ...]
    """Severities 1 to 5."""
    mean: float
    mean_interval: Span | None = None
    """95 %, as are all intervals; None where it cannot be computed."""


@dataclass(frozen=True, kw_only=True)
class RobustnessReport:
    """The primary metric on clean and on corrupted images, not normalised by another model's errors.

    A mean over corruptions has the percentile bootstrap, which resamples an image (or group) with all of its
    predictions; a mean of areas under the ROC curve has its score interval, for errors that fall together.
    """

    suite: str
    split: str
    n: int
    """Images."""
    seed: int
    """Seed of the corruptions."""
    figure: str
    """accuracy; mean AUROC over labels; mean absolute error over columns."""
    higher_is_better: bool
    clean: float
    clean_interval: Span | None = None
    mean: float
    """Over all kinds and severities."""
    mean_interval: Span | None = None
    disturbances: tuple[CorruptionResult, ...]

    @property
    def worst(self) -> tuple[CorruptionResult, ...]:
        """All kinds, the most harmful first."""
        return tuple(sorted(self.disturbances, key=lambda one: one.mean, reverse=not self.higher_is_better))

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return config.write(self)

    def headline(self) -> str:
        """Clean and mean corrupted metric and the worst kinds, in a sentence without its full stop."""
        worst = ", ".join(
            f"{_kind_as_words(one.kind)} ({self._format_value(one.mean).strip()})" for one in self.worst[:NUM_WORST]
        )
        name = self.figure[0].upper() + self.figure[1:]
        split = f" ({self.split})" if self.split else ""
        return (
            f"{name} on {format_count(self.n, 'picture')}{split}: "
            f"{self._format_with_interval(self.clean, self.clean_interval)}; "
            f"disturbed in {len(self.disturbances)} ways of {len(SEVERITIES)} severities "
            f"{self._format_with_interval(self.mean, self.mean_interval)} in the mean; worst: {worst}"
        )

    def table(self) -> str:
        """The headline and one line per kind, for the terminal."""
        width = max(len(one.kind) for one in self.disturbances)
        intervals = [self._format_interval(one.mean_interval) for one in self.disturbances]
        wide = max(len("95 % interval"), *map(len, intervals))
        heads = "".join(f"  {severity:>8}" for severity in (*SEVERITIES, "mean"))
        lines = [f"{self.headline()}.", "", f"{'severity':<{width}}{heads}  {'95 % interval':>{wide}}  {'change':>8}"]
        for one, span in zip(self.disturbances, intervals, strict=True):
            cells = "".join(f"  {self._format_value(value)}" for value in one.by_severity)
            change = self._format_value(one.mean - self.clean)
            lines.append(
                f"{_kind_as_words(one.kind):<{width}}{cells}  {self._format_value(one.mean)}  {span:>{wide}}  {change}"
            )
        return "\n".join(lines)

    def _format_with_interval(self, value: float, span: Span | None) -> str:
        return self._format_value(value).strip() + ("" if span is None else f" ({self._format_interval(span)})")

    def _format_interval(self, span: Span | None) -> str:
        if span is None:
            return "-"
        low, high = (self._format_value(bound).strip() for bound in span)
        return f"{low.removesuffix(' %')} to {high}"

    def _format_value(self, value: float) -> str:
        if self.figure == ACCURACY:
            return f"{100 * value:6.2f} %"
        return f"{value:8.4f}" if "AUROC" in self.figure else f"{value:8.4g}"


def measure_robustness(
    forward: ForwardFunction,
    predictions: Callable[[np.ndarray], TaskPredictions],
    images: Integer[Tensor, "n C H W"],
    indices: Int64[np.ndarray, " n"],
    suite: str,
    split: str = "",
    seed: int = 0,
    groups: Shaped[np.ndarray, " n"] | None = None,
    progress: ProgressWrapper | None = None,
) -> RobustnessReport:
    """Evaluate a model on clean images and under every kind and severity of a suite.

    Args:
        predictions: builds the prediction table, with targets, from the outputs of all images.
        images: at the model's input size, so that severities mean the same for every model of that size.
        indices: of each image in its source; the corruption of an image depends on its index, not on the other images.
        groups: group of each image, such as its patient.
        progress: shows the progress.

    Raises:
        UsageError: no such suite, or no images.
        DataError: a prediction is not finite, or nothing can be measured.

    Source: Hendrycks and Dietterich 2019, without the division by the errors of AlexNet.
    """
    kinds = corruption_kinds(suite)
    if not len(images):
        raise UsageError("Robustness needs at least one picture. Got none.")
    batches = [slice(start, start + CORRUPTION_BATCH_SIZE) for start in range(0, len(images), CORRUPTION_BATCH_SIZE)]

    def predict_corrupted(kind: str, severity: int) -> TaskPredictions:
        corrupted = (corrupt_images(images[part], kind, severity, seed, indices[part]) for part in batches)
        return predictions(np.concatenate([forward(part) for part in corrupted]))

    clean = predictions(np.concatenate([forward(images[part]) for part in batches]))
    value, whole = primary_metric_value(clean), compute_primary_metric(clean, groups=groups, seed=seed)
    cells = [(kind, severity) for kind in kinds for severity in SEVERITIES]
    corrupted_tables = (predict_corrupted(kind, severity) for kind, severity in cells)
    tables = list(progress(corrupted_tables, len(cells), len(images)) if progress else corrupted_tables)
    everything = compute_mean_primary_metric(tables, groups=groups, seed=seed)
    rows = []
    for at, kind in enumerate(kinds):
        own = tables[at * len(SEVERITIES) : (at + 1) * len(SEVERITIES)]
        values = tuple(primary_metric_value(table) for table in own)
        interval = compute_mean_primary_metric(own, groups=groups, seed=seed).interval
        mean = sum(values) / len(values)
        rows.append(CorruptionResult(kind=kind, by_severity=values, mean=mean, mean_interval=interval))
    return RobustnessReport(
        suite=suite,
        split=split,
        n=len(images),
        seed=seed,
        figure=whole.name,
        higher_is_better=not isinstance(clean, RegressionPredictions),
        clean=value,
        clean_interval=whole.interval,
        mean=float(np.mean([one.mean for one in rows])),
        mean_interval=everything.interval,
        disturbances=tuple(rows),
    )


def corruption_kinds(suite: str) -> tuple[str, ...]:
    """The kinds of a suite, in its order.

    Raises:
        UsageError: there is no such suite.
    """
    if suite not in CORRUPTION_SUITES:
        raise UsageError(f"The corruptions must be {' or '.join(CORRUPTION_SUITES)}. Got {suite!r}.")
    return tuple(CORRUPTION_SUITES[suite])


def _kind_as_words(kind: str) -> str:
    return kind.replace("_", " ")


# -- Corruption of images

SEVERITIES = (1, 2, 3, 4, 5)

CORRUPTION_SUITES: dict[str, dict[str, Corruption]] = {
    "imagenet-c": corruption_filters.NOISE_CORRUPTIONS
    | corruption_filters.BLUR_CORRUPTIONS
    | corruptions_weather.WEATHER_CORRUPTIONS
    | corruption_filters.DIGITAL_CORRUPTIONS,
    "films": corruptions_acquisition.ACQUISITION_CORRUPTIONS,
}
"""The fifteen kinds of Hendrycks and Dietterich 2019 in their order, and eleven of ours for films and cameras."""


def corrupt_images(
    images: Integer[Tensor, "n C H W"], kind: str, severity: int, seed: int, indices: Int64[np.ndarray, " m"]
) -> Integer[Tensor, "n C H W"]:
    """Apply one corruption to images of any size and any number of channels.

    The result for an image depends only on (seed, kind, severity, its index), not on its batch. Lengths such as blur
    radii are tabulated for sides of 224 pixels and scale with the shorter side; noise and JPEG blocks are per pixel.
    Edges are mirrored unless a corruption says otherwise.

    Args:
        kind: a name in one of the CORRUPTION_SUITES.
        severity: 1 (weakest) to 5.
        indices: of each image in its source.

    Raises:
        UsageError: no such kind or severity, or not one index per image.
    """
    import torch

    from ..data.preprocess import white_level

    known = {name: function for suite in CORRUPTION_SUITES.values() for name, function in suite.items()}
    if kind not in known:
        raise UsageError(
            f"There is no corruption {kind!r}.{suggest_name(kind, known)} The kinds are {', '.join(known)}."
        )
    if severity not in SEVERITIES:
        raise UsageError(f"A severity is a whole number from 1 to 5. Got {severity!r}.")
    if len(indices) != len(images):
        raise UsageError(
            f"Every picture needs its index. Got {format_count(len(images), 'picture')} and {len(indices):,} indices."
        )
    before, white = images.cpu().numpy(), white_level(images)
    after = np.empty_like(before)
    for place, index in enumerate(indices.tolist()):
        values = known[kind](before[place] / float(white), severity, CorruptionRandom(seed, kind, severity, index))
        after[place] = np.rint(white * values.clip(0, 1))
    return torch.from_numpy(after).to(images.device)
