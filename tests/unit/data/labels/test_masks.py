"""Masks: class numbers, palettes and colours with their legend, what is unknown, their geometry, and wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from drawn_masks import CLASSES, COLORS, draw_scene, draw_scenes
from vitrail.data.checks.check_dataset import check_dataset
from vitrail.data.labels.masks import read_class_map, read_legend, read_source_mask
from vitrail.data.open import open_source
from vitrail.data.preprocess import fit_images, fit_mask, to_channels_first, unfit_mask
from vitrail.data.settings import DataSettings
from vitrail.data.source import UNKNOWN_PIXEL, Source
from vitrail.data.splits import make_splits
from vitrail.errors import DataError, UsageError
from vitrail.spec import ImageSpec


def open_masks(path: Path, **fields: object) -> Source:
    return open_source(str(path), DataSettings(source=str(path), task="segmentation", **fields))


def save_mask(folder: Path, name: str, values: np.ndarray | Sequence[Sequence[int]]) -> None:
    Image.fromarray(np.asarray(values, np.uint8)).save(folder / "masks" / name)


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    return draw_scenes(tmp_path / "scenes", 4, (20, 30))


def test_a_folder_of_images_and_masks_has_the_classes_of_its_legend_and_their_areas(scenes: Path):
    source = open_masks(scenes)
    assert source.task == "segmentation" and source.classes == CLASSES and source.ids[0] == "images/0.png"
    for row in range(4):
        _, classes = draw_scene(row, (20, 30))
        assert source.targets[row] == pytest.approx([(classes == k).mean() for k in range(3)], abs=1e-6)
        np.testing.assert_array_equal(read_source_mask(source, row, ImageSpec()), classes)


def test_numbers_palettes_and_colours_mean_the_same(scenes: Path):
    expected = read_source_mask(open_masks(scenes), 0, ImageSpec())
    palette = Image.fromarray(expected, "P")
    palette.putpalette([9, 9, 9, 250, 0, 0, 0, 250, 0])
    palette.save(scenes / "masks" / "0.png")
    np.testing.assert_array_equal(read_source_mask(open_masks(scenes), 0, ImageSpec()), expected)
    legend = scenes / "colours.csv"
    legend.write_text("".join(f"{color},{name}\n" for color, name in COLORS.items()))
    table = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 0]], np.uint8)
    for row in range(4):
        save_mask(scenes, f"{row}.png", table[draw_scene(row, (20, 30))[1]])
    source = open_masks(scenes, legend=str(legend))
    assert source.classes == CLASSES
    np.testing.assert_array_equal(read_source_mask(source, 0, ImageSpec()), expected)


def test_255_and_a_value_of_that_name_are_unknown(scenes: Path):
    values = draw_scene(0, (20, 30))[1]
    values[:5], values[5:8] = 255, 7
    save_mask(scenes, "0.png", values)
    (scenes / "classes.csv").write_text("0,ground\n1,disc\n2,square\n7,Unknown\n")
    source = open_masks(scenes)
    assert (read_source_mask(source, 0, ImageSpec())[:8] == UNKNOWN_PIXEL).all()
    assert source.targets[0].sum() == pytest.approx(12 / 20, abs=1e-6) and source.targets[1].sum() == pytest.approx(1)
    (scenes / "classes.csv").write_text("0,ground\n1,disc\n2,square\n7,hole\n255,sky\n")
    assert open_masks(scenes).targets[0, 4] == pytest.approx(0.25)


def test_without_a_legend_the_numbers_are_the_classes(scenes: Path):
    (scenes / "classes.csv").unlink()
    assert open_masks(scenes).classes == ("0", "1", "2")


def test_pictures_without_masks_and_published_splits(scenes: Path, tmp_path: Path):
    (scenes / "masks" / "3.png").unlink()
    (scenes / "masks" / "2.png").rename(scenes / "masks" / "2_mask.png")
    source = open_masks(scenes)
    assert len(source) == 3 and "Left out 1 picture of" in " ".join(source.notes)
    draw_scenes(tmp_path / "parted" / "train", 5)
    draw_scenes(tmp_path / "parted" / "test", 2, first=50)
    (tmp_path / "parted" / "classes.csv").write_text("0,ground\n1,disc\n2,square\n")
    parted = open_masks(tmp_path / "parted")
    assert {split: len(rows) for split, rows in parted.splits.items()} == {"train": 5, "test": 2}
    assert parted.classes == CLASSES


def test_a_manifest_names_masks_in_a_column(scenes: Path):
    rows = [f"images/{k}.png,masks/{k}.png,{'ab'[k // 2]},x" for k in range(4)]
    (scenes / "table.csv").write_text("\n".join(["path,mask,patient,label", *rows]) + "\n")
    source = open_masks(scenes / "table.csv", group="patient")
    assert source.classes == CLASSES and source.groups is not None and len(set(source.groups.tolist())) == 2
    assert np.array_equal(source.targets, open_masks(scenes).targets)
    assert source.metadata["label"][0] == "x"
    splits = make_splits(source, DataSettings(task="segmentation", val_fraction=0, test_fraction=0.5), 0)
    assert sorted(len(rows) for rows in splits.values()) == [0, 2, 2]


@pytest.mark.parametrize("fit", ["squash", "crop", "pad"])
def test_a_mask_moves_with_its_picture(fit: Any):
    """A picture of flat colours that is moved as pictures are, without smoothing, is the mask that was moved."""
    mask = draw_scene(1, (60, 84))[1]
    spec = ImageSpec(height=30, width=42, fit=fit, crop_fraction=1.0)
    moved = fit_mask(mask, spec, UNKNOWN_PIXEL)
    levels = [np.where(mask == k, 255, 0).astype(np.uint8) for k in range(3)]
    smooth = np.stack([fit_images(to_channels_first(each[..., None]), spec)[0, 0].numpy() for each in levels])
    assert moved.shape == (30, 42) and not (moved == UNKNOWN_PIXEL).any()
    clear = smooth.max(0) > 200  # elsewhere a pixel of the model shows two classes
    assert clear.mean() > 0.8
    np.testing.assert_array_equal(moved[clear], smooth.argmax(0)[clear])
    back = unfit_mask(moved, mask.shape, spec, UNKNOWN_PIXEL)
    assert back.shape == mask.shape and (back == mask).mean() > 0.95


def test_padding_is_unknown_and_what_is_cropped_is_unknown_in_the_answer():
    mask = draw_scene(2, (40, 80))[1]
    padded = fit_mask(mask, ImageSpec(height=40, width=40, fit="pad"), UNKNOWN_PIXEL)
    assert (padded[:10] == UNKNOWN_PIXEL).all() and (padded[30:] == UNKNOWN_PIXEL).all()
    np.testing.assert_array_equal(padded[10:30], mask[1::2, 1::2])
    crop = ImageSpec(height=40, width=40, fit="crop", crop_fraction=1.0)
    np.testing.assert_array_equal(fit_mask(mask, crop, UNKNOWN_PIXEL), mask[:, 20:60])
    whole = unfit_mask(mask[:, 20:60], (40, 80), crop, UNKNOWN_PIXEL)
    np.testing.assert_array_equal(whole[:, 20:60], mask[:, 20:60])
    assert (whole[:, :20] == UNKNOWN_PIXEL).all() and (whole[:, 60:] == UNKNOWN_PIXEL).all()


def test_the_check_finds_sizes_empty_masks_and_absent_classes(scenes: Path):
    save_mask(scenes, "1.png", np.full((20, 30), 255))
    save_mask(scenes, "2.png", np.zeros((30, 20)))
    (scenes / "classes.csv").write_text("0,ground\n1,disc\n2,square\n3,star\n")
    source = open_masks(scenes)
    report = check_dataset(source, {"train": np.arange(4)}, ImageSpec())
    found = {issue.code: issue for issue in report.issues}
    assert found["mask-sizes"].severity == "stop" and found["mask-sizes"].rows == (2,)
    assert "has 30x20 pixels, and its picture images/2.png has 20x30" in found["mask-sizes"].text
    assert found["empty-masks"].text == "1 of 4 masks has no known pixel: images/1.png."
    assert "No mask has a pixel of 'star'" in found["classes-without-pixels"].text
    assert report.class_counts == {"train": {"ground": 3, "disc": 2, "square": 2, "star": 0}}
    with pytest.raises(DataError, match="A mask needs the size of its picture"):
        read_source_mask(source, 2, ImageSpec())


def draw_shifted(root: Path, down: int, right: int) -> Path:
    """Scenes of plain colours with noise, whose masks were moved."""
    draw_scenes(root, 8, (72, 64))
    for seed in range(8):
        classes = draw_scene(seed, (72, 64))[1]
        levels = 80 + 30 * classes + np.random.default_rng(seed).normal(0, 10, classes.shape)
        Image.fromarray(levels.clip(0, 255).astype(np.uint8)).save(root / "images" / f"{seed}.png")
        save_mask(root, f"{seed}.png", np.roll(classes, (down, right), (0, 1)))
    return root


@pytest.mark.parametrize(("down", "right", "way"), [(-4, 0, "4 pixels down"), (3, -5, "3 pixels up and 5 pixels to")])
def test_the_check_finds_shifted_masks(down: int, right: int, way: str, tmp_path: Path):
    report = check_dataset(open_masks(draw_shifted(tmp_path / "a", down, right)), {"train": np.arange(8)}, ImageSpec())
    (issue,) = (one for one in report.issues if one.code == "shifted-masks")
    assert issue.severity == "warning" and f"moved {way}" in issue.text and "of 8 pictures" in issue.text


def test_masks_in_their_places_are_no_issue(tmp_path: Path):
    plain, nearly, textured = tmp_path / "plain", tmp_path / "nearly", tmp_path / "textured"
    for folder in (draw_shifted(plain, 0, 0), draw_shifted(nearly, 1, 0), draw_scenes(textured, 8, (72, 64))):
        report = check_dataset(open_masks(folder), {"train": np.arange(8)}, ImageSpec())
        assert not [one for one in report.issues if one.code == "shifted-masks"]


# -- Wrong inputs, each with one sentence


def test_wrong_masks_are_refused_in_one_sentence(scenes: Path, tmp_path: Path):
    save_mask(scenes, "0.png", np.full((20, 30), 9))
    with pytest.raises(DataError, match=r"Values without a name in 1 mask: 9, such as .*0\.png\. Add them to"):
        open_masks(scenes)
    with pytest.raises(DataError, match="Values without a name in 1 mask: 9"):
        read_class_map(scenes / "masks" / "0.png", read_legend(scenes / "classes.csv"))
    save_mask(scenes, "0.png", np.tile(np.array([250, 3, 2], np.uint8), (20, 30, 1)))
    with pytest.raises(DataError, match=r"has colours \(#fa0302\), and nothing says which classes they are"):
        open_masks(scenes)
    Image.fromarray(draw_scene(0, (20, 30))[1]).save(scenes / "masks" / "0.png", "JPEG")
    with pytest.raises(DataError, match="a mask of the kind JPEG does not keep its class numbers"):
        open_masks(scenes)
    (scenes / "masks" / "0.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"0\.png: the mask cannot be read \(it is no picture\)"):
        open_masks(scenes)


def test_masks_of_0_and_255_ask_for_a_legend(scenes: Path):
    (scenes / "classes.csv").unlink()
    for row in range(4):
        save_mask(scenes, f"{row}.png", 255 * (draw_scene(row, (20, 30))[1] > 0))
    with pytest.raises(DataError, match=r"only one class, '0'; telling apart takes two\. 255 means unknown"):
        open_masks(scenes)
    (scenes / "classes.csv").write_text("value,name\n0,background\n255,part\n")
    assert open_masks(scenes).classes == ("background", "part")
    (scenes / "classes.csv").write_text("value,name\n0,part\n255,part\n")
    with pytest.raises(DataError, match=r"gives all its 2 values one name, 'part'; telling apart takes two classes"):
        open_masks(scenes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,a\nb,1\n", "lines of a value and a name"),
        ("0,a\n#ff0000,b\n", "both numbers and colours"),
        ("0,a\n0,b\n", "gives 0 two names, 'a' and 'b'"),
        ("value,name\n", "It has no values"),
    ],
)
def test_wrong_legends_are_refused(tmp_path: Path, text: str, message: str):
    (tmp_path / "legend.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_legend(tmp_path / "legend.csv")


def test_other_sources_are_refused(tmp_path: Path, scenes: Path):
    with pytest.raises(UsageError, match="reads a folder with images/ and masks/, a manifest"):
        open_source("digits", DataSettings(task="segmentation"))
    with pytest.raises(DataError, match="is no folder of pictures and masks"):
        open_masks(scenes / "images")
    (tmp_path / "none" / "images").mkdir(parents=True)
    (tmp_path / "none" / "masks").mkdir()
    with pytest.raises(DataError, match=r"No picture of .*none has a mask: images/a\.jpg needs masks/a\.png"):
        open_masks(tmp_path / "none")
    (scenes / "table.csv").write_text("path,label\nimages/0.png,x\n")
    with pytest.raises(DataError, match=r"No single column of table\.csv names masks"):
        open_masks(scenes / "table.csv")
    (scenes / "table.csv").write_text("path,mask\nimages/0.png,masks/0.png\nimages/1.png,\n")
    with pytest.raises(DataError, match=r"The mask of images/1\.png: no picture is named"):
        open_masks(scenes / "table.csv")
    (scenes / "table.csv").write_text("path,mask\nimages/0.png,../mask.png\n")
    with pytest.raises(DataError, match=r"The mask of images/0\.png: '\.\./mask\.png' leads out of"):
        open_masks(scenes / "table.csv")
    with pytest.raises(UsageError, match="about masks, which only --task segmentation learns from"):
        DataSettings(legend="x.csv")
    with pytest.raises(UsageError, match="Leave --folds out"):
        DataSettings(task="segmentation", folds=5)
