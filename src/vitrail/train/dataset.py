"""Build the data set of a plan: open, split, exclude, load into memory, and measure mean and deviation."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32, Float64, Int64, Shaped
from numpy.typing import NDArray

from ..data import split_files
from ..data.checks import findings
from ..data.checks.check_dataset import check_dataset
from ..data.checks.findings import DataCheckReport
from ..data.decoding.decode import read_image
from ..data.open import BUILT_IN, HUB_PREFIX, SHARD_EXTENSION, open_source
from ..data.random_crop import RandomResizedCrop
from ..data.settings import MEMORY, DataSettings, advise_anomaly
from ..data.source import Source
from ..data.splits import make_splits, remove_rows
from ..errors import DataError, UsageError
from ..evaluate.calibration import TargetScaling, fit_scaling
from ..files.atomic import write_json
from ..formatting import format_count, join_sentences
from ..randomness import permutation
from ..spec import ImageSpec
from .events import Event, Note
from .plan import Plan
from .run_folder import RunFolder

if TYPE_CHECKING:
    from ..data.loader import ImageStore
    from ..data.mask_store import MaskStore
    from .custom_functions import CustomFunctions
    from .distributed.collectives import RankGroup

RESIDENT_BYTES = 2 * 2**30
MEAN_STD_SAMPLE, MEAN_STD_BATCH = 5000, 50
Splits = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Dataset:
    """A source with its splits."""

    source: Source
    splits: Splits
    notes: tuple[str, ...] = ()
    """Messages about the splits, and about changes since the run began."""
    given_functions: CustomFunctions | None = None
    """Loss and augmentation of the caller's program, if there are any."""

    @property
    def custom_functions(self) -> CustomFunctions:
        """Loss and augmentation of the caller's program; none by default. Loads torch."""
        from .custom_functions import NO_CUSTOM_FUNCTIONS

        return NO_CUSTOM_FUNCTIONS if self.given_functions is None else self.given_functions

    def targets(self, split: str) -> Shaped[np.ndarray, " n *K"]:
        """The targets of a split, in its order, as in the source."""
        return self.source.targets[self.splits[split]]

    @property
    def scaling(self) -> TargetScaling | None:
        """The standardization of regression targets, fitted to the train split; None for the other tasks."""
        is_regression = self.source.task == "regression"
        return fit_scaling(self.targets("train"), self.image_weights) if is_regression else None

    def loss_targets(self, split: str) -> Shaped[np.ndarray, " n *K"]:
        """The targets of a split for the loss: standardized for regression, unchanged for other tasks."""
        scaling = self.scaling
        return self.targets(split) if scaling is None else scaling.standardize(self.targets(split))

    def step_targets(self, spec: ImageSpec) -> Shaped[np.ndarray, " n *K"] | MaskStore:
        """The targets of the train split as the steps of a training take them: `loss_targets`, or masks.

        Raises:
            DataError: a mask cannot be read, or has another size than its image.
        """
        if self.source.task == "segmentation":
            from ..data.mask_store import MaskStore

            return MaskStore(self.source, self.splits["train"], spec, RESIDENT_BYTES)
        return self.loss_targets("train")

    @property
    def image_weights(self) -> Float32[np.ndarray, " n"] | None:
        """The loss weight of each training image, with mean 1; None where all are alike."""
        if self.source.weights is None:
            return None
        weights = self.source.weights[self.splits["train"]]
        return (weights / weights.mean()).astype(np.float32)

    def true_targets(self, rows: NDArray[np.int64]) -> np.ndarray:
        """Class indices of any rows; the source's targets for other tasks."""
        return class_indices(self.source, rows) if self.source.task == "classification" else self.source.targets[rows]

    def metric_targets(self, rows: NDArray[np.int64]) -> np.ndarray:
        """`true_targets` on the scale of the model's outputs, for metrics: standardized for regression."""
        targets, scaling = self.true_targets(rows), self.scaling
        return targets if scaling is None else scaling.standardize(targets)

    def shard_ids(self, split: str) -> Int64[np.ndarray, " n"] | None:
        """The shard of each image of a split, where images lie in shards."""
        return None if self.source.blocks is None else self.source.blocks[self.splits[split]]

    def load_images(self, split: str, spec: ImageSpec, num_workers: int) -> ImageStore:
        """The images of a split at the model's size; in memory where they take at most 2 GiB."""
        return self.load_rows(self.splits[split], spec, num_workers)

    def load_rows(self, rows: NDArray[np.int64], spec: ImageSpec, num_workers: int) -> ImageStore:
        """The images of any rows, as `load_images`."""
        from ..data.loader import load_images

        return load_images(self.source, rows, spec, RESIDENT_BYTES, num_workers)

    def aspect_ratios(self, rows: NDArray[np.int64], spec: ImageSpec) -> Float64[np.ndarray, " n"]:
        """Width over height of the part of each image that the model sees, before squashing.

        Squashed images are read again for it; an image that cannot be read gets the ratio of the model's input.
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
        from ..data.preprocess import visible_size

        rows, columns = visible_size(height, width, spec)
        return columns / rows

    def load_training_images(self, spec: ImageSpec, cut: RandomResizedCrop | None, num_workers: int) -> ImageStore:
        """The images of the train split, cropped by the recipe, with the decoding shortcuts for training."""
        from ..data.loader import load_images

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
    custom_functions: CustomFunctions | None = None,
) -> Dataset:
    """Open the source and split it, or take the splits of `previous_run`, if its data is the same.

    Images in `settings.exclude` are removed after splitting, so that all other images keep their split.

    Args:
        source_object: the object that the settings call "memory".

    Raises:
        UsageError: the source cannot be opened again, or a setting does not fit it.
        DataError: the source cannot be read, or its task, classes, targets or many images are not those of
            `previous_run`.
    """
    try:
        source = open_source(_resolve_source(settings, source_object), settings)
    except DataError as error:
        if previous_run is not None and (advice := _advise_on_moved_data(settings, previous_run)):
            raise DataError(f"{error} {advice}") from error
        raise
    _check_data_settings(source, settings)
    if previous_run is not None:
        # The check of the classes comes first, because missing images mean little under other classes.
        changes = check_data_unchanged(previous_run.data_file, source)
        source = dataclasses.replace(source, weights=split_files.read_weights(previous_run.splits_file, source))
        splits, missing = split_files.read_splits(previous_run.splits_file, source)
        return Dataset(source, splits, changes + missing, custom_functions)
    splits = make_splits(source, settings, seed)
    notes = list(_split_notes(source, settings, splits))
    if settings.exclude:
        before, listed = _count_images(splits), findings.read_exclude_list(Path(settings.exclude).expanduser(), source)
        splits = remove_rows(splits, listed)
        notes.append(
            f"Left out {format_count(before - _count_images(splits), 'picture')} that {settings.exclude} lists."
        )
    if not len(splits["train"]):
        raise DataError(join_sentences((f"No pictures of {source.name} are left to train on.", *notes)))
    _check_two_classes(source, splits["train"], settings)
    return Dataset(source, splits, tuple(notes), custom_functions)


def save_dataset_record(run: RunFolder, dataset: Dataset) -> None:
    """Write the splits and the data record of a run, for `open_dataset`.

    Raises:
        DataError: two pictures have the same id.
    """
    split_files.write_splits(run.splits_file, dataset.source, dataset.splits)
    write_data_record(run.data_file, dataset.source)


def class_indices(source: Source, rows: NDArray[np.int64]) -> Int64[np.ndarray, " n"]:
    """The class index of each row; the most probable class of soft labels."""
    return source.targets[rows].argmax(1) if source.has_soft_labels else source.targets[rows]


def resolve_data_paths(settings: DataSettings) -> DataSettings:
    """The settings with absolute paths, so that a run can be resumed from anywhere."""
    return dataclasses.replace(
        settings,
        source=_absolute_source(settings.source),
        val_source=settings.val_source and _absolute_source(settings.val_source),
        test_source=settings.test_source and _absolute_source(settings.test_source),
        data_root=str(Path(settings.data_root).expanduser().resolve()) if settings.data_root else "",
        exclude=str(Path(settings.exclude).expanduser().absolute()) if settings.exclude else "",
        legend=str(Path(settings.legend).expanduser().absolute()) if settings.legend else "",
    )


def measure_mean_std(spec: ImageSpec, images: ImageStore, seed: int) -> ImageSpec:
    """The spec with mean and standard deviation per channel of (a sample of) the training images.

    To 4 digits, and deviations of at least 0.01; to 6 digits and 0.0001 at a bit depth of 16, where less can be seen.
    """
    digits, least = (4, 0.01) if spec.bit_depth == 8 else (6, 0.0001)
    chosen = images.indices[permutation(seed, "moments", 0, len(images.indices))[:MEAN_STD_SAMPLE]]
    sums = np.zeros((2, spec.channels))
    for start in range(0, len(chosen), MEAN_STD_BATCH):  # integers, so the sums are exact
        values = images.take(chosen[start : start + MEAN_STD_BATCH]).numpy().astype(np.int64)  # [n, C, H, W]
        sums += [values.sum((0, 2, 3)), np.square(values).sum((0, 2, 3))]
    first, second = sums / (len(chosen) * spec.height * spec.width) / [[spec.white], [spec.white**2]]  # [C] each
    mean = tuple(round(float(m), digits) for m in first)
    std = tuple(max(round(float(s), digits), least) for s in np.sqrt(np.maximum(second - first**2, 0)))
    return dataclasses.replace(spec, mean=mean, std=std)


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


def _advise_on_moved_data(settings: DataSettings, run: RunFolder) -> str:
    """How to tell a run the new place of its images; empty where everything that its plan names is there."""
    places = {name: vars(settings)[name] for name in ("source", "val_source", "test_source", "data_root")}
    gone = [name for name, place in places.items() if Path(place).is_absolute() and not Path(place).exists()]
    if not gone:
        return ""
    places_of_new = " ".join(f"--data.{name} NEW" for name in gone)
    return (
        f"The pictures of {run.path} were there when it began. If they were moved or renamed, give their new place "
        f"once: vitrail train --resume {shlex.quote(str(run.path))} {places_of_new}"
    )


def _absolute_source(source: str) -> str:
    if source in BUILT_IN or source.startswith(HUB_PREFIX):
        return source
    path = Path(source).expanduser()
    if path.is_dir():
        return str(path.resolve())
    return str(path.absolute()) if path.exists() or source.endswith(SHARD_EXTENSION) else source


def _check_data_settings(source: Source, settings: DataSettings) -> None:
    """Check the settings against the source; no setting is ignored."""
    if settings.task not in ("auto", source.task):
        raise UsageError(
            f"--task {settings.task} was asked for, but {source.name} is a {source.task} source. Leave --task out, "
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
    if source.task != "classification" and len({*source.classes, ""}) <= len(source.classes):
        raise DataError(f"Every output of {source.name} needs a name of its own. Got {', '.join(source.classes)}.")
    if source.task == "classification" and len(source.classes) < 2:
        only = ", ".join(map(repr, source.classes))
        alone = f"{source.name} has only one class, {only}; telling apart takes two. Add pictures of another."
        more = [advise_anomaly(settings.source).strip()] if settings.source != MEMORY else []
        raise DataError(join_sentences((alone, *source.notes, *more)))


def _check_two_classes(source: Source, rows: NDArray[np.int64], settings: DataSettings) -> None:
    """Check that the training images have at least two classes."""
    present = np.unique(class_indices(source, rows)) if source.task == "classification" else np.arange(2)
    if len(present) < 2:
        where = f" of fold {settings.fold}" if settings.folds else ""
        more = "fewer folds, or " if settings.folds else ""
        raise DataError(
            f"All {format_count(len(rows), 'training picture')}{where} of {source.name} are of one class, "
            f"{source.classes[present[0]]!r}; at least two are needed to tell apart. Give {more}more pictures, or "
            "groups, of the others."
        )


def _split_notes(source: Source, settings: DataSettings, splits: Splits) -> list[str]:
    """Notes on splits that differ from what one might expect."""
    if source.task == "anomaly":
        return _anomaly_notes(source, splits)
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


def _anomaly_notes(source: Source, splits: Splits) -> list[str]:
    """What good pictures and defects are used for."""
    defects = {split: int((source.targets[rows] == 1).sum()) for split, rows in splits.items()}
    unused = int((source.targets == 1).sum()) - sum(defects.values())
    notes = []
    if any(defects.values()):
        shown = format_count(sum(defects.values()), "picture")
        notes.append(f"The bank is made of good pictures alone; {shown} of defects are for evaluation only.")
    if unused:
        notes.append(f"Left out {format_count(unused, 'picture')} of defects among the training pictures.")
    if not len(splits["test"]):
        notes.append("No pictures are held out: every good one is left out of the bank in turn to judge it.")
    return notes


def _count_images(splits: Splits) -> int:
    return sum(map(len, splits.values()))


# -- Image checks before a training: excluded images, notes, and errors

CHECK_TIME_FRACTION = 0.05  # of the time budget
SECONDS_TO_NAME_ALL = 60.0
"""Where a picture cannot be read there will be no training, and the check takes so long to name them all."""


def check_and_filter(dataset: Dataset, plan: Plan, group: RankGroup) -> tuple[Dataset, DataCheckReport | None]:
    """Check the images on rank 0; with skip_bad, remove unreadable ones on all ranks.

    Returns the dataset, and on rank 0 the report.

    Raises:
        DataError: unreadable images without skip_bad, all of them named, or findings that would make the training
            worthless.
    """
    reports: list[DataCheckReport] = []

    def check_images() -> list[int]:
        reports.append(_check_images(dataset, plan))
        return reports[0].bad_indices.tolist()

    bad = np.array(group.run_on_rank0(check_images), np.int64)
    kept = remove_rows(dataset.splits, bad)
    if not len(kept["train"]):
        raise DataError(f"No training picture of {dataset.source.name} can be read, so nothing is left to train on.")
    return dataclasses.replace(dataset, splits=kept), reports[0] if reports else None


def _check_images(dataset: Dataset, plan: Plan) -> DataCheckReport:
    """Check as many images as the time allows; with skip_bad all, because the training stops at an unreadable one."""
    seconds = CHECK_TIME_FRACTION * 60 * plan.minutes if plan.minutes and not plan.data.skip_bad else None
    check = partial(check_dataset, dataset.source, dataset.splits, plan.image, plan.model.patch)
    findings = check(seconds, strata=plan.data.strata)
    if findings.bad_images and seconds is not None and findings.is_partial:
        findings = check(max(seconds, SECONDS_TO_NAME_ALL), strata=plan.data.strata)
    if findings.bad_images and not plan.data.skip_bad:
        listed = "; ".join(f"{name} ({reason.rstrip('.')})" for name, reason in findings.bad_images[:20])
        more = f" and {len(findings.bad_images) - 20:,} more" if len(findings.bad_images) > 20 else ""
        count = f"{len(findings.bad_images):,} of {format_count(len(dataset.source), 'picture')} cannot be read"
        if findings.is_partial:
            count = (
                f"At least {count}, of the {findings.checked_count:,} that the check had time for (vitrail check SOURCE"
                " names all)"
            )
        raise DataError(f"{count}: {listed}{more}. Mend or remove them, or leave them out with --skip-bad.")
    if findings.blocking_reasons:
        raise DataError(" ".join(findings.blocking_reasons))
    return findings


def report_findings(dataset: Dataset, findings: DataCheckReport | None) -> Iterator[Event]:
    """Notes on the findings and the removed images; none on ranks without findings."""
    if findings is None:
        return
    if findings.bad_images:
        yield Note(
            f"Left out {format_count(len(findings.bad_images), 'picture')} that cannot be read; check.json names them."
        )
    warnings = [
        f"{each.text} {each.advice}".strip() for each in findings.issues_with_new_advice() if each.severity == "warning"
    ]
    for text in (*findings.notes, *warnings):
        if text not in (dataset.source.reason, *dataset.source.notes):
            yield Note(text)


# -- Data record of a run (data.json), compared when the run is resumed

MAX_CLASSES_SHOWN = 10


def write_data_record(path: Path, source: Source) -> None:
    """Write name, task, classes and fingerprint of a source; splits.csv has the targets."""
    facts = {"source": source.name, "task": source.task, "classes": list(source.classes)}
    write_json(path, facts | {"fingerprint": source.fingerprint()})


def check_data_unchanged(path: Path, source: Source) -> tuple[str, ...]:
    """A sentence if the source differs from its record; empty if not.

    Raises:
        DataError: another task or other classes.
    """
    if not path.is_file():
        return ("This run was begun by an older version, so it is not known whether its data is still the same.",)
    recorded = json.loads(path.read_text(encoding="utf-8"))
    if recorded["task"] != source.task:
        raise DataError(
            f"The run was begun with a {recorded['task']} source, and {source.name} is now a {source.task} source. "
            "Put the data back as it was, or begin a new run."
        )
    if recorded["classes"] != list(source.classes):
        raise DataError(
            f"The classes of {source.name} have changed since the run began. They were "
            f"{_join_class_names(recorded['classes'])}; "
            f"now they are {_join_class_names(source.classes)}. Put the data back as it was, or begin a new run."
        )
    if source.has_fingerprint(recorded["fingerprint"]):
        return ()
    changed = f"The data of {source.name} has changed since the run began (pictures added, removed or replaced)"
    return (f"{changed}, so results are no longer bit for bit those of the unbroken run.",)


def is_same_data(path: Path, source: Source) -> bool:
    """Whether a source has exactly the recorded data."""
    return path.is_file() and source.has_fingerprint(json.loads(path.read_text(encoding="utf-8"))["fingerprint"])


def is_same_source(path: Path, source: Source) -> bool:
    """Whether the record is of this source, or of one of its name with other files, where ids mean the same."""
    if not path.is_file():
        return False
    recorded = json.loads(path.read_text(encoding="utf-8"))
    in_files = not isinstance(source.images, np.ndarray)
    same_name = in_files and (recorded["source"], recorded["task"]) == (source.name, source.task)
    return source.has_fingerprint(recorded["fingerprint"]) or bool(same_name)


def _join_class_names(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:MAX_CLASSES_SHOWN])) + (
        f" and {len(names) - MAX_CLASSES_SHOWN:,} more" if len(names) > MAX_CLASSES_SHOWN else ""
    )
