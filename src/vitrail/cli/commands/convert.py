"""`vitrail convert`: a model from any known layout into another library's files, proved before they are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...services import progress
from ..arguments import Command, print_json

if TYPE_CHECKING:
    from ...services.conversion import ConversionResult
    from ...services.open_model import ModelInfo


@dataclass(frozen=True, kw_only=True)
class Convert(Command):
    """Write a model as the files of another library, after reading them back and comparing the answers.

    MODEL is a weights file or folder of any known layout, hf:OWNER/NAME, a bundle, or a run folder.

      vitrail convert weights.npz --to bundle
      vitrail convert hf:facebook/dinov2-small --to timm --out dinov2-timm
      vitrail convert RUN --to transformers
      vitrail convert old.pth --to bundle --heads 12 --model.activation QuickGELU
    """

    POSITIONAL = ("model",)
    DOTTED = "settings"
    SECTIONS = ("model",)

    model: str
    """A weights file or folder, hf:OWNER/NAME, a bundle or a run folder."""
    to: str = "bundle"
    """bundle, timm, transformers, torchvision or google-npz."""
    out: Path | None = None
    """The folder or file to make; by default beside MODEL, called after it and the target."""
    layout: str | None = None
    """Layout of the weights; recognised if it is not given."""
    match: str | None = None
    """Whose numerics, where libraries differ: original, timm or transformers."""
    heads: int | None = None
    """Attention heads, where the weights cannot say."""
    image_size: str | None = None
    """Pixels, 64 or HEIGHTxWIDTH; another size than the weights' own stretches their positions."""
    channels: int | None = None
    """Channels of the pictures; another count than the weights' own needs --channels-policy."""
    channels_policy: str | None = None
    """How to adapt to another count of channels: sum, mean, tile, or the weights' channel for each new one, 0,0,2."""
    pool: str | None = None
    """class, mean, attention, class+mean or mean-all, where the weights cannot say."""
    outputs: int | None = None
    """Another number than the weights' own puts a fresh head on the model, 0 none."""
    network: str | None = None
    """Which of several networks in a training's file, such as encoder of I-JEPA; or the published name of a bare file
    of timm, such as vit_small_patch16_rope_224."""
    json: bool = False
    """Print the outcome as JSON."""
    settings: tuple[tuple[str, str], ...] = ()
    """Any other field of the architecture that the weights cannot say, such as --model.activation QuickGELU."""

    def run(self) -> int:
        """Convert the model and print what was read and written."""
        from ...services import conversion
        from ...services.exporting import measure_losses
        from ...services.open_model import NO_OPTIONS, find_model, parse_model_options

        named = conversion.name_format(self.to, self.out, conversion.CONVERSION_TARGETS)
        to = conversion.parse_conversion_target(named.to)
        out = named.out or conversion.default_conversion_path(self.model, to)
        conversion.check_conversion_path(out, to)
        options = parse_model_options(
            layout=self.layout,
            match=self.match,
            heads=self.heads,
            image_size=self.image_size,
            channels=self.channels,
            pool=self.pool,
            channels_policy=self.channels_policy,
            network=self.network,
            outputs=self.outputs,
            settings=self.settings,
        )
        progress.print_notes([named.note] if named.note else [])
        model_info = find_model(self.model, options, quiet=True)
        if not self.json:
            self._print_source(model_info)
        converted = conversion.convert_model(model_info, to, out)
        if model_info.bundle is not None and options == NO_OPTIONS:
            losses = measure_losses(self.model, model_info, converted.model, to)
            converted = replace(converted, notes=(*converted.notes, *losses))
        if self.json:
            print_json(self._to_json(model_info, converted))
            return 0
        print(f"wrote  {converted.path}: {converted.audit.format_summary()}")
        print(
            f"       read back and compared on {converted.num_images} random pictures: the outputs differ by at most "
            f"{converted.difference:.2g}"
        )
        for note in converted.notes:
            print(f"       {note}")
        return 0

    def _print_source(self, model_info: ModelInfo) -> None:
        """Print what the model is, its licence and notes, before anything is written."""
        from ...services.model_summary import format_licence

        if model_info.audit is not None:
            print(f"read   {self.model}: {model_info.audit.format_summary()}")
        if licence := format_licence(model_info):
            print(f"       {licence}")
        for note in model_info.notes:
            print(f"       {note}")

    def _to_json(self, model_info: ModelInfo, converted: ConversionResult) -> dict[str, Any]:
        return {
            "model": self.model,
            "kind": model_info.kind,
            "layout": model_info.audit.layout if model_info.audit is not None else None,
            "licence": model_info.licence,
            "notes": [*model_info.notes, *converted.notes],
            "to": converted.to,
            "path": str(converted.path),
            "largest_difference": converted.difference,
            "pictures": converted.num_images,
        }
