"""From what a person types after `vitrail predict MODEL` to a list of image files."""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..data.decoding.decoded_image import IMAGE_EXTENSIONS
from ..errors import DataError


def expand_image_paths(arguments: Sequence[str]) -> list[Path]:
    """Images in the order named; those of one folder or pattern in natural order (2.png before 10.png).

    Each argument is a file (taken whatever its ending), a folder (searched to the bottom, hidden files left out), a
    pattern such as "films/**/*.png", `@list.txt` (one path per line, from that file's folder), or `-` for such lines,
    or lines that end in NUL, on standard input. An image that is named twice is there twice.

    Raises:
        DataError: a path that does not exist, a folder, pattern or list without images, or a tar shard.
    """
    found: list[Path] = []
    for argument in arguments:
        found.extend(_expand_argument(argument))
    _reject_shards(found)
    return found


def _reject_shards(paths: Iterable[Path]) -> None:
    shard = next((path for path in paths if path.suffix.lower() == ".tar"), None)
    if shard is not None:
        raise DataError(
            f"{shard} is a tar file, and predict takes pictures in files of their own. Unpack it into a folder (mkdir "
            f"pictures && tar -xf {shard} -C pictures) and name that; for a shard with labels there is also `vitrail "
            f"evaluate MODEL {shard}`."
        )


def _expand_argument(argument: str) -> list[Path]:
    path = Path(argument)
    if argument == "-":
        return _parse_path_list(sys.stdin.read(), Path(), "standard input")
    if path.is_dir():
        return _list_folder(path)
    if path.exists():
        return [path]
    if argument.startswith("@"):
        return _read_list_file(Path(argument[1:]))
    if glob.has_magic(argument):
        return _match_pattern(argument)
    raise DataError(f"There is no picture, folder, pattern or @list at {argument}. Check the path.")


def _list_folder(folder: Path) -> list[Path]:
    inside = (path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_EXTENSIONS and path.is_file())
    found = _sort_naturally(path for path in inside if not _is_hidden(path.relative_to(folder)))
    if not found:
        raise DataError(
            f"The folder {folder} must hold pictures ({', '.join(sorted(IMAGE_EXTENSIONS))}). It holds none."
        )
    return found


def _match_pattern(pattern: str) -> list[Path]:
    found = _sort_naturally(path for path in map(Path, glob.iglob(pattern, recursive=True)) if path.is_file())
    if not found:
        raise DataError(f"The pattern {pattern} must match at least one file. It matches none.")
    return found


def _read_list_file(path: Path) -> list[Path]:
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as problem:
        raise DataError(f"A list of pictures is needed at {path}. {problem.strerror or problem}.") from problem
    return _parse_path_list(text, path.parent, str(path))


def _parse_path_list(text: str, folder: Path, where: str) -> list[Path]:
    lines = text.split("\0") if "\0" in text else text.splitlines()
    found = [folder / line for line in lines if line.strip()]
    if not found:
        raise DataError(f"The list on {where} must name at least one picture. It names none.")
    missing = next((path for path in found if not path.is_file()), None)
    if missing is not None:
        raise DataError(f"The list on {where} names {missing}, which is not a file. One path per line, please.")
    return found


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _sort_naturally(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: [(text, int(n or 0)) for text, n in re.findall(r"(\D*)(\d*)", str(path))])
