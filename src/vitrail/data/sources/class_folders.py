"""A folder with one folder per class, with or without train/, val/ and test/ above them."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...errors import DataError
from ..formats import ACCEPTED, recognise
from ..source import SPLITS, Source

# fmt: off
SPLIT_NAMES = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}
# fmt: on
ENDINGS = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".gif", ".tif", ".tiff", ".npy"}
)
LITTER = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini", "$RECYCLE.BIN"})


def open_class_folders(root: Path) -> Source:
    """Every picture one level below a class folder; the class is the folder's name, kept as text.

    Where there is a train/ folder, it and val/ (valid/, validation/, dev/) and test/ are official splits, and the
    classes are those of train. Classes and files are in natural order: 1, 2, 10. Hidden files and the litter of file
    managers are left out and counted in the notes. Contents are not looked at, except of files without an ending.

    Raises:
        DataError: no pictures, no class folders, fewer than two classes, a class that train does not have, or class
            names that differ only in case or spacing.
    """
    left_out = _LeftOut()
    pictures = _by_split(root, left_out)
    main = "train" if "train" in pictures else WHOLE
    classes = tuple(pictures[main])
    _check_classes(root, classes, pictures)
    numbers = {name: number for number, name in enumerate(classes)}
    paths: list[Path] = []
    targets: list[int] = []
    splits = {}
    for split, folders in pictures.items():
        start = len(paths)
        for name, files in folders.items():
            paths += files
            targets += [numbers[name]] * len(files)
        if split != WHOLE:
            splits[split] = np.arange(start, len(paths))
    return Source(
        name=_text(root.resolve().name) or "root",
        classes=classes,
        pictures=tuple(paths),
        targets=np.array(targets, dtype=np.int64),
        ids=tuple(_text(path.relative_to(root).as_posix()) for path in paths),
        splits=splits,
        notes=left_out.notes(),
    )


Folders = dict[str, list[Path]]  # class name -> its pictures
WHOLE = "whole"  # the key of pictures that belong to no official split


@dataclass
class _LeftOut:
    """What is no picture in a class folder, counted for the notes."""

    litter: int = 0
    nested: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    sentences: list[str] = field(default_factory=list)

    def notes(self) -> tuple[str, ...]:
        notes = list(self.sentences)
        if self.litter:
            notes.append(f"Left out {self.litter:,} hidden or system files and folders.")
        if self.endings:
            kinds = ", ".join(f"{count:,} x {ending}" for ending, count in self.endings.most_common(5))
            notes.append(f"Left out {self.endings.total():,} files that are no {ACCEPTED}: {kinds}.")
        if self.nested:
            notes.append(f"Left out {self.nested:,} folders inside class folders; classes are one level deep.")
        return tuple(notes)


def _by_split(root: Path, left_out: _LeftOut) -> dict[str, Folders]:
    """Pictures per class, under their official splits in the order train, val, test; or all under WHOLE."""
    folders, _ = _listing(root, _LeftOut())
    splits: dict[str, Path] = {}
    for folder in folders:
        split = SPLIT_NAMES.get(folder.name.lower())
        if split in splits:
            raise DataError(
                f"{root} has both {splits[split].name}/ and {folder.name}/ for the split {split}. Keep one."
            )
        if split:
            splits[split] = folder
    if "train" not in splits:
        return {WHOLE: _classes(root, left_out, required=True)}
    beside = [folder.name for folder in folders if folder not in splits.values()]
    if beside:
        left_out.sentences.append(f"Left out what lies beside train/: {', '.join(map(repr, beside[:5]))}.")
    found = {split: _classes(splits[split], left_out, required=split == "train") for split in SPLITS if split in splits}
    return {split: classes for split, classes in found.items() if classes}


def _classes(folder: Path, left_out: _LeftOut, required: bool) -> Folders:
    """Class folders with their pictures; empty ones, and pictures beside them, go to the notes."""
    folders, files = _listing(folder, left_out)
    loose = len(_only_pictures(files, left_out))
    classes: Folders = {}
    for each in folders:
        nested, inside = _listing(each, left_out)
        left_out.nested += len(nested)
        pictures = _only_pictures(inside, left_out)
        name = unicodedata.normalize("NFC", _text(each.name))
        _check_collision(folder, name, classes)
        if pictures:
            classes[name] = pictures
        else:
            left_out.sentences.append(f"Left out class folder {str(each)!r}: it holds no pictures.")
    if classes and loose:
        left_out.sentences.append(f"Left out {loose:,} pictures beside the class folders of {str(folder)!r}.")
    if not classes:
        sentence = _nothing(folder, folders, loose, left_out.nested)
        if required:
            raise DataError(sentence)
        left_out.sentences.append(f"Left out {str(folder)!r}: {sentence}")
    return classes


def _nothing(folder: Path, folders: list[Path], loose: int, nested: int) -> str:
    if loose:
        return (
            f"{folder} holds {loose:,} pictures but no class folders. "
            "Put the pictures of each class into a folder with the name of the class."
        )
    hint = f" Is the data one level further down, in {folders[0]}?" if len(folders) == 1 and nested else ""
    return f"no pictures found in {folder}; expected one folder per class holding {ACCEPTED}.{hint}"


def _check_collision(folder: Path, name: str, classes: Folders) -> None:
    for other in classes:
        if other.strip().casefold() == name.strip().casefold():
            raise DataError(
                f"{folder} has class folders {other!r} and {name!r}, which differ only in case, spacing or accents' "
                "encoding. Put their pictures together or rename one."
            )


def _check_classes(root: Path, classes: tuple[str, ...], pictures: dict[str, Folders]) -> None:
    if len(classes) < 2:
        raise DataError(f"{root} has only one class, {classes[0]!r}; at least two are needed to tell apart.")
    for split, folders in pictures.items():
        unknown = [name for name in folders if name not in classes]
        if unknown:
            names = ", ".join(f"{name!r} ({len(folders[name]):,} pictures)" for name in unknown)
            raise DataError(
                f"{split} of {root} has classes that train does not have: {names}. "
                "A model cannot learn them; add them to train, or remove or rename them."
            )


def _listing(folder: Path, left_out: _LeftOut) -> tuple[list[Path], list[Path]]:
    """Folders and other entries in natural order, without litter."""
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError as error:
        raise DataError(f"{folder} cannot be listed ({(error.strerror or str(error)).lower()}).") from error
    kept = [entry for entry in found if not (entry.name.startswith(".") or entry.name in LITTER)]
    left_out.litter += len(found) - len(kept)
    kept.sort(key=lambda entry: natural(entry.name))
    folders = [Path(entry.path) for entry in kept if _is_folder(entry)]
    files = [Path(entry.path) for entry in kept if not _is_folder(entry)]
    return folders, files


def natural(name: str) -> tuple[tuple[str | int, ...], str]:
    """Sorts 1, 2, 10 by value, and words without regard to case."""
    parts = re.split(r"([0-9]+)", name.casefold())
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts)), name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))


def _only_pictures(files: list[Path], left_out: _LeftOut) -> list[Path]:
    """Files with a picture's ending, whatever they hold (the check names bad ones), or without one but with a
    picture's first bytes."""
    pictures = []
    for file in files:
        ending = file.suffix.lower()
        if ending in ENDINGS or (not ending and _begins_like_picture(file)):
            pictures.append(file)
        else:
            left_out.endings[ending or "no ending"] += 1
    return pictures


def _begins_like_picture(file: Path) -> bool:
    if not file.is_file():  # a pipe would block
        return False
    try:
        with file.open("rb") as opened:
            return recognise(opened.read(16)) is not None
    except OSError:
        return False


def _text(name: str) -> str:
    """A file name as text that any file can hold; bytes that are no UTF-8 become escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
