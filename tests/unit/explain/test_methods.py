"""The one door to all methods: what is refused, in which words, and the traps that others fall into."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from kinds import KINDS, TINY, images_for
from vitrail.errors import UsageError
from vitrail.explain import gradients
from vitrail.explain.attention_maps import attention_by_head
from vitrail.explain.attribution import AttributionMap, EmptyMapError, require_nonempty_map
from vitrail.explain.methods import METHODS, MethodOptions, explain_images
from vitrail.explain.occlusion import occlusion_from_outputs
from vitrail.explain.patch_features import find_artifact_patches, outlier_mask
from vitrail.model.vit import create_model
from vitrail.spec import Grid


def model_and_images(**changes):
    config = dataclasses.replace(TINY, **changes)
    return create_model(config, seed=1).eval(), images_for(config)


def a_map(values) -> AttributionMap:
    return AttributionMap(
        values=np.array(values, np.float32), method="rollout", layer="block 0", unit="share", description="A line."
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"method": "chefer"}, r"^There is no method 'chefer'\. The methods are relevance, legrad, grad-cam, integrat"),
        ({"targets": 3}, r"^The model has outputs 0 to 2\. Got 3 to explain\.$"),
        ({"targets": (0, 1)}, r"^One output to explain per picture is needed, 3\. Got 2\.$"),
        ({"options": MethodOptions(layer=2)}, r"^The model has blocks 0 to 1\. Got layer=2\.$"),
        (
            {"options": MethodOptions(steps=3, heads=(0,))},
            (
                r"^relevance has no use for heads, steps\. It knows "
                r"layer\.$"
            ),
        ),
        (
            {"method": "rollout", "targets": 1},
            r"^rollout draws the same map for every class, .* Of a class: relevance, leg",
        ),
        ({"method": "attention", "options": MethodOptions(heads=(2,))}, r"^The model has heads 0 to 1\. Got 2\.$"),
        ({"method": "similarity"}, r"^similarity needs the patch that others are compared with"),
        (
            {"method": "similarity", "options": MethodOptions(patch=13)},
            r"^patch must lie in 1\.\.12 for 3 x 4 pat.* Got 13\.$",
        ),
        (
            {"method": "occlusion", "options": MethodOptions(window=4)},
            r"^window must lie in 1\.\.3 for 3 x 4 patc.* Got 4\.$",
        ),
        ({"method": "integrated", "options": MethodOptions(steps=0)}, r"^steps must be at least 1\. Got 0\.$"),
        (
            {"method": "occlusion", "options": MethodOptions(drop=True, cover=torch.zeros(1, 2, 12, 8))},
            r"^Patches are either covered or dropped\. Got a cover and drop=True\.$",
        ),
    ],
)
def test_what_cannot_be_is_said(asked, message):
    model, images = model_and_images()
    with pytest.raises(UsageError, match=message):
        explain_images(model, images, **asked)


def test_a_model_without_blocks_has_nothing_to_look_at():
    model, images = model_and_images(depth=0)
    for method in ("relevance", "legrad", "grad-cam", "attention", "rollout", "lens"):
        with pytest.raises(UsageError, match=r"^The model has no blocks"):
            explain_images(model, images, method)


def test_a_probe_has_the_heads_that_it_has():
    model, images = model_and_images(class_token=False, pool="attention")
    with pytest.raises(UsageError, match=r"^heads must list some of 0 to 1, each once\. Got \[1, 1\]\.$"):
        attention_by_head(model, images, heads=(1, 1))


def test_overlapping_patches_cannot_be_taken_out():
    model, images = model_and_images(image_size=(32, 32), patch=(16, 16), patches="t2t-transformer")
    with pytest.raises(UsageError, match=r"^Patches of this model overlap"):
        explain_images(model, images, "occlusion", options=MethodOptions(drop=True))


def test_the_last_patch_cannot_be_taken_out():
    model, images = model_and_images(image_size=(8, 4))
    with pytest.raises(UsageError, match=r"^A window of 2 x 2 takes out every patch"):
        explain_images(model, images, "occlusion", options=MethodOptions(drop=True, window=2))


def test_an_empty_picture_adds_nothing():
    model, images = model_and_images()
    images[1] = 0
    with pytest.raises(EmptyMapError, match=r"^Picture 2 of 3 equals the empty picture"):
        explain_images(model, images, "integrated")


def test_X15_maps_that_say_nothing_are_refused_with_the_reason():
    good = a_map([[[0, 1]], [[2, 1]]])
    assert require_nonempty_map(good, "why") is good
    for values, message in (
        ([[[0, 1]], [[0, 0]]], r"^The map by rollout of picture 2 of 2 is zero everywhere: why\. Choose another"),
        ([[[3, 3]], [[0, 1]]], r"picture 1 of 2 has the same value 3 on all 2 patches, so it points nowhere"),
        ([[[0, 1]], [[np.nan, np.inf]]], r"picture 2 of 2 holds 2 values that are not finite"),
    ):
        with pytest.raises(EmptyMapError, match=message):
            require_nonempty_map(a_map(values), "why")


def test_a_head_of_zeros_is_no_map_but_a_reason():
    """Other libraries draw a black picture here."""
    model, images = model_and_images()
    torch.nn.init.zeros_(model.head.linear.weight)
    for method in ("relevance", "legrad", "grad-cam", "integrated", "occlusion"):
        with pytest.raises(EmptyMapError, match=rf"^The map by {method} of picture 1 of 3 is zero everywhere: "):
            explain_images(model, images, method, targets=1)


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_attention_is_there_for_every_kind_on_the_fused_path(config):
    """Where hooks on a fused kernel never fire and asking for attentions returns an empty tuple."""
    config = config if config.relative else dataclasses.replace(config, attention="fused")
    model, images = create_model(config, seed=1).eval(), images_for(config)
    names = [f"blocks.{i}.attention" for i in range(config.depth)]
    kept = model.features(images, (*names, "outputs"))
    for name in names:
        assert kept[name].shape == (3, config.heads, config.tokens, config.tokens)
        assert (kept[name].sum(-1) - 1).abs().max() < 1e-5
    assert (kept["outputs"] - model(images)).abs().max() < 1e-5
    found = METHODS["relevance"].run(model, images, None, MethodOptions())
    assert found.values.shape == (3, *config.grid) and found.values.any()


def test_registers_and_rectangles_need_no_reshaping_by_the_caller():
    """Where a square grid behind one class token is taken for granted: 8 x 2 patches behind 1 + 4 tokens."""
    model, images = model_and_images(image_size=(32, 4), registers=4)
    for method in METHODS:
        asked = {"similarity": MethodOptions(patch=16), "integrated": MethodOptions(steps=2)}.get(
            method, MethodOptions()
        )
        assert METHODS[method].run(model, images, None, asked).values.shape == (3, 8, 2)


def test_pooling_by_a_probe_shows_its_own_attention():
    config = dataclasses.replace(TINY, class_token=False, pool="attention", registers=1)
    model, images = create_model(config, seed=1).eval(), images_for(config)
    kept = model.features(images, ("pool.attention", "outputs"))
    assert kept["pool.attention"].shape == (3, 2, 1, 13)
    torch.testing.assert_close(kept["pool.attention"].sum(-1), torch.ones(3, 2, 1))
    torch.testing.assert_close(kept["outputs"], model(images), atol=1e-6, rtol=1e-5)
    assert attention_by_head(model, images).shape == (3, 2, 3, 4)


def test_X10_notes_tell_the_gap_of_integrated_gradients():
    model, images = model_and_images()
    few = explain_images(model, images, "integrated", targets=0, options=MethodOptions(steps=1)).notes
    enough = explain_images(model, images, "integrated", targets=0).notes
    assert all(note.startswith("1 step leaves a gap of ") for note in few)
    gaps = [float(note.split("gap of ")[1].split("%")[0]) for note in enough]
    assert len(gaps) == 3 and max(gaps) <= 1


def test_integrated_gradients_take_more_steps_for_the_pictures_that_need_them_alone(monkeypatch):
    monkeypatch.setattr(gradients, "STEP_COUNTS", (1, 64))
    model, images = model_and_images()
    images[0] *= 1e-3  # so close to the empty picture that the score is a straight line on the way
    together = explain_images(model, images, "integrated", targets=0)
    assert [note.partition(" ")[0] for note in together.notes][:2] == ["1", "64"]
    alone = [explain_images(model, image[None], "integrated", targets=0).values[0] for image in images]
    np.testing.assert_allclose(together.values, alone, rtol=1e-4, atol=1e-6)


def test_X9_injected_artefact_tokens_are_found_and_nothing_else():
    """X9: 99 % of injected ones, at most one false alarm in a thousand, of lengths that vary by a tenth."""
    draw = np.random.default_rng(0)
    lengths = draw.normal(40, 4, (500, 16, 16)).astype(np.float32)
    assert outlier_mask(lengths).mean() <= 0.001
    planted = draw.random(lengths.shape) < 0.02
    lengths[planted] *= draw.uniform(3, 6, planted.sum())
    found = outlier_mask(lengths)
    assert found[planted].mean() >= 0.99 and found[~planted].mean() <= 0.001


def test_X9_tokens_that_a_block_has_made_long_are_artefacts_and_those_of_odd_patches_are_not():
    model, images = model_and_images()
    assert not find_artifact_patches(model, images).any()
    odd = images.clone()
    odd[:, :, :4, :4] *= 500  # the first patch
    first, name = model.config.prefix, f"blocks.{model.config.depth - 1}"
    lengths = model.features(odd, (name,))[name][:, first:].norm(dim=-1).detach().numpy()
    assert outlier_mask(lengths[:, None])[:, 0, 0].all() and not find_artifact_patches(model, odd).any()

    def note(block, given, x):
        longer = torch.ones_like(x)
        longer[:, first + 5] = 50
        return x * longer

    held = model.encoder.blocks[-1].register_forward_hook(note)
    found = find_artifact_patches(model, images)
    held.remove()
    assert found.reshape(len(images), -1)[:, 5].all() and found.sum() == len(images)


def test_X9_a_plain_background_makes_no_artefacts():
    lengths = np.full((1, 8, 8), 20.0, np.float32)
    lengths[:, 2:5, 2:5] = 33
    assert not outlier_mask(lengths).any()


def test_X16_whatever_answers_can_be_covered_piece_by_piece():
    """An exported model has no blocks to look into; the same pictures are asked of it."""
    model, images = model_and_images(image_size=(11, 7), pad=True)
    asked = []

    def answer(pictures, rows):
        asked.append(len(pictures))
        with torch.no_grad():
            return model(pictures)[:, 1] + 10 * rows  # what does not change falls out

    found = occlusion_from_outputs(answer, images, TINY.patch, Grid(3, 4), window=2)
    wanted = explain_images(model, images, "occlusion", targets=1, options=MethodOptions(window=2)).values
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-5)
    assert sum(asked) == 3 + 3 * 2 * 3
