"""The nearest of a set against loops over every pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import UsageError
from vitrail.predict import embedder as module
from vitrail.predict.embedder import find_nearest


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    lengths = math.sqrt(float(one @ one)) * math.sqrt(float(other @ other))
    return float(one @ other) / lengths if lengths else 0.0


def slowly(asked: np.ndarray, among: np.ndarray, count: int, itself: bool) -> list[list[float]]:
    """For each asked vector the largest cosines."""
    return [
        sorted((cosine(a, b) for j, b in enumerate(among) if itself or i != j), reverse=True)[:count]
        for i, a in enumerate(asked.astype(np.float64))
    ]


@given(
    m=st.integers(1, 9), n=st.integers(2, 12), count=st.integers(1, 14), itself=st.booleans(), lot=st.integers(1, 60)
)
def test_every_pair_is_compared(m, n, count, itself, lot):
    generator = np.random.default_rng(m * 1000 + n * 10 + count)
    among = generator.normal(size=(n, 5)).astype(np.float32)
    asked = generator.normal(size=(m, 5)).astype(np.float32) if itself else among
    cells, module.MAX_SIMILARITIES = module.MAX_SIMILARITIES, lot
    try:
        found = find_nearest(asked, among, count, itself)
    finally:
        module.MAX_SIMILARITIES = cells
    np.testing.assert_allclose(found.similarities, slowly(asked, among, count, itself), atol=1e-6)
    for place, (rows, similarities) in enumerate(zip(found.rows, found.similarities, strict=True)):
        assert len(set(rows.tolist())) == len(rows) and (itself or place not in rows)
        assert [cosine(asked[place], among[row]) for row in rows] == pytest.approx(similarities.tolist(), abs=1e-6)


def test_equally_similar_ones_come_in_order_and_zeros_point_nowhere():
    among = np.array([[0, 2], [1, 0], [0, 1], [0, 0]], np.float32)
    found = find_nearest(np.array([[0, 5], [0, 0]], np.float32), among, 4)
    assert found.rows.tolist() == [[0, 2, 1, 3], [0, 1, 2, 3]]
    assert found.similarities.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]


def test_nothing_asked_gives_nothing():
    assert find_nearest(np.zeros((0, 2), np.float32), np.ones((3, 2), np.float32), 2).rows.shape == (0, 2)


def test_what_cannot_be_found_is_refused():
    vectors = np.ones((1, 3), np.float32)
    with pytest.raises(UsageError, match=r"At least one nearest picture must be asked for\. Got 0"):
        find_nearest(vectors, vectors, 0)
    with pytest.raises(UsageError, match=r"nothing to find among 1 picture but each itself"):
        find_nearest(vectors, vectors, 1, include_self=False)
    with pytest.raises(UsageError, match=r"Got 3 numbers a picture and 4"):
        find_nearest(vectors, np.ones((2, 4), np.float32), 1)
