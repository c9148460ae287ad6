"""Risk by coverage: against values by hand."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.errors import UsageError
from vitrail.evaluate.calibration import risk_coverage_curve


def test_four_pictures_by_hand():
    found = risk_coverage_curve(np.array([0.9, 0.6, 0.8, 0.7]), np.array([0.0, 1, 1, 0]))
    assert found.risk == pytest.approx([0, 1 / 2, 1 / 3, 2 / 4])
    assert found.coverage == pytest.approx([0.25, 0.5, 0.75, 1])
    assert found.aurc == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 4)


@pytest.mark.parametrize(("n", "wrong"), [(10, 3), (100, 10), (997, 250), (50, 0), (50, 50)])
def test_V6_the_area_equals_its_closed_form(n, wrong):
    def harmonic(m):
        return sum(1 / i for i in range(1, m + 1))

    right, surest_first = n - wrong, np.linspace(1, 0, n)
    last, first = np.repeat([0.0, 1.0], [right, wrong]), np.repeat([1.0, 0.0], [wrong, right])
    best = (wrong - right * (harmonic(n) - harmonic(right))) / n
    worst = (wrong + wrong * (harmonic(n) - harmonic(wrong))) / n
    assert risk_coverage_curve(surest_first, last).aurc == pytest.approx(best, abs=1e-12)
    assert risk_coverage_curve(surest_first, first).aurc == pytest.approx(worst, abs=1e-12)
    assert risk_coverage_curve(np.ones(n), first).aurc == pytest.approx(wrong / n, abs=1e-12)


def test_V6_guessed_confidences_have_the_error_rate_as_their_mean_area():
    generator, errors = np.random.default_rng(0), np.repeat([0.0, 1.0], [80, 20])
    areas = [risk_coverage_curve(generator.permutation(np.arange(100.0)), errors).aurc for _ in range(2000)]
    assert np.mean(areas) == pytest.approx(0.2, abs=4 * np.std(areas) / np.sqrt(2000))


def test_equally_sure_answers_share_their_errors():
    found = risk_coverage_curve(np.full(10, 0.5), (np.arange(10) < 3).astype(float))
    assert found.risk == pytest.approx([0.3] * 10)


def test_risk_at_a_coverage():
    found = risk_coverage_curve(np.linspace(1, 0, 10), np.array([0.0, 0, 0, 0, 1, 0, 0, 0, 0, 1]))
    assert found.risk_at(0.5) == pytest.approx(0.2)
    assert found.risk_at(0) == 0


def test_nothing_and_nan_are_refused():
    with pytest.raises(UsageError, match="Got 0 pictures"):
        risk_coverage_curve(np.zeros(0), np.zeros(0))
    with pytest.raises(UsageError, match="finite"):
        risk_coverage_curve(np.array([np.nan]), np.zeros(1))
