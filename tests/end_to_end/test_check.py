"""`vitrail check` by hand: its flags, what it writes, and how its list comes back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def leaky(flowers: Path, tmp_path: Path) -> Path:
    """The ten pictures as train, three others as test, of which two are in train too; and one that is no picture."""
    for number, path in enumerate(sorted(flowers.rglob("*.png"))):
        picture = Image.open(path)
        for split in ("train", "test") if number in (2, 7) else ("train",):
            place = tmp_path / "leaky" / split / path.parent.name / path.name
            place.parent.mkdir(parents=True, exist_ok=True)
            picture.save(place)
    Image.fromarray(np.arange(480, dtype=np.uint8).reshape(20, 24)).save(tmp_path / "leaky/test/disc/own.png")
    (tmp_path / "leaky/train/disc/broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return tmp_path / "leaky"


def test_the_list_that_a_check_writes_makes_the_next_one_pass(vitrail, leaky, tmp_path):
    first = vitrail("check", leaky, "--out", tmp_path / "checked")
    assert first.code == 3
    assert "2 pictures of test are also in train, so the figure on test will be too good." in first.out
    checked = tmp_path / "checked"
    how = f"which vitrail check {leaky} --out {checked} writes, lists such copies: --exclude {checked}/exclude.csv"
    assert how in first.out
    assert first.out.endswith(
        f"Written to {checked}: check.html, check.json and exclude.csv (3 pictures).\n"
        f"Next    vitrail train {leaky} --exclude {checked / 'exclude.csv'}\n"
    )
    second = vitrail("check", leaky, "--exclude", checked / "exclude.csv", "--out", tmp_path / "again", "--json")
    lists = [
        {line.split(",")[0] for line in (tmp_path / name / "exclude.csv").read_text().splitlines()}
        for name in ("checked", "again")
    ]
    assert lists[0] == lists[1] and len(lists[1]) == 4, "the second list replaces the first and holds it"
    told = json.loads(second.out)
    assert (second.code, told["stops_a_training"], told["pictures"]) == (0, False, 11)
    assert not [each for each in told["concerns"] if "copies" in each["code"]]
    assert any("Left out 3 pictures that" in note for note in told["notes"])


def test_few_held_out_pictures_are_told_before_a_training(vitrail, flowers, leaky):
    few = vitrail("check", flowers).out
    assert re.search(r"\n\d+ test pictures? would tell little of how good a training is; vitrail train --folds 5 ", few)
    assert "would tell little" not in vitrail("check", "digits").out


def test_without_a_folder_to_write_to_it_says_that_there_is_a_list(vitrail, leaky):
    answer = vitrail("check", leaky)
    assert (
        "--out DIR writes a page with these pictures, and a list of 3 pictures that are better left out." in answer.out
    )
    assert "This picture stops a training. Mend or remove it, or leave it out with --skip-bad." in answer.out


def test_pictures_are_looked_at_in_the_size_that_is_asked_for(vitrail, flowers):
    small, large = (vitrail("check", flowers, "--image-size", size) for size in ("16", "112x140"))
    assert (small.code, large.code) == (0, 0)
    assert "enlarged" not in small.out
    assert "10 pictures are enlarged more than 4 times to the 112 x 140 pixels that the model reads." in large.out
    assert "HEIGHTxWIDTH" in vitrail("check", flowers, "--image-size", "wide").err


def test_when_no_picture_can_be_read_each_is_named(vitrail, tmp_path):
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    answer = vitrail("check", tmp_path)
    assert answer.code == 3
    assert all(name in answer.out for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"))


def test_the_value_range_is_decided_as_a_training_would(vitrail, tmp_path):
    """12-bit films in 16-bit files are read, and those of another scanner seen to be of another depth."""
    generator = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
        for number in range(6):
            film = generator.integers(0, 4096, (20, 20)).astype(np.uint16)
            Image.fromarray(film).save(tmp_path / kind / f"{number}.png")
    told = json.loads(vitrail("check", tmp_path, "--json").out)
    assert (told["bad"], told["stored_values"]) == ([], {"uint16": 12})
    assert "narrow-range" not in {each["code"] for each in told["concerns"]}
    told = json.loads(vitrail("check", tmp_path, "--data.range", "8", "--json").out)
    assert len(told["bad"]) == 12


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--data.colour", "red"), "data.colour"),
        (("--recipe.batch_size", "4"), "check trains nothing, so it takes no --recipe.batch_size"),
        (("--group", "patient", "--data.group", "case"), "--group and --data.group are the same setting"),
        (("--data.source", "digits"), "SOURCE and --data.source are the same setting"),
        (("--task", "guess"), "task must be"),
        (("--image.page", "-1"), "page must be 0 or more"),
    ],
)
def test_a_wrong_setting_is_a_sentence(vitrail, flowers, words, said):
    answer = vitrail("check", flowers, *words)
    assert answer.code == 2 and said in answer.err and "Traceback" not in answer.err


def test_a_list_of_another_source_is_refused(vitrail, flowers, tmp_path):
    (tmp_path / "x.csv").write_text("id\nzebra.png\n")
    answer = vitrail("check", flowers, "--exclude", tmp_path / "x.csv")
    assert answer.code == 3 and "zebra.png" in answer.err
