"""A report follows the decision in use and lists all that were kept."""

from __future__ import annotations

import numpy as np
import pytest

from stored_runs import store_run
from vitrail.evaluate.predictions import read_predictions_csv
from vitrail.evaluate.task_metrics import compute_metrics
from vitrail.report import page, provenance
from vitrail.report.decision_section import decide_run, list_decisions
from vitrail.report.provenance import ReportFacts, SplitCount
from vitrail.services.deciding import DecisionRequest, decide, open_stored_run

FIELDS = {"classification": "metrics", "multilabel": "label_metrics", "regression": "number_metrics"}


def reported_run(folder, task="classification", **words):
    run = store_run(folder, task, n=200, **words)
    stored = open_stored_run(run)
    metrics = tuple(compute_metrics(stored.tables[split]) for split in ("val", "test"))
    facts = ReportFacts(
        title="Cells", source="drawn", counts=(SplitCount(split="test", n=200),), classes=stored.names,
        model="vit_tiny", parameters=1, seconds=1.0, steps=1, images_seen=1, images_per_second=1.0,
        command="vitrail train", plan='[data]\nsource = "drawn"', task=task, decisions=stored.trained,
        **{FIELDS[task]: metrics},
    )  # fmt: skip
    provenance.write_facts(run, facts)
    return run


def test_a_run_without_kept_decisions_has_the_report_it_had(tmp_path):
    run = reported_run(tmp_path / "run")
    facts = provenance.read_facts(run)
    stored = read_predictions_csv(run / "predictions" / "test.csv", "classification")
    assert page.build_report(run).read_text("utf-8") == page.render_report(facts, stored, run)
    assert "Decisions</h2>" not in page.render_report(facts, stored, run)


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_figures_are_of_the_decision_in_use_and_the_page_names_it(tmp_path, task):
    run = reported_run(tmp_path / "run", task)
    words = {"classification": {"at": {"defect": 0.05}}, "multilabel": {"rule": "sensitivity 0.99"},
             "regression": {"alpha": 0.2}}[task]  # fmt: skip
    before = page.build_report(run).read_text("utf-8")
    kept = decide(run, DecisionRequest(**words), keep="clinic", by="A. <Meier>", use="clinic")
    text = page.build_report(run).read_text("utf-8")
    assert "Every figure here is of the decision clinic" in text and "A. &lt;Meier&gt;" in text
    assert "<b>clinic</b>, in use" in text and "Decisions</h2>" in text and "Every figure here" not in before
    decided = decide_run(run)
    assert decided.facts.decisions.version == "clinic" == decided.predictions.decision
    training, clinic = list_decisions(decided, run)
    assert (training.name, clinic.name, clinic.in_use) == ("training", "clinic", True)
    if task == "classification":
        figures = kept.splits["test"].new.labels[0]
        assert clinic.misses == f"{figures.misses} of {figures.positives}"
        assert clinic.false_alarms == f"{figures.false_alarms} of {figures.negatives}"
        assert decided.facts.metrics_for_split("test").accuracy == kept.splits["test"].new.accuracy.value
        assert "from 0.0500 on" in text
    decide(run, DecisionRequest(), use="training")
    again = page.build_report(run).read_text("utf-8")
    assert "Every figure here" not in again and "<b>training</b>, in use" in again


def test_the_first_page_offers_thresholds_at_the_prevalence_of_the_decision(tmp_path):
    run = reported_run(tmp_path / "run")
    decide(run, DecisionRequest(prevalence={"defect": 0.02}, rule="cost 5", positive="defect"), keep="rare", use="rare")
    decided = decide_run(run)
    assert np.median(decided.predictions.probabilities[:, 1]) < np.median(decided.stored.probabilities[:, 1])
    from vitrail.report.audience import AudienceRequest

    text = page.build_report(run, AudienceRequest(audience="inspection")).read_text("utf-8")
    assert "decision rare" in text
