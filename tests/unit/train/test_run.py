"""The names of run folders."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from vitrail.errors import ResourceError, UsageError
from vitrail.files import atomic
from vitrail.files.lock import Lock
from vitrail.train.run_folder import RunFolder, make_default_folder

NOW = datetime(2026, 11, 25, 3, 15, 15)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("digits", "digits"),
        ("data/films.csv", "films"),
        ("a/two words & more.npz", "two-words-more"),
        ("/", "pictures"),
    ],
)
def test_a_name_tells_date_source_and_model(source, name):
    assert make_default_folder(source, "vit_a", NOW) == Path(f"runs/20261125-031515-{name}-vit_a")


def test_of_folders_made_in_the_same_second_each_is_a_new_one():
    together = threading.Barrier(8)

    def made(_: int) -> Path:
        together.wait()
        return make_default_folder("digits", "vit_a", NOW)

    with ThreadPoolExecutor(8) as threads:
        folders = list(threads.map(made, range(8)))
    first = "20261125-031515-digits-vit_a"
    assert sorted(folder.name for folder in folders) == [first, *(f"{first}-{number}" for number in range(2, 9))]


def left(here: Path) -> Path:
    """A folder as a kill leaves it just before its plan is written."""
    path = here / "run"
    (path / "checkpoints").mkdir(parents=True)
    for name in ("splits.csv", "data.json", "check.json", "cost.json", f"{atomic.TEMPORARY}1a2b-plan.toml"):
        (path / name).write_text("x")
    return path


def test_A1_what_a_kill_left_before_there_was_a_plan_does_not_keep_the_folder(here):
    path = left(here)
    RunFolder.check_free(path)
    assert (path / "splits.csv").is_file(), "a look takes nothing away"
    RunFolder.create(path)
    assert [file.name for file in path.iterdir()] == ["checkpoints"]


@pytest.mark.parametrize("files", range(3))
def test_A1_a_kill_while_that_is_taken_away_does_not_keep_the_folder_either(here, monkeypatch, files):
    path, true, calls = left(here), Path.unlink, iter(range(100))

    def unlink(file, *words, **more):
        if next(calls) == files:
            raise KeyboardInterrupt
        true(file, *words, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", unlink)
        RunFolder.create(path)
    RunFolder.create(path)
    assert [file.name for file in path.iterdir() if file.name != ".lock"] == ["checkpoints"]


def test_files_of_such_names_that_no_training_has_left_are_kept(here):
    (here / "mine").mkdir()
    (here / "mine" / "splits.csv").write_text("mine")
    with pytest.raises(UsageError, match="exists already and is kept"):
        RunFolder.create(here / "mine")
    assert (here / "mine" / "splits.csv").read_text() == "mine"


@pytest.mark.parametrize("more", ["plan.toml", "notes.txt", "checkpoints/step-00000003"])
def test_a_folder_with_anything_else_in_it_is_kept(here, more):
    path = left(here)
    (path / more).write_text("mine")
    with pytest.raises(UsageError, match="exists already and is kept"):
        RunFolder.create(path)
    assert (path / "splits.csv").is_file() and (path / more).read_text() == "mine"


def test_a_folder_that_somebody_is_beginning_is_kept(here):
    path = left(here)
    with Lock(path), pytest.raises(UsageError, match=f"{path} is in use by process"):
        RunFolder.create(path)
    assert (path / "splits.csv").is_file()


def test_a_file_where_the_folder_of_runs_should_be_is_a_sentence(here):
    (here / "runs").touch()
    with pytest.raises(ResourceError, match="a file stands where a folder is expected"):
        make_default_folder("digits", "vit_a", NOW)
