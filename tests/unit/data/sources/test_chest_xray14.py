"""ChestX-ray14's own files, as a generated miniature: twelve films of five patients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.data.sources.chest_xray14 import FINDINGS
from vitrail.errors import DataError, UsageError

HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)
FILMS = {  # number of film: findings, follow-up, patient, folder
    "00000001_000": ("Cardiomegaly", 0, 1, "images_001"),
    "00000001_001": ("Cardiomegaly|Emphysema", 1, 1, "images_001"),
    "00000001_002": ("Cardiomegaly|Effusion", 2, 1, "images_001"),
    "00000002_000": ("No Finding", 0, 2, "images_001"),
    "00000003_000": ("Hernia", 0, 3, "images_001"),
    "00000003_001": ("Infiltration|Pleural_Thickening|Mass", 1, 3, "images_002"),
    "00000004_000": ("No Finding", 0, 4, "images_002"),
    "00000005_000": ("Nodule", 0, 5, "images_002"),
}
TEST = ("00000003_000", "00000003_001", "00000004_000")


@pytest.fixture
def folder(draw: Callable[..., Path]) -> Path:
    """The folder as it lies after unpacking: pictures in images_00N/images, the table, and the two lists."""
    root = draw(*(f"{place}/images/{film}.png" for film, (_, _, _, place) in FILMS.items()))
    rows = [
        f"{film}.png,{findings},{follow_up},{patient},{57 + patient},M,PA,2682,2749,0.143,0.143,"
        for film, (findings, follow_up, patient, _) in FILMS.items()
    ]
    (root / "Data_Entry_2017.csv").write_text("\n".join([HEADER, *rows, ""]))
    (root / "test_list.txt").write_text("\n".join(f"{film}.png" for film in TEST))
    (root / "train_val_list.txt").write_text("\n".join(f"{film}.png" for film in FILMS if film not in TEST))
    return root


def read(folder: Path, **said: object) -> Source:
    return open_source(str(folder), DataSettings(**said))


def shown(source: Source, row: int) -> set[str]:
    return {FINDINGS[number] for number in np.flatnonzero(source.targets[row])}


def test_the_published_files_become_one_source(folder):
    source = read(folder)
    assert (source.name, source.task, source.classes) == ("ChestX-ray14", "multilabel", FINDINGS)
    assert source.targets.shape == (8, 14) and source.targets.dtype == np.float32
    assert all(path.is_file() for path in source.images)
    assert source.ids[5] == "images_002/images/00000003_001.png"
    assert shown(source, 1) == {"Cardiomegaly", "Emphysema"}
    assert shown(source, 5) == {"Infiltration", "Pleural_Thickening", "Mass"}
    assert shown(source, 3) == set()  # "No Finding" is none of them
    assert not np.isnan(source.targets).any()
    assert source.reason == (
        "Column 'Finding Labels' holds 14 findings joined by |, so a picture may have several: labels."
    )


def test_patients_are_groups_the_official_lists_are_splits_and_the_rest_is_metadata(folder):
    source = read(folder)
    assert source.groups is not None and source.groups.tolist() == ["1", "1", "1", "2", "3", "3", "4", "5"]
    assert {split: rows.tolist() for split, rows in source.splits.items()} == {
        "train": [0, 1, 2, 3, 7],
        "test": [4, 5, 6],
    }
    assert list(source.metadata) == ["Patient Age", "Patient Gender", "View Position", "Follow-up #"]
    assert list(source.metadata["Patient Age"])[:4] == ["58", "58", "58", "59"]
    assert "'No Finding' was read as none of the 14 findings" in source.notes[0]


def test_pictures_in_one_folder_and_the_table_of_2020_are_read_too(folder, draw):
    for place in ("images_001", "images_002"):
        for picture in sorted((folder / place / "images").iterdir()):
            target = folder / "images" / picture.name
            target.parent.mkdir(exist_ok=True)
            picture.rename(target)
    text = (folder / "Data_Entry_2017.csv").read_text()
    (folder / "Data_Entry_2017_v2020.csv").write_text(text.replace("Patient Gender", "Patient Sex"))
    source = read(folder)
    assert source.ids[0] == "images/00000001_000.png" and "Patient Sex" in source.metadata


def test_some_findings_may_be_learnt_alone(folder):
    source = read(folder, targets=("Mass", "Hernia"))
    assert source.classes == ("Mass", "Hernia") and source.targets.sum(0).tolist() == [1, 1]
    assert read(folder, targets=("Hernia",)).targets[:, 0].tolist() == [0, 0, 0, 0, 1, 0, 0, 0]


def test_settings_without_use_here_are_refused(folder):
    with pytest.raises(UsageError, match=r"--task classification does not fit"):
        read(folder, task="classification")
    with pytest.raises(UsageError, match=r"--data.split fold has no use"):
        read(folder, split="fold")
    with pytest.raises(UsageError, match=r"'Flu' is none of ChestX-ray14's findings"):
        read(folder, targets=("Flu",))


def test_lists_that_lack_or_do_not_fit_are_noted(folder):
    (folder / "test_list.txt").write_text("00000003_000.png\n00000009_000.png\n")
    notes = read(folder).notes
    assert "1 of the 2 films in test_list.txt are not in Data_Entry_2017.csv." in notes
    assert "2 films are in neither official list, so no split uses them." in notes
    (folder / "train_val_list.txt").unlink()
    source = read(folder)
    assert list(source.splits) == ["test"]
    assert "train_val_list.txt is not there, so there is no official train split." in source.notes


def test_an_unknown_finding_or_a_foreign_table_stops(folder):
    table = folder / "Data_Entry_2017.csv"
    text = table.read_text()
    table.write_text(text.replace("Hernia", "Hernya"))
    with pytest.raises(DataError, match=r"^Data_Entry_2017\.csv, line 6: 'Finding Labels' is 'Hernya', expected"):
        read(folder)
    table.write_text(text.replace("No Finding", "No Finding|Mass"))
    with pytest.raises(DataError, match=r"line 5: 'Finding Labels' is 'No Finding\|Mass'"):
        read(folder)
    table.write_text(text.replace("Patient ID", "Person"))
    with pytest.raises(DataError, match=r"Data_Entry_2017\.csv has no column 'Patient ID'"):
        read(folder)


def test_the_table_alone_is_an_ordinary_manifest(folder):
    source = read(folder / "Data_Entry_2017.csv")
    assert source.task == "multilabel" and len(source.classes) == 8
    assert "Patient ID" in source.metadata
    assert not source.splits
