"""Weather: snow, frost, fog, and more light. Ice is generated, where the paper lays photographs of it over.

Source of all tables: Hendrycks and Dietterich 2019, and its published scripts.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64

from .drawn import Corruption, Draws, Values
from .smearing import scale_of
from .textures import clouds, falling, flakes, ice

SNOW = (
    (0.10, 0.3, 3.0, 0.50, 10, 4, 0.80),
    (0.20, 0.3, 2.0, 0.50, 12, 4, 0.70),
    (0.55, 0.3, 4.0, 0.90, 12, 8, 0.70),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
"""Mean, deviation, size and least height of flakes, half the length and deviation of their streaks, what is left of the
picture. Lengths are those of sides of 224 pixels."""
FROST = ((1.0, 0.40), (0.8, 0.60), (0.7, 0.70), (0.65, 0.70), (0.60, 0.75))
"""How much of the picture and how much of the ice is seen."""
FOG = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))
"""How thick, and how much lower smaller clouds are; the script takes the square of the latter."""
BRIGHTNESS = (0.1, 0.2, 0.3, 0.4, 0.5)
"""What is added to the largest channel of every pixel."""
ENLARGED = 0.75
"""What is left of the deviation of flakes: the script makes them larger between single points, where that leaves 0.7 in
the mean, with which the second severity would be as strong as the third."""
TINT = np.array([0.88, 0.95, 1.0])
"""Of ice, in pictures of three channels."""
LUMA = np.array([0.299, 0.587, 0.114])


def snow(values: Values, severity: int, draws: Draws) -> Values:
    """Two layers of falling flakes, one the other turned around, before a whitened picture."""
    mean, deviation, size, least, reach, trail, kept = SNOW[severity - 1]
    scale, angle = scale_of(values), draws.between(math.pi / 4, 3 * math.pi / 4, "angle")
    layer = flakes(values.shape[1], values.shape[2], mean, ENLARGED * deviation, size * scale, least, draws)
    layer = falling(layer, 2 * reach * scale, trail * scale, angle)
    whitened = np.maximum(values, 1.5 * _grey(values) + 0.5)
    return kept * values + (1 - kept) * whitened + layer + np.rot90(layer, 2)


def frost(values: Values, severity: int, draws: Draws) -> Values:
    """Ice on a window before the picture."""
    kept, thick = FROST[severity - 1]
    grown = ice(values.shape[1], values.shape[2], draws)[None]
    return kept * values + thick * (grown * TINT[:, None, None] if len(values) == 3 else grown)


def fog(values: Values, severity: int, draws: Draws) -> Values:
    """Clouds before the picture; what was brightest stays as bright as it was."""
    thick, fading = FOG[severity - 1]
    brightest = float(values.max())
    drifting = clouds(values.shape[1], values.shape[2], fading**2, draws)
    return (values + thick * drifting) * brightest / (brightest + thick)


def brightness(values: Values, severity: int, draws: Draws) -> Values:
    """More light: hue and saturation stay (V of HSV, over any number of channels); black becomes grey."""
    brightest = values.max(0, keepdims=True)  # [1, H, W]
    lit = np.minimum(brightest + BRIGHTNESS[severity - 1], 1)
    return np.where(brightest > 0, values * lit / np.where(brightest > 0, brightest, 1), lit)


KINDS: dict[str, Corruption] = {"snow": snow, "frost": frost, "fog": fog, "brightness": brightness}


def _grey(values: Values) -> Float64[np.ndarray, "1 H W"]:
    """Of three channels the luma, of any other number the mean."""
    weights = LUMA if len(values) == 3 else np.full(len(values), 1 / len(values))
    return np.tensordot(weights, values, 1)[None]
