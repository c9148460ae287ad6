"""`vitrail VERB ...`: find the verb, run it, and turn whatever goes wrong into one sentence and an exit code.

Nothing heavy is imported here; a command imports what it needs when it runs.
"""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Sequence

from ..errors import UsageError
from .arguments import HELP, Command, parse
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
from .failures import failure
from .help import overview, page

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
    try:
        code = _run(words)
        sys.stdout.flush()  # so that a reader who has gone is noticed here
        return code
    except BrokenPipeError:  # `| head` has seen enough
        _write_nowhere()
        return 0
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in words:
            traceback.print_exc()
        message, code = failure(error)
        try:
            print(f"vitrail: {message}", file=sys.stderr, flush=True)
        except BrokenPipeError:  # Ctrl-C has ended `| tee`, too
            _write_nowhere()
        return code


def _write_nowhere() -> None:
    """Let Python end in peace when nobody reads its streams any more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def _run(words: list[str]) -> int:
    if not words or words[0] in HELP:
        print(overview(COMMANDS))
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
    if any(word in HELP for word in rest[: _end_of_flags(rest)]):
        print(page(verb, COMMANDS[verb]))
        return 0
    return parse(COMMANDS[verb], rest).run()


def _end_of_flags(words: list[str]) -> int:
    return words.index("--") if "--" in words else len(words)


if __name__ == "__main__":
    sys.exit(main())
