"""The one resize, its three ways of fitting, and normalisation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.preprocess import (
    crop_for_display,
    fit_array_to_tensor,
    fit_images,
    normalize,
    preprocess_image,
    preprocess_stack,
    resize_batch,
    to_batch_tensor,
    visible_size,
)
from vitrail.errors import DataError, UsageError
from vitrail.spec import ImageSpec


def test_an_equal_size_returns_the_input_untouched(photo):
    images = to_batch_tensor(photo[None])
    assert resize_batch(images, (37, 53), "bicubic") is images
    assert fit_images(images, ImageSpec(height=37, width=53)) is images


def test_a_column_of_one_pixel_can_be_resized():
    column = torch.arange(5, dtype=torch.uint8).view(1, 1, 5, 1).expand(1, 3, 5, 1)
    assert resize_batch(column, (1, 1), "bilinear").flatten().tolist() == [2, 2, 2]


def test_a_batch_is_resized_as_its_singles(photo):
    images = to_batch_tensor(np.stack([photo, photo[::-1], 255 - photo]))
    together = resize_batch(images, (16, 20), "bicubic")
    assert torch.equal(together, torch.cat([resize_batch(image[None], (16, 20), "bicubic") for image in images]))


def test_cropping_takes_the_centre_of_the_smallest_cover():
    image = np.zeros((20, 60, 1), np.uint8)
    image[:, 20:40] = 200
    cropped = fit_images(to_batch_tensor(image[None]), ImageSpec(height=10, width=10, channels=1, fit="crop"))
    assert cropped.shape == (1, 1, 10, 10)
    assert (cropped > 180).all()


@pytest.mark.parametrize("size", [(300, 400), (224, 224), (260, 250)])
@pytest.mark.parametrize("fraction", [0.875, 0.9])
def test_a_crop_fraction_resizes_to_more_and_keeps_the_middle(fraction, size):
    images = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8)
    spec = ImageSpec(height=224, width=224, fit="crop", crop_fraction=fraction)
    short = {0.875: 256, 0.9: 248}[fraction]
    inner = tuple(side * short // min(size) for side in size)
    whole = resize_batch(images, inner, "bicubic")
    top, left = (inner[0] - 224) // 2, (inner[1] - 224) // 2
    assert spec.resize_size == (short, short)
    assert torch.equal(fit_images(images, spec), whole[:, :, top : top + 224, left : left + 224])


@pytest.mark.parametrize("size", [(300, 400), (224, 224), (256, 256)])
def test_a_squash_with_a_fraction_keeps_the_middle_of_a_larger_one(size):
    images = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8)
    whole = resize_batch(images, (256, 256), "bicubic")
    spec = ImageSpec(height=224, width=224, crop_fraction=0.875)
    assert torch.equal(fit_images(images, spec), whole[:, :, 16:240, 16:240])


def test_a_crop_fraction_with_a_border_is_refused():
    with pytest.raises(UsageError, match=r'crop_fraction=0\.9 needs fit="crop" or fit="squash"\. Got fit="pad"'):
        ImageSpec(fit="pad", crop_fraction=0.9)
    with pytest.raises(UsageError, match=r"must lie in 0\.01\.\.1\. Got 1\.2"):
        ImageSpec(fit="crop", crop_fraction=1.2)


def test_padding_puts_the_whole_picture_in_the_middle_of_black():
    image = np.full((20, 60, 1), 200, np.uint8)
    padded = fit_images(to_batch_tensor(image[None]), ImageSpec(height=30, width=30, channels=1, fit="pad"))[0, 0]
    assert (padded[10:20] == 200).all()
    assert padded[:10].sum() == padded[20:].sum() == 0


@pytest.mark.parametrize("way", ["squash", "crop", "pad"])
@pytest.mark.parametrize("size", [(1, 1), (7, 300), (300, 7), (37, 53), (36, 52)])
def test_every_way_of_fitting_ends_at_the_size(way, size, photo):
    spec = ImageSpec(height=size[0], width=size[1], fit=way)
    assert preprocess_image(photo, spec).shape == (3, *size)


def test_a_stack_is_prepared_as_its_pictures():
    stack = np.random.default_rng(0).integers(0, 4096, (3, 9, 11)).astype(np.uint16)
    spec = ImageSpec(height=6, width=14, channels=3, low=0, high=4095)
    assert torch.equal(
        preprocess_stack(stack, spec), torch.stack([preprocess_image(picture, spec) for picture in stack])
    )


@pytest.mark.parametrize(
    ("odd", "says"),
    [(5000.0, "Values 0 to 4095 .*100% of its values beyond"), (np.nan, "99 of 99 values"), (0.5, "holds fractions")],
)
def test_one_odd_picture_in_a_stack_is_refused_in_the_words_it_would_get_alone(odd, says):
    stack = np.full((300, 9, 11), 2000.0, np.float32)
    stack[217] = odd
    spec = ImageSpec(height=6, width=14, channels=1, low=0, high=4095)
    with pytest.raises(DataError, match=says) as alone:
        preprocess_image(stack[217], spec)
    with pytest.raises(DataError) as together:
        preprocess_stack(stack, spec)
    assert str(together.value) == str(alone.value)
    bright = np.full((300, 9, 11), 2000, np.uint16)
    bright[:, 0, :4] = 5000
    assert preprocess_stack(bright, spec)[:, :, 0, 0].min() > 150, "4 % of each picture may be overexposed"


def test_preparing_a_file_is_decoding_then_resizing_it(photo, encode, tmp_path):
    (tmp_path / "a.jpg").write_bytes(encode(photo, "JPEG"))
    prepared = preprocess_image(tmp_path / "a.jpg", ImageSpec(height=20, width=20)).permute(1, 2, 0).numpy()
    by_pillow = np.array(Image.open(tmp_path / "a.jpg").resize((20, 37), 3).resize((20, 20), 3))
    assert np.abs(prepared.astype(int) - by_pillow).max() <= 1


def test_read_only_arrays_are_copied_and_others_are_not(photo):
    frozen = photo[None, :, :, :1].copy()
    frozen.flags.writeable = False
    to_batch_tensor(frozen).zero_()
    assert frozen.any()
    free = photo[None, :, :, :1].copy()
    to_batch_tensor(free).zero_()
    assert not free.any()


def test_normalising_subtracts_the_mean_and_divides_by_the_deviation(photo):
    images = to_batch_tensor(photo[None])
    spec = ImageSpec(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    expected = (photo / 255.0 - spec.mean) / spec.std
    assert np.abs(normalize(images, spec)[0].permute(1, 2, 0).numpy() - expected).max() < 1e-6
    assert normalize(images, ImageSpec()).aminmax() == (-1.0, pytest.approx(images.max().item() / 127.5 - 1))
    assert normalize(images, ImageSpec()).dtype == torch.float32


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(9, 11), (80, 61), (37, 20)])
def test_without_antialias_pixels_come_from_their_nearest_neighbours(size, interpolation, photo):
    images = to_batch_tensor(photo[None])
    plain = torch.nn.functional.interpolate(images.float(), size, mode=interpolation, antialias=False)
    found = resize_batch(images, size, interpolation, antialias=False)
    assert found.dtype == torch.uint8
    assert (found - plain.clamp(0, 255)).abs().max() <= 0.5


def test_bilinear_without_antialias_is_the_half_pixel_rule_of_tensorflow():
    column = torch.tensor([0, 100, 200, 40, 80, 120], dtype=torch.uint8).view(1, 1, 6, 1)
    places = (np.arange(4) + 0.5) * 6 / 4 - 0.5  # 0.25, 1.75, 3.25, 4.75
    expected = np.interp(places, range(6), column.flatten().numpy()).round()
    assert resize_batch(column, (4, 1), "bilinear", antialias=False).flatten().tolist() == expected.tolist()


@pytest.mark.parametrize("way", ["squash", "crop", "pad"])
def test_the_spec_says_whether_fitting_antialiases(way):
    image = torch.randint(0, 256, (1, 3, 90, 60), dtype=torch.uint8)
    smooth, plain = (
        fit_images(image, ImageSpec(height=16, width=16, fit=way, antialias=flag)) for flag in (True, False)
    )
    assert plain[:, :, 4:12, 4:12].float().std() > 1.5 * smooth[:, :, 4:12, 4:12].float().std()


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (ImageSpec(height=30, width=30), (400, 600)),
        (ImageSpec(height=70, width=70, crop_fraction=0.7), (280, 420)),
        (ImageSpec(height=30, width=30, fit="crop"), (400, 400)),
        (ImageSpec(height=70, width=70, fit="crop", crop_fraction=0.7), (280, 280)),
        (ImageSpec(height=30, width=30, fit="pad"), (600, 600)),
    ],
)
def test_what_eyes_get_is_what_the_model_sees_in_the_pictures_own_shape(spec, wanted):
    rows, columns = np.mgrid[:400, :600]
    image = np.stack([rows % 251, columns % 251, 50 + 0 * rows], axis=2).astype(np.uint8)
    assert visible_size(400, 600, spec) == pytest.approx(wanted)
    whole = crop_for_display(image, spec, 1000)
    assert whole.shape == (*wanted, 3)
    top, left = (400 - wanted[0]) // 2, (600 - wanted[1]) // 2
    if spec.fit == "pad":
        np.testing.assert_array_equal(whole[100:500], image)
        assert not whole[:100].any() and not whole[500:].any()
    else:
        np.testing.assert_array_equal(whole, image[top : top + wanted[0], left : left + wanted[1]])
    few = crop_for_display(image, spec, 100)
    assert min(few.shape[:2]) == 100
    assert few.shape[1] / few.shape[0] == pytest.approx(wanted[1] / wanted[0], abs=0.01)


def test_a_small_picture_is_not_enlarged_for_eyes(photo):
    np.testing.assert_array_equal(crop_for_display(photo, ImageSpec(height=224, width=224), 480), photo)
    grey = crop_for_display(photo[..., :1], ImageSpec(height=8, width=8, channels=1), 20)
    assert grey.shape == (20, 29, 1)
    smooth = np.asarray(Image.fromarray(photo[..., 0]).resize((29, 20), Image.Resampling.BICUBIC))
    assert np.abs(grey[..., 0].astype(int) - smooth).max() <= 2


def test_a_strip_has_the_models_shape_for_eyes():
    """A figure of 3 x 2,000 pixels would be a line, and each of its pixels a hundred of the paper's."""
    spec = ImageSpec(height=30, width=20, channels=1)
    assert visible_size(3, 2000, spec) == (30, 20) == visible_size(2000, 3, spec)
    assert crop_for_display(np.zeros((3, 2000, 1), np.uint8), spec, 480).shape == (30, 20, 1)
    assert visible_size(100, 600, spec) == (100, 600)


def test_one_picture_is_fitted_as_in_a_stack(photo):
    spec = ImageSpec(height=16, width=24)
    assert torch.equal(fit_array_to_tensor(photo, spec), fit_images(to_batch_tensor(photo[None]), spec)[0])
