"""What a set shares loses its weight; what is a picture's own keeps it."""

from __future__ import annotations

import numpy as np

from vitrail.data.checks.near_duplicates import fit_whitening, natural_image_spectrum

GENERATOR = np.random.default_rng(0)
SHARED = GENERATOR.normal(size=(3, 30))


def rows(n: int) -> np.ndarray:
    """Much of three shared shapes, a little of their own."""
    own = GENERATOR.normal(size=(n, 30))
    return (5 + GENERATOR.normal(size=(n, 3)) * 10 @ SHARED + own).astype(np.float32)


def test_pictures_that_share_much_correlate_no_more_and_copies_still_do():
    found = rows(2000)
    white = fit_whitening(found, np.eye(30), prior_strength=10, noise_floor=1e-3)(found)
    plain = np.corrcoef(found[:200])
    assert np.abs(plain[np.triu_indices(200, 1)]).mean() > 0.4
    assert np.abs((white[:200] @ white[:200].T)[np.triu_indices(200, 1)]).mean() < 0.2
    noisy = fit_whitening(found, np.eye(30), prior_strength=10, noise_floor=1e-3)(found + 0.05 * rows(2000) / 10)
    assert (white * noisy).sum(1).min() > 0.9


def test_of_few_pictures_the_expectation_is_believed():
    expected = np.diag(1 / np.arange(1, 31)).astype(np.float64)
    found = fit_whitening(rows(1), expected, prior_strength=1e9, noise_floor=1e-9)
    scaled = found.matrix / found.matrix[0, 0]
    np.testing.assert_allclose(np.diag(scaled), np.sqrt(np.arange(1, 31)), rtol=1e-3)
    np.testing.assert_allclose(found.mean, 0, atol=1e-6)


def test_rows_have_length_one_or_none():
    found = rows(50)
    white = fit_whitening(found, np.eye(30), prior_strength=10, noise_floor=1e-3)
    np.testing.assert_allclose(np.linalg.norm(white(found), axis=1), 1, rtol=1e-4)
    assert not white(white.mean[None]).any()


def test_waves_of_photographs_fall_with_the_square_of_the_frequency():
    np.testing.assert_allclose(natural_image_spectrum(np.array([0, 3]), np.array([2, 4])), [1 / 4, 1 / 25])
