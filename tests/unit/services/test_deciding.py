"""Decisions fitted to what a run has stored: as a training would have fitted them, kept, put to use, refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stored_runs
import vitrail
from stored_runs import draw_outputs, store_run, table_of
from vitrail.checkpoints import bundle
from vitrail.cli.main import main
from vitrail.errors import DamagedFileError, DataError, UsageError
from vitrail.evaluate.decision_figures import apply_decisions
from vitrail.evaluate.decisions import Decisions, fit_decisions
from vitrail.evaluate.predictions import concat_predictions, read_predictions_csv
from vitrail.evaluate.thresholds import DecisionSettings
from vitrail.files import checksums
from vitrail.predict.predictor import Predictor
from vitrail.services import deciding
from vitrail.services.deciding import DecisionRequest, decide, fit_new_decisions, open_stored_run

NAMES = stored_runs.NAMES
POSITIVE = DecisionSettings(positive="defect", threshold_rule="cost 3")
LIKE_A_TRAINING = [
    ("classification", 2, {"rule": "cost 7.65", "positive": "defect"},
     {"threshold_rule": "cost 7.65", "positive": "defect"}),
    ("classification", 2, {"rule": "ppv 0.8", "positive": "sound"}, {"threshold_rule": "ppv 0.8", "positive": "sound"}),
    ("classification", 5, {"abstain": 0.1, "alpha": 0.1}, {"abstain_fraction": 0.1, "conformal_alpha": 0.1}),
    ("classification", 4, {"alpha": 0.02}, {"conformal_alpha": 0.02}),
    ("multilabel", 3, {"rule": "sensitivity 0.95"}, {"threshold_rule": "sensitivity 0.95"}),
    ("multilabel", 3, {"rule": "youden"}, {"threshold_rule": "youden"}),
    ("multilabel", 3, {"rule": "half"}, {"threshold_rule": "half"}),
    ("regression", 1, {"alpha": 0.2}, {"conformal_alpha": 0.2}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "K", "asked", "planned", "ordered"),
    [
        (*case, ordered)
        for case in LIKE_A_TRAINING
        for ordered in (False, True)
        if not ordered or (case[0] == "classification" and case[1] > 2)  # only several classes have an order
    ],
)
def test_thresholds_and_decisions_are_those_of_a_training_with_the_same_rule(
    tmp_path, task, K, asked, planned, ordered
):
    names = tuple(f"grade{k}" for k in range(K)) if K > 2 else NAMES[task]
    run = store_run(tmp_path / "run", task, K=K, settings=DecisionSettings(ordered=ordered))
    stored = open_stored_run(run)
    fitted, _ = fit_new_decisions(stored, DecisionRequest(**asked))
    drawn = [draw_outputs(task, 400, seed, len(names)) for seed in (0, 1)]
    trained = fit_decisions(task, DecisionSettings(**planned, ordered=ordered), names, *drawn[0])
    assert fitted == trained
    for split, each in zip(("val", "test"), drawn, strict=True):
        expected = table_of(task, names, each, trained, split)
        assert apply_decisions(stored.tables[split], fitted).records() == expected.records()


def test_the_training_rule_is_found_again(tmp_path):
    run = store_run(tmp_path / "run", settings=POSITIVE)
    stored = open_stored_run(run)
    assert fit_new_decisions(stored, DecisionRequest(rule="cost 3"))[0] == stored.trained == stored.current
    result = decide(run, DecisionRequest())
    assert result.new is None and result.in_use == "training" and result.miss_cost == 3
    figures = result.splits["test"].old
    (label,) = figures.labels
    assert label.name == "defect" and label.threshold == stored.trained.thresholds[0]
    table = read_predictions_csv(run / "predictions" / "test.csv", "classification")
    known = table.targets >= 0
    assert label.misses == ((table.targets == 1) & (table.indices == 0)).sum()
    assert label.false_alarms == ((table.targets == 0) & (table.indices == 1)).sum()
    assert figures.cost.value == pytest.approx(1000 * (3 * label.misses + label.false_alarms) / known.sum())
    assert figures.cost.interval.low < figures.cost.value < figures.cost.interval.high


@pytest.mark.wide
def test_test_labels_change_no_threshold(tmp_path):
    run = store_run(tmp_path / "run", "multilabel")
    request = DecisionRequest(rule="f1", prevalence={"bars": 0.02})
    before = decide(run, request)
    path = run / "predictions" / "test.csv"
    test = read_predictions_csv(path, "multilabel")
    replace(test, targets=1 - test.targets).write_csv(path)
    after = decide(run, request)
    assert after.new == before.new and after.optimism == before.optimism
    assert after.splits["val"] == before.splits["val"] and after.splits["test"] != before.splits["test"]


@pytest.mark.wide
def test_stated_thresholds_stand_beside_fitted_ones(tmp_path):
    run = store_run(tmp_path / "run", "multilabel", K=3)
    free, fixed = (fit_new_decisions(open_stored_run(run), DecisionRequest(rule="f1", at=at))[0]
                   for at in ({}, {"grade1": 0.3}))  # fmt: skip
    assert fixed.thresholds == (free.thresholds[0], 0.3, free.thresholds[2])
    assert fixed.rule == "f1, grade1 at 0.3" and fixed.chosen == (True,) * 3
    changed = decide(run, DecisionRequest(at={"grade1": 0.3})).splits["val"].changed
    chances = open_stored_run(run).validation.probabilities[:, 1]
    assert changed == ((chances >= free.thresholds[1]) != (chances >= 0.3)).sum() > 0
    two = store_run(tmp_path / "two")
    assert decide(two, DecisionRequest(at={"defect": 0.3})).new.positive == "defect"


def test_a_kept_decision_is_followed_from_the_moment_it_is_put_to_use(tmp_path):
    run = store_run(tmp_path / "run", settings=POSITIVE)
    trained = Predictor.open(run).decisions
    kept = decide(run, DecisionRequest(rule="sensitivity 0.95"), keep="clinic", by="A. Meier")
    assert kept.path == run / "model" / "decisions" / "clinic.json"
    assert (kept.in_use, kept.kept) == ("training", ("clinic",)) and Predictor.open(run).decisions == trained
    content = json.loads(kept.path.read_text())
    assert content["by"] == "A. Meier" and content["request"] == {"rule": "sensitivity 0.95"}
    assert content["data"]["fingerprint"] == "f" * 64 and content["data"]["validation"]["n"] == 400
    assert content["figures"]["test"]["labels"][0]["sensitivity"].keys() == {"value", "low", "high"}
    after = decide(run, DecisionRequest(), use="clinic", by="A. Meier")
    assert after.in_use == "clinic" and after.old == replace(kept.new, version="clinic")
    assert Predictor.open(run).decisions == replace(kept.new, version="clinic")
    both = decide(run, DecisionRequest(rule="youden"), keep="line.2", use="line.2")
    assert both.in_use == "line.2" and both.kept == ("clinic", "line.2")
    assert decide(run, DecisionRequest(), use="training").in_use == "training"
    assert Predictor.open(run).decisions == trained
    records = [json.loads(path.read_text()) for path in sorted((run / "model" / "decisions" / "use").iterdir())]
    assert [(one["decision"], one["by"]) for one in records] == [
        ("clinic", "A. Meier"), ("line.2", ""), ("training", ""),
    ]  # fmt: skip


def test_nothing_is_overwritten_and_the_manifest_follows(tmp_path):
    run = store_run(tmp_path / "run", settings=POSITIVE)
    decide(run, DecisionRequest(rule="f1"), keep="clinic")
    before = (run / "model" / "decisions" / "clinic.json").read_bytes()
    with pytest.raises(UsageError, match=r"clinic\.json is kept already and is not overwritten\. Choose another name"):
        decide(run, DecisionRequest(rule="youden"), keep="clinic")
    assert (run / "model" / "decisions" / "clinic.json").read_bytes() == before
    assert "decisions/clinic.json" in checksums.verify_manifest(run / "model")


def test_what_a_crash_leaves_before_the_manifest_does_not_count(tmp_path):
    run = store_run(tmp_path / "run", settings=POSITIVE)
    folder = run / "model" / "decisions" / "use"
    folder.mkdir(parents=True)
    (folder / "0001.json").write_text('{"decision": "clinic"}')
    (folder.parent / "clinic.json").write_text("half a fi")
    assert bundle.read_bundle_info(run / "model").decision == "training"
    assert decide(run, DecisionRequest(rule="f1"), keep="clinic", use="clinic").in_use == "clinic"
    (run / "model" / "more.json").write_text("{}")
    with pytest.raises(DamagedFileError, match="not listed"):
        bundle.read_bundle_info(run / "model")


def damage(run: Path, change: dict) -> None:
    """Change a kept decision, and the manifest with it."""
    path = run / "model" / "decisions" / "clinic.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    (run / "model" / "manifest.json").unlink()
    checksums.write_manifest(run / "model")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "multilabel"}, r"decides multilabel of sound, defect, and the model answers classification"),
        (
            {"classes": ["cat", "dog"]},
            r"decides classification of cat, dog, and the model answers classif",
        ),
        pytest.param(
            {"format": 2}, r"decision format 2, expected at most 1\. Install a newer vitrail", marks=pytest.mark.wide
        ),
        ({"decisions": {"temperature": [0.0]}}, r"decisions must be about classification of sound, defect"),
        pytest.param({"decisions": {"threshold": [0.5]}}, r"threshold", marks=pytest.mark.wide),
        pytest.param({"decisions": 3}, r"holds no decisions", marks=pytest.mark.wide),
        ({"data": {}}, r"was fitted to other data than this model's"),
        ({"data": 3}, r"was fitted to other data than this model's"),
    ],
)
def test_a_damaged_decision_or_one_of_another_task_is_not_put_to_use(tmp_path, change, message):
    run = store_run(tmp_path / "run", settings=POSITIVE)
    decide(run, DecisionRequest(rule="f1"), keep="clinic")
    damage(run, change)
    with pytest.raises(DamagedFileError, match=message):
        decide(run, DecisionRequest(), use="clinic")
    assert decide(run, DecisionRequest()).in_use == "training"


def test_a_flipped_byte_in_the_decision_in_use_is_found(tmp_path):
    run = store_run(tmp_path / "run", settings=POSITIVE)
    path = decide(run, DecisionRequest(rule="f1"), keep="clinic", use="clinic").path
    path.write_text(path.read_text().replace("defect", "defeat", 1))
    with pytest.raises(DamagedFileError, match=r"Checksum mismatch in .*clinic\.json"):
        Predictor.open(run)


def flip(path: Path) -> None:
    path.write_text(path.read_text().replace("e", "a", 1))


DAMAGE = {
    "a flipped byte": lambda run: flip(run / "model" / "decisions" / "clinic.json"),
    "no file": lambda run: (run / "model" / "decisions" / "clinic.json").unlink(),
    "another task": lambda run: damage(run, {"task": "multilabel"}),
    "a newer format": lambda run: damage(run, {"format": 2}),
    "which was in use": lambda run: flip(run / "model" / "decisions" / "use" / "0002.json"),
}


@pytest.mark.wide
@pytest.mark.parametrize("done", DAMAGE)
def test_a_damaged_decision_in_use_is_left_for_another_one(tmp_path, capsys, done):
    run = store_run(tmp_path / "run", settings=POSITIVE)
    trained = Predictor.open(run).decisions
    decide(run, DecisionRequest(rule="youden"), keep="other", use="other")
    decide(run, DecisionRequest(rule="f1"), keep="clinic", use="clinic")
    DAMAGE[done](run)
    with pytest.raises(DamagedFileError):
        decide(run, DecisionRequest())
    assert main(["decide", str(run), "--use", "training"]) == 0
    name = "use/0002.json" if done == "which was in use" else "clinic.json"
    message = f"decisions/{name} is damaged. It stays where it lies and counts no longer."
    assert message in " ".join(capsys.readouterr().err.split())
    assert f"decisions/{name}" not in checksums.verify_manifest(run / "model")
    assert Predictor.open(run).decisions == trained == vitrail.open(run).predictor.decisions
    again = decide(run, DecisionRequest(), use="other")
    assert again.notes == () and again.kept == (("clinic", "other") if name != "clinic.json" else ("other",))
    assert again.in_use == "other" and Predictor.open(run).decisions == again.old != trained
    assert decide(run, DecisionRequest(rule="f1"), keep="new", use="new").in_use == "new"


@pytest.mark.wide
def test_only_a_decision_may_be_damaged_when_another_is_put_to_use(tmp_path):
    run = store_run(tmp_path / "run", settings=POSITIVE)
    decide(run, DecisionRequest(rule="f1"), keep="clinic", use="clinic")
    decide(run, DecisionRequest(rule="youden"), keep="other")
    flip(run / "model" / "decisions" / "clinic.json")
    with pytest.raises(DamagedFileError, match=r"clinic\.json.*--use training"):
        decide(run, DecisionRequest(), use="clinic")
    with pytest.raises(UsageError, match=r"No decision 'gone' is kept in .*There are: training, other\."):
        decide(run, DecisionRequest(), use="gone")
    flip(run / "model" / "config.json")
    with pytest.raises(DamagedFileError, match=r"Checksum mismatch in .*config\.json"):
        decide(run, DecisionRequest(), use="training")


WRONG = [
    ("classification", 2, {"rule": "f1", "positive": "crack"}, {}, "--positive must name one of the classes sound"),
    ("classification", 2, {"at": {"crack": 0.3}}, {}, "--at must name one of the classes sound, defect. Got 'crack'"),
    ("classification", 2, {"rule": "f1"}, {}, "Name it: --positive sound or defect"),
    ("classification", 2, {"at": {"sound": 0.3}, "positive": "defect"}, {}, "name different classes"),
    ("classification", 2, {"at": {"sound": 0.3, "defect": 0.4}}, {}, "Two classes have one threshold"),
    ("classification", 2, {"rule": "best"}, {}, "A rule for thresholds must be half"),
    ("classification", 2, {"band": "sound..defect"}, {}, "--band is for numbers, or for classes in an order"),
    ("classification", 3, {"rule": "f1", "positive": "grade1"}, {}, "has 3 classes: the likeliest is answered"),
    ("classification", 3, {"prevalence": {"grade0": 0.5, "grade1": 0.5}}, {}, "shares of all 3 classes add up to 1"),
    ("multilabel", 2, {"alpha": 0.1}, {}, "--alpha is for classes or numbers"),
    ("multilabel", 2, {"positive": "bars"}, {}, "--positive is for classes or numbers"),
    ("regression", 1, {"rule": "f1"}, {}, "--rule is for classes and labels, and .* answers with numbers"),
    ("regression", 1, {"prevalence": {"power": 0.1}}, {}, "--prevalence is for classes and labels"),
    ("regression", 1, {"band": "volts=1..2"}, {}, "A band must be of one of power. Got 'volts'"),
    ("regression", 1, {"band": "320..280"}, {}, "LOW at most HIGH"),
    ("regression", 1, {"alpha": 0.001}, {}, "at least 999 validation pictures"),
    ("regression", 1, {}, {"keep": "a"}, "--keep keeps a new decision"),
    ("regression", 1, {"alpha": 0.1}, {"keep": "../a"}, "The name of a decision is letters"),
    ("regression", 1, {"alpha": 0.1}, {"keep": "training"}, "training is the training's own"),
    ("regression", 1, {}, {"use": "clinic"}, "No decision 'clinic' is kept in .*There are: training"),
    ("regression", 1, {}, {"by": "me"}, "--by names who keeps"),
    ("regression", 1, {"alpha": 0.1}, {"use": "clinic"}, "Keep it first"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "K", "asked", "more", "message"), WRONG)
def test_wrong_requests_are_refused_in_one_sentence(tmp_path, task, K, asked, more, message):
    run = store_run(tmp_path / "run", task, K=K)
    before = sorted(run.rglob("*"))
    with pytest.raises(UsageError, match=message):
        decide(run, DecisionRequest(**asked), **more)
    assert sorted(run.rglob("*")) == before


def test_a_rule_that_validation_cannot_support_is_refused(tmp_path):
    run = store_run(tmp_path / "run", n=120, share=0.03)
    with pytest.raises(DataError, match=r"'f1' takes 10 validation pictures with defect and 10 without it\. There are"):
        decide(run, DecisionRequest(rule="f1", positive="defect"))
    assert decide(run, DecisionRequest(at={"defect": 0.2})).new.thresholds == (0.2,)
    noise = store_run(tmp_path / "noise")
    table = read_predictions_csv(noise / "predictions" / "val.csv", "classification")
    replace(table, targets=np.random.default_rng(0).integers(0, 2, len(table))).write_csv(
        noise / "predictions" / "val.csv"
    )
    with pytest.raises(DataError, match=r"No threshold reaches 'ppv 0\.999' on the 400 validation pictures"):
        decide(noise, DecisionRequest(rule="ppv 0.999", positive="defect"))


def test_a_label_that_validation_cannot_support_keeps_one_half_and_is_named(tmp_path):
    run = store_run(tmp_path / "run", "multilabel")
    path = run / "predictions" / "val.csv"
    table = read_predictions_csv(path, "multilabel")
    replace(table, targets=table.targets * np.array([1.0, 0.0], np.float32)).write_csv(path)
    result = decide(run, DecisionRequest(rule="f1"))
    assert result.new.chosen == (True, False) and result.new.thresholds[1] == 0.5
    assert "not fitted for nodule" in result.notes[0] and "validation has 0 pictures with nodule" in result.notes[0]


def test_predictions_that_are_missing_or_of_another_run_are_refused(tmp_path):
    run = store_run(tmp_path / "run")
    other = store_run(tmp_path / "other", names=("cat", "dog"))
    (run / "predictions" / "test.csv").write_bytes((other / "predictions" / "test.csv").read_bytes())
    with pytest.raises(DataError, match=r"answers cat, dog, and the model sound, defect\. Are both of one run\?"):
        decide(run, DecisionRequest())
    (run / "predictions" / "test.csv").unlink()
    assert "judged on the pictures that it was fitted to" in decide(run, DecisionRequest(abstain=0.1)).notes[0]
    (run / "predictions" / "val.csv").unlink()
    with pytest.raises(DataError, match="Rules are fitted to validation predictions"):
        decide(run, DecisionRequest())


@pytest.mark.wide
def test_bands_sort_numbers_and_grades_into_inside_outside_and_unsure(tmp_path):
    run = store_run(tmp_path / "run", "regression", n=1000)
    result = decide(run, DecisionRequest(band="power=280..320"))
    (band,) = result.splits["test"].new.bands
    assert band.inside > 200 and band.outside > 50 and band.unsure > 100
    assert band.inside + band.outside + band.unsure == 1000
    assert band.wrongly_inside.value < 0.06 and band.wrongly_outside.value < 0.06
    wide = decide(run, DecisionRequest(band="..320", alpha=0.5)).splits["test"]
    assert wide.new.bands[0].unsure < wide.old.bands[0].unsure and wide.changed > 0
    graded = store_run(tmp_path / "graded", K=4, n=1000, settings=DecisionSettings(ordered=True))
    (grades,) = decide(graded, DecisionRequest(band="grade0..grade1")).splits["val"].new.bands
    assert grades.inside > 0 and grades.outside > 0 and grades.wrongly_inside.value < 0.15


@pytest.mark.wide
def test_a_stated_prevalence_moves_probabilities_thresholds_and_predictive_values(tmp_path):
    run = store_run(tmp_path / "run", n=2000, settings=POSITIVE)
    here = decide(run, DecisionRequest(rule="cost 3", prevalence={"defect": 0.01}), keep="rare", use="rare")
    (label,) = here.splits["test"].new.labels
    assert label.prevalence == 0.01 and here.prevalences == pytest.approx((0.99, 0.01))
    table = open_stored_run(run).tables["test"]
    moved = apply_decisions(table, here.new).probabilities[:, 1]
    ratio = here.new.prior_ratio
    plain = table.probabilities[:, 1].astype(np.float64)
    np.testing.assert_allclose(moved, plain * ratio[1] / (plain * ratio[1] + (1 - plain) * ratio[0]), rtol=1e-5)
    hits, alarms = 1 - label.misses / label.positives, label.false_alarms / label.negatives
    assert label.predictive.positive.value == pytest.approx(0.01 * hits / (0.01 * hits + 0.99 * alarms))
    assert Predictor.open(run).decisions.prior_ratio == ratio
    same = decide(run, DecisionRequest(rule="sensitivity 0.9", prevalence={"defect": 0.5})).splits["test"].new
    free = decide(run, DecisionRequest(rule="sensitivity 0.9")).splits["test"].new
    assert same.labels[0].misses == free.labels[0].misses  # a share of the positives does not depend on how many


@pytest.mark.wide
def test_a_prevalence_elsewhere_is_estimated_and_changes_nothing(tmp_path):
    run = store_run(tmp_path / "run", n=2000, settings=POSITIVE)
    stored = open_stored_run(run)
    there = table_of("classification", NAMES["classification"], draw_outputs("classification", 3000, 7, 2, 0.05),
                     stored.trained, "")  # fmt: skip
    there.write_csv(tmp_path / "there.csv")
    result = decide(run, DecisionRequest(), estimate=tmp_path / "there.csv")
    defect = result.estimates[1]
    assert defect.name == "defect" and defect.interval.low < 0.05 < defect.interval.high < 0.12
    assert result.new is None and decide(run, DecisionRequest()).old == stored.trained
    decide(run, DecisionRequest(prevalence={"defect": 0.05}), keep="rare", use="rare")
    assert decide(run, DecisionRequest(), estimate=tmp_path / "there.csv").estimates == result.estimates


@pytest.mark.wide
def test_the_verb_prints_old_and_new_side_by_side_and_json(tmp_path, capsys):
    run = store_run(tmp_path / "run", settings=POSITIVE)
    words = ["decide", str(run), "--rule", "ppv 0.8", "--prevalence", "defect=0.1", "--keep", "clinic", "--by", "me"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "In use  training (also kept: clinic)" in out and "New     ppv 0.8 for defect" in out
    assert "test: 400 pictures; " in out and "val: 400 pictures, which the new one was fitted to" in out
    assert "PPV" in out and "10.00%" in out and "Judge by test." in out
    assert out.splitlines()[-1] == f"Next    vitrail decide {run} --use clinic"
    assert main(["decide", str(run), "--use", "clinic", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["in_use"] == "clinic" and told["old"]["version"] == "clinic"
    assert main(["decide", str(run), "--at", "defect"]) == 2
    assert "--at takes NAME=SHARE" in capsys.readouterr().err


@pytest.mark.wide
def test_fourteen_labels_of_ten_thousand_pictures_take_less_than_a_second(tmp_path):
    names = tuple(f"finding{k}" for k in range(14))
    run = store_run(tmp_path / "run", "multilabel", n=10_000, names=names, K=14)
    code = (
        "import pathlib, sys, time\n"
        "from vitrail.services.deciding import DecisionRequest, decide\n"
        "seconds = []\n"
        "for _ in range(3):\n"
        "    began = time.process_time()\n"
        "    result = decide(pathlib.Path(sys.argv[1]), DecisionRequest(rule='cost 7.65'))\n"
        "    seconds.append(time.process_time() - began)\n"
        "print(min(seconds), all(result.new.chosen))"
    )  # in a process without checks of shapes; it reads val and as many of test, fits, measures optimism and intervals
    words = [sys.executable, "-c", code, str(run)]
    seconds, chosen = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    assert float(seconds) < 1 and chosen == "True", seconds


@pytest.mark.wide
def test_a_locked_run_folder_keeps_its_decisions(tmp_path):
    run = store_run(tmp_path / "run", settings=POSITIVE)
    with deciding.Lock(run), pytest.raises(UsageError, match="is in use by process"):
        decide(run, DecisionRequest(rule="f1"), keep="clinic")
    assert decide(run, DecisionRequest()).kept == ()


def test_defaults_change_no_output():
    assert Decisions().prior_ratio == () and Decisions().version == ""


@pytest.mark.wide
def test_answers_carry_the_name_of_the_decision_through_files_and_are_not_mixed(tmp_path):
    run = store_run(tmp_path / "run", "multilabel")
    plain = read_predictions_csv(run / "predictions" / "test.csv", "multilabel")
    decide(run, DecisionRequest(rule="youden"), keep="clinic", use="clinic")
    stored = open_stored_run(run)
    table = apply_decisions(plain, stored.current)
    assert table.decision == "clinic" and table.records()[0]["decision"] == "clinic"
    table.write_csv(tmp_path / "answers.csv")
    assert (tmp_path / "answers.csv").read_text().splitlines()[0].endswith("prob_nodule,decision,abstain")
    again = read_predictions_csv(tmp_path / "answers.csv", "multilabel")
    assert again.decision == "clinic" and again.records() == table.records()
    assert "decision" not in plain.records()[0]
    with pytest.raises(UsageError, match=r"answered by one decision. Got those of the training and of clinic"):
        concat_predictions([plain, table])
    lines = (tmp_path / "answers.csv").read_text().replace(",clinic,", ",other,", 1)
    (tmp_path / "answers.csv").write_text(lines)
    with pytest.raises(DataError, match=r"one file holds the answers of one decision. Got clinic, other"):
        read_predictions_csv(tmp_path / "answers.csv", "multilabel")


@pytest.mark.wide
def test_an_estimate_takes_answers_of_the_decision_that_the_file_names(tmp_path):
    run = store_run(tmp_path / "run")
    table = read_predictions_csv(run / "predictions" / "test.csv", "classification")
    decide(run, DecisionRequest(prevalence={"defect": 0.02}), keep="rare", use="rare")
    table.write_csv(tmp_path / "before.csv")  # by the training's own, though another is in use now
    assert decide(run, DecisionRequest(), estimate=tmp_path / "before.csv").estimates
    apply_decisions(table, open_stored_run(run).current).write_csv(tmp_path / "after.csv")
    decide(run, DecisionRequest(), use="training")
    with pytest.raises(UsageError, match=r"The decision rare, which has answered .*, has moved the probabilities"):
        decide(run, DecisionRequest(), estimate=tmp_path / "after.csv")
    replace(table, decision="gone").write_csv(tmp_path / "gone.csv")
    with pytest.raises(DataError, match=r"by the decision gone, which .* has not kept"):
        decide(run, DecisionRequest(), estimate=tmp_path / "gone.csv")


def test_a_run_that_is_open_follows_the_decision_in_use(tmp_path):
    run = store_run(tmp_path / "run")
    opened = vitrail.open(run)
    first = opened.predictor
    assert opened.predictor is first and first.decisions.version == ""
    decide(run, DecisionRequest(at={"defect": 0.2}), keep="low", use="low")  # by another program
    assert opened.predictor.decisions.version == "low" and opened.predictor.notes == (
        "Answers by the kept decision low.",
    )
    assert opened.predictor.members[0].model is first.members[0].model
    decide(run, DecisionRequest(), use="training")
    assert opened.predictor.notes == ()
    (run / "model" / "decisions" / "low.json").write_text("{}")
    decide_file = run / "model" / "manifest.json"
    decide_file.touch()
    with pytest.raises(DamagedFileError, match=r"low\.json has 2 bytes"):
        _ = opened.predictor
