"""`vitrail check`: look at every picture of a source, train nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ...errors import DataError
from ..arguments import Command


@dataclass(frozen=True, kw_only=True)
class Check(Command):
    """Read every picture of a source once and tell what is wrong; the exit code is 3 if a training would stop at it.

    vitrail check flowers/
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("source",)
    DOTTED: ClassVar[str | None] = None

    source: str
    """digits, fashion-mnist, mnist, or a folder of class folders."""
    data_root: Path | None = None
    """Folder that holds the files of fashion-mnist or mnist."""
    json: bool = False
    """Print the findings as JSON."""
    debug: bool = False
    """Show tracebacks."""

    def run(self) -> int:
        """Open the source, part it as a training would, look at every picture."""
        from ...data.check import check
        from ...spec import ImageSpec
        from ...train.dataset import open_dataset
        from ...train.plan import DataSettings
        from ..output import print_json

        settings = DataSettings(source=self.source, data_root=str(self.data_root or ""))
        dataset = open_dataset(settings, seed=0)
        findings = check(dataset.source, dataset.splits, ImageSpec())
        if self.json:
            print_json({**findings.to_json(), "stops_a_training": bool(findings.bad)})
        else:
            print(findings.table())
            if findings.bad:
                print("These pictures stop a training. Mend or remove them, or leave them out with --skip-bad.")
        return DataError.exit_code if findings.bad else 0
