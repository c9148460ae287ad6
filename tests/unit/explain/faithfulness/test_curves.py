"""Deletion and insertion: areas that can be written down, ties, and hidden patches that have no say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage

from kinds import KINDS, TINY, images_for
from plain_sums import averaging, pictures, shuffled_values, summing
from vitrail.errors import UsageError
from vitrail.explain.attribution import patch_grid_of, target_scores
from vitrail.explain.faithfulness.curves import (
    REMOVAL_MODES,
    TASK_SCORES,
    area_under_curve,
    deletion_insertion_curves,
    outputs_without_patches,
    rank_patches,
    removal_fill,
    removal_modes_for,
    softmax_score,
)
from vitrail.model.vit import create_model


def first_output(images: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(images), dtype=torch.int64)


@pytest.mark.parametrize("points", [2, 4, 6, 50])
def test_the_areas_of_a_mean_over_the_patches_that_are_there_are_a_quarter_and_three_quarters(points):
    """The n darkest of 0 .. N-1 have the mean (n - 1) / 2, the n brightest N - 1 - (n - 1) / 2: straight lines."""
    values = shuffled_values(70, 6)  # more pictures than are asked about at once
    images = pictures(values, 2, 3)
    found = deletion_insertion_curves(
        averaging(), images, first_output(images), values.reshape(-1, 2, 3), "drop", target_scores, points
    )
    np.testing.assert_allclose(found.deletion, np.tile((found.num_visible_patches - 1) / 2, (70, 1)), atol=1e-6)
    np.testing.assert_allclose(found.deletion_area, 5 / 4, atol=1e-6)
    np.testing.assert_allclose(found.insertion_area, 15 / 4, atol=1e-6)
    np.testing.assert_allclose(found.gap, 5 / 2, atol=1e-6)
    assert (
        found.num_visible_patches[0] == 1
        and found.num_visible_patches[-1] == 6
        and len(found.num_visible_patches) == min(points, 6)
    )


@pytest.mark.parametrize("registers", [0, 2])
def test_a_class_token_and_registers_stay_when_patches_are_dropped(registers):
    values = shuffled_values(4, 6)
    images = pictures(values, 2, 3)
    model = summing(registers=registers)
    found = deletion_insertion_curves(
        model, images, first_output(images), values.reshape(-1, 2, 3), "drop", target_scores, 6
    )
    n = found.num_visible_patches
    darkest, brightest = n * (n - 1) / 2, n * 5 - n * (n - 1) / 2
    np.testing.assert_allclose(found.deletion, np.tile(darkest / (1 + registers + n), (4, 1)), atol=1e-5)
    np.testing.assert_allclose(found.insertion, np.tile(brightest / (1 + registers + n), (4, 1)), atol=1e-5)


def test_patches_painted_in_the_mean_count_as_the_mean():
    values = shuffled_values(4, 6)
    images = pictures(values, 2, 3)
    found = deletion_insertion_curves(
        averaging(), images, first_output(images), values.reshape(-1, 2, 3), "mean", target_scores, 6
    )
    n = found.num_visible_patches
    expected = (n * (n - 1) / 2 + (6 - n) * 2.5) / 6
    np.testing.assert_allclose(found.deletion, np.tile(expected, (4, 1)), atol=1e-6)
    np.testing.assert_allclose(found.insertion, np.tile(5 - expected, (4, 1)), atol=1e-6)


def test_a_map_upside_down_has_the_opposite_gap_and_another_output_watches_another_curve():
    values = shuffled_values(5, 6)
    images, maps = pictures(values, 2, 3), values.reshape(-1, 2, 3)
    right = deletion_insertion_curves(averaging(), images, first_output(images), maps, "drop", target_scores)
    wrong = deletion_insertion_curves(averaging(), images, first_output(images), -maps, "drop", target_scores)
    second = deletion_insertion_curves(averaging(), images, first_output(images) + 1, maps, "drop", target_scores)
    np.testing.assert_allclose(wrong.gap, -right.gap, atol=1e-6)
    np.testing.assert_allclose(second.deletion, -right.deletion, atol=1e-6)


def test_equal_relevance_owes_nothing_to_reading_order():
    values = np.tile(np.arange(12.0), (400, 1))
    images = pictures(values, 3, 4)
    flat = deletion_insertion_curves(
        averaging(3, 4), images, first_output(images), np.zeros((400, 3, 4)), "drop", target_scores
    )
    assert abs(flat.gap.mean()) < 4 * flat.gap.std() / 20 and flat.gap.std() > 0.5
    again = deletion_insertion_curves(
        averaging(3, 4), images, first_output(images), np.zeros((400, 3, 4)), "drop", target_scores
    )
    other = deletion_insertion_curves(
        averaging(3, 4), images, first_output(images), np.zeros((400, 3, 4)), "drop", target_scores, seed=1
    )
    assert np.array_equal(flat.gap, again.gap) and not np.array_equal(flat.gap, other.gap)


def test_patches_are_ordered_by_relevance_and_ties_only_among_themselves():
    maps = np.array([[[0.0, 3.0, 0.0], [-1.0, 0.0, 2.0]]]).repeat(50, 0)
    order = rank_patches(maps)
    assert (order[:, :2] == [1, 5]).all() and (order[:, -1] == 3).all()
    assert {tuple(row) for row in np.sort(order[:, 2:5])} == {(0, 2, 4)}
    assert len({tuple(row) for row in order}) > 4


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_with_all_patches_there_every_model_gives_its_own_answer(config):
    model, images = create_model(config, seed=1).train(), images_for(config)
    classes = torch.tensor([0, 2, 1])
    maps = np.random.default_rng(0).random((3, *config.grid))
    expected = softmax_score(create_model(config, seed=1).eval()(images), classes).detach().numpy()
    for way in removal_modes_for(config):
        found = deletion_insertion_curves(model, images, classes, maps, way, points=3)
        np.testing.assert_allclose(found.deletion[:, -1], expected, atol=1e-5)
        np.testing.assert_allclose(found.insertion[:, -1], expected, atol=1e-5)
        assert np.isfinite(found.gap).all()
    assert model.training
    assert ("drop" in removal_modes_for(config)) == (config.patches != "t2t-performer")


@pytest.mark.parametrize("config", [KINDS["mean, indexed"], KINDS["dinov3"], KINDS["relative, normed patches"]])
def test_what_was_dropped_has_no_say(config):
    model, images = create_model(config, seed=1).eval(), images_for(config)
    kept = torch.tensor([[5, 0, 7]] * 3)
    other = torch.randn_like(images)
    rows, columns = config.grid
    mask = torch.zeros(rows * columns, dtype=torch.bool).index_fill(0, kept[0], True).view(rows, columns)
    pixels = mask.repeat_interleave(config.patch[0], 0).repeat_interleave(config.patch[1], 1)
    with torch.no_grad():
        found = outputs_without_patches(model, images, kept, "drop", None)
        torch.testing.assert_close(
            found, outputs_without_patches(model, torch.where(pixels, images, other), kept, "drop", None)
        )
        painted = outputs_without_patches(model, images, kept, "mean", torch.zeros_like(images))
        torch.testing.assert_close(painted, model(torch.where(pixels, images, 0.0)))


def test_a_blur_is_scipys_gaussian_of_a_patchs_size_along_each_axis():
    images = torch.randn(2, 3, 12, 18)
    found = removal_fill(images, (2, 3), "blur")
    for picture in range(2):
        for channel in range(3):
            one = images[picture, channel].double().numpy()
            expected = ndimage.gaussian_filter(one, (2, 3), mode="nearest", truncate=3)
            np.testing.assert_allclose(found[picture, channel].numpy(), expected, atol=1e-5)


def test_the_mean_is_of_each_picture_and_channel():
    images = torch.randn(2, 3, 4, 6)
    found = removal_fill(images, (2, 3), "mean")
    torch.testing.assert_close(found[1, 2], images[1, 2].mean().expand(4, 6))
    assert removal_fill(images, (2, 3), "drop") is None


def test_a_model_that_pads_has_patches_in_the_padding():
    config = replace(TINY, image_size=(10, 7), pad=True)
    model, images = create_model(config, seed=1).eval(), images_for(config)
    assert patch_grid_of(model, images) == (3, 4)
    for way in REMOVAL_MODES:
        found = deletion_insertion_curves(
            model, images, first_output(images), np.random.default_rng(0).random((3, 3, 4)), way
        )
        with torch.no_grad():
            expected = softmax_score(model(images), first_output(images)).numpy()
        np.testing.assert_allclose(found.insertion[:, -1], expected, atol=1e-5)


def test_every_task_has_its_score():
    outputs, classes = torch.tensor([[1.0, 2.0], [0.0, -1.0]]), torch.tensor([1, 0])
    torch.testing.assert_close(TASK_SCORES["classification"](outputs, classes), torch.sigmoid(torch.tensor([1.0, 1.0])))
    torch.testing.assert_close(TASK_SCORES["multilabel"](outputs, classes), torch.sigmoid(torch.tensor([2.0, 0.0])))
    torch.testing.assert_close(TASK_SCORES["regression"](outputs, classes), torch.tensor([2.0, 0.0]))


def test_a_flat_curve_has_its_height_as_area_and_uneven_steps_count_by_their_width():
    assert area_under_curve(np.full((1, 3), 0.7), np.array([1, 2, 10])).tolist() == pytest.approx([0.7])
    assert area_under_curve(np.array([[0.0, 1.0, 1.0]]), np.array([1, 2, 11])).tolist() == pytest.approx([0.05 + 0.9])


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        (np.zeros((3, 4, 3)), r"3 pictures must be \[3, 3, 4\], one number a patch\. Got \[3, 4, 3\]"),
        (np.zeros((2, 3, 4)), r"3 pictures must be \[3, 3, 4\].* Got \[2, 3, 4\]"),
        (np.where(np.arange(36) == 29, np.nan, 0).reshape(3, 3, 4), r"picture 2 has nan at row 1, column 1"),
    ],
)
def test_maps_that_do_not_fit_are_refused(maps, message):
    model, images = create_model(TINY).eval(), images_for(TINY)
    with pytest.raises(UsageError, match=message):
        deletion_insertion_curves(model, images, first_output(images), maps, "drop")


def test_dropping_after_soft_splits_and_a_single_patch_are_refused():
    config = KINDS["soft splits"]
    model, images = create_model(config).eval(), images_for(config)
    with pytest.raises(UsageError, match=r'patches="t2t-performer" cannot be dropped.*"blur" and "mean"'):
        deletion_insertion_curves(model, images, first_output(images), np.zeros((3, *config.grid)), "drop")
    one = averaging(1, 1)
    with pytest.raises(UsageError, match=r"at least 2 patches and 2 points\. Got 1 and 11"):
        deletion_insertion_curves(one, torch.zeros(1, 1, 2, 3), torch.tensor([0]), np.zeros((1, 1, 1)), "drop")
