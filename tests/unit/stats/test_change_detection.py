"""Change detection: p-values as a slow loop gives them, fair bets, and no more false alarms than promised."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.stats import change_detection
from vitrail.stats.change_detection import NUM_BETS, ChangeDetector, ConformalRanks, is_upward, log_bets


def slow_p_values(before: list[float], values: np.ndarray, jitter: np.ndarray) -> list[float]:
    seen, found = list(before), []
    for value, u in zip(values.tolist(), jitter.tolist(), strict=True):
        larger, equal = sum(one > value for one in seen), 1 + sum(one == value for one in seen)
        found.append((larger + u * equal) / (len(seen) + 1))
        seen.append(value)
    return found


@pytest.mark.parametrize("n", [0, 1, 37])
def test_p_values_are_those_of_a_loop_with_ties_and_parts(n, monkeypatch):
    monkeypatch.setattr(change_detection, "CHUNK", 8)
    generator = np.random.default_rng(n)
    before, jitter = generator.integers(0, 9, n).astype(float), generator.random(50)
    values = generator.integers(0, 9, 50).astype(float)
    ranks = ConformalRanks(before)
    found = np.concatenate([ranks.add(values[:20], jitter[:20]), ranks.add(values[20:], jitter[20:])])
    np.testing.assert_allclose(found, slow_p_values(before.tolist(), values, jitter), rtol=1e-12)
    assert len(ConformalRanks(before).add(values[:0], jitter[:0])) == 0


def test_every_bet_is_fair_and_up_is_up():
    middles = (np.arange(2_000_000) + 0.5) / 2_000_000
    bets = np.exp(log_bets(middles))
    assert bets.shape[1] == NUM_BETS
    np.testing.assert_allclose(bets.mean(0), 1, atol=0.01)  # the ends of the tails have some of it
    ups = np.array([is_upward(bet) for bet in range(NUM_BETS)])
    assert ((bets[0] > bets[-1]) == ups).all() and ups.sum() == NUM_BETS // 2  # the smallest p is the largest value


@pytest.mark.parametrize(("images", "reference"), [(3, 20), (40, 300)])
def test_false_alarms_are_within_the_promise(images, reference):
    limit, days, alarms = 20.0, 60, 0
    for month in range(150):
        generator = np.random.default_rng((images, month))
        detector = ChangeDetector(generator.gamma(1, size=reference).round(1), limit)
        for _ in range(days):
            day = detector.add_day(generator.gamma(1, size=images).round(1), generator.random(images))
            alarms += day.evidence >= 1
    assert 0 < alarms <= 150 * days / limit  # the promise, and not an alarm that never comes


def test_a_change_is_noticed_in_its_direction_and_the_sum_begins_anew():
    generator = np.random.default_rng(0)
    detector, evidence = ChangeDetector(generator.normal(size=500), 300.0), []
    for number in range(20):
        values = generator.normal(size=50) - (1.0 if number >= 10 else 0.0)
        day = detector.add_day(values, generator.random(50))
        evidence.append(day.evidence)
        assert day.log_bets.shape == (50, NUM_BETS)
        if day.evidence >= 1:
            break
    assert max(evidence[:10]) < 1 and number in (10, 11) and not is_upward(day.bet)
    after = detector.add_day(generator.normal(size=1), generator.random(1))
    assert after.evidence < 0.05
