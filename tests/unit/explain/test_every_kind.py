"""Every method on every kind of model, and what must hold for all of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from kinds import KINDS, TINY, images_for
from vitrail.errors import UsageError
from vitrail.explain.attribution import sum_by_patch, token_weights, tokens_to_grid
from vitrail.explain.gradients import legrad, relevance_map
from vitrail.explain.methods import METHODS, MethodOptions, default_method, explain_images
from vitrail.model.vit import create_model
from vitrail.spec import Grid

pytestmark = pytest.mark.wide

MORE = {
    **KINDS,
    "several blocks": dataclasses.replace(TINY, depth=3, pool_blocks=2),
    "several blocks, class and mean": dataclasses.replace(TINY, depth=3, pool_blocks=3, pool="class+mean"),
    "several blocks that lie apart": dataclasses.replace(TINY, depth=4, pool_blocks=2, pool_every=2),
    "mean of all tokens": dataclasses.replace(TINY, pool="mean-all", registers=1),
    "t2t transformer": dataclasses.replace(TINY, image_size=(48, 32), patch=(16, 16), patches="t2t-transformer"),
    "padded": dataclasses.replace(TINY, image_size=(11, 7), pad=True, channels=5),
    "one channel, many outputs": dataclasses.replace(TINY, channels=1, outputs=14),
    "one number": dataclasses.replace(TINY, outputs=1, class_token=False, pool="mean"),
    "eight by two": dataclasses.replace(TINY, image_size=(160, 40), patch=(20, 20), channels=3),
}
every_kind = pytest.mark.parametrize("config", MORE.values(), ids=MORE.keys())
every_method = pytest.mark.parametrize("method", METHODS)
NEEDED = {"similarity": MethodOptions(patch=2), "integrated": MethodOptions(steps=2)}
CUT = ("grad-cam", "legrad", "relevance")
"""Methods that cut off what is negative: of an untrained model nothing may be left in some picture."""


def mapped(model, images, method, of=None):
    asked = NEEDED.get(method, MethodOptions())
    return METHODS[method].run(model, images, of, asked)


@pytest.mark.each_value
@every_kind
@every_method
def test_X3_a_map_has_a_number_for_every_patch_alone_and_in_a_batch(config, method):
    model, images = create_model(config, seed=1).eval(), images_for(config)
    found = mapped(model, images, method)
    assert found.values.shape == (3, *config.grid) and found.values.dtype == np.float32
    assert np.isfinite(found.values).all() and found.values.any()
    assert found.method == method and found.layer and found.description.endswith(".")
    alone = mapped(model, images[2:], method)
    np.testing.assert_allclose(alone.values, found.values[2:], atol=1e-5)
    assert (found.targets is not None) == METHODS[method].class_specific
    if found.targets is not None:
        assert found.targets == tuple(model(images).argmax(1).tolist())
    if method not in CUT:
        explain_images(model, images, method, options=NEEDED.get(method))


@every_kind
def test_relevance_and_legrad_are_those_of_one_large_graph(config):
    """Of kinds that `plain` does not know the gradients come from `features`, all blocks open at once."""
    model, images = create_model(config, seed=1).eval(), images_for(config)
    names = [f"blocks.{i}.attention" for i in range(config.depth)]
    kept = model.features(images, (*names, "blocks.0", "outputs"))
    weights = [kept[name] for name in names]
    gradients = torch.autograd.grad(kept["outputs"][:, 0].sum(), weights, retain_graph=True)
    product = identity = np.eye(config.tokens)
    for one, gradient in zip(weights, gradients, strict=True):
        product = product + np.maximum(0, (one * gradient).detach().numpy()).mean(1) @ product
    read = torch.zeros(3, config.tokens, config.pooled_width)
    share = _share(model, images) if config.pool == "attention" else token_weights(model, read).numpy()
    wanted = np.einsum("bt,bts->bs", share, product - identity)
    found = relevance_map(model, images, 0).values
    np.testing.assert_allclose(found, tokens_to_grid(torch.tensor(wanted), model, config.grid).numpy(), atol=1e-5)
    if config.pool == "attention" or config.pool_blocks > 1:
        return
    wanted = 0
    for name, one in zip(names, weights, strict=True):
        after = kept["blocks.0"] if name == names[0] else None
        outputs = kept["outputs"] if after is None else model.head(model.pool(model.encoder.apply_final_norm([after])))
        (gradient,) = torch.autograd.grad(outputs[:, 0].sum(), one, retain_graph=True)
        wanted = wanted + gradient.clamp(min=0).mean((1, 2)) / config.depth
    np.testing.assert_allclose(legrad(model, images, 0).values, tokens_to_grid(wanted, model, config.grid), atol=1e-5)


def _share(model, images) -> np.ndarray:
    return model.features(images, ("pool.attention",))["pool.attention"].mean(1)[:, 0].detach().numpy()


@pytest.mark.each_value
@every_kind
@pytest.mark.parametrize("method", [relevance_map, legrad], ids=["relevance", "legrad"])
def test_little_room_changes_no_number(config, method):
    model, images = create_model(config, seed=1).eval(), images_for(config)
    np.testing.assert_allclose(method(model, images, memory_limit=0).values, method(model, images).values, atol=1e-6)


@pytest.mark.parametrize("kind", ["class token, learned", "two heads, recomputed", "probe, no class token"])
def test_looking_leaves_no_trace(kind):
    config = KINDS[kind]
    model, images = (
        create_model(dataclasses.replace(config, dropout=0.5, mlp_dropout=0.5), seed=1).train(),
        images_for(config),
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for method in METHODS:
        with torch.inference_mode():
            mapped(model, images, method)
    assert model.training and all(part.training for part in model.modules())
    assert not any(len(part._forward_hooks) or len(part._forward_pre_hooks) for part in model.modules())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@every_method
def test_X8_the_same_bytes_every_time_and_under_any_gradient_mode(method):
    model, images = create_model(TINY, seed=1).eval(), images_for(TINY)
    first = mapped(model, images, method).values
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            assert mapped(model, images.clone(), method).values.tobytes() == first.tobytes()
    model.requires_grad_(False)
    assert np.abs(mapped(model, images, method).values - first).max() <= 1e-6


@every_method
def test_frozen_weights_and_both_paths_of_attention_give_the_same_map(method):
    found = []
    for path in ("fused", "open"):
        model = create_model(dataclasses.replace(TINY, attention=path), seed=1).eval().requires_grad_(False)
        found.append(mapped(model, images_for(TINY), method).values)
    np.testing.assert_allclose(*found, atol=1e-6)


def test_another_picture_size_has_its_own_grid():
    model = create_model(TINY, seed=1).eval()
    images = torch.randn(2, 2, 20, 4, generator=torch.Generator().manual_seed(2))
    for method in METHODS:
        assert mapped(model, images, method).values.shape == (2, 5, 2)


@pytest.mark.parametrize(
    ("changes", "method"),
    [
        ({}, "relevance"),
        ({"registers": 3, "pool": "class+mean"}, "relevance"),
        ({"distillation_token": True, "distillation_head": True}, "relevance"),
        ({"class_token": False, "pool": "mean"}, "relevance"),
        ({"pool": "mean"}, "relevance"),
        ({"pool": "attention"}, "relevance"),
        ({"outputs": 0}, "attention"),
    ],
)
def test_the_default_method_follows_what_carries_the_answer(changes, method):
    config = dataclasses.replace(TINY, **changes)
    assert default_method(config) == method
    model, images = create_model(config, seed=1).eval(), images_for(config)
    assert explain_images(model, images).method == method


@pytest.mark.parametrize("method", [name for name, one in METHODS.items() if one.class_specific])
def test_a_model_without_outputs_has_nothing_to_explain(method):
    config = dataclasses.replace(TINY, outputs=0)
    with pytest.raises(UsageError, match=rf"^{method} explains an output, and this model has none"):
        mapped(create_model(config), images_for(config), method)


@pytest.mark.parametrize("method", [name for name, one in METHODS.items() if one.class_specific])
def test_each_class_has_a_map_of_its_own(method):
    model, images = create_model(TINY, seed=1).eval(), images_for(TINY)
    of_all = [mapped(model, images, method, of).values for of in range(3)]
    assert np.abs(of_all[0] - of_all[1]).max() > 1e-5 and np.abs(of_all[1] - of_all[2]).max() > 1e-5
    mixed = mapped(model, images, method, (2, 0, 1))
    np.testing.assert_allclose(mixed.values, np.stack([of_all[2][0], of_all[0][1], of_all[1][2]]), atol=1e-6)


def test_pixels_are_summed_over_patches_and_nothing_lies_beyond_the_picture():
    pixels = torch.arange(15.0).reshape(1, 3, 5)
    assert sum_by_patch(pixels, (2, 4), Grid(2, 2)).tolist() == [[[0 + 1 + 2 + 3 + 5 + 6 + 7 + 8, 13], [46, 14]]]
