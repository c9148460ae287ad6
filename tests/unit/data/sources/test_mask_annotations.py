"""Annotations of COCO, Label Studio, CVAT and Pascal VOC: the pixels that were drawn, and files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.data.checks.check_dataset import check_dataset
from vitrail.data.labels.masks import read_source_mask
from vitrail.data.labels.run_lengths import compress_counts, encode_coco_counts
from vitrail.data.open import SplitSources, open_source
from vitrail.data.settings import DataSettings
from vitrail.data.source import UNKNOWN_PIXEL, Source
from vitrail.errors import DataError, UsageError
from vitrail.explain.mask_overlay import mask_palette
from vitrail.spec import ImageSpec

HEIGHT, WIDTH = 20, 30
EXPECTED = np.zeros((HEIGHT, WIDTH), np.uint8)
EXPECTED[2:12, 3:18] = 1  # a road
EXPECTED[5:9, 6:10] = 2  # a car on it


def open_masks(path: Path, **fields: object) -> Source:
    return open_source(str(path), DataSettings(source=str(path), task="segmentation", **fields))


def save_pictures(folder: Path, names: tuple[str, ...] = ("a.png", "b.png")) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.fromarray(np.zeros((HEIGHT, WIDTH), np.uint8)).save(folder / name)


def check_masks(source: Source) -> None:
    """The first picture has a road with a car, the second nothing."""
    assert source.task == "segmentation" and source.classes == ("background", "road", "car")
    np.testing.assert_array_equal(read_source_mask(source, 0, ImageSpec()), EXPECTED)
    assert not read_source_mask(source, 1, ImageSpec()).any()
    assert source.targets[0].tolist() == pytest.approx([(k == EXPECTED).mean() for k in range(3)])
    assert not [
        one for one in check_dataset(source, {"train": np.arange(2)}, ImageSpec()).issues if one.severity == "stop"
    ]


# -- COCO


def coco() -> dict[str, Any]:
    car = np.zeros((HEIGHT, WIDTH), bool)
    car[5:9, 6:10] = True
    runs = {"size": [HEIGHT, WIDTH], "counts": compress_counts(encode_coco_counts(car))}
    road = [[3, 2, 18, 2, 18, 12, 3, 12]]
    return {
        "images": [
            {"id": 7, "file_name": "a.png", "height": HEIGHT, "width": WIDTH},
            {"id": 9, "file_name": "b.png", "height": HEIGHT, "width": WIDTH},
        ],
        "categories": [{"id": 18, "name": "car"}, {"id": 3, "name": "road"}],
        "annotations": [
            {"image_id": 7, "category_id": 18, "segmentation": runs, "iscrowd": 1},
            {"image_id": 7, "category_id": 3, "segmentation": road, "iscrowd": 0},
        ],
    }


def write_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_coco_polygons_and_runs(tmp_path: Path):
    save_pictures(tmp_path)
    check_masks(open_masks(write_json(tmp_path / "instances.json", coco())))
    content = coco()
    content["annotations"][0]["segmentation"]["counts"] = encode_coco_counts(EXPECTED == 2)
    content["annotations"][1]["segmentation"] = [[3, 2, 10, 2, 10, 12, 3, 12], [10, 2, 18, 2, 18, 12, 10, 12]]
    save_pictures(tmp_path / "elsewhere", ("a.png", "b.png"))
    check_masks(open_masks(write_json(tmp_path / "runs.json", content), data_root=str(tmp_path / "elsewhere")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one.pop("categories"), "not as COCO writes instances: .*KeyError: 'categories'"),
        (lambda one: one["annotations"][1].pop("segmentation"), "a.png: an annotation has a box and no segmentation"),
        (
            lambda one: one["annotations"][1].update(segmentation=[[1, 2, 3, 4]]),
            "three points or more, .* Got 4 numbers",
        ),
        (
            lambda one: one["annotations"][0]["segmentation"].update(size=[3, 4]),
            r"are of \[3, 4\], and the picture has",
        ),
        (lambda one: one["annotations"][0].update(category_id=4), "a.png: an annotation has category 4, which"),
        (lambda one: one["annotations"][0].update(image_id=99), "annotations of image 99, which is not among its"),
        (lambda one: one["images"][0].update(file_name="../a.png"), "leads out of"),
        (lambda one: one["images"][1].update(file_name="a.png"), "has 1 picture twice, such as a.png"),
        (lambda one: one.update(images=[], annotations=[]), "names no annotated picture"),
    ],
)
def test_wrong_files_of_coco_are_refused(change: Any, message: str, tmp_path: Path):
    save_pictures(tmp_path)
    content = coco()
    change(content)
    with pytest.raises(DataError, match=message):
        open_masks(write_json(tmp_path / "instances.json", content))


def test_what_is_no_json_or_names_columns_is_refused(tmp_path: Path):
    save_pictures(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        open_masks(tmp_path / "broken.json")
    with pytest.raises(DataError, match="neither the list of tasks of Label Studio nor the fields of COCO"):
        open_masks(write_json(tmp_path / "number.json", 3))
    file = write_json(tmp_path / "instances.json", coco())
    with pytest.raises(UsageError, match="--group patient"):
        open_masks(file, group="patient")
    (tmp_path / "legend.csv").write_text("0,a\n1,b\n")
    with pytest.raises(UsageError, match="names its classes itself"):
        open_masks(file, legend=str(tmp_path / "legend.csv"))


def test_files_of_train_and_val_are_joined_if_their_classes_are_the_same(tmp_path: Path):
    save_pictures(tmp_path)
    files = [write_json(tmp_path / f"{name}.json", coco()) for name in ("train", "val")]
    settings = DataSettings(source=str(files[0]), task="segmentation")
    joined = open_source(SplitSources(str(files[0]), str(files[1])), settings)
    assert {split: len(rows) for split, rows in joined.splits.items()} == {"train": 2, "val": 2}
    np.testing.assert_array_equal(read_source_mask(joined, 2, ImageSpec()), EXPECTED)
    content = coco()
    content["categories"].reverse()
    content["categories"][0]["id"], content["categories"][1]["id"] = 18, 3
    write_json(files[1], content)
    with pytest.raises(DataError, match="need the same classes in the same order"):
        open_source(SplitSources(str(files[0]), str(files[1])), settings)


# -- Label Studio


def label_studio() -> list[dict[str, Any]]:
    size = {"original_width": WIDTH, "original_height": HEIGHT}
    points = [[10, 10], [60, 10], [60, 60], [10, 60]]
    box = {"x": 20, "y": 25, "width": 40 / 3, "height": 20}
    results = [
        {"type": "polygonlabels", "value": {"points": points, "polygonlabels": ["road"]}, **size},
        {"type": "rectanglelabels", "value": {**box, "rectanglelabels": ["car"]}, **size},
        {"type": "choices", "value": {"choices": ["sunny"]}, **size},
    ]  # fmt: skip
    nothing = [
        {"type": "polygonlabels", "value": {"points": [[0, 0], [1, 0], [0, 0]], "polygonlabels": ["road"]}, **size}
    ]
    return [
        {"data": {"image": "/data/upload/1/0a1b2c3d-a.png"}, "annotations": [{"result": results}]},
        {"data": {"image": "/data/local-files/?d=shots/b.png"}, "annotations": [{"result": nothing}]},
        {"data": {"image": "c.png"}, "annotations": []},
    ]


def test_label_studio_polygons_and_boxes(tmp_path: Path):
    save_pictures(tmp_path)
    source = open_masks(write_json(tmp_path / "export.json", label_studio()))
    assert source.classes == ("background", "car", "road")  # by name: an export has no order of its own
    found = read_source_mask(source, 0, ImageSpec())
    np.testing.assert_array_equal(np.array([0, 2, 1])[found], EXPECTED)
    assert not read_source_mask(source, 1, ImageSpec()).any()
    assert "Left out 1 task of export.json without a region." in source.notes


def test_wrong_exports_of_label_studio_are_refused(tmp_path: Path):
    save_pictures(tmp_path)
    content = label_studio()
    del content[0]["annotations"][0]["result"][0]["original_width"]
    with pytest.raises(DataError, match=r"not as Label Studio writes its JSON: .*KeyError: 'original_width'"):
        open_masks(write_json(tmp_path / "export.json", content))
    with pytest.raises(DataError, match="names no annotated picture"):
        open_masks(write_json(tmp_path / "export.json", label_studio()[2:]))


# -- CVAT

CVAT = f"""<annotations>
<version>1.1</version><meta><task><labels><label><name>road</name></label><label><name>car</name></label></labels></task></meta>
<image id="0" name="a.png" width="{WIDTH}" height="{HEIGHT}">
<box label="car" z_order="1" xtl="6" ytl="5" xbr="10" ybr="9"/>
<polygon label="road" z_order="0" points="3,2;18,2;18,12;3,12"/>
</image>
<image id="1" name="b.png" width="{WIDTH}" height="{HEIGHT}"></image>
</annotations>"""


def test_cvat_polygons_boxes_and_masks(tmp_path: Path):
    save_pictures(tmp_path)
    (tmp_path / "boxes.xml").write_text(CVAT)
    check_masks(open_masks(tmp_path / "boxes.xml"))
    mask = '<mask label="car" z_order="1" left="5" top="5" width="5" height="4" rle="1,4,1,4,1,4,1,4"/>'
    (tmp_path / "masks.xml").write_text(CVAT.replace(CVAT.splitlines()[3], mask))
    check_masks(open_masks(tmp_path / "masks.xml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<a", "not as CVAT writes its XML"),
        ("<other/>", "the first element is other"),
        (CVAT.replace('label="car" ', ""), "KeyError: 'label'"),
        (CVAT.replace("3,2;18,2", "3,2;18"), "not as CVAT"),
    ],
)
def test_wrong_files_of_cvat_are_refused(text: str, message: str, tmp_path: Path):
    save_pictures(tmp_path)
    (tmp_path / "wrong.xml").write_text(text)
    with pytest.raises(DataError, match=message):
        open_masks(tmp_path / "wrong.xml")


# -- Pascal VOC


def test_a_folder_of_voc_has_its_lists_and_twenty_classes(tmp_path: Path):
    save_pictures(tmp_path / "JPEGImages", ("a.png", "b.png", "c.png"))
    lists = tmp_path / "ImageSets" / "Segmentation"
    for folder in (tmp_path / "SegmentationClass", lists):
        folder.mkdir(parents=True)
    drawn = np.where(EXPECTED == 1, 15, EXPECTED).astype(np.uint8)
    drawn[0] = 255
    for name in ("a", "b"):
        mask = Image.fromarray(drawn, "P")
        mask.putpalette(mask_palette(21).ravel().tolist())
        mask.save(tmp_path / "SegmentationClass" / f"{name}.png")
    (lists / "train.txt").write_text("a\n")
    (lists / "val.txt").write_text("b\n")
    (lists / "trainval.txt").write_text("a\nb\n")
    source = open_masks(tmp_path)
    assert len(source.classes) == 21 and source.classes[15] == "person" and len(source) == 2
    assert {split: rows.tolist() for split, rows in source.splits.items()} == {"train": [0], "val": [1]}
    found = read_source_mask(source, 0, ImageSpec())
    np.testing.assert_array_equal(found[1:], drawn[1:])
    assert (found[0] == UNKNOWN_PIXEL).all() and "Left out 1 picture" in source.notes[0]
    (lists / "val.txt").write_text("c\n")
    with pytest.raises(DataError, match="lists c, which has no picture with a mask"):
        open_masks(tmp_path)


def test_a_folder_of_voc_may_bring_its_colours(tmp_path: Path):
    save_pictures(tmp_path / "JPEGImages")
    (tmp_path / "SegmentationClass").mkdir()
    colors = np.array([[0, 0, 0], [0, 128, 0], [128, 0, 0]], np.uint8)
    for name, mask in (("a", EXPECTED), ("b", EXPECTED * 0)):
        Image.fromarray(colors[mask]).save(tmp_path / "SegmentationClass" / f"{name}.png")
    labels = tmp_path / "labelmap.txt"
    labels.write_text("# label:color_rgb:parts:actions\nbackground:0,0,0::\nroad:0,128,0::\ncar:128,0,0::\n")
    check_masks(open_masks(tmp_path))
    labels.write_text("road\n")
    with pytest.raises(DataError, match=r"must have lines of name:red,green,blue\. Got 'road'"):
        open_masks(tmp_path)
