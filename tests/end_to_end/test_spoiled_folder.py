"""A folder spoiled in twenty ways: `vitrail check` finds all twenty, tells how to go on, and touches nothing."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

import spoiled
from vitrail.cli.main import main


def contents(folder: Path) -> dict[str, str]:
    """What every file holds, and where links point."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("spoiled") / "drawings"
    spoiled.make(made)
    return made


@pytest.fixture(scope="module")
def checked(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `vitrail check FOLDER --out DIR` writes, with its exit code in a file."""
    before = contents(folder)
    out = tmp_path_factory.mktemp("checked")
    code = main(["check", str(folder), "--out", str(out)])
    (out / "code").write_text(str(code))
    (out / "unchanged").write_text(str(contents(folder) == before))
    return out


@pytest.fixture(scope="module")
def told(checked: Path) -> dict[str, Any]:
    return json.loads((checked / "check.json").read_text())


# fmt: off
UNREADABLE = {
    "an empty file":                            ("train/disc/empty.png", "empty"),
    "a file that is cut short":                 ("train/disc/cut.png", "truncated"),
    "a web page called .jpg":                   ("train/stripes/page.jpg", "HTML"),
    "a header that claims 169 million pixels":  ("train/stripes/bomb.png", "169 Mpx"),
    "a TIFF with two pages":                    ("train/checks/pages.tif", "2 pages"),
    "a link to nothing":                        ("train/checks/link.png", "nowhere.png"),
}
CONCERNS = {
    "a JPEG without its end marker":            ("end-marker-missing", "train/rings/unended.jpg"),
    "a PNG called .jpg":                        ("ending-does-not-match-contents", "train/rings/really_png.jpg"),
    "a 16-bit picture among 8-bit ones":        ("mixed-depths", "train/disc/deep.png"),
    "a picture smaller than a patch":           ("smaller-than-a-patch", "train/disc/tiny.png"),
    "a picture of an odd shape":                ("odd-shapes", "train/stripes/banner.png"),
    "a black picture":                          ("black-pictures", "train/stripes/black.png"),
    "a white picture":                          ("white-pictures", "train/checks/white.png"),
    "a copy in another format":                 ("exact-copies-in-train", "train/disc/again.bmp"),
    "a training picture in test":               ("exact-copies-in-train-and-test", "test/stripes/leaked.png"),
    "nearly a training picture in test":        ("near-copies-in-train-and-test", "test/checks/nearly.jpg"),
    "one picture in two classes":               ("exact-copies-with-different-labels", "train/rings/is_a_disc.png"),
    "a class of constant pictures":             ("class-of-constant-pictures", "train/plain/60.png"),
}
SENTENCES = {
    "a class from another camera":              ("shortcut", "of class 'blobs' are 80 x 120 JPEG, no other is"),
    "a class that test lacks":                  ("few-pictures-in-test", "'ring' (0)"),
}
# fmt: on


def test_twenty_ways_are_looked_for():
    assert {*UNREADABLE, *CONCERNS, *SENTENCES} == set(spoiled.WAYS)
    assert len(spoiled.WAYS) == 20


@pytest.mark.parametrize("way", UNREADABLE)
def test_what_cannot_be_read_is_named_with_its_reason(told, way):
    name, reason = UNREADABLE[way]
    assert reason in {each["id"]: each["reason"] for each in told["bad"]}[name]


def test_nothing_else_is_called_unreadable(told):
    assert {each["id"] for each in told["bad"]} == {name for name, _ in UNREADABLE.values()}


@pytest.mark.parametrize("way", CONCERNS)
def test_what_is_wrong_with_a_picture_is_found(told, way):
    code, name = CONCERNS[way]
    assert any(name in each["pictures"] for each in told["concerns"] if each["code"] == code)


@pytest.mark.parametrize("way", SENTENCES)
def test_what_is_wrong_with_a_class_is_found(told, way):
    code, words = SENTENCES[way]
    assert any(words in each["text"] for each in told["concerns"] if each["code"] == code)


def test_no_healthy_picture_is_taken_for_a_near_copy(told):
    groups = [each["groups"] for each in told["concerns"] if each["code"].startswith("near-copies")]
    assert groups == [[["test/checks/nearly.jpg", "train/checks/07.png"]]]


def test_the_exit_code_is_three_and_the_pictures_are_as_before(checked):
    assert (checked / "code").read_text() == "3"
    assert (checked / "unchanged").read_text() == "True"


def test_the_list_to_exclude_holds_the_unreadable_the_contradicting_and_the_leaked(checked):
    with (checked / "exclude.csv").open(newline="") as file:
        reasons = {line["id"]: line["reason"] for line in csv.DictReader(file)}
    assert {name for name, _ in UNREADABLE.values()} <= set(reasons)
    assert "exact copy of a picture in test" in reasons["train/stripes/06.png"]
    assert "near copy of a picture in test" in reasons["train/checks/07.png"]
    assert "different label" in reasons["train/disc/08.png"]
    assert not [name for name in reasons if name.startswith("test/")]


def test_the_page_shows_the_offenders_and_loads_nothing(checked):
    page = (checked / "check.html").read_text()
    assert "test/checks/nearly.jpg" in page
    assert page.count("data:image/") > 20
    assert "<script" not in page and "http" not in page
