"""Watch the images that a run meets in use: a line a day, alarms at a promised rate, and the page of the days."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..data.labels.codes import Cell, format_cell
from ..data.labels.columns import infer_column_roles, normalize_column_name, quote_names
from ..data.open import open_source
from ..data.settings import DataSettings
from ..data.source import MANIFEST_EXTENSIONS, Source, Task
from ..data.sources.manifest import locate_images
from ..data.sources.table_files import ManifestTable, read_manifest_table
from ..errors import DataError, UsageError
from ..evaluate.drift import FALSE_ALARMS, MONTH_DAYS, SCORE, ScoredImages, WatchReport, watch_days
from ..evaluate.predictions import TaskPredictions
from ..evaluate.score_log import build_scored_images, format_score_lines, is_score_log, read_score_log
from ..evaluate.tables import image_path
from ..files import atomic
from ..formatting import format_count
from ..predict.image_paths import expand_image_paths
from ..predict.predictor import Predictor, hash_predictor
from ..report import provenance, watch_page
from ..train.calibration_file import read_calibration
from ..train.run_folder import RunFolder, find_run
from .evaluation import (
    ALL_IMAGES,
    LabelledImages,
    build_source_settings,
    evaluate_model,
    evaluate_subgroups,
    find_group_column,
    get_groups,
    load_held_out,
    predict_labelled_batches,
)
from .prediction import open_predictor

WATCH_FOLDER, PAGE_FILE = "watch", "watch.html"
DATE_COLUMN_NAMES = (
    "date", "day", "time", "datetime", "timestamp", "taken", "acquired", "studydate", "acquisitiondate", "created",
)  # fmt: skip
MONTH = "month"
Track = Callable[[Iterator[Any], int], Iterator[Any]]


@dataclass(frozen=True, kw_only=True)
class WatchRequest:
    """What to watch, and how.

    Raises:
        UsageError: no date, dates in the wrong order, or a rate of false alarms that is none.
    """

    since: str
    """The first day, YYYY-MM-DD; the test begins anew with it."""
    date_column: str = ""
    """Column of a manifest with the day of each image; found if empty."""
    group_column: str = ""
    """Column of a manifest with the group of each image; that of the run if empty."""
    false_alarms: float = FALSE_ALARMS
    """At most so many in 30 days on average."""
    labels: object | None = None
    """A source with the labels of some of the images."""
    normal_until: str = ""
    """Days up to this one are normal: the later ones are compared with them instead of the held-out images."""
    skip_bad: bool = False
    out: Path | None = None
    """Where the page goes; `watch/watch.html` in the run folder by default."""

    first: date = field(init=False)
    normal: date | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", _parse_date(self.since, "--since"))
        object.__setattr__(
            self, "normal", _parse_date(self.normal_until, "--normal-until") if self.normal_until else None
        )
        if self.normal is not None and self.normal < self.first:
            raise UsageError(f"--normal-until {self.normal_until} lies before --since {self.since}.")
        if not 0 < self.false_alarms <= MONTH_DAYS:
            raise UsageError(
                f"--alarms is the number of false alarms in {MONTH_DAYS} days, above 0 and at most {MONTH_DAYS}, for "
                f"example {FALSE_ALARMS}. Got {self.false_alarms:g}."
            )


def watch(
    run: Path,
    paths: Sequence[str],
    request: WatchRequest,
    device: str = "auto",
    source_object: object | None = None,
    track: Track = lambda items, _: items,
) -> WatchReport:
    """Compare every day of a stream with the images that a run has held out, and write the page.

    Args:
        paths: folders, images, patterns and lists, whose day is that of the file; manifests with a column of days; and
            score logs of the server.
        source_object: the object that the run was trained on, if it was one.
        track: passes batches on and shows progress towards a number of images.

    Raises:
        UsageError: not a run folder, or a model without held-out images.
        DataError: no images since that day, a day or image that cannot be read, or labels of none of the images.
    """
    found, notes = _find_images(run, paths, request)
    predictor = open_predictor(run, device)
    predictor.single_member()
    own = None if request.normal is not None else _open_reference(run, predictor, source_object)
    cache = _ScoreCache(find_run(run) / WATCH_FOLDER, predictor)
    names = _score_names(predictor)
    stream = [cache.score(found.labelled(), found.keys(), names, request.skip_bad, track, found.times, found.groups)]
    stream += [_read_log(path, predictor, names, request.first, notes) for path in found.logs]
    images = _join([one for one in stream if len(one)])
    if images is None:
        raise DataError(
            f"No picture of {', '.join(map(str, paths))} is of {request.since} or later. Give an earlier --since, or "
            "say with --date which column has the days."
        )
    if isinstance(own, ScoredImages):
        reference, described = own, f"{format_count(len(own), 'good picture')}, each judged by a bank without it"
    elif own is not None:
        keys = [f"held out|{own.split}|{own.source.ids[row]}" for row in own.rows.tolist()]
        reference = cache.score(own, keys, names, request.skip_bad, track, None, get_groups(own.source, own.rows))
        what = "good picture" if predictor.task == "anomaly" else "picture"
        described = f"{format_count(len(reference), what)} of {own.source.name} that the run has held out ({own.split})"
    else:
        assert request.normal is not None
        until = images.times.astype("datetime64[D]") <= np.datetime64(request.normal)
        reference, images = images.take(np.flatnonzero(until)), images.take(np.flatnonzero(~until))
        described = f"{format_count(len(reference), 'picture')} from {request.since} to {request.normal_until}"
        if not (len(reference) and len(images)):
            side = "after" if len(reference) else "up to"
            raise DataError(f"There is no picture {side} --normal-until {request.normal_until}, so nothing to compare.")
    if not len(reference):
        raise DataError(
            f"None of the pictures that {run} has held out can be read, so there is nothing to compare with."
        )
    notes += [*_describe_limits(reference, images, found), *cache.describe_skipped()]
    measures, days = watch_days(predictor.task, names, reference, images, request.false_alarms)
    report = WatchReport(
        run=str(run), since=days[0].date if request.normal is not None else request.since, reference=described,
        reference_abstained=float(reference.abstained.mean()), false_alarms=request.false_alarms,
        grouped=images.groups is not None, measures=measures, days=days, notes=tuple(notes),
    )  # fmt: skip
    if request.labels is not None:
        report = _add_performance(report, run, predictor, images, request)
    page = request.out or find_run(run) / WATCH_FOLDER / PAGE_FILE
    report = replace(report, page=str(page))
    atomic.write_bytes(page, watch_page.render_watch_page(report, predictor.spec).encode("utf-8", "replace"))
    return report


def _open_reference(run: Path, predictor: Predictor, source_object: object | None) -> LabelledImages | ScoredImages:
    """What a stream is compared with: the held-out images; of an anomaly run the good ones, as most of a stream are,
    and without held-out ones the scores of those in the bank, each by a bank without it.

    Raises:
        UsageError, DataError: as `load_held_out`.
        DamagedFileError: calibration.csv of an anomaly run cannot be read.
    """
    if predictor.task != "anomaly":
        return load_held_out(run, None, source_object)
    if not (Path(run) / "metrics-train.json").is_file():
        own = load_held_out(run, None, source_object)
        good = own.rows[own.source.targets[own.rows] == 0]
        if len(good):
            return replace(own, rows=good)
    scores, groups = read_calibration(RunFolder.open_existing(run).calibration_file)
    n = len(scores)
    return ScoredImages(
        ids=tuple(map(str, range(n))), times=np.zeros(n, "datetime64[s]"),
        groups=groups if len(np.unique(groups)) < n else None, distances=None, scores=scores[:, None],
        abstained=np.zeros(n, bool),
    )  # fmt: skip


def _score_names(predictor: Predictor) -> tuple[str, ...]:
    return (SCORE,) if predictor.task == "anomaly" else predictor.classes


def _join(parts: Sequence[ScoredImages]) -> ScoredImages | None:
    """All parts as one; groups and distances only where every part has them."""
    if not parts:
        return None

    def join(columns: Sequence[np.ndarray | None]) -> np.ndarray | None:
        arrays = [column for column in columns if column is not None]
        return np.concatenate(arrays) if len(arrays) == len(columns) else None

    return ScoredImages(
        ids=tuple(id for part in parts for id in part.ids),
        times=np.concatenate([part.times for part in parts]),
        groups=join([part.groups for part in parts]),
        distances=join([part.distances for part in parts]),
        scores=np.concatenate([part.scores for part in parts]),
        abstained=np.concatenate([part.abstained for part in parts]),
    )


def _describe_limits(reference: ScoredImages, images: ScoredImages, found: _FoundImages) -> list[str]:
    """What limits the promise or the test, in sentences."""
    notes = []
    if reference.groups is not None and images.groups is None:
        notes.append(
            "The run groups its pictures, and those of the stream have no groups: each counts alone, and the promise "
            "does not hold where several of one group come together. A manifest with that column groups them."
        )
    if found.logs and found.paths:
        notes.append("Pictures of files and of score logs are taken to be different ones.")
    return notes


# -- The images of a stream and their days.


@dataclass
class _FoundImages:
    """Image files with their days, and score logs."""

    paths: list[Path] = field(default_factory=list)
    times: list[datetime] = field(default_factory=list)
    group_cells: list[str | None] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)

    @property
    def groups(self) -> np.ndarray | None:
        """The group of each image; None unless all have one."""
        return None if None in self.group_cells or not self.paths else np.array(self.group_cells, object).astype(str)

    def labelled(self) -> LabelledImages:
        """The images as a source; labels mean nothing."""
        ids, targets = tuple(map(str, self.paths)), np.zeros(len(self.paths), np.int64)
        source = Source(name="the stream", classes=("picture",), images=tuple(self.paths), targets=targets, ids=ids)
        return LabelledImages(source, np.arange(len(self.paths)), "stream")

    def keys(self) -> list[str]:
        """What a score is kept under: it changes when the file does."""
        stats = ((path, path.stat()) for path in self.paths if path.exists())
        kept = {path: f"{path.absolute()}|{stat.st_size}|{stat.st_mtime_ns}" for path, stat in stats}
        return [kept.get(path, str(path)) for path in self.paths]


def _find_images(run: Path, paths: Sequence[str], request: WatchRequest) -> tuple[_FoundImages, list[str]]:
    """The images since the first day, each once, and notes."""
    if not paths:
        raise UsageError("PATHS are missing: folders of pictures, manifests with a column of days, or score logs.")
    found, notes, seen = _FoundImages(), list[str](), set[Path]()
    for text in paths:
        path = Path(text).expanduser()
        if is_score_log(path):
            found.logs.append(path)
            continue
        if path.is_file() and path.suffix.lower() in MANIFEST_EXTENSIONS:
            rows = _read_manifest(run, path, request, notes)
        else:
            files = expand_image_paths([text])
            rows = [(file, datetime.fromtimestamp(file.stat().st_mtime), None) for file in files]
        for file, time, group in rows:
            if time.date() < request.first or file.absolute() in seen:
                continue
            seen.add(file.absolute())
            found.paths.append(file)
            found.times.append(time)
            found.group_cells.append(group)
    if request.group_column and all(group is None for group in found.group_cells):
        raise UsageError(f"--group {request.group_column} is a column of a manifest, and none is given.")
    return found, notes


def _read_manifest(
    run: Path, path: Path, request: WatchRequest, notes: list[str]
) -> list[tuple[Path, datetime, str | None]]:
    """Each image of a manifest with its day and group."""
    table = read_manifest_table(path)
    column = request.date_column or _find_date_column(table)
    own = find_group_column(run)
    group = request.group_column or (own if own in table.columns else "")
    settings = DataSettings(targets=(column,), group=group)  # a target that is named keeps others from being looked for
    roles = infer_column_roles(tuple(table.columns), table.columns, settings, table.name)
    if not roles.path:
        raise DataError(f"No column of {table.name} names pictures. Its columns: {quote_names(list(table.columns))}.")
    cells, found = locate_images(path.parent, table.columns[roles.path], settings, table.where)
    notes += [*table.notes, *found]
    times = [_parse_time(cell, column, table.where(row)) for row, cell in enumerate(table.columns[column])]
    groups = [format_cell(cell) for cell in table.columns[group]] if group else [None] * len(table)
    return [(path.parent / name, time, one) for name, time, one in zip(cells, times, groups, strict=True)]


def _find_date_column(table: ManifestTable) -> str:
    found = [name for name in table.columns if normalize_column_name(name) in DATE_COLUMN_NAMES]
    if len(found) != 1:
        raise DataError(
            f"{'No' if not found else 'Not one'} column of {table.name} is called date. Its columns: "
            f"{quote_names(list(table.columns))}. Name the one with the days: --date COLUMN"
        )
    return found[0]


def _parse_time(cell: Cell, column: str, where: str) -> datetime:
    text = format_cell(cell).strip()
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        raise DataError(
            f"{where}: column {column!r} must hold days such as 2026-11-28, or times such as 2026-11-28T10:12. Got "
            f"{text!r}."
        ) from None


def _parse_date(text: str, flag: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{flag} takes a day such as 2026-11-28. Got {text!r}.") from None


# -- Scores: those of images that were seen before are kept beside the run.


class _ScoreCache:
    """A score log in the run folder, of one model with one decision."""

    def __init__(self, folder: Path, predictor: Predictor):
        self._predictor = predictor
        self._path = folder / f"scores-{hash_predictor(predictor)[:12]}.jsonl"
        rows = read_score_log(self._path) if self._path.is_file() else []
        self._rows = {row["image"]: row for row in rows}
        self._skipped: list[tuple[str, str]] = []

    def score(
        self, labelled: LabelledImages, keys: Sequence[str], names: Sequence[str], skip_bad: bool, track: Track,
        times: Sequence[datetime] | None, groups: np.ndarray | None,
    ) -> ScoredImages:  # fmt: skip
        """The scores of all images that can be read; new ones are computed and kept.

        Args:
            keys: what the score of each image is kept under.
            times, groups: of each image.
        """
        of_row = dict(zip(labelled.rows.tolist(), keys, strict=True))
        missing = [row for row, key in of_row.items() if key not in self._rows]
        if missing:
            todo = replace(labelled, rows=np.array(missing, np.int64))
            pairs = predict_labelled_batches(self._predictor, todo, skip_bad)
            for _ in track(self._keep(pairs, of_row), len(missing)):
                pass
        kept = [place for place, key in enumerate(keys) if key in self._rows]
        ids = labelled.source.ids
        return build_scored_images(
            [self._rows[keys[place]] for place in kept], names, [ids[int(labelled.rows[place])] for place in kept],
            [datetime(1970, 1, 1) if times is None else times[place] for place in kept],
            None if groups is None else np.asarray(groups)[kept].astype(str),
        )  # fmt: skip

    def _keep(
        self, pairs: Iterable[tuple[np.ndarray, TaskPredictions]], keys: dict[int, str]
    ) -> Iterator[TaskPredictions]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        for rows, table in pairs:
            lines = list(format_score_lines(table, [keys[row] for row in rows.tolist()], "1970-01-01T00:00:00"))
            if lines:
                atomic.append_line(self._path, "\n".join(lines))
            self._rows |= {row["image"]: row for row in map(json.loads, lines)}
            self._skipped += table.skipped
            yield table

    def describe_skipped(self) -> list[str]:
        """A sentence about images that could not be read, if there are any."""
        if not self._skipped:
            return []
        (name, why), count = self._skipped[0], format_count(len(self._skipped), "picture")
        return [f"Left out: {count} that cannot be read, such as {name}: {why}"]


def _read_log(path: Path, predictor: Predictor, names: Sequence[str], first: date, notes: list[str]) -> ScoredImages:
    """A score log of the server; answers of another decision are left out with a note."""
    rows = [row for row in read_score_log(path) if datetime.fromisoformat(row["time"]).date() >= first]
    own = [row for row in rows if row["decision"] == predictor.decisions.version]
    if len(own) < len(rows):
        notes.append(
            f"{format_count(len(rows) - len(own), 'answer')} of {path} were given by another decision than the one in "
            "use, and are left out."
        )
    times = [datetime.fromisoformat(row["time"]) for row in own]
    return build_scored_images(own, names, [row["image"] for row in own], times)


# -- Performance, once labels are known.


def _add_performance(
    report: WatchReport, run: Path, predictor: Predictor, images: ScoredImages, request: WatchRequest
) -> WatchReport:
    """The report with the primary metric of the images whose labels are known, in all and by month."""
    task: Task = predictor.task
    settings = build_source_settings(run, request.labels, {}, task=task)
    source = open_source(request.labels, settings)
    months = _match_months(images)
    places = [image_path(image) for image in source.images]
    cells = [months.get(str(Path(place).absolute()), months.get(Path(place).name, "")) for place in places]
    rows = np.array([row for row, cell in enumerate(cells) if cell], np.int64)
    if not len(rows):
        raise DataError(
            f"{source.name} has labels of {format_count(len(source), 'picture')}, and none of them is in the stream "
            "since that day: they are known by their paths, or in a score log by their names."
        )
    source = replace(source, metadata={**source.metadata, MONTH: cells})
    labelled = LabelledImages(source, rows, ALL_IMAGES)
    result = evaluate_model(predictor, labelled, request.skip_bad)
    kept = task != "segmentation" and len({cells[row] for row in rows.tolist()}) > 1
    facts_file = find_run(run) / provenance.FACTS_FILE
    own = provenance.read_facts(find_run(run)) if facts_file.is_file() else None
    before = None if own is None else own.metrics_for_split(own.held_out_split)
    return replace(
        report,
        performance=f"{result.metrics.headline()}.",
        held_out_performance="" if before is None else f"{before.headline()}.",
        months=evaluate_subgroups(labelled, result.predictions, MONTH) if kept else None,
        notes=(*report.notes, *source.notes),
    )


def _match_months(images: ScoredImages) -> dict[str, str]:
    """The month of each image, by its path, and by its name where the stream knows no more."""
    months = images.times.astype("datetime64[M]").astype(str).tolist()
    return {
        (str(Path(id).absolute()) if Path(id).is_file() else Path(id).name): month
        for id, month in zip(images.ids, months, strict=True)
    }
