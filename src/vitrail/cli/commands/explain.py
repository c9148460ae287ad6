"""`vitrail explain`: which patches an answer comes from, as pictures and as arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from ...errors import DataError, UsageError
from ...files.disk import check_writable
from ...runtime import PrecisionName
from ...services import progress
from ..arguments import Command, print_json, to_flag

MethodChoice = Literal[
    "relevance", "legrad", "grad-cam", "integrated", "occlusion", "lens", "attention", "rollout", "similarity", "all",
]  # fmt: skip
FigureName = Literal[
    "attention-rollout", "patch-filters", "position-similarity", "attention-distance", "attention-heads", "pca",
    "pca-whitened", "token-norms", "rotary-kernel", "patch-grid", "token-strip", "window",
]  # fmt: skip
DEFAULT_METHODS = ("relevance", "legrad", "grad-cam", "rollout")
"""Methods measured by --faithfulness by default; the others take many forward passes for each image."""
MAPS_MODE, FIGURE_FLAG = "maps", "--figure"
UNUSED_WITH_FIGURE = dict.fromkeys(
    ("method", "class_", "heads", "patch", "window", "steps", "fill", "faithfulness", "skip_bad", "opacity"), MAPS_MODE
)
UNUSED_WITH_FAITHFULNESS = dict.fromkeys(
    ("class_", "layer", "heads", "patch", "window", "steps", "fill", "skip_bad", "opacity"), MAPS_MODE
) | {"image_size": FIGURE_FLAG}
"""Flags that mean nothing beside these, and where they do."""


@dataclass(frozen=True, kw_only=True)
class Explain(Command):
    """Draw which patches of a picture a model's answer comes from, and keep the numbers beside the drawing.

    For each picture METHOD.png, .npz (the values, patch by patch) and .json (everything that was chosen) are written.
    PATHS are pictures, folders, patterns, @list.txt with one path a line, or - for such lines on standard input.

      vitrail explain RUN photo.jpg
      vitrail explain RUN photo.jpg --class melanoma --method occlusion
      vitrail explain RUN "films/*.png" --method integrated --fill black --to maps
      vitrail explain RUN photo.jpg --method all
      vitrail explain dinov2_small photo.jpg --method attention --layer 11 --heads 0,3
      vitrail explain dinov2_small photo.jpg --method similarity --patch 120
      vitrail explain dinov2_small photo.jpg other.jpg --figure pca --image-size 420x644 --to pca.png
      vitrail explain RUN --faithfulness
    """

    POSITIONAL = ("model", "paths")

    model: str
    """A run folder, a bundle, a weights file or folder, or hf:OWNER/NAME."""
    paths: tuple[str, ...]
    """Pictures, folders, patterns, @list.txt or -."""
    method: MethodChoice | None = None
    """How; by default what the run chose by a check, else relevance. attention, rollout and similarity draw the same
    for every class. all: one page with every method."""
    class_: str | None = None
    """The class, label or column to explain; by default the one that is answered."""
    layer: int | None = None
    """The block to look at, counted from 0; for relevance, legrad and rollout the first that counts."""
    heads: tuple[int, ...] | None = None
    """For attention: only these heads, such as 0,3."""
    patch: int | None = None
    """For similarity: the patch that others are compared with, counted from 1 in reading order."""
    window: int | None = None
    """For occlusion: rows and columns of patches that are covered at once."""
    steps: int | None = None
    """For integrated: points on the way from the empty picture; by default as many as the gap asks for."""
    fill: Literal["mean", "black", "white", "drop"] | None = None
    """For integrated and occlusion: what stands for nothing, by default the mean of the training pictures; drop takes
    patches out of the sequence (occlusion)."""
    figure: FigureName | None = None
    """Draw one of the papers' figures of the model and the pictures, if it takes any; --layer chooses the block."""
    image_size: str | None = None
    """For --figure: pixels that the pictures are shown at, such as 480x640; by default the model's own."""
    faithfulness: bool = False
    """Draw nothing: measure how true maps are on 100 pictures that RUN has held out, or of a SOURCE in the place of
    PATHS. relevance, legrad, grad-cam and rollout unless --method names one, or all."""
    to: Path = Path("explained")
    """The folder for the files; with --figure also a file that ends in .png."""
    opacity: float = 0.75
    """How much of the picture the strongest value hides, 0 to 1."""
    skip_bad: bool = False
    """Leave out pictures that cannot be read, or whose map says nothing, and name them, instead of stopping."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    precision: PrecisionName = "float32"
    """Number format of the answers: float32, bf16 or fp16. Maps are always computed in float32."""
    json: bool = False
    """Print the facts as JSON."""

    def run(self) -> int:
        """Explain and write."""
        if not self.faithfulness:
            check_writable(self.to if self.to.suffix.lower() == ".png" else self.to / "map.png")
        if self.figure:
            return self._draw_figure(self.figure)
        if self.faithfulness:
            return self._measure_faithfulness()
        self._reject_unused_flags("maps", {"image_size": FIGURE_FLAG})
        if not self.paths:
            raise UsageError("PATHS are missing: pictures, folders, patterns, @list.txt or - for standard input.")
        if not 0 <= self.opacity <= 1:
            raise UsageError(f"--opacity must lie in 0..1. Got {self.opacity:g}.")
        facts = []
        for path, record in self._explain_paths():
            facts.append({"file": str(path), **record})
            if not self.json:
                print(progress.overwrite_progress_line(f"wrote {path}: {record['title']}"))
        if not facts:
            raise DataError("None of the pictures could be explained; the reasons stand above.")
        if self.json:
            print_json(facts)
        return 0

    def _draw_figure(self, name: str) -> int:
        from ...explain.paper_figures.plots import FigureOptions
        from ...predict.image_paths import expand_image_paths
        from ...services.explanation import draw_paper_figure
        from ...services.open_model import find_model
        from ...services.train_arguments import parse_image_size

        self._reject_unused_flags(f"--figure {name}", UNUSED_WITH_FIGURE)
        size = None if self.image_size is None else parse_image_size(self.image_size)
        images = expand_image_paths(self.paths) if self.paths else []
        prefix = f"{images[0].stem}." if len(images) == 1 else ""
        path = self.to if self.to.suffix.lower() == ".png" else self.to / f"{prefix}{name}.png"
        written = draw_paper_figure(find_model(self.model), name, images, path, size, FigureOptions(layer=self.layer))
        if self.json:
            print_json([str(file) for file in written])
        else:
            print(f"wrote {', '.join(map(str, written))}")
        return 0

    def _measure_faithfulness(self) -> int:
        from ...explain.faithfulness.benchmark import format_faithfulness
        from ...explain.methods import METHODS
        from ...services import evaluation
        from ...services.map_faithfulness import NUM_IMAGES, get_map_function, measure_faithfulness
        from ...services.prediction import open_predictor

        self._reject_unused_flags("--faithfulness", UNUSED_WITH_FAITHFULNESS)
        if len(self.paths) > 1:
            raise UsageError(f"--faithfulness takes one SOURCE in the place of PATHS. Got {len(self.paths)}.")
        predictor = open_predictor(Path(self.model), self.device, self.precision)
        if self.paths:
            settings = evaluation.build_source_settings(self.model, self.paths[0], {}, None, predictor.task)
            labelled = evaluation.load_other_source(self.paths[0], None, settings)
        elif (Path(self.model) / "plan.toml").is_file():
            labelled = evaluation.load_held_out(Path(self.model), None)
        else:
            raise UsageError(
                f"Only a run folder knows which pictures it has held out, and {self.model} is none. Give a source: "
                f"vitrail explain {self.model} SOURCE --faithfulness"
            )
        all_names = tuple(name for name, method in METHODS.items() if "patch" not in method.option_names)
        progress.print_notes(predictor.notes)
        names = {None: DEFAULT_METHODS, "all": all_names}.get(self.method, (str(self.method),))
        sys.stderr.write(f"measuring {', '.join(names)} on {min(NUM_IMAGES, len(labelled.rows))} pictures\n")
        report = measure_faithfulness(predictor, labelled, {name: get_map_function(name) for name in names})
        if self.json:
            print_json({"model": self.model, **report.to_json()})
        else:
            print(format_faithfulness(report))
        return 0

    def _reject_unused_flags(self, what: str, unused: Mapping[str, str]) -> None:
        """Raise UsageError for the first given flag that has no effect here."""
        for field in fields(self):
            if field.name in unused and vars(self)[field.name] != field.default:
                where = unused[field.name]
                raise UsageError(f"{to_flag(field.name)} has no use with {what}; it is for {where}. Leave it out.")

    def _explain_paths(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the path and facts of each explanation once it is written; skipped images go to standard error."""
        from ...predict.image_paths import expand_image_paths
        from ...services import explanation

        images = expand_image_paths(self.paths)
        explainer = explanation.open_explainer(self.model, self.device, self.precision)
        progress.print_notes(() if explainer.predictor is None else explainer.predictor.notes)
        request = explanation.ExplainRequest(
            method=None if self.method == explanation.ALL_METHODS else self.method,
            target=self.class_,
            layer=self.layer,
            heads=self.heads,
            patch=self.patch,
            window=self.window,
            steps=self.steps,
            fill=self.fill,
        )
        extra = {"model": self.model, "weights_sha256": explanation.hash_weights(explainer.model)}
        use_all = self.method == explanation.ALL_METHODS
        explain = explanation.explain_by_all_methods if use_all else explanation.explain_images
        results = progress.track_images(explain(explainer, images, request, self.skip_bad), len(images))
        for stem, result in zip(explanation.make_unique_stems([str(path) for path in images]), results, strict=True):
            if isinstance(result, tuple):
                progress.print_skipped([result])
                continue
            path = result.save(self.to, stem, self.opacity, extra)
            yield path, {"title": result.title, **result.to_json()}
