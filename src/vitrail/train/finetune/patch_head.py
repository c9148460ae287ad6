"""Fit the head of a segmentation model: multinomial logistic regression on frozen features of patches.

The label of a patch is soft: the fractions of its known pixels that are of each class. Pixels of unknown class are left
out, and a patch weighs as much as it has known pixels, so that the fit is the same as one on pixels whose features are
those of their patch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int64, UInt8

from ...data.source import UNKNOWN_PIXEL
from ...errors import DataError
from ...evaluate.probe import MIN_STD, LinearProbe, fit_probe_path
from ...model.config import ViTConfig
from ...randomness import permutation
from ...runtime import set_thread_count
from .linear_probe import WORSE_STEPS_BEFORE_STOP, Candidate, FeatureColumns, ProbeResult

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
FIT_EVALUATIONS = 200
"""Times that the loss is computed for the features of one part (EXPERIMENTS.md)."""
FIT_SHARE = 0.5
"""Fraction of the minutes that features may take, and of what they leave that the fit may."""
MEASURED_PATCHES = 1024
"""Of which a fit's seconds are measured."""
MIN_FIT_PATCHES = 256
"""Fewer are not taken, however few seconds are left."""


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
    rows = rows[sample_patches(len(rows), most_patches(features.shape[-1]), seed)]
    flat = features.reshape(-1, features.shape[-1])[rows]
    owners = np.repeat(images, features.shape[1])[rows]
    return PatchSet(flat, shares[rows] / known[rows, None], known[rows], owners)


def sample_patches(count: int, most: int, seed: int) -> Int64[np.ndarray, " m"]:
    """At most so many of `count` patches, by chance and in their order."""
    if count <= most:
        return np.arange(count)
    return np.sort(permutation(seed, "patches", 0, count)[:most])


def most_patches(width: int) -> int:
    """The most patches of a fit, whose features have so many numbers."""
    return max(1, MAX_PATCH_VALUES // width)


@dataclass(frozen=True)
class FitPace:
    """Seconds of a fit on this machine, measured now."""

    parts: tuple[tuple[int, float, float], ...]
    """For the features of each part, narrow ones first: their number, seconds of a fit to any number of patches, and
    seconds of each patch."""

    def estimate(self, patches: int) -> float:
        """Seconds of a fit to so many patches."""
        return sum(fixed + patches * each for _, fixed, each in self.parts)

    def limit(self, patches: int, seconds: float) -> int:
        """How many of these patches can be fitted in so many seconds; 0 is all of them.

        Where several blocks take too long for any useful number, it is one that `fit_patch_head` fits the last block
        to, alone.
        """
        if self.estimate(patches) <= seconds:
            return 0
        for count in range(len(self.parts), 0, -1):
            left = FitPace(self.parts[:count])
            most = int((seconds - left.estimate(0)) / (left.estimate(1) - left.estimate(0)))
            widest, ceiling = self.parts[count - 1][0], min([patches, *(each[0] - 1 for each in self.parts[count:])])
            if most >= widest:
                break
        return max(MIN_FIT_PATCHES, min(most, ceiling))


def measure_fit_pace(parts: Mapping[str, FeatureColumns], outputs: int, has_validation: bool = True) -> FitPace:
    """The pace of `fit_patch_head`: its slowest operations on some random numbers, the search for eigenvectors on the
    narrowest matrix, whose seconds grow with the square of the width at these sizes.
    """
    fits = 1 if has_validation else MAX_HELD_OUT_FOLDS
    widths = sorted(map(len, parts.values()))
    with _one_thread():
        x = torch.randn(MEASURED_PATCHES, widths[-1], generator=torch.Generator().manual_seed(0))
        matrix = (x[:, : widths[0]].T @ x[:, : widths[0]]).double()
        search = _time(lambda: torch.linalg.eigh(matrix)) / widths[0] ** 2
        measured = []
        for width in widths:
            inner = x[:, : min(width, MAX_COMPONENTS)].double()
            weight = torch.zeros(outputs, inner.shape[1], dtype=inner.dtype, requires_grad=True)
            aims = torch.full((len(x), outputs), 1 / outputs, dtype=inner.dtype)
            some = x[:256, :width]
            product = _time(partial(torch.matmul, some.T, some)) / len(some)
            loss = _time(lambda: F.cross_entropy(F.linear(inner, weight), aims).backward())  # noqa: B023
            measured.append((width, search * width**2, 2 * product + fits * FIT_EVALUATIONS * loss / len(x)))
    return FitPace(tuple(measured))


def _time(work: Callable[[], object]) -> float:
    """Seconds of the second of two times."""
    work()
    start_time = time.perf_counter()
    work()
    return time.perf_counter() - start_time


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread here: matrices are small, and on a busy machine two that wait for each other took 28 s for
    what one had done in 2 (EXPERIMENTS.md).
    """
    threads = torch.get_num_threads()
    set_thread_count(1)
    try:
        yield
    finally:
        set_thread_count(threads)


def fit_patch_head(
    train: PatchSet, valid: PatchSet, parts: Mapping[str, FeatureColumns], most: int = 0, seed: int = 0
) -> ProbeResult:
    """The head with the lowest loss on the patches of validation images, over the features of one and of several
    blocks and values of C; without any, on training images that are left out in turn.

    Args:
        most: fit to so many patches, drawn by `seed`, and only to features of fewer numbers; 0 takes all.

    Raises:
        DataError: the training images have no known pixel, or all are of one class.
    """
    with _one_thread():
        if most:
            train = train.select(sample_patches(len(train.features), most, seed))
            narrow = {name: columns for name, columns in parts.items() if len(columns) <= most}
            parts = narrow or dict(list(parts.items())[:1])
        return _fit_parts(train, valid, parts)


def _fit_parts(train: PatchSet, valid: PatchSet, parts: Mapping[str, FeatureColumns]) -> ProbeResult:
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
        centred = torch.from_numpy(patches.features[:, columns] - self.mean)
        return replace(patches, features=(centred @ torch.from_numpy(self.basis)).numpy())

    def unfold(self, head: LinearProbe) -> LinearProbe:
        """A head on components as one on features."""
        weight = head.weight @ self.basis.T
        return LinearProbe(weight, head.bias - weight @ self.mean, head.c)


def _find_components(features: Float32[np.ndarray, "m P"]) -> _Components:
    """The principal components of standardised features, the largest last."""
    mean, deviation = features.mean(0), np.maximum(features.std(0), MIN_STD).astype(np.float32)
    x = torch.from_numpy((features - mean) / deviation)
    vectors = torch.linalg.eigh((x.T @ x).double())[1][:, -MAX_COMPONENTS:].numpy()
    return _Components(mean, (vectors / deviation[:, None]).astype(np.float32))


def _try_strengths(train: PatchSet, valid: PatchSet) -> Iterator[tuple[float, float, float, LinearProbe | None]]:
    """C, loss, accuracy and head for every C, until two in a row are worse; the head is None where it was fitted to
    parts of the images.
    """
    if len(valid.features):
        lowest, worse = np.inf, 0
        for head in _fit_path(train, PATCH_STRENGTHS):
            loss, accuracy = _judge(head, valid)
            yield head.c, loss, accuracy, head
            lowest, worse = min(loss, lowest), worse + 1 if loss >= lowest else 0
            if worse == WORSE_STEPS_BEFORE_STOP:
                return
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
