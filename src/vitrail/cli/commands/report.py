"""`vitrail report`: build a run's report again from what it has stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...errors import UsageError
from ...formatting import format_count
from ..arguments import Command, print_json

if TYPE_CHECKING:
    from ...report.audience import AudienceRequest


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Build report.html of a run again, from its stored predictions; no model is asked.

    With --for it begins with a page for one reader: false alarms, misses, why a picture is left unanswered, the worst
    failures, what an answer is worth at your prevalence, thresholds to choose from, known limits.

      vitrail report runs/20261121-140500-digits-vit_femto_patch2_8
      vitrail report runs/films --for radiology --prevalence nodule=0.02,effusion=0.1
      vitrail report runs/films --claim
      vitrail report runs/films --plots
      vitrail report runs/films --verify
      vitrail report runs/cells --for inspection --positive defective --prevalence 0.01 --parts-per-minute 180 --hours 8
    """

    POSITIONAL = ("run_folder",)

    run_folder: Path
    """The run folder."""
    for_: Literal["radiology", "inspection"] | None = None
    """Whose questions the first page answers."""
    positive: str = ""
    """The only class or label that the first page speaks of, such as defect; by default all labels, all classes of
    several, and of two the one that decisions.positive named, or the rarer one."""
    prevalence: str = ""
    """The share that has it where the model will be used, such as 0.02, or NAME=0.02,OTHER=0.1; by default that of the
    held-out pictures."""
    parts_per_minute: float | None = None
    """Pace of an inspection, so that failures are counted in a shift; else in 1,000 parts."""
    hours: float | None = None
    """Length of a shift."""
    claim: bool = False
    """Also write claim.md, an appendix for papers: the 42 items of the checklist CLAIM, answered from the run; what
    only you know goes into claim.toml beside it."""
    plots: bool = False
    """Also write ROC and precision-recall curves, net benefit, reliability and confusion matrix into figures/, each as
    SVG and PNG."""
    verify: bool = False
    """Compute every stored figure again from the stored predictions, and write verification.json with them and the
    SHA-256 of the model, its predictions and its plan; exit code 4 where a figure does not follow."""
    json: bool = False
    """Print the paths as JSON."""

    def run(self) -> int:
        """Build the report and print its path."""
        from ...report import claim
        from ...report.page import build_report, write_plots
        from ...report.verification import verify_run

        verified = verify_run(self.run_folder) if self.verify else None
        path = build_report(self.run_folder, self._make_request())
        plots = write_plots(self.run_folder) if self.plots else []
        appendix = claim.build_claim_appendix(self.run_folder) if self.claim else None
        if self.json:
            extra: dict[str, object] = (
                {} if appendix is None else {"claim": str(appendix.page), "claim_open": appendix.num_open}
            )
            extra |= {"plots": [str(one) for one in plots]} if self.plots else {}
            extra |= {} if verified is None else {"verification": str(verified.path), "sha256": verified.sha256}
            print_json({"report": str(path), **extra})
            return 0
        print(path)
        if verified is not None:
            print(
                f"{verified.path}  ({verified.figures:,} figures of {' and '.join(verified.splits)} follow from the "
                f"stored predictions, largest difference {verified.largest:.2g}; SHA-256 of "
                f"{format_count(len(verified.files), 'file')}: {verified.sha256})"
            )
            if verified.changed:
                print(f"Changed since it was verified before: {', '.join(verified.changed)}.")
        if plots:
            print(f"{plots[0].parent}  ({len(plots) // 2} figures, each as SVG and PNG)")
        if appendix is not None:
            print(
                f"{appendix.page}  ({appendix.num_run_answers} items from the run, {appendix.num_author_answers} from "
                f"{claim.AUTHOR_ANSWERS_FILE}, {appendix.num_open} open)"
            )
        return 0

    def _make_request(self) -> AudienceRequest | None:
        from ...report.audience import AudienceRequest

        if self.for_ is not None:
            return AudienceRequest(
                audience=self.for_,
                positive=self.positive,
                prevalence=self.prevalence,
                parts_per_minute=self.parts_per_minute,
                hours=self.hours,
            )
        given = {
            "--positive": self.positive,
            "--prevalence": self.prevalence,
            "--parts-per-minute": self.parts_per_minute,
            "--hours": self.hours,
        }
        if flags := [flag for flag, value in given.items() if value not in ("", None)]:
            raise UsageError(f"{flags[0]} is for a first page. Give --for radiology or --for inspection too.")
        return None
