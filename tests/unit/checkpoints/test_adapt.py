"""Another size, other channels, another pooling, another head: done exactly, noted, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from vitrail.checkpoints.adapt import (
    ModelDraft,
    adapt_channels,
    adapt_image_size,
    adapt_outputs,
    adapt_pool,
    build_model,
    reorder_spec_channels,
)
from vitrail.checkpoints.validate import Audit, AuditRow
from vitrail.errors import UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT
from vitrail.spec import ImageSpec

from .toy import model

CONFIG = ViTConfig(image_size=(8, 8), patch=(2, 2), width=8, depth=1, heads=2, mlp_width=12, outputs=3, norm_eps=1e-5)


def draft(config: ViTConfig = CONFIG) -> ModelDraft:
    values = model(config).state_dict()
    rows = tuple(AuditRow(theirs=f"their.{name}", shape=(), action="loaded", ours=name) for name in values)
    return ModelDraft(config=config, values=values, audit=Audit(layout="toy", rows=rows))


def built(changed: ModelDraft) -> ViT:
    return build_model(changed.config, changed.values)


def pictures(*shape: int) -> Tensor:
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("positions", ["learned", "indexed", "sincos2d", "sinusoid", "none"])
@pytest.mark.parametrize("size", [(8, 12), (16, 16)])
@torch.no_grad()
def test_a_model_of_another_size_answers_as_the_old_one_does_on_such_pictures(
    positions: str, size: tuple[int, int]
) -> None:
    old = draft(replace(CONFIG, positions=positions, resample="bicubic"))
    new = adapt_image_size(old, size)
    images = pictures(3, *size)
    assert new.config.image_size == size and len(new.notes) == 1
    assert (built(new)(images) - built(old)(images)).abs().max() < 1e-6
    assert adapt_image_size(new, size) is new


def test_the_rows_of_the_tokens_before_the_patches_stay_as_they_are() -> None:
    config = replace(CONFIG, distillation_token=True)
    new = adapt_image_size(draft(config), (16, 16))
    assert torch.equal(new.values["positions.table"][:2], draft(config).values["positions.table"][:2])
    assert new.notes == ("positions resampled from 4x4 to 8x8 patches by the rule bicubic-antialias",)
    with pytest.raises(UsageError, match="height 9 is not a multiple of the patch height 2"):
        adapt_image_size(draft(), (9, 8))


@pytest.mark.parametrize("patches", ["conv", "linear"])
@torch.no_grad()
def test_channels_by_every_policy(patches: str) -> None:
    old = draft(replace(CONFIG, patches=patches))
    grey = pictures(1, 8, 8)
    as_colour = built(old)(grey.expand(-1, 3, -1, -1))
    one = built(adapt_channels(old, 1, "sum"))
    assert (one(grey) - as_colour).abs().max() < 1e-5
    for policy in ("sum", "tile"):
        six = built(adapt_channels(old, 6, policy))
        assert (six(grey.expand(-1, 6, -1, -1)) - as_colour).abs().max() < 1e-5
    swapped = built(adapt_channels(old, 2, (2, 0)))
    colour = pictures(3, 8, 8)
    colour[:, 1] = 0
    assert (swapped(colour[:, [2, 0]]) - built(old)(colour)).abs().max() < 1e-5
    mean = adapt_channels(old, 2, "mean").values["tokens.patches.weight"].reshape(8, 2, 4)
    assert torch.allclose(mean[:, 1], old.values["tokens.patches.weight"].reshape(8, 3, 4).mean(1))


@torch.no_grad()
def test_a_list_puts_as_many_channels_in_another_order() -> None:
    swapped, colour = adapt_channels(draft(), 3, (2, 1, 0)), pictures(3, 8, 8)
    assert (built(swapped)(colour.flip(1)) - built(draft())(colour)).abs().max() < 1e-5
    assert swapped.notes == ("patch projection adapted from 3 to 3 channels: taking the file's channels 2, 1, 0",)


def test_mean_and_deviation_go_with_their_channels() -> None:
    spec = ImageSpec(height=8, width=8, mean=(0.1, 0.2, 0.3), std=(0.4,))
    turned = reorder_spec_channels(spec, (2, 0))
    assert (turned.channels, turned.mean, turned.std) == (2, (0.3, 0.1), (0.4,))
    assert reorder_spec_channels(spec, "sum") is reorder_spec_channels(spec, None) is spec


def test_other_channels_without_a_policy_or_with_a_wrong_one_are_refused() -> None:
    assert adapt_channels(draft(), 3, None).notes == ()
    assert adapt_channels(draft(), 1, "sum").notes == ("patch projection adapted from 3 to 1 channel: sum",)
    with pytest.raises(UsageError, match=r'channels=1 contradicts .*have 3\. .*channels_policy="sum"'):
        adapt_channels(draft(), 1, None)
    with pytest.raises(UsageError, match=r"channels_policy must be sum, mean, tile or a list of channels\. Got 'avg'"):
        adapt_channels(draft(), 1, "avg")
    with pytest.raises(UsageError, match=r"each of 2 channels one of the file's, 0 to 2\. Got \[0, 3\]"):
        adapt_channels(draft(), 2, (0, 3))
    with pytest.raises(UsageError, match=r'channels_policy="sum" adapts .* Pass channels= too; .* have 3\.'):
        adapt_channels(draft(), None, "sum")
    with pytest.raises(UsageError, match=r"channels_policy=\[0, 1\] adapts the file to other channels"):
        adapt_channels(draft(), None, (0, 1))
    with pytest.raises(UsageError, match=r'channels_policy="tile" changes nothing: .* have 3 already'):
        adapt_channels(draft(), 3, "tile")
    with pytest.raises(UsageError, match=r"channels_policy must be sum, mean, tile or a list of channels\. Got 'avg'"):
        adapt_channels(draft(), 3, "avg")
    normed = replace(CONFIG, patches="linear", patch_norms=True)
    with pytest.raises(UsageError, match=r"this model has norms around it\. Give it pictures of 3 channels"):
        adapt_channels(draft(normed), 1, "sum")
    split = replace(CONFIG, image_size=(32, 32), patch=(16, 16), patches="t2t-transformer")
    with pytest.raises(UsageError, match=r"this model has t2t-transformer\. Give it pictures of 3 channels"):
        adapt_channels(draft(split), 1, "sum")


@torch.no_grad()
def test_a_headless_model_may_pool_otherwise_and_one_with_a_head_only_with_another() -> None:
    headless = draft(replace(CONFIG, outputs=0))
    mean = adapt_pool(headless, "mean", None)
    assert mean.notes == ("pooling replaced: class in the file, now mean",)
    tokens = built(headless).features(pictures(3, 8, 8), keep=("tokens",))["tokens"]
    assert torch.allclose(built(mean)(pictures(3, 8, 8)), tokens[:, 1:].mean(1), atol=1e-6)
    with pytest.raises(UsageError, match=r'pool="mean" contradicts the file: its head was trained on pool="class"'):
        adapt_pool(draft(), "mean", None)
    both = adapt_outputs(adapt_pool(draft(), "class+mean", 5), 5)
    assert built(both)(pictures(3, 8, 8)).shape == (2, 5)
    assert sum(row.action == "dropped" for row in both.audit.rows) == 2


def test_pooling_without_its_tensors_is_refused_and_tensors_without_their_pooling_are_dropped() -> None:
    with pytest.raises(
        UsageError, match=r'pool="attention" needs pool\.attention\.probe, which the file does not have'
    ):
        adapt_pool(draft(replace(CONFIG, outputs=0)), "attention", None)
    probe = draft(replace(CONFIG, outputs=0, pool="attention"))
    mean = adapt_pool(probe, "mean", None)
    assert not any(name.startswith("pool.") for name in mean.values)
    dropped = [row.theirs for row in mean.audit.rows if row.action == "dropped"]
    assert dropped == [f"their.{name}" for name in probe.values if name.startswith("pool.")]


@torch.no_grad()
def test_another_head_is_zeros_and_a_hidden_layer_goes_with_the_old_one() -> None:
    old = draft(replace(CONFIG, head="tanh"))
    new = adapt_outputs(old, 4)
    assert not built(new)(pictures(3, 8, 8)).any() and new.config.head == "linear"
    assert new.notes == ("head replaced: 3 outputs in the file, now 4, all zeros",)
    none = adapt_outputs(old, 0)
    assert built(none)(pictures(3, 8, 8)).shape == (2, 8) and none.notes[-1].endswith("now none")
    assert [row.ours for row in none.audit.rows if row.action == "dropped"] == ["outputs=0 asks for another head"] * 4
    assert adapt_outputs(old, 3) is old and adapt_outputs(old, None) is old
