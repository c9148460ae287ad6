"""The last block computes only the tokens that the head reads: the same answers and gradients for less work."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT, create_model

PLAIN = {"image_size": (16, 24), "patch": (8, 8), "channels": 1, "width": 16, "mlp_width": 64, "depth": 2, "heads": 2}
KINDS = {
    "class": {},
    "class and distillation": {"distillation_token": True, "distillation_head": True},
    "registers": {"registers": 3},
    "parallel": {"parallel": True},
    "relative": {"relative": 2},
    "rotary": {"rotary": "axial"},
    "norms of queries and keys, no norm at the end": {"qk_norm": True, "final_norm": False, "layer_scale": 0.1},
    "recomputed": {"grad_checkpointing": True},
    "no blocks": {"depth": 0},
    "one block": {"depth": 1},
    "two blocks read": {"pool_blocks": 2},
    "two blocks that lie apart": {"depth": 3, "pool_blocks": 2, "pool_every": 2},
    "mean": {"pool": "mean"},
    "class and mean": {"pool": "class+mean"},
    "probe": {"pool": "attention"},
}


def made(kind: str) -> ViT:
    model = create_model(ViTConfig(**{**PLAIN, "outputs": 3, **KINDS[kind]}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def every_token(model: ViT, images: torch.Tensor, visible: torch.Tensor | None = None) -> torch.Tensor:
    """The outputs by way of all tokens of all blocks."""
    x, places = model.embed(images, visible)
    return model.head(model.pool(model.encoder(x, places, model.config.pool_span)))


@pytest.mark.parametrize("path", ["fused", "open"])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_and_gradients_are_those_of_all_tokens(kind, path):
    model = made(kind)
    for block in model.encoder.blocks:
        block.attention.choice = path
    images = torch.randn(3, 1, 16, 24)
    for visible in (None, torch.tensor([[0, 2, 5]] * 3)):
        found = []
        for forward in (model, lambda *given: every_token(model, *given)):
            model.zero_grad()
            outputs = forward(images, visible)
            outputs.square().sum().backward()
            gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
            found.append((outputs.detach(), gradients))
        (ours, moved), (whole, expected) = found
        torch.testing.assert_close(ours, whole, rtol=1e-5, atol=1e-5)
        assert moved.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(moved[name], gradient, rtol=1e-4, atol=1e-4, msg=name)


def test_the_last_block_saves_three_quarters_of_its_products():
    model, images = made("class").eval(), torch.randn(2, 1, 16, 24)
    for block in model.encoder.blocks:
        block.attention.choice = "open"
    counts = []
    for forward in (model, lambda given: every_token(model, given)):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            forward(images)
        counts.append(counter.get_total_flops())
    tokens, width = 7, 16
    matrices = 2 * 2 * (tokens - 1) * 9 * width**2  # out and the two of the MLP, of two pictures, for six tokens less
    attention = 2 * 2 * 2 * (tokens - 1) * tokens * width
    assert counts[1] - counts[0] == matrices + attention


@pytest.mark.parametrize("kind", KINDS)
def test_features_answer_with_the_same_bits_unless_other_tokens_are_asked_for(kind):
    model, images = made(kind).eval(), torch.randn(2, 1, 16, 24)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        outputs = model(images)
        kept = model.features(images, keep=("embedded", "pooled", "outputs"))
    assert torch.equal(kept["outputs"], outputs)
    assert model.features(images, keep=("tokens", "outputs"))["tokens"].shape[1] == 6 + model.config.prefix
    if model.config.depth:
        last = f"blocks.{model.config.depth - 1}"
        kept = model.features(images, keep=(last, f"{last}.attention"))
        assert kept[last].shape[1] == kept[f"{last}.attention"].shape[-2] == 6 + model.config.prefix


def test_a_model_that_reads_all_tokens_computes_all():
    kinds = ("class", "class and distillation", "mean", "probe")
    assert [made(kind).pool.pool_tokens for kind in kinds] == [1, 2, None, None]
