"""Tables in Parquet files, read piece by piece with pyarrow."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...errors import DataError
from .tables import PIECE, Columns, Table


def read_parquet(path: Path) -> Table:
    """A table whose cells have the types that the file gives them.

    Raises:
        DataError: pyarrow is not installed, the file is damaged, or it holds the pictures themselves.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError("Parquet files need pyarrow: pip install 'vitrail[data]'.") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            kinds = {field.name: str(field.type) for field in file.schema_arrow}
            _refuse_pictures(path, kinds)
            columns = Columns(tuple(kinds))
            for piece in file.iter_batches(PIECE, columns=list(kinds)):
                for row in zip(*(column.to_pylist() for column in piece.columns), strict=True):
                    columns.add(row)
            rows = file.metadata.num_rows
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is not a readable Parquet file ({str(error).splitlines()[0]}).") from error
    return Table(name=path.name, columns=columns.finish(), lines=np.arange(1, rows + 1, dtype=np.int64), unit="row")


def _refuse_pictures(path: Path, kinds: dict[str, str]) -> None:
    """A manifest names pictures; a column of bytes, alone or beside a path, is the pictures themselves."""
    for name, kind in kinds.items():
        if kind.startswith(("binary", "large_binary", "struct<bytes: binary")):
            raise DataError(
                f"Column {name!r} of {path} holds bytes. If these are the pictures, it is no manifest: write "
                f"datasets.load_dataset('parquet', data_files={path.name!r})['train'].save_to_disk('FOLDER') in "
                "Python, and pass FOLDER."
            )
