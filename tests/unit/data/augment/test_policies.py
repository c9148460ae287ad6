"""Policies: each operation as often as it should be, as strong, to either side; and the batch carried out as asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torchvision.transforms.v2 import RandAugment, TrivialAugmentWide

from vitrail.data.augment import color, geometry
from vitrail.data.augment.policies import (
    OPERATION_FUNCTIONS,
    RAND_DRAWS,
    RANDAUGMENT_OPERATIONS,
    THREE_DRAWS,
    TRIVIAL_DRAWS,
    AugmentationOps,
    Operation,
    apply_operations,
    draw_rand_augment,
    draw_three_augment,
    draw_trivial_augment,
)
from vitrail.randomness import uniform

N = 14_000
THEIRS = {
    Operation.SHEAR_X: "ShearX",
    Operation.SHEAR_Y: "ShearY",
    Operation.TRANSLATE_X: "TranslateX",
    Operation.TRANSLATE_Y: "TranslateY",
    Operation.ROTATE: "Rotate",
    Operation.BRIGHTNESS: "Brightness",
    Operation.SATURATION: "Color",
    Operation.CONTRAST: "Contrast",
    Operation.SHARPNESS: "Sharpness",
    Operation.POSTERIZE: "Posterize",
    Operation.SOLARIZE: "Solarize",
}
FACTORS = (Operation.BRIGHTNESS, Operation.SATURATION, Operation.CONTRAST, Operation.SHARPNESS)


def keys(draws: int, n: int = N) -> np.ndarray:
    return uniform(0, "policy", 0, np.arange(n), draws)


def amounts_of(moves: AugmentationOps, operation: Operation) -> np.ndarray:
    return moves.amounts[moves.operations == operation]


def in_their_words(operation: Operation, magnitudes: torch.Tensor) -> np.ndarray:
    """Our amounts for torchvision's magnitudes."""
    values = magnitudes.double().numpy()
    if operation in FACTORS:
        return 1 + values
    return values * 255 if operation == Operation.SOLARIZE else values


def test_the_fourteen_are_torchvisions():
    assert (
        len(RANDAUGMENT_OPERATIONS)
        == 14
        == len(RandAugment._AUGMENTATION_SPACE)
        == len(TrivialAugmentWide._AUGMENTATION_SPACE)
    )
    assert set(THEIRS.values()) | {"Identity", "AutoContrast", "Equalize"} == set(RandAugment._AUGMENTATION_SPACE)


def test_rand_augment_chooses_every_operation_as_often_in_every_round():
    moves = draw_rand_augment(keys(3 * RAND_DRAWS), 9.0, (32, 32))
    assert moves.operations.shape == (N, 3)
    for operations in moves.operations.T:
        assert chisquare(np.bincount(operations, minlength=15)[1:]).pvalue > 1e-3
    pairs = np.bincount((moves.operations[:, 0] - 1) * 14 + moves.operations[:, 1] - 1, minlength=196)
    assert chisquare(pairs).pvalue > 1e-3


@pytest.mark.parametrize("bin_", [0, 9, 27, 30])
@pytest.mark.parametrize("operation", THEIRS, ids=THEIRS.values())
def test_amounts_of_rand_augment_are_torchvisions_to_either_side(operation, bin_):
    moves = draw_rand_augment(keys(2 * RAND_DRAWS), bin_ / 3, (40, 60))
    magnitudes, signed = RandAugment._AUGMENTATION_SPACE[THEIRS[operation]]
    strongest = magnitudes(31, 40, 60)[bin_]
    sides = torch.stack([strongest, -strongest]) if signed else strongest[None]
    found = amounts_of(moves, operation)
    expected = in_their_words(operation, sides)
    assert np.unique(found.round(4)) == pytest.approx(np.unique(expected.round(4)), abs=2e-4)
    if signed and bin_:
        assert (found == found.max()).mean() == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("operation", THEIRS, ids=THEIRS.values())
def test_amounts_of_trivial_augment_are_torchvisions_each_as_often(operation):
    moves = draw_trivial_augment(keys(TRIVIAL_DRAWS), (40, 60))
    magnitudes, signed = TrivialAugmentWide._AUGMENTATION_SPACE[THEIRS[operation]]
    theirs = magnitudes(31, 40, 60)
    expected = in_their_words(operation, torch.cat([theirs, -theirs]) if signed else theirs)
    values, counts = np.unique(expected.round(4) + 0.0, return_counts=True)
    nearest = np.abs(amounts_of(moves, operation)[:, None] - values).argmin(1)
    assert np.abs(amounts_of(moves, operation) - values[nearest]).max() < 2e-4
    seen = np.bincount(nearest, minlength=len(values))
    assert chisquare(seen, counts / counts.sum() * seen.sum()).pvalue > 1e-3


def test_trivial_augment_moves_small_pictures_by_their_side_at_most():
    moves = draw_trivial_augment(keys(TRIVIAL_DRAWS), (8, 20))
    assert np.abs(amounts_of(moves, Operation.TRANSLATE_Y)).max() == 8
    assert np.abs(amounts_of(moves, Operation.TRANSLATE_X)).max() == 20


def test_three_augment_does_one_of_three_and_then_jitters_in_every_order():
    moves = draw_three_augment(keys(THREE_DRAWS))
    first, jitter = moves.operations[:, 0], moves.operations[:, 1:]
    three = (Operation.GRAYSCALE, Operation.SOLARIZE, Operation.BLUR)
    assert chisquare([(first == operation).sum() for operation in three]).pvalue > 1e-3
    assert (amounts_of(moves, Operation.SOLARIZE) == 128).all()
    blurs = amounts_of(moves, Operation.BLUR)
    assert blurs.min() == pytest.approx(0.1, abs=0.01) and blurs.max() == pytest.approx(2.0, abs=0.01)
    orders, counts = np.unique(jitter, axis=0, return_counts=True)
    assert len(orders) == 6 and all(len(set(order)) == 3 for order in orders.tolist())
    assert chisquare(counts).pvalue > 1e-3
    for operation in (Operation.BRIGHTNESS, Operation.CONTRAST, Operation.SATURATION):
        factors = amounts_of(moves, operation)
        assert len(factors) == N
        assert factors.min() == pytest.approx(0.7, abs=0.01) and factors.max() == pytest.approx(1.3, abs=0.01)
        assert factors.mean() == pytest.approx(1.0, abs=0.01)


def test_a_batch_is_carried_out_picture_by_picture_and_round_by_round():
    images = torch.randint(0, 256, (5, 3, 12, 10), dtype=torch.uint8)
    operations = np.array(
        [
            [Operation.ROTATE, Operation.INVERT],
            [Operation.IDENTITY, Operation.EQUALIZE],
            [Operation.ROTATE, Operation.BLUR],
            [Operation.GRAYSCALE, Operation.IDENTITY],
            [Operation.IDENTITY, Operation.IDENTITY],
        ]
    )
    amounts = np.array([[30.0, 0.0], [0.0, 0.0], [-12.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    before = images.clone()
    found = apply_operations(images, AugmentationOps(operations, amounts))
    one, none = np.array([1.0]), np.zeros(1)
    assert torch.equal(images, before)
    assert torch.equal(found[:1], color.invert(geometry.rotate(images[:1], np.array([30.0])), none))
    assert torch.equal(found[1:2], color.equalize(images[1:2], none))
    assert torch.equal(found[2:3], color.gaussian_blur(geometry.rotate(images[2:3], np.array([-12.0])), one))
    assert torch.equal(found[3:4], color.to_grayscale(images[3:4], none))
    assert torch.equal(found[4], images[4])


def test_every_operation_but_identity_has_its_function():
    assert set(OPERATION_FUNCTIONS) == set(Operation) - {Operation.IDENTITY}
