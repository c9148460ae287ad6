"""Figures of decisions: counted by hand, intervals by simulation, and how much choosing among rules flatters them."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.evaluate.decision_figures import apply_decisions, compute_figures, count_changes, estimate_rate
from vitrail.evaluate.decisions import Decisions
from vitrail.evaluate.predictions import ClassificationPredictions
from vitrail.evaluate.rule_optimism import USUAL_RULES, LabelScores, measure_optimism
from vitrail.evaluate.thresholds import ThresholdRule, choose_threshold


def table(chances, targets, abstain=()):
    ids = tuple(map(str, range(len(targets))))
    chances = np.array(chances, np.float32)
    return ClassificationPredictions(
        paths=ids, ids=ids, split="test", targets=np.array(targets), classes=("no", "yes"),
        probabilities=np.stack([1 - chances, chances], 1), abstain_reasons=abstain,
    )  # fmt: skip


def test_figures_are_those_counted_by_hand():
    decided = Decisions(positive="yes", thresholds=(0.4,), chosen=(True,))
    given = apply_decisions(table([0.1, 0.45, 0.9, 0.3, 0.5, 0.2], [0, 0, 1, 1, 1, -1]), decided)
    found = compute_figures(given, decided, miss_cost=5, positive="yes")
    (one,) = found.labels
    assert (one.positives, one.negatives, one.misses, one.false_alarms) == (3, 2, 1, 1)
    assert one.sensitivity.value == pytest.approx(2 / 3) and one.specificity.value == 0.5
    assert one.prevalence == 0.6 and one.predictive.positive.value == pytest.approx(2 / 3)
    assert one.predictive.negative.value == 0.5
    assert one.cost.value == found.cost.value == pytest.approx(1000 * (5 + 1) / 5)
    assert found.accuracy.value == 0.6 and found.abstained.value == 0
    rare = compute_figures(given, decided, 5, {"yes": 0.1}, positive="yes").labels[0]
    assert rare.cost.value == pytest.approx(1000 * (0.1 * 5 / 3 + 0.9 / 2))
    assert rare.predictive.positive.value == pytest.approx(0.1 * 2 / 3 / (0.1 * 2 / 3 + 0.9 / 2))


def test_changes_are_counted_once_a_picture():
    given = table([0.1, 0.45, 0.9, 0.55, 0.7], [0, 0, 1, 1, 1], ("", "", "unlike", "", ""))
    by = {"old": Decisions(), "new": Decisions(positive="yes", thresholds=(0.4,))}
    old, new = (apply_decisions(given, one) for one in by.values())
    assert count_changes(old, new) == 1
    assert new.abstain_reasons == ("", "", "unlike", "", "")
    unsure = apply_decisions(given, Decisions(sure=0.6))
    assert unsure.abstain_reasons == ("", "unsure", "unlike", "unsure", "") and count_changes(old, unsure) == 2


def test_intervals_count_groups_where_there_are_any():
    mask, groups = np.arange(40) % 4 > 0, np.arange(40) // 20
    alone, together = estimate_rate(mask), estimate_rate(np.repeat([True, False], 20), groups)
    assert alone.interval.low > 0.5 and together.interval.low < 0.1
    assert estimate_rate(mask[:0]) is None


def test_intervals_of_costs_and_predictive_values_contain_the_truth():
    """PREVALENCE: 95 % intervals, with the room of 400 draws."""
    generator, held = np.random.default_rng(0), np.zeros(3)
    decided = Decisions(positive="yes", thresholds=(0.5,), chosen=(True,))
    for _ in range(400):
        positive = np.arange(400) < 80
        right = generator.random(400) < np.where(positive, 0.85, 0.95)
        given = apply_decisions(table(np.where(right == positive, 0.9, 0.1), positive.astype(int)), decided)
        one = compute_figures(given, decided, 4, {"yes": 0.05}, positive="yes").labels[0]
        truths = (1000 * (0.05 * 0.15 * 4 + 0.95 * 0.05), 0.05 * 0.85 / (0.05 * 0.85 + 0.95 * 0.05),
                  0.95 * 0.95 / (0.95 * 0.95 + 0.05 * 0.15))  # fmt: skip
        for k, (rate, truth) in enumerate(zip((one.cost, *one.predictive), truths, strict=True)):
            held[k] += rate.interval.low <= truth <= rate.interval.high
    assert ((held / 400 > 0.92) & (held / 400 < 0.98)).all(), held / 400


def draw(n, generator):
    positive = generator.random(n) < 0.3
    return LabelScores(positive, generator.normal(size=n) + 1.2 * positive)


def count_cost(scores, value):
    return 1000 * ((scores.probabilities >= value) != scores.positive).mean()


@pytest.mark.wide
def test_the_optimism_of_a_rule_and_of_the_best_of_ten_is_what_new_pictures_show():
    """Validation sets of 150, each judged on 50,000 new pictures."""
    generator = np.random.default_rng(0)
    new = draw(50_000, generator)

    def squash(scores):
        return scores._replace(probabilities=1 / (1 + np.exp(-scores.probabilities)))

    new, told, true = squash(new), [], []
    for seed in range(60):
        here = squash(draw(150, generator))
        told.append(measure_optimism(ThresholdRule("f1"), [here], 1.0, seed).best)
        values = [choose_threshold(ThresholdRule.parse(rule), *here[:2]).value for rule in USUAL_RULES]
        best = min(values, key=lambda value, here=here: count_cost(here, value))
        true.append(count_cost(here, best) - count_cost(new, best))
    assert np.mean(told) < 0 and np.mean(true) < 0
    assert abs(np.mean(told) - np.mean(true)) < 12, (np.mean(told), np.mean(true))


def test_optimism_needs_a_label_that_can_be_fitted_and_is_never_good_news():
    generator = np.random.default_rng(1)
    few = LabelScores(np.arange(100) < 5, generator.random(100))
    assert measure_optimism(ThresholdRule("f1"), [few]) is None
    positive = generator.random(300) < 0.4
    found = measure_optimism(ThresholdRule("cost", 2.0), [LabelScores(positive, generator.random(300))], 2.0)
    assert found.best < 0 and found.rule < 0 and found.rules == 10 and found.samples == 200
