"""Parts that can be chosen by value: each against torch's own layers or another way to say the same."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kinds import KINDS, TINY, images_for
from vitrail.errors import UsageError
from vitrail.model import attention
from vitrail.model.config import ViTConfig
from vitrail.model.vit import Head, Pooling, ViT, create_model


def twin(model: ViT, **changes: object) -> ViT:
    """Another model of the changed configuration, fresh, in evaluation mode."""
    return create_model(dataclasses.replace(model.config, **changes), seed=7).eval()


def test_packed_and_split_gates_are_one_function():
    split = create_model(dataclasses.replace(TINY, mlp="gated", activation="SiLU"), seed=1).eval()
    packed = twin(split, mlp="gated-packed")
    state = split.state_dict()
    for i in range(TINY.depth):
        for part in ("weight", "bias"):
            gate = state.pop(f"encoder.blocks.{i}.mlp.gate.{part}")
            name = f"encoder.blocks.{i}.mlp.fc1.{part}"
            state[name] = torch.cat([gate, state[name]])
    packed.load_state_dict(state)
    images = images_for(TINY)
    torch.testing.assert_close(packed(images), split(images), atol=1e-5, rtol=0)


def test_no_key_bias_is_a_bias_of_zeros_on_the_keys():
    some = create_model(dataclasses.replace(TINY, key_bias=False, rotary="axial"), seed=1).eval()
    nn.init.normal_(some.encoder.blocks[0].attention.qv_bias)
    full = twin(some, key_bias=True)
    state = some.state_dict()
    for i in range(TINY.depth):
        of_q, of_v = state.pop(f"encoder.blocks.{i}.attention.qv_bias").chunk(2)
        state[f"encoder.blocks.{i}.attention.qkv.bias"] = torch.cat([of_q, torch.zeros_like(of_q), of_v])
    full.load_state_dict(state)
    images = images_for(TINY)
    torch.testing.assert_close(full(images), some(images), atol=1e-5, rtol=0)


def test_layer_scale_multiplies_every_branch():
    scaled = create_model(dataclasses.replace(TINY, layer_scale=0.25), seed=1).eval()
    plain = twin(scaled, layer_scale=None)
    state = {name: tensor for name, tensor in scaled.state_dict().items() if ".scale" not in name}
    for name in [name for name in state if ".attention.out." in name or ".mlp.fc2." in name]:
        state[name] = state[name] * 0.25
    plain.load_state_dict(state)
    assert scaled.encoder.blocks[0].scale1.eq(0.25).all()
    images = images_for(TINY)
    torch.testing.assert_close(plain(images), scaled(images), atol=1e-5, rtol=0)


def test_a_parallel_block_adds_both_branches_of_one_norm():
    model = create_model(dataclasses.replace(TINY, parallel=True, depth=1), seed=1).eval()
    images, block = images_for(TINY), model.encoder.blocks[0]
    x, places = model.embed(images)
    normal = block.norm1(x)
    expected = x + block.attention(normal, places) + block.mlp(normal)
    torch.testing.assert_close(model.features(images, ("blocks.0",))["blocks.0"], expected)
    assert block.norm2 is None


def test_norms_behind_the_branches_normalise_what_is_added():
    config = dataclasses.replace(TINY, post_norm=True, depth=1)
    model = create_model(config, seed=2).eval()
    x, places = model.embed(images_for(config))
    block = model.encoder.blocks[0]
    middle = x + block.norm1(block.attention(x, places))
    torch.testing.assert_close(block(x, places), middle + block.norm2(block.mlp(middle)))
    with pytest.raises(UsageError, match="needs parallel=false"):
        dataclasses.replace(config, parallel=True)


def test_inner_norms_stand_before_the_last_matrix_of_each_branch():
    config = dataclasses.replace(TINY, attention_norm=True, mlp_norm=True, mlp="gated", activation="SiLU")
    block = create_model(config, seed=2).eval().encoder.blocks[0]
    x, mlp = torch.randn(2, 7, 16), block.mlp
    hidden = torch.nn.functional.silu(mlp.gate(x)) * mlp.fc1(x)
    torch.testing.assert_close(mlp(x), mlp.fc2(torch.nn.functional.layer_norm(hidden, (24,), eps=1e-6)))
    assert tuple(block.attention.norm.weight.shape) == (16,)


def test_queries_and_keys_are_normalised_over_their_head_or_over_all_heads():
    for joint, normed in ((False, 8), (True, 16)):
        config = dataclasses.replace(TINY, qk_norm=True, qk_norm_joint=joint, depth=1)
        part = create_model(config, seed=2).encoder.blocks[0].attention
        nn.init.normal_(part.q_norm.weight)
        assert tuple(part.q_norm.weight.shape) == (normed,) == tuple(part.k_norm.bias.shape)
        x = torch.randn(2, 7, 16)
        q = part.q_norm(part.qkv(x)[..., :16].unflatten(-1, (-1, normed))).flatten(-2)
        found, _, _ = part._project_heads(x, attention.TokenPositions(config.grid))
        torch.testing.assert_close(found.transpose(1, 2).flatten(-2), q)
    with pytest.raises(UsageError, match="qk_norm_joint=true needs qk_norm=true"):
        dataclasses.replace(TINY, qk_norm_joint=True)


def test_a_norm_of_the_tokens_stands_before_the_positions():
    for patches in ("conv", "linear"):
        config = dataclasses.replace(TINY, token_norm=True, patches=patches)
        tokens = create_model(config, seed=2).tokens(images_for(config))[0][:, 1:]
        torch.testing.assert_close(tokens.mean(-1), torch.zeros(3, 12), atol=1e-5, rtol=0)


def test_probe_pooling_is_torchs_attention_with_a_residual_mlp():
    config = dataclasses.replace(TINY, class_token=False, pool="attention", pooled_norm=False, init="torch")
    pool = create_model(config, seed=1).pool.attention
    theirs = nn.MultiheadAttention(16, config.heads, batch_first=True)
    theirs.in_proj_weight.data = torch.cat([pool.q.weight, pool.kv.weight]).data
    theirs.in_proj_bias.data = torch.cat([pool.q.bias, pool.kv.bias]).data
    theirs.out_proj.weight.data, theirs.out_proj.bias.data = pool.out.weight.data, pool.out.bias.data
    x = torch.randn(3, 12, 16)
    seen, _ = theirs(pool.probe.expand(3, -1, -1), x, x)
    expected = seen + pool.mlp.fc2(F.gelu(pool.mlp.fc1(pool.norm(seen))))
    torch.testing.assert_close(pool(x), expected[:, 0], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({}, 16),
        ({"pool": "mean"}, 16),
        ({"pool": "class+mean"}, 32),
        ({"registers": 3}, 16),
        ({"pool": "mean-all", "registers": 3}, 16),
    ],
)
def test_pooling_takes_the_class_token_and_the_mean_of_patches_or_of_all_tokens(changes, width):
    config = dataclasses.replace(TINY, **changes)
    x = torch.randn(2, config.tokens, 16)
    parts = {"class": x[:, 0], "mean": x[:, config.prefix :].mean(1), "mean-all": x.mean(1)}
    expected = torch.cat([parts[kind] for kind in config.pool.split("+")], dim=1)
    assert config.pooled_width == width
    torch.testing.assert_close(Pooling(config)(x), expected)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("pool", ["class", "mean", "class+mean"])
def test_a_head_may_read_several_blocks_each_through_the_final_norm(pool, every):
    config = dataclasses.replace(TINY, depth=3, pool=pool, pool_blocks=2, pool_every=every)
    model, images = create_model(config, seed=1).eval(), images_for(config)
    x, places = model.embed(images)
    states = [x := block(x, places) for block in model.encoder.blocks]
    lower, upper = (model.encoder.norm(state) for state in (states[2 - every], states[2]))
    kinds = {"class": lambda x: x[:, 0], "mean": lambda x: x[:, config.prefix :].mean(1)}
    by_hand = torch.cat([kinds[kind](state) for kind in pool.split("+") for state in (lower, upper)], dim=1)
    assert by_hand.shape[1] == config.pooled_width == 32 * len(pool.split("+"))
    torch.testing.assert_close(model(images), model.head(by_hand), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(model.dense(images).flatten(2).mT, upper[:, config.prefix :], atol=1e-6, rtol=1e-6)


def test_two_heads_answer_with_their_mean():
    config = dataclasses.replace(TINY, distillation_token=True, distillation_head=True)
    head, x = Head(config), torch.randn(2, 32)
    expected = (head.linear(x[:, :16]) + head.distillation(x[:, 16:])) / 2
    torch.testing.assert_close(head(x), expected)
    bare = Head(dataclasses.replace(config, outputs=0))
    torch.testing.assert_close(bare(x), (x[:, :16] + x[:, 16:]) / 2)


def test_registers_get_no_position_and_the_distillation_token_does():
    config = dataclasses.replace(TINY, distillation_token=True, registers=2)
    model, images = create_model(config, seed=1).eval(), images_for(config)
    assert config.prefix == 4 and model.positions.table.shape == (2 + 12, 16)
    x, _ = model.embed(images)
    torch.testing.assert_close(x[:, 1], (model.tokens.distillation[0] + model.positions.table[1]).expand(3, -1))
    torch.testing.assert_close(x[0, 2:4], model.tokens.registers[0])
    torch.testing.assert_close(x[:, 4:], model.tokens(images)[0][:, 4:] + model.positions.table[2:])


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", ["class token, learned", "dinov3", "relative, normed patches"])
def test_recomputing_blocks_gives_the_same_gradients_with_dropout_too(name, autocast):
    rates = {"dropout": 0.2, "attention_dropout": 0.2, "mlp_dropout": 0.2, "drop_path": 0.3}
    config, found = dataclasses.replace(KINDS[name], **rates), []
    for recompute in (False, True):
        model = create_model(dataclasses.replace(config, grad_checkpointing=recompute), seed=1).train()
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(images_for(config)).float().square().sum()
        loss.backward()
        found.append({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for key, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][key], msg=key)


def test_a_head_wider_than_its_share_of_the_width():
    model = create_model(dataclasses.replace(TINY, head_width=12))
    assert model.encoder.blocks[0].attention.qkv.weight.shape == (72, 16)
    assert model.encoder.blocks[0].attention.out.weight.shape == (16, 24)
    assert model.encoder.blocks[0].attention.scale == pytest.approx(12**-0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool_blocks": 0}, r"pool_blocks must lie in 1\.\.\d+ \(depth\)\. Got 0"),
        ({"pool_every": 0}, "pool_every must be at least 1, .* Got pool_every=0 with pool_blocks=1"),
        ({"pool_blocks": 2, "pool_every": 9}, r"\(pool_blocks - 1\) \* pool_every \+ 1 at most \d+ \(depth\)"),
        ({"pool_blocks": 2, "pool": "attention"}, r"pool_blocks=2 needs pool=.* and one head"),
        ({"class_token": False, "pool": "class+mean"}, r'pool="class\+mean" needs class_token=true'),
        ({"class_token": False, "pool": "mean", "distillation_token": True}, "stands behind the class token"),
        ({"distillation_head": True}, "distillation_head=true needs distillation_token=true"),
        ({"patch_norms": True}, 'patch_norms=true needs patches="linear". Got patches="conv"'),
        ({"relative": 2, "attention": "fused"}, "no fused kernel"),
        ({"registers": -1}, "must not be negative. Got registers=-1"),
        ({"head_width": 0}, "head_width must be at least 1. Got 0"),
        ({"distillation_token": True, "distillation_head": True, "pooled_norm": True}, "needs pooled_norm=false"),
        (
            {"patches": "t2t-performer", "patch": (16, 16), "image_size": (32, 32), "patch_bias": False},
            "patch_bias=true",
        ),
        ({"patches": "t2t-performer"}, r"needs patch=\(16, 16\) and pad=false. Got patch=\(4, 2\)"),
        ({"pool": "attention", "heads": 3, "head_width": 4}, "width that is a multiple of heads. Got 16, 3"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(TINY, **changes)


def test_the_words_for_the_first_tokens():
    assert dataclasses.replace(TINY, distillation_token=True, registers=4).describe_prefix == (
        "the class token, the distillation token, 4 registers"
    )
    assert ViTConfig(class_token=False, pool="mean").describe_prefix == ""


@pytest.mark.parametrize("patches", ["conv", "linear"])
def test_pictures_of_another_number_of_channels_are_refused(patches):
    model = create_model(dataclasses.replace(TINY, patches=patches))
    with pytest.raises(UsageError, match=r"reads 2 channels\. Got 3: images are \[B, C, H, W\]"):
        model(torch.zeros(1, 3, 12, 8))


@pytest.mark.parametrize("name", [name for name, config in KINDS.items() if not config.relative])
def test_queries_and_keys_keep_the_number_format_that_autocast_gave_them(name, monkeypatch):
    model, dtypes = create_model(KINDS[name], seed=1).eval(), []
    monkeypatch.setattr(attention, "choose_path", lambda *words: dtypes.append(words[2]) or "fused")
    with torch.autocast("cpu", torch.bfloat16):
        model(images_for(KINDS[name]))
    assert set(dtypes) == {"bfloat16"}


@pytest.mark.parametrize(("name", "word"), [("pool", "avg"), ("activation", "gelu"), ("rotary", "dino"), ("init", "x")])
def test_a_word_that_is_not_in_the_dictionary_is_refused_with_those_that_are(name, word):
    with pytest.raises(UsageError, match=rf"{name} must be one of .*{getattr(TINY, name)}.* Got '{word}'"):
        dataclasses.replace(TINY, **{name: word})
