"""Out-of-distribution detection: Mahalanobis and nearest-neighbour distances of features, and a threshold on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64, Shaped

from .. import config
from ..errors import DamagedFileError
from ..stats.auc import roc_auc_with_influence
from ..stats.intervals import proportion_interval
from .conformal import conformal_quantile, min_calibration_size
from .metrics import describe_images

if TYPE_CHECKING:
    from torch import Tensor

NUM_NEIGHBORS = 50
MAX_BANK_SIZE = 2000
"""Training images in the bank of neighbours, evenly spaced."""
MIN_IMAGES_PER_NEIGHBOR = 20
"""The number of neighbours is at most n / 20 for n training images."""
MIN_SCATTER = 1e-6
OOD_ALPHA = 0.01
"""Fraction of validation images beyond the threshold."""


@dataclass(frozen=True)
class FeatureStats:
    """Statistics of L2-normalised training features: class means, whitening, and a bank of neighbours."""

    means: Float32[np.ndarray, "K D"]
    """One per class, or a single one for tasks without classes."""
    whitening: Float32[np.ndarray, "D D"]
    """Features times this have unit covariance within classes."""
    bank: Float32[np.ndarray, "n D"]
    """Features of training images, for the distance to neighbours."""

    def to_tensors(self) -> dict[str, Tensor]:
        """As a bundle stores them."""
        import torch

        return {
            "means": torch.from_numpy(self.means),
            "whitening": torch.from_numpy(self.whitening),
            "bank": torch.from_numpy(self.bank).half(),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], width: int, where: str) -> FeatureStats | None:
        """Read the statistics of a bundle for a model of this width; None if it has none.

        Raises:
            DamagedFileError: other arrays than these three, or shapes that do not fit.
        """
        if not tensors:
            return None
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        fits = set(shapes) == {"means", "whitening", "bank"} and all(
            len(shape) == 2 and shape[1] == width and shape[0] for shape in shapes.values()
        )
        if not fits or shapes["whitening"] != (width, width):
            raise DamagedFileError(
                f"{where} must hold means [K, {width}], whitening [{width}, {width}] and bank [n, {width}]. "
                f"Got {shapes}. Use another copy."
            )
        return cls(*(tensors[name].float().numpy() for name in ("means", "whitening", "bank")))

    def mahalanobis_distances(self, features: Float[np.ndarray, "m D"]) -> Float64[np.ndarray, " m"]:
        """Squared Mahalanobis distance to the nearest class mean.

        Source: Lee et al. 2018, "A simple unified framework for detecting out-of-distribution samples"; on features of
        length 1 as in Mueller and Hein 2025, "Mahalanobis++".
        """
        white = _l2_normalize(features) @ self.whitening.astype(np.float64)  # [m, D]
        centres = self.means.astype(np.float64) @ self.whitening.astype(np.float64)  # [K, D]
        squares = np.square(white).sum(1)[:, None] + np.square(centres).sum(1) - 2 * white @ centres.T
        return np.asarray(np.maximum(squares, 0).min(1))

    def knn_distances(self, features: Float[np.ndarray, "m D"]) -> Float64[np.ndarray, " m"]:
        """1 minus the cosine similarity to the k-th nearest training image; k is 50, or fewer for a small bank.

        Source: Sun et al. 2022, "Out-of-distribution detection with deep nearest neighbors".
        """
        k = max(1, min(NUM_NEIGHBORS, len(self.bank) // MIN_IMAGES_PER_NEIGHBOR))
        unit, bank = _l2_normalize(features).astype(np.float32), self.bank.T
        parts = [
            np.partition(part @ bank, len(self.bank) - k, axis=1)[:, len(self.bank) - k]
            for part in np.array_split(unit, max(1, len(unit) // 1000))
        ]
        return 1 - np.concatenate(parts).astype(np.float64)


def fit_feature_stats(
    features: Float[np.ndarray, "n D"], classes: Int64[np.ndarray, " n"] | None
) -> FeatureStats | None:
    """Fit the statistics to features of training images without augmentation; None if the features have no variance.

    Args:
        classes: class index of each image, for classification.
    """
    from sklearn.covariance import ledoit_wolf

    if not len(features):
        return None
    unit = _l2_normalize(features)
    numbers = np.zeros(len(unit), np.int64) if classes is None else np.unique(classes, return_inverse=True)[1]
    means = np.stack([unit[numbers == k].mean(0) for k in range(int(numbers.max()) + 1)])
    scatter = unit - means[numbers]
    if float(np.abs(scatter).max()) < MIN_SCATTER:  # one image, or one for each class
        return None
    covariance, _ = ledoit_wolf(scatter, assume_centered=True)
    values, turn = np.linalg.eigh(covariance)
    whitening = turn / np.sqrt(np.maximum(values, values.max() * 1e-10))
    kept = np.unique(np.linspace(0, len(unit) - 1, min(MAX_BANK_SIZE, len(unit))).round().astype(np.int64))
    bank = unit[kept].astype(np.float16).astype(np.float32)  # as it will be read again
    return FeatureStats(means.astype(np.float32), whitening.astype(np.float32), bank)


def fit_ood_threshold(scores: Float64[np.ndarray, " n"], alpha: float = OOD_ALPHA) -> float | None:
    """Conformal threshold: a further in-distribution image exceeds it with probability at most `alpha`.

    It lies half-way to the next larger score, or a little above the largest, so that rounding changes no decision. None
    with too few images: fewer than 99 for alpha = 0.01.
    """
    if len(scores) < min_calibration_size(alpha):
        return None
    cut = conformal_quantile(scores, alpha)
    larger = scores[scores > cut]
    return float((cut + larger.min()) / 2) if larger.size else cut + abs(cut) / 1000


def _l2_normalize(features: np.ndarray) -> np.ndarray:
    wide = features.astype(np.float64)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12))


# -- Comparison of held-out images with images of another source

Span = tuple[float, float]
MAHALANOBIS_SCORE, KNN_SCORE = "Mahalanobis distance", "distance to neighbours"


@dataclass(frozen=True, kw_only=True)
class OodScore:
    """How well one score separates the two sources."""

    score: str
    auroc: float
    """Probability that an image of the other source scores above a held-out one."""
    auroc_interval: Span
    """95 %."""


@dataclass(frozen=True, kw_only=True)
class RejectedShare:
    """Fraction of images beyond the stored threshold, which get the abstain reason `unlike`."""

    share: float
    interval: Span
    """95 %, Wilson's, by groups if there are any."""


@dataclass(frozen=True, kw_only=True)
class OodComparison:
    """Out-of-distribution scores of a run's held-out images and of another source."""

    source: str
    split: str
    n: int
    other: str
    others: int
    scores: tuple[OodScore, ...]
    cut: float | None = None
    """The threshold of the Mahalanobis distance; None with too few validation images."""
    held_out: RejectedShare | None = None
    """Of the held-out images; about 1 % is expected."""
    unlike: RejectedShare | None = None
    """Of the other source."""

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; unmeasured values are absent."""
        return config.write(self)

    def table(self) -> str:
        """A line for each score and the verdict, for the terminal."""
        width = max(len(one.score) for one in self.scores)
        lines = [
            f"{describe_images(self.n, self.split, self.source)} beside {self.others:,} of {self.other}",
            f"{'score':<{width}}   AUROC  95 % interval",
        ]
        for one in self.scores:
            low, high = one.auroc_interval
            lines.append(f"{one.score:<{width}}  {one.auroc:.4f}  {low:.4f} to {high:.4f}")
        return "\n".join([*lines, self.verdict()])

    def verdict(self) -> str:
        """The effect of the threshold, in a sentence or two."""
        if self.unlike is None or self.held_out is None:
            return (
                "No picture is answered with 'unlike': the cut takes at least 99 validation pictures, and the training "
                "had fewer."
            )
        own = self.split if self.split in ("train", "all") else "held-out"
        return (
            f"Answered with 'unlike', by the cut of the training: {_format_share(self.unlike)} of {self.other}, "
            f"{_format_share(self.held_out)} of the {own} pictures."
        )


def compare_ood(
    feature_stats: FeatureStats,
    cut: float | None,
    in_features: Float[np.ndarray, "n D"],
    out_features: Float[np.ndarray, "m D"],
    names: tuple[str, str, str],
    groups: tuple[Shaped[np.ndarray, " n"] | None, Shaped[np.ndarray, " m"] | None] = (None, None),
) -> OodComparison:
    """Compare both scores on features of held-out images and of another source.

    Args:
        feature_stats: of the training images.
        cut: threshold of the Mahalanobis distance.
        names: of the run's own source, of the split, and of the other source.
        groups: group of each image, such as its patient, for either source.

    Source: Hendrycks and Gimpel 2017, "A baseline for detecting misclassified and out-of-distribution examples", for
    the AUROC; the scores are those of `FeatureStats`.
    """
    both = np.concatenate([in_features, out_features])
    foreign = np.arange(len(both)) >= len(in_features)
    own_groups = None
    if any(one is not None for one in groups):  # numbers that the two sources do not share
        numbers = [
            np.arange(len(features)) if one is None else np.unique(one, return_inverse=True)[1]
            for one, features in zip(groups, (in_features, out_features), strict=True)
        ]
        own_groups = np.concatenate([2 * number + source for source, number in enumerate(numbers)])
    distances = feature_stats.mahalanobis_distances(both)
    scores = ((MAHALANOBIS_SCORE, distances), (KNN_SCORE, feature_stats.knn_distances(both)))
    areas = [(name, roc_auc_with_influence(foreign, values, groups=own_groups)) for name, values in scores]
    return OodComparison(
        source=names[0],
        split=names[1],
        n=len(in_features),
        other=names[2],
        others=len(out_features),
        scores=tuple(OodScore(score=name, auroc=one.value, auroc_interval=one.interval()) for name, one in areas),
        cut=cut,
        held_out=None if cut is None else _rejected_share(distances[~foreign] > cut, groups[0]),
        unlike=None if cut is None else _rejected_share(distances[foreign] > cut, groups[1]),
    )


def _rejected_share(flags: np.ndarray, groups: np.ndarray | None) -> RejectedShare:
    return RejectedShare(share=float(flags.mean()), interval=proportion_interval(flags, groups))


def _format_share(rejected: RejectedShare) -> str:
    low, high = rejected.interval
    return f"{100 * rejected.share:.2f} % ({100 * low:.2f} to {100 * high:.2f} %)"
