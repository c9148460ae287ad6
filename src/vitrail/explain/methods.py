"""Registry of the attribution methods, and the function that runs one by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..errors import UsageError
from ..model.config import ViTConfig
from ..model.vit import ViT
from .attention_maps import attention_map, attention_rollout
from .attribution import AttributionMap, Targets, require_nonempty_map
from .gradients import gradcam, integrated_gradients, legrad, relevance_map
from .occlusion import occlusion_map
from .patch_features import patch_distances, patch_lens, patch_similarity


@dataclass(frozen=True, kw_only=True, eq=False)
class MethodOptions:
    """Options of the methods; None takes the default of the method."""

    layer: int | None = None
    """The explained block, counted from 0; for rollout, relevance and legrad the first of them."""
    heads: tuple[int, ...] | None = None
    """Only these attention heads."""
    patch: int | None = None
    """The reference patch of similarity, counted from 1 in reading order."""
    window: int | None = None
    """Rows and columns of patches that are occluded at once."""
    steps: int | None = None
    """Points on the path of integrated gradients."""
    cover: Tensor | None = None
    """Baseline image of integrated gradients, or what covers occluded patches: normalised [1, C, H, W]."""
    drop: bool | None = None
    """Drop occluded patches instead of covering them."""

    @property
    def given_names(self) -> tuple[str, ...]:
        """Names of the options that are set."""
        return tuple(name for name, value in vars(self).items() if value is not None)


@dataclass(frozen=True, kw_only=True)
class AttributionMethod:
    """An attribution method."""

    run: Callable[[ViT, Tensor, Targets, MethodOptions], AttributionMap]
    option_names: tuple[str, ...]
    """The options that it accepts."""
    class_specific: bool
    """Whether it explains an output; the others give the same map for every class."""
    empty_reason: str
    """The meaning of a map of zeros, for messages."""


def explain_images(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    method: str | None = None,
    targets: Targets = None,
    options: MethodOptions | None = None,
) -> AttributionMap:
    """Compute the map of each image by a method.

    Args:
        images: normalised, on the model's device.
        method: a name in METHODS, or of `BANK_METHODS` for a model with a bank; None takes `default_method`.
        targets: the output to explain, see `attribution.Targets`.

    Raises:
        UsageError: no such method, or an option or output that it does not have.
        EmptyMapError: a map is not finite, zero, or constant.
    """
    if model.config.is_dense:
        raise UsageError(
            "The mask is this model's answer, pixel by pixel, and no map explains it further. Predictions have it."
        )
    name = default_method(model.config) if method is None else method
    chosen = options or MethodOptions()
    known = list_methods_of(model.config)
    if name not in known:
        raise UsageError(f"There is no method {name!r}. The methods are {', '.join(known)}.")
    entry = known[name]
    if superfluous := [option for option in chosen.given_names if option not in entry.option_names]:
        uses = f"It knows {', '.join(entry.option_names)}." if entry.option_names else "It knows no options."
        raise UsageError(f"{name} has no use for {', '.join(superfluous)}. {uses}")
    if targets is not None and not entry.class_specific:
        others = ", ".join(other for other, one in known.items() if one.class_specific) or "none"
        raise UsageError(f"{name} draws the same map for every class, so none can be named. Of a class: {others}.")
    return require_nonempty_map(entry.run(model, images, targets, chosen), entry.empty_reason)


def default_method(config: ViTConfig) -> str:
    """Relevance, attention for a model without outputs, the distances of an anomaly model, or none for outputs of
    patches.

    LeGrad was proposed for models without a class token, but for mean and attention pooling too relevance was measured
    to be more faithful and better localized (docs/true-maps.md).
    """
    if config.head == "bank":
        return next(iter(BANK_METHODS))
    if config.is_dense:
        return ""
    return "relevance" if config.outputs else "attention"


def list_methods_of(config: ViTConfig) -> dict[str, AttributionMethod]:
    """The methods of a model, by name."""
    return BANK_METHODS if config.head == "bank" else {} if config.is_dense else METHODS


def _run_occlusion(model: ViT, images: Tensor, targets: Targets, options: MethodOptions) -> AttributionMap:
    window = 1 if options.window is None else options.window
    return occlusion_map(model, images, targets, window, options.cover, bool(options.drop))


def _run_similarity(model: ViT, images: Tensor, targets: Targets, options: MethodOptions) -> AttributionMap:
    if options.patch is None:
        raise UsageError("similarity needs the patch that others are compared with, counted from 1 in reading order.")
    return patch_similarity(model, images, options.patch, options.layer)


def _layer_method(
    attribution: Callable[[ViT, Tensor, Targets, int | None], AttributionMap], empty: str
) -> AttributionMethod:
    """A class-specific method whose only option is the block."""
    return AttributionMethod(
        run=lambda model, images, targets, options: attribution(model, images, targets, options.layer),
        option_names=("layer",),
        class_specific=True,
        empty_reason=empty,
    )


METHODS: dict[str, AttributionMethod] = {
    "relevance": _layer_method(relevance_map, "no attention raises this score"),
    "legrad": _layer_method(legrad, "more attention would raise this score nowhere"),
    "grad-cam": _layer_method(gradcam, "every patch speaks against this score, and what does is cut off"),
    "integrated": AttributionMethod(
        run=lambda model, images, targets, options: integrated_gradients(
            model, images, targets, options.cover, options.steps
        ),
        option_names=("cover", "steps"),
        class_specific=True,
        empty_reason="no pixel changes this score",
    ),
    "occlusion": AttributionMethod(
        run=_run_occlusion,
        option_names=("window", "cover", "drop"),
        class_specific=True,
        empty_reason="no patch changes this score",
    ),
    "lens": _layer_method(patch_lens, "the head gives 0 for every patch"),
    "attention": AttributionMethod(
        run=lambda model, images, targets, options: attention_map(model, images, options.layer, options.heads),
        option_names=("layer", "heads"),
        class_specific=False,
        empty_reason="no patch is looked at",
    ),
    "rollout": AttributionMethod(
        run=lambda model, images, targets, options: attention_rollout(model, images, options.layer),
        option_names=("layer",),
        class_specific=False,
        empty_reason="no patch is looked at",
    ),
    "similarity": AttributionMethod(
        run=_run_similarity,
        option_names=("patch", "layer"),
        class_specific=False,
        empty_reason="the token of this patch is zero",
    ),
}
"""By name; the first is the default for models with outputs."""
BANK_METHODS: dict[str, AttributionMethod] = {
    "distances": AttributionMethod(
        run=lambda model, images, targets, options: patch_distances(model, images),
        option_names=(),
        class_specific=False,
        empty_reason="every patch is one of the bank's",
    ),
}
"""The only ones of a model with a bank, whose score has no other reason than these."""
AVERAGED_NOTE = (
    "The answer is the mean over {} views of the picture (mirrored or moved); the map is of the picture as it is."
)
"""Note for predictions with test-time augmentation."""
