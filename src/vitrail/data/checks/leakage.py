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
from .image_stats import MIN_SKETCHED_SIDE, ImageStatsTable

MAX_IDENTICAL_FRACTION = 0.3
"""Fraction of all images from which copies of one image look like a placeholder."""
MIN_STD = 2.0
"""Standard deviation in grey levels below which an image is too flat to be compared."""
MAX_GROUP_PAIRS = 1000
"""Near-duplicate pairs listed for two groups of exact copies; of larger groups one each is listed."""
EXCLUDE_ADVICE = (
    "exclude.csv, which vitrail check SOURCE --out DIR writes, lists such copies: --exclude DIR/exclude.csv leaves "
    "them out of train, or of val, and what is held out stays as it is."
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
    owner = np.full(len(source), -1)  # the index in SPLITS of each row's split; -1 where it has none
    for number, split in enumerate(SPLITS):
        owner[splits.get(split, np.zeros(0, np.int64))] = number
    exact = [tuple(stats.rows[places].tolist()) for places in near_duplicates.find_exact_duplicates(stats.digests)]
    near, complete = _find_near_pairs(stats, exact, until)
    total = int((owner >= 0).sum()) - len(stats.bad_images)
    large = int((np.minimum(stats.heights, stats.widths) >= MIN_SKETCHED_SIDE).sum()) + total - len(stats)
    seen = {"exact": _describe_sample(len(stats), total), "near": _describe_sample(len(stats.sketch_rows), large)}
    readable = owner.copy()
    readable[[row for row, _ in stats.bad_images]] = -1
    return [
        *_check_groups_in_splits(source, owner),
        *_check_copies_across_splits(source, exact, owner, "exact", seen["exact"]),
        *_check_copies_across_splits(source, near, owner, "near", seen["near"]),
        *_check_contradicting_labels(source, exact, "exact"),
        *_check_contradicting_labels(source, near, "near"),
        *_check_placeholder(source, exact, len(stats)),
        *_check_copies_within_split(source, exact, readable, "exact", seen["exact"]),
        *_check_copies_within_split(source, near, readable, "near", seen["near"]),
        *([] if complete else [UNFINISHED]),
        *_check_group_like_columns(source, owner),
    ]


def _describe_sample(compared: int, total: int) -> str:
    """What to add to a count of copies if only some images were compared; of a pair both must be."""
    if compared >= total:
        return ""
    return f" Only {compared:,} of {format_count(total, 'picture')} were compared, so there are likely more."


def _find_near_pairs(stats: ImageStatsTable, exact: Sequence[Group], until: float | None) -> tuple[list[Group], bool]:
    """Near-duplicate pairs, and whether the time sufficed to compare all; exact copies share one comparison."""
    members = {group[0]: group for group in exact}
    again = {row for group in exact for row in group[1:]}
    flat = set(stats.rows[stats.stds < MIN_STD].tolist())
    kept = np.array([row not in again and row not in flat for row in stats.sketch_rows.tolist()], dtype=np.bool_)
    rows = stats.sketch_rows[kept]
    pairs = near_duplicates.find_near_duplicates(stats.sketches[kept], until)
    groups: list[Group] = []
    for first, second in rows[pairs.indices].tolist():
        left, right = members.get(first, (first,)), members.get(second, (second,))
        if len(left) * len(right) > MAX_GROUP_PAIRS:
            left, right = left[:1], right[:1]
        groups += itertools.product(left, right)
    return groups, pairs.is_complete


def _check_copies_across_splits(
    source: Source, groups: Sequence[Group], owner: NDArray[np.int64], how: str, seen: str
) -> Iterator[DataIssue]:
    """One finding for each pair of splits; the copy in the later split is kept.

    Parts of one kind, as of anomaly, may look as alike as copies: a hint, and none is excluded.
    """
    are_parts = source.task == "anomaly" and how == "near"
    apart = ""
    if source.groups is not None:
        apart = " Groups were to keep such pictures together, so their column may not name the true unit."
    for first, second in ((0, 2), (0, 1), (1, 2)):
        shared = [group for group in groups if {first, second} <= set(owner[list(group)].tolist())]
        if not shared:
            continue
        keep, drop = SPLITS[second], SPLITS[first]
        held = {row for group in shared for row in group if owner[row] == second}
        dropped = {row for group in shared for row in group if owner[row] == first}
        ordered = []  # the copies to keep first
        for group in shared:
            members = [row for row in group if owner[row] in (first, second)]
            ordered.append(tuple(sorted(members, key=lambda row: (-owner[row], row))))
        one = len(held) == 1
        if are_parts:
            yield DataIssue(
                code=f"{how}-copies-in-{drop}-and-{keep}",
                severity="hint",
                text=f"{format_count(len(held), 'picture')} of {keep} {'looks' if one else 'look'} nearly like one in "
                f"{drop}, as parts of one kind may. Of the same part twice the figure on {keep} would be too good."
                f"{apart}{seen}",
                advice=f"Look at the pairs in check.json; --exclude leaves out of {drop} what is there twice.",
                rows=tuple(sorted(held)),
                groups=tuple(ordered),
            )
            continue
        are = "is" if one else "are"
        kind = f"{are} also" if how == "exact" else f"{are} nearly the same as one"
        why = "" if how == "exact" else " (resized, compressed, cropped, the same thing twice, or two that look alike)"
        may = "will" if how == "exact" else "may"
        yield DataIssue(
            code=f"{how}-copies-in-{drop}-and-{keep}",
            severity="warning",
            text=f"{format_count(len(held), 'picture')} of {keep} {kind} in {drop}{why}, so the figure on "
            f"{keep} {may} be too good.{apart}{seen}",
            advice=EXCLUDE_ADVICE,
            rows=tuple(sorted(held)),
            groups=tuple(ordered),
            rows_to_exclude=tuple((row, f"{how} copy of a picture in {keep}") for row in sorted(dropped)),
        )


def _check_copies_within_split(
    source: Source, groups: Sequence[Group], owner: NDArray[np.int64], how: str, seen: str
) -> Iterator[DataIssue]:
    """Report copies within one split: in train they only give an image more weight, others are no independent tests."""
    for number, split in enumerate(SPLITS):
        inside = [tuple(row for row in group if owner[row] == number) for group in groups]
        inside = [group for group in inside if len(group) > 1]
        if inside:
            rows, total = sorted({row for group in inside for row in group}), int((owner == number).sum())
            distinct = total - len(rows) + _count_clusters(inside)
            like = "the same" if how == "exact" else "nearly the same"
            apart = source.groups is None or any(len({source.groups[row] for row in group}) > 1 for group in inside)
            narrow, advice = "", "What is shown twice weighs twice, no more: nothing has to be done."
            if apart and split != "train":
                narrow = ", and intervals that count all of them are too narrow"
                advice = "--group COLUMN, with one value for what is shown twice, counts it once in intervals."
            yield DataIssue(
                code=f"{how}-copies-in-{split}",
                severity="hint",
                text=f"{format_count(len(rows), 'picture')} of {split} are {like} as another one there, so "
                f"{distinct:,} of {total:,} are different{narrow}.{seen}",
                advice=advice,
                rows=tuple(rows),
                groups=tuple(inside),
            )


def _count_clusters(groups: Sequence[Group]) -> int:
    """Number of sets of rows that groups connect."""
    parents: dict[int, int] = {}

    def find_root(row: int) -> int:
        while (parent := parents.setdefault(row, row)) != row:
            row = parent
        return row

    for group in groups:
        for row in group[1:]:
            parents[find_root(row)] = find_root(group[0])
    return sum(row == parent for row, parent in parents.items())


def _check_contradicting_labels(source: Source, groups: Sequence[Group], how: str) -> Iterator[DataIssue]:
    """Report copies with different labels."""
    contradicting = [group for group in groups if _targets_differ(source.targets[list(group)])]
    if not contradicting or (source.task in ("anomaly", "segmentation") and how == "near"):
        return  # the areas of masks differ a little too, and what makes a defect is small
    rows = sorted({row for group in contradicting for row in group})
    names = ""
    if source.task in ("classification", "anomaly"):
        names = f": {join_counts(Counter(_class_names_of_group(source, group) for group in contradicting))}"
    same = "nearly the same" if how == "near" else "each the same picture"
    advice = "Either a label is wrong, or what makes the difference is small."
    rows_to_exclude: list[tuple[int, str]] = []
    if how == "exact":
        advice = (
            "Only a person can say which label is right; exclude.csv of vitrail check SOURCE --out DIR lists them all."
        )
        rows_to_exclude = [(row, "the same picture stands elsewhere with a different label") for row in rows]
    yield DataIssue(
        code=f"{how}-copies-with-different-labels",
        severity="warning",
        text=f"{format_count(len(rows), 'picture')} are {same} as another one with a different label{names}.",
        advice=advice,
        rows=tuple(rows),
        groups=tuple(contradicting),
        rows_to_exclude=tuple(rows_to_exclude),
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


def _check_placeholder(source: Source, exact: Sequence[Group], n: int) -> Iterator[DataIssue]:
    largest = max(exact, key=len, default=())
    if len(largest) > MAX_IDENTICAL_FRACTION * n:
        yield DataIssue(
            code="one-picture-many-times",
            severity="warning",
            text=f"{len(largest) / n:.0%} of all pictures are one and the same ({source.ids[largest[0]]} and "
            f"{len(largest) - 1:,} more).",
            advice='Is it a placeholder such as "no picture available"? Then leave it out.',
            rows=largest,
        )


def _check_groups_in_splits(source: Source, owner: NDArray[np.int64]) -> Iterator[DataIssue]:
    if source.groups is None:
        return
    names, count = _values_in_several_splits(source.groups, owner)
    if names:
        inside = np.isin(np.array([str(name) for name in source.groups]), names)
        yield DataIssue(
            code="group-in-two-splits",
            severity="stop",
            text=f"{format_count(len(names), 'group')}, of {format_count(count, 'picture')}, "
            f"{'lies' if len(names) == 1 else 'lie'} in more than one split, so the result would be too "
            f"good: {join_names(names)}.",
            advice="Put each group into one split, or leave the split column out and let Vitrail part by groups.",
            rows=tuple(np.flatnonzero(inside & (owner >= 0)).tolist()),
        )


def _values_in_several_splits(values: Sequence[object] | np.ndarray, owner: NDArray[np.int64]) -> tuple[list[str], int]:
    """Values other than "" that occur in more than one split, and the number of their images."""
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
        kind = guess_group_kind(column, values)
        names, count = _values_in_several_splits(values, owner) if kind else ([], 0)
        if names:
            distinct = len(set(values) - {""})
            yield DataIssue(
                code="column-like-a-group",
                severity="warning",
                text=f"Column {column!r} has {format_count(distinct, 'value')} for "
                f"{format_count(len(values), 'picture')}, and {len(names):,} of "
                f"them (of {format_count(count, 'picture')}) {'lies' if len(names) == 1 else 'lie'} in more "
                "than one split.",
                advice=f"If each is one {kind}, the result will be too good: --group {quote_for_shell(column)} keeps "
                f"each {kind} in one split.",
            )
