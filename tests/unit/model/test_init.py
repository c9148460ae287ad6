"""Initial values: what existing schemes drew yesterday, and what each published code draws."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
import torch
from torch import Tensor

from kinds import KINDS, TINY
from vitrail.errors import UsageError
from vitrail.model.config import Init, ViTConfig
from vitrail.model.init import initialise
from vitrail.model.positions import dinov3_periods, sincos2d_table
from vitrail.model.registry import config_from_name
from vitrail.model.vit import ViT, create_model

INITS = get_args(Init)
WIDE = ViTConfig(
    image_size=(32, 32), patch=(8, 8), channels=3, width=128, depth=3, heads=4, mlp_width=256, outputs=50, registers=4,
)  # fmt: skip
KEPT = {  # sum of the sizes of all numbers of models of seed 7, before there were more schemes than these
    ("truncated", ""): 146.2907132233927,
    ("torch", ""): 790.6060399792459,
    ("vitrail", ""): 595.5715100158504,
    ("truncated", "tanh, linear, axial"): 150.6174012387678,
    ("torch", "tanh, linear, axial"): 833.6132675613608,
    ("vitrail", "tanh, linear, axial"): 647.7521767486178,
    ("truncated", "mean, sincos2d, RMSNorm"): 247.2180112595538,
    ("torch", "mean, sincos2d, RMSNorm"): 716.3988434116454,
    ("vitrail", "mean, sincos2d, RMSNorm"): 696.2637266267047,
    ("truncated", "sinusoid, no qkv bias"): 260.9765572762112,
    ("torch", "sinusoid, no qkv bias"): 740.5596165632141,
    ("vitrail", "sinusoid, no qkv bias"): 709.9152463847204,
    ("truncated", "indexed, no class row"): 145.42535814357734,
    ("torch", "indexed, no class row"): 759.5530262116645,
    ("vitrail", "indexed, no class row"): 595.2803117769454,
}
CHANGES: dict[str, dict[str, object]] = {
    "": {},
    "tanh, linear, axial": {"head": "tanh", "patches": "linear", "rotary": "axial"},
    "mean, sincos2d, RMSNorm": {"class_token": False, "pool": "mean", "positions": "sincos2d", "norm": "RMSNorm"},
    "sinusoid, no qkv bias": {"positions": "sinusoid", "qkv_bias": False},
    "indexed, no class row": {"class_position": False, "positions": "indexed", "outputs": 0},
}


def size_of(model: ViT) -> float:
    return float(sum(tensor.double().abs().sum() for tensor in model.state_dict().values()))


@pytest.mark.parametrize(("init", "change"), KEPT)
def test_schemes_that_runs_were_made_with_draw_what_they_drew(init, change):
    model = create_model(dataclasses.replace(TINY, init=init, **CHANGES[change]), seed=7)
    assert size_of(model) == pytest.approx(KEPT[init, change], rel=1e-6)


def test_the_model_of_the_records_draws_what_it_drew():
    assert size_of(create_model(config_from_name("vit_nano_patch4_28"), seed=7)) == pytest.approx(
        51049.56376807664, rel=1e-6
    )


NARROW = {"width": 32, "heads": 2, "mlp_width": 48}
EVERY = {
    **KINDS,
    "performer": dataclasses.replace(config_from_name("t2t_vit_7"), **NARROW),
    "transformer": dataclasses.replace(config_from_name("t2t_vit_t_14"), **NARROW),
}
LEARNS = {
    "two heads, registers, layer scale, relative": dataclasses.replace(
        KINDS["two heads, recomputed"],
        registers=2,
        layer_scale=0.5,
        relative=2,
        mlp="gated-packed",
        grad_checkpointing=False,
    ),
    "probe": KINDS["probe, no class token"],
}
MIMETIC = dataclasses.replace(WIDE, init="mimetic", width=64, depth=1)


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("kind", EVERY)
def test_every_number_of_every_kind_gets_a_value(init, kind):
    config = dataclasses.replace(EVERY[kind], init=init, depth=1)
    if init == "mimetic" and config.attention_width > config.width:
        return  # refused, see below
    with torch.device("meta"):
        model = ViT(config)
    model.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        tensor.fill_(torch.nan)
    initialise(model, config, torch.Generator().manual_seed(0))
    assert [name for name, tensor in model.state_dict().items() if not tensor.isfinite().all()] == []


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("kind", LEARNS)
def test_every_scheme_can_learn(init, kind):
    """Within three steps every parameter has a gradient: no two zeros stand behind each other."""
    model = create_model(dataclasses.replace(LEARNS[kind], init=init, depth=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    images, targets = torch.randn(4, 2, 12, 8), torch.tensor([0, 2, 1, 0])
    idle = {name for name, _ in model.named_parameters()}
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), targets).backward()
        idle -= {name for name, parameter in model.named_parameters() if parameter.grad.any()}
        optimizer.step()
    assert idle == set()


@pytest.mark.parametrize("init", INITS)
def test_registers_start_unequal_and_scales_as_asked(init):
    model = create_model(dataclasses.replace(MIMETIC, init=init, layer_scale=0.3))
    assert (torch.pdist(model.tokens.registers[0].detach()) > 0).all()
    assert model.encoder.blocks[0].scale2.eq(0.3).all()


def std(tensor: Tensor) -> float:
    return tensor.detach().double().std().item()


def test_jax_draws_each_of_q_k_v_for_itself():
    model = create_model(dataclasses.replace(WIDE, init="jax", head="tanh"))
    block = model.encoder.blocks[0]
    assert block.attention.qkv.weight.abs().max().item() == pytest.approx((6 / 256) ** 0.5, rel=1e-3)
    assert block.mlp.fc1.weight.abs().max().item() == pytest.approx((6 / 384) ** 0.5, rel=1e-3)
    assert not block.attention.qkv.bias.any() and std(block.mlp.fc2.bias) == pytest.approx(1e-6, rel=0.3)
    assert std(model.tokens.patches.weight) == pytest.approx(192**-0.5, rel=0.03)
    assert std(model.head.hidden.weight) == pytest.approx(128**-0.5, rel=0.03)
    assert not model.tokens.cls.any() and not model.head.linear.weight.any()
    assert std(model.positions.table) == pytest.approx(0.02, rel=0.1)


def test_jax_draws_the_probe_as_a_matrix_of_one_row():
    model = create_model(dataclasses.replace(WIDE, init="jax", pool="attention"))
    assert model.pool.attention.probe.abs().max().item() == pytest.approx((6 / 129) ** 0.5, rel=0.05)
    assert model.pool.attention.kv.weight.abs().max().item() == pytest.approx((6 / 256) ** 0.5, rel=1e-3)


def test_mae_draws_the_patches_as_a_matrix_and_qkv_as_one():
    model = create_model(dataclasses.replace(WIDE, init="mae"))
    bound = (6 / (128 + 192)) ** 0.5
    assert model.tokens.patches.weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
    assert model.encoder.blocks[0].attention.qkv.weight.abs().max().item() == pytest.approx((6 / 512) ** 0.5, rel=1e-3)
    assert std(model.tokens.cls) == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("init", ["timm", "dinov2"])
def test_timm_and_dinov2_leave_the_patches_to_torch_and_tokens_near_zero(init):
    model = create_model(dataclasses.replace(WIDE, init=init))
    for patches in (model.tokens.patches.weight, model.tokens.patches.bias):
        assert patches.abs().max().item() == pytest.approx(192**-0.5, rel=0.03)
    assert std(model.encoder.blocks[0].attention.qkv.weight) == pytest.approx(0.02, rel=0.03)
    assert std(model.tokens.cls) == pytest.approx(1e-6, rel=0.3)
    assert std(model.tokens.registers) == pytest.approx(1e-6, rel=0.3)


def test_ijepa_shrinks_the_ends_of_branches_with_depth():
    model = create_model(dataclasses.replace(WIDE, init="ijepa"))
    for i, block in enumerate(model.encoder.blocks):
        for end in (block.attention.out, block.mlp.fc2):
            assert std(end.weight) == pytest.approx(0.02 / (2 * (i + 1)) ** 0.5, rel=0.03)
        assert std(block.mlp.fc1.weight) == pytest.approx(0.02, rel=0.03)


def test_torchvision_leaves_attention_to_torch():
    model = create_model(dataclasses.replace(WIDE, init="torchvision"))
    block = model.encoder.blocks[0]
    assert std(model.tokens.patches.weight) == pytest.approx(192**-0.5, rel=0.03)
    assert block.attention.out.weight.abs().max().item() == pytest.approx(128**-0.5, rel=1e-3)
    assert block.attention.qkv.weight.abs().max().item() == pytest.approx((6 / 512) ** 0.5, rel=1e-3)
    assert std(block.mlp.fc1.bias) == pytest.approx(1e-6, rel=0.3)
    assert not model.tokens.cls.any() and not model.head.linear.weight.any()


def test_mimetic_products_have_their_diagonals():
    attention = create_model(MIMETIC).encoder.blocks[0].attention
    queries, keys, values = attention.qkv.weight.detach().view(3, 4, 16, 64)
    for query, key in zip(queries, keys, strict=True):
        product = query.T @ key  # the best of rank 16 of 0.7 Z + 0.7 I, which has rank 64
        assert torch.linalg.matrix_rank(product) == 16
        assert product.diagonal().mean().item() > 0.2
        assert abs((product.sum() - product.trace()).item()) / 64**2 < 0.02
    product = values.flatten(0, 1).T @ attention.out.weight.detach().T  # all of 0.4 Z - 0.4 I
    assert product.diagonal().mean().item() == pytest.approx(-0.4, abs=0.02)
    noise = product + 0.4 * torch.eye(64)
    assert std(noise) == pytest.approx(0.4 * 64**-0.5, rel=0.05)
    assert not attention.qkv.bias.any()


def test_mimetic_heads_differ_and_learned_positions_start_as_waves():
    model = create_model(MIMETIC)
    queries = model.encoder.blocks[0].attention.qkv.weight[:64].view(4, 16, 64)
    assert (queries[0] - queries[1]).abs().max() > 0.1
    waves = sincos2d_table(WIDE.grid, 64, "sincos2d-moco")
    assert torch.equal(model.positions.table[1:], waves) and not model.positions.table[0].any()


def test_mimetic_refuses_heads_wider_than_tokens():
    with pytest.raises(UsageError, match=r"heads=4, head_width=32, width=64"):
        create_model(dataclasses.replace(MIMETIC, head_width=32))


def test_what_is_computed_is_not_drawn():
    model = create_model(KINDS["dinov3"])
    assert torch.equal(model.rotary.periods, dinov3_periods(8))
    assert not model.encoder.blocks[0].attention.qv_bias.any()


def test_random_features_are_orthogonal_and_follow_the_seed():
    first, same, other = (
        create_model(EVERY["performer"], seed=seed).tokens.patches.attention1.features for seed in (1, 1, 2)
    )
    assert torch.equal(first, same) and not torch.equal(first, other)
    torch.testing.assert_close(first @ first.T, 32 * torch.eye(32), atol=1e-4, rtol=0)
