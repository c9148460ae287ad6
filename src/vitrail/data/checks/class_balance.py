"""Check the targets: images per class, unknown labels, constant or implausible values, misspelt class names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from ...formatting import format_count
from ..labels.numbers import number_key
from ..source import Source
from .findings import MAX_SHOWN, DataIssue, Severity, join_names

MIN_TRAIN_IMAGES = 10
"""Training images below which a class is reported as small."""
MIN_TRAIN_MASKS = 2
"""The same where classes are of pixels."""
OUTLIER_DEVIATIONS = 12.0
"""Distance from the median, in robust standard deviations, from which a number is an outlier."""
MAX_IMBALANCE_RATIO = 100
"""Ratio of the largest class to the smallest from which imbalance is reported."""
YES_AND_NO = {"true": "1", "yes": "1", "false": "0", "no": "0"}
UNIX_TIMES = ((1e9, 2.2e9), (1e12, 2.2e12))
"""Seconds and milliseconds since 1970 of the years 2001 to 2039."""
MIN_COUNTED_IMAGES = 10
"""Images from which equal steps between their numbers are no chance."""
MIN_TYPO_LENGTH = 6
"""Length of names from which a difference of one letter counts as a spelling mistake."""

Splits = Mapping[str, NDArray[np.int64]]
Counts = dict[str, dict[str, int]]


def class_counts(source: Source, splits: Splits) -> Counts:
    """Images of each class or label in each split; empty for regression. Soft labels count by their likeliest class."""
    if source.task == "regression":
        return {}
    counts_by_split = {}
    for split, rows in splits.items():
        if source.task == "segmentation":
            counts = (source.targets[rows] > 0).sum(0)  # pictures that have a pixel of it
        elif source.task == "multilabel":
            counts = (source.targets[rows] >= 0.5).sum(0)  # NaN is not
        else:
            numbers = source.targets[rows].argmax(1) if source.has_soft_labels else source.targets[rows]
            counts = np.bincount(numbers, minlength=len(source.classes))
        counts_by_split[split] = dict(zip(source.classes, counts.tolist(), strict=True))
    return counts_by_split


def find_class_balance_issues(source: Source, splits: Splits, counts: Counts) -> list[DataIssue]:
    """Report small and absent classes, unknown labels, constant and implausible values, and misspelt names."""
    if source.task == "anomaly":  # there is one class to learn from, and defects are rare
        return []
    if source.task == "segmentation":
        return [*_check_scarce_classes(counts, MIN_TRAIN_MASKS), *_check_similar_names(source.classes, counts)]
    rows = np.concatenate([*splits.values(), np.zeros(0, np.int64)])
    train_counts = counts.get("train", {})
    issues = [*_check_scarce_classes(counts), *_check_imbalance(train_counts)]
    if source.task == "classification":
        issues += _check_single_class(train_counts)
    else:
        issues += _check_unknown_labels(source, rows)
        issues += _check_constant_targets(source, splits.get("train", rows[:0]))
    if source.task == "regression":
        issues += _check_outliers(source, rows)
        issues += _check_counters(source, np.sort(rows))
    return [*issues, *_check_similar_names(source.classes, counts)]


def _check_scarce_classes(counts: Counts, least_train: int = MIN_TRAIN_IMAGES) -> Iterator[DataIssue]:
    """Report classes with few images, and classes that a split lacks."""
    for split, split_counts in counts.items():
        if not any(split_counts.values()):
            continue
        least = least_train if split == "train" else 1
        scarce = [f"{name!r} ({count})" for name, count in split_counts.items() if count < least]
        absent = 0 in split_counts.values()
        if scarce:
            yield DataIssue(
                code=f"few-pictures-in-{split}",
                severity="warning" if absent else "hint",
                text=f"Few pictures in {split}: {join_names(scarce)}.",
                advice=f"{split} cannot judge a class that it does not have." if absent and split != "train" else "",
            )


def _check_imbalance(train_counts: dict[str, int]) -> Iterator[DataIssue]:
    counts = {name: count for name, count in train_counts.items() if count}
    if not counts:
        return
    most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    if counts[most] >= MAX_IMBALANCE_RATIO * counts[least] and counts[least] >= MIN_TRAIN_IMAGES:
        yield DataIssue(
            code="uneven-classes",
            severity="hint",
            text=f"{most!r} has {counts[most] / counts[least]:.0f} times as many training pictures as {least!r} "
            f"({counts[most]:,} and {counts[least]:,}).",
            advice="Judge by balanced accuracy.",
        )


def _check_single_class(train_counts: dict[str, int]) -> Iterator[DataIssue]:
    present = [name for name, count in train_counts.items() if count]
    if len(present) == 1:
        yield DataIssue(
            code="one-class",
            severity="stop",
            text=f"All training pictures are of one class, {present[0]!r}.",
            advice="There is nothing to tell apart; add pictures of another class to train.",
        )


def _check_unknown_labels(source: Source, rows: NDArray[np.int64]) -> Iterator[DataIssue]:
    """Report the fraction of unknown values per column."""
    if not len(rows):
        return
    fractions = np.isnan(source.targets[rows]).mean(0).tolist()
    unknown = [f"{name!r} {part:.1%}" for name, part in zip(source.classes, fractions, strict=True) if part > 0]
    if unknown:
        yield DataIssue(
            code="unknown-labels",
            severity="hint",
            text=f"Unknown, and left out of loss and measures: {join_names(unknown)} of the pictures.",
        )


def _check_constant_targets(source: Source, train: NDArray[np.int64]) -> Iterator[DataIssue]:
    """Report columns in which all known training values are equal, or none is known."""
    if not len(train):
        return
    blank, same = [], []
    for name, column in zip(source.classes, source.targets[train].T, strict=True):
        known = column[~np.isnan(column)]
        if not len(known):
            blank.append(repr(name))
        elif known.min() == known.max():
            same.append(f"{name!r} ({known[0]:g})")
    severity: Severity = "stop" if len(blank) + len(same) == len(source.classes) else "warning"
    advice = "Nothing can be learnt of it; choose other columns with --data.targets."
    if blank:
        text = f"No training picture has a known value of {join_names(blank)}."
        yield DataIssue(code="nothing-known", severity=severity, text=text, advice=advice)
    if same:
        text = f"All training pictures have the same value of {join_names(same)}."
        yield DataIssue(code="all-values-equal", severity=severity, text=text, advice=advice)


def _check_outliers(source: Source, rows: NDArray[np.int64]) -> Iterator[DataIssue]:
    """Report the range of each number, and outliers that may be typing errors."""
    for column, name in enumerate(source.classes):
        values = source.targets[rows, column].astype(np.float64)
        used, values = rows[~np.isnan(values)], values[~np.isnan(values)]
        if not len(values):
            continue
        median = np.median(values)
        spread = 1.4826 * np.median(np.abs(values - median))
        far = used[np.abs(values - median) > OUTLIER_DEVIATIONS * spread] if spread > 0 else used[:0]
        yield DataIssue(
            code="range-of-numbers",
            severity="hint",
            text=f"{name!r} lies in {values.min():g} to {values.max():g}, median {median:g}.",
        )
        if len(far):
            named = [f"{source.ids[row]} ({source.targets[row, column]:g})" for row in far[:MAX_SHOWN].tolist()]
            yield DataIssue(
                code="outliers",
                severity="warning",
                text=f"{format_count(len(far), 'value')} of {name!r} {'lies' if len(far) == 1 else 'lie'} "
                f"very far from the rest: {join_names(named, len(far))}.",
                advice="One of them outweighs thousands of others in the loss. Correct them or leave them out.",
                rows=tuple(far.tolist()),
            )


def _check_counters(source: Source, rows: NDArray[np.int64]) -> Iterator[DataIssue]:
    """Report columns that number the images in their order, or hold Unix times: no image shows such a number."""
    for name, values in zip(source.classes, source.targets[rows].T, strict=True):
        steps = np.unique(np.diff(values))
        counts = len(values) > MIN_COUNTED_IMAGES and len(steps) == 1 and steps[0] != 0
        times = len(values) > 0 and any(values.min() >= low and values.max() < high for low, high in UNIX_TIMES)
        if counts or times:
            what = "grows by the same step from row to row, like a serial number" if counts else "looks like Unix times"
            yield DataIssue(
                code="counter",
                severity="warning",
                text=f"{name!r} {what}.",
                advice="If no picture shows it, nothing can be learnt of it; choose other columns with --data.targets.",
            )


def _check_similar_names(names: tuple[str, ...], counts: Counts) -> Iterator[DataIssue]:
    """Report names that differ in spelling only, with the images of each."""
    pairs = find_similar_names(names)
    if pairs:
        totals = {name: sum(split_counts[name] for split_counts in counts.values()) for name in names if counts}
        names_shown = {name: f"{name!r} ({totals[name]:,})" if counts else repr(name) for name in names}
        shown = [f"{names_shown[one]} and {names_shown[other]}" for one, other in pairs]
        yield DataIssue(
            code="similar-names",
            severity="warning",
            text=f"Names that may mean the same: {join_names(shown)}.",
            advice="If they do, put their pictures together.",
        )


def find_similar_names(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Pairs of names that may mean the same.

    They are equal but for case, spacing, punctuation and a plural s or, if long, for one letter; numbers of equal
    value; or words for yes or for no.
    """
    exact: defaultdict[str, list[str]] = defaultdict(list)
    slips: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        word = name.strip().casefold()
        letters = "".join(letter for letter in word if letter.isalnum())
        plain = YES_AND_NO.get(word) or number_key(word)
        exact[plain or (letters.removesuffix("s") if len(letters) > 3 else letters)].append(name)
        if len(letters) >= MIN_TYPO_LENGTH and letters.isalpha():
            for variant in {letters, *(letters[:i] + letters[i + 1 :] for i in range(len(letters)))}:
                slips[variant].append(name)
    groups = [group for group in (*exact.values(), *slips.values()) if len(group) > 1]
    pairs = {(one, other) for group in groups for i, one in enumerate(group) for other in group[i + 1 :]}
    return sorted(pairs)
