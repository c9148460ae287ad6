"""Where an estimator's run lies: in the user's folder, or in a temporary one that goes when the estimator goes."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

LEFT_BEHIND = "checkpoints"
"""A folder that no pickle carries: it continues a training, and answers need none of it."""


class Folder:
    """A place for one run. A temporary one is removed with this object, by the process that made it.

    Args:
        path: the user's own folder, which stays; None makes a temporary one.
    """

    def __init__(self, path: str | Path | None = None):
        if path is not None:
            self.path = Path(path)
            return
        above = Path(tempfile.mkdtemp(prefix="vitrail-"))
        self.path = above / "run"
        weakref.finalize(self, _remove, above, os.getpid())


def carried(run: Path) -> dict[str, bytes]:
    """The files of a run folder that a pickle takes along, by their names in it."""
    files = (path for path in sorted(run.rglob("*")) if path.is_file() and not path.is_symlink())
    names = {path: path.relative_to(run) for path in files}
    return {name.as_posix(): path.read_bytes() for path, name in names.items() if name.parts[0] != LEFT_BEHIND}


def unpacked(files: dict[str, bytes]) -> Folder:
    """A temporary run folder with these files."""
    folder = Folder()
    for name, data in files.items():
        path = folder.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def _remove(folder: Path, owner: int) -> None:
    """What a process inherited by forking belongs to its parent, which may still answer with it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
