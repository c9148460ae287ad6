"""`vitrail evaluate` looking for trouble: wrong labels, worse slices, shortcuts."""

from __future__ import annotations

import json
import shutil

import pytest

from end_to_end.conftest import TINY


def test_suspects_are_listed_and_left_out_of_the_next_training(vitrail, run_folder, flowers, tmp_path):
    path = tmp_path / "suspects.csv"
    answer = vitrail("evaluate", run_folder, "--suspects", path)
    assert answer.code == 0, answer.err
    assert "10 labels of 10 pictures judged by 5 probes" in answer.out and "has learnt from 6 of these 10" in answer.err
    assert path.read_text().splitlines()[0] == "id,path,given,suggested,score,reason"
    told = json.loads(vitrail("evaluate", run_folder, "--suspects", path, "--json").out)
    assert len(told["suspects"]) == len(path.read_text().splitlines()) - 1
    path.write_text("id,path,given,suggested,score,reason\ndisc/0.png,,disc,stripes,0.9,looks so\n")
    answer = vitrail("train", flowers, *TINY, "--exclude", path, "--steps", 1, "--out", tmp_path / "run")
    assert answer.code == 0 and "Left out 1 picture" in answer.err


def test_slices_and_shortcuts_stand_below_the_figures(vitrail, run_folder, flowers):
    lines = [f"{kind}/{n}.png,{kind},bed {n % 2}" for kind in ("disc", "stripes") for n in range(5)]
    manifest = flowers / "beds.csv"
    manifest.write_text("\n".join(["path,kind,bed", *lines]) + "\n")
    asked = ("evaluate", run_folder, manifest, "--data.targets", "kind", "--by", "bed", "--shortcuts")
    answer, machine = vitrail(*asked), vitrail(*asked, "--json")
    manifest.unlink()
    assert answer.code == 0, answer.err
    assert "bed 0 " in answer.out and "few" in answer.out and "border only" in answer.out
    told = json.loads(machine.out)
    assert [one["n"] for one in told["slices"]["columns"][0]["slices"]] == [6, 4]
    assert told["shortcuts"]["n"] == 10 and told["metrics"]["n"] == 10 and told["shortcuts"]["guess"] == 0.5


def test_what_is_kept_stands_in_the_next_report(vitrail, run_folder, tmp_path):
    run = shutil.copytree(run_folder, tmp_path / "run")
    answer = vitrail("evaluate", run, "--shortcuts", "--keep")
    assert answer.code == 0 and f"Kept in {run / 'shortcuts.json'}. vitrail report {run} shows it." in answer.err
    assert vitrail("evaluate", run, "--corruptions", "films", "--most", 2, "--keep", "--json").code == 0
    assert vitrail("report", run).code == 0
    page = (run / "report.html").read_text()
    assert "Does it rely on the border?" in page and "How robust it is" in page


def test_what_another_source_shows_is_not_kept(vitrail, run_folder, flowers):
    answer = vitrail("evaluate", run_folder, flowers, "--by", "all", "--keep")
    assert answer.code == 2 and "Leave out SOURCE, or leave out --keep." in answer.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--keep",), "--keep is for what --by, --shortcuts, --corruptions or --plan-test doubling finds."),
        (("--by", "ward"), "has no further column 'ward'"),
        (("--suspects", "list.csv", "--shortcuts"), "--suspects judges labels, not the model."),
        (("--against", "other", "--by", "all"), "--against compares two models."),
    ],
)
def test_what_does_not_go_together_is_refused(vitrail, run_folder, words, sentence):
    answer = vitrail("evaluate", run_folder, *words)
    assert (answer.code, answer.out) == (2, "") and sentence in answer.err
