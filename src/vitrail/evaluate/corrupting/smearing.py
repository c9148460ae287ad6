"""Every value mixed with its neighbours, by a Gaussian, a disc, or along a line; edges are mirrors."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64

from .drawn import Values

REFERENCE = 224
"""The side of the pictures that tables of lengths are written for."""


def scale_of(values: Values) -> float:
    """How many pixels of this picture are one of a picture with sides of 224: by its shorter side."""
    return min(values.shape[1:]) / REFERENCE


def smoothed(values: Float64[np.ndarray, "*C H W"], deviation: float) -> Float64[np.ndarray, "*C H W"]:
    """By a Gaussian, its deviation in pixels: each cosine wave of the picture is weakened as the heat equation says."""
    from scipy.fft import dctn, idctn

    waves = dctn(values, axes=(-2, -1), norm="ortho")
    for axis in (-2, -1):
        speeds = np.pi * np.arange(values.shape[axis]) / values.shape[axis]  # radians per pixel
        kept = np.exp(-0.5 * np.square(deviation * speeds))
        waves = waves * (kept[:, None] if axis == -2 else kept)
    return np.asarray(idctn(waves, axes=(-2, -1), norm="ortho"))


def filtered(values: Values, kernel: Float64[np.ndarray, "k k"]) -> Values:
    """By a kernel of odd side whose entries sum to 1."""
    from scipy.signal import fftconvolve

    reach = len(kernel) // 2
    beyond = np.pad(values, ((0, 0), (reach, reach), (reach, reach)), mode="symmetric")
    return np.asarray(fftconvolve(beyond, kernel[None], mode="valid", axes=(1, 2)))


def disc(radius: float) -> Float64[np.ndarray, "k k"]:
    """The kernel of a lens out of focus, drawn with many points, each shared by the four pixels around it."""
    reach, fineness = math.ceil(radius), max(8, math.ceil(4 * radius))
    points = np.linspace(-1, 1, 2 * fineness + 1)
    inside = (np.square(points[:, None]) + np.square(points) <= 1).astype(np.float64)
    shares = (1 - np.abs(np.arange(-reach, reach + 1)[:, None] - radius * points)).clip(0)  # [k, points]
    return shares @ inside @ shares.T / inside.sum()


def streak(length: float, deviation: float, angle: float) -> Float64[np.ndarray, "k k"]:
    """The kernel of a movement: half a Gaussian that begins in the middle and ends after `length` pixels.

    Args:
        angle: radians; 0 is along rows.
    """
    steps = np.arange(0, length + 0.125, 0.25)
    weights = np.exp(-0.5 * np.square(steps / deviation))
    reach = math.ceil(length) + 1
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    for down, right, weight in zip(np.sin(angle) * steps, np.cos(angle) * steps, weights, strict=True):
        row, column = math.floor(down), math.floor(right)
        below, beside = down - row, right - column
        for i, j, part in (
            (0, 0, (1 - below) * (1 - beside)),
            (0, 1, (1 - below) * beside),
            (1, 0, below * (1 - beside)),
            (1, 1, below * beside),
        ):
            kernel[reach + row + i, reach + column + j] += weight * part
    return kernel / kernel.sum()
