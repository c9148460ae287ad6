"""Read a folder with one folder per class, with or without train/, val/ and test/ above them."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...errors import DataError, UsageError
from ...formatting import format_count
from ..compact_strings import CompactStrings, RelativePaths
from ..decoding.decoded_image import ACCEPTED_FORMATS, CSV_HINT, IMAGE_EXTENSIONS, WORKBOOK_EXTENSIONS
from ..labels.defects import MASK_FOLDER
from ..settings import DataSettings, advise_anomaly, check_supported_settings
from ..source import MANIFEST_EXTENSIONS, SPLIT_NAMES, SPLITS, Source, natural_sort_key, spelling_key
from .image_files import SkippedFiles, find_images, list_folder, select_images

FOLDER_COLUMN = "folder"
"""The column with the folders of an image beside those of its split and its class: "site-a", "2024/01"."""
CLASS_LEVEL = "--data.class_level"
DATE_NAME = re.compile(r"(19|20)\d\d([-_. ]?\d\d){0,2}([-_ T].*)?")
"""Names of folders by date: 2024, 2024-01, 20240131, 2024_01_31 morning."""
MAX_NAMED = 4
"""Folders that a note names."""


def open_class_folders(root: Path, settings: DataSettings) -> Source:
    """Open every image in the class folders and in all folders below them; the class is the folder's name, as text.

    Where there is a train/ folder, it and val/ (valid/, validation/, dev/) and test/ are official splits, and the
    classes are those of train. The class is the first folder below the root or the split, or that of
    `settings.class_level`. Classes and files are in natural order: 1, 2, 10. Hidden files and system files of file
    managers are left out and counted in the notes. Contents are not read, except of files without an extension. Links
    to class folders and to files inside the root are followed, those that lead out of it only with
    `settings.allow_outside_root`, and no links to folders further down.

    Raises:
        UsageError: the settings name columns other than `FOLDER_COLUMN`, which folders do not have.
        DataError: no images, no class folders, a class that train does not have, class names that differ only in
            case, spacing or width, two folders that are the same by a link, or links that lead out of the root.
    """
    _check_settings(root, settings)
    left_out = _SkippedEntries(
        root, keep_empty=settings.keep_empty, class_level=settings.class_level, manifests=_find_manifests(root)
    )
    images = _list_splits(root, left_out)
    if not settings.allow_outside_root:
        _check_links_inside_root(root, left_out.links)
    main = "train" if "train" in images else NO_SPLIT
    classes = tuple(images[main])
    if settings.task == "anomaly":  # defects need no picture in train
        classes = tuple(dict.fromkeys(name for folders in images.values() for name in folders))
    else:
        _check_split_classes(root, classes, images, left_out)
    numbers = {name: number for number, name in enumerate(classes)}
    names: list[str] = []
    targets: list[np.ndarray] = []
    splits = {}
    for split, folders in images.items():
        start = len(names)
        for name, files in folders.items():
            names += files
            targets.append(np.full(len(files), numbers[name], dtype=np.int64))
        if split != NO_SPLIT:
            splits[split] = np.arange(start, len(names))
    other_folders = [_other_folders(name, int(main != NO_SPLIT), settings.class_level) for name in names]
    is_nested = any(other_folders)
    if settings.group and not is_nested:
        raise UsageError(f"--group {FOLDER_COLUMN} was asked for, and {root} has no folders but those of its classes.")
    if is_nested and settings.class_level > 1 and not settings.group:
        example = next(folder for folder in other_folders if folder)
        left_out.sentences.append(
            f"Beside those of the classes there are folders such as {example!r}. If they are days, persons or places: "
            f"--group {FOLDER_COLUMN} keeps the pictures of one of them in one split"
        )
    ids = CompactStrings(map(_to_printable_name, names))
    grouped = [folder or name for folder, name in zip(other_folders, ids, strict=True)] if settings.group else None
    return Source(
        name=_to_printable_name(root.resolve().name) or "root",
        task="anomaly" if settings.task == "anomaly" else "classification",
        classes=classes,
        images=RelativePaths(root, CompactStrings(names)),
        targets=np.concatenate(targets),
        ids=ids,
        groups=None if grouped is None else np.array(grouped, object),
        splits=splits,
        metadata={FOLDER_COLUMN: CompactStrings(other_folders)} if is_nested else {},
        notes=left_out.to_notes(),
    )


Folders = dict[str, list[str]]  # class name -> paths of its images relative to the root
NO_SPLIT = "whole"  # the key of images that belong to no official split


@dataclass
class _SkippedEntries(SkippedFiles):
    """Entries of class folders that are not images, counted for the notes, with the settings of the search."""

    keep_empty: bool = False
    class_level: int = 1
    manifests: tuple[Path, ...] = ()
    sentences: list[str] = field(default_factory=list)

    def to_notes(self) -> tuple[str, ...]:
        notes = list(self.sentences)
        if self.system_files:
            notes.append(f"Left out {self.system_files:,} hidden or system files and folders.")
        notes += [f"Left out {files}" for files in [self.describe_files()] if files]
        notes += [links for links in [self.describe_linked_folders()] if links]
        if self.manifests:
            notes.append(f"{self.manifests[0].name} is not read, as there are class folders. {self.manifest_command()}")
        return tuple(notes)

    def find_workbook(self) -> str:
        """The name of a workbook beside the class folders, where the labels may stand; empty if there is none."""
        found = (self.extension_examples.get(ending, "") for ending in sorted(WORKBOOK_EXTENSIONS))
        return next((name for name in found if name and "/" not in name), "")

    def manifest_command(self) -> str:
        """A hint with the command that reads a manifest in the folder."""
        commands = " or ".join(f"vitrail train {shlex.quote(str(path))}" for path in self.manifests[:3])
        return f"To learn from that file: {commands}"


def _check_settings(root: Path, settings: DataSettings) -> None:
    columns = {
        "--group": "" if settings.group == FOLDER_COLUMN else settings.group,
        "--data.path": settings.path,
        "--data.split": settings.split,
        "--data.targets": ",".join(settings.targets),
    }
    flags = [f"{flag} {column}" for flag, column in columns.items() if column]
    if flags:
        raise UsageError(
            f"{root} is a folder of class folders, which has no columns, so {' and '.join(flags)} cannot be followed. "
            "Write a manifest, a CSV file with a line per picture and the columns path, label and "
            f"{settings.group or 'whatever else is known'}, and give that file instead of the folder."
        )
    check_supported_settings(settings, "class folders", f"{root}, a folder of class folders,")


def _find_manifests(root: Path) -> tuple[Path, ...]:
    """Manifests in a folder, the likely ones first: metadata.csv, labels.csv, any other."""
    try:
        tables = [path for path in root.iterdir() if path.suffix.lower() in MANIFEST_EXTENSIONS and path.name[0] != "."]
    except OSError:
        return ()
    likely = {"metadata": 0, "labels": 1}
    return tuple(
        sorted(tables, key=lambda path: (likely.get(path.stem.lower().lstrip("_"), 2), natural_sort_key(path.name)))
    )


def _list_splits(root: Path, left_out: _SkippedEntries) -> dict[str, Folders]:
    """Images per class, by official split in the order train, val, test; or all under NO_SPLIT."""
    folders, files, links = list_folder(root, SkippedFiles(root))
    lists = [file for file in files if file.lower().endswith((".txt", ".lst")) and _name_split(Path(file).stem)]
    if lists:
        left_out.sentences.append(
            f"{', '.join(map(repr, lists[:5]))} may list a split, and is not followed. To follow it, write a manifest "
            "with the columns path, label and split, and give that file instead of the folder."
        )
    splits: dict[str, str] = {}
    for folder in folders:
        split = SPLIT_NAMES.get(folder.lower())
        if split in splits:
            raise DataError(f"{root} has both {splits[split]}/ and {folder}/ for the split {split}. Keep one.")
        if split:
            splits[split] = folder
    if "train" in splits and _are_classes(root, folders, left_out.manifests):
        left_out.sentences.append(
            f"{splits['train']!r} is read as a class, for it holds pictures and no class folders, as others beside it."
        )
        splits = {}
    if "train" not in splits:
        return {NO_SPLIT: _list_classes(root, "", left_out, required=True)}
    _check_linked_folders(root, list(splits.values()), "every picture would be in both splits")
    left_out.links += [folder for folder in splits.values() if folder in links]
    beside = [folder for folder in folders if folder not in (*splits.values(), MASK_FOLDER)]
    if beside:
        left_out.sentences.append(f"Left out what lies beside train/: {', '.join(map(repr, beside[:5]))}.")
    left_out.manifests += _find_manifests(root / splits["train"])
    images = {}
    for split in SPLITS:
        if split in splits:
            images[split] = _list_classes(root, f"{splits[split]}/", left_out, required=split == "train")
    return {split: classes for split, classes in images.items() if classes}


def _name_split(stem: str) -> bool:
    """Whether a file's name says train, val or test: val, test_list, split-train."""
    return any(word in SPLIT_NAMES for word in re.split("[-_. ]+", stem.lower()))


def _are_classes(root: Path, folders: list[str], manifests: tuple[Path, ...]) -> bool:
    """Whether folders called like splits are classes: all hold pictures and no folders, as another one beside them."""
    named = [folder for folder in folders if folder.lower() in SPLIT_NAMES]
    inside = {folder: list_folder(root / folder, SkippedFiles(root)) for folder in folders}
    flat = {
        folder
        for folder, (nested, files, _) in inside.items()
        if not nested and select_images(root / folder, files, SkippedFiles(root))
    }
    labels_elsewhere = manifests or any(_find_manifests(root / folder) for folder in named)
    return flat.issuperset(named) and len(flat) > len(named) and not labels_elsewhere


def _list_classes(root: Path, inside: str, left_out: _SkippedEntries, required: bool) -> Folders:
    """Class folders below root/inside with their images; empty ones, and images outside them, go to the notes."""
    folder = root / inside
    above, loose, linked = [""], 0, list[str]()
    for _ in range(left_out.class_level):  # down to the class folders
        deeper, above = above, []
        for place in deeper:
            folders, files, links = list_folder(folder / place, left_out)
            loose += len(select_images(folder / place, files, left_out))
            _check_linked_folders(folder / place, folders, "the same pictures would have two classes")
            linked += [f"{place}{name}/" for name in folders if name in links]
            above += [f"{place}{name}/" for name in folders]
    classes: Folders = {}
    for place in above:
        images = find_images(folder / place, left_out)
        each = place.rstrip("/")
        name = to_class_name(each.rpartition("/")[2])
        for other in classes:
            if other != name and spelling_key(other) == spelling_key(name):
                raise DataError(
                    f"{folder} has class folders {other!r} and {name!r}, which differ only in case, spacing, width or "
                    "accents' encoding. Put their pictures together or rename one."
                )
        if images or left_out.keep_empty:
            classes.setdefault(name, []).extend(f"{inside}{place}{image}" for image in images)
            left_out.links += [f"{inside}{link.rstrip('/')}" for link in linked if place.startswith(link)]
        else:
            left_out.sentences.append(
                f"Left out class folder {str(folder / each)!r}: it holds no pictures. --data.keep_empty true keeps it."
            )
    if not any(classes.values()):
        sentence = _no_images_message(folder, loose, left_out, may_be_class=not inside)
        if required:
            raise DataError(sentence)
        split = SPLIT_NAMES[inside.rstrip("/").lower()]
        left_out.sentences.append(f"There is no official {split} split: {sentence}")
        return {}
    if loose:
        left_out.sentences.append(
            f"Left out {format_count(loose, 'picture')} beside the class folders of {str(folder)!r}."
        )
    if required and left_out.class_level == 1:
        paths = {name: [image.removeprefix(inside) for image in images] for name, images in classes.items()}
        left_out.sentences += [note for note in [_describe_levels(folder, paths)] if note]
    return classes


def _describe_levels(folder: Path, classes: Folders) -> str:
    """A note on folders inside class folders, whose names may be the classes; empty where there are none.

    Args:
        classes: paths of images relative to the folder, by class.
    """
    total = sum(map(len, classes.values()))
    deep = sum(image.count("/") > 1 for images in classes.values() for image in images)
    names = _join_named([f"{name!r}" for name in _inner_folders(classes, 2)])
    counts = _join_named([f"{name!r} ({format_count(len(images), 'picture')})" for name, images in classes.items()])
    if not deep:
        if len(classes) > 1 and all(DATE_NAME.fullmatch(name) for name in classes):
            return (
                f"The classes of {folder} are its folders, which are called like dates: {counts}. If the labels stand "
                "elsewhere, write a manifest, a CSV file with the columns path and label, and give that file instead."
            )
        return ""
    pictures = f"{deep:,} of {format_count(total, 'picture')} lie deeper, in folders inside the class folders"
    for level in range(2, max(image.count("/") for images in classes.values() for image in images) + 1):
        inner = _inner_folders(classes, level)
        shared = {name: each.total() for name, each in inner.items() if len(each) > 1}
        if shared and level == 2 and all(name.lower() in SPLIT_NAMES for name in shared):
            return (
                f"{pictures}, such as {names}, which are not followed as splits. To follow them, put them above the "
                f"classes, as in {folder / 'train'}/CLASS, or write a manifest with the columns path, label and split."
            )
        are_dates = all(DATE_NAME.fullmatch(name) or not any(map(str.isalpha, name)) for name in shared)
        if 2 * sum(shared.values()) > total and not are_dates:
            own = "The only class of {} is its folder" if len(classes) == 1 else "The classes of {} are its folders"
            where = "several of them" if level == 2 else "several folders below"
            inside = _join_named([f"{name!r} ({format_count(number, 'picture')})" for name, number in shared.items()])
            return (
                f"{own.format(folder)} {counts}, but folders of the same names lie in {where}: {inside}. If those are "
                f"the classes: {CLASS_LEVEL} {level}"
            )
    if len(classes) == 1 and deep == total:
        (only,) = classes
        return (
            f"All pictures lie in one folder, {counts}, which counts as the class; in it are the folders {names}. If "
            f"those are the classes, give {folder / only} instead of {folder}."
        )
    return (
        f"{pictures}, such as {names}; each belongs to the class of the first folder, {counts}. If the inner folders "
        f"are the classes: {CLASS_LEVEL} 2. If they are days, persons or places: --group {FOLDER_COLUMN} keeps the "
        "pictures of one of them in one split"
    )


def _inner_folders(classes: Folders, level: int) -> dict[str, Counter[str]]:
    """Name of a folder on a level, the class folders being the first -> number of its images in each folder above."""
    inner: dict[str, Counter[str]] = {}
    for images in classes.values():
        for image in images:
            parts = image.split("/")
            if len(parts) > level:
                inner.setdefault(parts[level - 1], Counter())["/".join(parts[: level - 1])] += 1
    return inner


def _join_named(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(names[:MAX_NAMED])}{more}"


def _other_folders(name: str, split_parts: int, class_level: int) -> str:
    """The folders of an image's path but those of its split and its class, joined by /."""
    parts = name.split("/")[split_parts:-1]
    return "/".join(parts[: class_level - 1] + parts[class_level:])


def _no_images_message(folder: Path, loose: int, left_out: _SkippedEntries, may_be_class: bool) -> str:
    if left_out.class_level > 1:
        return (
            f"no pictures found in class folders of {folder}: {CLASS_LEVEL} {left_out.class_level} looks for them "
            f"{left_out.class_level} folders deep. Leave it out where the class is the first folder."
        )
    if loose and left_out.manifests:
        files = ", ".join(path.name for path in left_out.manifests[:3])
        return (
            f"{folder} holds {format_count(loose, 'picture')} but no class folders; their labels seem to stand in "
            f"{files}. {left_out.manifest_command()}"
        )
    if loose:
        return (
            f"{folder} holds {format_count(loose, 'picture')} but no class folders. Put the pictures of each class "
            "into a folder with the name of the class, or write a manifest: a CSV file with the columns path and "
            f"label.{_parent_folder_hint(folder) if may_be_class else ''}"
        )
    unread = left_out.describe_unread()
    return (
        f"no pictures found in {folder}; expected one folder per class holding {ACCEPTED_FORMATS}."
        f"{unread and f' It holds {unread}'}"
    )


def _parent_folder_hint(folder: Path) -> str:
    """A hint where the folder seems to be one class of several; else empty."""
    try:
        beside = [path for path in folder.resolve().parent.iterdir() if path.is_dir() and not path.samefile(folder)]
        if not any(file.suffix.lower() in IMAGE_EXTENSIONS for path in beside for file in path.iterdir()):
            return ""
    except OSError:  # a folder that cannot be listed gives no hint
        return ""
    return f" If it is one class of several, give the folder above it: {folder.resolve().parent}"


def _check_linked_folders(folder: Path, names: list[str], consequence: str) -> None:
    """Refuse two names for one folder, of which one must be a link."""
    seen = {os.path.realpath(folder): "."}
    for name in names:
        place = os.path.realpath(folder / name)
        if place in seen:
            raise DataError(
                f"{name!r} and {seen[place]!r} in {folder} are one folder by a link: {consequence}. Keep one."
            )
        seen[place] = name


def _check_links_inside_root(root: Path, links: list[str]) -> None:
    """Refuse links that lead out of the root."""
    real = os.path.join(os.path.realpath(root), "")
    outside = [name for name in links if not os.path.realpath(root / name).startswith(real)]
    if outside:
        them = f"{format_count(len(outside), 'link')} in {root} lead" if len(outside) > 1 else f"A link in {root} leads"
        raise DataError(
            f"{them} out of it, such as {outside[0]!r} to {os.path.realpath(root / outside[0])}. If what lies there is "
            "meant to be used, say --data.allow_outside_root true."
        )


def _check_split_classes(
    root: Path, classes: tuple[str, ...], images: dict[str, Folders], left_out: _SkippedEntries
) -> None:
    if len(classes) == 1 and left_out.manifests:
        raise DataError(
            f"{root} has only one folder with pictures, {classes[0]!r}; their labels seem to stand in "
            f"{left_out.manifests[0].name} beside it. {left_out.manifest_command()}"
        )
    if len(classes) == 1 and (workbook := left_out.find_workbook()):
        raise DataError(
            f"{root} has only one folder with pictures, {classes[0]!r}; their labels seem to stand in {workbook} "
            f"beside it, a workbook, which is not read: {CSV_HINT}."
        )
    for split, folders in images.items():
        unknown = [name for name, files in folders.items() if name not in classes and files]
        if unknown:
            names = ", ".join(f"{name!r} ({format_count(len(folders[name]), 'picture')})" for name in unknown)
            raise DataError(
                f"{split} of {root} has classes that train does not have: {names}. "
                "A model cannot learn them; add them to train, or remove or rename them."
                f"{advise_anomaly(str(root)) if len(classes) == 1 else ''}"
            )
        for name in [name for name in folders if name not in classes]:
            del folders[name]


def to_class_name(folder_name: str) -> str:
    """The name of the class of a class folder: valid UTF-8, with accents as one letter each."""
    return unicodedata.normalize("NFC", _to_printable_name(folder_name))


def _to_printable_name(name: str) -> str:
    """A file name as valid UTF-8; other bytes become escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
