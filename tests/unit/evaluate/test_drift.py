"""A stream day by day: what is measured, which images count, and what an alarm says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitrail.evaluate import drift
from vitrail.evaluate.drift import ScoredImages, collect_measures, watch_days

NAMES = ("cat", "dog", "emu")


def drawn(n: int, seed: int, per_day: int = 10, shift: float = 0.0, groups: int = 0) -> ScoredImages:
    """Images of n / per_day days; in groups of so many."""
    generator = np.random.default_rng(seed)
    scores = generator.dirichlet((4, 2, 1), n)
    times = np.datetime64("2026-11-01T09:00:00") + (np.arange(n) // per_day * 86400 + np.arange(n) % per_day)
    return ScoredImages(
        ids=tuple(f"{seed}-{row}.png" for row in range(n)),
        times=times.astype("datetime64[s]"),
        groups=np.array([f"{seed}-{row // groups}" for row in range(n)]) if groups else None,
        distances=generator.gamma(3, size=n) + shift,
        scores=scores,
        abstained=scores.max(1) < 0.45,
    )


def test_a_stream_like_the_reference_has_no_alarm_and_one_that_moves_has():
    reference = drawn(400, 0)
    measures, days = watch_days("classification", NAMES, reference, drawn(200, 1))
    assert measures == ("unlikeness", "confidence", *(f"probability of {name}" for name in NAMES))
    assert [day.date for day in days[:2]] == ["2026-11-01", "2026-11-02"] and len(days) == 20
    assert not any(day.alarms for day in days) and {(day.n, day.counted) for day in days} == {(10, 10)}
    moved = watch_days("classification", NAMES, reference, drawn(200, 1, shift=4.0))[1]
    first = next(day for day in moved if day.alarms)
    assert first.date <= "2026-11-03" and first.unlike is not None and first.unlike > 0.8
    (alarm,) = first.alarms
    assert str(alarm) == "unlikeness is larger"
    assert len(alarm.images) == 10 and alarm.images[0] in drawn(200, 1).ids


def test_images_of_an_alarm_come_with_the_most_telling_first():
    stream = drawn(40, 1, per_day=40)
    distances = stream.distances.copy()
    distances[[5, 9]] = 1000.0
    distances[10:] += 5
    alarm = watch_days("classification", NAMES, drawn(400, 0), replace(stream, distances=distances))[1][0].alarms[0]
    assert len(alarm.images) == drift.MAX_ALARM_IMAGES and set(alarm.images[:2]) == {stream.ids[5], stream.ids[9]}


def test_the_answer_does_not_depend_on_the_order_of_the_images():
    stream, reference = drawn(100, 1), drawn(300, 0)
    shuffled = stream.take(np.random.default_rng(0).permutation(100))
    assert watch_days("classification", NAMES, reference, shuffled) == watch_days(
        "classification", NAMES, reference, stream
    )


def test_a_day_that_is_looked_at_early_is_the_beginning_of_the_whole_day(monkeypatch):
    seen = []
    add = drift.ChangeDetector.add_day
    monkeypatch.setattr(drift.ChangeDetector, "add_day", lambda self, *day: seen.append(day) or add(self, *day))
    reference, stream = drawn(300, 0), drawn(20, 1, per_day=20)
    for some in (stream.take(np.arange(8)), stream):
        watch_days("classification", NAMES, reference, some)
    (early, early_jitter), (whole, whole_jitter) = seen[0], seen[5]
    assert np.array_equal(early, whole[:8]) and np.array_equal(early_jitter, whole_jitter[:8])


def test_one_image_of_each_group_counts_on_its_first_day_and_none_of_the_reference():
    reference, stream = drawn(400, 0, groups=4), drawn(60, 1, groups=6)
    stream.groups[:6] = reference.groups[0]
    days = watch_days("classification", NAMES, reference, stream)[1]
    assert [day.counted for day in days] == [1, 2, 2, 1, 2, 1] or sum(day.counted for day in days) == 9
    assert sum(day.n for day in days) == 60
    again = replace(stream, groups=np.repeat("one lot", 60))
    assert [day.counted for day in watch_days("classification", NAMES, reference, again)[1]] == [1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("respected", [True, False])
def test_copies_break_the_promise_unless_they_are_groups(respected):
    alarms = 0
    for month in range(40):
        single, generator = drawn(150, 100 + month, per_day=5), np.random.default_rng(month)
        rows = np.repeat(np.arange(150), 12)
        stream = replace(
            single.take(rows), ids=tuple(map(str, generator.permutation(len(rows)))),
            groups=rows.astype(str) if respected else None,
        )  # fmt: skip
        days = watch_days("classification", NAMES, drawn(300, 500 + month), stream, 0.5)[1]
        alarms += sum(len(day.alarms) for day in days)
    assert alarms <= 20 if respected else alarms > 20  # 0.5 a month


def test_the_measures_of_each_task():
    images = drawn(30, 0)
    two = replace(images, scores=images.scores[:, :2])
    assert list(collect_measures("classification", ("no", "yes"), two)) == [
        "unlikeness", "confidence", "probability of yes",
    ]  # fmt: skip
    plain = replace(images, distances=None)
    anomaly = replace(plain, scores=plain.scores[:, :1])
    assert list(collect_measures("anomaly", ("score",), anomaly)) == ["score"]
    assert list(collect_measures("multilabel", NAMES, plain)) == [f"probability of {name}" for name in NAMES]
    assert list(collect_measures("segmentation", ("sky", "sea"), replace(plain, scores=two.scores))) == [
        "area of sky", "area of sea",
    ]  # fmt: skip
    assert watch_days("regression", NAMES, images, plain)[0] == tuple(f"value of {name}" for name in NAMES)
    measures, days = watch_days("anomaly", ("score",), anomaly, anomaly)
    assert measures == ("score",) and days[0].unlike is None


def test_the_allowed_false_alarms_are_divided():
    for measures in (["unlikeness"], ["score"], ["unlikeness", "a", "b"], ["a", "b"]):
        assert sum(drift._share_alarms(measures).values()) == pytest.approx(1)
    assert drift._share_alarms(["unlikeness", "a", "b"]) == {"unlikeness": 0.5, "a": 0.25, "b": 0.25}
