"""Fit the head of a segmentation model: multinomial logistic regression on frozen features of patches.

The label of a patch is soft: the fractions of its known pixels that are of each class. Pixels of unknown class are left
out, and a patch weighs as much as it has known pixels, so that the fit is the same as one on pixels whose features are
those of their patch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from ...data.source import UNKNOWN_PIXEL
from ...errors import DataError
from ...evaluate.probe import LinearProbe, fit_probe_path
from ...model.config import ViTConfig
from ...randomness import permutation
from .linear_probe import Candidate, FeatureColumns, ProbeResult

PATCH_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
"""Values of C that are tried: the loss is summed over patches, of which an image has hundreds that are alike."""
DEFAULT_PATCH_C = 1e-2
"""C of a single image, of which nothing can be left out."""
MAX_HELD_OUT_FOLDS = 3
"""Without validation images C is chosen by leaving out so many parts of the training images in turn."""
MAX_PATCH_VALUES = 2**24
"""Most numbers in the features of a fit; of more patches a sample is taken."""


@dataclass(frozen=True)
class PatchSet:
    """Features of the patches of some images, with soft labels."""

    features: Float32[np.ndarray, "m P"]
    labels: Float32[np.ndarray, "m K"]
    """Rows sum to 1."""
    weights: Float32[np.ndarray, " m"]
    """Fraction of the pixels of each patch that are known, above 0."""
    images: Int64[np.ndarray, " m"]
    """The image, or group of images, that each patch is of."""

    def select(self, chosen: np.ndarray) -> PatchSet:
        """Some of the patches."""
        return PatchSet(self.features[chosen], self.labels[chosen], self.weights[chosen], self.images[chosen])


def label_patches(mask: UInt8[np.ndarray, "H W"], config: ViTConfig) -> Float32[np.ndarray, "N K"]:
    """For each patch the fraction of all its pixels that are of each class; what lacks to 1 is unknown."""
    (rows, columns), (height, width) = config.grid, config.patch
    bottom, right = rows * height - mask.shape[0], columns * width - mask.shape[1]
    padded = np.pad(mask, ((0, bottom), (0, right)), constant_values=UNKNOWN_PIXEL)
    pixels = padded.reshape(rows, height, columns, width).transpose(0, 2, 1, 3).reshape(rows * columns, -1)
    return np.stack([(pixels == k).mean(1) for k in range(config.outputs)], axis=1).astype(np.float32)


def collect_patches(
    features: Float32[np.ndarray, "n N P"],
    fractions: Sequence[Float32[np.ndarray, "N K"]],
    images: Int64[np.ndarray, " n"],
    seed: int,
) -> PatchSet:
    """The patches with a known pixel; of too many a sample.

    Args:
        fractions: of every image, as `label_patches`.
        images: the group of each image.
    """
    shares = np.stack(fractions).reshape(-1, fractions[0].shape[1]) if fractions else np.zeros((0, 1), np.float32)
    known = shares.sum(1)
    rows = np.flatnonzero(known > 0)
    most = max(1, MAX_PATCH_VALUES // features.shape[-1])
    if len(rows) > most:
        rows = np.sort(rows[permutation(seed, "patches", 0, len(rows))[:most]])
    flat = features.reshape(-1, features.shape[-1])[rows]
    owners = np.repeat(images, features.shape[1])[rows]
    return PatchSet(flat, shares[rows] / known[rows, None], known[rows], owners)


def fit_patch_head(train: PatchSet, valid: PatchSet, parts: Mapping[str, FeatureColumns]) -> ProbeResult:
    """The head with the lowest loss on the patches of validation images, over the features of one and of several
    blocks and values of C; without any, on training images that are left out in turn.

    Raises:
        DataError: the training images have no known pixel, or all are of one class.
    """
    present = np.flatnonzero(train.labels.max(0, initial=0) > 0)
    if len(present) < 2:
        raise DataError(
            "The masks of the training pictures have pixels of fewer than two classes, so there is nothing to tell "
            "apart. Give more pictures, or a smaller --data.val_fraction and --data.test_fraction."
        )
    tried: list[tuple[float, float, str, float, LinearProbe | None, FeatureColumns]] = []
    for name, columns in parts.items():
        for c, loss, accuracy, head in _try_strengths(train, valid, columns):
            tried.append((loss, accuracy, name, c, head, columns))
    best = min(range(len(tried)), key=lambda place: tried[place][0]) if tried else -1
    candidates = tuple(
        Candidate(
            name=f"linear {name}, C {c:g}", figure_name="accuracy", figure=round(accuracy, 6), loss=round(loss, 6),
            chosen=place == best,
        )
        for place, (loss, accuracy, name, c, _, _) in enumerate(tried)
    )  # fmt: skip
    columns = tried[best][5] if tried else list(parts.values())[-1]
    head = tried[best][4] if tried else None
    if head is None:
        (head,) = _fit_path(train, columns, (tried[best][3] if tried else DEFAULT_PATCH_C,))
    return ProbeResult(head, columns, candidates)


def _try_strengths(
    train: PatchSet, valid: PatchSet, columns: FeatureColumns
) -> Iterator[tuple[float, float, float, LinearProbe | None]]:
    """C, loss, accuracy and head for every C; the head is None where it was fitted to parts of the images."""
    if len(valid.features):
        for head in _fit_path(train, columns, PATCH_STRENGTHS):
            yield head.c, *_judge(head, valid, columns), head
        return
    groups = np.unique(train.images)
    if len(groups) < 2:
        return
    folds = np.arange(len(groups)) % min(MAX_HELD_OUT_FOLDS, len(groups))
    figures = np.zeros((len(PATCH_STRENGTHS), 2))
    for fold in range(int(folds.max()) + 1):
        left_out = np.isin(train.images, groups[folds == fold])
        for place, head in enumerate(_fit_path(train.select(~left_out), columns, PATCH_STRENGTHS)):
            part = train.select(left_out)
            figures[place] += np.array(_judge(head, part, columns)) * part.weights.sum() / train.weights.sum()
    for c, (loss, accuracy) in zip(PATCH_STRENGTHS, figures.tolist(), strict=True):
        yield c, loss, accuracy, None


def _fit_path(train: PatchSet, columns: FeatureColumns, strengths: Sequence[float]) -> Iterator[LinearProbe]:
    """A head for each C."""
    features = np.ascontiguousarray(train.features[:, columns])
    weights = train.weights / train.weights.mean()
    yield from fit_probe_path(features, train.labels, "classification", train.labels.shape[1], strengths, weights)


def _judge(head: LinearProbe, patches: PatchSet, columns: FeatureColumns) -> tuple[float, float]:
    """Mean cross-entropy, and the fraction of patches whose most frequent class is the likeliest, by known pixels."""
    logits = head.predict_outputs(np.ascontiguousarray(patches.features[:, columns])).astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    weights = patches.weights.astype(np.float64) / patches.weights.sum()
    right = logits.argmax(1) == patches.labels.argmax(1)
    return float(weights @ -(patches.labels * logs).sum(1)), float(weights @ right)
