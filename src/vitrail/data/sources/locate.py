"""Where the pictures that a manifest names lie: inside one folder, unless a person allows more, each looked for once.

Folders are listed, files are not asked after one by one, so that a million names take seconds. Names are judged alike
on every system: what leads out of the folder on Windows is refused on Linux too.
"""

from __future__ import annotations

import os
import posixpath
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..decoding.endings import ENDINGS
from ..labels.coded import Cell, text_of
from ..settings import DataSettings
from ..texts import Texts

FIRST = 20  # missing pictures that are named
DEPTH = 2  # folders below the root that are searched for names without a folder
ALLOW = "If you trust the manifest, say --data.allow_outside_root true."

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|(file|data|http|https):", re.IGNORECASE)
_UNUSUAL = re.compile(
    r"^[\\/~]|^[A-Za-z]:|^[A-Za-z][A-Za-z0-9+.-]+:|(?:^|[\\/])\.\.?(?:[\\/]|$)|[\\/]{2}|\0|^$"
)  # all that is worth a second look


@dataclass(frozen=True)
class Located:
    """Where each picture lies, as names below the root or, where that is allowed, full names."""

    names: Texts
    missing: NDArray[np.int64]
    """Rows whose picture is not there."""
    notes: tuple[str, ...] = ()


def locate(root: Path, cells: Sequence[Cell], settings: DataSettings, where: Callable[[int], str]) -> Located:
    """Find every picture below `root`; names without folder or ending are looked for one or two folders deep.

    Args:
        cells: the column of names.
        where: how messages name a row, such as "films.csv, line 17".

    Raises:
        DataError: a name leads out of the root, is an address or is empty; none of the pictures is there; or a name
            without a folder fits several files.
    """
    root = root.absolute()  # "." says little in a message
    folders: dict[str, int] = {}
    homes = array("q")
    judge = _Judge(root, settings, where)

    def usual() -> Iterator[str]:
        for row, cell in enumerate(cells):
            name = text_of(cell).strip()
            plain = judge.settle(row, name) if _UNUSUAL.search(name) else name
            homes.append(folders.setdefault(plain.rpartition("/")[0], len(folders)))
            yield plain

    settled = Texts(usual())
    lost = _lost(root, settled, list(folders), np.frombuffer(homes, np.int64), judge)
    if not len(lost):
        return Located(settled, lost)
    found, notes = _search(root, settled, lost, judge)
    lost = np.array([row for row in lost.tolist() if row not in found], dtype=np.int64)
    if len(lost) == len(settled):
        raise DataError(
            f"None of the {len(settled):,} pictures is there: {settled[0]!r} ({where(0)}) was looked for in {root} and "
            f"the folders below it. Say where the pictures are with --data-root FOLDER."
        )
    if found:
        settled = Texts(found.get(row, name) for row, name in enumerate(settled))
    if len(lost):
        named = ", ".join(f"{settled[row]!r} ({where(row)})" for row in lost[:FIRST].tolist())
        more = f" and {len(lost) - FIRST:,} more" if len(lost) > FIRST else ""
        notes.append(f"{len(lost):,} of {len(settled):,} pictures are missing in {root}: {named}{more}.")
    return Located(settled, lost, tuple(notes))


class _Judge:
    """Which names and places a manifest may use."""

    def __init__(self, root: Path, settings: DataSettings, where: Callable[[int], str]):
        self._root = root
        self._real = os.path.realpath(root)
        self._free = settings.allow_outside_root
        self._where = where

    def settle(self, row: int, name: str) -> str:
        """An unusual name in its usual form, or an error that says what is wrong with it."""
        if not name:
            raise DataError(f"{self._where(row)}: no picture is named.")
        if "\0" in name:
            raise DataError(f"{self._where(row)}: {name!r} holds a NUL character, which no file's name can.")
        if _ADDRESS.match(name):
            raise DataError(
                f"{self._where(row)}: {name!r} is an address, and pictures are read from files only. Fetch them first, "
                "and write their names below the manifest's folder."
            )
        if self._free:
            return os.path.expanduser(name) if name.startswith("~") else posixpath.normpath(name)
        parts = re.split(r"[\\/]", name)
        for base in {os.path.abspath(self._root), self._real}:
            if name.startswith(base + "/") and ".." not in parts:
                return posixpath.normpath(name[len(base) + 1 :])
        if parts[0] in ("", "~") or name.startswith("~") or re.match("[A-Za-z]:", name) or ".." in parts:
            raise DataError(
                f"{self._where(row)}: {name!r} leads out of {self._root}, where the pictures of a manifest must lie. "
                f"{ALLOW}"
            )
        return posixpath.normpath(name)

    def confine(self, row: int, name: str) -> None:
        """Refuse a file or folder that a link leads out of the root."""
        if self._free:
            return
        real = os.path.realpath(os.path.join(self._root, name))
        if real != self._real and not real.startswith(os.path.join(self._real, "")):
            raise DataError(
                f"{self._where(row)}: {name!r} is or lies behind a link that leads out of {self._root}, to {real}. "
                f"{ALLOW}"
            )

    def ambiguous(self, row: int, name: str, files: Sequence[str]) -> None:
        """Refuse a name that fits several files."""
        others = f" and {len(files) - 2:,} more" if len(files) > 2 else ""
        raise DataError(
            f"{self._where(row)}: {name!r} may mean {files[0]!r} or {files[1]!r}{others}. Write the folder and the "
            "ending into the manifest, or name the pictures' folder with --data-root."
        )


def _lost(root: Path, names: Texts, folders: list[str], homes: NDArray[np.int64], judge: _Judge) -> NDArray[np.int64]:
    """Rows whose file is not in the listing of its folder, one folder after another."""
    order = np.argsort(homes, kind="stable")
    ends = np.cumsum(np.bincount(homes, minlength=len(folders)))
    lost: list[int] = []
    for folder, rows in zip(folders, np.split(order, ends[:-1]), strict=True):
        there, links = listing(os.path.join(root, folder))
        if there:
            judge.confine(int(rows[0]), folder)
        for row in rows.tolist():
            base = names[row].rpartition("/")[2]
            if base in links:
                judge.confine(row, names[row])
            if base not in there:
                lost.append(row)
    return np.sort(np.array(lost, dtype=np.int64))


def listing(folder: str) -> tuple[set[str], set[str]]:
    """Names in a folder, and those of them that are links; none if there is no such folder or it cannot be listed."""
    there, links = set(), set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                there.add(entry.name)
                if entry.is_symlink():
                    links.add(entry.name)
    except OSError:
        return set(), set()
    return there, links


def _search(root: Path, names: Texts, lost: NDArray[np.int64], judge: _Judge) -> tuple[dict[int, str], list[str]]:
    """Second looks at names whose file is not where they say: their files' names, and a note for each way it was
    found by."""
    found: dict[int, str] = {}
    ways: Counter[str] = Counter()
    wanted = {names[row].replace("\\", "/") for row in lost.tolist()}
    files = _files(root, wanted)
    for row in lost.tolist():
        name = names[row]
        plain = name.replace("\\", "/")
        fitting = files.get(plain, [])
        if len(lost) < len(names):  # where others are at their place, one of that name elsewhere may be its mask
            fitting = [file for file in fitting if file.count("/") == plain.count("/")]
        if len(fitting) > 1:
            judge.ambiguous(row, name, fitting)
        if fitting:
            found[row] = fitting[0]
            ways[_way(name, fitting[0])] += 1
        elif os.path.lexists(os.path.join(root, plain)):  # on a disk that does not tell a from A
            found[row] = plain
        if row in found:
            judge.confine(row, found[row])
    return found, [f"{count:,} pictures {way}." for way, count in ways.items()]


def _way(name: str, file: str) -> str:
    """How a picture was found, told of several."""
    if "\\" in name:
        return "have names with \\ for /"
    ending = os.path.splitext(file)[1]
    folder = name.count("/") < file.count("/")
    if name.endswith(ending):
        return "were found in folders that their names do not say"
    return f"were found with the ending {ending}{', and in folders,' if folder else ''} that their names do not say"


def _files(root: Path, wanted: set[str]) -> dict[str, list[str]]:
    """Files below the root by those of their names that are wanted: with or without folder, with or without ending."""
    found: dict[str, list[str]] = {}
    waiting = [("", 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                inside = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except OSError:
            continue
        for base, is_folder in inside:
            if base.startswith("."):
                continue
            file = folder + base
            if is_folder:
                waiting += [(file + "/", depth + 1)] if depth < DEPTH else []
                continue
            keys = {file, base}
            if os.path.splitext(base)[1].lower() in ENDINGS:
                keys |= {os.path.splitext(file)[0], os.path.splitext(base)[0]}
            for key in keys & wanted:
                found.setdefault(key, []).append(file)
    return found
