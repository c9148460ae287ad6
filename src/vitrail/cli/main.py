"""`vitrail VERB ...`: find the verb, run it, and turn whatever goes wrong into one sentence and an exit code.

Nothing heavy is imported here; a command imports what it needs when it runs.
"""

from __future__ import annotations

import difflib
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from ..errors import ResourceError, UsageError, VitrailError, escape_unprintable
from ..runtime import is_out_of_memory
from .arguments import HELP_FLAGS, Command, format_help_page, format_overview, parse_command
from .commands.bench import Bench
from .commands.check import Check
from .commands.convert import Convert
from .commands.doctor import Doctor
from .commands.embed import Embed
from .commands.evaluate import Evaluate
from .commands.explain import Explain
from .commands.export import Export
from .commands.inspect import Inspect
from .commands.predict import Predict
from .commands.report import Report
from .commands.serve import Serve
from .commands.train import Train

COMMANDS: dict[str, type[Command]] = {
    "train": Train,
    "evaluate": Evaluate,
    "predict": Predict,
    "embed": Embed,
    "explain": Explain,
    "inspect": Inspect,
    "export": Export,
    "serve": Serve,
    "convert": Convert,
    "report": Report,
    "check": Check,
    "bench": Bench,
    "doctor": Doctor,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and give its exit code; errors.py lists them."""
    words = list(sys.argv[1:] if argv is None else argv)
    _replace_missing_streams()
    watched = sys.stdout.isatty()
    try:
        code = _run_command(words)
        sys.stdout.flush()  # so that a reader who has gone is noticed here
    except (Exception, KeyboardInterrupt) as error:
        code = 0 if _is_output_closed(error, watched) else _print_failure(error, "--debug" in words)
    _flush_streams()
    return code


def _is_output_closed(error: BaseException, was_terminal: bool) -> bool:
    """Whether it is that nobody reads the output any more: `| head` has seen enough, or the terminal was closed."""
    hung_up = isinstance(error, OSError) and error.errno == errno.EIO and was_terminal and not sys.stdout.isatty()
    return hung_up or isinstance(error, BrokenPipeError)


def _print_failure(error: BaseException, debug: bool) -> int:
    """Say what went wrong, to whom still listens; the exit code."""
    message, code = describe_failure(error)
    with suppress(OSError):  # Ctrl-C has ended `| tee`, too, or the disk of `2>` is full
        if debug:
            traceback.print_exception(error)
        print(f"vitrail: {message}", file=sys.stderr, flush=True)
    return code


def _replace_missing_streams() -> None:
    """Write nowhere where the caller has closed a stream, as `2>&-` does: Python then has none."""
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _flush_streams() -> None:
    """Let Python end with the exit code, and not with 120, where nobody takes any more what its streams still hold."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run_command(words: list[str]) -> int:
    if not words or words[0] in HELP_FLAGS:
        print(format_overview(COMMANDS))
        return 0
    verb, *rest = words
    if verb == "--version":
        from importlib.metadata import version

        print(f"vitrail {version('vitrail')}")
        return 0
    if verb not in COMMANDS:
        near = difflib.get_close_matches(verb, COMMANDS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"The verbs are {', '.join(COMMANDS)}."
        raise UsageError(f"There is no verb {verb!r}. {hint}")
    if any(word in HELP_FLAGS for word in rest[: _find_end_of_flags(rest)]):
        print(format_help_page(verb, COMMANDS[verb]))
        return 0
    return parse_command(COMMANDS[verb], rest).run()


def _find_end_of_flags(words: list[str]) -> int:
    return words.index("--") if "--" in words else len(words)


if __name__ == "__main__":
    sys.exit(main())


# Whatever went wrong as one sentence for a person and one number for a script.

INTERRUPTED_EXIT_CODE = 130
DISK_ERRORS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "permission is missing",
    errno.EPERM: "permission is missing",
}


class CommandFailure(NamedTuple):
    """What is printed, and the exit code."""

    message: str
    code: int


def describe_failure(error: BaseException) -> CommandFailure:
    """The sentence and the exit code of an exception."""
    if isinstance(error, VitrailError):
        return CommandFailure(escape_unprintable(" ".join(str(error).split("\n"))), error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return CommandFailure("Interrupted; nothing was saved yet.", INTERRUPTED_EXIT_CODE)
    if is_out_of_memory(error):
        return CommandFailure(
            "The memory is full. Use a smaller --recipe.batch_size, --image-size or model, or close other programs.",
            ResourceError.exit_code,
        )
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        where = f" at {error.filename}" if error.filename else ""
        return CommandFailure(f"Cannot go on{where}: {DISK_ERRORS[error.errno]}.", ResourceError.exit_code)
    said = " ".join(str(error).split())[:200].rstrip(".")
    return CommandFailure(
        f"Something went wrong inside Vitrail that nobody foresaw: {type(error).__name__}{': ' * bool(said)}{said}. "
        "Run the same command with --debug and report what it prints.",
        VitrailError.exit_code,
    )
