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
from ..decoding.decoded_image import ACCEPTED_FORMATS, IMAGE_EXTENSIONS, describe_unread_pictures, sniff_format
from ..settings import DataSettings, advise_anomaly, check_supported_settings
from ..source import MANIFEST_EXTENSIONS, SPLIT_NAMES, SPLITS, Source, natural_sort_key, spelling_key

SYSTEM_FILES = frozenset(
    {
        "__MACOSX",
        "Thumbs.db",
        "desktop.ini",
        "$RECYCLE.BIN",
        "System Volume Information",
        "lost+found",
        "@eaDir",
        "#recycle",
    }
)
"""What Windows, macOS, Linux and Synology put beside a person's files; the last two hold thumbnails and waste."""


def open_class_folders(root: Path, settings: DataSettings) -> Source:
    """Open every image one level below a class folder; the class is the folder's name, kept as text.

    Where there is a train/ folder, it and val/ (valid/, validation/, dev/) and test/ are official splits, and the
    classes are those of train. Classes and files are in natural order: 1, 2, 10. Hidden files and system files of file
    managers are left out and counted in the notes. Contents are not read, except of files without an extension. Links
    inside the root are followed, those that lead out of it only with `settings.allow_outside_root`.

    Raises:
        UsageError: the settings name columns, which folders do not have.
        DataError: no images, no class folders, a class that train does not have, class names that differ only in
            case, spacing or width, two folders that are the same by a link, or links that lead out of the root.
    """
    _check_settings(root, settings)
    left_out = _SkippedFiles(root, keep_empty=settings.keep_empty, manifests=_find_manifests(root))
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
    return Source(
        name=_to_printable_name(root.resolve().name) or "root",
        task="anomaly" if settings.task == "anomaly" else "classification",
        classes=classes,
        images=RelativePaths(root, CompactStrings(names)),
        targets=np.concatenate(targets),
        ids=CompactStrings(map(_to_printable_name, names)),
        splits=splits,
        notes=left_out.to_notes(),
    )


Folders = dict[str, list[str]]  # class name -> paths of its images relative to the root
NO_SPLIT = "whole"  # the key of images that belong to no official split


@dataclass
class _SkippedFiles:
    """Entries of class folders that are not images, counted for the notes."""

    root: Path
    keep_empty: bool = False
    manifests: tuple[Path, ...] = ()
    system_files: int = 0
    nested_folders: int = 0
    extension_counts: Counter[str] = field(default_factory=Counter)
    extension_examples: dict[str, str] = field(default_factory=dict)
    """The first file with each of these extensions, by its path relative to the root."""
    sentences: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    """Links that are used, by their paths relative to the root."""

    def to_notes(self) -> tuple[str, ...]:
        notes = list(self.sentences)
        if self.system_files:
            notes.append(f"Left out {self.system_files:,} hidden or system files and folders.")
        if self.extension_counts:
            kinds = ", ".join(
                f"{count:,} x {ending} ({'such as ' if count > 1 else ''}{self.extension_examples[ending]})"
                for ending, count in self.extension_counts.most_common(5)
            )
            others = f"{format_count(self.extension_counts.total(), 'file')} of other kinds: {kinds}"
            unread = describe_unread_pictures(self.extension_counts)
            notes.append(f"Left out {others}. Pictures are {ACCEPTED_FORMATS}.{unread and f' {unread}'}")
        if self.nested_folders:
            folders = format_count(self.nested_folders, "folder")
            notes.append(f"Left out {folders} inside class folders; classes are one level deep.")
        if self.manifests:
            notes.append(f"{self.manifests[0].name} is not read, as there are class folders. {self.manifest_command()}")
        return tuple(notes)

    def manifest_command(self) -> str:
        """A hint with the command that reads a manifest in the folder."""
        commands = " or ".join(f"vitrail train {shlex.quote(str(path))}" for path in self.manifests[:3])
        return f"To learn from that file: {commands}"


def _check_settings(root: Path, settings: DataSettings) -> None:
    columns = {
        "--group": settings.group,
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


def _list_splits(root: Path, left_out: _SkippedFiles) -> dict[str, Folders]:
    """Images per class, by official split in the order train, val, test; or all under NO_SPLIT."""
    folders, files, links = _list_folder(root, _SkippedFiles(root))
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
    beside = [folder for folder in folders if folder not in splits.values()]
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
    inside = {folder: _list_folder(root / folder, _SkippedFiles(root)) for folder in folders}
    flat = {
        folder
        for folder, (nested, files, _) in inside.items()
        if not nested and _select_images(root / folder, files, _SkippedFiles(root))
    }
    labels_elsewhere = manifests or any(_find_manifests(root / folder) for folder in named)
    return flat.issuperset(named) and len(flat) > len(named) and not labels_elsewhere


def _list_classes(root: Path, inside: str, left_out: _SkippedFiles, required: bool) -> Folders:
    """Class folders below root/inside with their images; empty ones, and images outside them, go to the notes."""
    folder = root / inside
    folders, files, links = _list_folder(folder, left_out)
    loose = len(_select_images(folder, files, left_out))
    _check_linked_folders(folder, folders, "the same pictures would have two classes")
    classes: Folders = {}
    for each in folders:
        nested, within, linked = _list_folder(folder / each, left_out)
        left_out.nested_folders += len(nested)
        images = _select_images(folder / each, within, left_out)
        name = unicodedata.normalize("NFC", _to_printable_name(each))
        for other in classes:
            if spelling_key(other) == spelling_key(name):
                raise DataError(
                    f"{folder} has class folders {other!r} and {name!r}, which differ only in case, spacing, width or "
                    "accents' encoding. Put their pictures together or rename one."
                )
        if images or left_out.keep_empty:
            classes[name] = [f"{inside}{each}/{image}" for image in images]
            left_out.links += [f"{inside}{each}"] * (each in links)
            left_out.links += [f"{inside}{each}/{image}" for image in images if image in linked]
        else:
            left_out.sentences.append(
                f"Left out class folder {str(folder / each)!r}: it holds no pictures. --data.keep_empty true keeps it."
            )
    if not any(classes.values()):
        sentence = _no_images_message(folder, folders, loose, left_out, may_be_class=not inside)
        if required:
            raise DataError(sentence)
        split = SPLIT_NAMES[inside.rstrip("/").lower()]
        left_out.sentences.append(f"There is no official {split} split: {sentence}")
        return {}
    if loose:
        left_out.sentences.append(
            f"Left out {format_count(loose, 'picture')} beside the class folders of {str(folder)!r}."
        )
    return classes


def _no_images_message(
    folder: Path, folders: list[str], loose: int, left_out: _SkippedFiles, may_be_class: bool
) -> str:
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
    down = len(folders) == 1 and left_out.nested_folders
    hint = f" Is the data one level further down, in {folder / folders[0]}?" if down else ""
    unread = describe_unread_pictures(left_out.extension_counts)
    return (
        f"no pictures found in {folder}; expected one folder per class holding {ACCEPTED_FORMATS}."
        f"{unread and f' It holds {unread}'}{hint}"
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
        them = f"{len(outside):,} links in {root} lead" if len(outside) > 1 else f"A link in {root} leads"
        raise DataError(
            f"{them} out of it, such as {outside[0]!r} to {os.path.realpath(root / outside[0])}. If what lies there is "
            "meant to be used, say --data.allow_outside_root true."
        )


def _check_split_classes(
    root: Path, classes: tuple[str, ...], images: dict[str, Folders], left_out: _SkippedFiles
) -> None:
    if len(classes) == 1 and left_out.manifests:
        raise DataError(
            f"{root} has only one folder with pictures, {classes[0]!r}; their labels seem to stand in "
            f"{left_out.manifests[0].name} beside it. {left_out.manifest_command()}"
        )
    for split, folders in images.items():
        unknown = [name for name, files in folders.items() if name not in classes and files]
        if unknown:
            names = ", ".join(f"{name!r} ({len(folders[name]):,} pictures)" for name in unknown)
            raise DataError(
                f"{split} of {root} has classes that train does not have: {names}. "
                "A model cannot learn them; add them to train, or remove or rename them."
                f"{advise_anomaly(str(root)) if len(classes) == 1 else ''}"
            )
        for name in [name for name in folders if name not in classes]:
            del folders[name]


def _list_folder(folder: Path, left_out: _SkippedFiles) -> tuple[list[str], list[str], set[str]]:
    """Names of folders and of other entries in natural order, without system files, and the links among them."""
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError as error:
        raise DataError(f"{folder} cannot be listed ({(error.strerror or str(error)).lower()}).") from error
    kept = [entry for entry in listed if not (entry.name.startswith(".") or entry.name in SYSTEM_FILES)]
    left_out.system_files += len(listed) - len(kept)
    kept.sort(key=lambda entry: natural_sort_key(entry.name))
    folders = [entry.name for entry in kept if _is_folder(entry)]
    files = [entry.name for entry in kept if not _is_folder(entry)]
    return folders, files, {entry.name for entry in kept if entry.is_symlink()}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))


def _select_images(folder: Path, files: list[str], left_out: _SkippedFiles) -> list[str]:
    """Files with an image extension, whatever their contents, or without extension but with an image's signature."""
    images = []
    for file in files:
        ending = os.path.splitext(file)[1].lower()
        if ending in IMAGE_EXTENSIONS or (not ending and _has_image_signature(folder / file)):
            images.append(file)
        else:
            example = (folder / file).relative_to(left_out.root).as_posix()
            left_out.extension_counts[ending or "no ending"] += 1
            left_out.extension_examples.setdefault(ending or "no ending", example)
    return images


def _has_image_signature(file: Path) -> bool:
    if not file.is_file():  # a pipe would block
        return False
    try:
        with file.open("rb") as opened:
            return sniff_format(opened.read(132)) is not None  # DICOM has its signature after 128 bytes
    except OSError:
        return False


def _to_printable_name(name: str) -> str:
    """A file name as valid UTF-8; other bytes become escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
