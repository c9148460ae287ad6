"""What must hold for every plain ViT, whatever its numbers."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinds import KINDS, TINY, images_for
from vitrail.model.attention import attend, attention_weights
from vitrail.model.positions import RotaryTables, apply_rotary, resample_table
from vitrail.model.tokens import patchify, unpatchify
from vitrail.model.vit import ViT, create_model
from vitrail.spec import Grid

pytestmark = pytest.mark.wide

few = settings(max_examples=15, deadline=None)
sides = st.integers(1, 4)

every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())


@few
@given(h=sides, w=sides, p=sides, q=sides, channels=st.integers(1, 3))
def test_unpatchify_undoes_patchify(h, w, p, q, channels):
    images = torch.randn(2, channels, h * p, w * q)
    flat = patchify(images, (p, q))
    assert flat.shape == (2, h * w, channels * p * q)
    assert torch.equal(unpatchify(flat, (p, q), Grid(h, w), channels), images)


@few
@given(h=sides, w=sides, p=sides, q=sides, channels=st.integers(1, 3))
def test_patchify_is_torch_unfold(h, w, p, q, channels):
    images = torch.randn(2, channels, h * p, w * q)
    unfolded = torch.nn.functional.unfold(images, (p, q), stride=(p, q)).transpose(1, 2)
    assert torch.equal(patchify(images, (p, q)), unfolded)


@few
@given(h=sides, w=sides, p=sides, q=sides, channels=st.integers(1, 3), forth=st.booleans())
def test_conv_and_linear_patches_are_one_function_with_interchangeable_weights(h, w, p, q, channels, forth):
    conv = dataclasses.replace(TINY, image_size=(h * p, w * q), patch=(p, q), channels=channels)
    linear = dataclasses.replace(conv, patches="linear")
    giver, taker = (create_model(conv), create_model(linear)) if forth else (create_model(linear), create_model(conv))
    state = giver.state_dict()
    shape = taker.state_dict()["tokens.patches.weight"].shape
    taker.load_state_dict(state | {"tokens.patches.weight": state["tokens.patches.weight"].reshape(shape)})
    images = images_for(conv)
    torch.testing.assert_close(giver.eval()(images), taker.eval()(images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_without_positions_permuting_the_patches_permutes_the_outputs(pool):
    config = dataclasses.replace(TINY, positions="none", pool=pool)
    model, images = create_model(config).eval(), images_for(TINY)
    order = torch.randperm(config.grid.patches, generator=torch.Generator().manual_seed(2))
    shuffled = unpatchify(patchify(images, config.patch)[:, order], config.patch, config.grid, config.channels)
    tokens = model.features(images)["tokens"]
    moved = model.features(shuffled)["tokens"]
    torch.testing.assert_close(tokens[:, 1:][:, order], moved[:, 1:], atol=1e-5, rtol=0)
    torch.testing.assert_close(model(images), model(shuffled), atol=1e-5, rtol=0)


@every_kind
def test_with_positions_permuting_the_patches_changes_the_answer(config):
    model, images = create_model(config).eval(), images_for(config)
    flat = patchify(images, config.patch).roll(1, dims=1)
    shuffled = unpatchify(flat, config.patch, config.grid, config.channels)
    assert (model(images) - model(shuffled)).abs().max() > 1e-4


@few
@given(tokens=st.integers(1, 9), heads=st.integers(1, 3), width=st.integers(1, 8), scale=st.floats(0.01, 3))
def test_attention_rows_are_positive_and_sum_to_one(tokens, heads, width, scale):
    q, k = torch.randn(2, 2, heads, tokens, width)
    weights = attention_weights(q, k, scale)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, heads, tokens), atol=1e-5, rtol=0)


@few
@given(tokens=st.integers(1, 17), heads=st.integers(1, 3), width=st.integers(1, 16), scale=st.floats(0.01, 2))
def test_both_paths_agree_in_outputs_and_gradients(tokens, heads, width, scale):
    found = {}
    start = torch.randn(3, 2, heads, tokens, width)
    weight = torch.randn(2, heads, tokens, width)
    for path in ("fused", "open"):
        leaf = start.clone().requires_grad_()
        y = attend(*leaf, scale, 0.0, path)
        (y * weight).sum().backward()
        found[path] = y.detach(), leaf.grad
    torch.testing.assert_close(found["fused"][0], found["open"][0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found["fused"][1], found["open"][1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", [name for name, config in KINDS.items() if not config.relative])
def test_a_model_gives_the_same_by_both_paths(name):
    config = KINDS[name]
    fused = create_model(dataclasses.replace(config, attention="fused"), seed=4)
    in_the_open = create_model(dataclasses.replace(config, attention="open"), seed=4)
    images, gradients = images_for(config), []
    for model in (fused, in_the_open):
        model(images).square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(fused(images), in_the_open(images), atol=1e-5, rtol=0)
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def tables(kind: str, grid: Grid, head: int = 16) -> RotaryTables:
    config = dataclasses.replace(TINY, width=2 * head, positions="none", rotary=kind)
    found = create_model(config).rotary(grid, torch.zeros(1))
    assert found is not None
    return found


@few
@given(kind=st.sampled_from(["axial", "from-one", "dinov3"]), rows=st.integers(1, 5), columns=st.integers(1, 5))
def test_rotation_keeps_norms_and_leaves_the_class_token(kind, rows, columns):
    x = torch.randn(2, 1 + rows * columns, 2, 2, 16)
    turned = apply_rotary(x, tables(kind, Grid(rows, columns)))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5, rtol=1e-5)
    assert torch.equal(turned[:, 0], x[:, 0])


@few
@given(kind=st.sampled_from(["axial", "from-one"]), down=st.integers(0, 3), right=st.integers(0, 3))
def test_products_after_rotation_depend_on_offsets_only(kind, down, right):
    grid = Grid(6, 6)
    q, k = torch.randn(2, 16)
    everywhere = torch.stack([q, k]).expand(1, 37, 2, 16)[:, :, :, None]  # the same q and k at every place
    turned = apply_rotary(everywhere, tables(kind, grid))[0, 1:, :, 0].unflatten(0, grid)  # [6, 6, 2, 16]
    products = (turned[: 6 - down, : 6 - right, 0] * turned[down:, right:, 1]).sum(-1)
    torch.testing.assert_close(products, products[0, 0].expand_as(products), atol=1e-4, rtol=0)


@every_kind
def test_a_batch_equals_its_singles(config):
    model, images = create_model(config).eval(), images_for(config, 5)
    singles = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model(images), singles, atol=1e-5, rtol=0)


@every_kind
def test_keeping_every_patch_in_any_order_changes_nothing(config):
    model, images = create_model(config).eval(), images_for(config)
    orders = torch.stack([torch.randperm(config.grid.patches) for _ in range(len(images))])
    torch.testing.assert_close(model(images, orders), model(images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "soft splits"])
def test_dropped_patches_have_no_influence(name):
    """Soft splits look at the whole picture before a patch can be dropped."""
    config = KINDS[name]
    model, images = create_model(config).eval(), images_for(config)
    rows = torch.tensor([[0, 3, 5]]).expand(len(images), -1)
    hidden = [row for row in range(config.grid.patches) if row not in (0, 3, 5)]
    flat = patchify(images, config.patch)
    flat[:, hidden] = 99.0
    painted = unpatchify(flat, config.patch, config.grid, config.channels)
    assert torch.equal(model(painted, rows), model(images, rows))


@pytest.mark.wide
@every_kind
def test_torch_export_accepts_the_model(config):
    model, images = create_model(config).eval(), images_for(config)
    exported = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(exported(images), model(images), atol=1e-5, rtol=0)


def test_torch_compile_takes_every_kind_as_one_graph():
    found = compiled("aot_eager")
    assert found.keys() == KINDS.keys()
    for name, (outputs, gradients) in found.items():
        assert outputs <= 1e-5, name
        assert gradients <= 1e-4, name


@pytest.mark.needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", ["dinov3", *(name for name in KINDS if name != "dinov3")])
def test_torch_compile_makes_machine_code_of_it_that_gives_the_same(name):
    ((outputs, gradients),) = compiled("inductor", name).values()
    assert outputs <= 1e-5 and gradients <= 1e-4


def compiled(*words: str) -> dict[str, list[float]]:
    """What tests/compiled.py prints."""
    program = [sys.executable, "-W", "ignore", str(Path(__file__).parents[1] / "compiled.py"), *words]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@few
@given(h=st.integers(1, 6), w=st.integers(1, 6))
def test_resampling_to_the_same_grid_changes_nothing(h, w):
    table = torch.randn(h * w, 8)
    assert torch.equal(resample_table(table, Grid(h, w), Grid(h, w)), table)


@few
@given(old=st.tuples(sides, sides), new=st.tuples(st.integers(1, 9), st.integers(1, 9)), value=st.floats(-2, 2))
def test_resampling_keeps_a_constant_table(old, new, value):
    table = torch.full((old[0] * old[1], 4), value)
    torch.testing.assert_close(resample_table(table, Grid(*old), Grid(*new)), torch.full((new[0] * new[1], 4), value))


@every_kind
def test_another_rectangular_size_gives_one_answer_per_picture(config):
    model = create_model(config).eval()
    other = torch.randn(2, config.channels, config.patch[0] * 2, config.patch[1] * 5)
    assert model(other).shape == (2, config.outputs)


def test_the_same_seed_gives_the_same_model_whatever_happened_before():
    first = create_model(TINY, seed=5).state_dict()
    torch.randn(7)
    second, third = create_model(TINY, seed=5).state_dict(), create_model(TINY, seed=6).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["tokens.patches.weight"], third["tokens.patches.weight"])


def test_every_parameter_moves_the_answer():
    for config in KINDS.values():
        model: ViT = create_model(config)
        model(images_for(config)).square().sum().backward()
        idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert idle == [], config
