"""Tar shards in the WebDataset layout, as an index: their headers are read once, their pictures where they lie."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..decoding.endings import ENDINGS
from ..honoured import refuse_others
from ..names import SPLIT_NAMES, natural
from ..settings import DataSettings
from ..source import SPLITS, Source
from .assemble import assemble
from .members import Shard
from .samples import gather
from .shard_labels import kinds_wanted, read_labels

SHARDS = ".tar"
PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
MOST = 1_000_000
"""Files that a pattern in braces may name."""


def open_file(path: Path, settings: DataSettings) -> Source:
    """The samples of one shard; see `open_shards`."""
    return _open([path], path.parent, path.stem, settings)


def open_shards(paths: Sequence[Path], settings: DataSettings) -> Source:
    """The samples of several shards, in the order named.

    A sample is all files that share a name up to its first dot: a picture, and what it shows in .cls (a number or a
    name), .json (fields) or .txt. A shard whose name or folder says train, val or test belongs to that official split.

    Raises:
        DataError: a shard is missing or damaged, a sample has no label, a class is in val or test but not in train.
    """
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        more = f" and {len(missing) - 3:,} more" if len(missing) > 3 else ""
        raise DataError(f"{len(missing):,} of {len(paths):,} shards do not exist: {', '.join(missing[:3])}{more}.")
    twice = [path for path, before in itertools.pairwise(sorted(paths)) if path == before]
    if twice:
        raise DataError(f"{twice[0]} is named twice; each of its pictures would count double. Name each shard once.")
    if len({path.is_absolute() for path in paths}) > 1:
        paths = [path.absolute() for path in paths]
    root = _common_folder(paths)
    return _open(paths, root, _common_name(paths) or root.resolve().name or "shards", settings)


def open_folder(folder: Path, settings: DataSettings) -> Source:
    """The samples of all shards below a folder, in natural order; see `open_shards`.

    Raises:
        DataError: also where the folder holds pictures beside its shards, so that either could be meant.
    """
    paths, packed = _below(folder)
    if not paths:
        hint = f" Unpack the {len(packed):,} packed ones, such as {packed[0]}, with gzip -d." if packed else ""
        raise DataError(f"No tar shards were found in {folder}.{hint}")
    notes = [f"Left out {len(packed):,} packed shards, such as {packed[0]}; unpack them to use them."] if packed else []
    return _open(paths, folder, folder.resolve().name or "root", settings, tuple(notes))


def braces(text: str) -> list[str]:
    """A pattern written out as a shell would: `a-{00..11}.tar` is twelve files, `{train,val}.tar` two.

    Raises:
        DataError: more than a million.
    """
    parts = re.split(r"\{([^{}]*)\}", text)  # what is in braces has odd places
    choices = [_choices(part) if place % 2 else [part] for place, part in enumerate(parts)]
    if math.prod(map(len, choices)) > MOST:
        raise DataError(f"{text} names more than {MOST:,} shards. Name fewer.")
    return list(map("".join, itertools.product(*choices)))


def _choices(inside: str) -> Sequence[str]:
    ends = re.fullmatch(r"([0-9]{1,18})\.\.([0-9]{1,18})", inside)
    if ends:
        first, last = int(ends[1]), int(ends[2])
        if abs(last - first) >= MOST:
            raise DataError(f"{{{inside}}} names more than {MOST:,} shards. Name fewer.")
        padded = any(end.startswith("0") and len(end) > 1 for end in ends.groups())
        width = max(map(len, ends.groups())) if padded else 0
        step = 1 if first <= last else -1
        return [f"{number:0{width}d}" for number in range(first, last + step, step)]
    return inside.split(",") if "," in inside else [f"{{{inside}}}"]


def _open(paths: Sequence[Path], root: Path, name: str, settings: DataSettings, notes: tuple[str, ...] = ()) -> Source:
    refuse_others(settings, "shards", name)
    labels = {path: _text(path.relative_to(root).as_posix()) for path in paths}
    splits = {path: "" if settings.split else split_of(Path(label)) for path, label in labels.items()}
    beside = {path: labels[path] for path in paths if not splits[path] and "train" in splits.values()}
    if beside:
        notes = (
            *notes,
            f"Left out what lies beside the training shards: {', '.join(map(repr, list(beside.values())[:5]))}.",
        )
    kept = [path for path in paths if path not in beside]
    shards = [(labels[path], Shard.at(path)) for path in kept]
    samples = gather(str(root), shards, kinds_wanted(settings), settings.path)
    of_shards = [splits[path] for path in kept]
    told = read_labels(samples, settings, name, any(of_shards))
    source = assemble(
        name,
        samples.pictures,
        samples.ids,
        told.answers,
        groups=told.groups,
        splits=_by_shard(of_shards, samples.numbers) if any(of_shards) else told.splits,
        metadata=told.metadata,
        notes=(*notes, *samples.notes, *told.notes),
    )
    rows = told.answers.kept
    return replace(source, blocks=samples.numbers if rows is None else samples.numbers[rows])


def split_of(path: Path) -> str:
    """The split that a shard's folders name, or else its own name (`imagenet-val-0007.tar`); empty if neither does.

    Raises:
        DataError: it names two.
    """
    words = [part.lower() for part in path.parts[:-1]]
    in_name = [word.rstrip("0123456789") for word in re.split(r"[-_. ]+", path.stem.lower())]
    for group in (words, in_name):
        found = {SPLIT_NAMES[word] for word in group if word in SPLIT_NAMES}
        if len(found) > 1:
            raise DataError(f"The name of shard {path} says {' and '.join(sorted(found))}. Rename it to say one.")
        if found:
            return found.pop()
    return ""


def _by_shard(splits: Sequence[str], numbers: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    of_row = np.array(splits)[numbers]
    found = {split: np.flatnonzero(of_row == split) for split in SPLITS}
    return {split: rows for split, rows in found.items() if len(rows)}


def _below(folder: Path) -> tuple[list[Path], list[str]]:
    """Shards below a folder in natural order, and packed ones, which cannot be read in place."""
    shards, packed = [], []
    for place, name in _files(folder):
        if name.lower().endswith(SHARDS):
            shards.append(Path(place) / name)
        elif name.lower().endswith(PACKED):
            packed.append(name)
        elif Path(name).suffix.lower() in ENDINGS:
            raise DataError(
                f"{folder} holds tar files and also pictures outside of them, such as {Path(place) / name}. Name the "
                "tar files to use those, or move them elsewhere to use the pictures."
            )
    return sorted(shards, key=lambda path: natural(path.relative_to(folder).as_posix())), sorted(packed)


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    """(folder, name) of every file that is not hidden."""
    for place, folders, names in os.walk(folder, onerror=_unlisted):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from ((place, name) for name in names if not name.startswith("."))


def _unlisted(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be listed ({(error.strerror or str(error)).lower()}).") from error


def _common_folder(paths: Sequence[Path]) -> Path:
    return Path(os.path.commonpath([path.parent for path in paths]))


def _common_name(paths: Sequence[Path]) -> str:
    """The words that the names of all shards begin with; empty if that is no name of a set."""
    words = zip(*(path.stem.split("-") for path in paths), strict=False)
    name = "-".join(each[0] for each in itertools.takewhile(lambda each: len(set(each)) == 1, words))
    return "" if name.lower() in SPLIT_NAMES else name


def _text(name: str) -> str:
    """A path as text on one line that any file can hold."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
