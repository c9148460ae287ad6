"""Named intermediates: the numbers of the plain pass, the weights that made them, and gradients through them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kinds import KINDS, TINY, images_for
from vitrail.errors import UsageError
from vitrail.model.vit import create_model, feature_names

every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())


@every_kind
def test_what_is_kept_changes_nothing_and_every_name_is_there(config):
    model, images = create_model(config, seed=1).eval(), images_for(config)
    kept = model.features(images, keep=feature_names(model))
    assert list(kept) == list(feature_names(model))
    torch.testing.assert_close(kept["outputs"], model(images), atol=1e-5, rtol=0)
    B, T, D = len(images), config.tokens, config.width
    assert kept["embedded"].shape == kept["blocks.1"].shape == kept["tokens"].shape == (B, T, D)
    assert kept["blocks.0.attention"].shape == (B, config.heads, T, T)
    torch.testing.assert_close(kept["blocks.0.attention"].sum(-1), torch.ones(B, config.heads, T))
    assert kept["pooled"].shape[0] == B and kept["outputs"].shape == (B, config.outputs)


@every_kind
def test_chosen_heads_and_rows_are_a_cut_of_all_and_leave_the_answer_alone(config):
    model, images = create_model(config, seed=1).eval(), images_for(config)
    keep = ("blocks.0.attention", "blocks.1.attention", "outputs")
    everything = model.features(images, keep)
    chosen = model.features(images, keep, heads=[1], rows=[0, 3])
    for name in keep[:2]:
        torch.testing.assert_close(chosen[name], everything[name][:, [1]][:, :, [0, 3]], atol=1e-5, rtol=0)
    torch.testing.assert_close(chosen["outputs"], everything["outputs"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("relative", [0, 2])
def test_gradients_reach_the_weights_of_chosen_heads_and_rows_as_those_of_all(relative):
    model, images = create_model(dataclasses.replace(TINY, relative=relative), seed=1).eval(), images_for(TINY)
    keep, found = ("blocks.0.attention", "outputs"), []
    for heads, rows in ((None, None), ([1], [0, 3])):
        kept = model.features(images, keep, heads, rows)
        (gradient,) = torch.autograd.grad(kept["outputs"][:, 0].sum(), kept["blocks.0.attention"])
        found.append(gradient)
    assert found[1].abs().max() > 0
    torch.testing.assert_close(found[1], found[0][:, [1]][:, :, [0, 3]], atol=1e-6, rtol=1e-4)


def test_the_pass_ends_where_the_last_wanted_thing_is_known():
    model = create_model(TINY).eval()
    ran = []
    for part in (model.encoder.blocks[1], model.pool, model.head):
        part.register_forward_hook(lambda part, *_: ran.append(type(part).__name__))
    model.features(images_for(TINY), keep=("blocks.0",))
    assert not ran
    model.features(images_for(TINY), keep=("tokens",))
    assert ran == ["Block"]


def test_dropped_patches_leave_fewer_tokens():
    model = create_model(TINY).eval()
    visible = torch.tensor([[0, 5]] * 3)
    assert model.features(images_for(TINY), keep=("blocks.0",), visible=visible)["blocks.0"].shape == (3, 3, 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"keep": ("blocks.2",)},
            r"no features called 'blocks\.2'\. Known: embedded, blocks\.0\.attention, blocks\.0, .*tokens",
        ),
        ({"keep": ("blocks.0.attention",), "heads": [2]}, r"heads 0 to 1\. Got 2"),
        ({"keep": ("blocks.0.attention",), "rows": [0, 13]}, r"tokens 0 to 12\. Got rows=13"),
        ({"keep": ("blocks.0.attention",), "heads": [1, 1]}, r"heads must list numbers, each once; .* Got \[1, 1\]"),
        ({"keep": ("blocks.0.attention",), "rows": []}, r"rows must list numbers, each once; .* Got \[\]"),
        ({"keep": ("tokens",), "heads": [1]}, r"heads chooses among attention weights, and keep asks for none"),
    ],
)
def test_a_name_head_or_row_that_is_not_there_is_named(arguments, message):
    with pytest.raises(UsageError, match=message):
        create_model(TINY).features(images_for(TINY), **arguments)


@every_kind
def test_dense_features_are_the_patch_tokens_in_their_places(config):
    model, images = create_model(config, seed=1).eval(), images_for(config)
    dense = model.dense(images)
    assert dense.shape == (len(images), config.width, *config.grid)
    tokens = model.features(images)["tokens"][:, config.prefix :]
    torch.testing.assert_close(dense[:, :, 1, 2], tokens[:, config.grid.columns + 2])
