"""Entry point of the command line: find the command, run it, and turn errors into one sentence and an exit code.

Nothing heavy is imported here: commands import what they need when they run (tests/end_to_end/test_help_time.py).
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ..caller_state import replace_missing_streams
from ..config.library_names import suggest_name
from ..errors import MachineWarning, ResourceError, UsageError, VitrailError, escape_unprintable
from ..runtime import is_out_of_memory
from ..services.progress import announce_slow_import
from ..version import __version__
from .arguments import HELP_FLAGS, Command, format_help_page, format_overview, parse_command
from .commands.bench import Bench
from .commands.check import Check
from .commands.convert import Convert
from .commands.decide import Decide
from .commands.doctor import Doctor
from .commands.embed import Embed
from .commands.evaluate import Evaluate
from .commands.explain import Explain
from .commands.export import Export
from .commands.inspect import Inspect
from .commands.predict import Predict
from .commands.report import Report
from .commands.serve import Serve
from .commands.teach import Teach
from .commands.train import Train
from .commands.tune import Tune
from .commands.watch import Watch

COMMANDS: dict[str, type[Command]] = {
    "train": Train,
    "tune": Tune,
    "evaluate": Evaluate,
    "decide": Decide,
    "teach": Teach,
    "predict": Predict,
    "embed": Embed,
    "explain": Explain,
    "inspect": Inspect,
    "export": Export,
    "serve": Serve,
    "watch": Watch,
    "convert": Convert,
    "report": Report,
    "check": Check,
    "bench": Bench,
    "doctor": Doctor,
}
# fmt: off
OTHER_VERBS = {
    **dict.fromkeys(("fit", "finetune", "fine-tune", "learn", "pretrain", "resume"), "train"),
    **dict.fromkeys(("eval", "test", "val", "validate", "score", "metrics", "compare"), "evaluate"),
    **dict.fromkeys(("infer", "inference", "classify", "answer"), "predict"),
    **dict.fromkeys(("features", "extract", "encode", "similar", "search"), "embed"),
    **dict.fromkeys(("saliency", "gradcam", "heatmap", "attention", "visualize", "visualise"), "explain"),
    **dict.fromkeys(("info", "summary", "describe", "show", "models", "list"), "inspect"),
    **dict.fromkeys(("deploy", "onnx", "push", "publish", "upload"), "export"),
    **dict.fromkeys(("api", "server", "demo"), "serve"),
    **dict.fromkeys(("sweep", "hpo", "optimize", "optimise"), "tune"),
    **dict.fromkeys(("data", "lint", "verify", "clean"), "check"),
    **dict.fromkeys(("threshold", "thresholds", "calibrate"), "decide"),
    **dict.fromkeys(("benchmark", "speed", "profile"), "bench"),
    **dict.fromkeys(("monitor", "drift"), "watch"),
    **dict.fromkeys(("env", "settings", "system", "diagnose"), "doctor"),
}
"""Verb of other programs -> ours of that meaning."""
# fmt: on
VERSION_FLAGS = ("--version", "-V")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; errors.py lists them."""
    words = list(sys.argv[1:] if argv is None else argv)
    with replace_missing_streams():
        was_terminal = sys.stdout.isatty()
        try:
            with _print_machine_warnings():
                code = _run_command(words)
            sys.stdout.flush()  # raises here if the reader has closed the pipe
        except (Exception, KeyboardInterrupt) as error:
            code = 0 if _is_output_closed(error, was_terminal) else _print_failure(error, "--debug" in words)
        _flush_streams()
    return code


def _is_output_closed(error: BaseException, was_terminal: bool) -> bool:
    """Whether standard output was closed by its reader: a pipe such as `| head`, or a closed terminal."""
    hung_up = isinstance(error, OSError) and error.errno == errno.EIO and was_terminal and not sys.stdout.isatty()
    return hung_up or isinstance(error, BrokenPipeError)


def _print_failure(error: BaseException, debug: bool) -> int:
    """Print an error to standard error and return the exit code."""
    message, code = describe_failure(error)
    with suppress(OSError):  # Ctrl-C has ended `| tee` too, or the disk of `2>` is full
        if debug:
            traceback.print_exception(error)
        print(f"vitrail: {message}", file=sys.stderr, flush=True)
    return code


@contextmanager
def _print_machine_warnings() -> Iterator[None]:
    """Print a `MachineWarning` as a line of the command, every other warning as Python does."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", MachineWarning)
        print_other = warnings.showwarning

        def print_warning(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if not issubclass(category, MachineWarning):
                print_other(message, category, *place)
                return
            with suppress(OSError):
                print(f"vitrail: {escape_unprintable(str(message))}", file=sys.stderr, flush=True)

        warnings.showwarning = print_warning  # type: ignore[assignment]
        yield


def _flush_streams() -> None:
    """Flush the streams; a closed one is redirected, or Python would exit with 120 instead of our code."""
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
    if verb == "help":
        return _run_command([*rest[:1], HELP_FLAGS[0]])
    if verb in (*VERSION_FLAGS, "version") or rest in ([flag] for flag in VERSION_FLAGS):
        print(f"vitrail {__version__}")
        return 0
    if verb not in COMMANDS:
        meant = f" It is called {OTHER_VERBS[verb]} here." if verb in OTHER_VERBS else suggest_name(verb, COMMANDS)
        everything = f" The verbs are {', '.join(COMMANDS)}."
        raise UsageError(f"There is no verb {verb!r}.{meant or everything}")
    end = rest.index("--") if "--" in rest else len(rest)
    if any(word in HELP_FLAGS for word in rest[:end]):
        print(format_help_page(verb, COMMANDS[verb]))
        return 0
    try:
        os.getcwd()
    except OSError as error:  # libraries end the process over it, with a sentence about something else
        raise ResourceError(
            "The folder in which this command was started is gone. Change to one that exists."
        ) from error
    command = parse_command(COMMANDS[verb], rest)
    with announce_slow_import("torch", "Loading PyTorch"):
        return command.run()


# -- Errors as one sentence and an exit code.

DISK_ERRORS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "permission is missing",
    errno.EPERM: "permission is missing",
}


class CommandFailure(NamedTuple):
    """The printed message and the exit code."""

    message: str
    code: int


def describe_failure(error: BaseException) -> CommandFailure:
    """The message and the exit code for an exception."""
    if isinstance(error, VitrailError):
        return CommandFailure(escape_unprintable(" ".join(str(error).split("\n"))), error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return CommandFailure("Interrupted; nothing was saved yet.", 130)
    if is_out_of_memory(error):
        return CommandFailure(
            "The memory is full. Use a smaller --recipe.batch_size, --image-size or model, or close other programs.",
            ResourceError.exit_code,
        )
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        where = f" at {error.filename}" if error.filename else ""
        return CommandFailure(f"Cannot go on{where}: {DISK_ERRORS[error.errno]}.", ResourceError.exit_code)
    text = " ".join(str(error).split())[:200].rstrip(".")
    return CommandFailure(
        f"Something went wrong inside Vitrail that nobody foresaw: {type(error).__name__}{': ' * bool(text)}{text}. "
        "Run the same command with --debug and report what it prints.",
        VitrailError.exit_code,
    )


if __name__ == "__main__":
    sys.exit(main())
