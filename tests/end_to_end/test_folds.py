"""A model for every fold, answers of models that have not seen the picture, one ensemble, and going on after a stop."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from end_to_end.conftest import TINY
from vitrail.checkpoints import bundle
from vitrail.cli.main import main
from vitrail.files import checksums, lock
from vitrail.train import loop

WORDS = (*TINY, "--folds", "3", "--steps", "4")


@pytest.fixture(scope="module")
def folds(flowers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three folds of ten pictures."""
    import torch

    before = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("runs") / "folds"
    assert main(["train", str(flowers), *WORDS, "--out", str(folder)]) == 0
    torch.set_num_threads(before)
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_every_picture_is_answered_once_by_a_model_that_has_not_seen_it(folds):
    rows = rows_of(folds / "predictions" / "out-of-fold.csv")
    assert len(rows) == len({row["id"] for row in rows}) == 10
    assert {row["split"] for row in rows} == {"out-of-fold"}
    for number in range(3):
        own = rows_of(folds / f"fold-{number}" / "predictions" / "test.csv")
        learnt = [row["id"] for row in rows_of(folds / f"fold-{number}" / "splits.csv") if row["split"] != "test"]
        assert not {row["id"] for row in own} & set(learnt)
        told = {row["id"]: row["probability"] for row in rows}
        assert all(told[row["id"]] == row["probability"] for row in own)


@pytest.mark.wide
def test_what_the_command_names_is_found_from_anywhere_when_folds_go_on(
    vitrail, flowers, run_folder, tmp_path, monkeypatch
):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    shutil.copytree(flowers, "more")
    shutil.copytree(run_folder, "elder")
    words = ("--folds", "2", "--steps", "1", "--pretrain.steps", "1", "--pretrain.extra_images", "more")
    teacher = ("--distill.teacher", "elder", "--out", tmp_path / "folds")
    assert vitrail("train", flowers, *TINY, *words, *teacher).code == 0
    shutil.rmtree(tmp_path / "folds" / "fold-1")  # as a kill after the first fold leaves it
    monkeypatch.chdir(tmp_path / "there")
    again = vitrail("train", "--resume", tmp_path / "folds")
    assert again.code == 0, again.err
    assert f"of {tmp_path / 'here' / 'more'} to" in again.err


@pytest.mark.wide
def test_a_model_that_has_seen_no_label_answers_nothing(vitrail, flowers, tmp_path):
    run = tmp_path / "run"
    assert vitrail("train", flowers, *TINY, "--steps", "1", "--pretrain.steps", "1", "--out", run).code == 0
    picture = next((flowers / "disc").glob("*.png"))
    for words in (("predict", picture), ("evaluate", flowers)):
        answer = vitrail(words[0], run / "pretrained", *words[1:])
        assert answer.code == 2 and "has seen pictures and no label" in answer.err, answer.err
    assert vitrail("embed", run / "pretrained", picture, "--to", tmp_path / "features.npy").code == 0
    assert "that has seen no label yet" in (run / "pretrained" / "README.md").read_text()


def test_a_source_that_the_model_has_learnt_from_is_named_with_how_many_of_it(vitrail, flowers, folds, run_folder):
    for run, runs in ((run_folder, [run_folder]), (folds, sorted(folds.glob("fold-*")))):
        learnt = {row["id"] for one in runs for row in rows_of(one / "splits.csv") if row["split"] == "train"}
        answer = vitrail("evaluate", run, flowers)
        assert answer.code == 0 and len(learnt) > 5
        assert f"WARNING  {run} has learnt from {len(learnt)} of these 10 pictures with their answers" in answer.out
    assert "with their answers" not in vitrail("evaluate", run_folder).out


def test_the_figures_are_those_of_all_answers(folds):
    rows = rows_of(folds / "predictions" / "out-of-fold.csv")
    told = json.loads((folds / "metrics-out-of-fold.json").read_text())
    assert told["n"] == 10 and told["accuracy"] == np.mean([row["target"] == row["label"] for row in rows])
    page = (folds / "report.html").read_text()
    assert "of 10 out-of-fold pictures answered right" in page
    assert page.count("by a model that has not seen them") == 3


def test_the_ensemble_answers_with_the_mean_of_the_folds(vitrail, folds, flowers):
    picture = flowers / "disc" / "0.png"
    (together,) = json.loads(vitrail("predict", folds, picture, "--json").out)
    alone = [json.loads(vitrail("predict", folds / f"fold-{k}", picture, "--json").out)[0] for k in range(3)]
    assert together["prob_disc"] == pytest.approx(np.mean([one["prob_disc"] for one in alone]), abs=1e-6)
    assert vitrail("evaluate", folds, flowers).code == 0
    answer = vitrail("inspect", folds)
    assert answer.code == 2 and "is an ensemble" in answer.err and "member-0" in answer.err


def test_figures_stand_in_a_table_and_in_the_appendix_for_papers(vitrail, folds):
    told = json.loads((folds / "metrics-out-of-fold.json").read_text())
    (accuracy,) = [row for row in rows_of(folds / "results.csv") if row["figure"] == "accuracy"]
    assert accuracy["split"] == "out-of-fold" and float(accuracy["value"]) == told["accuracy"]
    assert vitrail("report", folds, "--for", "dossier").code == 0
    page = (folds / "report.html").read_text()
    assert "The models of all folds answer together" in page and "3 models, one for each fold" in page
    assert "All together are measured on none." in page
    assert "answers new pictures, is measured on none" in vitrail("evaluate", folds).err


@pytest.mark.wide
def test_folds_that_were_stopped_go_on_and_whole_ones_are_kept(vitrail, folds, flowers, tmp_path):
    stopped = tmp_path / "folds"
    shutil.copytree(folds, stopped)
    for gone in ("fold-2", "model", "predictions"):
        shutil.rmtree(stopped / gone)
    (stopped / "report.html").unlink()
    answer = vitrail("train", "--resume", stopped)
    assert answer.code == 0, answer.err
    assert f"{stopped / 'fold-1'} is complete already" in answer.err
    assert (stopped / "predictions" / "out-of-fold.csv").read_bytes() == (
        folds / "predictions" / "out-of-fold.csv"
    ).read_bytes()
    assert vitrail("predict", stopped, flowers / "disc").code == 0


@pytest.mark.wide
def test_a_fold_that_was_killed_before_it_had_a_plan_begins_anew(vitrail, folds, flowers, tmp_path):
    killed = shutil.copytree(folds, tmp_path / "folds")
    shutil.rmtree(killed / "fold-2")
    (killed / "fold-2" / "checkpoints").mkdir(parents=True)
    shutil.copy(folds / "fold-2" / "splits.csv", killed / "fold-2")
    assert vitrail("train", flowers, *WORDS, "--out", killed).code == 0
    (killed / "fold-2" / "plan.toml").unlink()
    answer = vitrail("train", "--resume", killed)
    assert answer.code == 2 and f"{killed / 'fold-2'} exists already and is kept" in answer.err
    assert any((killed / "fold-2" / "checkpoints").iterdir()), "what was learnt is nobody's to throw away"


@pytest.mark.wide
def test_a_signal_in_a_fold_says_how_all_of_them_go_on(vitrail, flowers, tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    out, true, count = tmp_path / "folds", loop.apply_step, 0

    def asked(*words: object) -> object:
        nonlocal count
        count += 1
        if count == 6:  # the second of the second fold
            os.kill(os.getpid(), signal.SIGTERM)
        return true(*words)

    monkeypatch.setattr(loop, "apply_step", asked)
    answer = vitrail("train", flowers, *WORDS, "--out", out)
    said = f"Interrupted at step 2 of 4, saved. Continue with: vitrail train --resume {out}"
    assert (answer.code, answer.err.splitlines()[-1]) == (143, f"vitrail: {said}")
    assert vitrail("train", "--resume", out).code == 0
    assert len(bundle.list_members(out / "model")) == 3


@pytest.mark.wide
def test_the_ensemble_follows_a_fold_that_was_extended_and_is_left_alone_otherwise(vitrail, folds, tmp_path):
    out = shutil.copytree(folds, tmp_path / "folds")

    def models() -> list[tuple[str, str]]:
        pairs = zip(range(3), bundle.list_members(out / "model"), strict=True)
        return [
            (
                checksums.sha256(out / f"fold-{k}" / "model" / "model.safetensors"),
                checksums.sha256(copy / "model.safetensors"),
            )
            for k, copy in pairs
        ]

    made = (out / "model").stat().st_ino
    assert vitrail("train", "--resume", out).code == 0 and (out / "model").stat().st_ino == made
    assert vitrail("train", "--resume", out / "fold-1", "--extend", "--steps", 2).code == 0
    assert [own == copy for own, copy in models()] == [True, False, True]
    assert vitrail("train", "--resume", out).code == 0
    assert all(own == copy for own, copy in models())


@pytest.mark.wide
def test_H1_one_process_at_a_time_trains_folds(vitrail, folds, flowers, tmp_path):
    out = shutil.copytree(folds, tmp_path / "folds")
    with lock.Lock(out):
        for words in (("--resume", out), (flowers, *WORDS, "--out", out)):
            answer = vitrail("train", *words)
            assert answer.code == 2 and f"{out} is in use by process {os.getpid()}" in answer.err
    assert vitrail("train", "--resume", out).code == 0 and not (out / ".lock").exists()


@pytest.mark.wide
def test_one_fold_alone_is_a_run_of_its_own(vitrail, flowers, tmp_path):
    assert vitrail("train", flowers, *WORDS, "--data.fold", 1, "--out", tmp_path / "run").code == 0
    assert (tmp_path / "run" / "report.html").is_file() and not (tmp_path / "run" / "fold-0").exists()


@pytest.mark.wide
def test_a_dry_run_of_all_folds_shows_the_plan_of_the_first_with_its_share_of_the_minutes(vitrail, flowers):
    for words, minutes in ((("--minutes", 0.4), 0.2), ((), 5.0)):
        answer = vitrail("train", flowers, *TINY, "--folds", 2, *words, "--dry-run", "--full")
        assert answer.code == 0 and "# The plan of the first of 2 folds;" in answer.out
        assert f"\nminutes = {minutes} " in answer.out and "\nfolds = 2 " in answer.out and "\nfold = 0 " in answer.out


def test_what_folds_cannot_do_is_refused(vitrail, folds, flowers):
    answer = vitrail("train", flowers, *TINY, "--folds", 4, "--steps", 4, "--out", folds)
    assert answer.code == 2 and "holds the folds of another training" in answer.err
    refused = folds.parent / "refused"
    answer = vitrail("train", flowers, *WORDS, "--decisions.positive", "rose", "--out", refused)
    assert answer.code == 2 and "names one of two classes. Got 'rose'" in answer.err and not refused.exists()
    answer = vitrail("train", "--resume", folds, "--extend", "--steps", 2)
    assert answer.code == 2 and "go on as they were begun" in answer.err and "fold-0" in answer.err


@pytest.mark.wide
def test_a_list_of_suspects_is_kept_and_taken_by_exclude_and_poor_judges_write_none(vitrail, folds, flowers, tmp_path):
    path = folds / "suspects.csv"
    assert not path.exists()  # models of two steps are judges that know too little
    kept = "id,path,given,suggested,score,reason\ndisc/0.png,,disc,stripes,0.9,looks so\n"
    path.write_text(kept)
    answer = vitrail("train", "--resume", folds)
    assert answer.code == 0 and f"{path} is kept as it is" in answer.err and path.read_text() == kept
    answer = vitrail("train", flowers, *TINY, "--exclude", path, "--steps", 1, "--out", tmp_path / "run")
    assert answer.code == 0 and "Left out 1 picture" in answer.err
    path.unlink()
    answer = vitrail("train", "--resume", folds)
    assert "10 labels of 10 pictures judged by 3 models, each on what it has not seen" in answer.err
    assert "No label is listed: where the judges are sure they agree" in answer.err and not path.exists()


def test_folds_are_measured_on_the_answers_of_models_that_have_not_seen_the_pictures(vitrail, folds, flowers):
    told = json.loads(vitrail("evaluate", folds, "--json").out)
    assert told["metrics"] == json.loads((folds / "metrics-out-of-fold.json").read_text())
    assert vitrail("evaluate", folds).out.splitlines()[0].endswith(f"on {flowers.name}, split out-of-fold")
    answer = vitrail("evaluate", folds, "--corruptions", "films")
    assert answer.code == 2 and "only --by can be asked of those" in answer.err


@pytest.mark.wide
def test_the_ensemble_is_measured_on_an_official_test_split(vitrail, flowers, tmp_path):
    for split, numbers in (("train", "0123"), ("test", "4")):
        for kind in ("disc", "stripes"):
            (tmp_path / "parted" / split / kind).mkdir(parents=True)
            for number in numbers:
                shutil.copy(flowers / kind / f"{number}.png", tmp_path / "parted" / split / kind)
    out = tmp_path / "folds"
    assert vitrail("train", tmp_path / "parted", *TINY, "--folds", "2", "--steps", "2", "--out", out).code == 0
    together = rows_of(out / "predictions" / "ensemble-on-test.csv")
    alone = [rows_of(out / f"fold-{k}" / "predictions" / "test.csv") for k in range(2)]
    for row, *each in zip(together, *alone, strict=True):
        mean = np.mean([float(one["prob_disc"]) for one in each])
        assert float(row["prob_disc"]) == pytest.approx(mean, abs=1e-6)
    told = json.loads((out / "metrics-ensemble-on-test.json").read_text())
    assert told["n"] == 2 and told["split"] == "ensemble-on-test"
    assert {row["split"] for row in rows_of(out / "results.csv")} == {"out-of-fold", "ensemble-on-test"}
    page = (out / "report.html").read_text()
    assert "by the mean of all models" in page and "is measured on none" not in page
    assert vitrail("report", out, "--for", "dossier").code == 0
    assert "All together: Accuracy on 2 held-out pictures (ensemble-on-test)" in (out / "report.html").read_text()


def tables_of(vitrail, model, flowers, tmp_path) -> list[list[str]]:
    out = tmp_path / f"{Path(model).name}.csv"
    assert vitrail("predict", model, flowers, "--to", out).code == 0
    return list(csv.reader(out.read_text().splitlines()))


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_all_folds_become_one_file_that_answers_as_they_do_together(vitrail, folds, flowers, tmp_path, kind):
    run = shutil.copytree(folds, tmp_path / "run")
    answer = vitrail("export", run, "--to", kind)
    assert answer.code == 0, answer.err
    assert "own test split" in answer.out and "every decision is the same" in answer.out
    file = run / "exports" / f"model.{kind}"
    assert file.stat().st_size > sum(path.stat().st_size for path in run.glob("model/member-*/model.safetensors"))
    if kind == "onnx":
        ours, theirs = (tables_of(vitrail, model, flowers, tmp_path) for model in (run, file))
        places = [place for place, name in enumerate(ours[0]) if name.startswith("prob")]
        for one, other in zip(ours[1:], theirs[1:], strict=True):
            scores = [[float(row[place]) for place in places] for row in (one, other)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-5)
            assert [c for p, c in enumerate(one) if p not in places] == [
                c for p, c in enumerate(other) if p not in places
            ]


@pytest.mark.wide
@pytest.mark.needs_chromium
@pytest.mark.needs_onnxruntime_web
def test_all_folds_become_one_page_that_is_proved_against_them_together(vitrail, folds, tmp_path):
    runtime = os.environ["VITRAIL_ONNXRUNTIME_WEB"]
    out = tmp_path / "folds.html"
    answer = vitrail("export", folds, "--to", "web", "--out", out, "--runtime", runtime, "--prove", "--json")
    assert answer.code == 0, answer.err
    said = json.loads(answer.out)["browser"]["exact"]
    assert said["num_changed"] == 0 and said["difference"] < 1e-4 and said["num_images"] >= 2


def test_folds_are_no_other_library_s_model(vitrail, folds, tmp_path):
    answer = vitrail("export", folds, "--to", "timm", "--out", tmp_path / "timm")
    assert answer.code == 2 and "is an ensemble" in answer.err and "member-0" in answer.err
    assert not (tmp_path / "timm").exists()
