"""Check for leakage: duplicates and groups across splits, duplicates with different labels, possible group columns."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...formatting import format_count
from ..labels.columns import guess_group_kind, quote_for_shell
from ..source import SPLITS, Source
from . import near_duplicates
from .findings import DataIssue, join_counts, join_names
from .image_stats import ImageStatsTable

MAX_IDENTICAL_FRACTION = 0.3
"""Fraction of all images from which copies of one image look like a placeholder."""
MIN_STD = 2.0
"""Standard deviation in grey levels below which an image is too flat to be compared."""
MAX_GROUP_PAIRS = 1000
"""Near-duplicate pairs listed for two groups of exact copies; of larger groups one each is listed."""
EXCLUDE_ADVICE = (
    "exclude.csv, which vitrail check --out DIR writes, lists the copies in {drop}: --exclude DIR/exclude.csv leaves "
    "them out, and {keep} stays as it is."
)

Group = tuple[int, ...]
UNFINISHED = DataIssue(
    code="near-copies-unfinished",
    severity="hint",
    text="There was no time to compare all pictures that may be near copies.",
    advice="vitrail check compares them all.",
)


def find_leakage(
    source: Source, splits: Mapping[str, NDArray[np.int64]], stats: ImageStatsTable, until: float | None = None
) -> list[DataIssue]:
    """Report copies across and inside splits, contradictory labels, groups in two splits, and likely group columns.

    Args:
        until: a value of `time.monotonic` at which the search for near duplicates ends.
    """
    owner = split_indices(len(source), splits)
    exact = [tuple(stats.rows[places].tolist()) for places in near_duplicates.find_exact_duplicates(stats.digests)]
    near, complete = _find_near_pairs(stats, exact, until)
    found = [
        *_check_groups_in_splits(source, owner),
        *_check_copies_across_splits(exact, owner, "exact"),
        *_check_copies_across_splits(near, owner, "near"),
    ]
    found += _check_contradicting_labels(source, exact, "exact")
    found += _check_contradicting_labels(source, near, "near")
    found += _check_placeholder(source, exact, len(stats))
    found += _check_copies_within_split(exact, owner, "exact")
    found += _check_copies_within_split(near, owner, "near")
    found += [] if complete else [UNFINISHED]
    return [*found, *_check_group_like_columns(source, owner)]


def split_indices(n: int, splits: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """For each row of the source, the index of its split in SPLITS; -1 where it has none."""
    owner = np.full(n, -1)
    for number, split in enumerate(SPLITS):
        owner[splits.get(split, np.zeros(0, np.int64))] = number
    return owner


def _find_near_pairs(stats: ImageStatsTable, exact: Sequence[Group], until: float | None) -> tuple[list[Group], bool]:
    """Near-duplicate pairs, and whether the time sufficed to compare all. Of exact copies only one is compared; the
    others inherit its result."""
    members = {group[0]: group for group in exact}
    again = {row for group in exact for row in group[1:]}
    flat = set(stats.rows[stats.stds < MIN_STD].tolist())
    kept = np.array([row not in again and row not in flat for row in stats.sketch_rows.tolist()], dtype=np.bool_)
    rows = stats.sketch_rows[kept]
    pairs = near_duplicates.find_near_duplicates(stats.sketches[kept], until)
    found: list[Group] = []
    for first, second in rows[pairs.indices].tolist():
        left, right = members.get(first, (first,)), members.get(second, (second,))
        if len(left) * len(right) > MAX_GROUP_PAIRS:
            left, right = left[:1], right[:1]
        found += itertools.product(left, right)
    return found, pairs.is_complete


def _check_copies_across_splits(groups: Sequence[Group], owner: NDArray[np.int64], how: str) -> Iterator[DataIssue]:
    """One finding for each pair of splits; the copy in the later split is kept."""
    for first, second in ((0, 2), (0, 1), (1, 2)):
        found = [group for group in groups if {first, second} <= set(owner[list(group)].tolist())]
        if not found:
            continue
        keep, drop = SPLITS[second], SPLITS[first]
        held = {row for group in found for row in group if owner[row] == second}
        dropped = {row: group for group in found for row in group if owner[row] == first}
        are = "is" if len(held) == 1 else "are"
        kind = f"{are} also" if how == "exact" else f"{are} nearly the same as one"
        why = "" if how == "exact" else " (resized, compressed, cropped, or the same thing twice)"
        yield DataIssue(
            code=f"{how}-copies-in-{drop}-and-{keep}",
            severity="warning",
            text=f"{format_count(len(held), 'picture')} of {keep} {kind} in {drop}{why}, so the figure on "
            f"{keep} will be too good.",
            advice=EXCLUDE_ADVICE.format(drop=drop, keep=keep),
            rows=tuple(sorted(held)),
            groups=tuple(_order_group(group, owner, (first, second)) for group in found),
            rows_to_exclude=tuple((row, f"{how} copy of a picture in {keep}") for row in sorted(dropped)),
        )


def _order_group(group: Group, owner: NDArray[np.int64], splits: tuple[int, int]) -> Group:
    """The members of a group in two splits, the one to keep first."""
    members = [row for row in group if owner[row] in splits]
    return tuple(sorted(members, key=lambda row: (-owner[row], row)))


def _check_copies_within_split(groups: Sequence[Group], owner: NDArray[np.int64], how: str) -> Iterator[DataIssue]:
    """Report copies within one split: they only give an image more weight."""
    for number, split in enumerate(SPLITS):
        found = [tuple(row for row in group if owner[row] == number) for group in groups]
        found = [group for group in found if len(group) > 1]
        if found:
            again = len({row for group in found for row in group[1:]})
            are, like = "is" if again == 1 else "are", "the same" if how == "exact" else "nearly the same"
            yield DataIssue(
                code=f"{how}-copies-in-{split}",
                severity="hint",
                text=f"{format_count(again, 'picture')} of {split} {are} {like} as another one there.",
                advice="What is shown twice weighs twice, no more: nothing has to be done.",
                rows=tuple(sorted({row for group in found for row in group})),
                groups=tuple(found),
            )


def _check_contradicting_labels(source: Source, groups: Sequence[Group], how: str) -> list[DataIssue]:
    """Report copies with different labels."""
    found = [group for group in groups if _targets_differ(source.targets[list(group)])]
    if not found:
        return []
    rows = sorted({row for group in found for row in group})
    names = ""
    if source.task == "classes":
        names = f": {join_counts(Counter(_class_names_of_group(source, group) for group in found))}"
    if how == "near":
        text = f"{format_count(len(rows), 'picture')} are nearly the same as another one with a different label{names}."
        advice = "Either a label is wrong, or what makes the difference is small."
        return [_contradiction_issue(how, text, advice, found, ())]
    text = (
        f"{format_count(len(rows), 'picture')} are each the same picture as another one with a different label{names}."
    )
    advice = "Only a person can say which label is right; exclude.csv of vitrail check --out DIR lists them all."
    leave_out = tuple((row, "the same picture stands elsewhere with a different label") for row in rows)
    return [_contradiction_issue(how, text, advice, found, leave_out)]


def _contradiction_issue(
    how: str, text: str, advice: str, groups: list[Group], leave_out: tuple[tuple[int, str], ...]
) -> DataIssue:
    return DataIssue(
        code=f"{how}-copies-with-different-labels",
        severity="warning",
        text=text,
        advice=advice,
        rows=tuple(sorted({row for group in groups for row in group})),
        groups=tuple(groups),
        rows_to_exclude=leave_out,
    )


def _targets_differ(targets: np.ndarray) -> bool:
    """Whether rows of targets differ; unknown values match everything."""
    if targets.dtype.kind in "iu":
        return bool((targets != targets[0]).any())
    known = ~np.isnan(targets)
    high = np.where(known, targets, -np.inf).max(0)
    low = np.where(known, targets, np.inf).min(0)
    return bool((high - low > 1e-6 * np.maximum(1, np.abs(high)))[known.any(0)].any())


def _class_names_of_group(source: Source, group: Group) -> str:
    numbers = source.targets[list(group)]
    numbers = numbers.argmax(1) if source.has_soft_labels else numbers
    return " / ".join(source.classes[number] for number in np.unique(numbers).tolist())


def _check_placeholder(source: Source, exact: Sequence[Group], n: int) -> list[DataIssue]:
    largest = max(exact, key=len, default=())
    if len(largest) <= MAX_IDENTICAL_FRACTION * n:
        return []
    return [
        DataIssue(
            code="one-picture-many-times",
            severity="warning",
            text=f"{len(largest) / n:.0%} of all pictures are one and the same ({source.ids[largest[0]]} and "
            f"{len(largest) - 1:,} more).",
            advice='Is it a placeholder such as "no picture available"? Then leave it out.',
            rows=largest,
        )
    ]


def _check_groups_in_splits(source: Source, owner: NDArray[np.int64]) -> list[DataIssue]:
    if source.groups is None:
        return []
    names, counts = _values_in_several_splits(source.groups, owner)
    if not names:
        return []
    inside = np.isin(np.array([str(name) for name in source.groups]), names)
    return [
        DataIssue(
            code="group-in-two-splits",
            severity="stop",
            text=f"{len(names):,} groups, of {counts:,} pictures, lie in more than one split, so the result would be "
            f"too good: {join_names(names)}.",
            advice="Put each group into one split, or leave the split column out and let Vitrail part by groups.",
            rows=tuple(np.flatnonzero(inside & (owner >= 0)).tolist()),
        )
    ]


def _values_in_several_splits(values: Sequence[object] | np.ndarray, owner: NDArray[np.int64]) -> tuple[list[str], int]:
    """Report group values that occur in more than one split, with their images."""
    used = np.flatnonzero(owner >= 0)
    names, places = np.unique(np.array([str(values[row]) for row in used.tolist()], dtype=np.str_), return_inverse=True)
    inside = np.zeros((len(names), len(SPLITS)), dtype=np.int64)
    np.add.at(inside, (places, owner[used]), 1)
    shared = ((inside > 0).sum(1) > 1) & (names != "")
    return [str(name) for name in names[shared]], int(inside[shared].sum())


def _check_group_like_columns(source: Source, owner: NDArray[np.int64]) -> Iterator[DataIssue]:
    """Report columns whose name suggests a group, when the settings name no group."""
    if source.groups is not None:
        return
    for column, values in source.metadata.items():
        alike = guess_group_kind(column, values)
        names, count = _values_in_several_splits(values, owner) if alike else ([], 0)
        if names:
            distinct = len(set(values) - {""})
            yield DataIssue(
                code="column-like-a-group",
                severity="warning",
                text=f"Column {column!r} has {distinct:,} values for {len(values):,} pictures, and {len(names):,} of "
                f"them (of {count:,} pictures) lie in more than one split.",
                advice=f"If each is one {alike}, the result will be too good: --group {quote_for_shell(column)} "
                f"keeps each "
                f"{alike} in one split.",
            )
