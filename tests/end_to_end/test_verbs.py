"""Every verb on ten drawn pictures, for people and for machines."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import datetime

import pytest
import torch

from end_to_end.conftest import TINY
from vitrail.files import safetensors_file
from vitrail.train import fit as training


def test_a_training_ends_with_what_a_person_wants_to_know(vitrail, flowers, tmp_path):
    run = tmp_path / "run"
    answer = vitrail("train", flowers, *TINY, "--steps", 3, "--out", run)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0].startswith("Accuracy on 2 held-out pictures (test): ") and "95 % interval" in lines[0]
    assert lines[1:] == [
        f"Run     {run}",
        f"Report  {run / 'report.html'}",
        f"Next    vitrail train --resume {run} --extend --minutes 10",
        "Few     2 held-out pictures tell little; --folds 5 holds out every picture once.",
    ]
    assert "flowers" in answer.err and "step 3/3  loss " in answer.err


def test_a_training_for_machines_prints_nothing_but_json(vitrail, flowers, tmp_path):
    answer = vitrail("train", flowers, *TINY, "--steps", 2, "--out", tmp_path / "run", "--json")
    told = json.loads(answer.out)
    assert told["run"] == str(tmp_path / "run") and told["metrics"]["n"] == 2


@pytest.mark.wide
def test_the_default_run_folder_tells_date_source_and_model(vitrail, flowers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert vitrail("train", flowers, *TINY, "--steps", 2).code == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.endswith(f"-{flowers.name}-vit_mu_patch8_16")


def test_a_dry_run_prints_a_plan_that_can_be_followed(vitrail, flowers, tmp_path):
    dry = vitrail("train", flowers, *TINY, "--steps", 3, "--dry-run", "--full", "--out", tmp_path / "run")
    assert dry.code == 0 and not (tmp_path / "run").exists()
    assert "steps = 3" in dry.out and "# asked for" in dry.out
    assert f"\n# {flowers.name}: 2 classes, " in dry.out, "what is told before a training is a comment"
    (tmp_path / "plan.toml").write_text(dry.out)
    followed = vitrail("train", "--plan", tmp_path / "plan.toml", "--out", tmp_path / "run")
    assert followed.code == 0, followed.err


@pytest.mark.wide
def test_the_same_plan_gives_the_same_weights(vitrail, run_folder, tmp_path):
    answer = vitrail("train", "--plan", run_folder / "plan.toml", "--out", tmp_path / "again")
    assert answer.code == 0, answer.err
    first = safetensors_file.load_tensors(run_folder / "model" / "model.safetensors")
    second = safetensors_file.load_tensors(tmp_path / "again" / "model" / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.wide
def test_a_plan_can_be_changed_by_flags_and_names(vitrail, run_folder, tmp_path):
    plan = ("train", "--plan", run_folder / "plan.toml", "--json", "--dry-run")
    told = json.loads(vitrail(*plan, "--steps", 5, "--seed", 7, "--recipe.lr", "0.01").out)["plan"]
    assert (told["recipe"]["steps"], told["seed"], told["recipe"]["lr"]) == (5, 7, 0.01)


@pytest.mark.wide
def test_a_dry_run_of_a_written_plan_says_what_it_would_take_and_makes_nothing(
    vitrail, run_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = ("train", "--plan", run_folder / "plan.toml", "--dry-run")
    answer = vitrail(*words, "--json")
    assert answer.code == 0, answer.err
    predicted = json.loads(answer.out)["predicted"]
    assert predicted["training"] > 0 and predicted["memory"] > 0
    assert "step " not in answer.err and list(tmp_path.iterdir()) == []
    (tmp_path / "plan.toml").write_text(vitrail(*words, "--full").out)
    again = vitrail("train", "--plan", tmp_path / "plan.toml", "--dry-run", "--json")
    assert json.loads(again.out)["plan"] == json.loads(answer.out)["plan"]


@pytest.mark.wide
def test_a_run_of_the_same_second_has_a_folder_of_its_own(vitrail, run_folder, tmp_path, monkeypatch):
    class Still(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 25, 3, 15, 15)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "datetime", Still)
    for _ in range(3):
        answer = vitrail("train", "--plan", run_folder / "plan.toml", "--steps", 1)
        assert answer.code == 0, answer.err
    one, two, three = sorted(folder.name for folder in (tmp_path / "runs").iterdir())
    assert one.startswith("20261125-031515-flowers") and (two, three) == (f"{one}-2", f"{one}-3")


@pytest.mark.wide
def test_data_and_compute_fields_reach_the_training(vitrail, flowers):
    fields = ("--data.test_fraction", "0.4", "--compute.precision", "bfloat16")
    answer = vitrail("train", flowers, *TINY, *fields, "--steps", 2, "--dry-run", "--json")
    assert answer.code == 0, answer.err
    plan = json.loads(answer.out)["plan"]
    assert (plan["data"]["test_fraction"], plan["compute"]["precision"]) == (0.4, "bfloat16")
    assert plan["compute"]["threads"] == 1 == torch.get_num_threads()


def test_every_plan_field_is_listed(vitrail):
    page = vitrail("train", "--help-plan").out
    assert re.search(r"^  --recipe\.muon_lr X +Peak learning rate of Muon\. \[0\.02\]$", page, re.MULTILINE)
    assert re.search(r"^  --recipe\.optimizer muon\|adamw", page, re.MULTILINE)
    listed = json.loads(vitrail("train", "--help-plan", "--json").out)
    assert len(listed) == sum(line.startswith("  --") for line in page.splitlines()) > 50
    assert not [field["name"] for field in listed if not field["doc"]]


def test_resuming_a_finished_run_says_so(vitrail, run_folder):
    answer = vitrail("train", "--resume", run_folder)
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == f"{run_folder} is complete already; its report is {run_folder / 'report.html'}.\n"


def test_evaluating_gives_the_figures_of_the_run(vitrail, run_folder):
    told = json.loads(vitrail("evaluate", run_folder, "--json").out)["metrics"]
    kept = json.loads((run_folder / "metrics-test.json").read_text())
    assert (told["split"], told["n"], told["accuracy"]) == ("test", kept["n"], kept["accuracy"])
    assert told["log_loss"] == pytest.approx(kept["log_loss"], abs=1e-5)


@pytest.mark.wide
def test_a_run_compared_with_itself_is_no_better(vitrail, run_folder):
    answer = vitrail("evaluate", run_folder, "--against", run_folder)
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[-1].startswith(f"No evidence of a difference between {run_folder} and {run_folder}")
    told = json.loads(vitrail("evaluate", run_folder, "--against", run_folder, "--json").out)
    assert [one["name"] for one in told["comparison"]["differences"]] == ["accuracy", "log loss"]
    assert {one["p_value"] for one in told["comparison"]["differences"]} == {1.0}


@pytest.mark.wide
def test_a_model_is_not_compared_on_pictures_that_the_other_has_learnt_from(vitrail, run_folder, flowers):
    answer = vitrail("evaluate", run_folder, flowers, "--against", run_folder)
    assert answer.code == 0, answer.err
    assert re.search(
        r"^\d+ pictures that .* has learnt from are left out; \d+ are new to both\.$", answer.err, re.MULTILINE
    )
    answer = vitrail("evaluate", run_folder, "--split", "train", "--against", run_folder)
    assert (answer.code, answer.out) == (3, "")
    assert "has learnt from these" in answer.err
    answer = vitrail("evaluate", run_folder, "--against", "nowhere")
    assert answer.code == 2 and answer.err.startswith("vitrail: There is no model at nowhere. Answers need one")


def test_figures_of_training_pictures_carry_a_warning_wherever_they_go(vitrail, run_folder):
    for split in ("train", "all"):
        answer = vitrail("evaluate", run_folder, "--split", split)
        assert re.search(r"^WARNING  .* has learnt from \d+ of these \d+ pictures", answer.out, re.MULTILINE)
        told = json.loads(vitrail("evaluate", run_folder, "--split", split, "--json").out)
        assert "so the figures are too good" in told["warning"]
        refused = vitrail("evaluate", run_folder, "--split", split, "--by", "all", "--keep")
        assert refused.code == 2 and "it has learnt from those of --split" in refused.err
    assert "held-out" not in vitrail("evaluate", run_folder, "--split", "train").out
    assert "were fitted to" in vitrail("evaluate", run_folder, "--split", "val").out
    plain = vitrail("evaluate", run_folder)
    assert "WARNING" not in plain.out and "warning" not in json.loads(vitrail("evaluate", run_folder, "--json").out)


def test_evaluating_another_split_and_another_source(vitrail, run_folder, flowers):
    assert "split val" in vitrail("evaluate", run_folder, "--split", "val").out
    answer = vitrail("evaluate", run_folder / "model", flowers)
    assert "split all" in answer.out and "n = 10" in answer.out


def test_predictions_are_rows_of_csv(vitrail, run_folder, flowers, tmp_path):
    answer = vitrail("predict", run_folder, flowers / "disc", flowers / "stripes" / "0.png")
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert [row["id"] for row in rows] == [*(f"disc/{number}.png" for number in range(5)), "stripes/0.png"]
    assert all(abs(float(row["prob_disc"]) + float(row["prob_stripes"]) - 1) < 1e-6 for row in rows)
    kept = vitrail("predict", run_folder, flowers / "disc", "--to", tmp_path / "rows.csv")
    assert kept.out == f"5 rows written to {tmp_path / 'rows.csv'}\n"
    for row, again in zip(rows, csv.DictReader(io.StringIO((tmp_path / "rows.csv").read_text())), strict=False):
        shares = [name for name in row if name.startswith("prob")]  # of batches of six and of five
        assert all(abs(float(row.pop(name)) - float(again.pop(name))) < 1e-6 for name in shares)
        assert again == row | {"id": row["id"].removeprefix("disc/")}  # names of one folder need no folder


def test_predictions_for_machines_have_the_same_columns(vitrail, run_folder, flowers):
    (row,) = json.loads(vitrail("predict", run_folder, flowers / "disc" / "0.png", "--json").out)
    header = vitrail("predict", run_folder, flowers / "disc" / "0.png").out.splitlines()[0]
    assert list(row) == header.split(",")


def test_inspecting_a_run_walks_a_picture_and_draws_three_figures(vitrail, run_folder, flowers, tmp_path):
    picture = flowers / "disc" / "0.png"
    figures = ("--figures", tmp_path, "--picture", picture, "--token", 4)
    answer = vitrail("inspect", run_folder, "--walk", picture, *figures)
    assert answer.code == 0, answer.err
    assert "tokens      5 (the class token and 4 patches), 32 numbers each" in answer.out
    assert " 1  decode" in answer.out and "data/decoding/decode.py" in answer.out
    for name in ("patch-grid.png", "token-4.png", "positions.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_inspecting_a_name_counts_its_parameters(vitrail):
    told = json.loads(vitrail("inspect", "xray_vit_patch16_224", "--json").out)
    assert (told["parameters"], told["tokens"], told["grid"]) == (23_846_410, 197, [14, 14])
    assert sum(told["parts"].values()) == told["parameters"]


@pytest.mark.wide
def test_inspecting_a_name_draws_the_picture_that_comes_along(vitrail, tmp_path):
    answer = vitrail("inspect", "explained_vit_patch20_60x100", "--figures", tmp_path, "--token", 12, "--cmap", "gray")
    assert answer.code == 0, answer.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["patch-grid.png", "positions.png", "token-12.png"]


def test_the_report_is_built_again(vitrail, run_folder):
    before = (run_folder / "report.html").read_bytes()
    (run_folder / "report.html").unlink()
    assert vitrail("report", run_folder).out == f"{run_folder / 'report.html'}\n"
    assert (run_folder / "report.html").read_bytes() == before


def test_check_counts_and_exits_with_zero(vitrail, flowers):
    answer = vitrail("check", flowers, "--json")
    told = json.loads(answer.out)
    assert (answer.code, told["pictures"], told["bad"], told["stops_a_training"]) == (0, 10, [], False)


def test_doctor_gives_a_reason_for_every_choice(vitrail):
    facts = {fact["name"]: fact for fact in json.loads(vitrail("doctor", "--json").out)}
    for name in ("device", "precision", "threads", "compile", "attention, training", "attention, inference"):
        assert facts[name]["value"] and facts[name]["reason"]
    assert facts["torch"]["value"] == torch.__version__
    assert "device" in vitrail("doctor").out


@pytest.mark.wide
def test_a_manifest_with_groups_is_trained_on_and_another_is_evaluated(vitrail, flowers, tmp_path):
    lines = [f"{kind}/{number}.png,{kind},{number}" for kind in ("disc", "stripes") for number in range(5)]
    (flowers / "bed.csv").write_text("\n".join(["path,kind,bed", *lines]) + "\n")
    (tmp_path / "exclude.csv").write_text("id\ndisc/0.png\n")
    asked = ("--group", "bed", "--exclude", tmp_path / "exclude.csv", "--data.targets", "kind")
    run = tmp_path / "run"
    answer = vitrail("train", flowers / "bed.csv", *TINY, *asked, "--steps", 2, "--out", run)
    (flowers / "bed.csv").rename(tmp_path / "bed.csv")
    assert answer.code == 0, answer.err
    assert "Left out 1 picture that" in answer.err
    beds = [set(), set()]
    for line in (run / "splits.csv").read_text().splitlines()[1:]:
        name, split, _ = line.split(",")
        beds[split == "train"].add(name[-5])
    assert beds[0] and beds[1] and not beds[0] & beds[1]
    (flowers / "few.csv").write_text(
        "\n".join(["path,other,kind", "disc/4.png,x,disc", "stripes/1.png,x,stripes", "stripes/2.png,x,stripes"])
    )
    told = json.loads(vitrail("evaluate", run, flowers / "few.csv", "--json").out)
    (flowers / "few.csv").unlink()
    assert told["metrics"]["n"] == 3
