"""Two labels with blanks, and a number: the same verbs as for classes, and answers that are worth something."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

import vitrail as package
from end_to_end.drawn_tasks import STEPS, TINY, draw_labels, draw_numbers
from vitrail.cli.main import main
from vitrail.evaluate.predictions import MultilabelPredictions, RegressionPredictions
from vitrail.files import safetensors_file
from vitrail.train import loop


def trained(source: Path, folder: Path) -> Path:
    before = torch.get_num_threads()
    assert main(["train", str(source), *TINY, "--steps", str(STEPS), "--out", str(folder)]) == 0
    torch.set_num_threads(before)
    return folder


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_labels(tmp_path_factory.mktemp("films"))


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_numbers(tmp_path_factory.mktemp("cells"))


@pytest.fixture(scope="module")
def labels_run(films: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(films, tmp_path_factory.mktemp("runs") / "labels")


@pytest.fixture(scope="module")
def numbers_run(cells: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(cells, tmp_path_factory.mktemp("runs") / "numbers")


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def figures_of(run: Path) -> dict:
    return json.loads((run / "metrics-test.json").read_text())


def test_labels_are_learnt_and_every_figure_can_be_had_from_the_file_alone(labels_run):
    figures, rows = figures_of(labels_run), rows_of(labels_run / "predictions" / "test.csv")
    cuts = json.loads((labels_run / "model" / "config.json").read_text())["info"]["decisions"]["thresholds"]
    assert figures["auroc"] > 0.9 and figures["counted"] == 2
    areas = []
    for one, cut in zip(figures["per_label"], cuts, strict=True):
        name = one["name"]
        known = [row for row in rows if row["target"] and f"?{name}" not in row["target"].split("|")]
        truth = [name in row["target"].split("|") for row in known]
        chances = [float(row[f"prob_{name}"]) for row in known]
        assert (one["n"], one["positives"]) == (len(known), sum(truth)) and one["n"] < len(rows)
        areas.append(sk.roc_auc_score(truth, chances))
        assert one["auroc"] == pytest.approx(areas[-1])
        answered = [name in row["label"].split("|") for row in known]
        assert answered == [chance >= cut for chance in chances]
        assert one["f1"] == pytest.approx(sk.f1_score(truth, answered))
    assert figures["auroc"] == pytest.approx(np.mean(areas))


@pytest.mark.wide
def test_numbers_are_learnt_in_their_unit_and_every_figure_can_be_had_from_the_file_alone(numbers_run):
    (one,) = figures_of(numbers_run)["per_column"]
    rows = [row for row in rows_of(numbers_run / "predictions" / "test.csv") if row["target_power"]]
    truth = [float(row["target_power"]) for row in rows]
    values = [float(row["value_power"]) for row in rows]
    assert one["r2"] > 0.5 and one["mae"] < one["constant_mae"] and one["spearman"] > 0.7
    assert one["r2"] == pytest.approx(sk.r2_score(truth, values)) and one["n"] == len(rows)
    assert one["mae"] == pytest.approx(sk.mean_absolute_error(truth, values))
    always = [one["constant"]] * len(truth)
    assert 295 < one["constant"] < 305
    assert one["constant_mae"] == pytest.approx(sk.mean_absolute_error(truth, always), rel=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kind", "opening", "curve"),
    [
        ("labels", r"AUROC on 5\d held-out pictures \(test\): 0\.9\d+ \(mean of 2 labels, 95 % interval", "val_auroc"),
        ("numbers", r"Mean absolute error of power on 4\d held-out pictures \(test\): \d", "val_r2"),
    ],
)
def test_a_training_shows_its_figure_on_the_way_and_at_the_end(kind, opening, curve, films, cells, vitrail, tmp_path):
    answer = vitrail(
        "train", {"labels": films, "numbers": cells}[kind], *TINY, "--steps", 120, "--out", tmp_path / "run"
    )
    assert answer.code == 0, answer.err
    assert re.match(opening, answer.out) and re.search(r", after \d+ s of training\.$", answer.out.splitlines()[0])
    name = {"labels": "AUROC", "numbers": "R2"}[kind]
    assert re.search(rf"step 60  validation {name} -?\d\.\d{{3}}  loss \d", answer.err)
    recorded = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in recorded if curve in row] == [60, 120]


@pytest.mark.wide
def test_evaluate_repeats_the_figures_and_measures_another_manifest(vitrail, labels_run, numbers_run, tmp_path):
    for run in (labels_run, numbers_run):
        again = json.loads(vitrail("evaluate", run, "--json").out)["metrics"]
        told = figures_of(run)
        assert again.keys() == told.keys() and again["n"] == told["n"]
    assert again["per_column"][0]["r2"] == pytest.approx(told["per_column"][0]["r2"], abs=1e-3)
    fresh = draw_labels(tmp_path / "fresh", n=60, seed=7)
    found = vitrail("evaluate", labels_run, fresh)
    assert found.code == 0 and found.out.splitlines()[1].startswith("AUROC             0.9"), found.err
    other = vitrail("evaluate", labels_run, draw_numbers(tmp_path / "other", n=30))
    assert other.code == 3 and "has labels that the model does not know" in other.err


@pytest.mark.wide
def test_predictions_have_the_columns_of_their_task(vitrail, labels_run, numbers_run, films, tmp_path):
    pictures = sorted((films.parent / "pictures").iterdir())[:5]
    rows = list(csv.DictReader(io.StringIO(vitrail("predict", labels_run, *pictures).out)))
    assert list(rows[0]) == [
        "path", "id", "split", "target", "label", "probability", "prob_bars", "prob_nodule", "abstain",
    ]  # fmt: skip
    assert len(rows) == 5 and {row["target"] for row in rows} == {""}
    assert vitrail("predict", numbers_run, *pictures, "--to", tmp_path / "a.csv").code == 0
    assert list(rows_of(tmp_path / "a.csv")[0]) == ["path", "id", "split", "target_power", "value_power", "abstain"]
    told = json.loads(vitrail("predict", numbers_run, pictures[0], "--json").out)
    assert 200 < told[0]["value_power"] < 400 and told[0]["target_power"] is None
    assert isinstance(json.loads(vitrail("predict", labels_run, pictures[0], "--json").out)[0]["label"], list)


@pytest.mark.wide
def test_every_door_gives_the_same_answer(labels_run, numbers_run):
    for run, column in ((labels_run, "prob_nodule"), (numbers_run, "value_power")):
        stored = rows_of(run / "predictions" / "test.csv")[:4]
        answers = package.open(run).predict([row["path"] for row in stored])
        assert isinstance(answers, MultilabelPredictions | RegressionPredictions)
        again = [row[column] for row in answers.records()]
        np.testing.assert_allclose(again, [float(row[column]) for row in stored], rtol=0.01)


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_a_run_that_is_broken_off_goes_on_to_the_same_bits(kind, films, cells, vitrail, tmp_path, monkeypatch):
    from vitrail.errors import DataError
    from vitrail.train import trainer

    source, steps = {"labels": films, "numbers": cells}[kind], loop.train_steps

    def broken(*words, **more):
        for step in steps(*words, **more):
            yield step
            if step.step == 13:
                raise DataError("The disk is gone.")

    usual = ("train", source, *TINY, "--steps", 30, "--out")
    assert vitrail(*usual, tmp_path / "whole").code == 0
    monkeypatch.setattr(trainer, "train_steps", broken)
    assert vitrail(*usual, tmp_path / "broken").code == 3
    monkeypatch.setattr(trainer, "train_steps", steps)
    assert vitrail("train", "--resume", tmp_path / "broken").code == 0
    first, second = (
        safetensors_file.load_tensors(tmp_path / run / "model" / "model.safetensors") for run in ("whole", "broken")
    )
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    whole, again = ((tmp_path / run / "predictions" / "test.csv").read_bytes() for run in ("whole", "broken"))
    assert whole == again


@pytest.mark.wide
def test_the_report_holds_the_figures_and_is_rebuilt_to_the_same_bytes(vitrail, labels_run, numbers_run):
    for run in (labels_run, numbers_run):
        before = (run / "report.html").read_bytes()
        (run / "report.html").unlink()
        assert vitrail("report", run).code == 0
        assert (run / "report.html").read_bytes() == before
    page, figures = (labels_run / "report.html").read_text(), figures_of(labels_run)
    assert f'<div class="figure">{figures["auroc"]:.3f}</div>' in page and 'class="chart dots"' in page
    assert all(f'<td class="n">{one["auroc"]:.3f}</td>' in page for one in figures["per_label"])
    page, (one,) = (numbers_run / "report.html").read_text(), figures_of(numbers_run)["per_column"]
    assert f'<div class="figure">± {one["mae"]:.3g}</div>' in page and page.count('class="dot points"') == 2 * one["n"]
    assert f"Always saying {one['constant']:.4g}" in page and "<img " in page


@pytest.mark.wide
def test_the_model_card_says_what_the_outputs_mean(labels_run, numbers_run):
    assert "any of 2 labels" in (labels_run / "model" / "README.md").read_text()
    card = (labels_run / "model" / "README.md").read_text()
    assert "the sigmoid of its output" in card and "and is answered from its threshold on (`bars` 0." in card
    scale = json.loads((numbers_run / "model" / "config.json").read_text())["info"]["scaling"]
    card = (numbers_run / "model" / "README.md").read_text()
    assert f"{scale['deviation'][0]:.6g} x output + {scale['mean'][0]:.6g}" in card


@pytest.mark.wide
def test_mixed_pictures_have_mixed_targets_and_train_too(vitrail, films, cells, tmp_path):
    for number, source in enumerate((films, cells)):
        mixing = ("--recipe.mixup", "0.5", "--recipe.cutmix", "1")
        answer = vitrail("train", source, *TINY, *mixing, "--steps", 4, "--out", tmp_path / str(number))
        assert answer.code == 0, answer.err
    refused = vitrail(
        "train", cells, *TINY, "--recipe.label_smoothing", "0.1", "--steps", 4, "--out", tmp_path / "smooth"
    )
    assert (
        refused.code == 2
        and "recipe.label_smoothing softens classes and labels, and this task is regression" in refused.err
    )


@pytest.mark.wide
@pytest.mark.parametrize(
    ("task", "kind"), [("multilabel", MultilabelPredictions), ("regression", RegressionPredictions)]
)
def test_python_objects_are_fitted_answered_measured_and_exported(task, kind, threads_kept, tmp_path):
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 256, (60, 16, 16), dtype=np.uint8)
    answers = generator.integers(0, 2, (60, 2)).astype(np.float32)
    answers[::5, 1] = np.nan
    given = (pictures, answers)
    run = package.fit(given, model="vit_mu_patch8_16", steps=2, task=task, out=tmp_path / "run", quiet=True)
    assert isinstance(run.predict(list(pictures[:2])), kind)
    assert run.evaluate().split == "test"
    with pytest.warns(UserWarning) as warned:
        assert run.evaluate(given, split="all").n == 60
    seen, empty = sorted(str(one.message) for one in warned)  # the first begins with the run's path
    assert "has learnt from 42 of these 60 pictures" in seen and empty.startswith("12 of 120 ")
    assert run.export("timm").is_dir() and package.open(tmp_path / "run").predictor.task == task
