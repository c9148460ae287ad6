"""Features in a pipeline, settings as parameters, seeds, two processes, and scikit-learn's words that are refused."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.ensemble import BaggingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline

import vitrail
from quick_fits import QUICK, SETTINGS, digits, threads_kept  # noqa: F401 - a fixture
from vitrail.errors import UsageError

pytestmark = pytest.mark.usefixtures("threads_kept")
X, Y = digits(90, 3)
KINDS = [vitrail.ViTClassifier, vitrail.ViTMultiLabel, vitrail.ViTRegressor]


@pytest.fixture(scope="module")
def fitted() -> vitrail.ViTClassifier:
    return vitrail.ViTClassifier(**QUICK).fit(X, Y)


def test_features_are_those_of_the_run_and_have_names(fitted):
    features = fitted.transform(X)
    assert features.dtype == np.float32 and features.shape == (90, 16)
    np.testing.assert_array_equal(features, fitted.run_.embed(list(X)).vectors)
    assert fitted.get_feature_names_out().tolist() == [f"vitclassifier{column}" for column in range(16)]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).transform(X[:5]), fitted.transform(X[:5]))
    frame = clone(fitted).set_output(transform="pandas").fit_transform(X, Y)
    assert isinstance(frame, pandas.DataFrame) and list(frame) == fitted.get_feature_names_out().tolist()
    np.testing.assert_array_equal(frame.to_numpy(), features)


@pytest.mark.wide
@pytest.mark.parametrize("kind", KINDS)
def test_features_feed_the_next_step_of_a_pipeline(kind):
    y = np.stack([Y == 1, Y == 2], 1).astype(float) if kind is vitrail.ViTMultiLabel else Y
    estimator = kind(**QUICK).fit(X, y)
    np.testing.assert_array_equal(kind(**QUICK).fit_transform(X, y), estimator.transform(X))
    if kind is vitrail.ViTClassifier:
        pipeline = make_pipeline(kind(**QUICK), LogisticRegression(max_iter=2000))
        assert pipeline.fit(X, Y).score(X, Y) > 0.4
        assert pipeline[:-1].get_feature_names_out()[0] == "vitclassifier0"


def test_logarithms_are_those_of_the_probabilities(fitted):
    with np.errstate(all="raise"):
        np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), fitted.predict_proba(X), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_each_setting_is_a_parameter(kind):
    estimator = kind(settings={"recipe.lr": 1e-3, "recipe.batch_size": 64})
    assert estimator.get_params()["settings__recipe.lr"] == 1e-3
    assert "settings__recipe.lr" not in estimator.get_params(deep=False)
    copy = clone(estimator).set_params(**{"settings__recipe.lr": 2e-3, "settings__model.depth": 2, "steps": 5})
    assert copy.settings == {"recipe.lr": 2e-3, "recipe.batch_size": 64, "model.depth": 2} and copy.steps == 5
    assert estimator.settings == {"recipe.lr": 1e-3, "recipe.batch_size": 64}, "the copy has settings of its own"
    assert copy.set_params(**{"settings__recipe.lr": None}).settings == {"recipe.batch_size": 64, "model.depth": 2}
    assert kind().set_params(**{"settings__recipe.lr": 1e-3}).settings == {"recipe.lr": 1e-3}
    both = kind().set_params(**{"settings__recipe.lr": 1, "settings": {"recipe.lr": 2, "seed": 3}})
    assert both.settings == {"recipe.lr": 1, "seed": 3}
    nested = make_pipeline(kind()).set_params(**{f"{kind.__name__.lower()}__settings__recipe.lr": 3e-3})
    assert nested[0].settings == {"recipe.lr": 3e-3}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("settings__recipe.lrr", r"^ViTClassifier: there is no setting recipe\.lrr\. Did you mean recipe\.lr\?$"),
        ("settings__learning_rate", r"there is no setting learning_rate\. It is called recipe\.lr here"),
        ("settings__steps", r"there is no setting steps\. Did you mean recipe\.steps\?"),
        (
            "learning_rate",
            r"^ViTClassifier has no parameter 'learning_rate'\. It is called settings__recipe\.lr here\.$",
        ),
        ("lr", r"no parameter 'lr'\. Give it as settings__recipe\.lr\.$"),
        ("minuets", r"no parameter 'minuets'\. Did you mean minutes\?"),
        ("seed", r"no parameter 'seed'\. It is called random_state here"),
        ("tol", r"no parameter 'tol'\. A training has a budget of minutes, epochs or steps"),
        ("model__depth", r"no parameter 'model__depth'\."),
    ],
)
def test_a_parameter_that_does_not_exist_is_refused_with_ours(name, words):
    estimator = vitrail.ViTClassifier(steps=3)
    with pytest.raises(UsageError, match=words):
        estimator.set_params(**{"steps": 5, name: 1})
    assert estimator.steps == 3 and estimator.settings is None, "nothing is half set"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "early_stopping",
            r"at whose end its learning rate is 0, so it is not stopped early; validation_fraction of the",
        ),
        ("n_iter_no_change", r"it is not stopped early"),
        ("tol", r"it is not stopped early"),
        ("warm_start", r"goes on by run_\.extend\(steps=\.\.\.\)"),
        ("n_jobs", r'settings=\{"compute\.threads": \.\.\.\} says'),
        ("seed", r"It is called random_state here\."),
        ("max_iter", r"It is called steps here\."),
        ("learning_rate_init", r"recipe\.lr"),
    ],
)
def test_words_of_scikit_learn_that_are_not_here_say_what_to_do(kind, name, words):
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{name}'\..*{words}"):
        kind(**{name: 1})


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_no_partial_fit_and_the_reason_is_given(kind):
    assert not hasattr(kind(), "partial_fit")
    with pytest.raises(AttributeError, match=rf"^{kind.__name__} has no partial_fit, because .* run_\.extend\("):
        kind().partial_fit(X, Y)


@pytest.mark.wide
def test_the_random_state_is_the_seed():
    estimator = vitrail.ViTClassifier(random_state=7, **QUICK)
    assert estimator.fit(X, Y).run_.plan.seed == estimator.fit(X, Y).run_.plan.seed == 7
    drawn = vitrail.ViTClassifier(random_state=np.random.RandomState(0), **QUICK)
    assert drawn.fit(X, Y).run_.plan.seed != drawn.fit(X, Y).run_.plan.seed
    bag = BaggingClassifier(vitrail.ViTClassifier(**QUICK), n_estimators=2, random_state=0)
    bag.fit(X.reshape(90, 64), Y)
    assert len({member.run_.plan.seed for member in bag.estimators_}) == 2


@pytest.mark.wide
def test_two_processes_fit_in_folders_and_with_threads_of_their_own():
    settings = {name: value for name, value in SETTINGS.items() if name != "compute.threads"}
    given = {**QUICK, "settings": settings | {"recipe.batch_size": 16}}
    found = cross_validate(vitrail.ViTClassifier(**given), X, Y, cv=2, n_jobs=2, return_estimator=True)
    first, second = found["estimator"]
    assert np.isfinite(found["test_score"]).all() and first.run_.path != second.run_.path
    cores = len(os.sched_getaffinity(0))
    assert sum(each.run_.plan.compute.threads for each in (first, second)) <= max(cores, 2)
    search = GridSearchCV(vitrail.ViTClassifier(**given), {"settings__recipe.lr": [1e-3, 2e-3]}, cv=2, n_jobs=2)
    assert search.fit(X, Y).predict(X).shape == (90,)


@pytest.mark.parametrize(
    "classes", [np.array([False, True, True]), np.array(["x", "yy", "z"]), np.array([1.0, 2.0, 4.0])]
)
def test_predicted_labels_have_the_dtype_of_the_labels(classes):
    estimator = vitrail.ViTClassifier(**QUICK).fit(X, classes[Y])
    assert estimator.classes_.dtype == classes.dtype == estimator.predict(X[:2]).dtype


@pytest.mark.wide
def test_columns_of_a_table_are_remembered():
    frame = pandas.DataFrame(X.reshape(90, 64).astype(float), columns=[f"pixel{column}" for column in range(64)])
    estimator = vitrail.ViTClassifier(**QUICK).fit(frame, pandas.Series(Y).map({0: "a", 1: "b", 2: "c"}))
    assert estimator.feature_names_in_[1] == "pixel1" and estimator.n_features_in_ == 64
    with pytest.raises(ValueError, match="feature names should match"):
        estimator.transform(frame.rename(columns={"pixel1": "other"}))
