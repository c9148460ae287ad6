"""A dossier: its numbers are those of the run, and every item of the checklists leads to a section that is there."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vitrail
from drawn_masks import draw_scenes
from good_parts import draw_parts, save_weights
from quick_fits import QUICK
from unit.report.dossier_sample import CAMERAS, IMAGES, LABELS, NAMES, check_commands, check_page, make_dossier, train
from unit.report.test_first_pages import plain
from vitrail.cli.main import main
from vitrail.evaluate.subgroups import compute_subgroups
from vitrail.report import page, provenance, run_description, saliency
from vitrail.report.checklists import ANNEX_IV, CHECKLISTS, CLAIM, QUESTIONS, TRIPOD_AI
from vitrail.report.dossier import HEADING
from vitrail.report.run_description import RunRecord
from vitrail.report.verification import verify_run
from vitrail.services.evaluation import evaluate_stored_subgroups

OTHERS = {
    "multilabel": (IMAGES[:120], np.stack([LABELS % 2, LABELS > 4], 1)[:120].astype(float)),
    "regression": (IMAGES[:120], LABELS[:120] * 1.5 + 300),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run with a group and a further column."""
    columns = {"verdict": NAMES, "part": [f"part {k // 2}" for k in range(len(NAMES))], "camera": CAMERAS}
    return train(tmp_path_factory.mktemp("cells"), columns)


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of that run; its plan still names the pictures."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_V16_every_item_leads_to_a_section_and_figures_are_those_that_are_stored(run):
    html = make_dossier(run)
    check_page(html)
    text, metrics = plain(html), json.loads((run / "metrics-test.json").read_text())
    assert f"{page.format_percent(metrics['accuracy'])} of {metrics['n']} held-out test pictures".replace(
        "\u202f", " "
    ) in text.replace("\u202f", " ")
    facts = provenance.read_facts(run)
    assert f"the {metrics['n']} held-out test pictures of this report, in {metrics['groups']} groups" in text
    assert "Without a change at most 0.1 false alarms in 30 days" in text and "in 300 days or more" in text
    assert "if groups come as those of the reference did" in text
    assert "By part: no value of that column is in two partitions." in text
    assert f"{facts.steps} steps of 16 images" in text and "no figure chose it" in text
    assert "8x8 pixels of 1 channel in patches of" in text and f"{facts.parameters:,} parameters" in text
    assert "Only the training's own decision exists" in html
    items = html[html.index("<h3>TRIPOD+AI</h3>") : html.index("<h3>CLAIM 2024</h3>")]
    where = dict(re.findall(r'<th scope="row">(\w+)</th><td>[^<]*</td><td>(.*?)</td>', items))
    assert where["24"] == '<a href="#decisions">nothing to report, as nothing was changed since the training</a>'
    assert 'href="#subgroups"' in where["12d"]  # of every camera
    assert str(run.parent) not in html and str(Path(vitrail.__file__).parent) not in html


def test_subgroups_of_every_column_follow_from_the_stored_answers_with_corrected_intervals(run):
    html, facts = make_dossier(run), provenance.read_facts(run)
    predictions = page.read_predictions_csv(run / "predictions" / "test.csv", facts.task)
    places = [int(Path(one).stem) for one in predictions.paths]
    parts = np.array([f"part {k // 2}" for k in places])
    expected = compute_subgroups(predictions, {"camera": CAMERAS[places].tolist()}, parts)
    found = evaluate_stored_subgroups(run)
    assert found.columns == expected.columns and found.judged == expected.judged == 2
    for one in expected.columns[0].slices:
        right = [predictions.labels[row] == NAMES[k] for row, k in enumerate(places) if CAMERAS[k] == one.value]
        assert one.n == len(right) and one.figure == pytest.approx(np.mean(right))
        assert one.corrected[0] < one.interval[0] < one.interval[1] < one.corrected[1]
        cells = [f"{one.figure:.3f}", *("{:.3f} to {:.3f}".format(*pair) for pair in (one.interval, one.corrected))]
        assert re.search(rf"{one.value}</td>.*{'.*'.join(cells)}</td></tr>", html)
    assert "widened for 2 comparisons (Bonferroni)" in html and "Subgroups not available" not in plain(html)


@pytest.mark.wide
def test_maps_of_which_none_passed_are_called_checked(run, monkeypatch):
    stored = saliency.load_explanations(run)
    assert stored is not None
    sentence = "No map of this model passed the check against edges, centre and noise (relevance -0.06, random -0.12)."
    none = replace(
        stored, about=replace(stored.about, checked=sentence), rows=stored.rows[:0], targets=stored.targets[:0],
        values=stored.values[:0], artifact_mask=stored.artifact_mask[:0],
    )  # fmt: skip
    monkeypatch.setattr(saliency, "load_explanations", lambda folder: none)
    text = plain(make_dossier(run))
    assert f"not available, because n{sentence[1:]}" in text and "maps were not checked" not in text
    assert "maps were checked, and none is shown because none passed" in text


@pytest.mark.parametrize("task", OTHERS)
def test_other_tasks_have_one_too_and_what_is_not_measured_is_named(task, tmp_path):
    run = vitrail.fit(OTHERS[task], task=task, out=tmp_path / "run", quiet=True, **QUICK).path
    html = make_dossier(run)
    check_page(html)
    text = plain(html)
    assert "neither in the loss nor in any figure" in text and "Subgroups not available, because" in text
    assert ("any of 2 labels" if task == "multilabel" else "with 1 measured number.") in text
    assert "Robustness not available, because no picture was disturbed" in text
    assert "Subgroups" in text and "Not measured , because" in text.replace("measured,", "measured ,")
    assert "some make, device, batch or place are answered worse" in text and "vitrail train MANIFEST" in text
    assert "Exact copies (equal pixels, by a hash of each picture) were looked for among 120 pictures: none" in text
    assert "Near copies were not looked for: no picture has 64 pixels on its shorter side." in text
    (fairness,) = re.findall(r'<th scope="row">14</th><td>Fairness</td><td>(.*?)</td>', html)
    assert (
        "authors" in fairness
        and "#subgroups" not in fairness
        and '; <a href="#missing">no subgroups were measured' in fairness
    )


@pytest.mark.wide
def test_good_parts_and_masks_have_one_too(tmp_path):
    parts, start = draw_parts(tmp_path / "parts"), save_weights(tmp_path / "start")
    bank = vitrail.fit(parts, task="anomaly", weights=start, out=tmp_path / "bank", device="cpu", quiet=True)
    html = make_dossier(bank.path)
    check_page(html)
    assert f"patches of {provenance.read_facts(bank.path).images_seen} good" in html
    decided, text = bank.predictor.decisions, plain(html).replace("\u202f", " ")
    above = (
        f"a defect above a score of {decided.alarm_score:.4f}, where its p-value is at most {100 * decided.alpha:.1f} %"
    )
    assert text.count(above) == 2 and "No picture is left unanswered, neither as unsure" in text
    assert (
        f"promised by {len(decided.calibration)} good pictures" in text and "left unanswered, and each day" not in text
    )
    check_commands(html, bank.path)
    where = dict(re.findall(r"<td>([^<]*)</td><td>(.*?)</td>", html[html.index('<h2 id="items">') :]))
    for topic in ("Differences between clusters", "Performance by cluster"):
        assert where[topic] == '<a href="#subgroups">types of defect are the only subgroups</a>'
    assert where["Explanations and their check"] == '<a href="#maps">maps were not checked</a>'
    metrics = bank.metrics
    most = max(metrics.defects, metrics.good)
    assert (
        f"calling every picture {'a defect' if metrics.defects == most else 'good'} is right for {most / metrics.n:.3f}"
        in html
    )
    assert f"{metrics.defects / metrics.n:.1%} of the test pictures are defects: accuracy, F1 and average prec" in html
    assert f"at most, which is {metrics.judge_promise(decided.alpha)}<" in html
    assert "calibration.csv has the good pictures that look least so" in html and "Watched</dt><dd>score</dd>" in html
    verify_run(bank.path)
    has_pixels = metrics.pixel_auroc is not None
    assert ("verified, except pixel figures" in plain(make_dossier(bank.path))) == has_pixels
    scenes = draw_scenes(tmp_path / "scenes", 12)
    masks = vitrail.fit(scenes, task="segmentation", out=tmp_path / "masks", quiet=True, **QUICK)
    html = make_dossier(masks.path)
    check_page(html)
    assert "Figures of masks need the pictures" in html and "no rule decides" in html
    assert plain(html).count("asked of one answer for each picture, and this model answers every pixel") == 3


def test_checklists_are_whole_and_name_sections_and_questions_that_are_there():
    assert (len(TRIPOD_AI), len(CLAIM), len(ANNEX_IV)) == (52, 44, 23)
    assert [item.number for item in CLAIM] == [str(k) for k in range(1, 45)]
    assert {re.match(r"\d+", item.number)[0] for item in TRIPOD_AI} == {str(k) for k in range(1, 28)}
    assert {re.match(r"\d+", item.number)[0] for item in ANNEX_IV} == {str(k) for k in range(1, 10)}
    folder = Path(page.__file__).parent
    there = {id for file in folder.glob("*.html.j2") for id, _ in HEADING.findall(file.read_text())}
    items = [item for each in CHECKLISTS.values() for item in each]
    assert {id.partition(".")[0] for item in items for id in item.sections} <= there
    assert {name for item in items for name in item.questions} == {one.name for one in QUESTIONS}
    assert len({item.number for item in TRIPOD_AI}) == 52 and all(item.sections or item.questions for item in items)


def test_it_says_whether_figures_were_verified_and_what_has_changed_since(run, capsys):
    assert "Not verified." in make_dossier(run)
    assert main(["report", str(run), "--for", "dossier", "--verify", "--json"]) == 0
    told, html = json.loads(capsys.readouterr().out), (run / "report.html").read_text()
    stored = json.loads((run / "verification.json").read_text())
    assert told["sha256"] in html and f"{stored['figures']} stored figures of test" in html
    assert all(f"<td><code>{value}</code></td>" in html for value in stored["files"].values())
    assert set(told["items"]) == set(CHECKLISTS) and sum(told["items"]["CLAIM 2024"].values()) == 44
    (run / "splits.csv").write_text("changed")
    html = make_dossier(run)
    assert "Stale." in html and "these files have changed: splits.csv." in html and "Not verified" not in html
    (run / "verification.json").write_text('{"figures": 3}')
    assert main(["report", str(run), "--for", "dossier"]) == 4
    assert "verification.json must hold what vitrail report RUN --verify writes" in capsys.readouterr().err


def test_authors_answers_join_the_page_and_are_never_overwritten(run, capsys):
    make_dossier(run)
    path = run / "dossier.toml"
    asked = path.read_text(encoding="utf-8")
    assert list(tomllib.loads(asked)) == [one.name for one in QUESTIONS]
    path.write_text(asked.replace('\nuse = ""', '\nuse = "To sort <cells> | by day."'), encoding="utf-8")
    assert main(["report", str(run), "--for", "dossier"]) == 0
    html, out = (run / "report.html").read_text(encoding="utf-8"), capsys.readouterr().out
    check_page(html)
    assert html.count("To sort &lt;cells&gt; | by day.") == 2 and html.count("not stated") == 1  # for whom it is not
    assert f"({len(QUESTIONS) - 1} questions open for its authors)" in out and "TRIPOD+AI: " in out
    assert 'use = "To sort' in path.read_text(encoding="utf-8")


def test_decisions_and_evaluations_elsewhere_are_in_it(run):
    opened = vitrail.open(run)
    opened.decide(at={"odd": 0.3}, keep="careful", by="A. Meier", use="careful")
    with pytest.warns(UserWarning, match="groups its pictures by 'part'"):
        opened.evaluate((IMAGES[:40], NAMES[:40]), out=run / "evaluations" / "others")
    html = opened.dossier().page.read_text(encoding="utf-8")
    check_page(html)
    text = plain(html)
    (updates,) = re.findall(r"<td>Results of updates</td><td>(.*?)</td>", html)
    assert 'href="#decisions"' in updates and "nothing" not in updates
    assert html == make_dossier(run) and re.search(r"Put to use [\d-]{10} [\d:]{5}: careful ?, by A. Meier", text)
    assert 'id="in_use"' not in html and 'id="not_for"' in html
    changes = int(re.search(r"from 0\.3000 on .*?A\. Meier (\d+) ", text)[1])
    decided, stored = (opened.metrics, json.loads((run / "metrics-test.json").read_text()))
    assert changes > 0 or decided.accuracy == stored["accuracy"]
    assert 'id="elsewhere"' in html and "evaluations/others/report.html" in html and "were tested" not in text
    assert main(["report", str(run / "evaluations" / "others"), "--for", "dossier"]) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("use = ", "must be TOML"),
        ('purpose = "x"', "Got purpose = 'x'"),
        ("use = 1", "Got use = 1"),
        ('field = "clinic"', "a field among medical, industrial, research. Got 'clinic'"),
    ],
)
def test_answers_that_are_none_are_refused_by_name(run, capsys, text, why):
    (run / "dossier.toml").write_text(text)
    assert main(["report", str(run), "--for", "dossier"]) == 4
    error = capsys.readouterr().err
    assert why in error and str(run / "dossier.toml") in error


def test_what_does_not_fit_is_refused(run, tmp_path, capsys):
    assert main(["report", str(tmp_path), "--for", "dossier"]) == 2
    assert main(["report", str(run), "--for", "dossier", "--positive", "odd"]) == 2
    assert "--positive is for a first page. Give --for radiology or --for inspection" in capsys.readouterr().err
    assert main(["report", str(run), "--for", "notary"]) == 2


def test_pictures_that_are_gone_cost_the_subgroups_alone(run, monkeypatch):
    plan = (run / "plan.toml").read_text().replace("cells.csv", "gone.csv")
    (run / "plan.toml").write_text(plan)
    html = make_dossier(run)
    check_page(html)
    assert re.search(r"Subgroups not available, because .*gone\.csv", plain(html))


def test_what_came_before_the_training_is_told(run):
    facts = provenance.read_facts(run)
    before = "[pretrain]\nsteps = 40\nextra_images = '/somewhere/films'\n[distill]\nteacher = 'cnn'\nalpha = 0.5\n"
    taught = "[distill]\nteacher = 'runs/old'\nkind = 'features'\nsteps = 7\n"
    own = f"seed = 0\n[model]\ninit = '{tomllib.loads(facts.plan)['model']['init']}'\n"
    told = [
        run_description._describe_initialization(
            RunRecord(facts=replace(facts, plan=own + more), metrics=facts.metrics[0])
        )
        for more in (before, taught)
    ]
    assert told[0].endswith(
        "from seed 0, then 40 steps of masked autoencoding of the training pictures and of films, without labels; in "
        "training, answers of a small CNN trained first on the same pictures are 50% of the loss."
    )
    assert told[1].endswith("from seed 0, then 7 steps of learning the features of runs/old.")
