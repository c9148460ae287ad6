"""Which weights learn after the probe, and how fast."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.train.optim import build_optimizers, layer_index, layer_lr_scales, set_learning_rates, set_trainable
from vitrail.train.plan import FinetuneSettings, Recipe

TINY = ViTConfig(image_size=(8, 8), patch=(4, 4), channels=1, width=16, depth=3, heads=2, mlp_width=32, outputs=3)


def test_layers_are_counted_from_the_embeddings_to_the_head():
    names = ["tokens.cls", "positions.table", "encoder.blocks.0.norm1.bias", "encoder.blocks.2.mlp.fc1.weight"]
    assert [layer_index(name, 3) for name in [*names, "encoder.norm.weight", "head.linear.bias"]] == [0, 0, 1, 3, 4, 4]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_block_learns_at_a_fraction_of_the_rate_of_the_block_above_it(optimizer):
    model, recipe = create_model(TINY), Recipe(steps=10, optimizer=optimizer, lr=1.0, muon_lr=1.0, warmup=0.0)
    optimizers = build_optimizers(model, recipe, "cpu", lr_scales=layer_lr_scales(model, 0.5))
    set_learning_rates(optimizers, recipe, 0)
    rates = {id(p): group["lr"] for one in optimizers for group in one.param_groups for p in group["params"]}
    assert len(rates) == len(list(model.parameters()))
    expected = {"tokens.cls": 0.0625, "encoder.blocks.0.attention.qkv.weight": 0.125, "head.linear.weight": 1.0}
    expected |= {"encoder.blocks.1.mlp.fc2.bias": 0.25, "encoder.blocks.2.norm1.weight": 0.5, "encoder.norm.bias": 1.0}
    named = dict(model.named_parameters())
    assert {name: rates[id(named[name])] for name in expected} == pytest.approx(expected)


def test_frozen_blocks_and_all_below_them_are_in_no_optimizer():
    model = create_model(TINY)
    set_trainable(model, FinetuneSettings(weights="x", freeze_blocks=2), 0)
    (optimizer,) = build_optimizers(model, Recipe(optimizer="adamw"), "cpu")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    learning = {name for name, parameter in model.named_parameters() if id(parameter) in held}
    assert all(name.startswith(("encoder.blocks.2.", "encoder.norm.", "head.")) for name in learning)
    assert {"encoder.norm.weight", "head.linear.weight", "encoder.blocks.2.mlp.fc1.weight"} <= learning


def test_without_a_checkpoint_everything_learns():
    model = create_model(TINY)
    set_trainable(model, FinetuneSettings(), 0)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_adapters_are_drawn_from_the_seed():
    first, again, other = (create_model(TINY) for _ in range(3))
    for model, seed in ((first, 1), (again, 1), (other, 2)):
        set_trainable(model, FinetuneSettings(weights="x", method="lora", lora_rank=2), seed)
    name = "encoder.blocks.1.attention.qkv.down"
    assert torch.equal(first.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"weights": ""}, "must name a checkpoint"),
        ({"freeze_blocks": 2}, "finetune.weights is none"),
        ({"weights": "x", "freeze_blocks": -1}, "freeze_blocks must be 0 or more"),
        ({"weights": "x", "layer_decay": 0.0}, "layer_decay must lie in"),
        ({"weights": "x", "lora_rank": 0}, "lora_rank must be at least 1"),
        ({"weights": "x", "wise_ft_alphas": (0.5, 1.5)}, "must list weights"),
        ({"weights": "x", "lora_rank": 4}, "finetune.lora_rank has no meaning with finetune.method full"),
        ({"weights": "x", "method": "lora", "freeze_blocks": 1}, "has no meaning with .* give --finetune.method full"),
        ({"weights": "x", "method": "probe", "wise_ft_alphas": (0.5,)}, "--finetune.method full or lora"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields, words):
    with pytest.raises(UsageError, match=words):
        FinetuneSettings(**fields)
