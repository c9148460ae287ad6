"""`vitrail report RUN --claim`: an appendix for papers, answered from the run, completed by its authors."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from vitrail.report import claim, provenance
from vitrail.report.claim import CLAIM_ITEMS

ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.*) \|$", re.MULTILINE)


def rows(run: Path) -> dict[int, str]:
    """Answer by number."""
    return {int(number): answer for number, _, answer in ROW.findall((run / "claim.md").read_text(encoding="utf-8"))}


@pytest.fixture
def run(run_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def test_V16_every_item_is_answered_or_asked_and_most_are_answered_by_the_run(vitrail, run):
    done = vitrail("report", run, "--claim")
    page, counts = done.out.splitlines()
    assert done.code == 0 and page == str(run / "report.html")
    found = rows(run)
    assert list(found) == list(range(1, 43)) and all(found.values())
    known = [number for number, answer in found.items() if not answer.startswith("*Open*")]
    assert counts == f"{run / 'claim.md'}  ({len(known)} items from the run, 0 from claim.toml, {42 - len(known)} open)"
    assert len(known) >= 20
    assert "plain Vision Transformer (vit_mu_patch8_16), which answers with one of 2 classes" in found[1]
    held_out = "test" if (run / "metrics-test.json").is_file() else "val"
    metrics = json.loads((run / f"metrics-{held_out}.json").read_text())
    assert f"Accuracy {100 * metrics['accuracy']:.1f} %" in found[36] and "by seed 0" in found[20]
    assert "8 steps of 4 images" in found[25] and "no figure chose it" in found[26] and "; torch 2." in found[23]
    assert "10 images in the partitions at first, 0 of the 10 looked at were unreadable; 10 were used." in found[33]
    assert "in patches of 8x8" in found[22] and "variety: flip, mixup 0.2" in found[25]


def test_what_came_before_the_training_is_told(run):
    path = run / "plan.toml"
    plan = tomllib.loads(path.read_text())
    plan["pretrain"] |= {"steps": 40, "extra_images": "/somewhere/films"}
    plan["distill"] |= {"teacher": "cnn"}
    known = provenance.read_facts(run)
    told = claim.RunRecord(known, plan, None, None, None, None, "")  # type: ignore[arg-type]  # not asked here
    expected = (
        f"Random values (scheme {plan['model']['init']}) from seed 0, then 40 steps of masked autoencoding of the "
        "training pictures and of films, without labels; in training, answers of a small CNN trained first on the same "
        "pictures are 50% of the loss."
    )
    assert claim._describe_initialization(told) == expected
    plan["pretrain"]["steps"] = 0
    plan["distill"] |= {"teacher": "runs/old", "kind": "features", "steps": 7}
    assert claim._describe_initialization(told).endswith(
        "from seed 0, then 7 steps of learning the features of runs/old."
    )


def test_what_only_the_authors_know_is_kept_and_joins_what_the_run_knows(vitrail, run):
    vitrail("report", run, "--claim")
    path = run / "claim.toml"
    asked = path.read_text(encoding="utf-8")
    assert {int(line.partition(" ")[0]) for line in asked.splitlines() if line[:1].isdigit()} == {
        item.number for item in CLAIM_ITEMS if item.question
    }
    path.write_text(asked.replace('5 = ""', '5 = "Retrospective | 2019."').replace('38 = ""', '38 = "One ward."'))
    edited = path.read_text(encoding="utf-8")
    said = json.loads(vitrail("report", run, "--claim", "--json").out)
    found = rows(run)
    assert found[5] == r"Retrospective \| 2019." and found[38].endswith("One ward.") and "of one source" in found[38]
    assert said["claim"] == str(run / "claim.md") and path.read_text(encoding="utf-8") == edited
    assert said["claim_open"] == sum(answer.startswith("*Open*") for answer in found.values())


@pytest.mark.parametrize(
    ("text", "why"),
    [("5 = ", "must be TOML"), ('43 = "x"', "Got 43 = 'x'"), ("5 = 1", "Got 5 = 1"), ('a = "b"', "Got a")],
)
def test_answers_that_are_none_are_refused_by_name(vitrail, run, text, why):
    (run / "claim.toml").write_text(text)
    done = vitrail("report", run, "--claim")
    assert done.code == 4 and why in done.err and str(run / "claim.toml") in done.err


def test_a_folder_without_a_run_is_refused(vitrail, tmp_path):
    assert vitrail("report", tmp_path, "--claim").code == 2 and not (tmp_path / claim.CLAIM_PAGE).exists()


def test_numbers_are_those_of_the_checklist_and_what_no_run_can_know_has_a_question():
    assert [item.number for item in CLAIM_ITEMS] == list(range(1, 43))
    assert all(CLAIM_ITEMS[number - 1].question for number in (3, 5, 8, 12, 14, 16, 18, 32, 40, 42))


def test_how_intervals_were_made_is_told_by_groups_where_there_are_some(run):
    assert "Wilson's for shares, Newcombe's score interval" in claim.claim_answers_from_run(run)[29]
    facts = json.loads((run / "report.json").read_text())
    for one in facts["metrics"]:
        one["groups"] = 7
    (run / "report.json").write_text(json.dumps(facts))
    told = claim.claim_answers_from_run(run)[29]
    assert told.startswith("95 % intervals, by 7 groups: Wilson's for shares and Newcombe's score interval")
    assert "in which groups and not images count" in told
    assert "whole groups were drawn" in told
