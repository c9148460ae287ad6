"""`vitrail inspect`: what a model is, what a file holds, what one picture goes through."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import UsageError
from ..arguments import Command

if TYPE_CHECKING:
    from ...doors.models import Found


@dataclass(frozen=True, kw_only=True)
class Inspect(Command):
    """Tell the sizes, tokens and parameters of a model; with a picture, every step that it takes.

    MODEL is a run folder, a bundle, a named size, or weights that others have written: a file, a folder or
    hf:OWNER/NAME. Of those every tensor is listed, with the numerics, the preprocessing and the licence.

      vitrail inspect xray_vit_patch16_224
      vitrail inspect RUN --walk photo.jpg
      vitrail inspect RUN --figures figures --picture photo.jpg --token 12
      vitrail inspect weights.pt --layout explained --heads 4 --image-size 60x100
      vitrail inspect hf:facebook/dinov2-small --match original
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("model",)
    DOTTED: ClassVar[str | None] = "settings"

    model: str
    """A run folder, a bundle, a weights file or folder, hf:OWNER/NAME, or a name such as vit_tiny_patch16_224."""
    walk: Path | None = None
    """A picture to follow through the model, step by step with its shapes."""
    figures: Path | None = None
    """A folder for three figures: the patch grid, one patch as its strip of numbers, the positions."""
    picture: Path | None = None
    """The picture of the figures; by default a drawn one that comes with Vitrail."""
    token: int = 1
    """The patch that the strip shows, counted from 1 in reading order."""
    cmap: str = "viridis"
    """Matplotlib's name of the colours for pictures of one channel."""
    layout: str | None = None
    """Layout of a weights file, such as timm or google-npz; recognised if it is not given."""
    match: str | None = None
    """Whose numerics, where libraries differ: original, timm or transformers."""
    heads: int | None = None
    """Attention heads, where a weights file cannot say."""
    image_size: str | None = None
    """Pixels, 64 or HEIGHTxWIDTH: of a name, or where a file cannot say, or other than the file's."""
    channels: int | None = None
    """Channels of the pictures: of a name, or, with --channels-policy, other than the file's."""
    channels_policy: str | None = None
    """How to adapt to another count of channels: sum, mean, tile, or the weights' channel for each new one, 0,0,2."""
    pool: str | None = None
    """class, mean, attention or class+mean, where a weights file cannot say."""
    network: str | None = None
    """Which of several networks in a training's file, such as encoder of I-JEPA."""
    allow_nonfinite: bool = False
    """Look at weights that are NaN or infinite, such as a diverged training leaves; they are refused otherwise."""
    json: bool = False
    """Print the facts as JSON."""
    debug: bool = False
    """Show tracebacks."""
    settings: tuple[tuple[str, str], ...] = ()
    """Any other field of the architecture that a file cannot say, such as --model.activation QuickGELU."""

    def run(self) -> int:
        """Find the model and show what was asked."""
        from ...doors.models import find
        from ...doors.saying import said
        from ..output import print_json

        if self.figures is None and (self.picture is not None or self.token != 1):
            raise UsageError("--picture and --token belong to the figures. Say where they go with --figures DIR.")
        words = said(
            layout=self.layout,
            match=self.match,
            heads=self.heads,
            image_size=self.image_size,
            channels=self.channels,
            pool=self.pool,
            channels_policy=self.channels_policy,
            network=self.network,
            settings=self.settings,
            allow_nonfinite=self.allow_nonfinite,
        )
        found = find(self.model, words)
        facts = self._facts(found)
        if self.json:
            print_json(facts)
        else:
            self._print(found, facts)
        return 0

    def _facts(self, found: Found) -> dict[str, Any]:
        """Everything that was asked, as plain values; the figures are drawn on the way."""
        from ...doors.anatomy import anatomy
        from ...doors.provenance import provenance
        from ...explain import walk

        facts: dict[str, Any] = {"model": self.model, "kind": found.kind, **anatomy(found)}
        if found.audit is not None and (found.bundle is None or found.licence or found.notes):
            facts["provenance"] = provenance(found)
        if found.audit is not None and found.bundle is None:
            facts["layout"] = found.audit.layout
            facts["tensors"] = [
                {"name": row.theirs, "shape": list(row.shape), "action": row.action, "ours": row.ours}
                for row in found.audit.rows
            ]
        if self.walk is not None:
            steps = walk.walk(found.model, found.spec, self.walk)
            facts["walk"] = [step._asdict() for step in steps]
        if self.figures is not None:
            facts["figures"] = self._draw(found, self.figures)
        return facts

    def _print(self, found: Found, facts: dict[str, Any]) -> None:
        from ...doors.anatomy import table
        from ...doors.provenance import lines
        from ...explain import walk

        print(table(found, facts))
        if "provenance" in facts:
            print("\n" + "\n".join(lines(found)))
        if "tensors" in facts and found.audit is not None:
            print(f"\n{found.audit.table()}")
        if "walk" in facts:
            print(f"\n{walk.table([walk.Step(**step) for step in facts['walk']])}")
        for path in facts.get("figures", []):
            print(f"wrote {path}")

    def _draw(self, found: Found, folder: Path) -> list[str]:
        """The three figures; a model that knows no places has two."""
        from ...doors.anatomy import seen
        from ...explain import figures, picture, positions

        image = seen(found, picture.PANES if self.picture is None else self.picture)
        patch = found.config.patch
        drawn = {
            "patch-grid.png": figures.patch_grid(image, patch, cmap=self.cmap),
            f"token-{self.token}.png": figures.token_strip(image, patch, self.token, self.cmap),
        }
        if found.config.positions != "none" or found.config.rotary != "none":
            drawn["positions.png"] = positions.positions(found.model, self.cmap)
        for name, figure in drawn.items():
            figures.save(figure, folder / name)
        return [str(folder / name) for name in drawn]
