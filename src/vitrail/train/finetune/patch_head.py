"""Fit the head of a segmentation model: multinomial logistic regression on frozen features of patches.

The label of a patch is soft: the fractions of its known pixels that are of each class. Pixels of unknown class are left
out, and a patch weighs as much as it has known pixels, so that the fit is the same as one on pixels whose features are
those of their patch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int64, UInt8

from ...data.source import UNKNOWN_PIXEL
from ...errors import DataError
from ...evaluate.probe import MIN_STD, LinearProbe, fit_probe_path
from ...model.config import ViTConfig
from ...randomness import permutation
from .linear_probe import Candidate, FeatureColumns, ProbeResult

PATCH_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
"""Values of C that are tried: the loss is summed over patches, of which an image has hundreds that are alike."""
DEFAULT_PATCH_C = 1e-2
"""C of a single image, of which nothing can be left out."""
MAX_HELD_OUT_FOLDS = 3
"""Without validation images C is chosen by leaving out so many parts of the training images in turn."""
MAX_COMPONENTS = 256
"""Principal components of the standardised features to which heads are fitted: with all of 1,536 a fit takes six times
as long, and those left out hardly differ between patches."""
MAX_PATCH_VALUES = 2**24
"""Most numbers in the features of a fit; of more patches a sample is taken."""
FIT_EVALUATIONS = 45
"""Times that the loss is computed for a value of C (EXPERIMENTS.md)."""


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
    (rows, columns), (height, width) = config.input_grid, config.patch
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
    if len(rows) > (most := most_patches(features.shape[-1])):
        rows = np.sort(rows[permutation(seed, "patches", 0, len(rows))[:most]])
    flat = features.reshape(-1, features.shape[-1])[rows]
    owners = np.repeat(images, features.shape[1])[rows]
    return PatchSet(flat, shares[rows] / known[rows, None], known[rows], owners)


def most_patches(width: int) -> int:
    """The most patches of a fit, whose features have so many numbers."""
    return max(1, MAX_PATCH_VALUES // width)


def measure_fit_seconds(patches: int, width: int, parts: Mapping[str, FeatureColumns], outputs: int) -> float:
    """Seconds of `fit_patch_head` with validation images: its slowest operations once, on random numbers.

    Args:
        patches: those of all training images.
        width: numbers in the features of a patch.
    """
    generator, seconds = np.random.default_rng(0), 0.0
    count = min(patches, most_patches(width))
    for columns in parts.values():
        features = generator.standard_normal((count, len(columns)), np.float32)
        start_time = time.perf_counter()
        _find_components(features)
        seconds += time.perf_counter() - start_time
        x = torch.from_numpy(features[:, :MAX_COMPONENTS]).double()
        weight = torch.zeros(outputs, x.shape[1], dtype=x.dtype, requires_grad=True)
        start_time = time.perf_counter()
        F.cross_entropy(F.linear(x, weight), torch.full((count, outputs), 1 / outputs, dtype=x.dtype)).backward()
        seconds += FIT_EVALUATIONS * len(PATCH_STRENGTHS) * (time.perf_counter() - start_time)
    return seconds


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
    bases = {name: _find_components(train.features[:, columns]) for name, columns in parts.items()}
    for name, columns in parts.items():
        inner = [bases[name].project(one, columns) for one in (train, valid)]
        for c, loss, accuracy, head in _try_strengths(*inner):
            tried.append((loss, accuracy, name, c, head, columns))
    best = min(range(len(tried)), key=lambda place: tried[place][0]) if tried else -1
    candidates = tuple(
        Candidate(
            name=f"linear {name}, C {c:g}", figure_name="accuracy", figure=round(accuracy, 6), loss=round(loss, 6),
            chosen=place == best,
        )
        for place, (loss, accuracy, name, c, _, _) in enumerate(tried)
    )  # fmt: skip
    chosen = tried[best][2] if tried else list(parts)[-1]
    head = tried[best][4] if tried else None
    if head is None:
        strength = tried[best][3] if tried else DEFAULT_PATCH_C
        (head,) = _fit_path(bases[chosen].project(train, parts[chosen]), (strength,))
    return ProbeResult(bases[chosen].unfold(head), parts[chosen], candidates)


@dataclass(frozen=True)
class _Components:
    """A linear map of features to fewer numbers: (x - mean) @ basis."""

    mean: Float32[np.ndarray, " P"]
    basis: Float32[np.ndarray, "P c"]

    def project(self, patches: PatchSet, columns: FeatureColumns) -> PatchSet:
        """The patches with the components of these columns as features."""
        return replace(patches, features=(patches.features[:, columns] - self.mean) @ self.basis)

    def unfold(self, head: LinearProbe) -> LinearProbe:
        """A head on components as one on features."""
        weight = head.weight @ self.basis.T
        return LinearProbe(weight, head.bias - weight @ self.mean, head.c)


def _find_components(features: Float32[np.ndarray, "m P"]) -> _Components:
    """The principal components of standardised features, the largest last."""
    mean, deviation = features.mean(0), np.maximum(features.std(0), MIN_STD).astype(np.float32)
    x = (features - mean) / deviation
    vectors = np.linalg.eigh((x.T @ x).astype(np.float64))[1][:, -MAX_COMPONENTS:]
    return _Components(mean, (vectors / deviation[:, None]).astype(np.float32))


def _try_strengths(train: PatchSet, valid: PatchSet) -> Iterator[tuple[float, float, float, LinearProbe | None]]:
    """C, loss, accuracy and head for every C; the head is None where it was fitted to parts of the images."""
    if len(valid.features):
        for head in _fit_path(train, PATCH_STRENGTHS):
            yield head.c, *_judge(head, valid), head
        return
    groups = np.unique(train.images)
    if len(groups) < 2:
        return
    folds = np.arange(len(groups)) % min(MAX_HELD_OUT_FOLDS, len(groups))
    figures = np.zeros((len(PATCH_STRENGTHS), 2))
    for fold in range(int(folds.max()) + 1):
        left_out = np.isin(train.images, groups[folds == fold])
        for place, head in enumerate(_fit_path(train.select(~left_out), PATCH_STRENGTHS)):
            part = train.select(left_out)
            figures[place] += np.array(_judge(head, part)) * part.weights.sum() / train.weights.sum()
    for c, (loss, accuracy) in zip(PATCH_STRENGTHS, figures.tolist(), strict=True):
        yield c, loss, accuracy, None


def _fit_path(train: PatchSet, strengths: Sequence[float]) -> Iterator[LinearProbe]:
    """A head for each C."""
    weights = train.weights / train.weights.mean()
    outputs = train.labels.shape[1]
    yield from fit_probe_path(train.features, train.labels, "classification", outputs, strengths, weights, False)


def _judge(head: LinearProbe, patches: PatchSet) -> tuple[float, float]:
    """Mean cross-entropy, and the fraction of patches whose most frequent class is the likeliest, by known pixels."""
    logits = head.predict_outputs(patches.features).astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    weights = patches.weights.astype(np.float64) / patches.weights.sum()
    right = logits.argmax(1) == patches.labels.argmax(1)
    return float(weights @ -(patches.labels * logs).sum(1)), float(weights @ right)
