"""Build the data set of a plan: open, split, exclude, load into memory, and measure mean and deviation."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64, Shaped
from numpy.typing import NDArray

from ..data import split_files
from ..data import splits as parts
from ..data.checks import findings
from ..data.checks.check_dataset import check_dataset
from ..data.checks.findings import DataCheckReport
from ..data.decoding.decode import read_image
from ..data.loader import ImageStore, load_images
from ..data.open import BUILT_IN, HUB_PREFIX, SHARD_EXTENSION, open_source
from ..data.preprocess import visible_size
from ..data.random_crop import RandomResizedCrop
from ..data.settings import DataSettings
from ..data.source import Source
from ..errors import DataError, UsageError
from ..evaluate.calibration import TargetScaling, fit_scaling
from ..files.atomic import write_json
from ..formatting import format_count
from ..randomness import permutation
from ..spec import ImageSpec
from .custom_functions import NO_CUSTOM_FUNCTIONS, CustomFunctions
from .distributed.collectives import RankGroup
from .events import Event, Note
from .plan import Plan
from .run_folder import RunFolder

MEMORY = "memory"
"""What a plan calls a source that was an object of a Python program."""
RESIDENT_BYTES = 2 * 2**30
MEAN_STD_SAMPLE, MEAN_STD_BATCH = 5000, 50
Splits = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Dataset:
    """A source with its splits."""

    source: Source
    splits: Splits
    notes: tuple[str, ...] = ()
    """What a person should know about how it was parted, and about what is not as it was when the run began."""
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS
    """What the program that has the pictures wants done with them in training."""

    def targets(self, split: str) -> Shaped[np.ndarray, " n *K"]:
        """What the pictures of a split show, in the split's order, as the source has it."""
        return self.source.targets[self.splits[split]]

    @property
    def scaling(self) -> TargetScaling | None:
        """The scale that numbers are learnt on, from the training targets; None for the other tasks."""
        return fit_scaling(self.targets("train")) if self.source.task == "number" else None

    def loss_targets(self, split: str) -> Shaped[np.ndarray, " n *K"]:
        """The targets of a split as the loss wants them: numbers with mean 0 and deviation 1, others as they are."""
        scaling = self.scaling
        return self.targets(split) if scaling is None else scaling.standardize(self.targets(split))

    def shard_ids(self, split: str) -> Int64[np.ndarray, " n"] | None:
        """The shard that each picture of a split lies in, where pictures lie in shards."""
        return None if self.source.blocks is None else self.source.blocks[self.splits[split]]

    def load_images(self, split: str, spec: ImageSpec, num_workers: int) -> ImageStore:
        """The pictures of a split, decoded to the model's size; in memory where they take at most 2 GiB."""
        return self.load_rows(self.splits[split], spec, num_workers)

    def load_rows(self, rows: NDArray[np.int64], spec: ImageSpec, num_workers: int) -> ImageStore:
        """The same of any rows."""
        return load_images(self.source, rows, spec, RESIDENT_BYTES, num_workers)

    def aspect_ratios(self, rows: NDArray[np.int64], spec: ImageSpec) -> Float64[np.ndarray, " n"]:
        """Width over height of what a model sees of each picture, as the picture itself has it.

        Pictures that are squashed are read again for it; one that is gone by now has the model's shape.
        """
        plain = spec.width / spec.height
        if spec.fit != "squash":
            return np.full(len(rows), plain)
        return np.array([self._aspect_ratio(int(row), spec, plain) for row in rows], np.float64)

    def _aspect_ratio(self, row: int, spec: ImageSpec, plain: float) -> float:
        try:
            height, width = read_image(self.source.images[row], spec).values.shape[:2]
        except DataError:
            return plain
        rows, columns = visible_size(height, width, spec)
        return columns / rows

    def load_training_images(self, spec: ImageSpec, cut: RandomResizedCrop | None, num_workers: int) -> ImageStore:
        """Those of the train split, cut as the recipe asks, and decoded as only a training may."""
        return load_images(self.source, self.splits["train"], spec, RESIDENT_BYTES, num_workers, cut, training=True)

    def sample(self, split: str, most: int, seed: int) -> NDArray[np.int64]:
        """At most this many rows of a split, the same for the same seed."""
        rows = self.splits[split]
        return rows if len(rows) <= most else np.sort(rows[permutation(seed, "sample", 0, len(rows))[:most]])


def open_dataset(
    settings: DataSettings,
    seed: int,
    previous_run: RunFolder | None = None,
    source_object: object | None = None,
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
) -> Dataset:
    """Open the source and part it; with `previous_run`, as that run has parted it, if it is still the same data.

    What `settings.exclude` lists is removed after splitting, so that all other images keep their split.

    Args:
        source_object: the object that the settings call "memory".
        custom_functions: functions of the caller's program; the data set carries them to the training.

    Raises:
        UsageError: the source cannot be had again, or a setting that it cannot follow.
        DataError: the source cannot be read, or its task, classes, targets or many pictures are not those of
            `previous_run`.
    """
    source = open_source(_resolve_source(settings, source_object), settings)
    _check_data_settings(source, settings)
    if previous_run is not None:
        return dataclasses.replace(_reopen_dataset(previous_run, source), custom_functions=custom_functions)
    splits = parts.make_splits(source, settings, seed)
    notes = list(_split_notes(source, settings, splits))
    if settings.exclude:
        before, listed = _count_images(splits), findings.read_exclude_list(Path(settings.exclude).expanduser(), source)
        splits = parts.remove_rows(splits, listed)
        notes.append(
            f"Left out {format_count(before - _count_images(splits), 'picture')} that {settings.exclude} lists."
        )
    if not len(splits["train"]):
        raise DataError(f"No pictures of {source.name} are left to train on.{''.join(f' {note}' for note in notes)}")
    _check_two_classes(source, splits["train"], settings)
    return Dataset(source, splits, tuple(notes), custom_functions)


def save_dataset_record(run: RunFolder, dataset: Dataset) -> None:
    """Write into a run folder what `open_dataset` needs to open the same data again.

    Raises:
        DataError: two pictures have the same id.
    """
    split_files.write_splits(run.splits_file, dataset.source, dataset.splits)
    write_data_record(run.data_file, dataset.source)


def class_indices(source: Source, rows: NDArray[np.int64]) -> Int64[np.ndarray, " n"]:
    """The class of each row as a number; where labels are soft, the most probable one."""
    return source.targets[rows].argmax(1) if source.has_soft_labels else source.targets[rows]


def resolve_data_paths(settings: DataSettings) -> DataSettings:
    """The settings with files and folders by their full names, so that a run can be continued from anywhere."""
    return dataclasses.replace(
        settings,
        source=_absolute_source(settings.source),
        data_root=str(Path(settings.data_root).expanduser().resolve()) if settings.data_root else "",
        exclude=str(Path(settings.exclude).expanduser().absolute()) if settings.exclude else "",
    )


def measure_mean_std(spec: ImageSpec, images: ImageStore, seed: int) -> ImageSpec:
    """The spec with mean and deviation per channel of (a sample of) the training pictures, rounded to 4 digits."""
    chosen = images.indices[permutation(seed, "moments", 0, len(images.indices))[:MEAN_STD_SAMPLE]]
    sums = np.zeros((2, spec.channels))
    for start in range(0, len(chosen), MEAN_STD_BATCH):  # whole numbers, so that the sums are exact
        values = images.take(chosen[start : start + MEAN_STD_BATCH]).numpy().astype(np.int64)  # [n, C, H, W]
        sums += [values.sum((0, 2, 3)), np.square(values).sum((0, 2, 3))]
    first, second = sums / (len(chosen) * spec.height * spec.width) / [[255], [255**2]]  # [C] each
    mean = tuple(round(float(m), 4) for m in first)
    std = tuple(max(round(float(s), 4), 0.01) for s in np.sqrt(np.maximum(second - first**2, 0)))
    return dataclasses.replace(spec, mean=mean, std=std)


def _reopen_dataset(run: RunFolder, source: Source) -> Dataset:
    changes = check_data_unchanged(run.data_file, source)  # first: who is gone means little under other classes
    splits, missing = split_files.read_splits(run.splits_file, source)
    return Dataset(source, splits, changes + missing)


def _resolve_source(settings: DataSettings, source_object: object | None) -> object:
    if source_object is not None:
        return source_object
    if settings.source == MEMORY and not Path(MEMORY).exists():
        raise UsageError(
            "The pictures of this run were objects that a Python program held in memory, so no command can open them "
            "again. In Python, vitrail.open(RUN).resume(OBJECT) goes on with the same object, and "
            "vitrail.open(RUN).evaluate(OBJECT) measures on any."
        )
    return settings.source


def _absolute_source(source: str) -> str:
    if source in BUILT_IN or source.startswith(HUB_PREFIX):
        return source
    path = Path(source).expanduser()
    if path.is_dir():
        return str(path.resolve())
    return str(path.absolute()) if path.exists() or source.endswith(SHARD_EXTENSION) else source


def _check_data_settings(source: Source, settings: DataSettings) -> None:
    """Refuse what was asked of the data and is not so; no setting is ignored."""
    if settings.task not in ("auto", source.task):
        raise UsageError(
            f"--task {settings.task} was asked for, but {source.name} is a source of {source.task}. Leave --task out, "
            "or give a manifest whose columns can be read so."
        )
    if settings.group and source.groups is None:
        raise UsageError(
            f"--group {settings.group} was asked for, but {source.name} does not say which pictures belong together. "
            "Groups come from a column: write a manifest with one."
        )
    if settings.strata and settings.strata not in source.metadata:
        columns = ", ".join(map(repr, source.metadata)) or "none"
        raise UsageError(
            f"--data.strata {settings.strata} names a column whose values every split is to show in proportion, beside "
            f"what is learnt. Such further columns of {source.name}: {columns}."
        )
    if source.task != "classes" and len({*source.classes, ""}) <= len(source.classes):
        raise DataError(f"Every output of {source.name} needs a name of its own. Got {', '.join(source.classes)}.")
    if source.task == "classes" and len(source.classes) < 2:
        only = ", ".join(map(repr, source.classes))
        raise DataError(f"{source.name} has only one class, {only}; telling apart takes two. Add pictures of another.")


def _check_two_classes(source: Source, rows: NDArray[np.int64], settings: DataSettings) -> None:
    """Refuse to learn one class from another that no training picture shows."""
    present = np.unique(class_indices(source, rows)) if source.task == "classes" else np.arange(2)
    if len(present) < 2:
        where = f" of fold {settings.fold}" if settings.folds else ""
        more = "fewer folds, or " if settings.folds else ""
        raise DataError(
            f"All {len(rows):,} training pictures{where} of {source.name} are of one class, "
            f"{source.classes[present[0]]!r}; at least two are needed to tell apart. Give {more}more pictures, or "
            "groups, of the others."
        )


def _split_notes(source: Source, settings: DataSettings, splits: Splits) -> list[str]:
    """What was not parted as one might think."""
    notes = []
    if settings.folds and "val" in source.splits:
        notes.append(f"The published val split of {source.name} was parted into the {settings.folds} folds too.")
    wanted, usual = {"val": settings.val_fraction, "test": settings.test_fraction}, DataSettings()
    folded = {"val": "test" in source.splits, "test": True} if settings.folds else {}
    for split, fraction in wanted.items():
        if fraction != vars(usual)[f"{split}_fraction"] and folded.get(split, split in source.splits):
            whose = "folds are asked for" if settings.folds else f"{source.name} has a {split} split of its own"
            notes.append(f"--data.{split}_fraction {fraction:g} is not used: {whose}.")
        if fraction and split not in source.splits and not len(splits[split]):
            what = "pictures" if source.groups is None else "groups"
            notes.append(f"The {split} split is empty: there are too few {what} of {source.name} to part.")
    return notes


def _count_images(splits: Splits) -> int:
    return sum(map(len, splits.values()))


# -- Image checks before a training: excluded images, notes, and errors

CHECK_TIME_FRACTION = 0.05  # of the minutes, that the check may take


def check_and_filter(dataset: Dataset, plan: Plan, group: RankGroup) -> tuple[Dataset, DataCheckReport | None]:
    """Rank 0 looks at the pictures; bad ones are left out everywhere if asked to, else all refuse.

    Raises:
        DataError: pictures that cannot be read, all of them named, or what would make the training worthless.
    """
    reports: list[DataCheckReport] = []

    def check_images() -> list[int]:
        reports.append(_check_images(dataset, plan))
        return reports[0].bad_indices.tolist()

    bad = np.array(group.run_on_rank0(check_images), np.int64)
    kept = parts.remove_rows(dataset.splits, bad)
    if not len(kept["train"]):
        raise DataError(f"No training picture of {dataset.source.name} can be read, so nothing is left to train on.")
    return dataclasses.replace(dataset, splits=kept), reports[0] if reports else None


def _check_images(dataset: Dataset, plan: Plan) -> DataCheckReport:
    """Look at the pictures, at all of them where the minutes allow.

    To leave out bad ones all must be looked at, however long it takes: one that is met later would end the training.
    """
    seconds = CHECK_TIME_FRACTION * 60 * plan.minutes if plan.minutes and not plan.data.skip_bad else None
    findings = check_dataset(
        dataset.source, dataset.splits, plan.image, plan.model.patch, seconds, strata=plan.data.strata
    )
    if findings.bad_images and not plan.data.skip_bad:
        listed = "; ".join(f"{name} ({reason.rstrip('.')})" for name, reason in findings.bad_images[:20])
        more = f" and {len(findings.bad_images) - 20:,} more" if len(findings.bad_images) > 20 else ""
        raise DataError(
            f"{len(findings.bad_images):,} of {len(dataset.source):,} pictures cannot be read: {listed}{more}. "
            "Mend or remove them, or leave them out with --skip-bad."
        )
    if findings.blocking_reasons:
        raise DataError(" ".join(findings.blocking_reasons))
    return findings


def report_findings(dataset: Dataset, findings: DataCheckReport | None) -> Iterator[Event]:
    """What the check noticed, and what was left out because of it; nothing from whom did not look."""
    if findings is None:
        return
    if findings.bad_images:
        yield Note(
            f"Left out {format_count(len(findings.bad_images), 'picture')} that cannot be read; check.json names them."
        )
    warnings = [f"{each.text} {each.advice}".strip() for each in findings.issues if each.severity == "warning"]
    for text in (*findings.notes, *warnings):
        if text not in (dataset.source.reason, *dataset.source.notes):
            yield Note(text)


# -- Data record of a run (data.json), compared when the run is resumed

MAX_CLASSES_SHOWN = 10


def write_data_record(path: Path, source: Source) -> None:
    """Keep name, task, classes and fingerprint of a source; what each picture shows is kept with the splits."""
    facts = {"source": source.name, "task": source.task, "classes": list(source.classes)}
    write_json(path, facts | {"fingerprint": source.fingerprint()})


def check_data_unchanged(path: Path, source: Source) -> tuple[str, ...]:
    """A sentence if the source is not quite what `write` has seen; nothing if it is.

    Raises:
        DataError: another task or other classes, so that the model's answers would mean something else.
    """
    if not path.is_file():
        return ("This run was begun by an older version, so nobody knows whether its data is still the same.",)
    recorded = json.loads(path.read_text(encoding="utf-8"))
    if recorded["task"] != source.task:
        raise DataError(
            f"The run was begun with a source of {recorded['task']}, and {source.name} is now one of {source.task}. "
            "Put the data back as it was, or begin a new run."
        )
    if recorded["classes"] != list(source.classes):
        raise DataError(
            f"The classes of {source.name} have changed since the run began. They were "
            f"{_join_class_names(recorded['classes'])}; "
            f"now they are {_join_class_names(source.classes)}. Put the data back as it was, or begin a new run."
        )
    if recorded["fingerprint"] == source.fingerprint():
        return ()
    changed = f"The data of {source.name} has changed since the run began (pictures added, removed or replaced)"
    return (f"{changed}, so results are no longer bit for bit those of the unbroken run.",)


def is_same_data(path: Path, source: Source) -> bool:
    """Whether a source is exactly what `write` has seen."""
    return path.is_file() and json.loads(path.read_text(encoding="utf-8"))["fingerprint"] == source.fingerprint()


def is_same_source(path: Path, source: Source) -> bool:
    """Whether `write` has seen this source, or one of its name whose files were others: ids mean the same there."""
    if not path.is_file():
        return False
    recorded = json.loads(path.read_text(encoding="utf-8"))
    in_files = not isinstance(source.images, np.ndarray)
    same_name = in_files and (recorded["source"], recorded["task"]) == (source.name, source.task)
    return bool(recorded["fingerprint"] == source.fingerprint() or same_name)


def _join_class_names(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:MAX_CLASSES_SHOWN])) + (
        f" and {len(names) - MAX_CLASSES_SHOWN:,} more" if len(names) > MAX_CLASSES_SHOWN else ""
    )
