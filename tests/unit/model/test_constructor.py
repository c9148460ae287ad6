"""`ViT(config)` is a usable model: initialised, the same for the same seed, and short to print."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from kinds import KINDS, TINY
from vitrail.errors import UsageError
from vitrail.model import vit
from vitrail.model.part_table import list_parts
from vitrail.model.registry import config_from_name
from vitrail.model.vit import ViT


@pytest.mark.parametrize("kind", KINDS)
def test_no_number_of_a_new_model_is_what_lay_in_memory(kind):
    torch.use_deterministic_algorithms(True)  # torch then fills fresh memory with NaN
    try:
        assert torch.empty(3).isnan().all()
        model = ViT(KINDS[kind])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


def test_a_seed_decides_and_the_callers_random_state_is_neither_read_nor_changed():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, again, other = ViT(TINY), ViT(TINY, seed=0), ViT(TINY, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    for name, tensor in ViT(TINY).state_dict().items():
        assert torch.equal(tensor, first.state_dict()[name]) and torch.equal(tensor, again.state_dict()[name])
    assert not torch.equal(first.head.linear.weight, other.head.linear.weight)
    with pytest.raises(UsageError, match=r"seed must be a whole number, below 2\^63 in size\. Got 184467"):
        ViT(TINY, seed=2**64)


def test_on_the_meta_device_nothing_is_allocated_or_drawn(monkeypatch):
    monkeypatch.setattr(vit, "initialise", None)
    with torch.device("meta"):
        model = ViT(config_from_name("vit_enormous_patch14_224"))
    assert all(tensor.is_meta for tensor in model.state_dict().values())


def test_a_model_prints_its_parts_with_shapes_and_counts():
    with torch.device("meta"):
        model = ViT(config_from_name("vit_tiny_patch16_224"))
    first, *rows = repr(model).splitlines()
    assert first == "ViT: images [B, 3, 224, 224] -> [B, 1000], 5,717,416 parameters"
    assert [row.split()[0] for row in rows] == [
        "tokens", "positions", "encoder.blocks", "encoder.norm", "pool", "head",
    ]  # fmt: skip
    assert "12 x Block: 3 heads of 64, plain MLP of 768 with GELU  [B, 197, 192]    5,338,368" in rows[2]


@pytest.mark.parametrize("kind", KINDS)
def test_the_shapes_of_the_printed_parts_are_those_of_the_forward_pass(kind):
    model = ViT(KINDS[kind]).eval()
    config, counts = model.config, {name: parameter.numel() for name, parameter in model.named_parameters()}
    rows = {row.name: row for row in list_parts(config, counts)}
    assert sum(row.parameters for row in rows.values()) == sum(counts.values())
    kept = model.features(torch.zeros(2, config.channels, *config.image_size), keep=("embedded", "pooled", "outputs"))
    names = {"positions": "embedded", "pool": "pooled", "head": "outputs"}
    for part, name in names.items():
        assert rows[part].shape == str(list(kept[name].shape)).replace("[2,", "[B,")


def test_a_model_without_head_or_blocks_prints_what_it_has():
    printed = repr(ViT(dataclasses.replace(TINY, outputs=0, depth=0, pool_blocks=1)))
    assert printed.startswith("ViT: images [B, 2, 12, 8] -> [B, 16], ") and "Block" not in printed
    assert repr(torch.nn.Sequential(copy.deepcopy(ViT(TINY)))).count("2 x Block") == 1
