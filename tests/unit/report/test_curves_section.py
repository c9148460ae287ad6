"""Curves of a report, and the files that --plots writes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as tree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

from unit.evaluate.test_anomaly_metrics import table as anomalies
from unit.evaluate.test_regression_predictions import table as regression
from unit.report import test_task_pages
from unit.report.reader_sample import labels, stored, two_classes
from unit.report.report_sample import facts_of, predictions_of, run_folder
from vitrail.cli.main import main
from vitrail.errors import UsageError
from vitrail.evaluate.conformal import Promise
from vitrail.evaluate.decisions import Decisions
from vitrail.evaluate.task_metrics import compute_metrics
from vitrail.explain.matplotlib_style import default_style
from vitrail.report import figure_files, page, provenance
from vitrail.report.curves_section import curves_context
from vitrail.report.operating_points import compute_operating_points
from vitrail.report.page import write_plots


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Of two classes, with and without groups, of several, and of labels of which some are unknown."""
    folder = tmp_path_factory.mktemp("runs")
    test, valid, decided = two_classes(n=400)
    stored(folder / "two", test, valid, decided)
    stored(folder / "three-groups", test, valid, decided, groups=np.arange(len(test)) % 3)
    films, more = labels()
    stored(folder / "labels", films, more, Decisions(thresholds=(0.5, 0.5, 0.5)))
    run_folder(folder / "several")
    return folder


def section(folder: Path):
    facts = provenance.read_facts(folder)
    run = page.decide_run(folder)
    return curves_context(facts, run.predictions, folder, provenance.load_groups(folder, len(run.predictions)))


def test_the_threshold_in_use_comes_first_and_rules_choose_theirs_on_the_validation_pictures(runs):
    found = section(runs / "two")
    (one,) = found.targets
    test, valid, decided = two_classes(n=400)
    current = compute_operating_points(
        *(page.curves_section.binary_targets(each, decided)[0] for each in (test, valid))
    )
    assert found.on_validation and one.points[0].threshold == decided.thresholds[0]
    assert one.points[0].sensitivity.value == pytest.approx(1 - current.rows[0].miss_rate.value)
    by_rule = {row.rule: row for row in one.points}
    aimed = {row.rule: row for row in current.rows}
    for rule in ("specificity 0.95", "sensitivity 0.95", "specificity 0.99", "sensitivity 0.99"):
        assert by_rule[rule].threshold == aimed[rule].threshold
        assert by_rule[rule].specificity.value == pytest.approx(1 - aimed[rule].false_alarm_rate.value)
    assert by_rule["youden"].threshold == pytest.approx(decided.thresholds[0], abs=1e-6)  # the rule of this run


def test_of_several_classes_each_stands_against_the_others_and_has_no_rules(runs):
    found = section(runs / "several")
    assert sorted(one.name for one in found.targets) == sorted(page.provenance.read_facts(runs / "several").classes)
    assert all(len(one.points) == 1 for one in found.targets)
    assert [one.auroc for one in found.targets] == sorted(one.auroc for one in found.targets)


def test_of_many_classes_those_that_are_found_least_often_have_curves(runs):
    generator, n, classes = np.random.default_rng(0), 900, tuple(f"class {k}" for k in range(30))
    targets = np.arange(n) % 30
    chances = generator.dirichlet(np.ones(30), n)
    chances[np.arange(n), targets] += np.where(targets < 6, 1.0, 0.1)  # the first six are nearly always found
    many = replace(
        predictions_of(n=n), targets=targets, classes=classes, probabilities=chances / chances.sum(1, keepdims=True)
    )
    found = curves_context(provenance.read_facts(runs / "several"), many, runs / "none", None)
    assert {one.name for one in found.targets} == set(classes[6:]) and found.left_out == 6


def test_unknown_labels_are_left_out_of_the_curves_of_their_label(runs):
    films, _ = labels()
    assert not films.known_mask.all()
    for one in section(runs / "labels").targets:
        k = films.classes.index(one.name)
        known = films.known_mask[:, k]
        present = films.targets[known, k] >= 0.5
        assert (one.positives, one.negatives) == (present.sum(), (~present).sum())
        if not one.reason:
            assert one.auroc == pytest.approx(roc_auc_score(present, films.probabilities[known, k]), abs=0.005)


def test_a_label_without_positives_and_three_groups_get_a_sentence_on_the_page(runs, tmp_path):
    text = page.build_report(runs / "three-groups").read_text(encoding="utf-8")
    assert "come from 3 groups" in text and "ROC: sensitivity" not in text
    films, more = labels()
    targets = films.targets.copy()
    targets[:, 1] = np.where(np.isnan(targets[:, 1]), np.nan, 0)
    folder = stored(tmp_path / "none", replace(films, targets=targets), more)
    text = page.build_report(folder).read_text(encoding="utf-8")
    assert f"{films.classes[1]}: A curve needs 10 pictures" in text and "ROC: sensitivity" in text


def test_net_benefit_is_not_measured_at_another_prevalence_than_that_of_the_probabilities(runs, tmp_path):
    test, valid, decided = two_classes(n=400)
    folder = stored(tmp_path / "prior", test, valid, replace(decided, prior_ratio=(3.0, 0.5)))
    (one,) = section(folder).targets
    assert set(one.charts) == {"roc", "precision-recall"} and "stated prevalence" in one.benefit_reason


def test_a_run_on_good_pictures_has_the_curves_of_its_score_and_no_probabilities(tmp_path):
    predictions = anomalies(n=120, good=70)
    metrics = compute_metrics(predictions, promise=Promise(0.1, 99))
    known = {**vars(facts_of(predictions_of())), "metrics": (), "task": "anomaly", "anomaly_metrics": (metrics,)}
    known |= {
        "classes": predictions.classes,
        "decisions": Decisions(alpha=0.1, calibration=tuple(k / 20 for k in range(20))),
    }
    (tmp_path / "predictions").mkdir()
    predictions.write_csv(tmp_path / "predictions" / "test.csv")
    provenance.write_facts(tmp_path, provenance.ReportFacts(**known))
    (one,) = section(tmp_path).targets
    assert (one.name, set(one.charts), len(one.points)) == ("defect", {"roc", "precision-recall"}, 1)
    assert one.auroc == pytest.approx(metrics.auroc, abs=0.01)
    assert "an anomaly score is none" in page.build_report(tmp_path).read_text(encoding="utf-8")


def test_plots_writes_every_figure_as_svg_and_png_that_open_and_are_equal_twice(runs, capsys):
    folder = runs / "two"
    assert main(["report", str(folder), "--plots", "--json"]) == 0
    paths = [Path(one) for one in json.loads(capsys.readouterr().out)["plots"]]
    names = {"roc", "precision-recall", "net-benefit", "cost", "reliability", "reliability-of-confidence"}
    assert {one.stem for one in paths} == {*names, "confusion-matrix"} and len(paths) == 14
    assert {one.parent for one in paths} == {folder / "figures"}
    for one in paths:
        if one.suffix == ".svg":
            assert tree.parse(one).getroot().tag.endswith("svg")
        else:
            with Image.open(one) as image:
                image.load()
                assert min(image.size) > 600


def test_a_name_of_any_letters_is_drawn_as_it_is(runs, tmp_path):
    (one,) = section(runs / "two").targets
    chart = replace(one.charts["roc"], title="ROC curve of $x_ & <気胸>")
    with default_style():
        svg, png = figure_files.write_plot(tmp_path, "roc", figure_files.plot_chart(chart))
    assert "ROC curve of $x_ &amp; &lt;気胸&gt;" in svg.read_text(encoding="utf-8") and png.stat().st_size > 10_000


def test_equal_curves_give_equal_files(runs, tmp_path):
    (one,) = section(runs / "two").targets
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        with default_style():
            figure_files.write_plot(tmp_path / folder / "figures", "roc", figure_files.plot_chart(one.charts["roc"]))
    first, second = (sorted((tmp_path / folder / "figures").iterdir()) for folder in ("first", "second"))
    assert [one.read_bytes() for one in first] == [one.read_bytes() for one in second] and len(first) == 2


@pytest.mark.wide
def test_plots_name_each_class_or_label(runs):
    names = {one.stem for one in write_plots(runs / "several")}
    assert {"roc-cat", "roc-dog-b-bold-b", "roc-fish", "confusion-matrix"} <= names


def test_plots_of_numbers_are_refused_in_a_sentence(tmp_path):
    targets = np.arange(40.0)[:, None]
    test_task_pages.stored(tmp_path, regression(targets, targets + 1, ("age",)))
    with pytest.raises(UsageError, match=r"this run answers numbers or masks, whose pictures are in report\.html"):
        write_plots(tmp_path)
