"""The guide to data keeps its word: every command in it runs, on miniature data, and ends as it says."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from end_to_end import guide_data
from end_to_end.conftest import TINY
from scripts import script

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh run\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.strip()]
TRAIN = "vitrail train"
STOPS = "# stops: exit code 3"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the guide speaks of."""
    folder = tmp_path_factory.mktemp("guide")
    guide_data.prepare(folder)
    if importlib.util.find_spec("datasets"):
        guide_data.saved_dataset(folder / "photos")
    return folder


@pytest.mark.parametrize("line", [line for line in COMMANDS if not line.startswith(TRAIN)])
def test_every_command_of_the_guide_ends_as_it_says(line, vitrail, desk, monkeypatch):
    if "photos/" in line:
        pytest.importorskip("datasets")
    monkeypatch.chdir(desk)
    answer = vitrail(*shlex.split(line, comments=True)[1:])
    assert answer.code == (3 if STOPS in line else 0), answer.err
    assert "Traceback" not in answer.out + answer.err


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith(TRAIN)])
def test_every_training_of_the_guide_ends_with_its_accuracy(line, vitrail, desk, monkeypatch, tmp_path):
    monkeypatch.chdir(desk)
    if "--exclude" in line:
        vitrail("check", "spoiled/", "--out", "checked")
    words = [*TINY[:4], *TINY[6:], "--steps", "2", "--out", tmp_path / "run"]
    answer = vitrail(*shlex.split(line)[1:], *words)
    assert answer.code == 0, answer.err
    assert "Accuracy on" in answer.out


def test_the_guide_has_commands_for_every_kind_of_source():
    named = {shlex.split(line, comments=True)[2].rstrip("/") for line in COMMANDS}
    assert {"flowers", "films.csv", "films.jsonl", "xray14", "photos.npz", "photos", "shards", "digits"} <= named


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("check flowrs/", "There is nothing at flowrs/. Expected"),
        ("check findings.csv", "'nodule' is '-1', which says that somebody was uncertain"),
        ("check films.csv", "Column 'patient_id' has 12 values for 24 pictures"),
    ],
)
def test_the_messages_that_the_guide_quotes_are_those_that_one_sees(command, words, vitrail, desk, monkeypatch):
    monkeypatch.chdir(desk)
    answer = vitrail(*command.split())
    assert words in answer.out + answer.err
    assert words.partition(" Expected")[0] in PAGE


def test_the_table_of_settings_is_fresh():
    assert script("table_of_data_settings", "docs").table() in PAGE, "run python docs/table_of_data_settings.py"


def test_links_of_the_guide_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert target.startswith("http") or (DOCS / target).is_file(), target
