"""Features of images from any MODEL: into a file, into memory, and as a table of the most similar images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast, get_args

import numpy as np

from .. import runtime
from ..checkpoints import bundle
from ..checkpoints.bundle import find_ensemble, list_members
from ..data.csv_injection import escape_cell, format_csv_lines
from ..errors import DataError, UsageError
from ..evaluate.inference import InferenceSettings
from ..evaluate.tables import require_pyarrow, to_valid_utf8
from ..files import atomic
from ..files.npy import NpyWriter, open_npy_writer
from ..files.suggest import suggest_path
from ..predict.embedder import NO_IMAGES_MESSAGE, Backbone, Embedder, Embeddings, FeatureKind, join_embeddings
from .image_options import override_image_options
from .open_model import find_model, locate_model

SIMILARITY_COLUMNS = ("path", "id", "rank", "nearest", "nearest_id", "similarity")


@dataclass(frozen=True, kw_only=True)
class EmbeddingResult:
    """What became of some images."""

    count: int
    shape: tuple[int, ...]
    """Of the features of one image."""
    skipped: tuple[tuple[str, str], ...]
    """(path, reason) of those that could not be read."""
    embeddings: Embeddings | None
    """All features, if they were to stay in memory."""


def parse_feature_kind(word: str) -> FeatureKind:
    """A word as a kind of features.

    Raises:
        UsageError: another word.
    """
    if word not in get_args(FeatureKind):
        raise UsageError(f"Features are one of {', '.join(get_args(FeatureKind))}. Got {word!r}.")
    return cast("FeatureKind", word)


def open_embedder(model_name: str | Path, device: str = "auto", changes: Mapping[str, str] | None = None) -> Embedder:
    """The features of a MODEL: a run folder, a bundle, an ensemble, or weights of any known layout.

    Args:
        changes: how files are opened: "image.page" and "image.max_pixels", as text.

    Raises:
        UsageError: nothing at the path, or a device that is not here.
        DamagedFileError: the files cannot be trusted.
    """
    place = locate_model(str(model_name))
    if place is None:
        raise UsageError(
            f"Features need trained weights: a run folder, a bundle, or a weights file. {model_name} does not exist."
            f"{suggest_path(str(model_name))}"
        )
    machine = runtime.choose(runtime.RuntimeSettings(device=device))
    runtime.apply(machine)
    together = find_ensemble(place.path)
    paths: Sequence[Path] = [place.path] if together is None else list_members(together)
    embedder = Embedder([_open_backbone(path, machine.device) for path in paths])
    embedder.spec = override_image_options(embedder.spec, changes or {})
    return embedder


def collect_embeddings(parts: Iterable[Embeddings], to: Path | None, keep: bool) -> EmbeddingResult:
    """Take features as they come, into a file, into memory, or both.

    Args:
        to: as `writing`; None writes nothing, and then memory is all that a file would have held.

    Raises:
        DataError: no image came.
        as `writing`.
    """
    kept: list[Embeddings] = []
    skipped: list[tuple[str, str]] = []
    count, shape = 0, ()
    with nullcontext() if to is None else open_feature_writer(to) as writer:
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
    return EmbeddingResult(
        count=count, shape=shape, skipped=tuple(skipped), embeddings=join_embeddings(kept) if keep else None
    )


def find_similar_images(queries: Embeddings, count: int, among: Embeddings | None = None) -> list[dict[str, Any]]:
    """One row per image and neighbour, nearest first.

    Args:
        among: the images to search; None searches the asked ones, each but itself.

    Raises:
        UsageError: as `Embeddings.nearest`.
    """
    found, others = queries.nearest(count, among), among or queries
    rows = []
    for place, (near, cosines) in enumerate(zip(found.rows.tolist(), found.similarities.tolist(), strict=True)):
        for rank, (row, cosine) in enumerate(zip(near, cosines, strict=True), 1):
            cells = (
                queries.paths[place],
                queries.ids[place],
                rank,
                others.paths[row],
                others.ids[row],
                round(cosine, 6),
            )
            rows.append(dict(zip(SIMILARITY_COLUMNS, cells, strict=True)))
    return rows


def similar_images_to_csv(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Such rows as a CSV file."""
    texts = (
        [escape_cell(str(row[column])) for column in SIMILARITY_COLUMNS[:-1]] + [f"{row[SIMILARITY_COLUMNS[-1]]:.6f}"]
        for row in rows
    )
    return "".join(format_csv_lines([SIMILARITY_COLUMNS, *texts])).encode("utf-8", "surrogateescape")


def _open_backbone(path: Path, device: str) -> Backbone:
    found = find_model(str(path))
    known = {} if found.bundle is None else bundle.read_bundle_info(found.bundle).info
    settings = InferenceSettings(device=device, precision=str(known.get("number_format", "float32")))
    return Backbone(model=found.model, spec=found.spec, settings=settings)


# Files of features, written batch by batch: `.npy` with a table of names beside it, or `.parquet`.

NPY_EXTENSION, PARQUET_EXTENSION, NAMES_EXTENSION = ".npy", ".parquet", ".csv"
NAMES_COLUMNS = ("row", "path", "id")
ROW_GROUP_BYTES = 2**24
"""Bytes of features that are written to a Parquet file at once."""


class FeatureWriter(Protocol):
    """Where features go."""

    def add(self, part: Embeddings) -> None:
        """Write one batch, of at least one image."""
        ...


def open_feature_writer(path: Path) -> AbstractContextManager[FeatureWriter]:
    """A file that takes features batch by batch; it is there when all have come, whole or not at all.

    `.npy`: one array [n, ...], and beside it a table of the same name in `.csv`: row, path, id.
    `.parquet`: path, id and features, one row an image; features of patches lie flat, and `shape` in the metadata of
    the file says their rows, columns and numbers.

    Raises:
        UsageError: as `check_place`, or no image came.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    check_features_path(path)
    return _open_parquet_writer(path) if path.suffix.lower() == PARQUET_EXTENSION else _open_npy_writer(path)


def check_features_path(path: Path) -> None:
    """Refuse a file whose name says no format of features, or one that cannot be written here.

    Raises:
        UsageError: neither .npy nor .parquet, pyarrow is not installed, or where the table beside an array would be
            lies another file, such as somebody's manifest.
    """
    if path.suffix.lower() not in (NPY_EXTENSION, PARQUET_EXTENSION):
        raise UsageError(
            f"--to writes features to a file whose name ends in {NPY_EXTENSION} or {PARQUET_EXTENSION}. Got {path}."
        )
    if path.suffix.lower() == PARQUET_EXTENSION:
        require_pyarrow()
    beside = path.with_suffix(NAMES_EXTENSION)
    if path.suffix.lower() == NPY_EXTENSION and beside.exists() and not _is_names_table(beside):
        raise UsageError(
            f"{beside} is no table of features, and the rows of {path.name} would be named in a file of that name. "
            f"Nothing was written: give --to another name, such as {path.stem}-features{NPY_EXTENSION}."
        )


def _is_names_table(path: Path) -> bool:
    """Whether a file begins as the table beside an array does, so that it may be written anew."""
    first = "".join(format_csv_lines([NAMES_COLUMNS])).encode()
    with path.open("rb") as file:
        return file.read(len(first)) == first


@contextmanager
def _open_npy_writer(path: Path) -> Iterator[FeatureWriter]:
    with open_npy_writer(path) as rows:
        array = _NpyFeatureWriter(rows)
        yield array
        atomic.write_bytes(path.with_suffix(NAMES_EXTENSION), array.names_to_csv())


class _NpyFeatureWriter:
    """Features into an array, and the names of its rows."""

    def __init__(self, rows: NpyWriter):
        self._rows = rows
        self._names: list[tuple[str, str]] = []

    def add(self, part: Embeddings) -> None:
        """As `Writer`."""
        self._rows.write_rows(part.vectors)
        self._names += zip(part.paths, part.ids, strict=True)

    def names_to_csv(self) -> bytes:
        """The table beside the array."""
        cells = ((str(row), escape_cell(path), escape_cell(id)) for row, (path, id) in enumerate(self._names))
        return "".join(format_csv_lines([NAMES_COLUMNS, *cells])).encode("utf-8", "surrogateescape")


@contextmanager
def _open_parquet_writer(path: Path) -> Iterator[FeatureWriter]:
    with atomic.write_file(path) as opened:
        table = _ParquetFeatureWriter(opened)
        try:
            yield table
        finally:
            table.close()
        if not table.rows:
            raise UsageError(f"{path} would hold no rows, so it was not written.")


class _ParquetFeatureWriter:
    """Features into a Parquet file, in row groups of some size."""

    def __init__(self, file: BinaryIO):
        self.rows = 0
        self._file = file
        self._writer: Any = None
        self._pending: list[Embeddings] = []

    def add(self, part: Embeddings) -> None:
        """As `Writer`."""
        self.rows += len(part)
        self._pending.append(part)
        if sum(each.vectors.nbytes for each in self._pending) >= ROW_GROUP_BYTES:
            self._write()

    def close(self) -> None:
        """Write what waits, and the end of the file."""
        if self._pending:
            self._write()
        if self._writer is not None:
            self._writer.close()

    def _write(self) -> None:
        import pyarrow
        import pyarrow.parquet

        vectors = np.concatenate([part.vectors for part in self._pending])
        flat = vectors.reshape(len(vectors), -1)
        kind = pyarrow.list_(pyarrow.float32(), flat.shape[1])
        shape = {"shape": ",".join(map(str, vectors.shape[1:]))}
        names = [("path", pyarrow.string()), ("id", pyarrow.string()), ("features", kind)]
        schema = pyarrow.schema(names, metadata=shape)
        if self._writer is None:
            self._writer = pyarrow.parquet.ParquetWriter(self._file, schema)
        paths = [to_valid_utf8(path) for part in self._pending for path in part.paths]
        ids = [to_valid_utf8(id) for part in self._pending for id in part.ids]
        features = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat.reshape(-1)), flat.shape[1])
        self._writer.write_table(pyarrow.table([paths, ids, features], schema=schema))
        self._pending = []
