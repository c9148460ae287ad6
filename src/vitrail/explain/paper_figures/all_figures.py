"""Registry of the paper figures: draw one by name with its options, and save it with its arrays and facts."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from ...errors import UsageError
from ...files import atomic
from ...model.vit import ViT
from .. import figures
from ..matplotlib_style import default_style
from .attention_figures import draw_attention_distance, draw_attention_heads, draw_attention_rollout
from .feature_figures import draw_patch_filters, draw_pca, draw_pca_whitened, draw_token_norms
from .plots import FigureInputs, FigureOptions, FigureResult, draw_patch_grid, draw_token_strip, figure_facts
from .position_figures import draw_position_similarity, draw_rotary_kernel, draw_window


class FigureEntry(NamedTuple):
    """A figure with its inputs and options."""

    draw: Callable[[ViT, FigureInputs, FigureOptions], FigureResult]
    num_images: Literal["none", "one", "some"]
    """How many images it is drawn of."""
    options: tuple[str, ...]
    """Fields of `FigureOptions` that it uses."""
    description: str


FIGURES: Mapping[str, FigureEntry] = {
    "attention-rollout": FigureEntry(draw_attention_rollout, "some", ("residual",), "ViT paper, figure 6"),
    "patch-filters": FigureEntry(draw_patch_filters, "none", (), "ViT paper, figure 7 left"),
    "position-similarity": FigureEntry(draw_position_similarity, "none", (), "ViT paper, figure 7 centre"),
    "attention-distance": FigureEntry(draw_attention_distance, "some", ("renormalise",), "ViT paper, figure 7 right"),
    "attention-heads": FigureEntry(draw_attention_heads, "one", ("layer", "share"), "DINO, figures 1 and 3"),
    "pca": FigureEntry(draw_pca, "some", ("threshold", "together"), "DINOv2, figure 1"),
    "pca-whitened": FigureEntry(draw_pca_whitened, "some", ("together",), "DINOv3, features as colours"),
    "token-norms": FigureEntry(draw_token_norms, "some", ("layer",), "registers paper, figures 3 and 4"),
    "rotary-kernel": FigureEntry(draw_rotary_kernel, "none", (), "what rotation tells of places"),
    "patch-grid": FigureEntry(draw_patch_grid, "one", (), "the patches, numbered"),
    "token-strip": FigureEntry(draw_token_strip, "one", ("token",), "one patch as its numbers"),
    "window": FigureEntry(draw_window, "some", (), "the panes, lit where the answer comes from"),
}


@default_style()
def draw_figure(
    name: str, model: ViT, inputs: FigureInputs, figure_options: FigureOptions | None = None
) -> FigureResult:
    """Draw a figure by name, with the hashes of model and images among its facts.

    Raises:
        UsageError: no such figure, a wrong number of images, an option that it does not have, or what the figure itself
            refuses.
    """
    if name not in FIGURES:
        raise UsageError(f"There is no figure called {name!r}. Known: {', '.join(FIGURES)}.")
    entry, chosen = FIGURES[name], figure_options or FigureOptions()
    _check_options(name, entry, len(inputs.images), chosen)
    drawn = entry.draw(model, inputs, chosen)
    options = {option: vars(chosen)[option] for option in entry.options}
    facts = {"figure": name, "shows": entry.description, **figure_facts(model, inputs), **options, **drawn.facts}
    return drawn._replace(facts=facts)


def save_figure(result: FigureResult, path: Path) -> list[Path]:
    """Save the figure as PNG, with its arrays (.npz) and facts (.json) beside it; reproducible byte for byte.

    Raises:
        UsageError: the path does not end in .png.
        ResourceError: it cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise UsageError(f"A figure is saved as PNG, with its arrays beside it. Got {path.name}; call it NAME.png.")
    arrays = io.BytesIO()
    np.savez_compressed(arrays, allow_pickle=False, **result.arrays)
    written = [path, path.with_suffix(".npz"), path.with_suffix(".json")]
    figures.save_png(result.figure, path)
    atomic.write_bytes(written[1], arrays.getvalue())
    atomic.write_json(written[2], result.facts)
    return written


def _check_options(name: str, entry: FigureEntry, num_images: int, figure_options: FigureOptions) -> None:
    takes = {"none": num_images == 0, "one": num_images == 1, "some": num_images > 0}[entry.num_images]
    if not takes:
        words = {"none": "no pictures", "one": "one picture", "some": "at least one picture"}[entry.num_images]
        raise UsageError(f"The figure {name} is drawn of {words}. Got {num_images}.")
    default = vars(FigureOptions())
    for option, value in vars(figure_options).items():
        if value != default[option] and option not in entry.options:
            having = ", ".join(other for other, one in FIGURES.items() if option in one.options)
            raise UsageError(f"The figure {name} has no option {option}. These have it: {having}.")
