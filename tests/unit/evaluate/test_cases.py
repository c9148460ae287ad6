"""Cases: pools of what the images of one group say, their fit on validation cases, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail import config
from vitrail.errors import DamagedFileError, DataError, UsageError
from vitrail.evaluate.calibration import TargetScaling
from vitrail.evaluate.cases import (
    CasePool,
    check_case_settings,
    describe_case_limits,
    find_case_targets,
    fit_case_pool,
    index_cases,
    predict_cases,
    read_case_pool,
)
from vitrail.evaluate.decisions import UNLIKE, Decisions, predictions_from_outputs
from vitrail.evaluate.predictions import read_class_predictions_csv
from vitrail.evaluate.probabilities import sigmoid, softmax
from vitrail.evaluate.thresholds import DecisionSettings

NAMES = ("sound", "defect")


def table_of(outputs, task="classification", names=NAMES, targets=None, scores=None, scaling=None):
    """Images with what a pool reads."""
    rows = [(f"films/{n}.png", f"{n}.png") for n in range(len(outputs))]
    table = predictions_from_outputs(task, outputs, names, scaling, rows, "test", targets)
    scores = np.zeros(len(outputs)) if scores is None else scores
    return replace(table, pool_inputs=np.column_stack([outputs, scores]).astype(np.float32))


def draw_bags(seed, cases=120, D=8, useful=1, size=4):
    """Outputs, features, targets and groups of cases of which some images show the class, by their first feature."""
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, 2, cases).repeat(size)
    groups = np.array([f"p{n}" for n in range(cases)]).repeat(size)
    shows = np.tile(np.arange(size) < useful, cases)
    signal = np.where(shows, 3.0, 0.0) * (2 * truth - 1) + generator.normal(0, np.where(shows, 1.0, 1.5))
    features = generator.normal(0, 1, (len(truth), D))
    features[:, 0] += 3 * shows
    return np.stack([-signal / 2, signal / 2], 1).astype(np.float32), features.astype(np.float32), truth, groups


def fit(bags, setting="auto", settings=None, task="classification"):
    outputs, features, truth, groups = bags
    settings = settings or DecisionSettings()
    return fit_case_pool(setting, task, settings, NAMES, None, outputs, features, truth, groups, ())


def answer(pool, bags):
    """The table of the images of bags, with their cases."""
    outputs, features, truth, groups = bags
    scored = table_of(outputs, targets=truth, scores=pool.score_images(features))
    return predict_cases(pool, "classification", None, scored, groups)


# -- Pools


def test_mean_is_the_mean_of_the_calibrated_probabilities():
    outputs = np.random.default_rng(0).normal(0, 2, (5, 3)).astype(np.float32)
    pool = CasePool(method="mean", temperature=(2.0,))
    done = predict_cases(pool, "classification", None, table_of(outputs, names=("a", "b", "c")), [7, 8, 7, 7, 8])
    said = softmax(outputs / 2)
    assert done.cases.ids == ("7", "8")
    np.testing.assert_allclose(done.cases.probabilities, [said[[0, 2, 3]].mean(0), said[[1, 4]].mean(0)], atol=1e-6)


def test_the_maximum_of_labels_is_that_of_each_and_of_numbers_the_largest():
    outputs = np.array([[-1.0, 2.0], [3.0, -2.0], [0.0, 0.0]], np.float32)
    pool = CasePool(method="max")
    labels = predict_cases(pool, "multilabel", None, table_of(outputs, "multilabel"), ["a", "a", "b"])
    np.testing.assert_allclose(labels.cases.probabilities, sigmoid(np.array([[3.0, 2.0], [0.0, 0.0]])), atol=1e-6)
    scaling = TargetScaling((100.0, 0.0), (10.0, 1.0))
    numbers = table_of(outputs, "regression", scaling=scaling)
    done = predict_cases(pool, "regression", scaling, numbers, ["a", "a", "b"])
    np.testing.assert_allclose(done.cases.values, [[130.0, 2.0], [100.0, 0.0]])


def test_the_maximum_of_two_classes_is_that_of_the_positive_one():
    outputs = np.array([[4.0, 0.0], [0.0, 1.0], [2.0, 0.0]], np.float32)
    decisions = Decisions(positive="defect", thresholds=(0.5,))
    done = predict_cases(CasePool(method="max", decisions=decisions), "classification", None, table_of(outputs), "aaa")
    np.testing.assert_allclose(done.cases.probabilities, softmax(outputs[[1]]), atol=1e-6)
    assert done.cases.labels == ("defect",) and done.cases.paths == ("films/1.png",)
    assert done.shares.tolist() == [0.0, 1.0, 0.0]


@given(seed=st.integers(0, 10**6), method=st.sampled_from(["mean", "max", "attention"]))
def test_the_order_of_the_images_changes_no_case_and_the_shares_of_each_sum_to_1(seed, method):
    generator = np.random.default_rng(seed)
    outputs = generator.normal(0, 3, (12, 2)).astype(np.float32)
    scores, groups, order = generator.normal(0, 3, 12), generator.integers(0, 4, 12), generator.permutation(12)
    pool = CasePool(method=method, query=(1.0,) * (method == "attention"))
    first = predict_cases(pool, "classification", None, table_of(outputs, scores=scores), groups)
    table = table_of(outputs[order], scores=scores[order])
    again = predict_cases(pool, "classification", None, table, groups[order])
    places = [again.cases.ids.index(name) for name in first.cases.ids]
    np.testing.assert_allclose(again.cases.probabilities[places], first.cases.probabilities, atol=1e-6)
    np.testing.assert_allclose(again.shares, first.shares[order], atol=1e-6)
    members = index_cases(groups)[1]
    np.testing.assert_allclose(np.bincount(members, first.shares), 1, atol=1e-6)


def test_a_case_of_one_image_is_answered_as_the_image():
    outputs = np.random.default_rng(1).normal(0, 2, (6, 2)).astype(np.float32)
    table = table_of(outputs, scores=outputs[:, 0])
    for method in ("mean", "max", "attention"):
        pool = CasePool(method=method, query=(1.0,) * (method == "attention"))
        done = predict_cases(pool, "classification", None, table, range(6))
        np.testing.assert_allclose(done.cases.probabilities, table.probabilities, atol=1e-6)
        assert done.cases.paths == table.paths


def test_a_case_is_unlike_the_training_where_all_of_its_images_are():
    table = replace(table_of(np.zeros((4, 2), np.float32)), abstain_reasons=(UNLIKE, "", UNLIKE, UNLIKE))
    done = predict_cases(CasePool(method="mean"), "classification", None, table, ["a", "a", "b", "b"])
    assert done.cases.abstain_reasons == ("", UNLIKE)


def test_cases_and_shares_are_columns_that_are_read_back(tmp_path):
    table = table_of(np.array([[1.0, 0], [0, 1], [3, 0]], np.float32), targets=np.array([0, 0, 1]))
    done = predict_cases(CasePool(method="mean"), "classification", None, table, ["=p 1", "=p 1", "p,2"])
    for one in (done, replace(done, decision="night")):
        one.write_csv(tmp_path / "test.csv")
        back = read_class_predictions_csv(tmp_path / "test.csv")
        assert back.case_names == ("=p 1", "=p 1", "p,2") and back.decision == one.decision
        np.testing.assert_array_equal(back.shares, done.shares)
    done.cases.write_csv(tmp_path / "cases.csv")
    cases = read_class_predictions_csv(tmp_path / "cases.csv")
    assert cases.ids == ("=p 1", "p,2") and cases.split == "test-cases" and cases.targets.tolist() == [0, 1]
    assert [row["case"] for row in done.records()] == list(done.case_names)


# -- Fitting


def test_of_one_good_and_three_useless_images_attention_finds_the_good_one():
    pool = fit(draw_bags(0))
    assert pool.method == "attention" and {one.method for one in pool.losses} == {"mean", "max", "attention"}
    done = answer(pool, draw_bags(1))
    plain = answer(fit(draw_bags(0), "mean"), draw_bags(1))
    right = [float((one.cases.indices == one.cases.targets).mean()) for one in (done, plain)]
    assert right[0] > right[1] + 0.05
    assert np.mean(np.array(done.cases.paths) == np.array(done.paths)[::4]) > 0.9  # the first of each four


@pytest.mark.parametrize("seed", range(5))
def test_where_no_feature_says_which_image_is_good_attention_is_not_taken(seed):
    outputs, features, truth, groups = draw_bags(seed, useful=4, D=64)
    features[:, 0] = 0
    pool = fit((outputs, features, truth, groups))
    assert pool.method != "attention" and "attention changes it by" in pool.reason


def test_the_fitted_query_has_the_smallest_loss_around_it():
    bags = draw_bags(3, cases=60, D=3)
    best = np.array(fit(bags, "attention").query)
    spread = bags[1].std(0)

    def loss(query, penalty=0.3):
        pool = CasePool(method="attention", query=tuple(query))
        pooled = pool.pool_images("classification", answer_inputs(pool, bags), index_cases(bags[3])[1])
        told = softmax(pooled.outputs)[np.arange(60), bags[2][::4]]
        return -np.log(told).mean() + penalty * np.square(query * spread).sum()

    at_best = [loss(best, penalty) for penalty in (0.3, 0.03, 0.003)]
    around = [
        min(loss(best + step, penalty) for step in 0.05 * np.concatenate([np.eye(3), -np.eye(3)]))
        for penalty in (0.3, 0.03, 0.003)
    ]
    assert any(here < near for here, near in zip(at_best, around, strict=True))


def answer_inputs(pool, bags):
    return np.column_stack([bags[0], pool.score_images(bags[1])])


def test_attention_to_labels_and_numbers_learns_too():
    outputs, features, truth, groups = draw_bags(0)
    labels = np.stack([truth, 1 - truth], 1).astype(np.float32)
    labels[::8, 1] = np.nan
    two = np.stack([outputs[:, 1], -outputs[:, 1]], 1) * 2
    pool = fit((two, features, labels, groups), task="multilabel")
    assert pool.method == "attention"
    scaling = TargetScaling((10.0,), (2.0,))
    numbers = scaling.unstandardize((2.0 * truth - 1)[:, None]).astype(np.float64)
    pool = fit_case_pool(
        "auto", "regression", DecisionSettings(), ("power",), scaling, outputs[:, 1:], features, numbers, groups, ()
    )
    assert pool.method == "attention" and len(pool.decisions.reach) == 1


def test_temperature_and_threshold_of_cases_are_fitted_to_cases():
    settings = DecisionSettings(positive="defect", threshold_rule="sensitivity 0.95")
    pool = fit(draw_bags(0), "mean", settings)
    assert pool.decisions.temperature and pool.decisions.chosen == (True,) and pool.cases == 120
    done = answer(pool, draw_bags(0))
    found = done.cases.indices[done.cases.targets == 1]
    assert (found == 1).mean() >= 0.95
    assert describe_case_limits(pool, "classification") == []
    few = fit(draw_bags(0, cases=12))
    assert "takes 20 validation cases and had 12" in describe_case_limits(few, "classification")[0]


def test_with_few_cases_attention_is_left_out_and_without_any_the_mean_is_taken():
    few = fit(draw_bags(0, cases=12))
    assert few.method in ("mean", "max") and "attention takes 20" in few.reason
    none = [each[:0] for each in draw_bags(0)]
    assert fit(none).method == "mean" and "no validation case" in fit(none).reason


# -- Targets of cases, and what is refused


def test_a_case_has_the_target_of_its_images_and_an_unknown_one_says_nothing():
    names, members = index_cases(["b", "a", "b", "c"])
    assert names == ("b", "a", "c") and members.tolist() == [0, 1, 0, 2]
    assert find_case_targets(np.array([-1, 0, 1, -1]), names, members, NAMES).tolist() == [1, 0, -1]
    labels = np.array([[np.nan, 0], [1, 1], [1, np.nan], [np.nan, np.nan]], np.float32)
    np.testing.assert_array_equal(find_case_targets(labels, names, members, NAMES)[[0, 2]], [[1, 0], [np.nan] * 2])


def test_a_case_with_two_targets_is_refused_by_its_name():
    names, members = index_cases(["b", "b", "a"])
    with pytest.raises(DataError, match=r"case 'b' has pictures of sound and of defect: group them by"):
        find_case_targets(np.array([0, 1, 1]), names, members, NAMES)
    with pytest.raises(DataError, match=r"case 'b' has pictures of defect 0 and 1"):
        find_case_targets(np.array([[1.0, 0], [1, 1], [0, 0]]), names, members, NAMES)


def test_what_cannot_be_had_is_refused_in_one_sentence():
    groups = np.array(["a"] * 10)
    check_case_settings("none", "anomaly", None, None, 0)
    check_case_settings("mean", "classification", groups, groups, 0)
    with pytest.raises(UsageError, match=r"pools answers of whole pictures.* the task is anomaly"):
        check_case_settings("max", "anomaly", groups, groups, 0)
    with pytest.raises(UsageError, match=r"these have no groups.*--group"):
        check_case_settings("auto", "classification", None, None, 0)
    with pytest.raises(UsageError, match=r"--folds trains several"):
        check_case_settings("auto", "classification", groups, groups, 5)
    with pytest.raises(UsageError, match=r"takes 20 of them; there are 1"):
        check_case_settings("attention", "classification", groups, groups, 0)
    table = table_of(np.zeros((2, 2), np.float32))
    with pytest.raises(UsageError, match=r"Each of 2 pictures needs the name of its case\. Got 1"):
        predict_cases(CasePool(method="mean"), "classification", None, table, ["a"])


def test_a_stored_pool_is_read_back_and_a_damaged_one_refused():
    pool = fit(draw_bags(0))
    info = {"cases": config.write(pool)}
    assert read_case_pool(info, "classification", NAMES, 8, "here") == pool
    assert read_case_pool({}, "classification", NAMES, 8, "here") is None
    for wrong in (
        {**info["cases"], "method": "median"}, {**info["cases"], "query": [1.0]},
        {**info["cases"], "temperature": [0.0]},
        {**info["cases"], "method": "mean"}, [], {**info["cases"], "decisions": {"temperature": [1.0, 2.0]}},
    ):  # fmt: skip
        with pytest.raises(DamagedFileError, match=r"here.*Use another copy"):
            read_case_pool({"cases": wrong}, "classification", NAMES, 8, "here")
    with pytest.raises(DamagedFileError, match=r"a pool for classification of width 9"):
        read_case_pool(info, "classification", NAMES, 9, "here")
