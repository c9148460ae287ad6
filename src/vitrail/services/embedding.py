"""Image embeddings of any MODEL: into a file, into memory, and as a table of the most similar images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, get_args

import numpy as np

from ..checkpoints.bundle import find_ensemble, list_members
from ..data.csv_injection import escape_cell, format_csv_lines
from ..errors import DataError, UsageError
from ..evaluate.tables import require_pyarrow, to_valid_utf8
from ..files import atomic
from ..files.disk import check_writable
from ..files.npy import open_npy_writer
from ..files.suggest import suggest_path
from ..predict.embedder import NO_IMAGES_MESSAGE, Backbone, Embedder, Embeddings, FeatureKind, join_embeddings
from .image_options import override_image_options
from .open_model import find_model, locate_model, parse_choice
from .prediction import choose_inference

SIMILARITY_COLUMNS = ("path", "id", "rank", "nearest", "nearest_id", "similarity")


@dataclass(frozen=True, kw_only=True)
class EmbeddingResult:
    """Result of an embedding of images."""

    count: int
    shape: tuple[int, ...]
    """Shape of the features of one image."""
    skipped: tuple[tuple[str, str], ...]
    """(path, reason) of images that could not be read."""
    embeddings: Embeddings | None
    """All features, if they were kept in memory."""


def parse_feature_kind(word: str) -> FeatureKind:
    """Parse a kind of features.

    Raises:
        UsageError: an unknown kind.
    """
    kinds: tuple[FeatureKind, ...] = get_args(FeatureKind)
    return parse_choice(word, kinds, "Features are")


def open_embedder(
    model_name: str | Path,
    device: str = "auto",
    changes: Mapping[str, str] | None = None,
    precision: str = "float32",
) -> Embedder:
    """An embedder for a run folder, a bundle, an ensemble, or weights of any known layout.

    Args:
        changes: how files are opened: "image.page" and "image.max_pixels", as text.
        precision: of the matrix products, as `runtime.parse_precision` takes it.

    Raises:
        UsageError: nothing at the path, or a device or precision that is not here.
        DamagedFileError: the files are damaged or malicious.
    """
    place = locate_model(str(model_name))
    if place is None:
        raise UsageError(
            f"Features need trained weights: a run folder, a bundle, or a weights file. {model_name} does not exist."
            f"{suggest_path(str(model_name))}"
        )
    settings = choose_inference(device, precision)
    ensemble = find_ensemble(place.path)
    paths: Sequence[Path] = [place.path] if ensemble is None else list_members(ensemble)
    backbones = []
    for path in paths:
        model_info = find_model(str(path))
        backbones.append(Backbone(model=model_info.model, spec=model_info.spec, settings=settings))
    embedder = Embedder(backbones)
    embedder.spec = override_image_options(embedder.spec, changes or {})
    return embedder


def collect_embeddings(parts: Iterable[Embeddings], to: Path | None, keep: bool) -> EmbeddingResult:
    """Collect batches of features into a file, into memory, or both.

    Args:
        to: as `open_feature_writer`; None writes no file.
        keep: keep all features in memory.

    Raises:
        DataError: there is no image.
        as `open_feature_writer`.
    """
    kept: list[Embeddings] = []
    skipped: list[tuple[str, str]] = []
    count, shape = 0, ()
    with nullcontext() if to is None else open_feature_writer(to) as write:
        for part in parts:
            skipped += part.skipped
            if not len(part):
                continue
            if write is not None:
                write(part)
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
        among: the images to search; None searches the queries, without each itself.

    Raises:
        UsageError: as `Embeddings.nearest`.
    """
    nearest, others = queries.nearest(count, among), among or queries
    rows = []
    for query, (neighbours, cosines) in enumerate(zip(nearest.rows, nearest.similarities, strict=True)):
        for rank, (row, cosine) in enumerate(zip(neighbours.tolist(), cosines.tolist(), strict=True), 1):
            names = queries.paths[query], queries.ids[query], rank, others.paths[row], others.ids[row]
            rows.append(dict(zip(SIMILARITY_COLUMNS, (*names, round(cosine, 6)), strict=True)))
    return rows


def similar_images_to_csv(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Rows of `find_similar_images` as a CSV file."""
    texts = (
        [escape_cell(str(row[column])) for column in SIMILARITY_COLUMNS[:-1]] + [f"{row[SIMILARITY_COLUMNS[-1]]:.6f}"]
        for row in rows
    )
    return "".join(format_csv_lines([SIMILARITY_COLUMNS, *texts])).encode("utf-8", "surrogateescape")


# -- Feature files, written batch by batch: `.npy` with a table of names beside it, or `.parquet`.

NPY_EXTENSION, PARQUET_EXTENSION, NAMES_EXTENSION = ".npy", ".parquet", ".csv"
NAMES_COLUMNS = ("row", "path", "id")
ROW_GROUP_BYTES = 2**24
"""Bytes of features in a row group of a Parquet file."""


WriteFeatures = Callable[[Embeddings], None]
"""Writes one batch of at least one image."""


def open_feature_writer(path: Path) -> AbstractContextManager[WriteFeatures]:
    """Open a feature file for writing, batch by batch; it appears at the end, complete or not at all.

    `.npy`: one array [n, ...], and beside it a `.csv` of the same name with row, path, id.
    `.parquet`: path, id and features, one row an image; features of patches are flattened, with their shape as `shape`
    in the file's metadata.

    Raises:
        UsageError: as `check_features_path`, or there is no image.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    check_features_path(path)
    return _open_parquet_writer(path) if path.suffix.lower() == PARQUET_EXTENSION else _open_npy_writer(path)


def check_features_path(path: Path) -> None:
    """Check that a feature file can be written.

    Raises:
        UsageError: neither .npy nor .parquet, pyarrow is not installed, or the table beside an array would overwrite
            another kind of file, such as a manifest.
    """
    if path.suffix.lower() not in (NPY_EXTENSION, PARQUET_EXTENSION):
        raise UsageError(
            f"--to writes features to a file whose name ends in {NPY_EXTENSION} or {PARQUET_EXTENSION}. Got {path}."
        )
    if path.suffix.lower() == PARQUET_EXTENSION:
        require_pyarrow()
    check_writable(path)
    names_path = path.with_suffix(NAMES_EXTENSION)
    if path.suffix.lower() == NPY_EXTENSION and path.exists() and not names_path.exists():
        raise UsageError(
            f"{path} is there already and was not written here: no {names_path.name} names its rows. It is not "
            "overwritten; choose another name or move it away."
        )
    if path.suffix.lower() == NPY_EXTENSION and names_path.exists() and not _is_names_table(names_path):
        raise UsageError(
            f"{names_path} is no table of features, and the rows of {path.name} would be named in a file of that name. "
            f"Nothing was written: give --to another name, such as {path.stem}-features{NPY_EXTENSION}."
        )


def _is_names_table(path: Path) -> bool:
    """Whether a file has the header of a names table, so that it may be overwritten."""
    first = "".join(format_csv_lines([NAMES_COLUMNS])).encode()
    with path.open("rb") as file:
        return file.read(len(first)) == first


@contextmanager
def _open_npy_writer(path: Path) -> Iterator[WriteFeatures]:
    names: list[tuple[str, str]] = []
    with open_npy_writer(path) as array:

        def write(part: Embeddings) -> None:
            array.write_rows(part.vectors)
            names.extend(zip(part.paths, part.ids, strict=True))

        yield write
        cells = ((str(row), escape_cell(path), escape_cell(id)) for row, (path, id) in enumerate(names))
        table = "".join(format_csv_lines([NAMES_COLUMNS, *cells])).encode("utf-8", "surrogateescape")
        atomic.write_bytes(path.with_suffix(NAMES_EXTENSION), table)


@contextmanager
def _open_parquet_writer(path: Path) -> Iterator[WriteFeatures]:
    with atomic.write_file(path) as file:
        writer = _ParquetFeatureWriter(file)
        try:
            yield writer.write
        finally:
            writer.close()
        if not writer.rows:
            raise UsageError(f"{path} would hold no rows, so it was not written.")


class _ParquetFeatureWriter:
    """Writes features to a Parquet file in row groups."""

    def __init__(self, file: BinaryIO):
        self.rows = 0
        self._file = file
        self._writer: Any = None
        self._pending: list[Embeddings] = []

    def write(self, part: Embeddings) -> None:
        """Write one batch of at least one image."""
        self.rows += len(part)
        self._pending.append(part)
        if sum(each.vectors.nbytes for each in self._pending) >= ROW_GROUP_BYTES:
            self._write_row_group()

    def close(self) -> None:
        """Write pending batches and the end of the file."""
        if self._pending:
            self._write_row_group()
        if self._writer is not None:
            self._writer.close()

    def _write_row_group(self) -> None:
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
