"""Features of pictures from any MODEL: into a file, into memory, and as a table of the most similar pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from .. import runtime
from ..checkpoints import bundle
from ..checkpoints.bundle import find_ensemble, list_members
from ..data.csv_injection import escape_cell, format_csv_lines
from ..errors import DataError, UsageError
from ..files.suggest import suggest_path
from ..predict.embedder import NO_IMAGES_MESSAGE, Backbone, Embedder, Embeddings, FeatureKind, join_embeddings
from .embedded_files import writing
from .models import find, located
from .opening import opening

COLUMNS = ("path", "id", "rank", "nearest", "nearest_id", "similarity")


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """What became of some pictures."""

    count: int
    shape: tuple[int, ...]
    """Of the features of one picture."""
    skipped: tuple[tuple[str, str], ...]
    """(path, reason) of those that could not be read."""
    kept: Embeddings | None
    """All features, if they were to stay in memory."""


def kind(features: str) -> FeatureKind:
    """A word as a kind of features.

    Raises:
        UsageError: another word.
    """
    if features not in get_args(FeatureKind):
        raise UsageError(f"Features are one of {', '.join(get_args(FeatureKind))}. Got {features!r}.")
    return cast("FeatureKind", features)


def open_embedder(given: str | Path, device: str = "auto", changes: Mapping[str, str] | None = None) -> Embedder:
    """The features of a MODEL: a run folder, a bundle, an ensemble, or weights of any known layout.

    Args:
        changes: how files are opened: "image.page" and "image.max_pixels", as text.

    Raises:
        UsageError: nothing at the path, or a device that is not here.
        DamagedFileError: the files cannot be trusted.
    """
    place = located(str(given))
    if place is None:
        raise UsageError(
            f"Features need trained weights: a run folder, a bundle, or a weights file. {given} does not exist."
            f"{suggest_path(str(given))}"
        )
    machine = runtime.choose(runtime.RuntimeSettings(device=device))
    runtime.apply(machine)
    together = find_ensemble(place.path)
    paths: Sequence[Path] = [place.path] if together is None else list_members(together)
    embedder = Embedder([_eye(path) for path in paths], machine.device)
    embedder.spec = opening(embedder.spec, changes or {})
    return embedder


def embedded(parts: Iterable[Embeddings], to: Path | None, keep: bool) -> Embedded:
    """Take features as they come, into a file, into memory, or both.

    Args:
        to: as `writing`; None writes nothing, and then memory is all that a file would have held.

    Raises:
        DataError: no picture came.
        as `writing`.
    """
    kept: list[Embeddings] = []
    skipped: list[tuple[str, str]] = []
    count, shape = 0, ()
    with nullcontext() if to is None else writing(to) as writer:
        for part in parts:
            skipped += part.skipped
            if not len(part):
                continue
            if writer is not None:
                writer.add(part)
            kept += [part] if keep else []
            count, shape = count + len(part), part.vectors.shape[1:]
        if not count:
            raise DataError(NO_IMAGES_MESSAGE)
    return Embedded(count=count, shape=shape, skipped=tuple(skipped), kept=join_embeddings(kept) if keep else None)


def similar(asked: Embeddings, count: int, among: Embeddings | None = None) -> list[dict[str, Any]]:
    """One row per picture and neighbour, nearest first.

    Args:
        among: the pictures to search; None searches the asked ones, each but itself.

    Raises:
        UsageError: as `Embeddings.nearest`.
    """
    found, others = asked.nearest(count, among), among or asked
    rows = []
    for place, (near, cosines) in enumerate(zip(found.rows.tolist(), found.similarities.tolist(), strict=True)):
        for rank, (row, cosine) in enumerate(zip(near, cosines, strict=True), 1):
            cells = (asked.paths[place], asked.ids[place], rank, others.paths[row], others.ids[row], round(cosine, 6))
            rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return rows


def as_csv(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Such rows as a CSV file."""
    texts = ([escape_cell(str(row[column])) for column in COLUMNS[:-1]] + [f"{row[COLUMNS[-1]]:.6f}"] for row in rows)
    return "".join(format_csv_lines([COLUMNS, *texts])).encode("utf-8", "surrogateescape")


def _eye(path: Path) -> Backbone:
    found = find(str(path))
    known = {} if found.bundle is None else bundle.read_bundle_info(found.bundle).info
    return Backbone(model=found.model, spec=found.spec, number_format=str(known.get("number_format", "float32")))
