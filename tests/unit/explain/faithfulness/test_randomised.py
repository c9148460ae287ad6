"""Shuffled weights: a method that shows the picture is found out, one that shows the model loses its map."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from kinds import KINDS, TINY
from vitrail.errors import UsageError
from vitrail.explain.faithfulness.benchmark import cascading_randomization, model_parts, shuffle_parameters
from vitrail.explain.faithfulness.localization import edge_baseline
from vitrail.model.vit import create_model

WIDE = replace(TINY, image_size=(24, 16), width=64, mlp_width=64, depth=3)
IMAGES = torch.randn(6, 2, 24, 16, generator=torch.Generator().manual_seed(2))
CLASSES = torch.tensor([0, 1, 2, 0, 1, 2])


def lens(model, images, classes):
    """What the head makes of every patch's own token."""
    with torch.no_grad():
        tokens = model.features(images, keep=("tokens",))["tokens"][:, model.config.prefix :]
        return model.head.linear(tokens).gather(2, classes[:, None, None].expand(-1, tokens.shape[1], 1)).view(-1, 6, 8)


def test_a_method_that_draws_the_pictures_edges_never_changes():
    model = create_model(WIDE, seed=1).eval()
    np.testing.assert_allclose(cascading_randomization(edge_baseline, model, IMAGES, CLASSES), 1)
    assert model_parts(model) == (
        *("head.", "encoder.norm.", "encoder.blocks.2.", "encoder.blocks.1.", "encoder.blocks.0."),
        *("positions.", "tokens."),
    )


def test_X7_a_method_that_shows_the_model_loses_its_map_and_the_model_stays_as_it_was():
    model = create_model(WIDE, seed=1).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = cascading_randomization(lens, model, IMAGES, CLASSES)
    assert found.shape == (7, 6) and np.abs(found[-1]).mean() < 0.5
    assert abs(found[-1].mean()) < 0.3
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert np.array_equal(found, cascading_randomization(lens, model, IMAGES, CLASSES))
    assert not np.array_equal(found, cascading_randomization(lens, model, IMAGES, CLASSES, seed=1))


def test_likeness_is_spearmans_ties_among_it():
    model = create_model(WIDE, seed=1).eval()
    rounded = lambda model, images, classes: (lens(model, images, classes) * 3).round()  # noqa: E731
    found = cascading_randomization(rounded, model, IMAGES, CLASSES)
    shuffle_parameters(model, "head.", 0)
    after, trained = (
        rounded(one, IMAGES, CLASSES).flatten(1).numpy() for one in (model, create_model(WIDE, seed=1).eval())
    )
    assert len(np.unique(trained[0])) < 48
    expected = [spearmanr(one, other).statistic for one, other in zip(trained, after, strict=True)]
    np.testing.assert_allclose(found[0], expected)


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_every_parameter_is_shuffled_in_one_part_and_keeps_its_numbers(config):
    model = create_model(config, seed=1)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    parts = model_parts(model)
    for part in parts:
        shuffle_parameters(model, part, seed=0)
    for name, after in model.named_parameters():
        assert sum(name.startswith(part) for part in parts) == 1, name
        assert torch.equal(after.flatten().sort().values, before[name].flatten().sort().values)
        if before[name].unique().numel() > 10:
            assert not torch.equal(after, before[name]), name


def test_a_map_that_went_flat_is_like_nothing_and_a_flat_map_cannot_be_tested():
    model = create_model(WIDE, seed=1).eval()
    head = model.head.linear.weight.detach().clone()

    def falls(model, images, classes):
        unchanged = torch.equal(model.head.linear.weight, head)
        return lens(model, images, classes) if unchanged else torch.zeros(len(images), 6, 8)

    assert not cascading_randomization(falls, model, IMAGES, CLASSES).any()
    with pytest.raises(UsageError, match=r"map of picture 0 \(from 0\) is the same everywhere"):
        cascading_randomization(lambda *_: torch.ones(6, 6, 8), model, IMAGES, CLASSES)
