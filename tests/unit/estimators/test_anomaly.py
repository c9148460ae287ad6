"""`ViTAnomaly`: scikit-learn's outlier conventions, the run's promise behind them, and pickles."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import vitrail
from good_parts import draw_part, save_weights
from quick_fits import threads_kept  # noqa: F401 - a fixture
from vitrail.errors import UsageError

pytestmark = pytest.mark.usefixtures("threads_kept")
SETTINGS = {"compute.threads": 1, "compute.num_workers": 0}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "theirs")


def parts(count: int, first: int = 0, spot: bool = False) -> np.ndarray:
    return np.stack([draw_part(seed, spot) for seed in range(first, first + count)])


def test_defects_are_minus_one_and_below_zero(weights: Path):
    estimator = vitrail.ViTAnomaly(weights=weights, device="cpu", settings=SETTINGS)
    assert estimator.fit(parts(20)) is estimator
    X = np.concatenate([parts(6, 100), parts(6, 200, spot=True)])
    assert estimator.predict(X).tolist()[6:] == [-1] * 6 and (estimator.predict(X)[:6] == 1).sum() >= 5
    np.testing.assert_array_equal(estimator.decision_function(X) < 0, estimator.predict(X) == -1)
    np.testing.assert_allclose(estimator.decision_function(X), estimator.score_samples(X) - estimator.offset_)
    assert estimator.score_samples(X)[6:].max() < estimator.score_samples(X)[:6].min()
    assert estimator.run_.predictor.decisions.alpha == pytest.approx(1 / 21)
    assert estimator.transform(X).shape == (12, 24) and len(estimator.get_feature_names_out()) == 24
    opened = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(opened.predict(X), estimator.predict(X))


def test_groups_are_left_out_together_and_alpha_is_a_setting(weights: Path):
    settings = {**SETTINGS, "decisions.alpha": 0.5}
    estimator = vitrail.ViTAnomaly(weights=weights, device="cpu", settings=settings)
    estimator.fit(parts(12), groups=np.repeat(np.arange(4), 3))
    decisions = estimator.run_.predictor.decisions
    assert decisions.alpha == 0.5 and decisions.calibration_weights == pytest.approx((1 / 3,) * 12)


def test_it_predicts_what_it_was_fitted_to_at_once(weights: Path):
    found = vitrail.ViTAnomaly(weights=weights, device="cpu", settings=SETTINGS).fit_predict(parts(10))
    assert set(found.tolist()) <= {1, -1}


def test_steps_have_no_meaning(weights: Path):
    estimator = vitrail.ViTAnomaly(weights=weights, steps=3, device="cpu", settings=SETTINGS)
    with pytest.raises(UsageError, match="steps cannot be made"):
        estimator.fit(parts(4))
