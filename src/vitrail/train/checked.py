"""The data doctor's look at the pictures before a training: what it leaves out, what it tells, where it stops."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from ..data import splits as parts
from ..data.checks.check_dataset import check_dataset
from ..data.checks.findings import DataCheckReport
from ..errors import DataError
from ..plural import counted
from .dataset import Dataset
from .engines.team import Team
from .events import Event, Note
from .plan import Plan

CHECKED_SHARE = 0.05  # of the minutes, that the check may take


def checked(dataset: Dataset, plan: Plan, team: Team) -> tuple[Dataset, DataCheckReport | None]:
    """Rank 0 looks at the pictures; bad ones are left out everywhere if asked to, else all refuse.

    Raises:
        DataError: pictures that cannot be read, all of them named, or what would make the training worthless.
    """
    looked: list[DataCheckReport] = []

    def look_at_them() -> list[int]:
        looked.append(_looked(dataset, plan))
        return looked[0].bad_indices.tolist()

    bad = np.array(team.led(look_at_them), np.int64)
    left = parts.remove_rows(dataset.splits, bad)
    if not len(left["train"]):
        raise DataError(f"No training picture of {dataset.source.name} can be read, so nothing is left to train on.")
    return dataclasses.replace(dataset, splits=left), looked[0] if looked else None


def _looked(dataset: Dataset, plan: Plan) -> DataCheckReport:
    """Look at the pictures, at all of them where the minutes allow.

    To leave out bad ones all must be looked at, however long it takes: one that is met later would end the training.
    """
    seconds = CHECKED_SHARE * 60 * plan.minutes if plan.minutes and not plan.data.skip_bad else None
    findings = check_dataset(
        dataset.source, dataset.splits, plan.image, plan.model.patch, seconds, strata=plan.data.strata
    )
    if findings.bad and not plan.data.skip_bad:
        listed = "; ".join(f"{name} ({reason.rstrip('.')})" for name, reason in findings.bad[:20])
        more = f" and {len(findings.bad) - 20:,} more" if len(findings.bad) > 20 else ""
        raise DataError(
            f"{len(findings.bad):,} of {len(dataset.source):,} pictures cannot be read: {listed}{more}. "
            "Mend or remove them, or leave them out with --skip-bad."
        )
    if findings.stops:
        raise DataError(" ".join(findings.stops))
    return findings


def told_of(dataset: Dataset, findings: DataCheckReport | None) -> Iterator[Event]:
    """What the check noticed, and what was left out because of it; nothing from whom did not look."""
    if findings is None:
        return
    if findings.bad:
        yield Note(f"Left out {counted(len(findings.bad), 'picture')} that cannot be read; check.json names them.")
    warnings = [f"{each.text} {each.advice}".strip() for each in findings.concerns if each.severity == "warning"]
    for text in (*findings.notes, *warnings):
        if text not in (dataset.source.reason, *dataset.source.notes):
            yield Note(text)
