"""The resize is Pillow's: columns first, then rows, at any size and any number of channels."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.preprocess import resize_batch, to_batch_tensor

sides = st.integers(1, 70)
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def by_pillow(values: np.ndarray, size: tuple[int, int], interpolation: str) -> np.ndarray:
    """Channel by channel, in two passes: Pillow 13 chooses the order of passes by their cost, older ones did not."""
    chosen, channels = FILTERS[interpolation], []
    for channel in np.moveaxis(values, -1, 0):
        image = Image.fromarray(np.ascontiguousarray(channel))
        channels.append(np.array(image.resize((size[1], image.height), chosen).resize((size[1], size[0]), chosen)))
    return np.stack(channels, axis=-1)


def difference(values: np.ndarray, size: tuple[int, int], interpolation: str) -> np.ndarray:
    ours = resize_batch(to_batch_tensor(values[None]), size, interpolation)[0].permute(1, 2, 0).numpy()
    return np.abs(ours.astype(int) - by_pillow(values, size, interpolation))


def photograph(height: int, width: int, channels: int, seed: int) -> np.ndarray:
    """Smooth in both directions, with one hard edge."""
    waves = np.random.default_rng(seed).uniform(-3, 3, (channels, 3))
    rows, columns = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    layers = [np.sin(a * rows * 3 + b * columns * 3 + c) * 100 + 127 for a, b, c in waves]
    picture = np.stack(layers, axis=-1)
    picture[height // 2 :, width // 2 :] += 20
    return picture.clip(0, 255).astype(np.uint8)


@given(sides, sides, sides, sides, st.integers(1, 4), st.sampled_from(sorted(FILTERS)), st.integers(0, 999))
def test_photographs_are_within_one_grey_level(height, width, rows, columns, channels, interpolation, seed):
    picture = photograph(height, width, channels, seed)
    assert difference(picture, (rows, columns), interpolation).max() <= 1


@given(sides, sides, sides, sides, st.integers(1, 4), st.integers(0, 999))
def test_bilinear_noise_is_within_one_grey_level(height, width, rows, columns, channels, seed):
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    assert difference(noise, (rows, columns), "bilinear").max() <= 1


@given(sides, sides, sides, sides, st.integers(1, 4), st.integers(0, 999))
def test_bicubic_noise_is_within_two_and_nearly_always_within_one(height, width, rows, columns, channels, seed):
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    found = difference(noise, (rows, columns), "bicubic")
    assert found.max() <= 2
    assert (found > 1).sum() <= max(1, found.size // 500)
