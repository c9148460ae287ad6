"""Read tar shards in the WebDataset layout: index the samples by the headers, read images in place, infer labels.

One sample is all files that share a name up to its first dot, folders included (`dogs/0007.jpg`, `dogs/0007.cls`,
`dogs/0007.json`). The labels are in .cls, .json or .txt files, which are read as the columns of a table.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...formatting import format_count, format_part
from ..compact_strings import CompactStrings
from ..decoding.decoded_image import IMAGE_EXTENSIONS
from ..labels.codes import Cell, encode_categorical, format_column
from ..labels.columns import drop_split_column, infer_column_roles, read_groups, rows_by_split
from ..labels.tasks import infer_task
from ..settings import DataSettings, check_supported_settings
from ..source import SPLIT_NAMES, SPLITS, Source, natural_sort_key
from .image_files import SYSTEM_FILES
from .label_input import Annotations, build_source
from .table_files import TableBuilder, flatten_json_value, reject_duplicate_keys
from .tar_index import TarEntry, TarMembers, TarShard, iter_tar_entries, quote_tar_name, read_members

CLASS_SUFFIX, TEXT_SUFFIX, JSON_SUFFIX = "cls", "txt", "json"
MAX_LABEL_BYTES = {CLASS_SUFFIX: 4096, TEXT_SUFFIX: 2**16, JSON_SUFFIX: 2**24}
"""Largest file of each kind that is read, in bytes."""
SAMPLED_FIELDS = 10_000
"""Samples whose JSON fields decide which fields are read of all samples."""
MIN_CAPTION_TEXTS = 20
"""Distinct texts from which mostly unrepeated texts count as captions."""


def read_annotations(
    samples: TarSamples, settings: DataSettings, name: str, has_official_splits: bool = False
) -> Annotations:
    """Read labels, groups, splits and metadata of all samples, and infer the task.

    The targets are the files that `settings.targets` names by their suffix, or the fields of the .json files that it
    names; by default .cls, else a field that looks like a label, else .txt.

    Args:
        has_official_splits: the splits are known from the shards' names.

    Raises:
        DataError: no labels at all, samples without one, captions instead of labels, or an unreadable file.
    """
    there = [suffix for suffix, part in samples.labels.items() if len(part.present_rows())]
    texts = [suffix for suffix in there if suffix != JSON_SUFFIX and suffix in (CLASS_SUFFIX, *settings.targets)]
    if not texts and TEXT_SUFFIX in there and JSON_SUFFIX not in there:
        texts = [TEXT_SUFFIX]
    columns: dict[str, Sequence[Cell]] = {suffix: _read_text_column(samples, suffix) for suffix in texts}
    fields = _sample_json_fields(samples, columns) if JSON_SUFFIX in there else {}
    if not columns and not fields:
        raise DataError(_no_labels_message(samples, name))
    role_settings = replace(settings, path="", targets=settings.targets or (CLASS_SUFFIX,) * (CLASS_SUFFIX in columns))
    heads = {suffix: column[:SAMPLED_FIELDS] for suffix, column in columns.items()}
    roles = infer_column_roles((*columns, *fields), {**heads, **fields}, role_settings, name)
    roles = drop_split_column(roles, settings) if has_official_splits else roles
    if not roles.targets:
        raise DataError(_no_labels_message(samples, name))
    _check_all_labelled(samples, roles.targets, columns)
    wanted = [*roles.targets, roles.split, roles.group, *_select_metadata(roles.metadata, fields)]
    columns |= _read_json_fields(samples, np.arange(len(samples.ids)), [each for each in wanted if each in fields])
    if roles.targets == (TEXT_SUFFIX,):
        _check_captions(columns[TEXT_SUFFIX], settings, name)
    groups, note = read_groups(roles.group, columns[roles.group], samples.where) if roles.group else (None, "")
    if roles.targets == (CLASS_SUFFIX,) and settings.task == "auto":  # one class, even if it is a number
        as_classes = replace(settings, task="classification")
        labels = infer_task({CLASS_SUFFIX: columns[CLASS_SUFFIX]}, as_classes, samples.where)
        labels = replace(labels, reason="Each sample has one class in its .cls file.")
    else:
        labels = infer_task({each: columns[each] for each in roles.targets}, settings, samples.where)
    splits, split_notes = rows_by_split(roles.split, columns.get(roles.split, ()), samples.where, settings)
    return Annotations(
        labels=labels,
        groups=groups,
        splits=splits,
        metadata={each: format_column(columns[each]) for each in roles.metadata if each in columns},
        notes=tuple(each for each in (*roles.notes, *split_notes, note) if each and "--data.path" not in each),
    )


def _read_text_column(samples: TarSamples, suffix: str) -> Sequence[Cell]:
    """Read the files of one suffix as text, None where a sample has none."""
    column = TableBuilder((suffix,))
    for row, data in _iter_label_files(samples, np.arange(len(samples.ids)), suffix):
        try:
            text = data.decode("utf-8-sig").strip()
        except ValueError:
            raise DataError(f"{samples.where(row)}.{suffix} is not text in UTF-8. Write the label as text.") from None
        if suffix == CLASS_SUFFIX and len(text.splitlines()) > 1:
            raise DataError(f"{samples.where(row)}.{suffix} holds several lines, and one class is expected.")
        column.append_row((text if samples.labels[suffix].offsets[row] >= 0 else None,))
    return column.build()[suffix]


def _sample_json_fields(samples: TarSamples, taken: Mapping[str, object]) -> dict[str, Sequence[Cell]]:
    """The fields of some thousand .json files, in order of appearance, with their values."""
    there = samples.labels[JSON_SUFFIX].present_rows()
    rows = there[np.unique(np.linspace(0, len(there) - 1, min(len(there), SAMPLED_FIELDS)).astype(np.int64))]
    names: dict[str, None] = {}
    for row, data in _iter_label_files(samples, rows, JSON_SUFFIX):
        names |= dict.fromkeys(_parse_json_object(data, samples.where(row)))
    return _read_json_fields(samples, rows, [name for name in names if name not in taken])


def _read_json_fields(samples: TarSamples, rows: NDArray[np.int64], names: Sequence[str]) -> dict[str, Sequence[Cell]]:
    columns = TableBuilder(names)
    if names:
        for row, data in _iter_label_files(samples, rows, JSON_SUFFIX):
            fields = _parse_json_object(data, samples.where(row)) if data else {}
            columns.append_row([flatten_json_value(fields.get(name)) for name in names])
    return columns.build()


def _iter_label_files(samples: TarSamples, rows: NDArray[np.int64], suffix: str) -> Iterator[tuple[int, bytes]]:
    """Iterate over rows with the contents of their file of one suffix, b"" where there is none."""
    part = samples.labels[suffix]
    limit = MAX_LABEL_BYTES.get(suffix, MAX_LABEL_BYTES[TEXT_SUFFIX])
    long = np.flatnonzero(part.sizes > limit)
    if len(long):
        raise DataError(
            f"{samples.where(int(long[0]))}.{suffix} has {part.sizes[long[0]]:,} bytes, limit {limit:,}: more than a "
            f"label needs. {format_count(len(long), 'such file')} in all."
        )
    contents = read_members(samples.shards, samples.shard_indices[rows], part.offsets[rows], part.sizes[rows])
    return zip(rows.tolist(), contents, strict=True)


def _parse_json_object(data: bytes, where: str) -> dict[str, object]:
    try:
        fields = json.loads(data, object_pairs_hook=reject_duplicate_keys)
    except (ValueError, RecursionError) as error:  # JSON and UTF-8 errors are both ValueErrors
        raise DataError(f"{where}.{JSON_SUFFIX} is not JSON ({error}).") from error
    if not isinstance(fields, dict):
        raise DataError(
            f'{where}.{JSON_SUFFIX} must hold an object such as {{"label": "cat"}}. Got {str(fields)[:60]!r}.'
        )
    return fields


def _select_metadata(names: Sequence[str], fields: Mapping[str, Sequence[Cell]]) -> list[str]:
    """Fields worth keeping for a million samples: those whose values repeat."""
    kept = []
    for name in [name for name in names if name in fields]:
        values = fields[name]
        if len(values) < SAMPLED_FIELDS or 2 * len(encode_categorical(values).values) <= len(values):
            kept.append(name)
    return kept


def _check_all_labelled(samples: TarSamples, targets: Sequence[str], columns: Mapping[str, object]) -> None:
    """Refuse samples without the files that hold the label."""
    for suffix in dict.fromkeys(name if name in columns else JSON_SUFFIX for name in targets):
        lacking = np.flatnonzero(samples.labels[suffix].offsets < 0).tolist()
        if lacking:
            names = ", ".join(map(samples.where, lacking[:MAX_SHOWN_SAMPLES]))
            more = f" and {len(lacking) - MAX_SHOWN_SAMPLES:,} more" if len(lacking) > MAX_SHOWN_SAMPLES else ""
            raise DataError(
                f"{format_part(len(lacking), len(samples.ids), 'sample', 'has', 'have')} no .{suffix} file, so their "
                f"label is unknown: {names}{more}. Write the shards again with a label for each, or "
                "without these samples."
            )


def _check_captions(cells: Sequence[Cell], settings: DataSettings, name: str) -> None:
    """Refuse texts that hardly ever repeat: they are captions, not labels."""
    if TEXT_SUFFIX in settings.targets or settings.task != "auto":
        return
    values = encode_categorical(cells).values
    if len(values) > max(MIN_CAPTION_TEXTS, len(cells) / 2) and any(" " in str(value) for value in values):
        raise DataError(
            f"The .txt files of {name} hold {len(values):,} different texts in {format_count(len(cells), 'sample')}: "
            "captions, not labels. Labels belong into .cls or .json; if these are labels all the same, say "
            f"--data.targets {TEXT_SUFFIX}"
        )


def _no_labels_message(samples: TarSamples, name: str) -> str:
    folders = {id.rpartition("/")[0] for id in samples.ids[:SAMPLED_FIELDS]}
    hint = ""
    if len(folders) > len(samples.shards):
        hint = " If its folders are the classes, unpack it (tar -xf) and give the folder that comes out of it."
    return (
        f"{name} holds {format_count(len(samples.ids), 'picture')} and no labels. Beside each picture a "
        "file of the same name is "
        f"expected that ends in .cls (its class) or .json (with the label as a field).{hint}"
    )


# -- Indexing samples by the headers of the shards.

# fmt: off
IMAGE_SUFFIXES = (
    "jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "jpe", "jfif", "dib", "npy", "dcm", "dicom",
    "avif", "heic", "heif", "hif",
)
# fmt: on
"""Extensions of images; of several images in one sample, the first of this list is used."""
MAX_SHOWN_SAMPLES = 5


@dataclass(frozen=True)
class FileLocations:
    """Offset and size of one kind of file of every sample; the offset is -1 where a sample has none."""

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def present_rows(self) -> NDArray[np.int64]:
        """Samples that have the file."""
        return np.flatnonzero(self.offsets >= 0)


@dataclass(frozen=True, kw_only=True)
class TarSamples:
    """All samples with an image, in the order of the shards."""

    shards: tuple[TarShard, ...]
    shard_indices: NDArray[np.int64]
    """The shard of each sample, ascending."""
    ids: CompactStrings
    """Shard, then the sample's key."""
    images: TarMembers
    labels: Mapping[str, FileLocations]
    """By suffix: cls, json, txt, and those in the settings."""
    notes: tuple[str, ...]

    def where(self, row: int) -> str:
        """The name of a sample in messages."""
        return self.ids[row]


def index_samples(
    root: str, shards: Sequence[tuple[str, TarShard]], labels: Iterable[str], image: str = ""
) -> TarSamples:
    """Index the samples of shards by their headers.

    Args:
        shards: each with its path relative to `root`.
        labels: suffixes of the files that may hold labels.
        image: suffix of the file that is the image; empty for any of IMAGE_SUFFIXES.

    Raises:
        DataError: a shard cannot be read, a name occurs in it twice, a sample has several images of equal rank, or
            there are no images at all.
    """
    indexer = _SampleIndexer(labels, image)
    for number, (label, shard) in enumerate(shards):
        indexer.add_shard(number, label, shard)
    return indexer.build(root, tuple(shard for _, shard in shards))


MISSING_OFFSET = -1
NO_IMAGE_RANK = 1000
COMPOUND_SUFFIX_RANK = 100


class _LocationColumn:
    """Builds `FileLocations`, one row per sample."""

    def __init__(self) -> None:
        self.offsets = array("q")
        self.sizes = array("q")

    def set_entry(self, row: int, entry: TarEntry) -> None:
        self.offsets[row], self.sizes[row] = entry.offset, entry.size

    def to_locations(self, rows: NDArray[np.int64]) -> FileLocations:
        return FileLocations(np.array(self.offsets, np.int64)[rows], np.array(self.sizes, np.int64)[rows])


class _SampleIndexer:
    """Builds `TarSamples` shard by shard."""

    def __init__(self, labels: Iterable[str], image: str):
        self.image_suffix = image.lower().lstrip(".")
        self.ids: list[str] = []
        self.shard_indices = array("q")
        self.images = _LocationColumn()
        self.labels = {name: _LocationColumn() for name in labels if name != self.image_suffix}
        self.ranks = array("h")  # rank of a sample's image so far; NO_IMAGE_RANK is the worst
        self.suffix_indices = array("i")
        self.suffixes: dict[str, int] = {}
        self.link_count = self.system_file_count = 0
        self.unread_suffixes: Counter[str] = Counter()

    def add_shard(self, shard_index: int, label: str, shard: TarShard) -> None:
        """Add all files of one shard."""
        rows: dict[str, int] = {}
        for entry in iter_tar_entries(shard.path):
            if entry.kind == "folder":
                continue
            key, suffix = _split_sample_key(entry.name)
            if entry.kind != "file":
                self.link_count += 1
            elif not key:
                self.system_file_count += 1
            else:
                if key not in rows:
                    rows[key] = len(self.ids)
                    self.ids.append(f"{label}/{key}")
                    self.shard_indices.append(shard_index)
                    self.ranks.append(NO_IMAGE_RANK)
                    self.suffix_indices.append(0)
                    for column in (self.images, *self.labels.values()):
                        column.offsets.append(MISSING_OFFSET)
                        column.sizes.append(0)
                self._add_file(rows[key], suffix, entry, shard)

    def _add_file(self, row: int, suffix: str, entry: TarEntry, shard: TarShard) -> None:
        label = self.labels.get(suffix)
        if label is not None:
            if label.offsets[row] != MISSING_OFFSET:
                raise DataError(_duplicate_file_message(shard, entry))
            label.set_entry(row, entry)
            return
        rank, before = self._image_rank(suffix), self.ranks[row]
        if rank == NO_IMAGE_RANK:
            self.unread_suffixes[suffix] += 1
            return
        if before != NO_IMAGE_RANK:
            taken = list(self.suffixes)[self.suffix_indices[row]]
            if suffix == taken:
                raise DataError(_duplicate_file_message(shard, entry))
            if rank == before:
                raise DataError(
                    f"{self.ids[row]} has several pictures, .{taken} and .{suffix}. Say which is to be learnt from, "
                    f"for example with --data.path {taken}. (A sample is all files that share a name up to its first "
                    "dot.)"
                )
            self.unread_suffixes[suffix if rank > before else taken] += 1
        if rank < before:
            self.images.set_entry(row, entry)
            self.ranks[row] = rank
            self.suffix_indices[row] = self.suffixes.setdefault(suffix, len(self.suffixes))

    def _image_rank(self, suffix: str) -> int:
        """The rank of an image suffix; of a sample's images the lowest rank is used."""
        if self.image_suffix:
            return 0 if suffix == self.image_suffix else NO_IMAGE_RANK
        last = suffix.rpartition(".")[2]
        if last not in IMAGE_SUFFIXES:
            return NO_IMAGE_RANK
        return IMAGE_SUFFIXES.index(last) if last == suffix else COMPOUND_SUFFIX_RANK

    def build(self, root: str, shards: tuple[TarShard, ...]) -> TarSamples:
        """The samples added, without those that have no image."""
        rows = np.flatnonzero(np.array(self.images.offsets, np.int64) >= 0)
        if not len(rows):
            raise DataError(self._no_images_message(shards))
        numbers = np.array(self.shard_indices, np.int64)[rows]
        ids = CompactStrings(self.ids[row] for row in rows.tolist())
        locations = self.images.to_locations(rows)
        return TarSamples(
            shards=shards,
            shard_indices=numbers,
            ids=ids,
            images=TarMembers(
                root=root,
                shards=shards,
                shard_indices=numbers,
                offsets=locations.offsets,
                sizes=locations.sizes,
                ids=ids,
                suffixes=tuple(self.suffixes),
                suffix_indices=np.array(self.suffix_indices, np.int32)[rows],
            ),
            labels={name: column.to_locations(rows) for name, column in self.labels.items()},
            notes=tuple(self._iter_notes(rows)),
        )

    def _iter_notes(self, rows: NDArray[np.int64]) -> Iterator[str]:
        lost = np.setdiff1d(np.arange(len(self.ids)), rows)
        if len(lost):
            names = ", ".join(self.ids[row] for row in lost[:MAX_SHOWN_SAMPLES].tolist())
            more = f" and {len(lost) - MAX_SHOWN_SAMPLES:,} more" if len(lost) > MAX_SHOWN_SAMPLES else ""
            left_out = format_count(len(lost), "sample that has", "samples that have")
            yield f"Left out {left_out} no picture: {names}{more}."
        if self.unread_suffixes:
            count = self.unread_suffixes.total()
            yield f"Did not read {format_count(count, 'other file')} of the samples: {self._describe_unread()}."
        if self.link_count:
            links = format_count(self.link_count, "link or device, which holds", "links and devices, which hold")
            yield f"Left out {links} no picture; tar --dereference --hard-dereference packs what links lead to."
        if self.system_file_count:
            yield f"Left out {self.system_file_count:,} hidden or system files."

    def _describe_unread(self) -> str:
        return ", ".join(
            f"{count:,} x {quote_tar_name('.' + suffix)}"
            for suffix, count in self.unread_suffixes.most_common(MAX_SHOWN_SAMPLES)
        )

    def _no_images_message(self, shards: tuple[TarShard, ...]) -> str:
        expected = ", ".join(f".{name}" for name in IMAGE_SUFFIXES)
        if self.image_suffix:
            expected = f".{self.image_suffix}, as --data.path says"
        held = f"files ending in {self._describe_unread()}" if self.unread_suffixes else "nothing of the kind"
        where = (
            str(shards[0].path)
            if len(shards) == 1
            else f"{shards[0].path} and {format_count(len(shards) - 1, 'more shard')}"
        )
        return f"{where}: no pictures found. Expected names ending in {expected}; got {held}."


def _duplicate_file_message(shard: TarShard, entry: TarEntry) -> str:
    return (
        f"{shard.path} holds {quote_tar_name(entry.name)} twice, the second at byte {entry.offset:,}; which one is "
        "meant? Write the shard again with each name once."
    )


def _split_sample_key(name: str) -> tuple[str, str]:
    """(key, suffix in lower case) of a file's name; the key is empty for hidden and system files."""
    folder, slash, base = name.rpartition("/")
    stem, _, suffix = base.partition(".")
    if not stem or not SYSTEM_FILES.isdisjoint(name.split("/")):
        return "", ""
    return _sanitize_key(f"{folder}{slash}{stem}"), suffix.lower()


def _sanitize_key(key: str) -> str:
    """Make a key a printable relative path, so that it cannot be used for path traversal."""
    if key.isprintable() and not key.startswith(("/", ".")) and "//" not in key and "/." not in key:
        return key
    text = _escape_unprintable(key)
    return "/".join("__" if part == ".." else part for part in text.split("/") if part not in ("", "."))


def _escape_unprintable(name: str) -> str:
    """A name as printable text on one line."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


# -- Opening shards.

PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
MAX_PATTERN_FILES = 1_000_000
"""Most files that a pattern in braces may name."""


def open_shard(path: Path, settings: DataSettings) -> Source:
    """Open one shard; see `open_shards`."""
    return _open_samples([path], path.parent, path.stem, settings)


def open_shards(paths: Sequence[Path], settings: DataSettings) -> Source:
    """Open the samples of several shards, in the order named.

    A sample is all files that share a name up to its first dot: an image, and its label in .cls (a number or a name),
    .json (fields) or .txt. A shard whose name or folder contains train, val or test belongs to that official split.

    Raises:
        DataError: a shard is missing or damaged, a sample has no label, a class is in val or test but not in train.
    """
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        more = f" and {len(missing) - 3:,} more" if len(missing) > 3 else ""
        raise DataError(
            f"{format_part(len(missing), len(paths), 'shard', 'does', 'do')} not exist: {', '.join(missing[:3])}{more}."
        )
    twice = [path for path, before in itertools.pairwise(sorted(paths)) if path == before]
    if twice:
        raise DataError(f"{twice[0]} is named twice; each of its pictures would count double. Name each shard once.")
    if len({path.is_absolute() for path in paths}) > 1:
        paths = [path.absolute() for path in paths]
    root = Path(os.path.commonpath([path.parent for path in paths]))
    return _open_samples(paths, root, _common_name(paths) or root.resolve().name or "shards", settings)


def open_shard_folder(folder: Path, settings: DataSettings) -> Source:
    """Open the samples of all shards below a folder, in natural order; see `open_shards`.

    Raises:
        DataError: also where the folder holds images beside its shards, which is ambiguous.
    """
    paths, packed = _find_shards(folder)
    if not paths:
        hint = f" Unpack the {len(packed):,} packed ones, such as {packed[0]}, with gzip -d." if packed else ""
        raise DataError(f"No tar shards were found in {folder}.{hint}")
    notes = (
        [f"Left out {format_count(len(packed), 'packed shard')}, such as {packed[0]}; unpack them to use them."]
        if packed
        else []
    )
    return _open_samples(paths, folder, folder.resolve().name or "root", settings, tuple(notes))


def expand_braces(text: str) -> list[str]:
    """Expand braces as a shell does: `a-{00..11}.tar` is twelve files, `{train,val}.tar` two.

    Raises:
        DataError: more than a million.
    """
    parts = re.split(r"\{([^{}]*)\}", text)  # the parts at odd positions were in braces
    choices = [_expand_brace(part) if place % 2 else [part] for place, part in enumerate(parts)]
    if math.prod(map(len, choices)) > MAX_PATTERN_FILES:
        raise DataError(f"{text} names more than {MAX_PATTERN_FILES:,} shards. Name fewer.")
    return list(map("".join, itertools.product(*choices)))


def _expand_brace(inside: str) -> Sequence[str]:
    ends = re.fullmatch(r"([0-9]{1,18})\.\.([0-9]{1,18})", inside)
    if ends:
        first, last = int(ends[1]), int(ends[2])
        if abs(last - first) >= MAX_PATTERN_FILES:
            raise DataError(f"{{{inside}}} names more than {MAX_PATTERN_FILES:,} shards. Name fewer.")
        padded = any(end.startswith("0") and len(end) > 1 for end in ends.groups())
        width = max(map(len, ends.groups())) if padded else 0
        step = 1 if first <= last else -1
        return [f"{number:0{width}d}" for number in range(first, last + step, step)]
    return inside.split(",") if "," in inside else [f"{{{inside}}}"]


def _open_samples(
    paths: Sequence[Path], root: Path, name: str, settings: DataSettings, notes: tuple[str, ...] = ()
) -> Source:
    check_supported_settings(settings, "shards", name)
    labels = {path: _escape_unprintable(path.relative_to(root).as_posix()) for path in paths}
    splits = {
        path: "" if settings.split_column else split_from_shard_name(Path(label)) for path, label in labels.items()
    }
    beside = {path: labels[path] for path in paths if not splits[path] and "train" in splits.values()}
    if beside:
        names = ", ".join(map(repr, list(beside.values())[:5]))
        notes = (*notes, f"Left out what lies beside the training shards: {names}.")
    kept = [path for path in paths if path not in beside]
    shards = [(labels[path], TarShard.from_path(path)) for path in kept]
    suffixes = dict.fromkeys((CLASS_SUFFIX, TEXT_SUFFIX, JSON_SUFFIX, *settings.targets))
    samples = index_samples(str(root), shards, suffixes, settings.path)
    split_of_shard = [splits[path] for path in kept]
    annotations = read_annotations(samples, settings, name, any(split_of_shard))
    annotations = replace(annotations, notes=(*notes, *samples.notes, *annotations.notes))
    if any(split_of_shard):
        split_of_row = np.array(split_of_shard)[samples.shard_indices]
        rows_of_split = {split: np.flatnonzero(split_of_row == split) for split in SPLITS if split in split_of_row}
        annotations = replace(annotations, splits=rows_of_split)
    source = build_source(name, samples.images, samples.ids, annotations)
    rows = annotations.labels.kept_rows
    return replace(source, blocks=samples.shard_indices if rows is None else samples.shard_indices[rows])


def split_from_shard_name(path: Path) -> str:
    """The split named by a shard's folders, or else by its own name (`imagenet-val-0007.tar`); empty if neither.

    Raises:
        DataError: it names two.
    """
    words = [part.lower() for part in path.parts[:-1]]
    in_name = [word.rstrip("0123456789") for word in re.split(r"[-_. ]+", path.stem.lower())]
    for group in (words, in_name):
        named = {SPLIT_NAMES[word] for word in group if word in SPLIT_NAMES}
        if len(named) > 1:
            raise DataError(f"The name of shard {path} says {' and '.join(sorted(named))}. Rename it to say one.")
        if named:
            return named.pop()
    return ""


def _find_shards(folder: Path) -> tuple[list[Path], list[str]]:
    """Find shards below a folder in natural order, and compressed ones, which cannot be read in place."""
    shards, packed = [], []
    for place, folders, names in os.walk(folder, onerror=_raise_unlistable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith("."):
                continue
            if name.lower().endswith(".tar"):
                shards.append(Path(place) / name)
            elif name.lower().endswith(PACKED):
                packed.append(name)
            elif Path(name).suffix.lower() in IMAGE_EXTENSIONS:
                raise DataError(
                    f"{folder} holds tar files and also pictures outside of them, such as {Path(place) / name}. Name "
                    "the tar files to use those, or move them elsewhere to use the pictures."
                )
    return sorted(shards, key=lambda path: natural_sort_key(path.relative_to(folder).as_posix())), sorted(packed)


def _raise_unlistable(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be listed ({(error.strerror or str(error)).lower()}).") from error


def _common_name(paths: Sequence[Path]) -> str:
    """The words that the names of all shards begin with; empty if they only name a split."""
    words = zip(*(path.stem.split("-") for path in paths), strict=False)
    name = "-".join(each[0] for each in itertools.takewhile(lambda each: len(set(each)) == 1, words))
    return "" if name.lower() in SPLIT_NAMES else name
