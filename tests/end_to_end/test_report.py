"""`vitrail report`: the bytes that the training wrote, a first page for a reader, and what cannot be asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def run(run_folder: Path, tmp_path: Path) -> Path:
    """A copy, so that other tests find the run as it was."""
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def test_V14_two_rebuilds_and_the_page_that_training_wrote_are_the_same_bytes(vitrail, run):
    written = (run / "report.html").read_bytes()
    for _ in range(2):
        (run / "report.html").unlink()
        assert vitrail("report", run).code == 0
        assert (run / "report.html").read_bytes() == written
    assert vitrail("report", run, "--for", "radiology").code == 0
    assert (run / "report.html").read_bytes() != written
    assert json.loads(vitrail("report", run, "--json").out) == {"report": str(run / "report.html")}
    assert (run / "report.html").read_bytes() == written


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--for", "radiology", "--prevalence", "0.02"), "Not a medical device."),
        (
            ("--for", "inspection", "--positive", "disc", "--parts-per-minute", "180", "--hours", "8"),
            "in a shift of 8 hours at 180 parts a minute: 86,400 parts",
        ),
    ],
)
def test_a_reader_has_a_first_page_in_the_same_file(words, says, vitrail, run):
    answer = vitrail("report", run, *words)
    assert answer.code == 0, answer.err
    html = (run / "report.html").read_text(encoding="utf-8")
    assert says in html.replace("<b>", "").replace("</b>", "")
    assert html.index('<section class="first"') < html.index('id="report"') < html.index("How to repeat it")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--for", "surgery"), "--for must be one of radiology, inspection, dossier. Got 'surgery'."),
        (("--prevalence", "0.1"), "--prevalence is for a first page. Give --for radiology or --for inspection too."),
        (("--for", "inspection", "--hours", "8"), "Give both or neither."),
        (("--for", "inspection", "--positive", "cow"), "must be one of the classes disc, stripes. Got 'cow'"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(words, says, vitrail, run):
    answer = vitrail("report", run, *words)
    assert answer.code == 2 and says in answer.err


def test_the_model_card_of_the_bundle_has_the_figures_of_the_test(run):
    card, figures = (run / "model" / "README.md").read_text(), json.loads((run / "metrics-test.json").read_text())
    low, high = figures["accuracy_interval"]
    assert f"| Accuracy | {100 * figures['accuracy']:.1f} % | {100 * low:.1f} % to {100 * high:.1f} % |" in card
    assert json.loads((run / "data.json").read_text())["fingerprint"] in card
    assert "## What it is worth" in card and "test pictures that it has not learnt from of flowers" in card
