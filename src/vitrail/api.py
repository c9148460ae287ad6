"""The Python surface: `create`, `load`, `fit`, `open` and `Run`, under the names of the command line's verbs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from io import StringIO
from pathlib import Path

from .data.open import is_memory
from .doors import comparing, converting, evaluation, models, progress, saying, wishes
from .doors.predicting import open_predictor, several
from .errors import UsageError
from .evaluate.answers import Answers
from .evaluate.comparing import Comparison
from .evaluate.measuring import Figures
from .files.hub import is_hub_name
from .model.sizes import named
from .model.vit import ViT
from .model.vit import create as create_from_config
from .predict.predictor import Predictor
from .train import fit as training
from .train.dataset import MEMORY
from .train.keeping.extend import Extension
from .train.plan import Plan
from .train.run import RunFolder, default_path

Size = int | tuple[int, int]


class Run:
    """A training that has been done: its folder, its plan, and its model to ask.

    Raises:
        UsageError: the folder is not one that a training has made.
    """

    def __init__(self, path: str | Path, trained_on: object | None = None):
        self.path = Path(path)
        """The run folder."""
        self.plan: Plan = RunFolder.existing(self.path).read_plan()
        """Every setting of the run."""
        self._trained_on = trained_on  # an object that only this program has

    @property
    def report(self) -> Path:
        """The self-contained HTML page."""
        return self.path / "report.html"

    @cached_property
    def predictor(self) -> Predictor:
        """The trained model with its class names, on the best device here; opened when it is first asked for."""
        return open_predictor(self.path)

    def predict(self, pictures: Sequence[object], skip_bad: bool = False) -> Answers:
        """One row per picture, in order; a picture is what `fit` takes as one.

        Args:
            pictures: paths, encoded bytes, arrays [H, W] or [H, W, C], tensors [C, H, W], or Pillow pictures.

        Raises:
            DataError: a picture that cannot be read, unless `skip_bad` leaves those out and names them in `skipped`.
        """
        asked = several(pictures)
        return self.predictor.predict(asked, skip_bad=skip_bad)

    def evaluate(self, source: object | None = None, split: str | None = None, skip_bad: bool = False) -> Figures:
        """Figures with intervals on the held-out pictures, or on another source of the same classes (labels, numbers).

        Args:
            source: as `fit` takes it; None is what the run was trained on.
            split: train, val, test or all; None takes test, or what there is of held-out pictures.

        Raises:
            DataError: the source cannot be read, or has classes, labels or columns that the model does not know.
        """
        return evaluation.evaluate(self.predictor, self._labelled(source, split), skip_bad).metrics

    def _labelled(self, source: object | None, split: str | None) -> evaluation.Labelled:
        if source is None:
            return evaluation.held_out(self.path, split, self._trained_on)
        settings = evaluation.reading(self.path, source, {}, task=self.predictor.task)
        return evaluation.other_source(source, split, settings)

    def compare(self, other: Run | str | Path, source: object | None = None, split: str | None = None) -> Comparison:
        """Both models on the same pictures, with a p-value for each figure; what `vitrail evaluate --against` does.

        Pictures that either run has learnt from are left out, where its data is the same; `notes` say so.

        Args:
            other: a run, or any model that knows its classes.
            source, split: as `evaluate`.

        Raises:
            DataError: the models answer different tasks or names, or the other has learnt from all the pictures.
        """
        path = other.path if isinstance(other, Run) else Path(other)
        labelled = self._labelled(source, split)
        for model in (path,) if source is None else (self.path, path):
            labelled = comparing.unseen_by(model, labelled)
        return comparing.against(self.predictor, open_predictor(path), labelled).comparison

    def resume(self, source: object | None = None, quiet: bool = False) -> Run:
        """Go on where the run was stopped, exactly as its plan says; what `vitrail train --resume` does.

        Args:
            source: the object that it was begun with, if it was one and this program has no hold of it any more.

        Raises:
            UsageError: such an object is missing, or something is given to a run that knows where its pictures are.
            as `fit`.
        """
        if source is not None and self.plan.data.source != MEMORY:
            raise UsageError(f"The run {self.path} reads {self.plan.data.source} again; no source can be given to it.")
        given = self._trained_on if source is None else source
        progress.follow(training.resume(self.path, given), self.path, _stream(quiet))
        return Run(self.path, given)

    def extend(
        self,
        minutes: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        source: object | None = None,
        quiet: bool = False,
    ) -> Run:
        """Train for so much longer, also after the end; what `vitrail train --resume RUN --extend` does.

        Args:
            minutes, epochs, steps: one of them.
            source: as `resume`.

        Raises:
            as `resume`.
        """
        longer = Extension(minutes=minutes, epochs=epochs, steps=steps)
        given = self._trained_on if source is None else source
        progress.follow(training.resume(self.path, given, longer), self.path, _stream(quiet))
        return Run(self.path, given)

    def export(self, to: str, out: str | Path | None = None) -> Path:
        """The model as files of another library, read back and compared before they are kept.

        Args:
            to: timm, transformers, torchvision, google-npz or bundle.
            out: the folder or file to make; None makes one in the run's `exports/`.

        Raises:
            UsageError: no such target, `out` exists, or the target cannot express a part of the model (named).
        """
        wanted = converting.target(to)
        path = Path(out) if out is not None else self.path / "exports" / converting.with_ending(wanted, wanted)
        return converting.convert(models.find(str(self.path)), wanted, path).path

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def create(
    name: str,
    outputs: int | None = None,
    channels: int | None = None,
    image_size: Size | None = None,
    seed: int = 0,
) -> ViT:
    """An untrained model by the name of its size: pictures [B, C, H, W], normalised, to logits [B, outputs].

    Raises:
        UsageError: no such name, or an image size that the patch does not divide.
    """
    size = None if image_size is None else wishes.pixels(image_size)
    return create_from_config(models.resized(named(name), size, channels, outputs), seed)


def load(
    path: str | Path,
    layout: str | None = None,
    heads: int | None = None,
    image_size: Size | None = None,
    channels: int | None = None,
    pool: str | None = None,
    match: str | None = None,
    outputs: int | None = None,
    channels_policy: str | Sequence[int] | None = None,
    network: str | None = None,
    settings: Mapping[str, object] | None = None,
    allow_nonfinite: bool = False,
) -> ViT:
    """A trained model, complete or not at all, in evaluation mode on the CPU.

    Args:
        path: a run folder, a bundle, a weights file or folder of any known layout, or "hf:OWNER/NAME".
        layout: name of a layout, such as "timm"; recognised from the tensors if it is not given.
        heads: attention heads, where a file cannot say; a value that contradicts the file is an error.
        image_size: pixels, where a file cannot say; another size than its own stretches its positions once, by the
            rule of its family.
        channels: of the pictures, where a file cannot say; another count than its own needs `channels_policy`.
        pool: "class", "mean", "attention" or "class+mean", where the file cannot say or another is wanted.
        match: whose numerics, "original", "timm" or "transformers", where libraries run the same file differently.
        outputs: another number than the file's puts a fresh head of zeros on the model; 0 gives pooled features.
        channels_policy: how the patch projection is adapted: "sum", "mean", "tile", or for each new channel the file's.
        network: which of several networks that a training saved, such as "encoder" of I-JEPA.
        settings: fields of the architecture that neither file nor layout says, such as {"activation": "QuickGELU"}.
        allow_nonfinite: load weights that are NaN or infinite, to look at what a diverged training left.

    Raises:
        UsageError: nothing at the path, or an argument is missing or contradicts the file.
        DamagedFileError: the file is damaged, or its tensors are not those of its layout.
        ResourceError: a name on the Hub whose files are neither here nor reachable.
    """
    if not (Path(path).exists() or is_hub_name(str(path))):
        raise UsageError(
            f"There is nothing at {path}. Give a run folder, a bundle, a weights file or folder, or hf:OWNER/NAME."
        )
    words = saying.said(
        layout=layout,
        heads=heads,
        image_size=image_size,
        channels=channels,
        pool=pool,
        match=match,
        outputs=outputs,
        channels_policy=channels_policy,
        network=network,
    )
    return models.find(str(path), replace(words, settings=settings or {}, allow_nonfinite=allow_nonfinite)).model


def fit(
    source: object,
    model: str | None = None,
    weights: str | Path | None = None,
    minutes: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    image_size: Size | None = None,
    channels: int | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
    skip_bad: bool = False,
    task: str | None = None,
    group: str | None = None,
    exclude: str | Path | None = None,
    pretrain: bool = False,
    settings: Mapping[str, object] | None = None,
    quiet: bool = False,
) -> Run:
    """Train a model on a source of pictures and evaluate it; what `vitrail train` does, shown in the same way.

    Args:
        source: a named set, a folder or file by its path, "hf:NAME"; or an object: a torch Dataset, a DataFrame, a list
            of (picture, label) pairs, or a pair of arrays (pictures, labels).
        weights: a checkpoint to begin from: a file, a folder, a run, "hf:OWNER/NAME" or "dinov2-small"; "auto", as by
            default, takes a recommended one that is on this machine, and "none" begins from random values.
        minutes, epochs, steps: the budget, one of them; ten minutes if none is given.
        out: the run folder; None makes runs/<date>-<time>-<source>-<model>.
        task: "classes", "labels" or "number"; by default as the labels look.
        group: the column whose equal values (one patient, one module) never cross from one split to another.
        exclude: a CSV of pictures to leave out, such as `vitrail check --out DIR` writes.
        pretrain: learn from the pictures without their labels first, for a part of the budget.
        settings: fields of the plan by their dotted names, such as {"recipe.batch": 64}.
        quiet: show nothing.

    Raises:
        UsageError, DataError, ResourceError, DivergedError: see `vitrail.errors`.
        InterruptedRun: stopped and saved; the message says how to go on.
    """
    given = source if is_memory(source) else None
    asked = wishes.Asked(
        source=str(source) if given is None else MEMORY,
        model=model, weights=None if weights is None else str(weights), minutes=minutes, epochs=epochs, steps=steps,
        seed=seed, image_size=None if image_size is None else wishes.pixels(image_size), channels=channels,
        device=device, data_root=None if data_root is None else Path(data_root),
        skip_bad=skip_bad, task=task, group=group, exclude=None if exclude is None else Path(exclude),
        pretrain=pretrain, changes={name: _text(value) for name, value in (settings or {}).items()},
    )  # fmt: skip
    wanted, chosen = wishes.wishes(asked)
    path = _folder(out, wanted.data.source, model)
    progress.follow(training.fit(wanted, chosen, path, given=given), path, _stream(quiet))
    return Run(path, given)


def open(run: str | Path) -> Run:  # noqa: A001 - `vitrail.open` is meant to read like the built-in
    """A run that was trained before, by its folder.

    Raises:
        UsageError: no training has made this folder.
    """
    return Run(run)


def _folder(out: str | Path | None, source: str, model: str | None) -> Path:
    """The run folder that was asked for, or one named after the time, the source and the model."""
    return Path(out) if out is not None else default_path(source, model or "automatic", datetime.now())


def _stream(quiet: bool) -> progress.Stream:
    return StringIO() if quiet else sys.stderr


def _text(value: object) -> str:
    """A value of a setting as the command line would write it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
