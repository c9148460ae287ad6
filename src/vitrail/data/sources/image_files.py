"""Search folders for image files: one rule for training, check, evaluation, prediction and pre-training."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import DataError
from ...formatting import format_count
from ..decoding.decoded_image import (
    ACCEPTED_FORMATS,
    IMAGE_EXTENSIONS,
    MISNAMED_EXTENSIONS,
    SIGNATURE_BYTES,
    describe_unread_pictures,
    sniff_format,
)
from ..source import natural_sort_key

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


@dataclass
class SkippedFiles:
    """Entries of folders that are not images, counted for the notes, and the links among the images."""

    root: Path
    system_files: int = 0
    extension_counts: Counter[str] = field(default_factory=Counter)
    extension_examples: dict[str, str] = field(default_factory=dict)
    """The first file with each of these extensions, by its path relative to the root."""
    links: list[str] = field(default_factory=list)
    """Links that are used, by their paths relative to the root."""
    linked_folders: list[str] = field(default_factory=list)
    """Links to folders that are not followed, likewise."""

    def describe_files(self) -> str:
        """Files of other kinds with their number, examples and what to do about them; empty if there are none."""
        if not self.extension_counts:
            return ""
        kinds = ", ".join(
            f"{count:,} x {ending} ({'such as ' if count > 1 else ''}{self.extension_examples[ending]})"
            for ending, count in self.extension_counts.most_common(5)
        )
        unread = self.describe_unread()
        others = f"{format_count(self.extension_counts.total(), 'file')} of other kinds: {kinds}"
        return f"{others}. Pictures are {ACCEPTED_FORMATS}.{unread and f' {unread}'}"

    def describe_unread(self) -> str:
        """Pictures of kinds that are not read, and videos, with what to do about them; empty if there are none."""
        return describe_unread_pictures(self.extension_counts)

    def describe_linked_folders(self) -> str:
        """Links to folders that were not followed; empty if there are none."""
        if not self.linked_folders:
            return ""
        example = f"{len(self.linked_folders):,}, such as {self.root / self.linked_folders[0]}"
        return f"Links to folders are not followed: {example}. Name what they lead to by itself."


def find_images(folder: Path, skipped: SkippedFiles) -> list[str]:
    """Images in a folder and all folders below it, by their paths relative to it.

    Those of a folder come before those of the folders in it, all in natural order. Links to images are followed, links
    to folders are not: so the search always ends, and finds no image twice.

    Args:
        skipped: counts what is left out; its root is the folder or lies above it.

    Raises:
        DataError: a folder cannot be listed.
    """
    images: list[str] = []
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        here = folder / inside
        folders, files, links = list_folder(here, skipped)
        above = _relative_prefix(here, skipped.root)
        for name in select_images(here, files, skipped):
            images.append(f"{inside}{name}")
            skipped.links += [f"{above}{name}"] * (name in links)
        skipped.linked_folders += [f"{above}{name}" for name in folders if name in links]
        waiting += [f"{inside}{name}/" for name in reversed(folders) if name not in links]
    return images


def list_folder(folder: Path, skipped: SkippedFiles) -> tuple[list[str], list[str], set[str]]:
    """Names of folders and of other entries in natural order, without system files, and the links among them.

    Raises:
        DataError: the folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError as error:
        raise DataError(f"{folder} cannot be listed ({(error.strerror or str(error)).lower()}).") from error
    kept = [entry for entry in listed if not (entry.name.startswith(".") or entry.name in SYSTEM_FILES)]
    skipped.system_files += len(listed) - len(kept)
    kept.sort(key=lambda entry: natural_sort_key(entry.name))
    folders = [entry.name for entry in kept if _is_folder(entry)]
    files = [entry.name for entry in kept if not _is_folder(entry)]
    return folders, files, {entry.name for entry in kept if entry.is_symlink()}


def select_images(folder: Path, files: list[str], skipped: SkippedFiles) -> list[str]:
    """Files with an image extension, whatever their contents, and those with an image's signature and no extension.

    A signature also decides about the extensions of formats that are not read but given to other files, such as .heic.
    """
    images = []
    for file in files:
        ending = os.path.splitext(file)[1].lower()
        by_signature = not ending or ending in MISNAMED_EXTENSIONS
        if ending in IMAGE_EXTENSIONS or (by_signature and _has_image_signature(folder / file)):
            images.append(file)
        else:
            skipped.extension_counts[ending or "no ending"] += 1
            example = f"{_relative_prefix(folder, skipped.root)}{file}"
            skipped.extension_examples.setdefault(ending or "no ending", example)
    return images


def _relative_prefix(folder: Path, root: Path) -> str:
    """The beginning of the names of a folder's files relative to the root; empty for the root itself."""
    inside = folder.relative_to(root).as_posix()
    return "" if inside == "." else f"{inside}/"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))


def _has_image_signature(file: Path) -> bool:
    if not file.is_file():  # a pipe would block
        return False
    try:
        with file.open("rb") as opened:
            return sniff_format(opened.read(SIGNATURE_BYTES)) is not None
    except OSError:
        return False
