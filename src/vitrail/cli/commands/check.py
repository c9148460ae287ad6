"""`vitrail check`: look at every picture of a source, train nothing."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ... import config
from ...data.settings import DataSettings
from ...errors import DataError, UsageError, escape_unprintable
from ...files.atomic import write_json
from ...files.disk import resource_errors
from ...formatting import MIN_TEST_IMAGES, format_count
from ...services.progress import track_images_and
from ..arguments import Command, print_json

if TYPE_CHECKING:
    from ...data.checks.findings import DataCheckReport
    from ...data.source import Source
    from ...spec import ImageSpec
    from ...train.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Check(Command):
    """Read every picture of a source once and tell what is wrong; the exit code is 3 if a training would stop at it.

    Finds pictures that cannot be read, copies inside and across splits, contradicting labels, groups that leak,
    shortcuts, and more. Nothing is changed.

      vitrail check flowers/
      vitrail check films.csv --group patient --out checked/
      vitrail train films.csv --exclude checked/exclude.csv
    """

    POSITIONAL = ("source",)
    DOTTED = "changes"
    SECTIONS = ("data", "image")

    source: str
    """A named set, a folder of class folders, a manifest, an array file, tar shards, hf:NAME or a datasets folder."""
    data_root: Path | None = None
    """Folder that holds the files of a named set."""
    group: str | None = None
    """Column whose equal values (one patient, one module) never cross from one split to another."""
    task: str | None = None
    """classification, multilabel or regression; by default what the label columns say."""
    exclude: Path | None = None
    """A CSV of pictures to leave out, such as the exclude.csv of an earlier check."""
    image_size: str | None = None
    """Pixels that the model would read: 64, or HEIGHTxWIDTH; by default what a training from scratch would choose."""
    out: Path | None = None
    """Folder for check.html (with pictures), check.json and exclude.csv, which has what --exclude lists too."""
    json: bool = False
    """Print the findings as JSON."""
    changes: tuple[tuple[str, str], ...] = ()
    """Any field of a plan's [data] or [image] by its name, such as --data.uncertain ignore."""

    def run(self) -> int:
        """Open the source, part it as a training would, look at every picture."""
        from ...data.checks.check_dataset import check_dataset
        from ...services.train_arguments import parse_image_size
        from ...train.dataset import open_dataset

        if self.out is not None:
            with resource_errors(self.out):  # before minutes are spent on what could not be written
                self.out.mkdir(parents=True, exist_ok=True)
        settings, overrides = self._parse_settings()
        size = None if self.image_size is None else parse_image_size(self.image_size)
        dataset = open_dataset(settings, seed=0)
        spec, patch = _plan_image_spec(dataset, settings, overrides, size)
        with track_images_and("Comparing the pictures") as track:
            findings = check_dataset(
                dataset.source, dataset.splits, spec, patch, progress=track, strata=settings.strata
            )
        findings = dataclasses.replace(findings, notes=(*dataset.notes, *findings.notes))
        listed = 0
        if self.out is not None:
            findings = findings.with_folder(shlex.quote(self.source), shlex.quote(str(self.out)))
            listed = self._write_report(self.out, findings, dataset.source, spec)
        stops = bool(findings.bad_images or findings.blocking_reasons)
        if self.json:
            print_json({**findings.to_json(), "stops_a_training": stops})
        else:
            print(escape_unprintable(findings.table()))
            self._print_next_steps(findings, dataset, listed)
        return DataError.exit_code if stops else 0

    def _parse_settings(self) -> tuple[DataSettings, dict[str, str]]:
        """The data settings, and the plan's [image] fields by their dotted names."""
        from ...train.plan import Plan

        flags = {"data_root": self.data_root, "group": self.group, "task": self.task, "exclude": self.exclude}
        data_flags = {f"data.{name}": str(value) for name, value in flags.items() if value is not None}
        for name, _ in self.changes:
            if name.partition(".")[0] not in ("data", "image"):
                raise UsageError(f"check trains nothing, so it takes no --{name}; only --data.NAME and --image.NAME.")
            if name in data_flags or name == "data.source":
                flag = "SOURCE" if name == "data.source" else f"--{name.partition('.')[2].replace('_', '-')}"
                raise UsageError(f"{flag} and --{name} are the same setting. Give one of them.")
        data = {name: text for name, text in self.changes if name.startswith("data.")}
        image = {name: text for name, text in self.changes if name.startswith("image.")}
        return config.override(Plan(data=DataSettings(source=self.source)), {**data_flags, **data}).data, image

    def _train_flags(self) -> tuple[str, ...]:
        """The flags with which a training reads the same pictures, but for --exclude."""
        named = {"--data-root": self.data_root, "--group": self.group, "--task": self.task}
        named |= {"--image-size": self.image_size, **{f"--{name}": text for name, text in self.changes}}
        return tuple(word for name, value in named.items() if value is not None for word in (name, str(value)))

    def _write_report(self, folder: Path, findings: DataCheckReport, source: Source, spec: ImageSpec) -> int:
        """Write page and lists; returns the number of images to exclude, those of an earlier list among them."""
        from ...data.checks.findings import read_exclude_list, write_exclude_list
        from ...report.check_page import write_check_page

        write_json(folder / "check.json", findings.to_json())
        earlier = () if self.exclude is None else read_exclude_list(self.exclude, source).tolist()
        listed = dict.fromkeys(earlier, f"listed in {self.exclude}") | dict(findings.rows_to_exclude())
        write_exclude_list(folder / "exclude.csv", source, sorted(listed.items()))
        write_check_page(folder / "check.html", findings, source, spec)
        return len(listed)

    def _print_next_steps(self, findings: DataCheckReport, dataset: Dataset, listed: int) -> None:
        """Print what stops a training, and how to leave out what was found, `listed` pictures by the written list."""
        if findings.bad_images:
            those, them = (
                ("This picture stops", "it") if len(findings.bad_images) == 1 else ("These pictures stop", "them")
            )
            print(f"{those} a training. Mend or remove {them}, or leave {them} out with --skip-bad.")
        elif not findings.blocking_reasons:
            print("Nothing here stops a training.")
        if advice := _advise_on_held_out(dataset):
            print(advice)
        if self.out is not None:
            print(f"Written to {self.out}: check.html, check.json and exclude.csv ({format_count(listed, 'picture')}).")
            if not findings.blocking_reasons:
                exclude = ("--exclude", str(self.out / "exclude.csv")) if listed else ()
                print(f"Next    {shlex.join(('vitrail', 'train', self.source, *self._train_flags(), *exclude))}")
        elif found := len(findings.rows_to_exclude()):
            better = format_count(found, "picture that is better", "pictures that are better")
            print(f"--out DIR writes a page with these pictures, and a list of {better} left out.")


def _advise_on_held_out(dataset: Dataset) -> str:
    """A warning about too few held-out images; empty if there are enough. Masks have no folds."""
    test, val = (len(dataset.splits.get(name, ())) for name in ("test", "val"))
    if not test and not val:
        return "No pictures would be held out, so no training could say how good it is: it takes more of each class."
    if not test or test >= MIN_TEST_IMAGES:
        return ""
    tell = f"{format_count(test, 'test picture')} would tell little of how good a training is"
    return (
        f"{tell}."
        if dataset.source.task == "segmentation"
        else f"{tell}; vitrail train --folds 5 tests every picture once."
    )


def _plan_image_spec(
    dataset: Dataset, settings: DataSettings, overrides: dict[str, str], size: tuple[int, int] | None
) -> tuple[ImageSpec, tuple[int, int]]:
    """The image specification and the patch size that a training with default settings would choose."""
    from ...train.plan import Plan
    from ...train.planning import model_size
    from ...train.planning.fingerprint import fingerprint_dataset
    from ...train.request import TrainRequest

    try:
        fingerprint = fingerprint_dataset(dataset, settings, overrides, seed=0)
    except DataError:  # none can be read: the check will name them all, with their reasons
        return config.override(Plan(), overrides).image, (1, 1)
    request = TrainRequest(data=settings, image_size=size, overrides=overrides)
    if fingerprint.task in ("anomaly", "segmentation"):  # which begin from a checkpoint, and read pictures as it says
        fingerprint = dataclasses.replace(fingerprint, task="classification")
    _, model, _ = model_size.choose_model(fingerprint, request, "cpu")  # of any device, in the size that it reads
    image, _ = model_size.draft_image_spec(fingerprint, model)
    plan = config.override(Plan(model=model, image=image), overrides)
    model_size.check_input_size(plan)
    return plan.image, plan.model.patch
