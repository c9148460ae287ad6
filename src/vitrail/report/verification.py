"""`vitrail report RUN --verify`: stored figures computed again from the stored predictions, and hashes of the files."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..checkpoints import bundle
from ..checkpoints.decision_versions import TRAINED
from ..errors import DamagedFileError, UsageError
from ..evaluate.calibration import read_scaling
from ..evaluate.decisions import read_decisions
from ..evaluate.metrics import CASES_SUFFIX
from ..evaluate.predictions import read_predictions_csv
from ..evaluate.task_metrics import compute_metrics
from ..files import atomic, checksums, strict_json
from .provenance import FACTS_FILE, ReportFacts, load_groups, read_facts

VERIFICATION_FILE = "verification.json"
FILES = ("plan.toml", FACTS_FILE, "splits.csv", "groups.npy", "check.json", "environment.json")
"""Files of the run folder that are hashed beside its model, its predictions and its metrics."""
TOLERANCE = 1e-9
"""Of a figure, relative where it is larger than 1: stored predictions are exact, sums depend on the processor."""
PIXEL_FIGURES = ("pixel_", "aupro")
"""Beginnings of the names of figures that need the maps, which are not stored."""


class Verification(NamedTuple):
    """What `verify_run` has found."""

    path: Path
    figures: int
    """Numbers that were computed again."""
    splits: tuple[str, ...]
    largest: float
    """Largest difference."""
    files: Mapping[str, str]
    """SHA-256 of each file, by its path in the run folder."""
    sha256: str
    """Of all of them, with their names, in the order of these."""
    changed: tuple[str, ...]
    """Files that differ from the verification before."""


def verify_run(folder: Path) -> Verification:
    """Compute the stored figures again, hash the files behind them, and write `verification.json`.

    Predictions are those of the training's own decision. With groups only the held-out split and cases are computed
    again: of other splits the groups are not stored.

    Raises:
        UsageError: no finished run, or masks, whose figures need the pictures.
        DamagedFileError: a figure does not follow from the predictions, or a file of the model is damaged; all such
            figures are named.
    """
    folder = Path(folder)
    facts = read_facts(folder)
    if not bundle.is_bundle(folder / "model"):
        raise UsageError(f"{folder} has no model of its own. Verify one of its folds, such as {folder / 'fold-0'}.")
    if facts.task == "segmentation":
        raise UsageError(f"Figures of masks need the pictures. Compute them again with: vitrail evaluate {folder}")
    figures, largest, splits, wrong = 0, 0.0, [], []
    for split, is_own, stored, computed in _compute_again(folder, facts):
        if not is_own:
            wrong.append(f"predictions/{split}.csv: the answers do not follow from the scores beside them")
        for name, ours, theirs in _pair_numbers(stored, computed):
            figures += 1
            difference = _difference(ours, theirs)
            largest = max(largest, difference)
            if not difference <= TOLERANCE:
                wrong.append(f"{split} {name}: {ours} is stored, and {theirs} follows from the predictions")
        splits.append(split)
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise DamagedFileError(f"{folder} does not verify. {'; '.join(wrong[:5])}{more}.")
    files, before = hash_files(folder), read_verification(folder)
    digest = hashlib.sha256("".join(f"{value}  {name}\n" for name, value in files.items()).encode()).hexdigest()
    path = folder / VERIFICATION_FILE
    content = {"figures": figures, "splits": splits, "largest_difference": largest, "files": files, "sha256": digest}
    atomic.write_json(path, content)
    changed = () if before is None else before.changed
    return Verification(path, figures, tuple(splits), largest, files, digest, changed)


def read_verification(folder: Path) -> Verification | None:
    """The last verification of a run, with the files that have changed since; None if there was none.

    Raises:
        DamagedFileError: verification.json is not what `verify_run` writes.
    """
    path = Path(folder) / VERIFICATION_FILE
    if not path.is_file():
        return None
    content = strict_json.read_json(path)
    try:
        figures, largest, digest = int(content["figures"]), float(content["largest_difference"]), str(content["sha256"])
        splits, files = (
            tuple(map(str, content["splits"])),
            {str(name): str(one) for name, one in content["files"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise DamagedFileError(
            f"{path} must hold what vitrail report RUN --verify writes. Run it again. {problem!r}."
        ) from problem
    now = hash_files(folder)
    changed = tuple(name for name, value in files.items() if now.get(name) != value)
    return Verification(path, figures, splits, largest, files, digest, changed)


def _compute_again(folder: Path, facts: ReportFacts) -> Iterator[tuple[str, bool, Any, Any]]:
    """Each split: its name, whether its predictions are as written, its stored metrics, and those that follow."""
    info = bundle.read_bundle_info(folder / "model", by=TRAINED)
    where = str(folder / "model" / bundle.CONFIG_FILE)
    decided = read_decisions(info.trained_info, facts.task, info.classes, where)
    scaling = read_scaling(info.info, len(info.classes), where) if facts.task == "regression" else None
    grouped = (folder / "groups.npy").is_file()
    for metrics in facts.all_metrics:
        has_groups = grouped and not metrics.split.endswith(CASES_SUFFIX)  # a case is a group
        if has_groups and metrics.split != facts.held_out_split:
            continue
        path = folder / "predictions" / f"{metrics.split}.csv"
        table = read_predictions_csv(path, facts.task)
        groups = load_groups(folder, len(table)) if has_groups else None
        again = compute_metrics(table, scaling, groups, decided.ordered, decided.promise)
        plain = [json.loads(json.dumps(one.to_json())) for one in (metrics, again)]
        yield metrics.split, table.csv_bytes() == path.read_bytes(), *plain


def _pair_numbers(stored: Any, computed: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every number and text of the stored figures beside the computed one; None where there is none."""
    if isinstance(stored, dict):
        for key, value in stored.items():
            if not key.startswith(PIXEL_FIGURES):
                other = computed.get(key) if isinstance(computed, dict) else None
                yield from _pair_numbers(value, other, f"{name}.{key}".lstrip("."))
    elif isinstance(stored, list):
        if not isinstance(computed, list) or len(computed) != len(stored):
            yield name, stored, computed
            return
        for index, (value, other) in enumerate(zip(stored, computed, strict=True)):
            yield from _pair_numbers(value, other, f"{name}[{index}]")
    else:
        yield name, stored, computed


def _difference(stored: Any, computed: Any) -> float:
    """How far two values are apart: of numbers relative to 1 or the larger, of others 0 or infinity."""
    if isinstance(stored, bool) or not all(isinstance(value, int | float) for value in (stored, computed)):
        return 0.0 if stored == computed else math.inf
    return abs(stored - computed) / max(1.0, abs(stored))


def hash_files(folder: Path) -> dict[str, str]:
    """SHA-256 of the files behind the figures, by path in the run folder."""
    patterns = ("model/*", "model/decisions/*", "predictions/*.csv", "metrics-*.json")
    found = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    found += [folder / name for name in FILES]
    return {path.relative_to(folder).as_posix(): checksums.sha256(path) for path in found if path.is_file()}
