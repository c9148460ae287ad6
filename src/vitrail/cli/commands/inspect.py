"""`vitrail inspect`: what a model is, what a file holds, what one picture goes through."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...errors import UsageError
from ...files.disk import check_writable
from ..arguments import Command, print_json

if TYPE_CHECKING:
    from ...services.cost import CostRequest
    from ...services.open_model import ModelInfo


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
      vitrail inspect vit_small_patch16_224 --cost --on h100 --batch 1024 --pictures 1281167 --epochs 90
    """

    POSITIONAL = ("model",)
    DOTTED = "settings"
    SECTIONS = ("model",)

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
    cost: bool = False
    """What training and answers cost: operations, memory, time; the next eight say of what."""
    on: str = "here"
    """here (this machine, measured for some seconds), h100, h200 or a100, by what their makers say."""
    devices: int = 1
    """Devices that train one model together."""
    batch: int = 0
    """Pictures in a step, of all devices together; by default 32 for each CPU, 256 for each GPU."""
    pictures: int = 0
    """Pictures of the data set: how long it takes to answer them, or with --epochs to train on them."""
    epochs: float = 0.0
    """Passes of the training."""
    number_format: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Format of the large products."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Of the training."""
    reached: float | None = None
    """Share of another device's published rate that is reached; 0.35 by default."""
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
    """class, mean, attention, class+mean or mean-all, where a weights file cannot say."""
    network: str | None = None
    """Which of several networks in a training's file, such as encoder of I-JEPA; or the published name of a bare file
    of timm, such as vit_small_patch16_rope_224."""
    allow_nonfinite: bool = False
    """Look at weights that are NaN or infinite, such as a diverged training leaves; they are refused otherwise."""
    json: bool = False
    """Print the facts as JSON."""
    settings: tuple[tuple[str, str], ...] = ()
    """Any other field of the architecture that a file cannot say, such as --model.activation QuickGELU."""

    def run(self) -> int:
        """Find the model and print its facts."""
        from ...services.open_model import find_model, parse_model_options

        if self.figures is None and (self.picture is not None or self.token != 1):
            raise UsageError("--picture and --token belong to the figures. Say where they go with --figures DIR.")
        if self.figures is not None:
            check_writable(self.figures / "patch-grid.png")
        cost_request = self._make_cost_request()
        options = parse_model_options(
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
        model_info = find_model(self.model, options, quiet=True)
        facts = self._collect_facts(model_info, cost_request)
        if self.json:
            print_json(facts)
        else:
            self._print_facts(model_info, facts)
        return 0

    def _collect_facts(self, model_info: ModelInfo, request: CostRequest | None) -> dict[str, Any]:
        """All requested facts as plain values; also draws the figures."""
        from ...explain import trace
        from ...services.model_summary import provenance_to_json, summarize_model

        facts: dict[str, Any] = {"model": self.model, "kind": model_info.kind, **summarize_model(model_info)}
        if model_info.audit is not None and (model_info.bundle is None or model_info.licence or model_info.notes):
            facts["provenance"] = provenance_to_json(model_info)
        if model_info.audit is not None and model_info.bundle is None:
            facts["layout"] = model_info.audit.layout
            facts["tensors"] = [
                {"name": row.theirs, "shape": list(row.shape), "action": row.action, "ours": row.ours}
                for row in model_info.audit.rows
            ]
        if self.walk is not None:
            steps = trace.trace_forward(model_info.model, model_info.spec, self.walk)
            facts["walk"] = [step._asdict() for step in steps]
        if self.figures is not None:
            facts["figures"] = self._draw_figures(model_info, self.figures)
        if request is not None:
            from ...services.cost import estimate_cost

            facts["cost"] = estimate_cost(model_info.config, model_info.spec, request)
        return facts

    def _print_facts(self, model_info: ModelInfo, facts: dict[str, Any]) -> None:
        from ...explain import trace
        from ...services.model_summary import format_model_summary, format_provenance

        print(format_model_summary(model_info, facts, f"{self.model} ({model_info.kind})"))
        if "provenance" in facts:
            print("\n" + "\n".join(format_provenance(model_info)))
        if "tensors" in facts and model_info.audit is not None:
            print(f"\n{model_info.audit.format_table()}")
        if "walk" in facts:
            print(f"\n{trace.format_trace([trace.TraceStep(**step) for step in facts['walk']])}")
        if "cost" in facts:
            from ...services.cost import format_cost

            print("\n" + "\n".join(format_cost(self.model, facts["cost"])))
        for path in facts.get("figures", []):
            print(f"wrote {path}")

    def _make_cost_request(self) -> CostRequest | None:
        """The request of a cost estimate; None without --cost.

        Raises:
            UsageError: options of a cost estimate without --cost.
        """
        options = (self.on, self.devices, self.batch, self.pictures, self.epochs, self.number_format, self.optimizer)
        if not self.cost:
            if options != ("here", 1, 0, 0, 0.0, "auto", "adamw") or self.reached is not None:
                raise UsageError(
                    "--on, --devices, --batch, --pictures, --epochs, --number-format, --optimizer and --reached say "
                    "what a cost is asked for. Add --cost."
                )
            return None
        from ...services.cost import CostRequest

        return CostRequest(
            device=self.on,
            devices=self.devices,
            batch_size=self.batch,
            num_images=self.pictures,
            epochs=self.epochs,
            precision=self.number_format,
            optimizer=self.optimizer,
            utilization=self.reached,
        )

    def _draw_figures(self, model_info: ModelInfo, folder: Path) -> list[str]:
        """Draw the three figures; a model without positions has two."""
        from ...explain import figures
        from ...services.model_summary import preview_model_input

        image = preview_model_input(model_info, figures.SAMPLE_IMAGE if self.picture is None else self.picture)
        patch = model_info.config.patch
        plots = {
            "patch-grid.png": figures.plot_patch_grid(image, patch, cmap=self.cmap),
            f"token-{self.token}.png": figures.plot_token_strip(image, patch, self.token, self.cmap),
        }
        if model_info.config.positions != "none" or model_info.config.rotary not in ("none", "mixed"):
            plots["positions.png"] = figures.plot_positions(model_info.model, self.cmap)
        for name, figure in plots.items():
            figures.save_png(figure, folder / name)
        return [str(folder / name) for name in plots]
