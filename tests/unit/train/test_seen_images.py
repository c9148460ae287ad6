"""Copies of what a run has learnt from are counted and named, whatever they are called."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.errors import DamagedFileError
from vitrail.report import cards
from vitrail.report.cards import list_copy_warnings
from vitrail.runtime import RuntimeSettings
from vitrail.services import evaluation
from vitrail.train import fit as training
from vitrail.train import seen_images
from vitrail.train.dataset import Dataset
from vitrail.train.events import Note
from vitrail.train.request import TrainRequest
from vitrail.train.run_folder import RunFolder
from vitrail.train.seen_images import SEEN_FILE, read_seen_images, write_seen_images

PICTURES = np.random.default_rng(0).integers(0, 255, (40, 16, 16, 3)).astype(np.uint8)
MACHINE = RuntimeSettings(device="cpu", threads=1, precision="float32")


def drawn(pictures: np.ndarray, **fields: object) -> Source:
    ids = tuple(f"{row}.png" for row in range(len(pictures)))
    plain = {"name": "drawn", "classes": ("a", "b"), "images": pictures, "targets": np.arange(len(pictures)) % 2}
    return Source(**{**plain, "ids": ids, **fields})


def folder_of(pictures: np.ndarray, folder: Path) -> Path:
    for row, picture in enumerate(pictures):
        (folder / "ab"[row % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / "ab"[row % 2] / f"{row}.png")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on forty files, of which two held-out ones are copies of training pictures."""
    folder = tmp_path_factory.mktemp("seen")
    pictures = PICTURES.copy()
    ids = [f"{'ab'[row % 2]}/{row}.png" for row in range(40)]
    splits = {"train": np.arange(28), "val": np.arange(28, 32), "test": np.arange(32, 40)}
    pictures[32], pictures[33] = pictures[0], pictures[1]
    folder_of(pictures, folder / "photos")
    rows = [f"{ids[row]},{'ab'[row % 2]},{split}" for split, members in splits.items() for row in members]
    (folder / "photos" / "list.csv").write_text("\n".join(["path,kind,split", *rows]) + "\n")
    request = TrainRequest(
        data=DataSettings(source=str(folder / "photos" / "list.csv")), model="vit_mu_patch8_16", steps=2
    )
    (folder / "said.json").write_text(
        json.dumps([one.text for one in training.fit(request, MACHINE, folder / "run") if isinstance(one, Note)])
    )
    return folder / "run"


def test_copies_among_the_held_out_pictures_are_told_in_notes_results_report_and_card(run):
    said = [text for text in json.loads((run.parent / "said.json").read_text()) if "byte for byte" in text]
    (expected,) = said
    assert expected == (
        "Of 8 test pictures 2 are copies of training pictures, byte for byte (such as a/32.png, b/33.png), so the "
        "figures are too good: vitrail check lists such copies, and --exclude leaves them out."
    )
    (warning,) = list_copy_warnings(run, "test")  # the check has found them too, and names both of each pair
    assert warning.startswith("2 pictures of test are also in train") and "a/32.png = a/0.png" in warning
    assert warning in json.loads((run / "report.json").read_text())["warnings"]
    for page in (run / "report.html", run / "model" / "README.md"):
        assert warning in page.read_text() and "byte for byte" not in page.read_text()
    with (run / "results.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["figure"] == "copies_of_training"]
    assert [(row["split"], row["value"], row["n"]) for row in rows] == [("test", "2.0", "8")]


def test_eight_bytes_are_kept_for_each_picture(run):
    seen = read_seen_images(run)
    assert (len(seen.train), len(seen.val), seen.num_missing) == (28, 4, 0)
    assert (run / SEEN_FILE).stat().st_size < 8 * 32 + 1000


def test_copies_that_the_check_has_not_compared_are_warned_of_by_their_contents(run, monkeypatch, tmp_path):
    monkeypatch.setattr(cards, "list_copy_warnings", lambda folder, split: [])
    request = TrainRequest(
        data=DataSettings(source=str(run.parent / "photos" / "list.csv")), model="vit_mu_patch8_16", steps=2
    )
    list(training.fit(request, MACHINE, tmp_path / "run"))
    (said,) = (one for one in json.loads((tmp_path / "run" / "report.json").read_text())["warnings"] if "byte" in one)
    assert said in (tmp_path / "run" / "model" / "README.md").read_text() and said.startswith("Of 8 test pictures 2")


def test_copies_are_found_under_any_folder_and_any_name(run, tmp_path):
    copy = folder_of(np.concatenate([PICTURES[[0, 2, 30]], 255 - PICTURES[:3]]), tmp_path / "from a colleague")
    labelled = evaluation.load_other_source(str(copy), None, DataSettings())
    noted = evaluation.note_seen_images(run, labelled)
    assert noted.warning == (
        f"{run} has learnt from 2 of these 6 pictures with their answers and {run} was calibrated on 1 of "
        "these 6 pictures, so the figures are too good (the same contents, such as a/0.png, "
        f"b/1.png, a/2.png). Pictures that it has held out: vitrail evaluate {run}"
    )
    assert noted.seen.to_json()["train"] == 2 and noted.seen.to_json()["val"] == 1
    left = evaluation.drop_seen_images(run, labelled)
    assert len(left.rows) == 3 and "3 pictures that" in left.notes[0]
    fresh = evaluation.load_other_source(str(folder_of(255 - PICTURES[:4], tmp_path / "new")), None, DataSettings())
    assert evaluation.note_seen_images(run, fresh).all_notes == ()
    assert evaluation.describe_seen_files(str(run), [str(copy / "a/0.png")])[0].startswith(
        f"{run} has learnt from this picture"
    )
    assert evaluation.describe_seen_files(str(run / "model"), [str(tmp_path / "new/a/0.png")]) == ()


def test_what_there_was_no_time_for_is_said(run, tmp_path, monkeypatch):
    given = drawn(PICTURES)
    dataset = Dataset(given, {"train": np.arange(30), "val": np.arange(30, 40), "test": np.zeros(0, np.int64)})
    monkeypatch.setattr(seen_images, "hash_contents", lambda images, until: np.arange(1, 26, dtype=np.uint64))
    (tmp_path / "part").mkdir()
    seen = write_seen_images(RunFolder(tmp_path / "part"), dataset, 1.0)
    assert seen.num_missing == 15 and read_seen_images(tmp_path / "part").num_missing == 15
    monkeypatch.setattr(seen_images, "hash_contents", lambda images: seen.train[:2])
    found = seen_images.find_copies(seen, [], ["x", "y"])
    assert found.describe("RUN").endswith(" Of 15 pictures of the run it is not known.")
    assert (
        seen_images.find_copies(dataclasses.replace(seen, train=seen.train[2:]), [], ["x", "y"]).describe("RUN") == ""
    )


@pytest.mark.parametrize("content", [b"", b"no arrays"])
def test_a_damaged_file_of_hashes_names_the_way_on(content, tmp_path):
    (tmp_path / SEEN_FILE).write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"seen\.npz must hold hashes .* Delete it to go on without"):
        read_seen_images(tmp_path)
    assert read_seen_images(tmp_path / "nowhere") is None
