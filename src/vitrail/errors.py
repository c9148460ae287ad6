"""The exceptions of Vitrail and their exit codes on the command line.

    VitrailError
    ├── UsageError         2   a wrong argument, setting or combination (also a ValueError)
    ├── DataError          3   images or labels that cannot be used (also a ValueError)
    │   ├── NotAnImageError    bytes of no supported format
    │   ├── TooLargeError      an image beyond a limit on its size or on what it unpacks to
    │   └── NonFiniteError     answers that are NaN or infinite
    ├── DamagedFileError   4   a checkpoint or bundle that is damaged, foreign or not trusted
    ├── ResourceError      5   no disk, memory or permission
    ├── DivergedError      6   training left the finite numbers and could not recover
    ├── WorkerError        7   a worker process died
    ├── PeerError          7   another process of the same training died, or does not answer
    └── InterruptedRun   130   stopped by Ctrl-C (or 143, SIGTERM), saved, and how to resume

A message says what happened, where, why it matters, and what to type. `cli.main` prints it as one sentence and
returns the exit code; a traceback appears only with --debug.
"""

from __future__ import annotations


def escape_unprintable(text: str) -> str:
    """Escape control characters, such as terminal escape sequences in a hostile file name."""
    return "".join(letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text)


class MachineWarning(UserWarning):
    """Something that this machine cannot do and that Vitrail works around; a line of the command on standard error."""


class VitrailError(Exception):
    """Base class; carries the exit code of the command line."""

    exit_code = 1


class UsageError(VitrailError, ValueError):
    """A wrong argument, setting or combination of them."""

    exit_code = 2


class DataError(VitrailError, ValueError):
    """Images or labels that cannot be read or used."""

    exit_code = 3


class NotAnImageError(DataError):
    """Bytes of no supported image format."""


class TooLargeError(DataError):
    """An image beyond a limit on pixels, pieces, frames or texts, refused before it is decoded."""


class NonFiniteError(DataError):
    """Answers that are NaN or infinite, so that nothing can be measured; at the end of a training a DivergedError."""


class DamagedFileError(VitrailError):
    """A checkpoint, bundle or weights file that is damaged, of another kind, or not to be trusted."""

    exit_code = 4


class ResourceError(VitrailError):
    """Disk, memory or permission is missing."""

    exit_code = 5


class DivergedError(VitrailError):
    """Training produced numbers that are not finite and could not go on."""

    exit_code = 6


class WorkerError(VitrailError):
    """A worker process died."""

    exit_code = 7


class PeerError(VitrailError):
    """Another process of the same training died or does not answer, so this one cannot go on."""

    exit_code = 7


class InterruptedRun(VitrailError):
    """The run was stopped from outside, saved what it had, and can be resumed."""

    def __init__(self, message: str, exit_code: int = 130):
        super().__init__(message)
        self.exit_code = exit_code
