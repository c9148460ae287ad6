"""Whatever went wrong as one sentence for a person and one number for a script."""

from __future__ import annotations

import errno
from typing import NamedTuple

from ..errors import ResourceError, VitrailError, printable
from ..runtime import memory_is_full

INTERRUPTED = 130
DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "permission is missing",
    errno.EPERM: "permission is missing",
}


class Failure(NamedTuple):
    """What is printed, and the exit code."""

    message: str
    code: int


def failure(error: BaseException) -> Failure:
    """The sentence and the exit code of an exception."""
    if isinstance(error, VitrailError):
        return Failure(printable(" ".join(str(error).split("\n"))), error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return Failure("Interrupted; nothing was saved yet.", INTERRUPTED)
    if memory_is_full(error):
        return Failure(
            "The memory is full. Use a smaller --recipe.batch, --image-size or model, or close other programs.",
            ResourceError.exit_code,
        )
    if isinstance(error, OSError) and error.errno in DISK:
        where = f" at {error.filename}" if error.filename else ""
        return Failure(f"Cannot go on{where}: {DISK[error.errno]}.", ResourceError.exit_code)
    said = " ".join(str(error).split())[:200].rstrip(".")
    return Failure(
        f"Something went wrong inside Vitrail that nobody foresaw: {type(error).__name__}{': ' * bool(said)}{said}. "
        "Run the same command with --debug and report what it prints.",
        VitrailError.exit_code,
    )
