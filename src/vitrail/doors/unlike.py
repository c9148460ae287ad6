"""Another source beside a run's held-out pictures: does the model notice that it has never seen such pictures?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..data.open import BUILT_IN, find_folder_reader
from ..data.settings import DataSettings
from ..data.source import Source
from ..data.sources.class_folders import open_class_folders
from ..errors import UsageError
from ..evaluate.ood import OodComparison, compare_ood
from ..predict.image_paths import expand_image_paths
from ..predict.predictor import Predictor
from .evaluation import ALL, Counter, Labelled, other_source
from .reading import features_of


def told_apart(
    predictor: Predictor, own: Labelled, other: Labelled, skip_bad: bool = False, counted: Counter | None = None
) -> OodComparison:
    """Let the model look at both, and compare how far they lie from its training pictures.

    Raises:
        UsageError: an ensemble, or a model that does not know what its training pictures look like.
        DataError: a picture cannot be read, unless `skip_bad`.
    """
    member = predictor.alone()
    if member.familiar is None:
        raise UsageError(
            "Only a bundle that a training has made knows what familiar pictures look like (familiar.safetensors). "
            "This model does not; train one with vitrail train."
        )
    features, rows = features_of(predictor, own, skip_bad, counted)
    others, theirs = features_of(predictor, other, skip_bad, counted)
    groups = tuple(
        None if one.source.groups is None else one.source.groups[kept] for one, kept in ((own, rows), (other, theirs))
    )
    names = (own.source.name, own.split, other.source.name)
    return compare_ood(member.familiar, member.decided.unlike, features, others, names, (groups[0], groups[1]))


def whole(other: object, settings: DataSettings | None = None) -> Labelled:
    """All pictures of another source, or those of its published test; what they show does not matter.

    Args:
        other: as `open_source` takes it; of a folder of pictures, with or without class folders, every picture.
        settings: how it is to be read.

    Raises:
        DataError: there is nothing, or it cannot be read.
        UsageError: something is said of a folder whose pictures are all looked at.
    """
    settings = settings or DataSettings()
    if not (isinstance(other, str | Path) and _of_files(other)):
        return other_source(other, None, settings)
    if settings != DataSettings(source=settings.source, data_root=settings.data_root):
        raise UsageError(
            f"Every picture of the folder {other} is looked at, whatever it shows, so nothing can be said of how it is "
            "read. Leave --data.* out."
        )
    found = _pictures(Path(other).expanduser())
    return Labelled(found, np.arange(len(found)), ALL)


def _of_files(other: str | Path) -> bool:
    """Whether it is a folder that holds pictures and nothing that says how to read them."""
    path = Path(other).expanduser()
    return other not in BUILT_IN and path.is_dir() and find_folder_reader(path) is open_class_folders


def _pictures(folder: Path) -> Source:
    found = expand_image_paths([str(folder)])
    return Source(
        name=folder.name,
        classes=("picture",),
        pictures=tuple(found),
        targets=np.zeros(len(found), np.int64),
        ids=tuple(path.relative_to(folder).as_posix() for path in found),
    )
