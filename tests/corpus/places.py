"""Kind 64: what has the name of a picture and is no plain file."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .writing import encoded, photo

SAYS = {
    "pipe.png": r"is a pipe, socket or device, expected a picture file",
    "socket.png": r"is a pipe, socket or device, expected a picture file",
    "device.png": r"is a pipe, socket or device, expected a picture file",
    "folder.png": r"is a folder, expected a picture file",
    "dangling.png": r"is a link to .*nowhere\.png, which does not exist",
    "circle.png": r"cannot be read \(too many levels of symbolic links\)",
    "closed.png": r"cannot be read \(permission denied\)",
}
"""What refuses each; a link to a picture elsewhere is read, and it is the source's business to allow it."""


def build(folder: Path) -> None:
    """Make them all, and `linked.png`, which leads to a picture outside the folder."""
    os.mkfifo(folder / "pipe.png")
    _bind(folder / "socket.png")
    (folder / "device.png").symlink_to("/dev/zero")
    (folder / "folder.png").mkdir()
    (folder / "dangling.png").symlink_to(folder / "nowhere.png")
    (folder / "circle.png").symlink_to(folder / "circle.png")
    (folder / "closed.png").write_bytes(encoded(photo(), "PNG"))
    (folder / "closed.png").chmod(0)
    outside = folder.parent / f"{folder.name} outside.png"
    outside.write_bytes(encoded(photo(), "PNG"))
    (folder / "linked.png").symlink_to(outside)


def _bind(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # paths of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of the administrator, who may read every file."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)
