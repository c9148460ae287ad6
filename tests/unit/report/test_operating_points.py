"""What is looked for, and how often it is missed or seen where it is not: against the tables that it comes from."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from unit.report.reader_sample import labels, two_classes
from unit.report.report_sample import predictions_of
from vitrail.errors import DamagedFileError, UsageError
from vitrail.evaluate.decisions import Decisions
from vitrail.report import provenance
from vitrail.report.audience import AudienceRequest
from vitrail.report.operating_points import binary_targets
from vitrail.report.proportions import estimate_proportion
from vitrail.stats.intervals import wilson_interval


def test_the_named_class_of_two_is_looked_for_with_its_threshold():
    test, _, decided = two_classes()
    (thing,) = binary_targets(test, decided)
    assert (thing.name, thing.threshold) == ("defect", decided.thresholds[0])
    has_it, said = test.targets == 0, test.indices == 0
    assert thing.miss_rate.value == pytest.approx((~said)[has_it].mean()) and thing.miss_rate.n == has_it.sum()
    assert thing.false_alarm_rate.value == pytest.approx(said[~has_it].mean())
    assert thing.predictive_values.positive.value == pytest.approx(has_it[said].mean())
    assert thing.predictive_values.negative.value == pytest.approx((~has_it)[~said].mean())


def test_of_two_classes_without_a_name_the_rarer_one_is_looked_for_and_of_several_each():
    test, _, decided = two_classes(positive="")
    few = np.flatnonzero(test.targets == 0)[::4]
    kept = np.sort(np.concatenate([few, np.flatnonzero(test.targets == 1)]))
    part = predictions_like(test, kept)
    (thing,) = binary_targets(part, decided)
    assert (thing.name, thing.threshold, thing.rule_words) == ("defect", None, "where likeliest")
    assert [one.name for one in binary_targets(part, decided, "good")] == ["good"]
    three = binary_targets(predictions_of(), Decisions())
    assert len(three) == 3 and [one.positives + one.negatives for one in three] == [40, 40, 40]


def predictions_like(test, rows):
    return replace(
        test,
        paths=tuple(test.paths[row] for row in rows),
        ids=tuple(test.ids[row] for row in rows),
        targets=test.targets[rows],
        probabilities=test.probabilities[rows],
        predicted=test.indices[rows],
        abstain_reasons=(),
    )


def test_of_labels_only_known_pictures_count_and_a_stated_prevalence_counts_more_than_theirs():
    test, _ = labels()
    things = binary_targets(test, Decisions(thresholds=(0.5, 0.5, 0.5)), prevalences={"mass": 0.02})
    for place, thing in enumerate(things):
        known = test.known_mask[:, place]
        assert thing.rows.tolist() == np.flatnonzero(known).tolist()
        has_it = test.targets[known, place] == 1
        assert thing.miss_rate.value == pytest.approx((test.probabilities[known, place] < 0.5)[has_it].mean())
    assert things[0].prevalence == 0.02 and things[0].prevalence_given
    assert not things[1].prevalence_given and things[1].prevalence == pytest.approx(things[1].present.mean())


def test_a_threshold_that_the_answers_do_not_follow_is_not_shown():
    test, _ = labels()
    assert binary_targets(test, Decisions(thresholds=(0.9, 0.5, 0.5)))[0].rule_words == "by each model's own"


def test_a_share_has_wilsons_interval_and_with_groups_a_wider_one():
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 5)
    which = np.repeat(generator.random(60) < 0.3, 5)  # all pictures of a patient alike
    alone, together = estimate_proportion(which), estimate_proportion(which, groups)
    assert alone.interval == wilson_interval(int(which.sum()), 300)
    assert together.value == alone.value
    width, wide = (one.interval.high - one.interval.low for one in (alone, together))
    assert 1.8 < wide / width < 2.7  # the square root of 5
    assert estimate_proportion(np.zeros(300, bool), groups).interval == wilson_interval(0, 60)
    assert estimate_proportion(np.zeros(0, bool)) is None


def test_groups_come_back_as_numbers_and_others_are_refused(tmp_path):
    provenance.save_groups(tmp_path, np.array(["b", "a", "b"]))
    assert provenance.load_groups(tmp_path, 3).tolist() == [1, 0, 1]
    with pytest.raises(DamagedFileError, match=r"each of 4 rows of predictions\. Got int64 \[3\]"):
        provenance.load_groups(tmp_path, 4)
    (tmp_path / provenance.GROUPS_FILE).write_bytes(b"no")
    with pytest.raises(DamagedFileError, match="one whole number for each of 3 rows"):
        provenance.load_groups(tmp_path, 3)
    provenance.save_groups(tmp_path / "none", None)
    assert provenance.load_groups(tmp_path / "none", 3) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"audience": "radiology", "hours": 8.0}, r"--parts-per-minute and --hours are for --for inspection"),
        ({"audience": "inspection", "hours": 8.0}, r"Give both or neither"),
        (
            {"audience": "inspection", "hours": 8.0, "parts_per_minute": -1.0},
            r"--parts-per-minute must be above 0\. Got",
        ),
    ],
)
def test_what_makes_no_sense_together_is_refused(words, said):
    with pytest.raises(UsageError, match=said):
        AudienceRequest(**words)


def test_a_run_is_asked_what_it_can_answer():
    asked = AudienceRequest(audience="radiology", positive="mass")
    with pytest.raises(UsageError, match=r"--for radiology speaks of .* and this run answers with numbers"):
        asked.check_run("regression", ("age",))
    with pytest.raises(UsageError, match=r"--positive must be one of the labels oedema, rare\. Got 'mass'"):
        asked.check_run("multilabel", ("oedema", "rare"))
    asked.check_run("multilabel", ("mass", "rare"))


@pytest.mark.parametrize(
    ("text", "names", "said"),
    [
        ("0.1", ("mass", "rare"), r"is one share, and this page speaks of 2: write --prevalence mass=0\.1,rare="),
        ("lump=0.1", ("mass",), r"must name one of mass\. Got 'lump'"),
        ("mass=2", ("mass",), r"between 0 and 1, for example 0\.05\. Got '2'"),
        ("much", ("mass",), r"between 0 and 1, for example 0\.05\. Got 'much'"),
    ],
)
def test_a_prevalence_that_says_nothing_is_refused(text, names, said):
    with pytest.raises(UsageError, match=said):
        AudienceRequest(audience="radiology", prevalence=text).parse_prevalences(names)


def test_prevalences_are_read_by_name():
    both = AudienceRequest(audience="radiology", prevalence="mass=0.1, rare=0.001").parse_prevalences(
        ("mass", "oedema", "rare")
    )
    assert both == {"mass": 0.1, "rare": 0.001}
    assert AudienceRequest(audience="radiology", prevalence="0.2").parse_prevalences(("mass",)) == {"mass": 0.2}
    assert AudienceRequest(audience="inspection", parts_per_minute=180.0, hours=16.0).parts_per_shift == 172_800


def test_a_stricter_threshold_never_shows_a_higher_bound_of_false_alarms_with_groups():
    test, _, decided = two_classes()
    (target,) = binary_targets(test, decided, groups=np.arange(1000) // 8)
    cuts = np.sort(target.probabilities)[::25]
    rates = [target.proportion_of_negatives(target.probabilities >= cut) for cut in [*cuts, 1.1]]
    assert rates[-1].value == 0
    for looser, stricter in pairwise(rates):
        assert stricter.interval.high <= looser.interval.high and stricter.interval.low <= looser.interval.low
