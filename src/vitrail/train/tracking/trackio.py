"""trackio: a local database with a page, or a Space if its environment variables say so."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout

from .tracker import Filed, Tracker


class Trackio(Tracker):
    """It speaks on standard output, which is for answers; here it is sent to standard error."""

    def __init__(self, filed: Filed):
        import trackio

        self.known_as = filed.known_as or filed.name
        with redirect_stdout(sys.stderr):
            self._run = trackio.init(
                project=filed.project or "vitrail", name=self.known_as, config=dict(filed.settings), resume="allow"
            )

    def record(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        """Log one row."""
        self._run.log(dict(numbers), step=step)

    def conclude(self, step: int, figures: Mapping[str, float]) -> None:
        """Log the figures at the last step."""
        self._run.log(dict(figures), step=step)

    def close(self, whole: bool) -> None:
        """Wait until the database has all rows."""
        with redirect_stdout(sys.stderr):
            self._run.finish()
