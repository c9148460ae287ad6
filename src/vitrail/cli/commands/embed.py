"""`vitrail embed`: what a model makes of pictures before it answers, and which of them are most alike."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...errors import UsageError
from ...formatting import format_count
from ...runtime import PrecisionName
from ...services import progress
from ..arguments import Command, print_json

if TYPE_CHECKING:
    from ...predict.embedder import Embedder
    from ...services.embedding import EmbeddingResult


@dataclass(frozen=True, kw_only=True)
class Embed(Command):
    """Write the features of pictures to a file, or find the pictures that are most alike.

    PATHS are as `vitrail predict` takes them. The model may be any weights file, with or without names of classes.

      vitrail embed RUN films/ --to films.npy
      vitrail embed dinov2_small/ photos/ --features patches --to photos.npy
      vitrail embed RUN new.png --nearest 5 --of films/
    """

    POSITIONAL = ("model", "paths")
    DOTTED = "changes"
    SECTIONS = ("image",)

    model: str
    """A run folder, a bundle, weights of any known layout, or hf:OWNER/NAME."""
    paths: tuple[str, ...]
    """Pictures, folders, patterns, @list.txt or -."""
    to: Path | None = None
    """Write the features to this file: .npy, with the names of its rows in a .csv beside it, or .parquet."""
    features: Literal["pooled", "class", "mean", "patches"] = "pooled"
    """What the head reads, the class token, the mean of the patches, or every patch: [n, rows, columns, D]."""
    nearest: int = 0
    """Print the so many most similar pictures for each, by the cosine of their features."""
    of: str = ""
    """Search these instead of PATHS themselves: one picture, folder, pattern or @list.txt."""
    skip_bad: bool = False
    """Leave out pictures that cannot be read and name them, instead of stopping."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    precision: PrecisionName = "float32"
    """Number format of the model: float32 is the same on every machine, bf16 and fp16 are faster on some."""
    json: bool = False
    """Print what was done as JSON."""
    changes: tuple[tuple[str, str], ...] = ()
    """How files are opened, where that is no part of the model: --image.page 2, --image.max_pixels 100000000."""

    def run(self) -> int:
        """Embed, write, and compare."""
        self._check_flags()
        from ...services import embedding

        embedder = embedding.open_embedder(self.model, self.device, dict(self.changes), self.precision)
        result = self._embed_paths(embedder, self.paths, self.to)
        progress.print_skipped(result.skipped)
        rows = None
        if self.nearest:
            others = self._embed_paths(embedder, [self.of], None) if self.of else None
            progress.print_skipped(() if others is None else others.skipped)
            assert result.embeddings is not None
            rows = embedding.find_similar_images(
                result.embeddings, self.nearest, None if others is None else others.embeddings
            )
        done = f"Features {list(result.shape)} of {format_count(result.count, 'picture')} written to {self.to}"
        if self.json:
            facts = {"pictures": result.count, "features": self.features, "shape": list(result.shape)}
            print_json(facts | {"to": None if self.to is None else str(self.to), "nearest": rows})
        elif rows is not None:
            sys.stderr.write(f"{done}\n" if self.to is not None else "")
            sys.stdout.flush()
            sys.stdout.buffer.write(embedding.similar_images_to_csv(rows))  # paths may hold bytes that are no text
        else:
            print(done)
        return 0

    def _embed_paths(self, embedder: Embedder, paths: Sequence[str], to: Path | None) -> EmbeddingResult:
        """Embed images with a progress display."""
        from ...predict.image_paths import expand_image_paths
        from ...services.embedding import collect_embeddings

        images = expand_image_paths(paths)
        parts = embedder.embed_batches(images, self.features, skip_bad=self.skip_bad)
        return collect_embeddings(progress.track_batches(parts, len(images)), to, keep=self.nearest > 0)

    def _check_flags(self) -> None:
        """Refuse invalid combinations before the model is loaded."""
        if not self.paths:
            raise UsageError("PATHS are missing: pictures, folders, patterns, @list.txt or - for standard input.")
        if self.nearest < 0:
            raise UsageError(f"--nearest is how many pictures to find for each, at least 1. Got {self.nearest}.")
        if self.to is None and not self.nearest:
            raise UsageError("Features go into a file, --to FILE.npy or FILE.parquet, or are compared, --nearest 5.")
        if self.of and not self.nearest:
            raise UsageError("--of names pictures to search, so it needs --nearest and how many are to be found.")
        if self.nearest and self.features == "patches":
            raise UsageError("--nearest compares one vector a picture: --features pooled, class or mean, not patches.")
        if self.to is not None:
            from ...services.embedding import check_features_path

            check_features_path(self.to)
