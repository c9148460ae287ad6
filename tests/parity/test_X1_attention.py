"""X1: attention of every block and a map by one call, for files of every family, without options of the caller.

Where others return an empty tuple, an empty dictionary, or a map of the wrong shape: fused attention, registers, grids
that are not square, heads that read other tokens. The outputs do not change while attention is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from parity import hf, hf_cases, test_big_vision, test_originals, timm_models
from parity.designs import BLOG, CIFAR, EXPLAINED, XRAY, random_model
from vitrail.checkpoints.load import load_checkpoint
from vitrail.explain.methods import METHODS, MethodOptions, default_method
from vitrail.model.vit import ViT

OF_TIMM = (
    "class", "mean, normed after", "attention pool", "attention pool over prefix", "CLIP", "registers",
    "registers with rows", "DINOv2 without a head", "distilled", "DeiT-III", "normed queries", "parallel with biases",
    "patches that are not square", "DINOv3", "DINOv3 with gates", "EVA", "NaFlex", "one channel", "no table",
)  # fmt: skip
OF_HF = (
    "vit", "vit classifier", "deit with teacher", "mae", "ijepa classifier", "dinov2 classifier",
    "dinov2 with registers, gated classifier", "dinov3",
)  # fmt: skip
DESIGNS = {"blog": BLOG, "cifar": CIFAR, "explained": EXPLAINED, "xray": XRAY}
Open = Callable[[Path], ViT]


def cases() -> dict[str, Open]:
    """How each is opened, in a folder of its own."""

    def of_timm(case: str) -> Open:
        return lambda folder: load_checkpoint(timm_models.saved(timm_models.reference(case), folder)).model

    def of_hf(case: str) -> Open:
        built = hf_cases.CASES[case].build
        return lambda folder: load_checkpoint(hf.saved(hf.randomised(built()), folder / "there", memory=False)).model

    def of_design(case: str) -> Open:
        return lambda folder: random_model(DESIGNS[case])

    def original(case: str) -> Open:
        return lambda folder: test_originals.model_of(case).model

    return (
        {f"timm, {case}": of_timm(case) for case in OF_TIMM}
        | {f"transformers, {case}": of_hf(case) for case in OF_HF}
        | {f"original, {case}": original(case) for case in test_originals.LAYOUT_OF}
        | {f"design, {case}": of_design(case) for case in DESIGNS}
        | {"big_vision, attention": lambda folder: test_big_vision.opened("attention", folder).model}
    )


@pytest.mark.first(12)
@pytest.mark.parametrize("opened", cases().values(), ids=cases().keys())
@torch.no_grad()
def test_X1_attention_and_a_map_of_any_checkpoint_by_one_call(opened: Open, tmp_path: Path) -> None:
    model = opened(tmp_path).eval()
    config = model.config
    images = torch.randn(2, config.channels, *config.image_size, generator=torch.Generator().manual_seed(0))
    names = [f"blocks.{i}.attention" for i in range(config.depth)]
    kept = model.features(images, (*names, "tokens"))
    tokens = kept["tokens"].shape[1]
    for name in names:
        assert kept[name].shape == (2, config.heads, tokens, tokens)
        assert (kept[name].sum(-1) - 1).abs().max() < 1e-5
    unseen = model.features(images, ("tokens",))["tokens"]
    assert (kept["tokens"] - unseen).abs().max() < 1e-5 * max(1.0, unseen.abs().max().item())
    for method in {default_method(config), "rollout", "attention"}:
        found = METHODS[method].run(model, images, None, MethodOptions())
        assert found.values.shape == (2, *config.grid) and found.values.any(), method
