"""Drift of a stream of images: features and scores of every day compared with images that a run has held out.

The promise, at most so many false alarms in thirty days on average, holds while the images of the stream are
exchangeable with the reference and with each other: for any model, any number of images a day, and at every moment of
looking. With groups, such as patients, one image of each group counts, at random, and groups must be exchangeable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from .. import config
from ..data.source import Task
from ..formatting import format_count
from ..stats.change_detection import ChangeDetector, is_upward
from .subgroups import SubgroupReport

MONTH_DAYS = 30
FALSE_ALARMS = 0.1
"""Default of the false alarms in a month."""
MAX_ALARM_IMAGES = 12
NOTABLE = 3.0
"""Standard errors by which a score has moved where a day names it."""
UNLIKE, CONFIDENCE, SCORE = "unlikeness", "confidence", "score"
UNLIKE_WEIGHT = 0.5
"""Share of the allowed false alarms that unlikeness gets; the other measures divide the rest."""
OUTPUT_WORDS = {"regression": "value of", "segmentation": "area of"}


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredImages:
    """What a model has computed for n images."""

    ids: tuple[str, ...]
    """The path of each image, or its name."""
    times: Shaped[np.ndarray, " n"]
    """datetime64[s] of each image; those of a reference mean nothing."""
    groups: Shaped[np.ndarray, " n"] | None
    """The group of each image, such as its patient."""
    distances: Float64[np.ndarray, " n"] | None
    """Out-of-distribution distances; None where the model has none."""
    scores: Float64[np.ndarray, "n K"]
    """Probabilities, predicted numbers, areas, or the one anomaly score."""
    abstained: Bool[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Int64[np.ndarray, " m"]) -> ScoredImages:
        """Some of the images."""
        return replace(
            self,
            ids=tuple(self.ids[row] for row in rows.tolist()),
            times=self.times[rows],
            groups=None if self.groups is None else self.groups[rows],
            distances=None if self.distances is None else self.distances[rows],
            scores=self.scores[rows],
            abstained=self.abstained[rows],
        )


@dataclass(frozen=True, kw_only=True)
class DriftAlarm:
    """A measure that has reached its limit."""

    measure: str
    direction: str
    """larger or smaller: what most of the evidence is for."""
    images: tuple[str, ...]
    """The images of the day that have added most to it, first the most."""

    def __str__(self) -> str:
        return f"{self.measure} is {self.direction}"


@dataclass(frozen=True, kw_only=True)
class WatchDay:
    """One day of the stream."""

    date: str
    n: int
    """Number of images."""
    counted: int
    """Images that the test counts: with groups the first of each group that is new."""
    unlike: float | None = None
    """Chance that an image of the day is less like the training than one of the reference; 0.5 without change."""
    moved: str
    """Of the other measures the one that has moved most; empty where none has moved by three standard errors."""
    moved_to: float | None = None
    """Chance that this measure is larger for an image of the day than for one of the reference."""
    abstained: float
    """Share of images without an answer."""
    evidence: float
    """Of the measure that is nearest to its limit, as a fraction of the limit."""
    alarms: tuple[DriftAlarm, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WatchReport:
    """The days of a stream, and what has moved."""

    run: str
    since: str
    reference: str
    """What the stream is compared with."""
    reference_abstained: float
    """Share of its images without an answer."""
    false_alarms: float
    """Promised: at most so many false alarms in 30 days on average."""
    grouped: bool
    """Whether the promise counts groups."""
    measures: tuple[str, ...]
    days: tuple[WatchDay, ...]
    performance: str = ""
    """The primary metric of the images whose labels are known, in a sentence; empty without labels."""
    held_out_performance: str = ""
    """That of the run's held-out images."""
    months: SubgroupReport | None = None
    """The primary metric of each month with its interval."""
    notes: tuple[str, ...] = ()
    page: str = ""
    """Path of the page."""

    @property
    def alarms(self) -> tuple[tuple[str, DriftAlarm], ...]:
        """(date, alarm) of all alarms."""
        return tuple((day.date, alarm) for day in self.days for alarm in day.alarms)

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return config.write(self)

    def promise(self) -> str:
        """The promise in a sentence."""
        return describe_promise(self.false_alarms, self.grouped)

    def headline(self) -> str:
        """The result in a sentence."""
        count, days = sum(day.n for day in self.days), format_count(len(self.days), "day")
        where = f"{days} with {format_count(count, 'picture')} since {self.since}"
        if not self.alarms:
            return f"No change found in {where}."
        (first, alarm), (date, last) = self.alarms[0], self.alarms[-1]
        until = "" if len(self.alarms) == 1 else f", the last on {date}: {last}"
        count_of = format_count(len(self.alarms), "alarm")
        return f"{count_of} in {where}{', the first' * bool(until)} on {first}: {alarm}{until}."

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """A line a day, for the terminal."""
        width = max([len(describe_move(day)) for day in self.days] + [10])
        lines = [f"{'day':<10}  {'n':>7}  unlike  {'moved most':<{width}}  abstained  evidence"]
        for day in self.days:
            unlike = "     -" if day.unlike is None else f"{day.unlike:6.2f}"
            alarms = f"  ALARM: {'; '.join(map(str, day.alarms))}" if day.alarms else ""
            lines.append(
                f"{day.date}  {day.n:>7,}  {unlike}  {describe_move(day):<{width}}  {day.abstained:>9.1%}  "
                f"{format_evidence(day.evidence):>8}{alarms}"
            )
        for date, alarm in self.alarms[-1:]:
            lines += [f"Pictures that moved it on {date}:", *(f"  {name}" for name in alarm.images)]
        lines += [self.headline(), f"Compared with {self.reference}. {self.promise()}"]
        if self.performance:
            lines += [self.performance, *([f"Before: {self.held_out_performance}"] * bool(self.held_out_performance))]
        return "\n".join(lines if self.months is None else [*lines, self.months.table()])


def describe_promise(false_alarms: float, grouped: bool) -> str:
    """What a watch promises, in a sentence."""
    unit = "groups" if grouped else "pictures"
    return (
        f"Without a change at most {false_alarms:g} false alarms in {MONTH_DAYS} days on average, for any "
        f"number of pictures a day, if {unit} come as those of the reference did, each alone."
    )


def describe_move(day: WatchDay) -> str:
    """The score that has moved most, and how far."""
    return "-" if day.moved_to is None else f"{day.moved} {day.moved_to:.2f}"


def format_evidence(evidence: float) -> str:
    """A fraction of the limit in few letters."""
    if evidence < 0.005:
        return "<0.01"
    return f"{evidence:.2f}" if evidence < 100 else f"{evidence:,.0f}" if evidence < 1e6 else ">999,999"


def collect_measures(task: Task, names: Sequence[str], images: ScoredImages) -> dict[str, Float64[np.ndarray, " n"]]:
    """The numbers that are watched, by name; of two classes the probability of the second says all."""
    measures = {} if images.distances is None else {UNLIKE: images.distances}
    if task == "anomaly":
        return {**measures, SCORE: images.scores[:, 0]}
    if task == "classification":
        measures[CONFIDENCE] = images.scores.max(1, initial=0)
    words, first = OUTPUT_WORDS.get(task, "probability of"), int(task == "classification" and len(names) == 2)
    return {**measures, **{f"{words} {names[k]}": images.scores[:, k] for k in range(first, len(names))}}


def watch_days(
    task: Task, names: Sequence[str], reference: ScoredImages, stream: ScoredImages, false_alarms: float = FALSE_ALARMS
) -> tuple[tuple[str, ...], tuple[WatchDay, ...]]:
    """The measures, and the days of a stream in order.

    Args:
        names: of the scores.
        reference: at least one image.
        false_alarms: at most so many in 30 days on average, over all measures together.
    """
    order = np.lexsort((_draw_uniform(stream)[0], stream.times))
    reference, stream = reference.take(_one_per_group(reference)), stream.take(order)
    now = collect_measures(task, names, stream)
    before = collect_measures(task, names, reference)
    before = {name: values for name, values in before.items() if name in now}  # a log may lack the distances
    shares = _share_alarms(list(before))
    detectors = {
        name: ChangeDetector(values, MONTH_DAYS / (false_alarms * shares[name])) for name, values in before.items()
    }
    sorted_before = {name: np.sort(values) for name, values in before.items()}
    counted, jitter = _find_new_groups(stream, reference), _draw_uniform(stream)[1]
    days = []
    for date, rows in _split_days(stream):
        tested = rows[counted[rows]]
        evidence, alarms = 0.0, []
        for name, detector in detectors.items():
            if not len(tested):  # no day for the detectors either
                break
            day = detector.add_day(now[name][tested], jitter[tested])
            evidence = max(evidence, day.evidence)
            if day.evidence >= 1:
                first = tested[np.argsort(-day.log_bets[:, day.bet], kind="stable")[:MAX_ALARM_IMAGES]]
                direction = "larger" if is_upward(day.bet) else "smaller"
                images = tuple(stream.ids[row] for row in first.tolist())
                alarms.append(DriftAlarm(measure=name, direction=direction, images=images))
        chances = {name: _mean_rank(values, now[name][rows]) for name, values in sorted_before.items()}
        noise = NOTABLE / math.sqrt(12 * len(rows))  # the standard error of a mean of uniform ranks
        others = {name: abs(chance - 0.5) for name, chance in chances.items() if name != UNLIKE}
        moved = max((name for name in others if others[name] > noise), key=others.__getitem__, default="")
        days.append(
            WatchDay(
                date=date, n=len(rows), counted=len(tested), unlike=chances.get(UNLIKE), moved=moved,
                moved_to=chances.get(moved), abstained=float(stream.abstained[rows].mean()), evidence=evidence,
                alarms=tuple(alarms),
            )
        )  # fmt: skip
    return tuple(before), tuple(days)


def _share_alarms(measures: Sequence[str]) -> dict[str, float]:
    """The share of the allowed false alarms of each measure; they add up to 1."""
    if len(measures) == 1 or UNLIKE not in measures:
        return {name: 1 / len(measures) for name in measures}
    rest = (1 - UNLIKE_WEIGHT) / (len(measures) - 1)
    return {name: UNLIKE_WEIGHT if name == UNLIKE else rest for name in measures}


def _draw_uniform(images: ScoredImages) -> Float64[np.ndarray, "2 n"]:
    """Two uniform numbers of 0..1 for each image, for its order and for ties.

    Its name and time alone decide them, so that they are the same whenever the image is looked at.
    """
    texts = (f"{id}\0{time}" for id, time in zip(images.ids, images.times.tolist(), strict=True))
    digests = b"".join(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts)
    return np.asarray((np.frombuffer(digests, "<u8").reshape(-1, 2).T >> 11).astype(np.float64) / 2**53)


def _one_per_group(images: ScoredImages) -> Int64[np.ndarray, " m"]:
    """One image of each group at random; without groups all."""
    if images.groups is None:
        return np.arange(len(images))
    order = np.argsort(_draw_uniform(images)[0], kind="stable")
    return np.sort(order[np.unique(images.groups[order], return_index=True)[1]])


def _find_new_groups(stream: ScoredImages, reference: ScoredImages) -> Bool[np.ndarray, " n"]:
    """Which images of an ordered stream the test counts: the first of each group that the reference has not."""
    if stream.groups is None:
        return np.ones(len(stream), bool)
    new = np.zeros(len(stream), bool)
    new[np.unique(stream.groups, return_index=True)[1]] = True
    return new if reference.groups is None else new & ~np.isin(stream.groups, reference.groups)


def _split_days(stream: ScoredImages) -> Iterator[tuple[str, Int64[np.ndarray, " m"]]]:
    """Each date of an ordered stream with its rows."""
    days = stream.times.astype("datetime64[D]")
    for date in np.unique(days):
        yield str(date), np.flatnonzero(days == date)


def _mean_rank(reference: Float64[np.ndarray, " n"], values: Float64[np.ndarray, " m"]) -> float:
    """The chance that a value is larger than one of a sorted reference; ties count half."""
    sides = [np.searchsorted(reference, values, side=side) for side in ("left", "right")]
    return float(np.mean(sides)) / len(reference)
