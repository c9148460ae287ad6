"""Base class of the prediction tables of all tasks: rows, typed columns, and files as CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Self

import numpy as np
from jaxtyping import Float32

from ..argument_types import check_calls
from ..data.csv_injection import escape_cell, format_csv_lines, unescape_cell
from ..data.source import ImageInput
from ..errors import DataError, UsageError
from ..files import atomic
from ..files.disk import check_writable
from ..formatting import format_count

if TYPE_CHECKING:
    import pandas

LEADING_COLUMNS = ("path", "id", "split")
TRAILING_COLUMNS = ("abstain",)
DECISION_COLUMN = "decision"
"""The column before them, if a kept decision has answered."""
CASE_COLUMNS = ("case", "share")
"""Columns before these, where images were answered by cases."""
NOT_ABSTAINED, ABSTENTION_UNKNOWN = "no", "unknown"
"""Values of the column `abstain` for an image that is answered: by a model that can tell images unlike its training
images, and by one that cannot."""
SHOWN_ROWS = 8
"""Rows that the text of a table shows."""
ColumnKind = Literal["text", "number", "double", "names"] | tuple[str, ...]
"""Type of the cells of a column: text, a float32 or float64, a list of names, or a number for each of some names."""


class TypedColumn(NamedTuple):
    """One column of a table with its type, for JSONL and Parquet."""

    kind: ColumnKind
    values: Sequence[object] | np.ndarray
    """float32 or float64 [n], or n of str, float, list[str] or dict[str, float | None]; None where a cell is empty."""

    def to_list(self) -> list[object]:
        """The values as plain Python objects."""
        values: list[object] = self.values.tolist() if isinstance(self.values, np.ndarray) else list(self.values)
        return values


@dataclass(frozen=True, kw_only=True)
class PredictionRow(ABC):
    """What is predicted for one image."""

    path: str
    """Path of the image; empty for an array."""
    id: str
    """Name of the image in its source."""
    abstain_reason: str
    """Why there is no answer; "" for an image that is answered."""

    @abstractmethod
    def __str__(self) -> str:
        """The answer in one line."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PredictionTable(ABC):
    """Predictions, one row per image, with the same columns from every interface.

    `len` counts the images, and iteration yields a typed row for each.
    """

    paths: tuple[str, ...]
    """Path of each image; empty for an array."""
    ids: tuple[str, ...]
    """Name of each image in its source."""
    split: str
    """train, val, test, or empty if unknown."""
    skipped: tuple[tuple[str, str], ...] = ()
    """(path, reason) of unreadable images that were skipped on request; not part of the file."""
    abstain_reasons: tuple[str, ...] = ()
    """Reason of abstention for each image, "" for one that is answered; () where every image is answered."""
    decision: str = ""
    """Name of the kept decision that has answered; "" for that of the training."""
    is_unlike_known: bool = True
    """Whether the model can tell images unlike its training images; with too few validation images it cannot."""
    distances: np.ndarray | None = None
    """float64 [n]: how far the features of each image are from those of the training; not part of the file. None where
    the model has no statistics of them, or several models have answered."""
    pool_inputs: np.ndarray | None = None
    """float32 [n, K + 1]: of a model that answers cases, its outputs and the attention score; not part of the file."""
    case_names: tuple[str, ...] = ()
    """Name of the case of each image, such as its patient; () where cases were not asked for."""
    shares: np.ndarray | None = None
    """float32 [n]: the share of each image in the answer of its case; None likewise."""
    cases: Self | None = None
    """The same table of the cases, a row each, whose `paths` are those of the images with the largest share; None
    likewise. It has a file of its own."""

    @property
    def abstained(self) -> np.ndarray:
        """bool [n]: images without an answer."""
        return np.array([bool(why) for why in self.abstain_reasons] or [False] * len(self), bool)

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        """n names of the predicted classes, or for each image those of its labels.

        Raises:
            AttributeError: numbers were predicted, which have no names.
        """

    @abstractmethod
    def __iter__(self) -> Iterator[PredictionRow]:
        """One row per image, in order."""

    @abstractmethod
    def column_names(self) -> list[str]:
        """The names of the columns between `split` and `abstain`."""

    @abstractmethod
    def format_cells(self) -> Iterator[list[str]]:
        """Cells of these columns, row by row; text is escaped against CSV injection."""

    @abstractmethod
    def typed_columns(self) -> dict[str, TypedColumn]:
        """The same columns with their types, by name."""

    def all_typed_columns(self) -> dict[str, TypedColumn]:
        """All columns of the file with their types, by name."""
        leading = (self.paths, self.ids, (self.split,) * len(self))
        columns = {name: TypedColumn("text", cells) for name, cells in zip(LEADING_COLUMNS, leading, strict=True)}
        trailing = {}
        if self.shares is not None:
            columns_of_cases = TypedColumn("text", self.case_names), TypedColumn("number", self.shares)
            trailing = dict(zip(CASE_COLUMNS, columns_of_cases, strict=True))
        trailing |= {name: TypedColumn("text", (self.decision,) * len(self)) for name in self._decision_columns()}
        trailing |= {name: TypedColumn("text", self.abstain_column()) for name in TRAILING_COLUMNS}
        return columns | self.typed_columns() | trailing

    def records(self) -> list[dict[str, object]]:
        """The rows as dictionaries; None for empty cells."""
        columns = self.all_typed_columns()
        cells = [column.to_list() for column in columns.values()]
        return [dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)]

    def to_pandas(self) -> pandas.DataFrame:
        """All columns of the file as a DataFrame, one row per image.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise UsageError(
                "to_pandas() needs pandas: pip install pandas. Without it records() has the same rows as dictionaries."
            ) from error
        dtypes: dict[ColumnKind, type] = {"number": np.float32, "double": np.float64}
        columns: dict[str, Any] = {
            name: np.array(column.to_list(), dtypes[column.kind]) if column.kind in dtypes else column.to_list()
            for name, column in self.all_typed_columns().items()
        }
        return pandas.DataFrame(columns)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        """The first rows."""
        rows = [str(row) for row in islice(self, SHOWN_ROWS)]
        more = [f"... and {len(self) - SHOWN_ROWS:,} more"] if len(self) > SHOWN_ROWS else []
        return "\n  ".join([f"{type(self).__name__}, {format_count(len(self), 'image')}", *rows, *more])

    def _row_fields(self) -> Iterator[dict[str, str]]:
        """The fields of a `PredictionRow`, for each image."""
        for path, id, why in zip(self.paths, self.ids, self.abstain_reasons or ("",) * len(self), strict=True):
            yield {"path": path, "id": id, "abstain_reason": why}

    @check_calls
    def write(self, path: str | Path) -> None:
        """Write the table atomically, as CSV, JSON lines or Parquet by the extension.

        Raises:
            UsageError: another extension, or Parquet without pyarrow.
            ResourceError: the disk is full or read-only, or permission is missing.
        """
        write_tables(Path(path), [self])

    @check_calls
    def write_csv(self, path: str | Path) -> None:
        """Write the table as CSV, atomically. A float32 has nine digits, which round-trip it."""
        atomic.write_bytes(Path(path), self.csv_bytes())

    def csv_bytes(self) -> bytes:
        """The bytes of the CSV file, for standard output."""
        return "".join(format_csv_lines(self._rows())).encode("utf-8", "surrogateescape")

    def csv_header_bytes(self) -> bytes:
        """The bytes of its header line."""
        return next(format_csv_lines(self._rows())).encode("utf-8", "surrogateescape")

    def _rows(self) -> Iterator[list[str]]:
        own = () if self.shares is None else CASE_COLUMNS
        yield [*LEADING_COLUMNS, *self.column_names(), *own, *self._decision_columns(), *TRAILING_COLUMNS]
        split, decision = escape_cell(self.split), [self.decision] * bool(self.decision)
        cases: list[list[str]] = [[]] * len(self)
        if self.shares is not None:
            shares = map(format_float32, self.shares.tolist())
            cases = [[escape_cell(name), share] for name, share in zip(self.case_names, shares, strict=True)]
        rows = zip(self.paths, self.ids, self.format_cells(), cases, self.abstain_column(), strict=True)
        for path, id, middle, case, why in rows:
            yield [escape_cell(path), escape_cell(id), split, *middle, *case, *decision, why]

    def _decision_columns(self) -> list[str]:
        return [DECISION_COLUMN] * bool(self.decision)

    def abstain_column(self) -> list[str]:
        """The column `abstain`: the reason, "no", or "unknown"."""
        answered = NOT_ABSTAINED if self.is_unlike_known else ABSTENTION_UNKNOWN
        return [why or answered for why in self.abstain_reasons] or [answered] * len(self)


@dataclass(frozen=True)
class RawTable:
    """A table as read from a file, its task's columns still text."""

    shared: dict[str, Any]
    """The fields of `PredictionTable`."""
    header: tuple[str, ...]
    """The columns between `split` and `decision` or `abstain`."""
    rows: tuple[tuple[str, list[str]], ...]
    """(file and line for messages, cells below that header) of each row."""


def image_path(image: ImageInput) -> str:
    """Path of an image: its file, or its name inside an archive; empty for an array."""
    if isinstance(image, np.ndarray):
        return ""
    return str(image) if isinstance(image, Path) else image.name


def read_rows(path: Path, expected: str, header_fits: Sequence[str] = ()) -> RawTable:
    """Read the rows of a file that `PredictionTable.write_csv` wrote.

    Args:
        expected: the columns between `split` and `abstain`, for messages.
        header_fits: the first of those columns, which are required.

    Raises:
        DataError: not such a table; the message names the file and the line.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8", "surrogateescape")
    except OSError as problem:
        raise DataError(f"A predictions file is needed at {path}. {problem.strerror or problem}.") from problem
    reader = csv.reader(io.StringIO(text, newline=""))
    header = next(reader, [])
    begin = (*LEADING_COLUMNS, *header_fits)
    if tuple(header[: len(begin)]) != begin or tuple(header[-len(TRAILING_COLUMNS) :]) != TRAILING_COLUMNS:
        raise wrong_header_error(path, expected, header)
    decided = -len(TRAILING_COLUMNS) - (tuple(header[-2:-1]) == (DECISION_COLUMN,))
    has_cases = tuple(header[decided - len(CASE_COLUMNS) : decided]) == CASE_COLUMNS
    end = decided - len(CASE_COLUMNS) * has_cases
    paths, ids, splits, rows, decisions, abstained, names, shares = [], [], [], [], [], [], [], []
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        if len(row) != len(header):
            raise DataError(f"{where}: a row must have {len(header)} cells, as the header. Got {len(row)}.")
        paths.append(unescape_cell(row[0]))
        ids.append(unescape_cell(row[1]))
        splits.append(unescape_cell(row[2]))
        rows.append((where, row[len(LEADING_COLUMNS) : end]))
        decisions.append("".join(row[decided : -len(TRAILING_COLUMNS)]))
        if has_cases:
            names.append(unescape_cell(row[end]))
            shares.append(_parse_share(row[end + 1], where))
        abstained.append(row[-1])
    if len(set(splits)) > 1:
        raise DataError(f"{path}: one file holds one split. Got {', '.join(sorted(set(splits)))}.")
    if len(set(decisions)) > 1:
        raise DataError(f"{path}: one file holds the answers of one decision. Got {', '.join(sorted(set(decisions)))}.")
    answered = (NOT_ABSTAINED, ABSTENTION_UNKNOWN, "0")  # older versions wrote 0
    reasons = tuple("" if cell in answered else cell for cell in abstained)
    shared = {
        "paths": tuple(paths),
        "ids": tuple(ids),
        "split": splits[0] if splits else "",
        "abstain_reasons": reasons if any(reasons) else (),
        "decision": decisions[0] if decisions else "",
        "is_unlike_known": ABSTENTION_UNKNOWN not in abstained,
        "case_names": tuple(names),
        "shares": np.array(shares, np.float32) if has_cases else None,
    }
    return RawTable(shared, tuple(header[len(LEADING_COLUMNS) : end]), tuple(rows))


def _parse_share(cell: str, where: str) -> float:
    try:
        return float(cell)
    except ValueError as problem:
        raise DataError(f"{where}: share must be a number. Got {cell[:200]!r}.") from problem


def wrong_header_error(path: Path, expected: str, header: Sequence[str]) -> DataError:
    """The error for a wrong header line."""
    return DataError(
        f"{path}: the first line must read {','.join(LEADING_COLUMNS)},{expected},{','.join(TRAILING_COLUMNS)}. "
        f"Got {','.join(header)[:200] or 'nothing'}."
    )


def format_float64(number: float) -> str:
    """A float64 in as many digits as round-trip it exactly; a whole number without a point."""
    return repr(number).removesuffix(".0")


def format_float32(number: float) -> str:
    """A float32 in nine digits, which round-trip it exactly."""
    return f"{number:.9g}"


# -- Files: CSV, JSON lines or Parquet with the same rows, columns and numbers; only CSV is escaped for spreadsheets

CSV_EXTENSION, JSONL_EXTENSION, PARQUET_EXTENSION = ".csv", ".jsonl", ".parquet"
ROW_GROUP_CELLS = 2**24
"""Cells in a row group of a Parquet file: 64 MiB of float32."""


def check_table_extension(path: Path) -> None:
    """Check that a file name has a supported extension.

    Raises:
        UsageError: another extension, or Parquet without pyarrow.
    """
    ending = path.suffix.lower()
    if ending not in (CSV_EXTENSION, JSONL_EXTENSION, PARQUET_EXTENSION):
        raise UsageError(
            f"Answers go into a file whose name ends in {CSV_EXTENSION}, {JSONL_EXTENSION} or "
            f"{PARQUET_EXTENSION}. Got {path}."
        )
    if ending == PARQUET_EXTENSION:
        require_pyarrow()


def check_table_path(path: Path) -> str:
    """Check before any work that a table can be written; a note where it replaces earlier predictions, else empty.

    Raises:
        UsageError: as `check_table_extension`, or another kind of file stands there, such as a manifest.
        ResourceError: the folder cannot be written.
    """
    check_table_extension(path)
    check_writable(path)
    if not path.exists() or not path.stat().st_size:
        return ""
    if not _holds_predictions(path):
        raise UsageError(
            f"{path} is there already and holds no answers, so it is not overwritten. Choose another name or move it "
            "away."
        )
    return f"{path} held earlier answers, which are replaced."


def _holds_predictions(path: Path) -> bool:
    """Whether a file begins as a table of predictions does."""
    if path.suffix.lower() == PARQUET_EXTENSION:
        import pyarrow
        import pyarrow.parquet

        try:
            names = pyarrow.parquet.read_schema(path).names
        except (OSError, pyarrow.ArrowException):
            return False
        return tuple(names[: len(LEADING_COLUMNS)]) == LEADING_COLUMNS
    with path.open("rb") as file:
        first = file.readline(1000)
    if path.suffix.lower() == CSV_EXTENSION:
        return first.startswith(",".join(LEADING_COLUMNS).encode())
    return first.startswith(json.dumps({LEADING_COLUMNS[0]: ""})[:-3].encode())


def require_pyarrow() -> None:
    """Check for pyarrow before a long inference.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401 - only to see that it is there
    except ImportError as error:
        raise UsageError("Parquet files need pyarrow: pip install 'vitrail[data]'.") from error


def write_tables(path: Path, tables: Iterable[PredictionTable]) -> None:
    """Write tables one after another into one file, atomically.

    The bytes do not depend on how the rows are divided into tables.

    Args:
        tables: of one task, at least one.

    Raises:
        UsageError: as `check_table_extension`.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    check_table_extension(path)
    extension = path.suffix.lower()
    with atomic.write_file(path) as file:
        if extension == PARQUET_EXTENSION:
            _write_parquet(file, tables)
            return
        for number, table in enumerate(tables):
            if extension == CSV_EXTENSION:
                file.write(table.csv_bytes()[len(table.csv_header_bytes()) if number else 0 :])
                continue
            doubles = {name for name, column in table.all_typed_columns().items() if column.kind == "double"}
            for record in table.records():  # undecodable bytes of file names become lone surrogates, which round-trip
                row = {name: cell if name in doubles else _round_to_9_digits(cell) for name, cell in record.items()}
                text = json.dumps(row, ensure_ascii=False, allow_nan=False)
                file.write(text.encode("utf-8", "backslashreplace") + b"\n")


def to_valid_utf8(name: str) -> str:
    """A name as valid UTF-8; undecodable bytes of file names are replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _round_to_9_digits(value: object) -> object:
    """Numbers in nine digits, as in the CSV."""
    if isinstance(value, dict):
        return {name: _round_to_9_digits(cell) for name, cell in value.items()}
    return float(format_float32(value)) if isinstance(value, float) else value


def _write_parquet(file: BinaryIO, tables: Iterable[PredictionTable]) -> None:
    import pyarrow.parquet

    writer: Any = None
    try:
        for group in _regroup_rows(_to_arrow_table(table) for table in tables):
            writer = writer or pyarrow.parquet.ParquetWriter(file, group.schema)
            if len(group):
                writer.write_table(group, row_group_size=len(group))
    finally:
        if writer is not None:
            writer.close()


def _regroup_rows(tables: Iterator[Any]) -> Iterator[Any]:
    """Slice and concatenate Arrow tables into row groups of equal length, the last one shorter."""
    import pyarrow

    waiting = next(tables)
    size = max(1, ROW_GROUP_CELLS // len(waiting.schema))
    for table in tables:
        while len(waiting) >= size:
            yield waiting.slice(0, size).combine_chunks()
            waiting = waiting.slice(size)
        waiting = pyarrow.concat_tables([waiting, table])
    yield from (waiting.slice(start, size).combine_chunks() for start in range(0, max(1, len(waiting)), size))


def _to_arrow_table(table: PredictionTable) -> Any:
    import pyarrow

    arrow_types = {
        "text": pyarrow.string(),
        "number": pyarrow.float32(),
        "double": pyarrow.float64(),
        "names": pyarrow.list_(pyarrow.string()),
    }
    schema, arrays = [], []
    for name, column in table.all_typed_columns().items():
        kind, values = column.kind, column.values
        if isinstance(kind, str):
            arrow_type = arrow_types[kind]
        else:
            arrow_type = pyarrow.struct([(to_valid_utf8(field), pyarrow.float32()) for field in kind])
        if kind not in ("number", "double"):
            values = [_texts_to_utf8(value) for value in column.to_list()]
        schema.append((to_valid_utf8(name), arrow_type))
        arrays.append(pyarrow.array(values, arrow_type))
    return pyarrow.table(arrays, schema=pyarrow.schema(schema))


def _texts_to_utf8(value: object) -> object:
    if isinstance(value, str):
        return to_valid_utf8(value)
    if isinstance(value, list):
        return [_texts_to_utf8(one) for one in value]
    return {to_valid_utf8(name): number for name, number in value.items()} if isinstance(value, dict) else value


# -- Label cells: the labels of an image in one cell

NO_LABELS = "(none)"
_PIECE = re.compile(r"(?:\\.|[^\\|])*", re.DOTALL)


def escape_name(name: str) -> str:
    """Escape a name for a label cell: a \\ before \\ | = anywhere, and before ? or ( at the beginning."""
    safe = re.sub(r"([\\|=])", r"\\\1", name)
    return f"\\{safe}" if safe.startswith(("?", "(")) else safe


def format_label_cell(targets: Sequence[float], names: Sequence[str]) -> str:
    """Format labels [K], 0..1 or NaN, as one cell; `names` are escaped.

    Names are joined by |; ?name is unknown, name=0.25 is a soft label, (none) is no label, and an empty cell means that
    every label is unknown.
    """
    if all(target != target for target in targets):
        return ""
    words = [
        f"?{name}" if target != target else name if target == 1 else f"{name}={format_float32(target)}"
        for name, target in zip(names, targets, strict=True)
        if target != 0
    ]
    return "|".join(words) or NO_LABELS


def parse_label_cell(
    cell: str, positions: Mapping[str, int], where: str, column: str = "target"
) -> Float32[np.ndarray, " K"]:
    """Parse a label cell, the inverse of `format_label_cell`.

    Args:
        positions: index of each escaped name.
        column: its name in messages.

    Raises:
        DataError: an unknown label, or a soft label outside 0..1.
    """
    if not cell:
        return np.full(len(positions), np.nan, np.float32)
    labels = np.zeros(len(positions), np.float32)
    for piece in [] if cell == NO_LABELS else _split_unescaped(cell):
        if piece in positions:  # nearly always
            labels[positions[piece]] = 1
            continue
        with_share = re.fullmatch(r"((?:\\.|[^\\=])*)=(.*)", piece, re.DOTALL)
        name, text = (with_share[1], with_share[2]) if with_share else (piece, "1")
        if piece.startswith("?"):
            name, text = piece[1:], "nan"
        if name not in positions:
            raise DataError(
                f"{where}: {column} must hold labels among {', '.join(positions)}, joined by |, or be {NO_LABELS}. "
                f"Got {piece!r}."
            )
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if share < 0 or share > 1:
            raise DataError(f"{where}: the share of a label must be a number in 0..1. Got {text!r}.")
        labels[positions[name]] = share
    return labels


def _split_unescaped(cell: str) -> list[str]:
    """Split the cell at every | without a \\ before it."""
    if "\\" not in cell:
        return cell.split("|")
    pieces, start = [], 0
    while True:
        match = _PIECE.match(cell, start)
        assert match is not None
        pieces.append(match[0])
        start = match.end() + 1
        if start > len(cell):
            return pieces
