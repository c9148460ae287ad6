"""Pictures made ready for training: the same as for prediction where no JPEG is reduced, and near it where one is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from vitrail.data.decoding.decode import decode_image
from vitrail.data.preprocess import CropBox, Preprocessor, preprocess_image, resize_batch, scale_box
from vitrail.data.random_crop import RandomResizedCrop
from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.spec import ImageSpec


def source(*pictures) -> Source:
    n = len(pictures)
    return Source(
        name="some", classes=("a",), images=pictures, targets=np.zeros(n, np.int64), ids=tuple(map(str, range(n)))
    )


def made(maker: Preprocessor, spec: ImageSpec, n: int, epoch: int = 0) -> np.ndarray:
    """Pictures 0..n-1 in two parts, as two threads would make them."""
    images, rows = np.zeros((n, spec.channels, spec.height, spec.width), np.uint8), np.arange(n)
    for places in (range(n // 2), range(n // 2, n)):
        failed = maker.fill_batch(images, places, rows, rows, epoch)
        assert failed == {}
    return images


@pytest.fixture
def kinds(tmp_path: Path, photo, encode, png16) -> list[Path]:
    """Files of 37 x 53 that only the exact decoder or a full decoding gets right."""
    image, exif = Image.fromarray(photo), Image.Exif()
    exif[0x0112] = 6
    files = {
        "plain.jpg": encode(image, "JPEG"),
        "grey.jpg": encode(image.convert("L"), "JPEG"),
        "inks.jpg": encode(image.convert("CMYK"), "JPEG"),
        "turned.jpg": encode(image, "JPEG", exif=exif),
        "progressive.jpg": encode(image, "JPEG", progressive=True),
        "without-end.jpg": encode(image, "JPEG")[:-2],
        "clear.png": encode(image.convert("RGBA"), "PNG"),
        "palette.png": encode(image.convert("P"), "PNG"),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    return [tmp_path / name for name in files]


@pytest.mark.parametrize("fit", ["squash", "crop", "pad"])
@pytest.mark.parametrize("channels", [1, 3])
def test_nothing_changes_where_nothing_is_reduced(fit, channels, kinds):
    spec = ImageSpec(height=30, width=27, channels=channels, fit=fit)
    found = made(Preprocessor(source(*kinds), spec, training=True), spec, len(kinds))
    exact = made(Preprocessor(source(*kinds), spec), spec, len(kinds))
    assert np.array_equal(found, exact)
    assert np.array_equal(exact, np.stack([preprocess_image(path, spec).numpy() for path in kinds]))


def test_a_box_is_cut_out_of_the_decoded_picture_and_resized_once(kinds):
    spec, cut = ImageSpec(height=30, width=27), RandomResizedCrop(7)
    found = made(Preprocessor(source(*kinds), spec, cut), spec, len(kinds), epoch=3)
    for row, path in enumerate(kinds):
        values = decode_image(path, spec)
        box = CropBox(*cut.boxes(np.array([row]), 3, np.array([values.shape[:2]]))[0].tolist())
        part = values[box.top : box.top + box.height, box.left : box.left + box.width]
        expected = resize_batch(torch.from_numpy(part.copy()).permute(2, 0, 1)[None], spec.size, spec.interpolation)[0]
        assert np.array_equal(found[row], expected.numpy()), path.name


@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
def test_half_of_what_is_cut_is_mirrored_after_its_resizing(name, tmp_path):
    path, spec = tmp_path / "photo.jpg", ImageSpec(height=48, width=40)
    Image.fromarray(load_sample_image(name)).save(path, quality=90)
    pictures, cut = source(*[path] * 200), RandomResizedCrop(7, scale=(0.8, 1.0), mirror=True)
    straight = made(Preprocessor(pictures, spec, dataclasses.replace(cut, mirror=False)), spec, 200, epoch=2)
    found = made(Preprocessor(pictures, spec, cut), spec, 200, epoch=2)
    mirrored = cut.draw_flips(np.arange(200), 2)
    assert 70 < mirrored.sum() < 130
    assert np.array_equal(found[mirrored], straight[mirrored][..., ::-1])
    assert np.array_equal(found[~mirrored], straight[~mirrored])
    assert not np.array_equal(mirrored, cut.draw_flips(np.arange(200), 3))


def test_arrays_are_cut_too():
    picture = np.random.default_rng(0).integers(0, 256, (20, 30), dtype=np.uint8)
    spec, cut = ImageSpec(height=8, width=8, channels=1), RandomResizedCrop(0)
    assert len(np.unique(made(Preprocessor(source(*[picture] * 4), spec, cut), spec, 4), axis=0)) == 4


@pytest.mark.parametrize("fit", ["squash", "crop", "pad"])
@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
def test_a_photograph_that_is_reduced_looks_like_the_exact_one(name, fit, tmp_path):
    path, spec = tmp_path / "photo.jpg", ImageSpec(height=96, width=112, fit=fit)
    Image.fromarray(load_sample_image(name)).save(path, quality=90)
    found = made(Preprocessor(source(path), spec, training=True), spec, 1)[0].astype(int)
    gap = np.abs(found - preprocess_image(path, spec).numpy())
    assert 0 < gap.mean() < 4
    assert np.percentile(gap, 99) < 25


def test_a_smooth_photograph_is_within_a_few_grey_levels(tmp_path):
    rows, columns = np.mgrid[0:900, 0:1200]
    waves = [np.sin(rows / 131 + columns / 157), np.cos(columns / 143), np.sin(rows / 161 - columns / 137)]
    path, spec = tmp_path / "smooth.jpg", ImageSpec(height=64, width=64)
    Image.fromarray((np.stack(waves, axis=-1) * 100 + 128).astype(np.uint8)).save(path, quality=95)
    whole = made(Preprocessor(source(path), spec, training=True), spec, 1)[0].astype(int)
    assert np.abs(whole - preprocess_image(path, spec).numpy()).max() <= 4
    cut = RandomResizedCrop(1)
    maker = Preprocessor(source(*[path] * 20), spec, cut)
    values = decode_image(path, spec)
    for row, found in enumerate(made(maker, spec, 20)):
        box = CropBox(*cut.boxes(np.array([row]), 0, np.array([values.shape[:2]]))[0].tolist())
        part = values[box.top : box.top + box.height, box.left : box.left + box.width].copy()
        expected = resize_batch(torch.from_numpy(part).permute(2, 0, 1)[None], spec.size, spec.interpolation)[0]
        assert np.abs(found.astype(int) - expected.numpy()).max() <= 7


def test_pictures_whose_pixels_are_looked_up_singly_are_never_reduced(tmp_path):
    path, spec = tmp_path / "photo.jpg", ImageSpec(height=64, width=64, antialias=False)
    Image.fromarray(load_sample_image("china.jpg")).save(path, quality=90)
    assert np.array_equal(
        made(Preprocessor(source(path), spec, training=True), spec, 1)[0], preprocess_image(path, spec).numpy()
    )


@pytest.mark.parametrize("by", [2, 4, 8])
def test_a_box_in_the_reduced_picture_keeps_the_pixels_that_are_needed_and_stays_inside(by):
    generator = np.random.default_rng(by)
    for _ in range(500):
        height, width = generator.integers(by, 900, 2).tolist()
        box_height, box_width = int(generator.integers(by, height + 1)), int(generator.integers(by, width + 1))
        top = int(generator.integers(0, height - box_height + 1))
        left = int(generator.integers(0, width - box_width + 1))
        small = scale_box(CropBox(top, left, box_height, box_width), by)
        assert small.height >= box_height // by
        assert small.width >= box_width // by
        assert small.top + small.height <= -(-height // by)
        assert small.left + small.width <= -(-width // by)
        assert abs(small.top * by - top) <= by / 2


@dataclass
class Parcel:
    """A picture inside something larger."""

    name: str
    content: bytes | np.ndarray
    stamp: str = ""

    def fetch(self) -> bytes | np.ndarray:
        return self.content


def test_pictures_from_elsewhere_are_made_like_files(photo, encode):
    spec = ImageSpec(height=16, width=16)
    data = encode(Image.fromarray(photo), "JPEG")
    parcels = source(Parcel("a.tar/1.jpg", data), Parcel("a.tar/2.png", encode(photo, "PNG")), Parcel("x", photo))
    found = made(Preprocessor(parcels, spec, training=True), spec, 3)
    assert np.abs(found[0].astype(int) - found[1]).mean() < 6
    assert np.array_equal(found[1], found[2])


@pytest.mark.parametrize("training", [False, True])
def test_what_cannot_be_read_comes_back_with_its_name_and_place(training, kinds, tmp_path):
    (tmp_path / "plain.jpg").write_bytes(kinds[0].read_bytes()[:400])
    kinds[2].unlink()
    spec = ImageSpec(height=12, width=12)
    rows = np.array([5, 0, 2, 3])
    failed = Preprocessor(source(*kinds), spec, training=training).fill_batch(
        np.zeros((4, 3, 12, 12), np.uint8), range(4), rows, rows, 0
    )
    assert sorted(failed) == [1, 2]
    assert str(failed[1]).count("plain.jpg") == str(failed[2]).count("inks.jpg") == 1
    assert all(isinstance(error, DataError) for error in failed.values())


def test_a_picture_of_too_many_pixels_is_refused_in_training_too(kinds):
    spec = ImageSpec(height=4, width=4, max_pixels=37 * 53 - 1)
    failed = Preprocessor(source(kinds[0]), spec, training=True).fill_batch(
        np.zeros((1, 3, 4, 4), np.uint8), range(1), np.zeros(1, np.int64), np.zeros(1, np.int64), 0
    )
    assert "limit" in str(failed[0])


def test_a_file_that_was_replaced_is_noticed_and_one_that_was_only_touched_is_not(kinds):
    spec, rows = ImageSpec(height=12, width=12), np.arange(2)
    maker, images = Preprocessor(source(kinds[0], kinds[1]), spec, training=True), np.zeros((2, 3, 12, 12), np.uint8)
    assert maker.fill_batch(images, range(2), rows, rows, 0) == {}
    kinds[0].touch()
    kinds[1].write_bytes(kinds[3].read_bytes())
    failed = maker.fill_batch(images, range(2), rows, rows, 1)
    assert list(failed) == [1]
    assert "grey.jpg: was changed while it was being trained on (" in str(failed[1])


def test_a_damaged_jpeg_is_taken_or_refused_as_prediction_takes_or_refuses_it(tmp_path, encode):
    values = np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    whole, spec, path = encode(values, "JPEG"), ImageSpec(height=8, width=8), tmp_path / "damaged.jpg"
    generator, refused = np.random.default_rng(1), 0
    for _ in range(300):
        damaged = bytearray(whole[: generator.integers(2, len(whole))] if generator.random() < 0.3 else whole)
        for place in generator.integers(0, min(700, len(damaged)), 2):  # most of them in the header
            damaged[place] = generator.integers(0, 256)
        path.write_bytes(damaged)
        failed = [
            bool(
                Preprocessor(source(path), spec, cut, training=True).fill_batch(
                    np.zeros((1, 3, 8, 8), np.uint8), range(1), *ROW, 0
                )
            )
            for cut in (None, RandomResizedCrop(0))
        ]
        exact = Preprocessor(source(path), spec)
        assert failed == [bool(exact.fill_batch(np.zeros((1, 3, 8, 8), np.uint8), range(1), *ROW, 0))] * 2
        refused += failed[0]
    assert 30 < refused < 290


ROW = (np.zeros(1, np.int64), np.zeros(1, np.int64))
