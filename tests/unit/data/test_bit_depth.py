"""Pictures deeper than 8 bits keep 16 of them through decoding, resize, stores and augmentation; others stay bytes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from corpus.writing import png16
from vitrail.data.augment import crops, geometry, mixing
from vitrail.data.augment.color import crop_and_resize
from vitrail.data.augment.policies import OPERATION_FUNCTIONS, Operation
from vitrail.data.decoding.decode import decode_image, to_8_bits
from vitrail.data.loader import Batch, InMemoryImageStore, StreamingImageStore, load_images
from vitrail.data.preprocess import normalize, preprocess_image, preprocess_stack
from vitrail.data.preprocess_numpy import fit_array
from vitrail.data.random_crop import RandomResizedCrop
from vitrail.data.source import Source
from vitrail.spec import ImageSpec
from vitrail.train.batch_augment import augment_batch, mix_batch
from vitrail.train.plan import Recipe

DEEP = ImageSpec(height=16, width=24, channels=1, high=4095, bit_depth=16)
GENERATOR = np.random.default_rng(0)
FILMS = GENERATOR.integers(0, 4096, (5, 40, 33), np.uint16)
AMOUNTS = {
    Operation.SHEAR_X: 0.2, Operation.SHEAR_Y: 0.2, Operation.TRANSLATE_X: 3.0, Operation.TRANSLATE_Y: 3.0,
    Operation.ROTATE: 20.0, Operation.POSTERIZE: 4.0, Operation.SOLARIZE: 128.0, Operation.BLUR: 1.1,
}  # fmt: skip


def smooth(channels: int) -> np.ndarray:
    """Grey levels 0..255 with fractions, [4, C, 32, 32]."""
    y, x = np.mgrid[:32, :32]
    images = [[120 + 60 * np.sin(x / 5 + i + c) + 40 * np.cos(y / 3) for c in range(channels)] for i in range(4)]
    return np.array(images)


def test_each_of_4096_values_keeps_a_level_of_its_own_and_ends_become_black_and_white():
    values = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    levels = decode_image(values, DEEP)
    assert levels.dtype == np.uint16 and (levels.min(), levels.max()) == (0, 65535)
    assert np.array_equal(np.rint(levels[..., 0] * (4095 / 65535)), values)
    assert len(np.unique(decode_image(values, dataclasses.replace(DEEP, bit_depth=8)))) == 256


def test_floats_and_signed_values_take_the_same_levels_as_whole_numbers():
    values = np.arange(4096).reshape(64, 64)
    expected = decode_image(values.astype(np.uint16), DEEP)
    shifted = dataclasses.replace(DEEP, low=-1024, high=3071)
    assert np.array_equal(decode_image((values - 1024).astype(np.int16), shifted), expected)
    fractions = dataclasses.replace(DEEP, high=1)
    assert np.array_equal(decode_image((values / 4095).astype(np.float32), fractions), expected)


def test_8_bits_among_16_are_the_same_grey_and_opacity_and_luma_too():
    grey = GENERATOR.integers(0, 256, (8, 9), np.uint8)
    assert np.array_equal(decode_image(grey, DEEP), grey[..., None].astype(np.uint16) * 257)
    colour = GENERATOR.integers(0, 65536, (8, 9, 4), np.uint16)
    full = ImageSpec(height=8, width=9, channels=3, high=65535, bit_depth=16)
    found = decode_image(png16(colour), full).astype(np.float64)
    opacity = colour[..., 3:] / 65535
    assert np.abs(found - (colour[..., :3] * opacity + 65535 * (1 - opacity))).max() <= 0.51
    luma = decode_image(colour[..., :3].copy(), dataclasses.replace(full, channels=1))[..., 0].astype(np.float64)
    assert np.abs(luma - colour[..., :3] @ (0.299, 0.587, 0.114)).max() < 1.5


@pytest.mark.parametrize("fit", ["squash", "crop", "pad"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_a_resize_keeps_16_bits_alone_in_a_stack_and_in_numpy(fit, antialias, interpolation):
    spec = dataclasses.replace(DEEP, fit=fit, antialias=antialias, interpolation=interpolation)
    for size in ((40, 33), (9, 100), (5, 1), (16, 24)):
        stack = GENERATOR.integers(0, 4096, (2, *size), np.uint16)
        whole = preprocess_stack(stack, spec)
        assert whole.dtype == torch.uint16
        for film, prepared in zip(stack, whole, strict=True):
            assert torch.equal(preprocess_image(film, spec), prepared)
            in_numpy = fit_array(decode_image(film, spec), spec).astype(int)
            assert np.abs(in_numpy - prepared.permute(1, 2, 0).numpy()).max() <= 1


def test_a_resize_of_16_bits_is_that_of_8_bits_within_rounding():
    grey = np.rint(smooth(1)[0, 0]).astype(np.uint8)
    expected = preprocess_image(grey, ImageSpec(height=16, width=24, channels=1)).numpy()
    found = preprocess_image(grey, DEEP).numpy() / 257
    assert 0 < np.abs(found - expected).max() < 1.1


def test_normalised_values_do_not_depend_on_the_depth():
    grey = torch.from_numpy(GENERATOR.integers(0, 256, (2, 1, 16, 24), np.uint8))
    plain = ImageSpec(height=16, width=24, channels=1, mean=(0.4,), std=(0.3,))
    deep = dataclasses.replace(plain, bit_depth=16)
    deep_images = (grey.int() * 257).to(torch.uint16)
    assert torch.allclose(normalize(deep_images, deep), normalize(grey, plain), atol=1e-6)


def test_display_takes_the_upper_8_bits_rounded():
    assert to_8_bits(np.array([0, 128, 129, 257 * 7, 65535], np.uint16)).tolist() == [0, 0, 1, 7, 255]
    grey = GENERATOR.integers(0, 256, (2, 2), np.uint8)
    assert to_8_bits(grey) is grey


def source(films: np.ndarray = FILMS) -> Source:
    return Source(name="films", classes=("a", "b"), images=films, targets=np.arange(len(films)) % 2, ids=tuple("vwxyz"))


def test_stores_hold_16_bits_and_count_their_bytes():
    rows = np.arange(5)
    held = load_images(source(), rows, DEEP, limit_bytes=5 * 16 * 24 * 2)
    streamed = load_images(source(), rows, DEEP, limit_bytes=5 * 16 * 24 * 2 - 1)
    assert isinstance(held, InMemoryImageStore) and isinstance(streamed, StreamingImageStore)
    assert held.images.dtype == torch.uint16 and held.images.nbytes == 5 * 16 * 24 * 2
    assert torch.equal(held.take(rows), streamed.take(rows))
    held._values = None  # as on a GPU
    assert torch.equal(held.take(rows[::-1].copy()), streamed.take(rows[::-1].copy()))
    plain = load_images(source(), rows, dataclasses.replace(DEEP, bit_depth=8), limit_bytes=5 * 16 * 24)
    assert isinstance(plain, InMemoryImageStore) and plain.images.dtype == torch.uint8


@pytest.mark.parametrize("limit", [10**6, 0])
def test_random_crops_keep_16_bits_in_memory_and_streamed(limit):
    crop = RandomResizedCrop(3, scale=(0.3, 1.0), mirror=True)
    found = load_images(source(), np.arange(5), DEEP, limit, random_crop=crop).take(np.arange(5), epoch=1)
    plain = dataclasses.replace(DEEP, bit_depth=8)
    expected = load_images(source(), np.arange(5), plain, limit, random_crop=crop).take(np.arange(5), epoch=1)
    apart = np.abs(found.int().numpy() / 257 - expected.numpy())  # bicubic, of noise: 8 bits are rounded twice more
    assert apart.mean() < 0.6 and apart.max() < 8
    assert len(np.unique(found.int().numpy())) > 1000


@pytest.mark.parametrize("channels", [1, 3])
def test_every_operation_on_16_bits_is_that_on_8_bits_without_its_rounding(channels):
    plain = torch.from_numpy(np.rint(smooth(channels)).astype(np.uint8))
    deep = plain.int() * 257
    for operation, function in OPERATION_FUNCTIONS.items():
        amounts = np.full(4, AMOUNTS.get(operation, 1.3))
        expected, found = function(plain, amounts), function(deep, amounts)
        assert found.dtype == torch.int32 and int(found.min()) >= 0 and int(found.max()) <= 65535, operation
        assert (found / 257 - expected).abs().max() < 1.2, operation


def test_a_tenth_of_a_grey_level_survives_turns_tones_and_mixing():
    faint = torch.from_numpy(np.rint(30_000 + 20 * smooth(1) / 255).astype(np.int32))
    keys = np.random.default_rng(1).random((4, mixing.MIXING_DRAWS))
    turned = geometry.random_affine(faint, keys, rotate=5, scale=0.1, translate=0.1)
    mixed, _ = mixing.apply_mixup_cutmix(turned, torch.arange(4), keys, 1.0, 0.0, 4)
    brighter = OPERATION_FUNCTIONS[Operation.BRIGHTNESS](mixed, np.full(4, 1.2))
    assert len(torch.unique(brighter)) > 10
    stretched = OPERATION_FUNCTIONS[Operation.AUTOCONTRAST](faint, np.ones(4))
    assert (int(stretched.min()), int(stretched.max())) == (0, 65535)


def test_the_two_ways_to_cut_and_resize_agree():
    images = torch.from_numpy(np.rint(smooth(1) * 257).astype(np.int32))
    boxes = np.array([[2, 3, 20, 25]] * 4)
    found = crop_and_resize(images, torch.from_numpy(boxes), (24, 24), "bicubic")
    assert (found - crops.resized_crop(images, boxes, (24, 24))).abs().max() < 10  # of 65,536


def test_a_batch_of_16_bits_is_augmented_and_mixed_as_int32():
    spec = dataclasses.replace(DEEP, height=16, width=16)
    images = preprocess_stack(FILMS, spec)
    batch = Batch(images, torch.arange(5) % 2, np.arange(5))
    recipe = Recipe(
        crop_padding=2,
        flip_vertical=True,
        transpose=True,
        rotate=5,
        auto_augment="three",
        random_erasing=1.0,
        mixup=0.5,
    )
    augmented = augment_batch(batch, recipe, seed=0, epoch=0)
    mixed, _, _ = mix_batch(augmented, batch, recipe, 0, 0, 2)
    assert augmented.dtype == mixed.dtype == torch.int32
    assert int(mixed.min()) >= 0 and 255 * 100 < int(mixed.max()) <= 65535
