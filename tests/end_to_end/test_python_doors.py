"""What `vitrail evaluate` and `vitrail train --folds` do, asked in Python: the same figures to the last digit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import vitrail as package
from vitrail.errors import DataError, UsageError

SETTINGS = {"recipe.batch_size": 4, "data.val_fraction": 0.2, "compute.threads": 1}
TINY = (
    "--model", "vit_mu_patch8_16", "--recipe.batch_size", "4", "--data.val_fraction", "0.2", "--compute.threads", "1",
)  # fmt: skip


@pytest.fixture
def beds(flowers: Path, tmp_path: Path) -> Path:
    """The same pictures with a column beside the labels, as a manifest among them."""
    folder = Path(shutil.copytree(flowers, tmp_path / "flowers"))
    lines = [f"{kind}/{n}.png,{kind},bed {n % 2}" for kind in ("disc", "stripes") for n in range(5)]
    manifest = folder / "beds.csv"
    manifest.write_text("\n".join(["path,label,bed", *lines]) + "\n")
    return manifest


def told(vitrail, *words: object) -> dict:
    answer = vitrail(*words, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_figures_slices_and_shortcuts_are_those_of_the_command_line(vitrail, run_folder, flowers, beds):
    run = package.open(run_folder)
    held = told(vitrail, "evaluate", run_folder)
    assert run.evaluate().to_json() == held["metrics"]
    asked = ("evaluate", run_folder, beds, "--by", "bed", "--shortcuts")
    both = told(vitrail, *asked)
    with pytest.warns(UserWarning, match="has learnt from 6 of these 10"):  # the same pictures, by another table
        assert run.evaluate(beds).to_json() == both["metrics"]
        assert run.slices("bed", beds).to_json() == both["slices"]
        assert [one.n for one in run.slices(source=beds).columns[0].slices] == [6, 4]
        assert run.shortcuts(beds).to_json() == both["shortcuts"]
    assert both["copies"]["train"] == 6
    with pytest.warns(UserWarning, match="has learnt"), pytest.raises(UsageError, match="no further column 'ward'"):
        run.slices("ward", beds)


def test_an_evaluation_from_a_program_leaves_a_page_where_it_is_asked_for(run_folder, flowers, tmp_path):
    with pytest.warns(UserWarning, match="has learnt from"):
        figures = package.open(run_folder).evaluate(flowers, out=tmp_path / "kept")
    assert {path.name for path in (tmp_path / "kept").iterdir()} >= {"report.html", "results.csv", "predictions"}
    assert json.loads((tmp_path / "kept" / "metrics-all.json").read_text()) == figures.to_json()
    with pytest.raises(UsageError, match="kept exists already and is kept"):
        package.open(run_folder).evaluate(run_folder, out=tmp_path / "kept")


def test_settings_say_how_another_source_is_read(run_folder, beds):
    run, own = package.open(run_folder), beds.with_name("own.csv")
    own.write_text(beds.read_text().replace("path,label,bed", "path,fruit,shop"))
    with pytest.raises(DataError, match=r'has 2 columns that may be learnt.*settings=\{"data\.targets": "fruit"\}'):
        run.evaluate(own)
    with pytest.warns(UserWarning, match="has learnt from 6 of these 10 pictures"):
        assert run.evaluate(own, settings={"data.targets": "fruit"}) == run.evaluate(beds)
    with pytest.raises(UsageError, match=r'for reading its pictures: .*\. Got settings=\{"recipe\.lr": \.\.\.\}'):
        run.evaluate(own, settings={"recipe.lr": 1})
    with pytest.raises(UsageError, match=r"say how another source is read\. Give one as source, or leave them out"):
        run.evaluate(settings={"data.targets": "fruit"})


def test_what_the_command_line_notes_python_warns_of(vitrail, run_folder, flowers):
    answer = vitrail("evaluate", run_folder, flowers)
    noted = answer.out + answer.err  # the warning stands beside the table
    run = package.open(run_folder)
    for ask in (run.evaluate, run.shortcuts, run.corruptions):
        with pytest.warns(UserWarning, match="has learnt from 6 of these 10 pictures") as warned:
            ask(source=flowers)
        assert str(warned[0].message) in noted
        assert not Path(warned[0].filename).is_relative_to(Path(package.__file__).parent), "the caller's line is named"


@pytest.mark.wide
def test_corruptions_are_those_of_the_command_line(vitrail, run_folder, flowers):
    both = told(vitrail, "evaluate", run_folder, flowers, "--corruptions", "films", "--most", 4)
    with pytest.warns(UserWarning, match="has learnt from"):
        found = package.open(run_folder).corruptions("films", flowers, most=4)
    assert found.to_json() == both["robustness"]


@pytest.mark.wide
def test_suspects_are_those_of_the_command_line(vitrail, run_folder, tmp_path):
    both = told(vitrail, "evaluate", run_folder, "--suspects", tmp_path / "cli.csv")
    found = package.open(run_folder).suspects()
    assert found.to_json() == {name: both[name] for name in found.to_json()}
    found.write_csv(tmp_path / "python.csv")
    assert (tmp_path / "python.csv").read_bytes() == (tmp_path / "cli.csv").read_bytes()


def test_unlike_pictures_are_those_of_the_command_line(vitrail, run_folder, flowers):
    both = told(vitrail, "evaluate", run_folder, flowers / "disc", "--unlike")
    found = package.open(run_folder).unlike(flowers / "disc")
    assert found.to_json() == {name: both[name] for name in found.to_json()}
    assert (found.others, found.n, found.cut) == (5, 2, None)


@pytest.mark.wide
def test_fit_trains_all_folds_as_the_command_line_does(vitrail, flowers, tmp_path):
    words = ("train", flowers, *TINY, "--folds", 2, "--steps", 2, "--out", tmp_path / "cli")
    assert vitrail(*words).code == 0
    run = package.fit(
        flowers, "vit_mu_patch8_16", steps=2, folds=2, out=tmp_path / "python", settings=SETTINGS, quiet=True
    )
    for name in ("predictions/out-of-fold.csv", "metrics-out-of-fold.json", "suspects.csv"):
        assert (run.path / name).read_bytes() == (tmp_path / "cli" / name).read_bytes()
    assert [one.path.name for one in run.folds] == ["fold-0", "fold-1"] and not run.folds[0].folds
    figures = json.loads((run.path / "metrics-out-of-fold.json").read_text())
    with pytest.warns(UserWarning, match="These figures are of single models"):
        own = run.evaluate()
    assert own.to_json() == figures == told(vitrail, "evaluate", run.path)["metrics"]
    assert len(run.predict([flowers / "disc" / "0.png"])) == 1
    with pytest.warns(UserWarning, match="has learnt from 8 of these 10 pictures"):
        assert run.evaluate(flowers).n == 10
    again = package.open(run.path).resume(quiet=True)
    with pytest.warns(UserWarning, match="These figures are of single models"):
        assert again.evaluate() == own


@pytest.mark.wide
def test_what_folds_cannot_do_is_said(vitrail, flowers, tmp_path):
    run = package.fit(
        flowers, "vit_mu_patch8_16", steps=1, folds=2, out=tmp_path / "run", settings=SETTINGS, quiet=True
    )
    with pytest.raises(UsageError, match=r"go on as they were begun\. Extend one of them, such as .*fold-0"):
        run.extend(steps=1)
    for ask in (run.shortcuts, run.suspects, run.corruptions):
        with pytest.raises(UsageError, match=r"holds several folds, each of which has held out other pictures"):
            ask()
    with pytest.raises(UsageError, match=r"their split is out-of-fold\. Got 'test'; ask one fold"):
        run.evaluate(split="test")
    answer = vitrail("evaluate", run.path, "--shortcuts")
    assert answer.code == 2 and "only --by can be asked of those" in answer.err and "fold-0" in answer.err


def test_one_fold_alone_is_fitted_where_it_is_named(flowers, tmp_path):
    settings = {**SETTINGS, "data.fold": 1}
    run = package.fit(
        flowers, "vit_mu_patch8_16", steps=1, folds=2, out=tmp_path / "run", settings=settings, quiet=True
    )
    assert run.folds == () and (run.plan.data.folds, run.plan.data.fold) == (2, 1) and run.evaluate().n == 5
