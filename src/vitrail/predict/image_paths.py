"""Expand the arguments of `vitrail predict MODEL` to a list of image files."""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..data.decoding.decoded_image import IMAGE_EXTENSIONS
from ..data.source import MANIFEST_EXTENSIONS
from ..data.sources.image_files import SkippedFiles, find_images
from ..data.sources.manifest import read_image_groups
from ..errors import DataError, UsageError, escape_unprintable


def expand_image_paths(arguments: Sequence[str]) -> list[Path]:
    """Images in the order named; those of one folder or pattern in natural order (2.png before 10.png).

    Each argument is a file (taken whatever its ending), a folder (searched to the bottom, hidden files left out, other
    kinds of pictures counted on standard error), a pattern such as "films/**/*.png", `@list.txt` (one path per line,
    from that file's folder), or `-` for such lines, or lines that end in NUL, on standard input. An image that is named
    twice is there twice.

    Raises:
        DataError: a path that does not exist, a folder, pattern or list without images, or a tar shard.
    """
    paths = [path for argument in arguments for path in _expand_argument(argument)]
    shard = next((path for path in paths if path.suffix.lower() == ".tar"), None)
    if shard is not None:
        raise DataError(
            f"{shard} is a tar file, and predict takes pictures in files of their own. Unpack it into a folder (mkdir "
            f"pictures && tar -xf {shard} -C pictures) and name that; for a shard with labels there is also `vitrail "
            f"evaluate MODEL {shard}`."
        )
    return paths


FOLDER_GROUPS = "folder"
"""The word for the folder of a picture as its case."""


def expand_case_paths(arguments: Sequence[str], group: str) -> tuple[list[Path], list[str], tuple[str, ...]]:
    """Images as `expand_image_paths`, the case of each, and notes.

    Args:
        group: "folder" for the folder that an image is in, else the column of the one manifest that is named.

    Raises:
        UsageError: a column of something else than one manifest.
        DataError: as `expand_image_paths`, or the manifest cannot be read.
    """
    if group == FOLDER_GROUPS:
        paths = expand_image_paths(arguments)
        return paths, [str(path.parent) for path in paths], ()
    if len(arguments) != 1 or Path(arguments[0]).suffix.lower() not in MANIFEST_EXTENSIONS:
        raise UsageError(
            f"--group {group} is a column of one manifest, and PATHS name something else. Give the manifest alone, or "
            f"--group {FOLDER_GROUPS} for a case in each folder."
        )
    paths, groups, notes = read_image_groups(Path(arguments[0]), group)
    return paths, groups.tolist(), notes


def list_folder_images(path: Path) -> list[Path]:
    """The images of a folder as `find_images` finds them; what is left out is counted on standard error.

    Raises:
        DataError: the folder has none, or a folder in it cannot be listed.
    """
    skipped = SkippedFiles(path)
    images = [path / name for name in find_images(path, skipped)]
    if not images:
        raise DataError(
            f"The folder {path} must hold pictures ({', '.join(sorted(IMAGE_EXTENSIONS))}). It holds "
            f"{skipped.describe_unread() or skipped.describe_files() or 'none.'}"
        )
    files = skipped.describe_files()
    for text in (files and f"Left out of {path}: {files}", skipped.describe_linked_folders()):
        if text:
            sys.stderr.write(escape_unprintable(f"{text}\n"))
    return images


def _expand_argument(argument: str) -> list[Path]:
    path = Path(argument)
    if argument == "-":
        words = sys.stdin.buffer.read().decode("utf-8-sig", "surrogateescape")
        return _parse_path_list(words, Path(), "standard input")
    if path.is_dir():
        return list_folder_images(path)
    if path.exists():
        return [path]
    if argument.startswith("@"):
        list_file = Path(argument[1:])
        try:
            text = list_file.read_text(encoding="utf-8-sig", errors="surrogateescape")
        except OSError as problem:
            raise DataError(f"A list of pictures is needed at {list_file}. {problem.strerror or problem}.") from problem
        return _parse_path_list(text, list_file.parent, str(list_file))
    if glob.has_magic(argument):
        matches = map(Path, glob.iglob(argument, recursive=True))
        images = _sort_naturally(match for match in matches if match.is_file())
        if not images:
            raise DataError(f"The pattern {argument} must match at least one file. It matches none.")
        return images
    raise DataError(f"There is no picture, folder, pattern or @list at {argument}. Check the path.")


def _parse_path_list(text: str, folder: Path, where: str) -> list[Path]:
    lines = text.split("\0") if "\0" in text else text.splitlines()
    paths = [folder / line for line in lines if line.strip()]
    if not paths:
        raise DataError(f"The list on {where} must name at least one picture. It names none.")
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:
        raise DataError(f"The list on {where} names {missing}, which is not a file. One path per line, please.")
    return paths


def _sort_naturally(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: [(text, int(n or 0)) for text, n in re.findall(r"(\D*)(\d*)", str(path))])
