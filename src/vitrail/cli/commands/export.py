"""`vitrail export`: a model as a file that answers as it does, proved before it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..arguments import Command

if TYPE_CHECKING:
    from ...doors.exporting import Exported


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write a model for other programs, after comparing its answers with what was written.

    An onnx or pt2 file reads uint8 pictures [B, H, W, C] and gives calibrated probabilities and decisions; the other
    targets are those of `vitrail convert`.

      vitrail export RUN --to onnx
      vitrail export RUN --to onnx --resize --out flowers.onnx
      vitrail export RUN --to onnx --precision int8
      vitrail export RUN --to transformers
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("model",)
    DOTTED: ClassVar[str | None] = None

    model: str
    """A run folder, a bundle, or a published classifier that names its classes."""
    to: str = "onnx"
    """onnx, pt2 (torch.export), timm, transformers, torchvision, google-npz or bundle."""
    out: Path | None = None
    """The file or folder to make; by default in the run's exports/, or beside another model."""
    resize: bool = False
    """Let an onnx or pt2 file take pictures of any size and resize them itself: decisions equal, scores within 0.01."""
    precision: Literal["float32", "int8", "bf16", "float16"] = "float32"
    """int8 and float16 for onnx, bf16 and float16 for pt2; kept if 99 % of the decisions are those of float32."""
    calibrate: str | None = None
    """A folder, pattern or @list.txt of pictures that int8 is fitted to; by default training pictures of the run."""
    force: bool = False
    """Keep a file of fewer bits although more than 1 % of its decisions differ from float32."""
    json: bool = False
    """Print the outcome as JSON."""
    debug: bool = False
    """Show tracebacks."""

    def run(self) -> int:
        """Write, compare, say where it lies."""
        from ...doors.exporting import Wish, export
        from ..output import print_json

        wish = Wish(resize=self.resize, precision=self.precision, calibrate=self.calibrate, force=self.force)
        exported = export(self.model, self.to, self.out, wish)
        if self.json:
            print_json(self._facts(exported))
            return 0
        print(f"wrote  {exported.path}")
        for note in exported.notes:
            print(f"       {note}")
        return 0

    def _facts(self, exported: Exported) -> dict[str, Any]:
        agreed = exported.agreement
        smaller = {} if agreed is None else {"agreement": agreed.same, "pictures_per_second": dict(agreed.rates)}
        return {
            "model": self.model,
            "to": exported.to,
            "path": str(exported.path),
            "largest_difference": exported.difference,
            "pictures": exported.pictures,
            "changed": exported.changed,
            **smaller,
            "notes": list(exported.notes),
        }
