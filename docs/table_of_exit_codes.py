"""Write the table of exit codes into docs/exit-codes.md, from the exceptions themselves."""

from __future__ import annotations

import inspect
from pathlib import Path

from markers import fill

from vitrail import errors

PAGE = Path(__file__).parent / "exit-codes.md"


def main() -> None:
    """Replace what stands between the markers."""
    fill(PAGE, "exit codes", table())


def table() -> str:
    """One row a code, with the exception that it stands for."""
    rows = [
        f"| {_codes(kind)} | `{kind.__name__}` | {(inspect.getdoc(kind) or '').partition(chr(10))[0]} |"
        for kind in sorted(errors.VitrailError.__subclasses__(), key=lambda kind: _codes(kind).rjust(30))
    ]
    return "\n".join(["| code | exception | what it means |", "|---|---|---|", "| 0 | | It was done. |", *rows])


def _codes(kind: type[errors.VitrailError]) -> str:
    return "129, 130 or 143" if kind is errors.InterruptedRun else str(kind.exit_code)


if __name__ == "__main__":
    main()
