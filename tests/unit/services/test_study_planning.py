"""Sizes of studies from what a run has stored, and questions that are refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from stored_runs import store_run
from vitrail.cli.main import main
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.predictions import read_predictions_csv
from vitrail.run import Run
from vitrail.services.study_planning import StudyQuestion, plan_test
from vitrail.stats.intervals import effective_count
from vitrail.stats.study_size import count_for_roc_auc, count_for_share, mean_design_effect


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return store_run(tmp_path_factory.mktemp("study") / "run", n=600)


def stored(run):
    table = read_predictions_csv(run / "predictions" / "test.csv", "classification")
    return table, table.targets >= 0


def test_a_sensitivity_takes_as_many_positives_as_its_interval_needs(run):
    plan = plan_test(run, "sensitivity=0.95±0.03", "defect")
    table, known = stored(run)
    positives = int((table.targets == 1).sum())
    assert plan.counted == count_for_share(0.95, 0.03) and plan.split == "test"
    assert plan.images == -(-plan.counted * int(known.sum()) // positives)
    assert (plan.stored_images, plan.stored_counted) == (known.sum(), positives)
    assert plan.table().splitlines()[:2] == [
        "sensitivity 0.95 ± 0.03 for defect",
        f"pictures  {plan.images:,}, of which {plan.counted} with defect ({positives / known.sum():.1%}, as in test)",
    ]
    specific = plan_test(run, "specificity = 0.95 +- 0.03", "defect")
    assert specific.counted == plan.counted and specific.images < plan.images


def test_an_area_and_an_accuracy_are_of_all_images(run):
    table, known = stored(run)
    share = int((table.targets == 1).sum()) / int(known.sum())
    area, accuracy = plan_test(run, "auroc=0.9+/-0.02", "defect"), plan_test(run, "accuracy=0.9±0.01")
    assert area.images == count_for_roc_auc(0.9, 0.02, share) and accuracy.images == count_for_share(0.9, 0.01)
    assert area.groups is None and area.stored_reach > 0.02


def test_groups_are_counted_as_the_intervals_count_them(tmp_path):
    run = store_run(tmp_path / "run", n=600)
    groups = np.arange(600) // 3
    np.save(run / "groups.npy", groups)
    plan, (table, known) = plan_test(run, "sensitivity=0.95±0.03", "defect"), stored(run)
    positive = table.targets == 1
    worth = effective_count(groups[positive]) / positive.sum()
    assert plan.counted == -(-count_for_share(0.95, 0.03) // worth) > count_for_share(0.95, 0.03)
    assert plan.groups == -(-plan.images * 200 // known.sum())
    assert f"groups    {plan.groups:,}, with {plan.images / plan.groups:.1f} pictures each" in plan.table()
    difference = plan_test(run, "difference=0.02")
    right = (table.indices == table.targets)[known].astype(float)
    assert difference.images >= plan_test(store_run(tmp_path / "alone", n=600), "difference=0.02").images
    assert mean_design_effect(right, groups[known]) >= 1


def test_a_difference_to_another_run_counts_where_only_one_is_right(run, tmp_path):
    same = plan_test(run, "difference=0.02", against=run)  # never only one: at least the difference itself
    assert "On 2.0% of the pictures of test" in same.notes[0]
    assert same.images < plan_test(run, "difference=0.02").images
    other = store_run(tmp_path / "other", n=500)
    with pytest.raises(DataError, match=r"other are not of the same pictures \(test\)"):
        plan_test(run, "difference=0.02", against=other)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("precision=0.9±0.02", r"written as sensitivity=0\.95±0\.03"),
        ("sensitivity=0.95", r"has a width, such as ±0\.03"),
        ("difference=0.02±0.01", r"has no width: its power is 80 %"),
        ("auroc=1.2±0.02", r"lie between 0 and 1"),
        ("auroc=0.9±0", r"a width between 0 and 0\.5"),
        ("auroc=0.9.1±0.02", r"written as"),
        ("accuracy=0.5±0.00001", r"No study of less than a billion pictures"),
    ],
)
def test_what_is_no_question_is_refused(run, question, words):
    with pytest.raises(UsageError, match=words):
        plan_test(run, question)


def test_classes_that_are_not_there_and_tasks_without_classes_are_refused(run, tmp_path):
    with pytest.raises(UsageError, match=r"Of which of sound, defect\? Name it: --positive sound"):
        plan_test(run, "sensitivity=0.95±0.03")
    with pytest.raises(UsageError, match=r"--positive must be one of sound, defect\. Got 'crack'"):
        plan_test(run, "sensitivity=0.95±0.03", "crack")
    with pytest.raises(UsageError, match="An accuracy is of all classes"):
        plan_test(run, "accuracy=0.95±0.03", "defect")
    with pytest.raises(UsageError, match="--against is for a planned difference"):
        plan_test(run, "auroc=0.9±0.02", "defect", run)
    numbers = store_run(tmp_path / "numbers", "regression")
    for question in ("auroc=0.9±0.02", "accuracy=0.9±0.02"):
        with pytest.raises(UsageError, match="regression"):
            plan_test(numbers, question)


def test_labels_are_planned_one_by_one(tmp_path):
    run = store_run(tmp_path / "labels", "multilabel")
    assert plan_test(run, "auroc=0.9±0.02", "nodule").positive == "nodule"
    with pytest.raises(UsageError, match="An accuracy is of classes"):
        plan_test(run, "difference=0.02")


def test_the_command_line_and_python_give_the_same(run, capsys):
    assert main(["evaluate", str(run), "--plan-test", "auroc=0.9±0.02", "--positive", "defect", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    plan = Run(run).plan_test("auroc=0.9±0.02", positive="defect")
    assert told == {"model": str(run), **plan.to_json()}
    assert main(["evaluate", str(run), "--plan-test", "auroc=0.9±0.02", "--positive", "defect"]) == 0
    assert re.match(
        r"auroc 0.9 ± 0.02 for defect\npictures  [\d,]+\nnow       the 5\d\d pictures", capsys.readouterr().out
    )
    for words in (["holdout/", "--plan-test", "x"], ["--plan-test", "x", "--shortcuts"], ["--positive", "defect"]):
        assert main(["evaluate", str(run), *words]) == 2
    assert str(StudyQuestion.parse("auroc=0.9±0.02")) == "auroc 0.9 ± 0.02"
