"""Sketches laid on each other: shifted and stretched a little until they fit best.

A copy that was resized, compressed or cropped by a few per cent fits its original almost exactly once it is laid on it
right; before that, thin lines miss each other and prove nothing.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32

MARGIN = 2
"""Rows and columns at each border that are not compared, because a crop has moved them out of sight."""
ROUNDS = 6
FARTHEST = 0.12
"""Largest shift and stretch, as a share of half a picture's side."""
STARTS = (
    (0.0, 0.0, 0.0, 0.0),
    (0.0, 0.04, 0.0, 0.04),
    (0.0, -0.04, 0.0, -0.04),
    *(
        (down * 0.02, more * 0.02, across * 0.02, more * 0.02)
        for down in (1, -1)
        for across in (1, -1)
        for more in (1, -1)
    ),
)
"""Tried before the first round, whichever fits best: as it is, 2 % less or more at each end, or at two that meet."""
STIFFNESS = 0.01
"""Keeps a round from leaping where a picture has no detail to hold on to; it grows when a round made things worse."""

Sketches = Float32[np.ndarray, "P S S"]
Moves = Float32[np.ndarray, "P 4"]
"""Shift and stretch down, shift and stretch across; a picture is 2 high and 2 wide."""


def inner(sketches: Sketches) -> Float32[np.ndarray, "P s s"]:
    """What is compared: mean 0 and deviation 1 inside the margin."""
    kept = slice(MARGIN, sketches.shape[1] - MARGIN)
    return normal(sketches[:, kept, kept])


def normal(sketches: Sketches) -> Sketches:
    """Mean 0 and deviation 1 each; flat ones become 0."""
    centred = sketches - sketches.mean((1, 2), keepdims=True)
    deviation = np.sqrt((centred**2).mean((1, 2), keepdims=True))
    return np.asarray(centred / np.maximum(deviation, 1e-6), dtype=np.float32)


def started(first: Sketches, second: Sketches) -> Moves:
    """Of a few guesses the one for each pair that lays the second picture best on the first."""
    target = inner(first)
    fits = []
    for start in STARTS:
        guess = np.array([start], dtype=np.float32)
        fits.append((target * inner(stretched(second, guess))).mean((1, 2)))
    return np.array(STARTS, dtype=np.float32)[np.argmax(fits, axis=0)]


def laid(first: Sketches, second: Sketches, moves: Moves) -> Moves:
    """Moves that lay each second picture on its first one, bettered round by round; never worse than those given.

    Source: Gauss-Newton with the gradients of the first picture and a damping that adapts (Baker and Matthews 2004,
    "Lucas-Kanade 20 years on", sections 3.2 and 4.5), for a shift and a stretch in each direction.
    """
    target = inner(first)
    slopes = _slopes(first)  # [P, M, 4]
    turned = slopes.transpose(0, 2, 1)
    system = turned @ slopes  # [P, 4, 4]
    stiff = np.trace(system, axis1=1, axis2=2)[:, None, None] / 4 * np.eye(4, dtype=np.float32)
    damping = np.full(len(first), STIFFNESS, np.float32)
    seen = inner(stretched(second, moves))
    error = ((target - seen) ** 2).mean((1, 2))
    for _ in range(ROUNDS):
        missing = (target - seen).reshape(len(first), -1, 1)
        held = system + damping[:, None, None] * stiff + 1e-6 * np.eye(4, dtype=np.float32)
        step = np.linalg.solve(held, turned @ missing)[..., 0]
        tried = np.clip(moves + step, -FARTHEST, FARTHEST).astype(np.float32)
        then = inner(stretched(second, tried))
        new = ((target - then) ** 2).mean((1, 2))
        better = new < error
        moves = np.where(better[:, None], tried, moves)
        seen = np.where(better[:, None, None], then, seen)
        error = np.where(better, new, error)
        damping = np.where(better, damping * 0.3, damping * 8).astype(np.float32)
    return moves


def stretched(pictures: Sketches, moves: Float32[np.ndarray, "Q 4"]) -> Sketches:
    """Pictures as seen at moved places, one move for each or one for all; both directions are apart, so two products
    with narrow matrices do it."""
    side = pictures.shape[1]
    down = _cubic(side, moves[:, 0], moves[:, 1])
    across = _cubic(side, moves[:, 2], moves[:, 3])
    return down @ pictures @ across.transpose(0, 2, 1)


def _slopes(pictures: Sketches) -> Float32[np.ndarray, "P M 4"]:
    """How a picture changes with each of the four moves, inside the margin."""
    side = pictures.shape[1]
    kept = slice(MARGIN, side - MARGIN)
    down, across = np.gradient(normal(pictures), 2 / side, axis=(1, 2))
    place = _places(side)
    slopes = np.stack([down, down * place[:, None], across, across * place], axis=-1)[:, kept, kept]
    slopes = slopes.reshape(len(pictures), -1, 4)
    return np.asarray(slopes - slopes.mean(1, keepdims=True), dtype=np.float32)


def _places(side: int) -> Float32[np.ndarray, " S"]:
    """Centres of the pixels, -1..1."""
    return ((np.arange(side) + 0.5) * 2 / side - 1).astype(np.float32)


def _cubic(side: int, shift: Float32[np.ndarray, " P"], stretch: Float32[np.ndarray, " P"]) -> Sketches:
    """Weights [P, S, S] of Catmull-Rom interpolation; beyond the border the outermost pixels go on."""
    places = _places(side) * (1 + stretch[:, None]) + shift[:, None]
    exact = np.clip((places + 1) * side / 2 - 0.5, 0, side - 1)
    apart = np.abs(exact[:, :, None] - np.arange(side, dtype=np.float32))
    near = 1 - 2.5 * apart**2 + 1.5 * apart**3
    far = 2 - 4 * apart + 2.5 * apart**2 - 0.5 * apart**3
    weights = np.where(apart < 1, near, np.where(apart < 2, far, 0))
    return np.asarray(weights / weights.sum(2, keepdims=True), dtype=np.float32)
