"""`vitrail decide` beside a training with the same rule, and predictions that follow the decision in use."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from end_to_end.drawn_tasks import draw_labels
from vitrail.checkpoints import bundle
from vitrail.evaluate.decision_figures import apply_decisions
from vitrail.services.deciding import DecisionRequest, fit_new_decisions, open_stored_run

pytestmark = pytest.mark.wide

WORDS = (
    "--model", "vit_mu_patch8_16", "--recipe.batch_size", "32", "--compute.threads", "1", "--data.val_fraction", "0.4",
    "--data.test_fraction", "0.2", "--recipe.evaluate_every", "40", "--steps", "40",
)  # fmt: skip


def draw_two_classes(folder: Path, n: int = 300) -> Path:
    generator = np.random.default_rng(1)
    for number in range(n):
        kind = ("sound", "defect")[number % 2]
        grey = generator.normal(100, 16, (16, 16))
        grey[4:9, 4:9] += generator.uniform(0, 50) * (number % 2)
        (folder / kind).mkdir(exist_ok=True, parents=True)
        Image.fromarray(grey.clip(0, 255).astype(np.uint8)).save(folder / kind / f"{number:03d}.png")
    return folder


TASKS = {
    "classes": (("--decisions.ordered", "true", "--decisions.positive", "defect"), "cost 7.65"),
    "labels": ((), "sensitivity 0.9"),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_rule_gives_what_a_training_with_that_rule_gives(vitrail, tmp_path, task):
    more, rule = TASKS[task]
    source = draw_two_classes(tmp_path / "parts") if task == "classes" else draw_labels(tmp_path / "films", n=400)
    assert vitrail("train", source, *WORDS, *more, "--out", tmp_path / "run").code == 0
    changed = ("--decisions.threshold_rule", rule)
    again = vitrail("train", "--plan", tmp_path / "run" / "plan.toml", *changed, "--out", tmp_path / "again")
    assert again.code == 0, again.err
    stored, anew = open_stored_run(tmp_path / "run"), open_stored_run(tmp_path / "again")
    fitted, _ = fit_new_decisions(stored, DecisionRequest(rule=rule))
    assert fitted == anew.trained != stored.trained
    for split, table in anew.tables.items():
        assert apply_decisions(stored.tables[split], fitted).records() == table.records()

    pictures = sorted(path for path in source.parent.rglob("*.png"))[:20]
    assert vitrail("decide", tmp_path / "run", "--rule", rule, "--keep", "other", "--use", "other").code == 0
    answers = [vitrail("predict", tmp_path / name, *pictures) for name in ("run", "again")]
    assert answers[0].err.startswith("Answers by the kept decision other.")
    ours, theirs = ([*csv.DictReader(answer.out.splitlines())] for answer in answers)
    assert {row.pop("decision") for row in ours} == {"other"} and ours == theirs
    assert bundle.read_bundle_info(tmp_path / "run" / "model").decision == "other"
    told = json.loads(vitrail("decide", tmp_path / "run", "--use", "training", "--json").out)
    assert told["in_use"] == "training" and told["kept"] == ["other"]


def test_python_follows_the_decision_in_use(vitrail, tmp_path):
    import vitrail as package

    assert vitrail("train", draw_two_classes(tmp_path / "parts"), *WORDS, "--out", tmp_path / "run").code == 0
    run = package.open(tmp_path / "run")
    picture = tmp_path / "parts" / "defect" / "001.png"
    chance = run.predict([picture]).records()[0]["prob_defect"]
    run.decide(at={"defect": min(0.99, chance + 0.005)}, keep="high", use="high")
    assert run.predict([picture]).records()[0]["label"] == "sound"
    run.decide(at={"defect": chance - 0.005}, keep="low", use="low")
    assert run.predict([picture]).records()[0]["label"] == "defect"
    run.decide(prevalence={"defect": 0.01}, keep="rare", use="rare")
    assert run.predict([picture]).records()[0]["prob_defect"] < chance
    run.decide(use="training")
    assert run.predict([picture]).records()[0]["prob_defect"] == chance
