"""What a dossier asks, in which words, what it says of cases, and commands that can be run."""

from __future__ import annotations

import dataclasses
import html as html_text
import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

import vitrail
from unit.report.dossier_sample import NAMES, check_commands, check_page, make_dossier, train
from unit.report.test_first_pages import plain
from vitrail.cli.main import main
from vitrail.evaluate.anomaly_metrics import AnomalyMetrics
from vitrail.evaluate.predictions import read_predictions_csv
from vitrail.report import audience, curves_section, operating_points, page, provenance, run_description
from vitrail.report.checklists import list_questions
from vitrail.report.run_description import RunRecord
from vitrail.report.verification import verify_run
from vitrail.stats.intervals import Interval
from vitrail.stats.predictive import Rate


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run with a group."""
    columns = {"verdict": NAMES, "part": [f"part {k // 2}" for k in range(len(NAMES))]}
    return train(tmp_path_factory.mktemp("cells"), columns)


@pytest.fixture(scope="module")
def with_cases(tmp_path_factory) -> Path:
    """A run that answers each part too: two or three pictures of one verdict."""
    parts = np.char.add(NAMES, (np.arange(len(NAMES)) // 5).astype(str))
    return train(tmp_path_factory.mktemp("cases"), {"verdict": NAMES, "part": parts}, case="mean")


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of the first; its plan still names the pictures."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_what_nobody_recorded_is_asked_of_the_authors(run):
    html, asked = make_dossier(run), tomllib.loads((run / "dossier.toml").read_text(encoding="utf-8"))
    text = plain(html)
    assert (
        "Who put it to use, and when, was not recorded" in text and '<a href="#in_use">Its authors are asked.' in html
    )
    assert "Not meant for not stated" in text and 'href="#not_for"' in html and {"in_use", "not_for"} <= set(asked)
    (run / "dossier.toml").write_text('in_use = "B. Roth, in May."\nnot_for = "Thin films."')
    text = plain(make_dossier(run))
    assert "Its authors state: B. Roth, in May." in text and "Not meant for Thin films. stated by its authors" in text
    vitrail.open(run).decide(keep="again", use="again", abstain=0.1)  # by nobody
    assert "again , by whom was not recorded" in plain(make_dossier(run)).replace("again,", "again ,")


@pytest.mark.parametrize("field", ["medical", "industrial"])
def test_questions_are_in_the_words_of_the_field_and_leave_out_what_is_not_of_it(run, field, capsys):
    clinical = ["index test", "reference standard", "patients", "consented", "committee"]
    (run / "dossier.toml").write_text(f'field = "{field}"')
    assert main(["report", str(run), "--for", "dossier", "--json"]) == 0
    told, html = json.loads(capsys.readouterr().out), (run / "report.html").read_text(encoding="utf-8")
    check_page(html)
    start = html.index('<h2 id="authors">')
    asked = html[start : html.index("<h2", start + 1)]
    assert [word in asked for word in clinical] == [field == "medical"] * 5
    names = re.findall(r'<dt id="(\w+)">', asked)
    assert ("registration" in names) == (field == "medical") and "norms" in names
    assert {"norms", "duties", "integration"}.isdisjoint(one.name for one in list_questions("research"))
    left = 2 * (field == "industrial")
    counts = told["items"]["TRIPOD+AI"]
    assert counts["inapplicable"] == left and sum(counts.values()) == 52
    assert ("inapplicable" in told["items"]["EU AI Act, Annex IV"]) and told["open_questions"] == asked.count("Open.")
    assert html.count("not asked in") == sum(one["inapplicable"] for one in told["items"].values())


def test_of_cases_their_number_their_figures_and_what_is_of_pictures_are_in_it(with_cases):
    html, facts = make_dossier(with_cases), provenance.read_facts(with_cases)
    check_page(html)
    text = plain(html)
    cells = (with_cases.parent / "cells.csv").read_text().splitlines()[1:]
    part = {row.split(",")[0]: row.split(",")[2] for row in cells}
    splits = [row.split(",") for row in (with_cases / "splits.csv").read_text().splitlines()[1:]]
    for count in facts.counts:
        names = [name for name, split, *_ in splits if split == count.split]
        assert count.groups == len({part[name] for name in names}) and count.n == len(names)
        assert f"{count.split} {count.n} pictures of {count.groups} cases (" in text
        assert re.search(rf'">{count.split}</th><td class="n">{count.n}</td><td class="n">{count.groups}</td>', html)
    assert set(verify_run(with_cases).splits) == {"test", "val-cases", "test-cases"}
    assert "Not computed again: those of val, whose groups are not stored." in plain(make_dossier(with_cases))
    pictures, cases = (facts.metrics_for_split(name) for name in ("test", "test-cases"))
    assert text.index(f"In use is the figure of cases ({cases.headline()}), as") < text.index("Intended use")
    assert f"that of pictures ({pictures.headline()}) holds for one that comes alone" in text
    stored = read_predictions_csv(with_cases / "predictions" / "test-cases.csv", "classification")
    start = html.index('aria-label="Confusion matrix of cases"')
    cells = re.findall(r'<th scope="row" class="row">(\w+)</th>(.*?)</tr>', html[start : html.index("</table>", start)])
    for number, (name, row) in enumerate(cells):
        expected = np.bincount(stored.indices[stored.targets == number], minlength=2)
        assert name == stored.classes[number]
        assert [int(n or 0) for n in re.findall(r">(\d+|·)</td>".replace("|·", ""), row)] == [n for n in expected if n]
        one, other = cases.per_class[number], cases.per_class[1 - number]
        shown = [page.format_percent(value) for value in (one.recall, *one.recall_interval, other.recall)]
        assert re.search(rf'">{name}</th><td class="n">{one.n}</td>.*{".*".join(shown)}', html)
    assert "verified, except val" in plain(make_dossier(with_cases))
    for one in (pictures, cases):
        assert f'<td class="n">{page.format_percent(one.accuracy)}</td><td>' in html
    assert "Accuracy of pictures" in text and "Accuracy of cases" in text
    for id in ("errors", "classes", "curves", "decisions"):
        assert re.search(rf'<h2 id="{id}">.*?</h2>\n<p class="asked">.*<b>of single pictures</b>', html)
    assert not re.search(r'<h2 id="cases">.*?</h2>\n<p class="asked">.*of single pictures', html)
    check_commands(html, with_cases)


def test_names_of_two_calibrations_differ_and_the_net_benefit_is_explained_once(run):
    html = make_dossier(run)
    text = plain(html)
    for name in ("in the large", "slope"):
        assert f"Confidence calibration {name}" in text and f"Class calibration {name}" in text
    assert not re.search(r">(Calibration )?([Ss]lope|[Ii]n the large|[Ii]ntercept)<", html)
    assert html.count("better than acting on all pictures or on none") == 1 and "Net benefit from" in text


def test_the_interval_can_be_computed_again_from_its_words(run):
    text, metrics = plain(make_dossier(run)), provenance.read_facts(run).metrics_for_split("test")
    for words in ("1.96 (1 + 1/n) in place of 1.96", "three errors or fewer", "square of the number of pictures"):
        assert words in text
    sizes = np.unique(provenance.load_groups(run, metrics.n), return_counts=True)[1]
    n, share = sizes.sum() ** 2 / np.square(sizes).sum(), metrics.accuracy
    z = scipy.stats.norm.ppf(0.975) * (1 + 1 / n)
    ends = [
        (share + z**2 / (2 * n) + sign * z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))) / (1 + z**2 / n)
        for sign in (-1, 1)
    ]
    for place, count in enumerate((share * n, (1 - share) * n)):
        if 1 <= count <= 3:
            bound = scipy.stats.gamma.ppf(0.05, count) / n
            ends[place] = min(ends[0], bound) if place == 0 else max(ends[1], 1 - bound)
    assert metrics.accuracy_interval == pytest.approx(tuple(ends), abs=1e-9)


def test_why_nothing_is_calibrated_and_the_share_of_what_is_looked_for_are_limits(run):
    facts = provenance.read_facts(run)
    validation = next(one.n for one in facts.counts if one.split == "val")
    assert not facts.decisions.temperature and validation < 100
    table = read_predictions_csv(run / "predictions" / "test.csv", facts.task)
    targets, metrics = operating_points.binary_targets(table, facts.decisions), facts.metrics_for_split("test")
    limits = audience.describe_limits(facts, metrics, targets, run, True)
    reason = f"takes 100 validation pictures and had {validation}: treat them as a ranking, not as percentages."
    assert f"Probabilities are not calibrated, which {reason}" in limits
    share = (table.targets == table.classes.index(targets[0].name)).mean()
    assert any(one.startswith(f"{share:.1%} of the test pictures are {targets[0].name}: accuracy") for one in limits)
    off = dataclasses.replace(facts, plan=facts.plan.replace("calibrate = true", "calibrate = false"))
    limits = audience.describe_limits(off, metrics, targets, run, True)
    assert "Probabilities are not calibrated: calibration was switched off." in limits
    html = plain(make_dossier(run))
    assert html.count("Probabilities are not calibrated, which") == 2  # on top and among the limits


def test_mirrored_pictures_are_named_where_there_were_some_alone(run):
    facts = dataclasses.replace(provenance.read_facts(run), steps=0)
    told = [
        run_description._describe_training(
            RunRecord(facts=dataclasses.replace(facts, plan=f"[recipe]\nflip = {flip}\n"), metrics=facts.metrics[0])
        )
        for flip in ("true", "false")
    ]
    assert "for validation and mirrored ones, " in told[0] and "mirrored" not in told[1]


def test_a_rate_that_cannot_be_estimated_has_a_mark():
    wide, narrow = Rate(0.5, Interval(0.0, 0.95)), Rate(0.5, Interval(0.0, 0.89))
    assert [curves_section.is_estimable(one) for one in (wide, narrow)] == [False, True]
    assert AnomalyMetrics(split="test", n=4, good=4, defects=0).judge_promise(0.05) == "not contradicted"


@pytest.mark.parametrize(
    ("interval", "judged"), [((0.0, 0.05), "kept"), ((0.02, 0.2), "not contradicted"), ((0.06, 0.2), "contradicted")]
)
def test_a_promise_is_judged_by_the_interval_of_the_false_alarms(interval, judged):
    metrics = AnomalyMetrics(split="test", n=40, good=40, defects=0, false_alarms_interval=interval)
    assert metrics.judge_promise(0.05) == judged


def test_every_printed_command_can_be_run(run, capsys):
    html = make_dossier(run)
    check_commands(html, run)
    checking = re.search(r"<code>(vitrail check SOURCE .*?)</code>", html)[1]
    words = shlex.split(html_text.unescape(re.sub(r"<.*?>", "", checking)))[1:]
    source = tomllib.loads((run / "plan.toml").read_text())["data"]["source"]
    assert main([source if word == "SOURCE" else word for word in words] + ["--json"]) == 0
    found, kept = json.loads(capsys.readouterr().out), json.loads((run / "check.json").read_text())
    assert found["class_counts"] == kept["class_counts"] and found["compared"] == kept["compared"] == 0
