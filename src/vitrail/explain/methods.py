"""Every way of explaining, by name, and the one function that runs any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from jaxtyping import Float
from torch import Tensor

from ..errors import UsageError
from ..model.config import ViTConfig
from ..model.vit import ViT
from .attention_maps import attention_map, attention_rollout
from .attribution import AttributionMap, Targets, require_nonempty_map
from .gradients import gradcam, integrated_gradients, legrad, relevance_map
from .occlusion import occlusion_map
from .patch_features import patch_lens, patch_similarity


@dataclass(frozen=True, kw_only=True, eq=False)
class MethodOptions:
    """What can be said to a method; None leaves it to the method."""

    layer: int | None = None
    """The block that is looked at, counted from 0; of rollout, relevance and legrad the first of those that count."""
    heads: tuple[int, ...] | None = None
    """Only these attention heads."""
    patch: int | None = None
    """The patch that others are compared with, counted from 1 in reading order."""
    window: int | None = None
    """Rows and columns of patches that are covered at once."""
    steps: int | None = None
    """Points on the way from the empty picture."""
    cover: Tensor | None = None
    """The empty picture, or what covers a patch: normalised [1, C, H, W]."""
    drop: bool | None = None
    """Patches are taken out instead of covered."""

    @property
    def given_names(self) -> tuple[str, ...]:
        """The names of those that are not left to the method."""
        return tuple(field.name for field in fields(self) if self.__dict__[field.name] is not None)


@dataclass(frozen=True, kw_only=True)
class AttributionMethod:
    """One way of explaining."""

    run: Callable[[ViT, Tensor, Targets, MethodOptions], AttributionMap]
    option_names: tuple[str, ...]
    """The options that it knows."""
    class_specific: bool
    """Whether it explains an output; the others draw the same for every class."""
    empty_reason: str
    """What it means where its map is zero everywhere."""


def explain_images(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    method: str | None = None,
    targets: Targets = None,
    options: MethodOptions | None = None,
) -> AttributionMap:
    """A map of each picture, right or refused.

    Args:
        images: normalised, on the model's device.
        method: a name in METHODS; None takes `default_method`.
        targets: the output to explain, see `target.Of`.

    Raises:
        UsageError: no such method, or an option or output that it does not know.
        EmptyMapError: a map that says nothing.
    """
    name = default_method(model.config) if method is None else method
    asked = options or MethodOptions()
    if name not in METHODS:
        raise UsageError(f"There is no method {name!r}. The methods are {', '.join(METHODS)}.")
    found = METHODS[name]
    if superfluous := [option for option in asked.given_names if option not in found.option_names]:
        uses = f"It knows {', '.join(found.option_names)}." if found.option_names else "It knows no options."
        raise UsageError(f"{name} has no use for {', '.join(superfluous)}. {uses}")
    if targets is not None and not found.class_specific:
        of_class = ", ".join(other for other, one in METHODS.items() if one.class_specific)
        raise UsageError(f"{name} draws the same map for every class, so none can be named. Of a class: {of_class}.")
    return require_nonempty_map(found.run(model, images, targets, asked), found.empty_reason)


def default_method(config: ViTConfig) -> str:
    """Relevance; attention where there is no answer.

    LeGrad was proposed for models without a class token; whether patches are averaged or a learned probe pools,
    relevance was measured to be truer and nearer to the evidence (docs/true-maps.md).
    """
    return "relevance" if config.outputs else "attention"


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
    """A method of a class that can be told nothing but the block."""
    return AttributionMethod(
        run=lambda model, images, of, asked: attribution(model, images, of, asked.layer),
        option_names=("layer",),
        class_specific=True,
        empty_reason=empty,
    )


NO_ATTENTION = "no patch is looked at"
METHODS: dict[str, AttributionMethod] = {
    "relevance": _layer_method(relevance_map, "no attention raises this score"),
    "legrad": _layer_method(legrad, "more attention would raise this score nowhere"),
    "grad-cam": _layer_method(gradcam, "every patch speaks against this score, and what does is cut off"),
    "integrated": AttributionMethod(
        run=lambda model, images, of, asked: integrated_gradients(model, images, of, asked.cover, asked.steps),
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
        run=lambda model, images, of, asked: attention_map(model, images, asked.layer, asked.heads),
        option_names=("layer", "heads"),
        class_specific=False,
        empty_reason=NO_ATTENTION,
    ),
    "rollout": AttributionMethod(
        run=lambda model, images, of, asked: attention_rollout(model, images, asked.layer),
        option_names=("layer",),
        class_specific=False,
        empty_reason=NO_ATTENTION,
    ),
    "similarity": AttributionMethod(
        run=_run_similarity,
        option_names=("patch", "layer"),
        class_specific=False,
        empty_reason="the token of this patch is zero",
    ),
}
"""By name; the first is the default nearly everywhere."""
AVERAGED_NOTE = (
    "The answer is the mean over {} views of the picture (mirrored or moved); the map is of the picture as it is."
)
"""What must be said where answers are averaged."""
