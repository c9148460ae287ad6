"""Flush files to disk, explain write errors, and crash points for tests."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import MachineWarning, ResourceError


def flush(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on disk (fsync).

    A file system that cannot do that for folders (SMB, shared folders of virtual machines, some of FUSE) is named once
    in a warning: the file itself is written, but its new name may be lost in a power cut.

    Raises:
        OSError: a file cannot be flushed, or the disk fails.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_FLUSH or not path.is_dir():
            raise
        _warn_unflushed(path, error)


_CANNOT_FLUSH = {
    errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EISDIR, errno.ENOTTY,
    errno.EACCES, errno.EPERM,  # a folder that may be written to and not read, and every folder on Windows
}  # fmt: skip
"""Errors by which a system refuses to flush a folder; EIO and a full disk are none of them."""
_warned_devices: set[int] = set()


def _warn_unflushed(folder: Path, error: OSError) -> None:
    """Warn once for each file system."""
    device = folder.stat().st_dev
    if device not in _warned_devices:
        _warned_devices.add(device)
        message = (
            f"The file system of {folder} cannot flush folders ({error.strerror}). Files are written and flushed all "
            "the same, but a power cut within seconds may lose the newest of them."
        )
        warnings.warn(message, MachineWarning, stacklevel=3)


@contextmanager
def resource_errors(path: Path) -> Iterator[None]:
    """Translate an OSError while `path` is written into a ResourceError.

    Other errors, and errors about files outside the folder of `path`, are raised unchanged.
    """
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0)
        if reason is None or not _is_below(error.filename, path.parent):
            raise
        raise ResourceError(f"Cannot write {path}: {reason}{_describe_free_space(path)}.") from error


def check_writable(path: Path) -> None:
    """Check before any work that a file can be written at a path, by a temporary one in the nearest folder that exists.

    Raises:
        ResourceError: permission is missing, the disk is read-only, a file stands in the place of a folder.
    """
    nearest = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    trial = nearest / f".tmp-{secrets.token_hex(4)}"
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        trial.touch()
        trial.unlink()
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, (error.strerror or str(error)).lower())
        raise ResourceError(f"Cannot write {path}: {reason}. Nothing was done yet.") from error


_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your disk quota is used up",
    errno.EFBIG: "the file is larger than is allowed here",
    errno.EROFS: "the disk is read-only; choose another place",
    errno.EACCES: "permission is missing; choose another place or change the folder's owner",
    errno.EPERM: "permission is missing; choose another place or change the folder's owner",
    errno.EIO: "the disk reports an input/output error; it may be failing",
    errno.ENAMETOOLONG: "the name is too long for this disk; choose a shorter one",
    errno.ENOENT: "no folder can be made there; choose another place",
    errno.EISDIR: "a folder of that name stands there; choose another name",
    errno.EEXIST: "a file stands where a folder is expected; choose another place",
    errno.ENOTDIR: "a file stands where a folder is expected; choose another place",
}


def _is_below(name: object, folder: Path) -> bool:
    """Whether an error is about this folder; one without a name (a write to an open file) counts as such."""
    return name is None or Path(os.path.abspath(str(name))).is_relative_to(os.path.abspath(folder))


def _describe_free_space(path: Path) -> str:
    """The free space of the disk for `path`; empty if it is unknown."""
    there = next((parent for parent in path.absolute().parents if parent.is_dir()), None)
    if there is None:
        return ""
    try:
        return f" ({shutil.disk_usage(there).free / 2**20:,.0f} MiB free in {there})"
    except OSError:
        return ""


# -- Crash points at which a test kills the process like a power cut: `VITRAIL_DIE_AT="renamed LATEST"`.
# A number after the name ("renamed LATEST 3") waits for the third time. The points are at every boundary of a durable
# write; `tests/end_to_end` crashes at all of them.

ENV_VARIABLE = "VITRAIL_DIE_AT"


def crash_if_requested(point: str, name: str) -> None:
    """Kill this process if the environment variable names this point; `name` is the file or folder being written."""
    words = os.environ.get(ENV_VARIABLE, "").split()
    if words[:2] != [point, name]:
        return
    times = int(words[2]) if len(words) > 2 else 1
    if times > 1:
        os.environ[ENV_VARIABLE] = f"{point} {name} {times - 1}"
        return
    os.kill(os.getpid(), signal.SIGKILL)
