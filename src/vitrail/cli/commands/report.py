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
    from ...report.dossier import Dossier


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Build report.html of a run again, from its stored predictions; no model is asked.

    With --for it begins with a page for one reader: false alarms, misses, why a picture is left unanswered, the worst
    failures, what an answer is worth at your prevalence, thresholds to choose from, known limits.

      vitrail report runs/20261121-140500-digits-vit_femto_patch2_8
      vitrail report runs/films --for radiology --prevalence nodule=0.02,effusion=0.1
      vitrail report runs/films --for dossier --verify
      vitrail report runs/films --plots
      vitrail report runs/cells --for inspection --positive defective --prevalence 0.01 --parts-per-minute 180 --hours 8
    """

    POSITIONAL = ("run_folder",)

    run_folder: Path
    """The run folder."""
    for_: Literal["radiology", "inspection", "dossier"] | None = None
    """Whose questions the first page answers; dossier: the whole page is one for reviewers and authorities, with an
    index by TRIPOD+AI, CLAIM 2024 and EU AI Act Annex IV; what only you know goes into dossier.toml beside it."""
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
        from ...report.page import build_report, write_plots
        from ...report.verification import verify_run

        request = self._make_request()
        verified = verify_run(self.run_folder) if self.verify else None
        dossier = self._build_dossier() if self.for_ == "dossier" else None
        path = build_report(self.run_folder, request) if dossier is None else dossier.page
        plots = write_plots(self.run_folder) if self.plots else []
        if self.json:
            extra: dict[str, object] = {"plots": [str(one) for one in plots]} if self.plots else {}
            extra |= {} if verified is None else {"verification": str(verified.path), "sha256": verified.sha256}
            if dossier is not None:
                items = {name: counts._asdict() for name, counts in dossier.counts.items()}
                extra |= {"answers": str(dossier.answers), "open_questions": dossier.open_questions, "items": items}
            print_json({"report": str(path), **extra})
            return 0
        print(path)
        if dossier is not None:
            for name, counts in dossier.counts.items():
                rest = f", {counts.inapplicable} not of this field" if counts.inapplicable else ""
                print(f"  {name}: {counts.answered} items answered, {counts.partly} in part, {counts.open} open{rest}")
            print(f"{dossier.answers}  ({format_count(dossier.open_questions, 'question')} open for its authors)")
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
        return 0

    def _build_dossier(self) -> Dossier:
        from ...report.dossier import build_dossier
        from ...services.evaluation import evaluate_stored_subgroups

        return build_dossier(self.run_folder, evaluate_stored_subgroups(self.run_folder))

    def _make_request(self) -> AudienceRequest | None:
        from ...report.audience import AudienceRequest

        if self.for_ is not None and self.for_ != "dossier":
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
