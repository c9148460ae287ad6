"""Maps of whoever knows nothing of the model: noise by the seed, the middle, and scipy's edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy import ndimage

from kinds import TINY, images_for
from vitrail.explain.faithfulness.curves import compute_maps
from vitrail.explain.faithfulness.localization import BASELINES, baseline_methods
from vitrail.model.vit import create_model


def test_all_three_are_methods_of_any_model():
    config = replace(TINY, image_size=(10, 7), pad=True)
    model, images = create_model(config).eval(), images_for(config)
    made = {
        name: compute_maps(method, model, images, torch.zeros(3).long()) for name, method in baseline_methods().items()
    }
    assert tuple(made) == BASELINES and all(maps.shape == (3, 3, 4) for maps in made.values())


def test_noise_is_another_for_every_picture_and_seed_and_the_same_for_the_same():
    model, images, classes = create_model(TINY).eval(), images_for(TINY), torch.zeros(3).long()
    first, again, other = (compute_maps(baseline_methods(seed)["random"], model, images, classes) for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert not np.array_equal(first[0], first[1])


def test_the_middle_is_the_largest_and_the_map_is_its_own_mirror():
    model, images = create_model(replace(TINY, image_size=(20, 14))).eval(), torch.randn(2, 2, 20, 14)  # 5 x 7 patches
    maps = compute_maps(baseline_methods()["centre"], model, images, torch.zeros(2).long())
    assert np.unravel_index(maps[0].argmax(), (5, 7)) == (2, 3)
    np.testing.assert_allclose(maps[0], maps[1][::-1, ::-1])
    np.testing.assert_allclose(maps[0, 2, 0] / maps[0, 2, 3], np.exp(-0.5 * ((0.5 - 0.5 / 7) / 0.25) ** 2))


def test_edges_are_the_mean_length_of_sobels_gradient_over_a_patch():
    model, images = create_model(TINY).eval(), images_for(TINY)
    maps = compute_maps(baseline_methods()["edges"], model, images, torch.zeros(3).long())
    grey = images.mean(1).double().numpy()
    steep = np.stack([np.hypot(*(ndimage.sobel(one, axis, mode="nearest") for axis in (0, 1))) for one in grey])
    np.testing.assert_allclose(maps, steep.reshape(3, 3, 4, 4, 2).mean((2, 4)), atol=1e-5)
