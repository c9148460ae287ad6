"""The first pages for readers: every figure against the stored answers, every item there or not available because."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from unit.evaluate import test_regression_predictions
from unit.report.reader_sample import FINGERPRINT, HASH, labels, stored, two_classes, write
from unit.report.report_sample import predictions_of, run_folder
from unit.report.test_page import Balanced
from unit.report.test_task_pages import stored as stored_number
from vitrail.errors import DamagedFileError, UsageError
from vitrail.evaluate import thresholds
from vitrail.evaluate.decisions import Decisions
from vitrail.evaluate.learning_curve import LearningCurve
from vitrail.evaluate.thresholds import ThresholdRule
from vitrail.report import charts, extra_findings, page
from vitrail.report.audience import AudienceRequest
from vitrail.report.operating_points import binary_targets, compute_operating_points

RADIOLOGY, INSPECTION = AudienceRequest(audience="radiology"), AudienceRequest(audience="inspection")


def plain(html: str) -> str:
    """What a person reads."""
    text = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text).replace("&nbsp;", " ").split())


def rate(share: float) -> str:
    """A share as `plain` leaves it."""
    return page.format_rate(share).replace("\u202f", " ")


def built(folder, asked) -> str:
    return page.build_report(folder, asked).read_text(encoding="utf-8")


def whole(html: str) -> None:
    reader = Balanced()
    reader.feed(html)
    assert reader.open == [] and "{{" not in html and "{%" not in html
    own = re.sub(r"data:image/[a-z]+;base64,[^\"]+", "", html)
    assert not re.search(r"<script|<link|@import|url\(|https?://|//[a-z]|\son[a-z]+=|\bNone\b|\bnan\b|\binf\b", own)


@pytest.fixture
def cells(tmp_path):
    test, valid, decided = two_classes()
    silent = replace(test, abstain_reasons=("unlike",) * 7 + ("",) * 993)
    return stored(tmp_path, silent, valid, decided)


def test_radiology_says_misses_false_alarms_and_what_an_answer_is_worth_at_a_stated_prevalence(cells):
    html = built(cells, replace(RADIOLOGY, prevalence="0.05"))
    whole(html)
    test, _, decided = two_classes()
    (thing,) = binary_targets(test, decided, prevalences={"defect": 0.05})
    for share in (thing.miss_rate, thing.false_alarm_rate):
        assert f'<p class="big{" bad" if share is thing.miss_rate else ""}">{page.format_rate(share.value)}</p>' in html
        assert f"{page.format_rate(share.interval.low)} to&nbsp;{page.format_rate(share.interval.high)}" in html
    worth = thing.predictive_values.positive
    said = f"{rate(worth.value)} {rate(worth.interval.low)} to {rate(worth.interval.high)}"
    assert said in plain(html) and f"{rate(0.05)} as given" in plain(html)
    some = charts.expected_counts(thing)
    assert (
        f"{some.present} of {some.n:,} have it: {some.true_positives} found, {some.false_negatives} missed. "
        f"{some.false_positives} of the others" in plain(html)
    )
    assert "Not a medical device." in html


def test_V15_why_it_abstains_the_worst_failure_and_what_it_is_are_on_the_first_page(cells):
    for asked in (RADIOLOGY, INSPECTION):
        first = built(cells, asked).partition('id="report"')[0]
        text = plain(first)
        assert "7 unlike those of the training, 0 unsure" in text and "7 of 1,000 pictures" in text
        assert "nothing is left out for this" in text and "8 pictures of test are nearly the same" in text
        test, _, _ = two_classes()
        missed = np.flatnonzero((test.targets == 0) & (test.indices == 1))
        worst = missed[np.argmin(test.probabilities[missed, 0])]
        card = re.search(r"<h3>Worst failure</h3>(.*?)</div>", first, re.DOTALL)[1]
        assert f">{worst}</span>" in card and "<img " in card
        assert page.format_rate(float(test.probabilities[worst, 0])) in card
        assert HASH in first and FINGERPRINT in first and "Vitrail 0.1.0" in text
        assert first.count("not available, because") >= 4


@pytest.mark.wide
def test_pictures_that_stand_among_those_learnt_from_too_are_counted_before_any_figure(cells):
    check = json.loads((cells / "check.json").read_text(encoding="utf-8"))
    check["looked_at"] = check["pictures"]  # a busy machine looks at fewer
    for asked in (RADIOLOGY, INSPECTION):
        assert "as one that it has" not in plain(built(cells, asked))
    check["concerns"][0]["pictures"] = ["3", "9", "not of these"]
    write(cells / "check.json", check)
    for asked in (RADIOLOGY, INSPECTION):
        before = plain(built(cells, asked).partition('<div class="cards">')[0])
        assert (
            "2 of them are the same, or nearly, as one that it has learnt from , so its figures are too good ."
            in before
        )
        assert "At least" not in before


def test_copies_of_a_partial_check_are_called_at_least_and_none_is_not_said_of_the_others(cells):
    check = json.loads((cells / "check.json").read_text(encoding="utf-8"))
    write(cells / "check.json", {**check, "looked_at": 30})
    for asked in (RADIOLOGY, INSPECTION):
        first = plain(built(cells, asked).partition('id="report"')[0])
        assert "Copies of training pictures were looked for among only 30 of 120 pictures." in first
        assert "Copies and bad pictures were looked for among 30 of 120 pictures; vitrail check takes all." in first
    check["concerns"][0]["pictures"] = ["3", "9"]
    write(cells / "check.json", {**check, "looked_at": 30})
    before = plain(built(cells, RADIOLOGY).partition('<div class="cards">')[0])
    assert "At least 2 of them are the same" in before and "only 30 of 120 pictures were compared" in before
    write(cells / "check.json", {**check, "looked_at": 30, "concerns": []})
    assert "Among these 30 no contradicting labels" in plain(built(cells, RADIOLOGY))
    assert "the other 90 are not known" in plain(built(cells, RADIOLOGY))


def test_unanswered_pictures_are_named_with_their_reason_and_where_all_of_them_stand(cells):
    text = plain(built(cells, RADIOLOGY))
    assert "Here: 0 , 1 , 2 , 3 , 4 , 5 and 1 more." in text and text.count("Here: ") == 1
    assert "The column abstain of predictions/test.csv names every one." in text


@pytest.mark.wide
def test_a_failure_says_what_the_picture_is_and_what_was_said(cells, tmp_path):
    test, _, _ = two_classes()
    first = plain(built(cells, INSPECTION).partition('id="report"')[0])
    wrong = test.probabilities[(test.targets == 1) & (test.indices == 0), 0].max()
    assert f"is good , predicted defect at {rate(float(wrong))}" in first
    films, more = labels()
    folder = stored(tmp_path / "films", films, more, Decisions(thresholds=(0.5, 0.5, 0.5)))
    seen = plain(built(folder, RADIOLOGY).partition('id="report"')[0])
    assert re.search(r"Missed : labelled (mass|oedema) , the model gave it \S+ % \(it answers from 50.0 %\)", seen)
    assert re.search(r"not labelled (mass|oedema|rare) , the model gave it \d", seen)


def test_inspection_counts_escapes_and_false_rejects_in_a_shift(cells):
    asked = replace(INSPECTION, prevalence="defect=0.01", parts_per_minute=180.0, hours=8.0)
    html = built(cells, asked)
    whole(html)
    test, _, decided = two_classes()
    (thing,) = binary_targets(test, decided)
    escapes, rejects = 86_400 * 0.01 * thing.miss_rate.value, 86_400 * 0.99 * thing.false_alarm_rate.value
    text = plain(html)
    assert "in a shift of 8 hours at 180 parts a minute: 86,400 parts" in text
    for count, rate_of, words in ((escapes, thing.miss_rate, "in"), (rejects, thing.false_alarm_rate, "good parts in")):
        low, high = (page.format_expected_count(count / rate_of.value * end) for end in rate_of.interval)
        pictures = f"from {rate_of.num_true} picture{'s' if rate_of.num_true != 1 else ''}"
        assert f"{page.format_expected_count(count)} ({low} to {high}) {words} a shift, {pictures}" in text
    without = plain(built(cells, INSPECTION))
    _, valid, _ = two_classes()
    assert (
        f"Chosen on {(valid.targets == 0).sum()} pictures with it and {(valid.targets == 1).sum()} without" in without
    )
    expected = page.format_expected_count(1000 * thing.prevalence * thing.miss_rate.value)
    assert re.search(rf"{expected} \(\S+ to \S+\) in 1,000 parts, from {thing.miss_rate.num_true} pictures", without)
    assert "At most 4 ms" not in without and "ms: the whole evaluation" in without and "a slow one" in without


def test_thresholds_are_chosen_on_validation_pictures_and_measured_on_the_others():
    test, valid, decided = two_classes()
    (thing,), (basis,) = binary_targets(test, decided), binary_targets(valid, decided)
    found = compute_operating_points(thing, basis)
    by_rule = {row.rule: row for row in found.rows}
    for rule in ("specificity 0.98", "sensitivity 0.99", "cost 10"):
        cut = thresholds.choose_threshold(
            ThresholdRule.parse(rule), valid.targets == 0, valid.probabilities[:, 0].astype(np.float64)
        ).value
        said = test.probabilities[:, 0] >= cut
        assert by_rule[rule].threshold == cut
        assert by_rule[rule].miss_rate.value == pytest.approx((~said)[test.targets == 0].mean())
        assert by_rule[rule].false_alarm_rate.value == pytest.approx(said[test.targets == 1].mean())
    rising = [by_rule[f"specificity {1 - target:g}"].threshold for target in (0.05, 0.02, 0.01, 0.005)]
    assert rising == sorted(rising)


def test_a_grey_zone_leaves_few_failures_and_says_how_much_is_looked_at_again():
    test, valid, decided = two_classes()
    (thing,), (basis,) = binary_targets(test, decided, prevalences={"defect": 0.1}), binary_targets(valid, decided)
    for zone in compute_operating_points(thing, basis).zones:
        between = (thing.probabilities >= zone.low) & (thing.probabilities < zone.high)
        assert zone.low < zone.high and not zone.is_empty
        assert zone.miss_rate.value == pytest.approx((thing.probabilities < zone.low)[thing.present].mean())
        assert zone.false_alarm_rate.value == pytest.approx((thing.probabilities >= zone.high)[~thing.present].mean())
        again = 0.1 * between[thing.present].mean() + 0.9 * between[~thing.present].mean()
        assert zone.gray_share == pytest.approx(again)
        assert zone.miss_rate.value < zone.aim + 0.03 and zone.false_alarm_rate.value < zone.aim + 0.03


def test_where_one_threshold_does_both_there_is_no_grey_zone(tmp_path):
    test, valid, decided = two_classes()
    sure = replace(test, probabilities=np.eye(2, dtype=np.float32)[test.targets], predicted=test.targets)
    folder = stored(tmp_path, sure, replace(valid, probabilities=np.eye(2, dtype=np.float32)[valid.targets]), decided)
    html = built(folder, INSPECTION)
    whole(html)
    assert "none: one threshold does both" in html and "Not one of these answers is wrong." in html


def test_too_few_validation_pictures_offer_no_threshold():
    test, valid, decided = two_classes()
    basis = binary_targets(replace(valid, targets=np.ones(1000, np.int64)), decided)[0]
    found = compute_operating_points(binary_targets(test, decided)[0], basis)
    assert found.unavailable_reason.startswith("thresholds need 10 validation pictures with defect and 10 without it")
    assert found.unavailable_reason.endswith("there are 0 and 1,000") and len(found.rows) == 1


@pytest.mark.wide
def test_labels_have_a_line_each_and_a_rare_one_is_called_so(tmp_path):
    test, valid = labels()
    folder = stored(tmp_path, test, valid, Decisions(thresholds=(0.5, 0.5, 0.5)))
    for asked in (RADIOLOGY, INSPECTION):
        html = built(folder, asked)
        whole(html)
        first = plain(html.partition('id="report"')[0])
        assert "fewer than 10 pictures of a kind: rare" in first and "the highest of 3" in first
        for thing in binary_targets(test, Decisions()):
            assert f"{thing.positives} with, {thing.negatives} without" in first
    assert "each label is answered by itself" in first
    only = built(folder, replace(RADIOLOGY, positive="mass", prevalence="0.001")).partition('id="report"')[0]
    assert "oedema" not in only and re.search(r"(10 of 10,000|100 of 100,000) have it: ", plain(only))


def test_several_classes_are_told_each_against_the_rest(tmp_path):
    folder = stored(tmp_path, predictions_of(n=600), replace(predictions_of(n=600, seed=1), split="val"))
    html = built(folder, INSPECTION)
    whole(html)
    assert html.count("where likeliest") == 3 + 2 and "Taken for another" in html and "<b>bold" not in html
    whole(built(folder, RADIOLOGY))


@pytest.mark.wide
def test_patients_widen_the_intervals_and_the_page_says_what_they_count(tmp_path):
    test, valid, decided = two_classes()
    groups = np.argsort(np.argsort(test.probabilities[:, 0])) // 8  # pictures of one patient look alike
    folder = stored(tmp_path, test, valid, decided, groups=groups)
    assert "come in 125 groups, and intervals count groups" in plain(built(folder, RADIOLOGY))
    (thing,), (alone,) = binary_targets(test, decided, groups=groups), binary_targets(test, decided)
    span, narrow = thing.false_alarm_rate.interval, alone.false_alarm_rate.interval
    assert span.high - span.low > 1.5 * (narrow.high - narrow.low)
    assert rate(span.high) in plain(built(folder, RADIOLOGY))
    (folder / "groups.npy").unlink()
    assert "has not stored which belong together" in plain(built(folder, RADIOLOGY))


@pytest.mark.wide
def test_the_page_is_the_same_bytes_when_it_is_built_again_and_without_a_reader_as_it_was(cells):
    plainly = page.build_report(cells).read_bytes()
    for asked in (RADIOLOGY, INSPECTION):
        first = page.build_report(cells, asked).read_bytes()
        assert page.build_report(cells, asked).read_bytes() == first != plainly
    assert page.build_report(cells).read_bytes() == plainly and b"The whole report" not in plainly


def test_numbers_and_runs_without_a_manifest_or_validation_answers(tmp_path):
    folder = run_folder(tmp_path / "bare")
    html = built(folder, INSPECTION)
    whole(html)
    text = plain(html)
    assert "there is no bundle beside this page" in text and "the run did not note what its evaluation took" in text
    assert "No other pictures are stored" in text and "has no data.json" in text
    with pytest.raises(UsageError, match="--positive must be one of the classes cat"):
        page.build_report(folder, replace(RADIOLOGY, positive="cow"))


def test_what_evaluate_kept_beside_the_run_is_shown(cells):
    one = {"value": "night", "n": 40, "few": False, "worst": True, "figure": 0.5, "interval": [0.4, 0.6]}
    column = {"name": "shift", "slices": [one, {"value": "day", "n": 5, "few": True}]}
    slices = {"figure": "accuracy", "higher_is_better": True, "split": "test", "n": 45, "overall": 0.9, "judged": 1}
    write(cells / extra_findings.FINDING_FILES["slices"], {"slices": {**slices, "columns": [column]}})
    lines = ["id,path,given,suggested,score,reason", "7,7.png,good,defect,0.9,because"]
    (cells / extra_findings.SUSPECTS_FILE).write_text("\n".join(lines) + "\n")
    html = built(cells, INSPECTION)
    whole(html)
    text = plain(html)
    assert "shift night worst 40 0.500 0.400 to 0.600" in text and "7: given good, rather defect" in text
    assert "1 label is likely to be wrong" in text
    write(cells / extra_findings.FINDING_FILES["slices"], {"metrics": {}})
    with pytest.raises(DamagedFileError, match=r"slices\.json must hold slices, as vitrail evaluate --keep"):
        built(cells, INSPECTION)
    (cells / extra_findings.FINDING_FILES["slices"]).unlink()
    (cells / extra_findings.SUSPECTS_FILE).write_text("id,path\n")
    with pytest.raises(DamagedFileError, match=r"suspects\.csv must have the columns id,path,given"):
        built(cells, INSPECTION)


def test_a_kept_learning_curve_is_shown(cells):
    curve = LearningCurve(
        figure="accuracy", split="test", held_out=1200, images=(250, 500, 1000), values=(0.801, 0.85, 0.88), gain=0.02,
        gain_interval=(-0.01, 0.05),
    )  # fmt: skip
    extra_findings.save_extra_findings(cells, {"learning_curve": curve})
    html = built(cells, RADIOLOGY)
    whole(html)
    text = plain(html)
    assert "the accuracy by +2.0 points (95 % interval -1.0 to +5.0)" in text and "1,200 held-out pictures" in text
    assert "250 0.801 500 0.850 1,000 0.880 2,000, expected 0.900" in text


def test_disturbance_is_on_every_page_and_the_most_harmful_comes_first(cells):
    kinds = [{"kind": "lens_blur", "by_severity": [0.8] * 5, "mean": 0.8}]
    kinds.append({"kind": "jpeg", "by_severity": [0.5, 0.4, 0.3, 0.2, 0.1], "mean": 0.3})
    stood = {"suite": "films", "split": "test", "n": 500, "seed": 0, "figure": "accuracy", "higher_is_better": True}
    stood |= {"clean": 0.9, "mean": 0.55, "disturbances": kinds}
    write(cells / extra_findings.FINDING_FILES["robustness"], {"robustness": stood})
    for asked in (None, RADIOLOGY):
        html = built(cells, asked)
        whole(html)
        assert "jpeg 0.500 0.400 0.300 0.200 0.100 0.300 -0.600 lens blur 0.800" in plain(html)


def test_what_the_border_tells_is_on_every_page(cells):
    seen = {"figure": "accuracy", "split": "test", "n": 500, "guess": 0.5, "whole": 0.9, "whole_interval": [0.88, 0.92]}
    seen |= {"border": 0.8, "centre": 0.6, "kept_by_border": 0.75, "kept_by_centre": 0.25, "alarm": True}
    write(cells / extra_findings.FINDING_FILES["shortcuts"], {"shortcuts": seen})
    html = built(cells, RADIOLOGY)
    whole(html)
    text = plain(html)
    assert "Alarm. The border alone tells much" in text and "whole pictures 0.900 0.880 to 0.920" in text
    assert "their border, the outer eighth of each side 0.800 – 75" in text and "nothing (guessing) 0.500" in text
    write(cells / extra_findings.FINDING_FILES["shortcuts"], {"shortcuts": {**seen, "alarm": False}})
    assert "No alarm: by the border alone the model knows little." in plain(built(cells, INSPECTION))


def test_panes_are_a_hundred_and_say_what_they_show():
    drawing = charts.draw_icon_array(charts.IconArrayCounts(100, 6, 2, 5, 87), "a & b")
    assert drawing.count("M") == 100 and drawing.count("<path") == 4
    assert "Of 100, 8 have a &amp; b: 6 are found and 2 missed." in drawing


@pytest.mark.parametrize("prevalence", [0.5, 0.05, 0.02, 0.003])
def test_whole_people_say_what_the_rates_say(prevalence):
    test, _, decided = two_classes()
    (thing,) = binary_targets(test, decided, prevalences={"defect": prevalence})
    some = charts.expected_counts(thing)
    assert some.present == pytest.approx(some.n * prevalence, rel=0.15)
    assert some.false_negatives / some.present == pytest.approx(thing.miss_rate.value, rel=0.35)
    assert some.true_positives / some.present == pytest.approx(1 - thing.miss_rate.value, rel=0.35)
    alarms = some.false_positives / (some.n - some.present)
    assert alarms == pytest.approx(thing.false_alarm_rate.value, rel=0.35)
    assert sum(some[1:]) == some.n


def test_ten_per_cent_missed_of_two_in_a_hundred_are_not_nobody():
    rows = np.arange(1000)
    target = replace(
        binary_targets(*two_classes()[::2], prevalences={"defect": 0.02})[0],
        rows=rows, present=rows < 98, probabilities=np.full(1000, 0.5), predicted=(rows >= 10) & (rows < 250),
    )  # fmt: skip
    assert target.miss_rate.value == pytest.approx(0.102, abs=0.001)
    some = charts.expected_counts(target)
    assert (some.n, some.present, some.false_negatives) == (1000, 20, 2)
    drawing = charts.draw_icon_array(some, "it")
    assert drawing.count("M") == 1000 and "Of 1,000, 20 have it: 18 are found and 2 missed." in drawing


def test_what_a_probability_means_follows_the_stated_prevalence(cells):
    test, _, decided = two_classes()
    text = plain(built(cells, RADIOLOGY).partition('id="silence"')[0].partition('id="meaning"')[2])
    stated = plain(
        built(cells, replace(RADIOLOGY, prevalence="0.02")).partition('id="silence"')[0].partition('id="meaning"')[2]
    )
    (thing,) = binary_targets(test, decided)
    inside = (thing.probabilities >= 0.6) & (thing.probabilities < 0.8)
    share = thing.present[inside].mean()
    factor = 0.02 / 0.98 * thing.negatives / thing.positives
    assert rate(share) in text and rate(share) not in stated
    assert rate(factor * share / (factor * share + 1 - share)) in stated
    assert "moved to the stated prevalence by Bayes' formula" in stated and "at 2.0 %, as given" in stated


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0"), (0.43, "0.43"), (9.96, "10"), (43.7, "44"), (86400, "86,400"), (3.0, "3")]
)
def test_expected_counts_are_said_as_people_do(number, words):
    assert page.format_expected_count(number) == words


def test_rates_near_none_and_near_all_have_a_digit_more():
    words = [page.format_rate(share) for share in (0.00432, 0.0123, 0.0, 0.9987)]
    assert words == ["0.43\u202f%", "1.2\u202f%", "0.0\u202f%", "99.87\u202f%"]


def test_a_run_that_answers_with_numbers_has_no_first_page(tmp_path):
    truth = np.arange(40.0)
    stored_number(tmp_path, test_regression_predictions.table(truth, truth + 1, ("age",)))
    with pytest.raises(UsageError, match=r"--for inspection speaks of .* answers with numbers\. Leave --for out"):
        page.build_report(tmp_path, INSPECTION)


def test_costs_are_weighed_at_the_stated_share_and_an_aim_that_is_not_kept_is_marked():
    test, valid, decided = two_classes()
    (thing,), (basis,) = binary_targets(test, decided, prevalences={"defect": 0.01}), binary_targets(valid, decided)
    rows = {row.aim: row for row in compute_operating_points(thing, basis).rows}
    for cost, words in ((1.0, "an escape costs 1 false reject"), (100.0, "an escape costs 100 false rejects")):
        cuts = np.concatenate([basis.probabilities, [0.0, 1.1]])
        missed = np.array([(basis.probabilities < cut)[basis.present].mean() for cut in cuts])
        alarms = np.array([(basis.probabilities >= cut)[~basis.present].mean() for cut in cuts])
        prices = cost * 0.01 * missed + 0.99 * alarms
        row = rows[words]
        ours = cost * 0.01 * (basis.probabilities < row.threshold)[basis.present].mean()
        ours += 0.99 * (basis.probabilities >= row.threshold)[~basis.present].mean()
        assert ours == pytest.approx(prices.min(), rel=0.005)  # costs are written with three digits
    for target in (5, 2, 1, 0.5):
        rejects, escapes = (rows[f"{what} at most {target:g}\u202f%"] for what in ("false rejects", "escapes"))
        assert rejects.aim_met is (rejects.false_alarm_rate.value <= target / 100)
        assert escapes.aim_met is (escapes.miss_rate.value <= target / 100)
    assert len({row.aim_met for row in rows.values()}) == 2 and rows["as the model answers"].aim_met
