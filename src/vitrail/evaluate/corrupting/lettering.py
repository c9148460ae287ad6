"""Letters of three by five dots, as markers and counters burn them into pictures."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

ROWS, COLUMNS = 5, 3

# fmt: off
LETTERS = {
    "0": "### #.# #.# #.# ###",
    "1": ".#. ##. .#. .#. ###",
    "2": "### ..# ### #.. ###",
    "3": "### ..# ### ..# ###",
    "4": "#.# #.# ### ..# ..#",
    "5": "### #.. ### ..# ###",
    "6": "### #.. ### #.# ###",
    "7": "### ..# ..# .#. .#.",
    "8": "### #.# ### #.# ###",
    "9": "### #.# ### ..# ###",
    "L": "#.. #.. #.. #.. ###",
    "R": "##. #.# ##. #.# #.#",
}
# fmt: on


def written(text: str, height: int) -> Bool[np.ndarray, "h w"]:
    """Which pixels of a line are ink; letters stand one dot apart.

    Args:
        height: in pixels, at least five; a dot has the fifth part, to the nearest pixel.
    """
    lines = [np.array([[dot == "#" for dot in row] for row in LETTERS[one].split()]) for one in text]
    gap = np.zeros((ROWS, 1), bool)
    dots = np.concatenate([part for one in lines for part in (one, gap)][:-1], axis=1)
    width = max(1, round(height * dots.shape[1] / ROWS))
    rows = np.arange(height) * ROWS // height
    columns = np.arange(width) * dots.shape[1] // width
    return dots[rows][:, columns]
