"""The next doubling is forecast from the last two."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.stats.doubling import PARTS, SHRINKAGES, forecast_doubling

FITS = np.array([4] * 8 + [2] * 4 + [1])


def drawn_fits(errors: dict[int, float], n: int, seed: int, groups: int = 0) -> np.ndarray:
    """Hits of fits to parts: an image is answered wrongly where its difficulty, and a little luck, are below a rate."""
    generator = np.random.default_rng(seed)
    difficulty = generator.random(n) if not groups else generator.random(groups)[np.arange(n) * groups // n]
    luck = generator.normal(0, 0.02, (len(FITS), n)) + generator.normal(0, 0.01 * FITS**0.5)[:, None]
    return (difficulty + luck > np.array([errors[count] for count in FITS])[:, None]).astype(float)


@pytest.mark.parametrize(("power", "groups"), [(0.3, 0), (0.7, 0), (0.5, 100)])
def test_the_interval_holds_the_next_point_of_a_power_law_in_nine_of_ten_studies(power, groups):
    errors = {count: 0.1 * count**power for count in PARTS}
    gain, found, held = 0.1 * (1 - 2**-power), [], []
    names = np.arange(500) * groups // 500 if groups else None
    for seed in range(120):
        forecast = forecast_doubling(drawn_fits(errors, 500, seed, groups), FITS, names)
        found.append(forecast.gain)
        held.append(forecast.interval.low <= gain <= forecast.interval.high)
    assert np.mean(held) >= 0.9
    assert np.mean(found) == pytest.approx(gain, abs=0.012)


def test_a_flat_curve_promises_little_and_a_steep_one_no_more_than_the_last_doubling():
    flat = forecast_doubling(drawn_fits({4: 0.2, 2: 0.2, 1: 0.2}, 2000, 0), FITS)
    steep = forecast_doubling(drawn_fits({4: 0.5, 2: 0.35, 1: 0.2}, 2000, 0), FITS)
    assert 0 <= flat.gain < 0.01 and flat.interval.low < 0 < flat.interval.high < 0.03
    last = steep.values[2] - steep.values[1]
    assert SHRINKAGES[0] * last < steep.gain < last + 0.01 and steep.interval.low > 0.02
    assert steep.values == pytest.approx((0.5, 0.65, 0.8), abs=0.03)


def test_groups_and_fewer_images_make_the_interval_wider():
    errors = {4: 0.3, 2: 0.2, 1: 0.14}
    fits = drawn_fits(errors, 600, 1, groups=60)
    one, grouped = forecast_doubling(fits, FITS), forecast_doubling(fits, FITS, np.arange(600) // 10)
    assert grouped.interval.high - grouped.interval.low > 1.3 * (one.interval.high - one.interval.low)
    again = forecast_doubling(fits, FITS)
    assert (one.gain, one.interval) == (again.gain, again.interval)


def test_fits_that_all_answer_alike_leave_what_no_image_has_shown():
    hits = np.tile(np.arange(300) % 10 > 0, (len(FITS), 1)).astype(float)
    forecast = forecast_doubling(hits, FITS)
    assert forecast.gain == 0 and forecast.interval == pytest.approx((-0.01, 0.01))
