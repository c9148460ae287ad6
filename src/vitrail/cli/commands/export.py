"""`vitrail export`: a model as a file that answers as it does, proved before it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..arguments import Command

if TYPE_CHECKING:
    from ...doors.exporting import Exported


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write a model for other programs, after comparing its answers with what was written.

    A pt2 file (torch.export) reads uint8 pictures [B, H, W, C] and gives calibrated probabilities and decisions; the
    other targets are those of `vitrail convert`.

      vitrail export RUN --to pt2
      vitrail export RUN --to pt2 --resize --out flowers.pt2
      vitrail export RUN --to transformers
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("model",)
    DOTTED: ClassVar[str | None] = None

    model: str
    """A run folder, a bundle, or a published classifier that names its classes."""
    to: str = "pt2"
    """pt2 (torch.export), timm, transformers, torchvision, google-npz or bundle."""
    out: Path | None = None
    """The file or folder to make; by default in the run's exports/, or beside another model."""
    resize: bool = False
    """Let a pt2 file take pictures of any size and resize them itself: decisions equal, scores within 0.01."""
    json: bool = False
    """Print the outcome as JSON."""
    debug: bool = False
    """Show tracebacks."""

    def run(self) -> int:
        """Write, compare, say where it lies."""
        from ...doors.exporting import export
        from ..output import print_json

        exported = export(self.model, self.to, self.out, self.resize)
        if self.json:
            print_json(self._facts(exported))
            return 0
        print(f"wrote  {exported.path}")
        for note in exported.notes:
            print(f"       {note}")
        return 0

    def _facts(self, exported: Exported) -> dict[str, Any]:
        return {
            "model": self.model,
            "to": exported.to,
            "path": str(exported.path),
            "largest_difference": exported.difference,
            "pictures": exported.pictures,
            "changed": exported.changed,
            "notes": list(exported.notes),
        }
