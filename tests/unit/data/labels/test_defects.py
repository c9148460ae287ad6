"""Good pictures and defects from folders, the layouts of MVTec AD and VisA, and manifests; and how they are split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitrail.data.labels.defects import MASK_COLUMN, TYPE_COLUMN, get_defect_types
from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.data.splits import make_splits
from vitrail.errors import DataError, UsageError
from vitrail.train.dataset import open_dataset

ANOMALY = DataSettings(task="anomaly")


def put(folder: Path, *names: str) -> None:
    """Files of no picture: nothing here decodes any."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"")


@pytest.fixture
def mvtec(tmp_path: Path) -> Path:
    root = tmp_path / "bottle"
    put(root / "train" / "good", "000.png", "001.png", "002.png")
    put(root / "test" / "good", "000.png")
    put(root / "test" / "scratch", "000.png", "001.png")
    put(root / "ground_truth" / "scratch", "000_mask.png", "001_mask.png")
    return root


def split_names(source: Source, settings: DataSettings = ANOMALY) -> dict[str, list[str]]:
    splits = make_splits(source, settings, 0)
    return {split: [source.ids[row] for row in rows.tolist()] for split, rows in splits.items()}


def test_a_folder_of_good_pictures_alone_is_all_for_the_bank(tmp_path: Path):
    put(tmp_path / "parts" / "good", *(f"{k}.png" for k in range(10)))
    source = open_source(tmp_path / "parts", ANOMALY)
    assert (source.task, source.classes, source.targets.tolist()) == ("anomaly", ("good", "defect"), [0] * 10)
    splits = split_names(source)
    assert len(splits["train"]) == 10 and not splits["val"] and not splits["test"]


def test_the_only_class_is_that_of_the_good_pictures_whatever_it_is_called(tmp_path: Path):
    put(tmp_path / "parts" / "screws", "0.png", "1.png")
    assert open_source(tmp_path / "parts", ANOMALY).targets.tolist() == [0, 0]


def test_mvtec_is_read_with_its_types_splits_and_masks(mvtec: Path):
    source = open_source(mvtec, ANOMALY)
    assert source.targets.tolist() == [0, 0, 0, 0, 1, 1]
    assert list(source.metadata[TYPE_COLUMN]) == ["good"] * 4 + ["scratch"] * 2
    masks = list(source.metadata[MASK_COLUMN])
    assert masks[:4] == [""] * 4 and masks[4] == str(mvtec / "ground_truth" / "scratch" / "000_mask.png")
    assert not any("Left out" in note for note in source.notes)
    names = split_names(source)
    assert names["train"] == [f"train/good/00{k}.png" for k in range(3)]
    assert names["test"] == ["test/good/000.png", "test/scratch/000.png", "test/scratch/001.png"]
    assert get_defect_types(source, np.array([5, 0])).tolist() == ["scratch", "good"]


def test_without_the_task_mvtec_names_the_command(mvtec: Path):
    message = rf"classes that train does not have: 'scratch'.*vitrail train {mvtec} --task anomaly"
    with pytest.raises(DataError, match=message):
        open_source(mvtec)


def test_without_the_task_a_source_of_one_class_names_the_command(tmp_path: Path):
    put(tmp_path / "parts" / "good", "0.png", "1.png")
    settings = DataSettings(source=str(tmp_path / "parts"))
    with pytest.raises(DataError, match=rf"only one class, 'good'.*vitrail train {tmp_path / 'parts'} --task anomaly"):
        open_dataset(settings, 0)


def test_the_csv_of_visa_is_read_with_its_masks(tmp_path: Path):
    root = tmp_path / "VisA"
    lines = ["object,split,label,image,mask"]
    for k in range(3):
        put(root / "candle" / "Data" / "Images" / "Normal", f"{k}.JPG")
        lines.append(f"candle,{'train' if k < 2 else 'test'},normal,candle/Data/Images/Normal/{k}.JPG,")
    put(root / "candle" / "Data" / "Images" / "Anomaly", "0.JPG")
    put(root / "candle" / "Data" / "Masks" / "Anomaly", "0.png")
    lines.append("candle,test,anomaly,candle/Data/Images/Anomaly/0.JPG,candle/Data/Masks/Anomaly/0.png")
    put(root / "split_csv")
    table = root / "split_csv" / "1cls.csv"
    table.write_text("\n".join(lines))
    settings = DataSettings(source=str(table), data_root=str(root), task="anomaly")
    source = open_source(table, settings)
    assert source.targets.tolist() == [0, 0, 0, 1]
    assert {split: len(rows) for split, rows in make_splits(source, settings, 0).items()} == {
        "train": 2, "val": 0, "test": 2
    }  # fmt: skip
    assert list(source.metadata[MASK_COLUMN]) == ["", "", "", str(root / "candle/Data/Masks/Anomaly/0.png")]


@pytest.mark.parametrize(
    ("cells", "good"),
    [(("good", "bad"), ""), (("OK", "NOK"), ""), ((0, 1), ""), (("a", "b"), "a"), (("no", "yes"), "")],
)
def test_a_manifest_says_good_or_not_in_many_ways(tmp_path: Path, cells: tuple[object, object], good: str):
    put(tmp_path, *(f"{k}.png" for k in range(4)))
    rows = [f"{k}.png,{cells[k == 3]}" for k in range(4)]
    (tmp_path / "parts.csv").write_text("\n".join(["path,label", *rows]))
    settings = DataSettings(source=str(tmp_path / "parts.csv"), task="anomaly", good=good)
    source = open_source(tmp_path / "parts.csv", settings)
    assert source.targets.tolist() == [0, 0, 0, 1]
    assert split_names(source, settings) == {"train": ["0.png", "1.png", "2.png"], "val": [], "test": ["3.png"]}


def test_which_class_is_good_is_asked_for_where_names_do_not_say(tmp_path: Path):
    for name in ("a", "b"):
        put(tmp_path / name, "0.png")
    with pytest.raises(DataError, match=r"holds the good pictures\? It has 'a', 'b'; say it with --data.good NAME"):
        open_source(tmp_path, ANOMALY)
    with pytest.raises(UsageError, match=r"data.good 'c' is no class of .* It has 'a', 'b'"):
        open_source(tmp_path, DataSettings(task="anomaly", good="c"))
    with pytest.raises(UsageError, match="which only --task anomaly learns from"):
        DataSettings(good="a")


def test_of_many_good_pictures_a_fifth_is_held_out_with_all_defects(tmp_path: Path):
    put(tmp_path / "good", *(f"{k}.png" for k in range(60)))
    put(tmp_path / "dent", "0.png", "1.png")
    splits = split_names(open_source(tmp_path, ANOMALY))
    assert len(splits["train"]) == 48 and len(splits["test"]) == 14
    assert not any("dent" in name for name in splits["train"])
    everything = split_names(open_source(tmp_path, ANOMALY), DataSettings(task="anomaly", test_fraction=0.0))
    assert len(everything["train"]) == 60 and len(everything["test"]) == 2


def test_defects_among_published_training_pictures_are_left_out_and_said(tmp_path: Path):
    put(tmp_path / "good", *(f"{k}.png" for k in range(3)))
    put(tmp_path / "bad", "0.png", "1.png")
    rows = [f"good/{k}.png,good,train" for k in range(3)] + ["bad/0.png,bad,train", "bad/1.png,bad,test"]
    (tmp_path / "parts.csv").write_text("\n".join(["path,label,split", *rows]))
    dataset = open_dataset(DataSettings(source=str(tmp_path / "parts.csv"), task="anomaly"), 0)
    assert {split: len(rows) for split, rows in dataset.splits.items()} == {"train": 3, "val": 0, "test": 1}
    assert "Left out 1 picture of defects among the training pictures." in dataset.notes
    assert any("1 picture of defects are for evaluation only" in note for note in dataset.notes)


def test_groups_of_good_pictures_stay_whole(tmp_path: Path):
    put(tmp_path, *(f"{k}.png" for k in range(80)))
    rows = [f"{k}.png,good,lot{k // 8}" for k in range(80)]
    (tmp_path / "parts.csv").write_text("\n".join(["path,label,lot", *rows]))
    settings = DataSettings(source=str(tmp_path / "parts.csv"), task="anomaly", group="lot")
    source = open_source(tmp_path / "parts.csv", settings)
    splits = make_splits(source, settings, 0)
    assert source.groups is not None and len(splits["test"]) == 16
    assert not set(source.groups[splits["train"]]) & set(source.groups[splits["test"]])


def test_a_source_of_its_own_for_the_test_may_hold_defects_only(tmp_path: Path):
    put(tmp_path / "parts" / "good", "0.png", "1.png")
    put(tmp_path / "returns" / "crack", "7.png")
    settings = DataSettings(source=str(tmp_path / "parts"), test_source=str(tmp_path / "returns"), task="anomaly")
    source = open_source(tmp_path / "parts", settings)
    assert source.targets.tolist() == [0, 0, 1] and split_names(source, settings)["test"] == ["test/crack/7.png"]


def test_one_class_of_a_named_set_against_the_rest():
    source = open_source("digits", DataSettings(task="anomaly", good="3"))
    assert source.classes == ("good", "defect") and 170 < int((source.targets == 0).sum()) < 190


def test_defects_alone_and_folds_are_refused(tmp_path: Path):
    put(tmp_path / "good", *(f"{k}.png" for k in range(4)))
    with pytest.raises(UsageError, match=r"leaves out every good picture in turn already\. Leave --folds out"):
        split_names(open_source(tmp_path, ANOMALY), DataSettings(task="anomaly", folds=2))
    rows = [f"good/{k}.png,a|b" for k in range(4)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]))
    source = Source(
        name="films", task="multilabel", classes=("a", "b"), images=[tmp_path], targets=np.zeros((1, 2)), ids=["0"]
    )
    with pytest.raises(UsageError, match="films is a multilabel source"):
        open_source(source, ANOMALY)
