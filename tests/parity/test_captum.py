"""captum's integrated gradients and occlusion, of our models and of timm's: the same numbers, to 1e-5.

Occlusion is compared in float64: it is a small difference of scores, and in float32 their own rounding, which hangs on
the processor, can be more than 1e-5 of it.

Two readings of one definition by people who do not know each other. captum is given the model as a function; of timm's
models it explains timm's own class, and we explain the same weights after they were read.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from captum.attr import IntegratedGradients, Occlusion
from torch import Tensor, nn

from kinds import KINDS, TINY, images_for
from parity import timm_models
from parity.timm_models import pictures, reference, saved
from vitrail.checkpoints.load import load_checkpoint
from vitrail.explain.gradients import integrated_gradients
from vitrail.explain.occlusion import occlusion_map
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT, create_model

OF = (2, 0, 1)
STEPS = 24
MORE = {
    **KINDS,
    "padded": dataclasses.replace(TINY, image_size=(11, 7), pad=True),
    "one number": dataclasses.replace(TINY, outputs=1, class_token=False, pool="mean"),
}
OF_TIMM = ("class", "mean, normed after", "attention pool", "registers", "distilled", "DINOv3", "parallel")
every_kind = pytest.mark.parametrize("config", MORE.values(), ids=MORE.keys())


def made(config: ViTConfig) -> tuple[ViT, Tensor, list[int]]:
    """A model, three pictures, and the output of each that is explained."""
    model = create_model(config, seed=1).eval()
    return model, images_for(config), [of % config.outputs for of in OF]


def by_captum(model: nn.Module, images: Tensor, of: list[int], start: Tensor) -> Tensor:
    """Of every pixel, summed over channels: [B, H, W]."""
    given = IntegratedGradients(model).attribute(
        images, baselines=start.expand_as(images), target=of, n_steps=STEPS, method="gausslegendre"
    )
    return given.detach().sum(1)


def covered_by_captum(
    model: nn.Module, images: Tensor, of: list[int], patch: tuple[int, int], window: int, cover: Tensor
) -> Tensor:
    """Of every pixel the mean fall over the windows that hold it: [B, H, W], the same in all channels."""
    channels = images.shape[1]
    with torch.no_grad():
        found = Occlusion(model).attribute(
            images, baselines=cover.expand_as(images), target=of, strides=(channels, *patch),
            sliding_window_shapes=(channels, *(side * window for side in patch)), perturbations_per_eval=4,
        )  # fmt: skip
    assert torch.equal(found, found[:, :1].expand_as(found))
    return found[:, 0]


def close(ours: object, theirs: Tensor) -> None:
    """Equal to 1e-5 of the largest number."""
    wanted = theirs.double()
    largest = wanted.abs().max().item()
    assert largest > 1e-3
    assert (torch.as_tensor(ours).double() - wanted).abs().max().item() < 1e-5 * largest


def upper_left(pixels: Tensor, patch: tuple[int, int]) -> Tensor:
    """One pixel of each patch: [B, rows, columns]."""
    return pixels[:, :: patch[0], :: patch[1]]


@pytest.mark.first(4)
@every_kind
def test_integrated_gradients_of_every_kind_of_model_equal_captums(config: ViTConfig) -> None:
    model, images, of = made(config)
    start = torch.full((1, *images.shape[1:]), 0.3)
    found = integrated_gradients(model, images, of, start, steps=STEPS)
    wanted = by_captum(model, images, of, start)
    close(found.pixels, wanted)
    down, right = (
        whole * side - pixels for whole, side, pixels in zip(config.grid, config.patch, images.shape[2:], strict=True)
    )
    whole = nn.functional.pad(wanted, (0, right, 0, down))
    patches = whole.unflatten(1, (-1, config.patch[0])).unflatten(3, (-1, config.patch[1])).sum((2, 4))
    close(found.values, patches)


@every_kind
@pytest.mark.parametrize("window", [1, 2])
def test_occlusion_of_every_kind_of_model_equals_captums(config: ViTConfig, window: int) -> None:
    model, images, of = made(config)
    model, images = model.double(), images.double()
    cover = torch.full((1, *images.shape[1:]), 0.25).to(images)
    wanted = covered_by_captum(model, images, of, config.patch, window, cover)
    close(occlusion_map(model, images, of, window, cover).values, upper_left(wanted, config.patch))


@pytest.mark.parametrize("case", OF_TIMM)
def test_explained_after_reading_is_what_captum_says_of_timms_own_model(case: str, tmp_path: Path) -> None:
    assert case in timm_models.CASES
    theirs = reference(case)
    loaded = load_checkpoint(saved(theirs, tmp_path))
    ours, of = loaded.model.eval(), [3, 1]
    images = pictures(loaded.config.channels, *loaded.config.image_size)
    start = torch.zeros(1, *images.shape[1:])
    close(integrated_gradients(ours, images, of, steps=STEPS).pixels, by_captum(theirs, images, of, start))
    theirs, ours, images, start = theirs.double(), ours.double(), images.double(), start.double()
    wanted = covered_by_captum(theirs, images, of, loaded.config.patch, 2, start)
    close(occlusion_map(ours, images, of, window=2).values, upper_left(wanted, loaded.config.patch))
