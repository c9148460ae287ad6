"""Find exact and near duplicates (resized, compressed, slightly cropped copies) among images.

Near duplicates are found in two steps. Descriptors of 63 numbers per image, compared all with all by matrix products,
give candidate pairs. Each pair is then aligned and compared after whitening, which removes what the images of the
dataset share, so that images of similar scenes are not reported. The thresholds were measured by
benchmarks/near_duplicates.py.
"""

from __future__ import annotations

import time
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64, UInt8
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

DCT_FREQUENCIES = 8
"""Frequencies of the cosine transform per direction in a descriptor."""
MIN_CANDIDATE_COSINE = 0.55
"""Least cosine similarity of two descriptors of a candidate pair."""
MIN_ROUGH_SIMILARITY = 0.15
"""Least similarity before the fine alignment for a pair to be aligned."""
MIN_SIMILARITY = 0.8
"""Least similarity of two aligned copies."""
SURE_SIMILARITY = 0.95
"""Similarity from which two images are copies regardless of their neighbours."""
NEIGHBOUR_RANK = 4
"""Below that, their distance must be small compared to that of each from its fourth nearest neighbour: an image with
four equally close neighbours belongs to a cluster of similar images. Up to three copies do not hide each other."""
MAX_DISTANCE_RATIO = 0.6
"""Largest ratio of a pair's distance to that of the fourth neighbour, where distance is 1 - similarity."""
DEFAULT_NEIGHBOUR_SIMILARITY = 0.2
"""Similarity assumed for neighbours that were not compared."""
MIN_CORRELATION = 0.9
"""Least plain correlation of two copies."""
BLUR_SIGMA = 0.85
"""Standard deviation of a slight blur, in pixels of a sketch; finer detail differs between copies."""
TILE = (1024, 8192)
MAX_PAIRS_PER_TILE = 16 * TILE[0]
"""Most candidate pairs per tile of the cosine matrix: the best ones."""
PAIRS_PER_CHUNK = 512
"""Pairs aligned at once, to bound memory, and what is done beyond a time limit."""

BlurredSketches = Float32[np.ndarray, "n S S"]


class DuplicatePairs(NamedTuple):
    """Positions of two images each, the first before the second."""

    indices: Int64[np.ndarray, "P 2"]
    similarity: Float32[np.ndarray, " P"]
    """Correlation of the whitened images, 1 for identical ones."""
    is_complete: bool = True
    """Whether the time sufficed for all candidate pairs."""


def find_exact_duplicates(digests: NDArray[np.uint64]) -> list[NDArray[np.int64]]:
    """Groups of positions with the same hash, for every repeated hash, in the order of their first positions."""
    order = np.argsort(digests, kind="stable")
    starts = np.flatnonzero(np.diff(digests[order])) + 1
    groups = [group for group in np.split(order, starts) if len(group) > 1]
    return sorted(groups, key=lambda group: int(group[0]))


def find_near_duplicates(sketches: UInt8[np.ndarray, "n S S"], until: float | None = None) -> DuplicatePairs:
    """Find pairs of near duplicates among images without exact duplicates (`find_exact_duplicates`) and flat images.

    The time grows with the square of their number: 100,000 take seconds, a million some minutes.

    Args:
        until: a value of `time.monotonic` after which no further pairs are compared; the most similar come first.
    """
    pairs = find_candidate_pairs(sketches)
    if not len(pairs):
        return DuplicatePairs(pairs, np.zeros(0, np.float32))
    whiten = fit_sketch_whitening(sketches)
    parts = []
    for start in range(0, len(pairs), PAIRS_PER_CHUNK):
        if until is not None and start and time.monotonic() > until:
            break
        parts.append(compare_pairs(sketches, pairs[start : start + PAIRS_PER_CHUNK], whiten))
    alike, whole = (np.concatenate(part) for part in zip(*parts, strict=True))
    seen = pairs[: len(alike)]
    copies = (whole >= MIN_CORRELATION) & classify_pairs(seen, alike, len(sketches))
    order = np.lexsort(seen[copies].T[::-1])
    return DuplicatePairs(seen[copies][order], alike[copies][order], len(seen) == len(pairs))


def classify_pairs(pairs: Int64[np.ndarray, "P 2"], alike: Float32[np.ndarray, " P"], n: int) -> Bool[np.ndarray, " P"]:
    """Which pairs of n images are copies, by their similarity and that of the neighbours of either one."""
    places, values = pairs.T.ravel(), np.tile(alike, 2)
    order = np.lexsort((-values, places))
    first = np.searchsorted(places[order], np.arange(n))
    many = np.bincount(places, minlength=n) >= NEIGHBOUR_RANK
    crowd = np.full(n, DEFAULT_NEIGHBOUR_SIMILARITY, np.float32)  # similarity of each image's fourth nearest neighbour
    crowd[many] = np.maximum(DEFAULT_NEIGHBOUR_SIMILARITY, values[order][first[many] + NEIGHBOUR_RANK - 1])
    apart = 1 - crowd[pairs].max(1)
    return (alike >= SURE_SIMILARITY) | ((alike >= MIN_SIMILARITY) & (1 - alike <= MAX_DISTANCE_RATIO * apart))


def find_candidate_pairs(sketches: UInt8[np.ndarray, "n S S"]) -> Int64[np.ndarray, "P 2"]:
    """Pairs whose descriptors have a high cosine similarity, the most similar first, computed tile by tile."""
    if len(sketches) < 2:
        return np.zeros((0, 2), np.int64)
    described = compute_descriptors(sketches)
    n = len(described)
    limit = 2 * MAX_PAIRS_PER_TILE  # each pair comes twice where a tile lies on the diagonal
    candidates, cosines = [], []
    for top in range(0, n, TILE[0]):
        rows = described[top : top + TILE[0]]
        for left in range(top - top % TILE[1], n, TILE[1]):
            block = rows @ described[left : left + TILE[1]].T
            places = np.flatnonzero(block.ravel() >= MIN_CANDIDATE_COSINE)
            if len(places) > limit:
                places = places[np.argpartition(-block.ravel()[places], limit)[:limit]]
            first, second = np.divmod(places, block.shape[1])
            pairs = np.stack([first + top, second + left], axis=1)
            once = pairs[:, 0] < pairs[:, 1]
            candidates.append(pairs[once])
            cosines.append(block.ravel()[places[once]])
    return np.concatenate(candidates)[np.argsort(-np.concatenate(cosines), kind="stable")]


def compute_descriptors(sketches: UInt8[np.ndarray, "n S S"]) -> Float32[np.ndarray, "n 63"]:
    """Low frequencies of each image (its cosine transform), whitened over the set."""
    basis = _cosine_basis(DCT_FREQUENCIES, sketches.shape[1])
    blocks = np.array_split(sketches, len(sketches) // TILE[1] + 1)
    waves = np.concatenate([basis @ standardize(_blur_sketches(block)) @ basis.T for block in blocks])
    rows = waves.reshape(len(waves), -1)[:, 1:]
    expected = natural_image_spectrum(*np.divmod(np.arange(1, DCT_FREQUENCIES**2), DCT_FREQUENCIES))
    return fit_whitening(rows, np.diag(expected), prior_strength=rows.shape[1], noise_floor=1e-3)(rows)


def fit_sketch_whitening(sketches: UInt8[np.ndarray, "n S S"]) -> WhiteningTransform:
    """Fit the whitening of sketches, over the pixels inside their margin."""
    few = crop_and_standardize(_blur_sketches(sketches[:: -(-len(sketches) // 4000)]))
    side = sketches.shape[1] - 2 * MARGIN
    basis = _cosine_basis(side, side).astype(np.float64)
    basis /= np.sqrt((basis**2).sum(1, keepdims=True))
    expected = natural_image_spectrum(*np.divmod(np.arange(side * side), side)).reshape(side, side)
    expected[0, 0] = 0  # the mean has been removed
    products = np.einsum("ui,uj->uij", basis, basis).reshape(side, -1)  # of two pixels of a row, by frequency
    prior = (products.T @ expected @ products).reshape(side, side, side, side)  # [rows, rows, columns, columns]
    prior = prior.transpose(0, 2, 1, 3).reshape(side * side, side * side)
    rows = few.reshape(len(few), -1)
    return fit_whitening(rows, prior, prior_strength=rows.shape[1] / 4, noise_floor=0.01)


def compare_pairs(
    sketches: UInt8[np.ndarray, "n S S"], pairs: Int64[np.ndarray, "P 2"], whiten: WhiteningTransform
) -> tuple[Float32[np.ndarray, " P"], Float32[np.ndarray, " P"]]:
    """Correlations of the whitened and of the plain images of each pair, after alignment.

    Pairs with a low similarity before the fine alignment are not aligned further.
    """
    first, second = (_blur_sketches(sketches[pairs[:, side]]) for side in range(2))
    moves = choose_initial_transforms(first, second)
    alike, whole = _correlate_pairs(first, second, moves, whiten)
    worth = np.flatnonzero(alike >= MIN_ROUGH_SIMILARITY)
    if len(worth):
        first, second = first[worth], second[worth]
        moves = refine_transforms(first, second, moves[worth])
        alike[worth], whole[worth] = _correlate_pairs(first, second, moves, whiten)
    return alike, whole


def _correlate_pairs(
    first: BlurredSketches, second: BlurredSketches, moves: Float32[np.ndarray, "n 4"], whiten: WhiteningTransform
) -> tuple[Float32[np.ndarray, " n"], Float32[np.ndarray, " n"]]:
    target = crop_and_standardize(first).reshape(len(first), -1)
    moved = crop_and_standardize(warp_sketches(second, moves)).reshape(len(first), -1)
    return (whiten(target) * whiten(moved)).sum(1), (target * moved).mean(1)


def _blur_sketches(sketches: UInt8[np.ndarray, "n S S"]) -> BlurredSketches:
    """Blur sketches slightly, as floats."""
    apart = np.arange(sketches.shape[1])[:, None] - np.arange(sketches.shape[1])
    blur = np.exp(-0.5 * (apart / BLUR_SIGMA) ** 2).astype(np.float32)
    blur /= blur.sum(1, keepdims=True)
    return blur @ sketches.astype(np.float32) @ blur.T


def _cosine_basis(count: int, side: int) -> Float32[np.ndarray, "count side"]:
    """The basis of the discrete cosine transform, from the constant upwards."""
    return np.cos(np.pi / side * np.arange(count)[:, None] * (np.arange(side) + 0.5)).astype(np.float32)


# -- Alignment of sketches by shift and scale: a copy that was resized, compressed or cropped by a few per cent matches
# its original almost exactly once aligned; before that, thin lines do not overlap.

MARGIN = 2
"""Rows and columns at each border that are not compared, because a crop may have removed them."""
ROUNDS = 6
MAX_SHIFT = 0.12
"""Largest shift and change of scale, as a fraction of half an image's side."""
INITIAL_TRANSFORMS = (
    (0.0, 0.0, 0.0, 0.0),
    (0.0, 0.04, 0.0, 0.04),
    (0.0, -0.04, 0.0, -0.04),
    *((0.02 * down, 0.02 * more, 0.02 * across, 0.02 * more) for down, across, more in product((1, -1), repeat=3)),
)
"""Initial guesses, of which the best is used: unchanged, or 2 % less or more at each end, or at two adjacent ones."""
INITIAL_DAMPING = 0.01
"""Damping of the Gauss-Newton steps where an image has little detail; it grows when a step made the fit worse."""

Sketches = Float32[np.ndarray, "P S S"]
Transforms = Float32[np.ndarray, "P 4"]
"""Vertical shift and scale, horizontal shift and scale; an image is 2 high and 2 wide."""


def crop_and_standardize(sketches: Sketches) -> Float32[np.ndarray, "P s s"]:
    """Crop the margin and standardise: mean 0 and standard deviation 1."""
    kept = slice(MARGIN, sketches.shape[1] - MARGIN)
    return standardize(sketches[:, kept, kept])


def standardize(sketches: Sketches) -> Sketches:
    """Standardise each row to mean 0 and standard deviation 1; flat ones become 0."""
    centred = sketches - sketches.mean((1, 2), keepdims=True)
    deviation = np.sqrt((centred**2).mean((1, 2), keepdims=True))
    return np.asarray(centred / np.maximum(deviation, 1e-6), dtype=np.float32)


def choose_initial_transforms(first: Sketches, second: Sketches) -> Transforms:
    """The initial guess for each pair that aligns the second image best with the first."""
    target = crop_and_standardize(first)
    fits = []
    for start in INITIAL_TRANSFORMS:
        guess = np.array([start], dtype=np.float32)
        fits.append((target * crop_and_standardize(warp_sketches(second, guess))).mean((1, 2)))
    return np.array(INITIAL_TRANSFORMS, dtype=np.float32)[np.argmax(fits, axis=0)]


def refine_transforms(first: Sketches, second: Sketches, transforms: Transforms) -> Transforms:
    """Refine the alignment of each second image with its first one; never worse than the initial one.

    Source: Gauss-Newton with the gradients of the first image and a damping that adapts (Baker and Matthews 2004,
    "Lucas-Kanade 20 years on", sections 3.2 and 4.5), for a shift and a stretch in each direction.
    """
    target = crop_and_standardize(first)
    slopes = _transform_gradients(first)  # [P, M, 4]
    turned = slopes.transpose(0, 2, 1)
    system = turned @ slopes  # [P, 4, 4]
    stiff = np.trace(system, axis1=1, axis2=2)[:, None, None] / 4 * np.eye(4, dtype=np.float32)
    damping = np.full(len(first), INITIAL_DAMPING, np.float32)
    seen = crop_and_standardize(warp_sketches(second, transforms))
    error = ((target - seen) ** 2).mean((1, 2))
    for _ in range(ROUNDS):
        missing = (target - seen).reshape(len(first), -1, 1)
        held = system + damping[:, None, None] * stiff + 1e-6 * np.eye(4, dtype=np.float32)
        step = np.linalg.solve(held, turned @ missing)[..., 0]
        tried = np.clip(transforms + step, -MAX_SHIFT, MAX_SHIFT).astype(np.float32)
        then = crop_and_standardize(warp_sketches(second, tried))
        new = ((target - then) ** 2).mean((1, 2))
        better = new < error
        transforms = np.where(better[:, None], tried, transforms)
        seen = np.where(better[:, None, None], then, seen)
        error = np.where(better, new, error)
        damping = np.where(better, damping * 0.3, damping * 8).astype(np.float32)
    return transforms


def warp_sketches(images: Sketches, transforms: Float32[np.ndarray, "Q 4"]) -> Sketches:
    """Resample images by one alignment for each or one for all; separable, so two products of narrow matrices."""
    side = images.shape[1]
    down = _cubic_warp_weights(side, transforms[:, 0], transforms[:, 1])
    across = _cubic_warp_weights(side, transforms[:, 2], transforms[:, 3])
    return down @ images @ across.transpose(0, 2, 1)


def _transform_gradients(images: Sketches) -> Float32[np.ndarray, "P M 4"]:
    """Gradients of an image by each of the four alignment parameters, inside the margin."""
    side = images.shape[1]
    kept = slice(MARGIN, side - MARGIN)
    down, across = np.gradient(standardize(images), 2 / side, axis=(1, 2))
    place = _pixel_coordinates(side)
    slopes = np.stack([down, down * place[:, None], across, across * place], axis=-1)[:, kept, kept]
    slopes = slopes.reshape(len(images), -1, 4)
    return np.asarray(slopes - slopes.mean(1, keepdims=True), dtype=np.float32)


def _pixel_coordinates(side: int) -> Float32[np.ndarray, " S"]:
    """Centres of the pixels, -1..1."""
    return ((np.arange(side) + 0.5) * 2 / side - 1).astype(np.float32)


def _cubic_warp_weights(side: int, shift: Float32[np.ndarray, " P"], stretch: Float32[np.ndarray, " P"]) -> Sketches:
    """Weights [P, S, S] of Catmull-Rom interpolation; beyond the border the edge is repeated."""
    places = _pixel_coordinates(side) * (1 + stretch[:, None]) + shift[:, None]
    exact = np.clip((places + 1) * side / 2 - 0.5, 0, side - 1)
    apart = np.abs(exact[:, :, None] - np.arange(side, dtype=np.float32))
    near = 1 - 2.5 * apart**2 + 1.5 * apart**3
    far = 2 - 4 * apart + 2.5 * apart**2 - 0.5 * apart**3
    weights = np.where(apart < 1, near, np.where(apart < 2, far, 0))
    return np.asarray(weights / weights.sum(2, keepdims=True), dtype=np.float32)


# -- Whitening: all solar cells have bars and all chest films ribs, so their plain correlation is high. After whitening
# every independent component of a dataset has equal weight; different images hardly correlate, copies still do.

MAX_WHITENING_ROWS = 4000
"""Images from which the whitening is fitted."""


class WhiteningTransform(NamedTuple):
    """Mean of a dataset, and the matrix that whitens it."""

    mean: Float32[np.ndarray, " D"]
    matrix: Float32[np.ndarray, "D D"]

    def __call__(self, rows: Float32[np.ndarray, "n D"]) -> Float32[np.ndarray, "n D"]:
        """Whiten rows and scale each to length 1 (or 0)."""
        white = (rows - self.mean) @ self.matrix
        length = np.sqrt((white**2).sum(1, keepdims=True))
        return np.asarray(white / np.maximum(length, 1e-6), dtype=np.float32)


def fit_whitening(
    rows: Float32[np.ndarray, "n D"],
    prior_covariance: Float[np.ndarray, "D D"],
    prior_strength: float,
    noise_floor: float,
) -> WhiteningTransform:
    """Fit the whitening of a dataset, with its covariance shrunk towards a prior.

    By Cholesky's decomposition, a thirtieth of the work of eigenvectors: all whitening matrices differ by a rotation,
    which no angle between whitened rows depends on.

    Args:
        prior_covariance: covariance of images in general, up to a factor.
        prior_strength: number of rows from which the dataset's own covariance counts as much as the prior.
        noise_floor: fraction of the mean variance below which a component counts as noise and is not amplified.
    """
    few = rows[:: -(-len(rows) // MAX_WHITENING_ROWS)]
    share = len(few) / (len(few) + prior_strength)
    mean = share * few.mean(0)
    centred = few - mean
    own = centred.T @ centred / len(few)
    level = max(float(np.trace(own)), 1e-12)
    prior_scale = level / float(np.trace(prior_covariance))
    mixed: NDArray[np.float64] = share * own + (1 - share) * prior_covariance * prior_scale
    mixed[np.diag_indices_from(mixed)] += noise_floor * level / len(mixed)
    lower = np.linalg.cholesky(mixed)
    inverse = solve_triangular(lower, np.eye(len(lower)), lower=True)
    return WhiteningTransform(mean.astype(np.float32), inverse.T.astype(np.float32))


def natural_image_spectrum(down: NDArray[np.int64], across: NDArray[np.int64]) -> NDArray[np.float64]:
    """Prior variances of cosine components of photographs: falling with the square of the frequency."""
    return 1 / np.maximum(down**2 + across**2, 1)
