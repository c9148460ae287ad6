"""`vitrail export`: a model as a file that answers as it does, proved before it is kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...errors import UsageError
from ..arguments import Command, format_table, print_json

if TYPE_CHECKING:
    from ...services.exporting import ExportResult


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write a model for other programs, after comparing its answers with what was written.

    An onnx, openvino or pt2 file reads uint8 pictures [B, H, W, C] (uint16 where the plan keeps 16 bits) and gives
    calibrated probabilities and decisions; of a run of folds the mean of all models, which it holds. web is a page that
    answers in any browser, without a server and a network. The other targets are those of `vitrail convert`. Not every
    model has a place in all of them: models for small pictures have rotary positions, which transformers, torchvision
    and google-npz lack; --formats says before any work what a model can be written as, and which settings of a training
    change it.

      vitrail export RUN --to onnx
      vitrail export RUN --to onnx --resize --out flowers.onnx
      vitrail export RUN --to onnx --precision int8
      vitrail export RUN --to openvino
      vitrail export RUN --to web --runtime onnxruntime-web-1.30.0.tgz
      vitrail export RUN --to triton --out repository/
      vitrail export RUN --to mlflow
      vitrail export RUN --formats
      vitrail export RUN --to transformers
      vitrail export RUN --to hub:me/flowers --dry-run
    """

    POSITIONAL = ("model",)

    model: str = ""
    """A run folder, a bundle, or a published classifier that names its classes; without it the formats are listed."""
    formats: bool = False
    """Write nothing: list the formats, and for each that MODEL cannot be written in why, and which plan's runs can."""
    to: str = "onnx"
    """onnx, openvino, pt2 (torch.export), web, triton (a model repository), mlflow (a folder for mlflow.pyfunc), timm,
    transformers, torchvision, google-npz, bundle, or hub:OWNER/NAME."""
    out: Path | None = None
    """The file or folder to make; by default in the run's exports/, or beside another model."""
    layout: str | None = None
    """Of hub:OWNER/NAME: native (a bundle), timm or transformers."""
    private: bool = False
    """Of hub:OWNER/NAME: for its owner alone."""
    dry_run: bool = False
    """Of hub:OWNER/NAME: show the files and the card, and send nothing."""
    resize: bool = False
    """Let the file take pictures of any size and resize them itself: decisions equal, scores within 0.01."""
    precision: Literal["float32", "int8", "bf16", "float16"] = "float32"
    """int8 for onnx, openvino and web, float16 for onnx, web and pt2, bf16 for pt2; kept if 99 % of decisions are those
    of float32."""
    calibrate: str | None = None
    """A folder, pattern or @list.txt of pictures that int8 is fitted to; by default training pictures of the run."""
    force: bool = False
    """Keep a file of fewer bits although more than 1 % of its decisions differ from float32."""
    runtime: Path | None = None
    """Of web: the file of onnxruntime-web, as `npm pack onnxruntime-web@1.30.0` writes it."""
    fetch: bool = False
    """Of web: download onnxruntime-web, checked by its SHA-256, from npm's registry or that of npm_config_registry."""
    prove: bool = False
    """Of web: keep no page that headless Chromium has not proved on up to 200 held-out pictures."""
    json: bool = False
    """Print the outcome as JSON."""

    def run(self) -> int:
        """Export the model and print the path."""
        if self.formats or not self.model:
            return self._list_formats()
        from ...services import publishing

        if publishing.is_hub_target(self.to):
            return self._publish_model()
        publishing.reject_hub_options(self.to, self.layout, self.private, self.dry_run)
        from ...services.exporting import ExportOptions, export_model

        exported = export_model(
            self.model,
            self.to,
            self.out,
            ExportOptions(
                resize=self.resize, precision=self.precision, calibrate=self.calibrate, force=self.force,
                runtime=self.runtime, fetch=self.fetch, prove=self.prove,
            ),
        )  # fmt: skip
        if self.json:
            print_json(self._to_json(exported))
            return 0
        print(f"wrote  {exported.path}")
        for note in exported.notes:
            print(f"       {note}")
        return 0

    def _list_formats(self) -> int:
        from ...services.export_formats import list_formats
        from ...services.open_model import find_model

        listed = list_formats(find_model(self.model, quiet=True) if self.model else None)
        if self.json:
            print_json([vars(one) for one in listed])
            return 0
        print(f"{self.model or 'A model as plans choose it for small pictures'} can be written as")
        print("\n".join(f"  {one.describe()}" for one in listed))
        return 0

    def _publish_model(self) -> int:
        from ...services.publishing import publish_model

        if self.resize:
            raise UsageError("--resize is for files that hold a graph. A model on the Hub is weights and settings.")
        done = publish_model(self.model, self.to, self.layout, self.private, self.dry_run, self.out)
        if self.json:
            print_json({"model": self.model, "to": self.to, **vars(done)})
            return 0
        print(f"on the Hub  {done.page}" if done.page else f"would be put on the Hub as {done.repository}")
        print(format_table([[f"  {name}", f"{count:,} bytes"] for name, count in done.files.items()]))
        for note in done.notes:
            print(f"  {note}")
        if self.dry_run:
            print(f"\n{done.card}", end="")
        return 0

    def _to_json(self, exported: ExportResult) -> dict[str, Any]:
        facts = {
            "model": self.model,
            "to": exported.to,
            "path": str(exported.path),
            "largest_difference": exported.difference,
            "pictures": exported.num_images,
            "changed": exported.num_changed,
        }
        if exported.agreement is not None:
            facts["agreement"] = exported.agreement.same_fraction
            facts["pictures_per_second"] = dict(exported.agreement.rates)
        if exported.proof is not None:
            facts["browser"] = asdict(exported.proof)
        return {**facts, "notes": list(exported.notes)}
