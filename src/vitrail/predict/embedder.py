"""Features of images, one vector for each image or for each of its patches, and nearest neighbours among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int, Int64, Integer
from torch import Tensor

from ..argument_types import check_calls
from ..caller_state import exact_float32, isolate
from ..data.parallel import prepare_batches
from ..data.preprocess import normalize, preprocess_image
from ..data.source import ImageInput
from ..errors import DataError, UsageError
from ..evaluate.inference import DEFAULT_SETTINGS, DTYPES, InferenceSettings, inference_mode
from ..formatting import format_count
from ..model.vit import ViT
from ..spec import ImageSpec
from .predictor import Predictor

FeatureKind = Literal["pooled", "class", "mean", "patches"]
NO_IMAGES_MESSAGE = "There is no picture to take features of, or none that can be read."


@dataclass(frozen=True, kw_only=True, eq=False)
class Embeddings:
    """The features of n images, and which images they are."""

    paths: tuple[str, ...]
    """Where each image lies; empty for one that came as an array."""
    ids: tuple[str, ...]
    vectors: Float32[np.ndarray, " n *D"]
    """[n, D], or of patches [n, rows, columns, D]."""
    skipped: tuple[tuple[str, str], ...] = ()
    """(path, reason) of images that could not be read and were left out on purpose."""

    def __len__(self) -> int:
        return len(self.ids)

    @check_calls
    def nearest(self, count: int, among: Embeddings | None = None) -> Neighbours:
        """For each image the most similar ones of another set, or of the same set without itself.

        Raises:
            UsageError: features of patches, or of another model; nothing to find.
        """
        for each in (self, among or self):
            if each.vectors.ndim != 2:
                raise UsageError(
                    "Pictures are compared by one vector each, and these features have one for each patch. Take "
                    "pooled, class or mean."
                )
        return find_nearest(self.vectors, (among or self).vectors, count, include_self=among is not None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Backbone:
    """A model that gives features, and how its images are normalised."""

    model: ViT
    spec: ImageSpec
    settings: InferenceSettings = DEFAULT_SETTINGS


class Embedder:
    """A model that gives features; of an ensemble, those of all its models side by side.

    Args:
        backbones: models that read images of one size; moved to the device of their settings.

    Raises:
        UsageError: models that read images of different sizes.
    """

    def __init__(self, backbones: Sequence[Backbone]):
        first = backbones[0]
        for each in backbones:
            if (each.spec.size, each.model.config.input_grid) != (first.spec.size, first.model.config.input_grid):
                raise UsageError(
                    f"Models that look together must read pictures and patches of one size. Got {first.spec.size} in "
                    f"{tuple(first.model.config.input_grid)} patches and {each.spec.size} in "
                    f"{tuple(each.model.config.input_grid)}."
                )
            each.model.to(each.settings.device)
        self.backbones = tuple(backbones)
        self.spec = first.spec
        """How images are prepared."""

    @classmethod
    def from_predictor(cls, predictor: Predictor) -> Embedder:
        """The embedder of a predictor's models.

        Raises:
            UsageError: a model of it is no Vision Transformer of ours.
        """
        backbones = []
        for member in predictor.members:
            if not isinstance(member.model, ViT):
                raise UsageError("Features are taken from Vision Transformers. This model is none.")
            backbones.append(Backbone(model=member.model, spec=member.spec, settings=member.settings))
        embedder = cls(backbones)
        embedder.spec = predictor.spec
        return embedder

    @isolate
    def embed(
        self, images: Sequence[ImageInput | bytes], features: FeatureKind = "pooled", skip_bad: bool = False
    ) -> Embeddings:
        """The features of all images, in order.

        Raises:
            DataError: no images, or one that cannot be read, by name (unless `skip_bad`).
            UsageError: as `embed_batches`.
        """
        return join_embeddings(list(self.embed_batches(images, features, skip_bad=skip_bad)))

    @isolate
    def embed_batches(
        self,
        images: Sequence[ImageInput | bytes],
        features: FeatureKind = "pooled",
        skip_bad: bool = False,
    ) -> Iterator[Embeddings]:
        """The same batch by batch: for progress bars and for more images than memory.

        Raises:
            UsageError: the class token of a model that has none.
        """
        if features == "class" and not all(each.model.config.class_token for each in self.backbones):
            raise UsageError("This model has no class token. Take pooled, mean or patches.")
        batch_size, preprocess = self.backbones[0].settings.batch_size, partial(preprocess_image, spec=self.spec)
        for names, prepared, skipped in prepare_batches(images, batch_size, preprocess, skip_bad):
            vectors = np.zeros((0, 0), np.float32)
            if prepared:
                parts = [compute_features(each, torch.stack(prepared), features) for each in self.backbones]
                vectors = np.concatenate(parts, axis=-1)
                if bad := int(np.count_nonzero(~np.isfinite(vectors))):
                    raise DataError(
                        f"{bad:,} of {vectors.size:,} features are NaN or infinite, so nothing can be made of them. "
                        "The model is damaged, or its number format is too small for it."
                    )
            paths, ids = tuple(name.path for name in names), tuple(name.id for name in names)
            yield Embeddings(paths=paths, ids=ids, vectors=vectors, skipped=tuple(skipped))


def join_embeddings(parts: Sequence[Embeddings]) -> Embeddings:
    """One table from several of the same model.

    Raises:
        DataError: there is no image in any of them.
    """
    vectors = [part.vectors for part in parts if len(part)]
    if not vectors:
        raise DataError(NO_IMAGES_MESSAGE)
    return Embeddings(
        paths=tuple(path for part in parts for path in part.paths),
        ids=tuple(id for part in parts for id in part.ids),
        vectors=np.concatenate(vectors),
        skipped=tuple(pair for part in parts for pair in part.skipped),
    )


def compute_features(
    backbone: Backbone, images: Integer[Tensor, "B C H W"], features: FeatureKind
) -> Float32[np.ndarray, " B *D"]:
    """Features of preprocessed images: [B, D], or of patches [B, rows, columns, D].

    Tokens are those of the last block after the final norm; registers and distillation tokens are no patches.
    """
    model, device, dtype = backbone.model, torch.device(backbone.settings.device), DTYPES[backbone.settings.precision]
    with inference_mode(model), exact_float32(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        x = normalize(images.to(device), backbone.spec)  # [B, C, H, W]
        if features == "patches":
            vectors = model.dense(x).permute(0, 2, 3, 1)
        elif features == "pooled" and model.config.pool != "patches":
            vectors = model.features(x, keep=("pooled",))["pooled"]
        else:
            tokens = model.features(x, keep=("tokens",))["tokens"].float()  # [B, T, D]
            vectors = tokens[:, 0] if features == "class" else tokens[:, model.config.prefix :].mean(1)
    return np.asarray(vectors.float().cpu().numpy())


# -- Nearest neighbours by cosine similarity

MAX_SIMILARITIES = 2**24
"""Similarities that are held at once, 64 MiB of them."""


class Neighbours(NamedTuple):
    """For each query the rows of its nearest neighbours, nearest first, and their similarities."""

    rows: Int64[np.ndarray, "m k"]
    similarities: Float32[np.ndarray, "m k"]
    """Cosines, from -1 to 1; 0 for a vector of zeros."""


def find_nearest(
    queries: Float32[np.ndarray, "m D"],
    among: Float32[np.ndarray, "n E"],
    count: int,
    include_self: bool = True,
) -> Neighbours:
    """The `count` nearest vectors of a set, or all if there are fewer; exact, equally similar ones in their order.

    Args:
        include_self: False where both are the same set and no vector may be its own neighbour.

    Raises:
        UsageError: a count below 1, nothing to find, or features of different models.
    """
    others = len(among) - (not include_self)
    if count < 1:
        raise UsageError(f"At least one nearest picture must be asked for. Got {count}.")
    if others < 1:
        raise UsageError(
            f"There is nothing to find among {format_count(len(among), 'picture')}"
            f"{'' if include_self else ' but each itself'}."
        )
    if queries.shape[1] != among.shape[1]:
        raise UsageError(
            f"Only features of one model can be compared. Got {queries.shape[1]} numbers a picture and "
            f"{among.shape[1]}."
        )
    known = F.normalize(torch.from_numpy(among), dim=1)
    rows, similarities = [], []
    for start in range(0, len(queries), lot := max(1, MAX_SIMILARITIES // len(among))):
        part = F.normalize(torch.from_numpy(queries[start : start + lot]), dim=1) @ known.T  # [c, n]
        if not include_self:
            part[torch.arange(len(part)), torch.arange(start, start + len(part))] = -torch.inf
        values, places = _stable_topk(part, min(count, others))
        rows.append(places)
        similarities.append(values.clamp(-1, 1))
    if not rows:
        return Neighbours(np.zeros((0, min(count, others)), np.int64), np.zeros((0, min(count, others)), np.float32))
    return Neighbours(torch.cat(rows).numpy(), torch.cat(similarities).numpy())


def _stable_topk(similar: Float[Tensor, "c n"], count: int) -> tuple[Float[Tensor, "c k"], Int[Tensor, "c k"]]:
    """The largest of each row, largest first, ties by index."""
    values, places = similar.topk(count, dim=1)
    places, order = places.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)
