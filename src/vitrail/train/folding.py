"""A model for every fold: answers to all pictures by models that have not seen them, and an ensemble of all models."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from .. import config, runtime
from ..checkpoints import bundle
from ..data.preprocess import preprocess_image
from ..data.settings import DataSettings
from ..errors import UsageError
from ..evaluate import results
from ..evaluate.answers import Answers
from ..evaluate.decisions import Decisions
from ..evaluate.label_metrics import LabelMetrics
from ..evaluate.measuring import Figures
from ..evaluate.metrics import Metrics
from ..evaluate.number_metrics import NumberMetrics
from ..evaluate.suspect_list import advice_for
from ..files import atomic, checksums, lock
from ..report import choice, facts, grouping, page, thumbnails
from . import explained
from . import fit as one
from .before import full_name
from .brought import NOTHING, Brought
from .dataset import MEMORY, located
from .engines.group import found
from .events import Event, Finished, Note, Opened
from .explained import Shown
from .finish import THUMBNAILS
from .keeping.signals import FOLDS
from .planning.planner import minutes_of
from .planning.wishes import Wishes
from .run import RunFolder, make_default
from .teacher.settings import CNN
from .together import SPLIT, Together, of_folds

PATHS = ("pretrain.pictures", "teacher.model", "start.weights")
"""Plan fields that may name something on this machine."""
SUSPECTS = "suspects.csv"
"""Labels that models contradict which have not seen them, in the folder of all folds."""


def fit_folds(
    wishes: Wishes,
    settings: runtime.RuntimeSettings,
    out: Path | None = None,
    given: object | None = None,
    brought: Brought = NOTHING,
) -> Iterator[Event]:
    """Train every fold in turn into OUT/fold-0, OUT/fold-1, ..., each with its share of the minutes, and join them.

    Folds that are done already are kept, one that was stopped goes on.

    Args:
        out: the folder of all folds; None makes runs/<date>-<time>-<source>-<model>.
        given, brought: as `fit.fit`.

    Raises:
        UsageError: something else is in the folder, another process trains in it, or several train together.
        as `fit.fit`.
    """
    _check_alone()
    data = located(wishes.data) if given is None else dataclasses.replace(wishes.data, source=MEMORY)
    wishes = _located(dataclasses.replace(wishes, data=data))
    out = _begin(out, wishes, settings)
    yield Opened(out)
    with lock.Lock(out):
        try:
            yield from _follow(wishes, settings, out, given, brought)
        finally:
            if not any(out.glob("fold-*")):  # the first of them was refused
                for name in (FOLDS, lock.Lock.FILE):
                    (out / name).unlink(missing_ok=True)
                out.rmdir()


def foretell(
    wishes: Wishes, settings: runtime.RuntimeSettings, given: object | None = None, brought: Brought = NOTHING
) -> Iterator[Event]:
    """The plan that the first of the folds would follow; nothing is trained.

    Raises:
        as `fit_folds`.
    """
    _check_alone()
    yield Note(f"The plan of the first of {wishes.data.folds} folds; the others differ from it by their pictures.")
    yield from one.fit(_of_fold(wishes, 0), settings, dry_run=True, given=given, brought=brought)


def resume(out: Path, given: object | None = None, brought: Brought = NOTHING) -> Iterator[Event]:
    """Go on with folds that were stopped.

    Raises:
        as `fit_folds`.
    """
    _check_alone()
    wishes, settings = _read_asked(out)
    yield Opened(out)
    with lock.Lock(out):
        yield from _follow(wishes, settings, out, given, brought)


def is_folds(path: Path) -> bool:
    """Whether a folder holds folds."""
    return (path / FOLDS).is_file()


def fold_folder(out: Path, fold: int) -> Path:
    """The run folder of a fold."""
    return out / f"fold-{fold}"


def folders(out: Path) -> tuple[Path, ...]:
    """The run folders of all folds; none where a folder holds no folds."""
    if not is_folds(out):
        return ()
    wishes, _ = _read_asked(out)
    return tuple(fold_folder(out, fold) for fold in range(wishes.data.folds))


def first(out: Path) -> Path:
    """The run folder that stands for a training: that of the first fold, or the folder itself."""
    return fold_folder(out, 0) if is_folds(out) else out


def _check_alone() -> None:
    if found().world > 1:
        raise UsageError("Folds are trained one after another by one process. Train one with --data.fold NUMBER.")


def _located(wishes: Wishes) -> Wishes:
    """The wishes with what they name on this machine by its full name: the folds may be continued from anywhere."""
    named = {name: full_name(text) for name, text in wishes.overrides.items() if name in PATHS and text != CNN}
    weights = wishes.weights if wishes.weights in ("auto", "none") else full_name(wishes.weights)
    return dataclasses.replace(wishes, weights=weights, overrides={**wishes.overrides, **named})


def _read_asked(out: Path) -> tuple[Wishes, runtime.RuntimeSettings]:
    """What was asked for, as `_begin` has kept it."""
    asked = json.loads((out / FOLDS).read_text(encoding="utf-8"))
    data = config.read(DataSettings, asked["wishes"].pop("data"), str(out / FOLDS))
    size = asked["wishes"].pop("image_size")
    wishes = Wishes(data=data, image_size=None if size is None else tuple(size), **asked["wishes"])
    return wishes, config.read(runtime.RuntimeSettings, asked["settings"], str(out / FOLDS))


def _begin(out: Path | None, wishes: Wishes, settings: runtime.RuntimeSettings) -> Path:
    """The folder of all folds, with what was asked for; it may be there already, if the same was asked for."""
    asked: dict[str, Any] = {field.name: getattr(wishes, field.name) for field in dataclasses.fields(wishes)}
    asked |= {"data": config.write(wishes.data), "overrides": dict(wishes.overrides)}
    text = {"wishes": asked, "settings": config.write(settings)}
    if out is None:
        out = make_default(wishes.data.source, wishes.model or "automatic", datetime.now())
    elif is_folds(out):
        if json.loads((out / FOLDS).read_text(encoding="utf-8")) != json.loads(json.dumps(text)):
            raise UsageError(
                f"{out} holds the folds of another training. Go on with that one by --resume {out}, or choose another "
                "folder with --out."
            )
        return out
    RunFolder.check_free(out)
    out.mkdir(parents=True, exist_ok=True)
    atomic.write_json(out / FOLDS, text)
    return out


def _follow(
    wishes: Wishes, settings: runtime.RuntimeSettings, out: Path, given: object | None, brought: Brought
) -> Iterator[Event]:
    folds = wishes.data.folds
    seconds = 0.0
    for fold in range(folds):
        run = RunFolder(fold_folder(out, fold))
        yield Note(f"Fold {fold + 1} of {folds}, in {run.path}.")
        events = (
            one.resume(run.path, given, brought=brought)
            if run.plan_file.is_file()
            else one.fit(_of_fold(wishes, fold), settings, run.path, given=given, brought=brought)
        )
        for event in events:
            if isinstance(event, Finished):
                seconds += event.seconds
                yield Note(f"{event.metrics.headline()}.")
            elif not isinstance(event, Opened):  # the folder of all folds is open
                yield event
    whole = of_folder(out, given)
    figures = conclude(out, whole)
    yield Note(_suspected(out, whole))
    yield Finished(out, out / page.NAME, figures, seconds or facts.read(out).seconds)


def _of_fold(wishes: Wishes, fold: int) -> Wishes:
    """The wishes of one fold: the minutes, asked for or usual, are shared by all; steps and epochs are each fold's."""
    minutes = minutes_of(wishes) / wishes.data.folds
    return dataclasses.replace(wishes, data=dataclasses.replace(wishes.data, fold=fold), minutes=minutes or None)


def of_folder(out: Path, given: object | None = None) -> Together:
    """What all folds in a folder have answered.

    Raises:
        as `together.of_folds`.
    """
    return of_folds(folders(out), given)


def conclude(out: Path, whole: Together) -> Figures:
    """Keep the answers of all folds, their figures and the ensemble, and write the report."""
    answers, figures = whole.answers, whole.figures()
    (out / "predictions").mkdir(exist_ok=True)
    answers.write_csv(out / "predictions" / f"{SPLIT}.csv")
    atomic.write_json(out / f"metrics-{SPLIT}.json", figures.to_json())
    results.write(out / results.NAME, [figures])
    _keep_ensemble(out / "model", [run.bundle for run in whole.folds])
    _report(out, whole, answers, figures)
    return figures


def _keep_ensemble(folder: Path, bundles: Sequence[Path]) -> None:
    """Copy the folds' models, unless the very same are there: a fold may have been extended since."""
    if folder.exists():
        copies = [folder / f"member-{number}" for number in range(len(bundles))]
        if [*map(_hashes, copies)] == [*map(_hashes, bundles)]:
            return
        atomic.remove_folder(folder)
    bundle.save_ensemble(folder, bundles)


def _hashes(folder: Path) -> bytes:
    """The list of a bundle's files with their hashes; nothing where there is none."""
    path = folder / checksums.MANIFEST
    return path.read_bytes() if path.is_file() else b""


def _suspected(out: Path, whole: Together) -> str:
    """Keep the list of suspects, unless there is one that a person may have shortened, and say what is in it."""
    path = out / SUSPECTS
    if path.exists():
        return f"{path} is kept as it is; delete it to have it written again."
    found = whole.suspects()
    found.write_csv(path)
    advice = f" {advice_for(path)}" if found.suspects else ""
    return f"{found.summary(path)}{advice}"


def _report(out: Path, whole: Together, answers: Answers, figures: Figures) -> None:
    """One page about all answers, with a line for each fold."""
    folds, dataset = whole.folds, whole.dataset
    each = [facts.read(run.path) for run in folds]
    first, plan = each[0], folds[0].read_plan()
    chosen = choice.with_worst(answers, Decisions(), THUMBNAILS)
    shown = whole.rows(answers)[chosen]
    pictures = dataset.shown(shown, plan.image, plan.compute.workers)
    aspects = dataset.aspects(shown, plan.image)
    thumbnails.save(out, pictures.take(shown).permute(0, 2, 3, 1).numpy(), chosen, aspects)
    grouping.save(out, whole.groups(answers))
    own = [_renamed(one, number) for number, one in enumerate(each)]
    seconds = sum(one.seconds for one in each)
    places, views = whole.rows(answers), plan.recipe.views.count
    explained.keep(out, answers, chosen, lambda row: _shown(whole, row, int(places[row])), seconds, views)
    facts.write(
        out,
        dataclasses.replace(
            first,
            title=f"{first.title}, {len(folds)} folds",
            counts=tuple(
                facts.SplitCount(
                    split=one.split, n=one.n, origin=f"in {run.path.name}, by a model that has not seen them"
                )
                for one, run in zip(own, folds, strict=True)
            ),
            seconds=seconds,
            steps=sum(one.steps for one in each),
            images_seen=sum(one.images_seen for one in each),
            images_per_second=sum(one.images_seen for one in each) / max(seconds, 1e-9),
            command=f"vitrail train --resume {out}",
            created=f"{datetime.now():%Y-%m-%d %H:%M}",
            metrics=tuple(one for one in (*own, figures) if isinstance(one, Metrics)),
            label_metrics=tuple(one for one in (*own, figures) if isinstance(one, LabelMetrics)),
            number_metrics=tuple(one for one in (*own, figures) if isinstance(one, NumberMetrics)),
            decisions=Decisions(),
            notes=(*first.notes, f"Every picture is answered by the one model of {len(folds)} that has not seen it."),
        ),
    )
    page.build(out)


def _shown(whole: Together, row: int, at: int) -> Shown:
    """The model that has not seen a picture, and the picture as that model reads it.

    Args:
        row: of the table of all answers.
        at: the same picture's row in the source.
    """
    ends = np.cumsum([len(part) for part in whole.parts])
    kept = bundle.load_bundle(whole.folds[int(np.searchsorted(ends, row, side="right"))].bundle)
    return Shown(kept.model, kept.spec, preprocess_image(whole.dataset.source.pictures[at], kept.spec))


def _renamed(known: facts.ReportFacts, number: int) -> Figures:
    """The figures of a fold's held-out pictures under the fold's name."""
    figures = known.measured(known.held_out)
    assert figures is not None
    return dataclasses.replace(figures, split=f"fold {number}")
