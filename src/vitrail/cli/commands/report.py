"""`vitrail report`: build a run's report again from what it has stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..arguments import Command


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Build report.html of a run again, from its stored predictions; no model is asked.

    vitrail report runs/20261121-140500-digits-automatic
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("run_folder",)
    DOTTED: ClassVar[str | None] = None

    run_folder: Path
    """The run folder."""
    json: bool = False
    """Print the path as JSON."""
    debug: bool = False
    """Show tracebacks."""

    def run(self) -> int:
        """Build it and say where it is."""
        from ...report.page import build
        from ..output import print_json

        path = build(self.run_folder)
        if self.json:
            print_json({"report": str(path)})
        else:
            print(path)
        return 0
